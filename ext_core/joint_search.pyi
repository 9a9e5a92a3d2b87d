"""The cheapest placement of all pods of a gang on some nodes: fewest nodes, then the lowest price. Exact, in steps."""

from array import array
from collections.abc import Sequence

from typing_extensions import disjoint_base

from ext_core.joint import Joint

def states(joint: Joint) -> int:
    """How many sets of the gang's pods there are, equal pods not told apart; 0: more than a search can hold."""

@disjoint_base
class Search:
    """One search over the nodes `at` (int32); of equal placements the one on the first of them is found."""

    def __new__(
        cls, joint: Joint, at: array[int], partial: bool = False, sizes: Sequence[int] = (), most: int = -1
    ) -> Search:
        """`partial`: the most pods are placed where not all fit; `most`: the GPUs that the pods may take of these nodes
        together, -1: any number; `sizes`: the GPUs of a pod of each role. ValueError: too large, or `most` without
        sizes. IndexError: no such node."""
    def advance(self, steps: int) -> bool:
        """Go on for about so many steps, a few nanoseconds each; whether the search has ended. ValueError: a node has
        more ways than are enumerated."""
    def cost_of(self) -> tuple[int, int] | None:
        """(nodes, price in millionths) of the cheapest placement of all pods; None: they do not fit. ValueError: the
        search has not ended (so below)."""
    def placement(self) -> list[tuple[int, tuple[int, ...]]]:
        """(node, pods of each role) of that placement, or of the one of the most pods, in the order of `at`."""

@disjoint_base
class Union:
    """The cheapest placement on the nodes of several searches, which differ. Its methods are those of `Search`."""

    def __new__(cls, searches: list[Search]) -> Union:
        """`searches`: of one joint, with `partial`; all have ended. ValueError: they are not."""
    def advance(self, steps: int) -> bool: ...
    def cost_of(self) -> tuple[int, int] | None: ...
    def placement(self) -> list[tuple[int, tuple[int, ...]]]: ...
