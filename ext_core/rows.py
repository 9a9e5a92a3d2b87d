"""Typed records of rows: what the writer gives, what readers get, and what a reply rejects."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_core.ask import Ask


class NodeFacts(NamedTuple):
    """What the Node object states."""

    alloc: tuple[int, ...]
    """R allocatable amounts: milli-CPU, bytes, pod slots, units by GPU resource."""
    gpu: int
    """Index of the node's GPU resource; -1 = none."""
    shape: int
    """Link shape of the GPUs, an id of the LinkShapes; 0 = unknown."""
    healthy: int
    """Mask of the GPUs that exist and are healthy."""
    flags: int
    """AWAY 2, SCHEDULABLE 4, and bit r where a DeviceClass (DRA) may serve resource r = 3..7."""
    units: int = 1
    """Units of the GPU resource that are one GPU."""
    model: int = 0
    """Kind of machine, 0..63."""


class NodeUse(NamedTuple):
    """What the pods of a node hold."""

    used: tuple[int, ...]
    """R amounts."""
    sure: int
    """Mask of the GPUs that are known to be held as a whole."""
    likely: int
    """Mask of the GPUs that are probably held: planned or inferred."""
    unknown: int
    """GPUs that are held at unknown positions."""
    pending: int
    """Part of likely + unknown that an admission under way will make known."""
    parts: tuple[int, ...] = ()
    """Units of each GPU that pods hold which take less than the whole of it; 16 at most, the others have 0."""


class NodeRow(NamedTuple):
    """All columns of one row of a NodeTable. `parts` and `asked`: 16 numbers, one a GPU."""

    alloc: tuple[int, ...]
    used: tuple[int, ...]
    claim: tuple[int, ...]
    tentative: tuple[int, ...]
    evictable: tuple[int, ...]
    gpu: int
    shape: int
    healthy: int
    sure: int
    likely: int
    wanted: int
    unknown: int
    pending: int
    order: int
    flags: int
    units: int
    model: int
    parts: tuple[int, ...]
    asked: tuple[int, ...]


NOT_ASKED: Final = 750
"""Thousandths: a pod that is so likely to ignore a request to save is not asked, as one that cannot be."""


class PodRow(NamedTuple):
    """A pod on its node, as the kernels read it. Times are in milliseconds since 1970, spans in seconds."""

    node: int
    """Row of its node."""
    priority: int
    amounts: tuple[int, ...]
    """R amounts that it holds."""
    mask: int
    """GPU positions that it surely holds."""
    unsure: int
    """GPUs that it holds at positions that are not certain."""
    flags: int
    """TERMINATING 1 (deletionTimestamp is set), SPARED 2 (never a victim), DEVICES 16 (its claims hold devices: a
    victim only of priority EVERY, 2^31 - 1, by which a caller sorts the possible victims out itself), LINKED 32 (it
    requires linked GPUs)."""
    start: int = 0
    """When it started; far in the future while it has not."""
    saved: int = 0
    """Its last checkpoint; 0 = none is known."""
    restart: int = 0
    """What a restart costs."""
    grace: int = 0
    """terminationGracePeriodSeconds."""
    until: int = 0
    """It is no victim before then; 0 = not protected."""
    saves: int = -1
    """The time in which it saves its work once its containers are told to end; -1 = it does not."""
    asked: int = -1
    """The time in which it saves its work when it is asked to; -1 = it cannot be asked."""
    ignores: int = 0
    """How likely it does not save all the same, in thousandths."""


class PlaceRow(NamedTuple):
    """All columns of one row of a Places."""

    doubt: float
    """How many pods failed on the node lately, each counted less as it ages."""
    failing: bool
    """Whether the node is rejected for that."""
    split: bool
    """Whether the node hands out parts of GPUs."""
    domains: tuple[int, ...]
    """The domain at each level, from 1; 0 = in none."""
    model: int = 0
    """The model of the node's GPUs, from 1; 0 = it has none."""


class Rejections(NamedTuple):
    """The rejected nodes of a filter reply. A pair is (rows int32[n], reason codes uint8[n])."""

    failed: tuple[array[int], array[int]]
    """FailedNodes."""
    unresolvable: tuple[array[int], array[int]]
    """FailedAndUnresolvableNodes."""
    texts: list[str]
    """[code] the reason as people read it."""
    unknown: list[tuple[str, int]]
    """(name, code) of nodes without a row; they end the unresolvable ones."""


class Role(NamedTuple):
    """Equal pods of a gang."""

    ask: Ask
    """What each of them asks for."""
    pods: int
    """How many of them."""
    against: int
    """Mask of the roles whose pods may not be on the same node; with its own bit one pod of it a node."""
    cordoned: bool = False
    """Whether they may be on a node that is cordoned."""
