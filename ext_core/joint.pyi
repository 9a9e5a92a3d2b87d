"""What a gang may take of each node: a copy of what is free, and the ways to put some of its pods there.

Nodes are numbered from 0 in the order in which they were read. `counts`: pods of each role; a *way* is counts that a
node takes. A price is in millionths of what `Slots` counts: the slots that pods to come lose, and `fullness` x what is
left empty on the node. ValueError: counts beyond the roles', a column that has not one number a node. IndexError: no
such node, role or resource.
"""

from array import array
from collections.abc import Sequence

from typing_extensions import disjoint_base

from ext_core.hazard import Hazards
from ext_core.link_sets import LinkSets
from ext_core.rows import Role
from ext_core.slot_counts import SlotCounts
from ext_core.table import NodeTable

_Counts = Sequence[int]

@disjoint_base
class Joint:
    """The nodes that a gang may use."""

    height: int
    """How many nodes were read."""
    roles_count: int
    kinds: int
    """How many different nodes are among them."""

    def __new__(
        cls,
        nodes: NodeTable,
        slots: SlotCounts,
        sets: LinkSets,
        roles: list[Role],
        fullness: float,
        others: list[tuple[int, ...]] | None = None,
    ) -> Joint:
        """`roles`: 1 to 64, largest share, then most GPUs first. `slots`: synced with the table; its types are priced.
        `others`: for each role how much one pod asks for of each resource that is no column of the table. ValueError:
        others, amounts below 0, sets of other shapes, a request for another table."""
    def read(
        self,
        nodes: NodeTable,
        hazards: Hazards,
        rows: array[int],
        judged: list[tuple[array[int], array[int]]],
        others: array[int] | None = None,
    ) -> None:
        """Copy what is left of the rows (int32), claims taken. `judged`: for each role the reason codes of the rules of
        filter for one pod, one byte for each of `rows`; and uint64, bit `row % 64` of word `row // 64` where the pod is
        eligible; `others`: int64, what is left of the other resources, those of the first row, then of the next.
        ValueError: another table, not one judgement a role, not one number for each row and other resource."""
    def refuse(self, at: array[int], refused: list[_Counts]) -> None:
        """The nodes `at` (int32) take no way that has as many pods of each role, or more, as one of `refused`: what is
        not counted here keeps them from it. A refusal is added to those before."""
    def refuse_nothing(self) -> None:
        """Forget what was refused."""
    def row(self, at: int) -> int:
        """The row of a node."""
    def most_of(self, at: int) -> tuple[int, ...]:
        """How many pods of each role alone a node takes."""
    def sums(self, domain: array[int], domains: int) -> array[int]:
        """int64[domains, C]: the sums of `most_of` over each domain. `domain`: int32 by node, -1 = none. IndexError: a
        domain beyond their number."""
    def members(self, domain: array[int], which: int) -> array[int]:
        """int32: the nodes of one domain that take at least one pod."""
    def work(self, at: array[int]) -> int:
        """How many ways the nodes have together at most; 0: one has more than are enumerated."""
    def set_prices(self, prices: array[float]) -> None:
        """What a slot of each type costs, one number for each type that `slots` has now. Before any price is asked for,
        and when `priced` is False. ValueError: another number of prices."""
    def priced(self) -> bool:
        """Whether `slots` still has the types that the prices are of; where not, a price is a ValueError."""
    def ways(self, at: int) -> list[tuple[tuple[int, ...], int]] | None:
        """(counts, price) of all ways of a node; None: too many."""
    def alone(self, first: int, last: int, domain: array[int]) -> tuple[int, int] | None:
        """(node, price) of the cheapest node from `first` to before `last` that takes all pods and whose domain is not
        -1; of equal ones the first."""
    def more(self, at: int, counts: _Counts, role: int) -> int:
        """How many pods of a role a node takes beside `counts`."""
    def price(self, at: int, counts: _Counts) -> int | None:
        """The price of a way; None: the node does not take these pods."""
    def needed(self) -> tuple[int, ...]:
        """The amounts of the table's resources that all pods ask for together."""
    def rooms(self, at: array[int], role: int) -> array[int]:
        """int64: how many pods of a role alone fit on each of the nodes `at` (int32)."""
    def spare(self, at: array[int], resource: int) -> array[int]:
        """int64: the amounts of a resource that were free on each of the nodes; 0 where no role is allowed."""
    def gpus(self, at: int, counts: _Counts) -> list[int] | None:
        """The GPUs of each pod of a way, role by role: linked sets for all where they fit side by side, else for those
        that require them. 0: no positions can be planned. None: the node does not take these pods."""
    def holds(self, at: int, counts: _Counts, masks: Sequence[int]) -> bool:
        """Whether a node takes these pods on these GPUs: they are free, each pod's own, and linked where that is
        required. A mask of 0 claims no positions."""
