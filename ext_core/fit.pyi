"""Does it fit? Each kernel writes its reason's code over the candidate rows that no earlier rule rejected.

`rows`: int32[n]. `out`: uint8[n], the reason column, 0 = not rejected yet; only zeros are overwritten. `codes`: the
caller's, as in `ext_core.reasons`. ValueError: columns of different length, a request for a table of other resources.
IndexError: a row outside of the table.
"""

from array import array

from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.reasons import CountCodes, LinkCodes, NicCodes, ResourceCodes
from ext_core.table import NodeTable, PodTable

def resource(nodes: NodeTable, ask: Ask, rows: array[int], out: array[int] | bytearray, codes: ResourceCodes) -> None:
    """Reject nodes without a GPU resource that the pod asks for: `away` where the node has it by capacity and none of
    it is allocatable, else `none`."""

def count(
    nodes: NodeTable, pods: PodTable, ask: Ask, rows: array[int], out: array[int] | bytearray, codes: CountCodes
) -> None:
    """Reject nodes with too few free units of a GPU resource, in all or on single GPUs.

    On single GPUs: fewer GPUs have `ask.share` units left each than the pod takes. Pods may be victims that are below
    `ask.priority`, not spared, and not protected at PodTable.now.
    """

def links(
    nodes: NodeTable, pods: PodTable, ask: Ask, rows: array[int], out: array[int] | bytearray, codes: LinkCodes
) -> None:
    """Reject nodes that are not certain to hand out `ask.wanted` linked GPUs, to `ask.containers` containers in all.

    Only for a pod that requires linked GPUs, and two or more of them.
    """

def nics(nodes: NodeTable, ask: Ask, rows: array[int], out: array[int] | bytearray, codes: NicCodes) -> None:
    """Reject nodes that are not certain to hand out GPUs each with a NIC of its own, and linked where that is required.

    Only for a pod that requires such NICs. Where the node does not hand out what is planned, `links` judges the links.
    """

UNSEEN: int
"""In a column of what nodes have for claims: not looked at yet. The other values are 0 (not known), UNMET and the mask
of the GPUs that kube-scheduler would allocate."""
UNMET: int
"""In such a column: the node does not meet the claims."""

def unseen(rows: array[int], codes: array[int] | bytearray, given: array[int]) -> array[int]:
    """The rows (int32) that no rule rejected and that are UNSEEN in `given`: uint32 by row, as below.

    ValueError: columns of different length. IndexError: a row outside of `given`.
    """

def unmet(rows: array[int], out: array[int] | bytearray, given: array[int], code: int) -> int:
    """Reject nodes that are UNMET in `given`. The index of the first, -1 for none. Errors as of `unseen`."""

def given_links(
    nodes: NodeTable, resource: int, rows: array[int], out: array[int] | bytearray, given: array[int], codes: LinkCodes
) -> None:
    """Judge again what `links` passed or rejected, where `given` has the GPUs that the pod gets: whether these are
    linked. `resource`: what they are asked for as.

    A node that other pods are on their way to stays as it was. ValueError: no GPU resource. Errors as of `unseen`.
    """

def given_nics(
    nodes: NodeTable, resource: int, rows: array[int], out: array[int] | bytearray, given: array[int], codes: NicCodes
) -> None:
    """The same for what `nics` judged: whether each GPU has a NIC of its own, where the NICs are known."""

def link_table(shapes: LinkShapes, shape: int, gpus: int, wanted: int, containers: int, planned: bool = False) -> bytes:
    """One byte for each set of free GPUs (1 << `gpus`): 1 when `wanted` of it are certain to be linked, else 0.

    `containers`: of the pod; 0: any `wanted` of the GPUs have to be linked, whatever the node chooses. `planned`:
    as of Ask. ValueError: more than 16 GPUs.
    """

def monotone(table: bytes) -> bool:
    """Whether a superset of a sufficient set of GPUs is always sufficient. `table`: of link_table.

    ValueError: not 1 << GPUs marks.
    """

def uniform(shapes: LinkShapes, shape: int, healthy: int, wanted: int) -> bool:
    """Whether there are `wanted` healthy GPUs and any of them are linked, so that counting them is enough."""

def withhold(rows: array[int], out: array[int] | bytearray, code: int, but: int = -1) -> int:
    """Write `code` for the rows that no rule rejected, except for the row `but`; gives their number."""

def passed(rows: array[int], codes: array[int] | bytearray) -> array[int]:
    """The rows (int32) that no rule rejected, in their order."""

def rejected(
    rows: array[int], codes: array[int] | bytearray, chosen: array[int] | bytes | bytearray
) -> tuple[array[int], array[int]]:
    """(rows int32, codes uint8) of those whose code is marked in `chosen`: 256 bytes, one a code, 0 = not.

    ValueError: `chosen` has not 256 marks.
    """

def counts(codes: array[int]) -> dict[int, int]:
    """How often each code occurs, without 0, ascending."""
