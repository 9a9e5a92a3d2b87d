"""The cheapest sufficient victims on each candidate node, exactly."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from typing_extensions import Buffer

from ext_core.candidates import Candidates

class Victims(NamedTuple):
    """What `cheapest` found. `cost` and `chosen` are 0 where nothing was found.

    chosen:   uint8[pods], 1 = victim
    cost:     int64[T, n] row after row: term t on candidate i is `cost[t * n + i]`
    status:   int8[n]: 0 no set suffices; 1 found, and proved cheapest; 2 found, the budget ended before the proof;
              3 the budget ended before a set was found (where `ok` is not monotone, or with `skip`: nothing is proved);
              4 (with `skip` only) no set, or none that costs less than those of two candidates before
    examined: int64[n] search nodes; together at most `budget`, and one for each candidate left at once
    stopped:  the look at the clock at which the time ended the search, 0: it did not
    """

    chosen: array[int]
    cost: array[int]
    status: array[int]
    examined: array[int]
    stopped: int = 0

Term = (
    # sum of int64[pods] (>= 0) over the victims, or their maximum (of no victims: -2**63)
    tuple[Literal["sum", "max"], Buffer]
    # as "sum", less int64[n] (>= 0) of the candidate: a number that no set which suffices stays below
    | tuple[Literal["sum"], Buffer, Buffer]
    # member_start int32[pods + 1], member int32[m] (the groups of each pod), allowance, price (>= 0) int64[groups].
    # "group": walk the victims in the order of their indices; each takes one off every group it is in; it violates
    # when one of those is then below zero, and pays the highest price among those. Price 1: NumPDBViolations.
    # "gang": the first group of a pod is its gang, the others are roles in it, and a group is of one gang. A gang is
    # broken when of any of its groups more than `allowance` (and at least one) are victims: its price, once. Prices of
    # roles are not read.
    | tuple[Literal["group", "gang"], Buffer, Buffer, Buffer, Buffer]
    # A gang's price may span other nodes; with an own cost per pod, int64[pods] (>= 0): each victim that is in no
    # broken gang pays its own, each broken gang its price, which stands for all members. The price covers what its
    # eligible members on one candidate cost together.
    | tuple[Literal["gang"], Buffer, Buffer, Buffer, Buffer, Buffer]
    # a term of the form "sum", "max" or "gang": sets that cost more than the number in it are left out
    | tuple[Literal["below"], int, Term]
    # per table int64[1 << GPUs]: the price of the GPUs left free after the eviction; 0 where a candidate has no table
    | tuple[Literal["mask"], list[Buffer]]
)

def cheapest(
    candidates: Candidates,
    terms: Iterable[Term],
    budget: int,
    skip: bool = False,
    nanoseconds: int = 0,
    stop: int = 0,
) -> Victims:
    """The cheapest sufficient set of victims on each of n candidate nodes, proved within `budget` search nodes in all.

    terms:       cost terms, the most important first; cost vectors compare lexicographically
    skip:        only the two cheapest candidates matter (of equals the first): the search leaves others early
    nanoseconds: of CPU for all candidates; 0: no limit. What is found by then is answered, unproved
    stop:        the time is over at this look at the clock (`stopped` of another run), whatever it shows; 0: at none

    A set suffices when it holds all forced pods, frees at least `short` of every resource and, where table >= 0,
    leaves no unknown GPU and a mask `free | masks of the victims` that is ok. The empty set is a set like others.

    Ties in all terms: fewest pods; then the set whose ranks, ascending, are lexicographically least. A pod's rank
    is its place by (its cost vector as the only victim, "mask" terms aside; the larger index first).

    Raises ValueError for columns that do not fit together and OverflowError for costs beyond 64 bits. The caller must
    not write the columns meanwhile: the GIL is released.
    """

def kube_pdb_violations(order: Iterable[int], memberships: Sequence[Iterable[int]], allowance: Iterable[int]) -> int:
    """NumPDBViolations of the victims `order` as kube-scheduler counts it (filterPodsWithPDBViolation in
    pkg/scheduler/framework/plugins/defaultpreemption, v1.36): pods, each once, that find one of their budgets used up.

    order: pods, most important first; memberships: per pod its budgets; allowance: per budget its disruptionsAllowed.
    A pod already in a budget's disruptedPods is, for that budget, no member.
    """
