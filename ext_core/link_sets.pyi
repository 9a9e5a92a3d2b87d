"""Disjoint linked sets of GPUs: whether sets of several sizes fit into a free set side by side, and which to take."""

from collections.abc import Sequence

from typing_extensions import disjoint_base

from ext_core.links import LinkShapes

@disjoint_base
class LinkSets:
    """Linked sets of GPUs of the shapes. Answers are kept, so one object serves many calls."""

    shapes: LinkShapes

    def __new__(cls, shapes: LinkShapes) -> LinkSets: ...
    def sets(self, shape: int, free: int, sizes: Sequence[int]) -> list[int] | None:
        """The sets to take from the mask `free`, in the order of `sizes` (2 to 16, descending); None where no disjoint
        linked sets of these sizes exist. Each is the best by `LinkShapes.objective` of those that leave the others
        room. KeyError: an unknown shape. ValueError: other sizes, or GPUs that the shape does not have."""
    def most(self, shape: int, free: int, size: int) -> int:
        """How many disjoint linked sets of a size (2 to 16) there are in the mask `free`. Errors as of `sets`."""
