"""Does it fit? Each kernel writes its reason's code over the candidate rows that no earlier rule refused.

`rows`: int32[n]. `out`: uint8[n], the reason column, 0 = not refused yet; only zeros are overwritten. The codes are the
caller's. ValueError: columns of different length, no such resource. IndexError: a row outside of the table.
"""

from array import array

from ext_core.links import LinkShapes
from ext_core.table import NodeTable, PodTable

def resource(
    nodes: NodeTable, rows: array[int], resource: int, out: array[int] | bytearray, none: int, away: int
) -> None:
    """Refuse nodes without the resource: `none`; `away` where it is the node's by capacity, none allocatable."""

def count(
    nodes: NodeTable,
    pods: PodTable,
    rows: array[int],
    resource: int,
    wanted: int,
    priority: int,
    out: array[int] | bytearray,
    few: int,
    promised: int,
    reserved: int,
    releasing: int,
    busy: int,
    held: int,
) -> None:
    """Refuse nodes with fewer than `wanted` free GPUs, and say why; the first that holds of:

    few: the node has not that many. promised: it would fit but for pods in flight. reserved: but for all claims.
    releasing: it will fit when terminating pods are gone. busy: when pods that may go did too: below `priority`, not
    spared, not protected at PodTable.now.
    held: not even then.
    """

def shares(
    nodes: NodeTable,
    pods: PodTable,
    rows: array[int],
    resource: int,
    devices: int,
    share: int,
    priority: int,
    out: array[int] | bytearray,
    few: int,
    promised: int,
    reserved: int,
    releasing: int,
    busy: int,
    held: int,
) -> None:
    """Where fewer than `devices` GPUs have `share` units left each. Codes as in `count`, which comes before it."""

def links(
    nodes: NodeTable,
    pods: PodTable,
    shapes: LinkShapes,
    rows: array[int],
    resource: int,
    wanted: int,
    containers: int,
    priority: int,
    out: array[int] | bytearray,
    graph: int,
    never: int,
    pending: int,
    busy: int,
    held: int,
) -> None:
    """Refuse nodes that are not certain to hand out `wanted` linked GPUs (to `containers` containers in all).

    graph: the links are unknown. never: not even the empty node is certain. pending: an admission under way hides
    positions. busy: evicting all that may go (as in `count`) would make it certain. held: not even that.
    """

def link_table(shapes: LinkShapes, shape: int, gpus: int, wanted: int, containers: int) -> bytes:
    """One byte for each set of free GPUs (1 << `gpus`): 1 when `wanted` of it are sure to be linked, else 0.

    `containers`: of the pod; 0: whoever chooses the GPUs, any `wanted` of them have to be linked.
    ValueError: more than 16 GPUs.
    """

def monotone(table: bytes) -> bool:
    """Whether every set of GPUs that will do still does with more GPUs in it. `table`: of link_table.

    ValueError: not 1 << GPUs marks.
    """

def uniform(shapes: LinkShapes, shape: int, healthy: int, wanted: int) -> bool:
    """Whether there are `wanted` healthy GPUs and any of them are linked, so that counting them is enough."""

def passed(rows: array[int], codes: array[int] | bytearray) -> array[int]:
    """The rows (int32) that no rule refused, in the order they came."""

def refused(
    rows: array[int], codes: array[int] | bytearray, chosen: array[int] | bytes | bytearray
) -> tuple[array[int], array[int]]:
    """(rows int32, codes uint8) of those whose code is marked in `chosen`: 256 bytes, one a code, 0 = not.

    ValueError: `chosen` has not 256 marks.
    """

def counts(codes: array[int]) -> dict[int, int]:
    """How often each code occurs, without 0, ascending."""
