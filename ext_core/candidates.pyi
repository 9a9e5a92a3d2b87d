"""The columns of a victim search: `gather.victims` makes them, `victims.cheapest` reads them."""

from array import array

from typing_extensions import disjoint_base

@disjoint_base
class Candidates:
    """n candidate nodes and their m eligible pods. The columns can be written; their lengths are fixed."""

    def __new__(cls, start: array[int], resources: int) -> Candidates:
        """All columns are 0, and `table` is -1. ValueError: `start` does not begin with 0, or falls."""
    def widen(self, more: int) -> None:
        """Add so many resources, of which nothing is short and nothing is freed, behind those that are there."""
    @property
    def resources(self) -> int:
        """R, the number of resources."""
    @property
    def start(self) -> array[int]:
        """int32[n + 1]; candidate i has the pods start[i]:start[i + 1], the most important first."""
    @property
    def short(self) -> memoryview:
        """int64[R, n] how much of each resource must be freed for the preemptor to fit; <= 0: nothing."""
    @property
    def free(self) -> array[int]:
        """uint32[n] GPUs free now."""
    @property
    def unknown(self) -> array[int]:
        """int32[n] how many GPUs are held at unknown positions."""
    @property
    def table(self) -> array[int]:
        """int32[n] index into `ok`; -1: no rule about links, so `masks`, `unknown` and `unsure` do not matter."""
    @property
    def amounts(self) -> memoryview:
        """int64[R, m] what evicting the pod frees, >= 0."""
    @property
    def masks(self) -> array[int]:
        """uint32[m] GPUs that the pod holds and frees; 0: none, or at unknown positions."""
    @property
    def unsure(self) -> array[int]:
        """int32[m] how many GPUs at unknown positions the pod frees, >= 0."""
    @property
    def forced(self) -> array[int]:
        """uint8[m] 1: the pod is among the victims in any case."""
    @property
    def ok(self) -> list[bytes]:
        """bytes[1 << GPUs] (at most 16 GPUs) each: 1 where the preemptor may run on those free GPUs."""
