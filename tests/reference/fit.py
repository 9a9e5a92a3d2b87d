"""Twin of `ext_core.fit`."""

from __future__ import annotations

from itertools import combinations

from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.reasons import CountCodes, LinkCodes, NicCodes, ResourceCodes
from ext_core.rows import PodRow
from tests.reference.table import (
    AWAY,
    DEVICES,
    EVERY,
    MOST_GPUS,
    SPARED,
    TERMINATING,
    NodeTable,
    PodTable,
    asked,
    check,
    check_ask,
)

CERTAIN = 2


def _check(nodes: NodeTable, ask: Ask, rows: list[int], out: list[int]) -> None:
    check(nodes, rows, out)
    check_ask(nodes, ask)


def _open(rows: list[int], out: list[int]) -> list[tuple[int, int]]:
    """(index, row) of what no earlier rule rejected."""
    return [(i, row) for i, row in enumerate(rows) if not out[i]]


def _may_go(pods: PodTable, pod: PodRow, priority: int) -> bool:
    spared = pod.flags & SPARED or (pod.flags & DEVICES and priority != EVERY)
    return pod.priority < priority and not spared and pod.until <= pods.now


def _served(nodes: NodeTable, row: int, resource: int) -> bool:
    return nodes.alloc[row][resource] == 0 and resource < 8 and bool(nodes.columns["flags"][row] & 1 << resource)


def resource(nodes: NodeTable, ask: Ask, rows: list[int], out: list[int], codes: ResourceCodes) -> None:
    _check(nodes, ask, rows, out)
    for resource, _ in asked(ask):
        for i, row in _open(rows, out):
            flags = nodes.columns["flags"][row]
            if nodes.alloc[row][resource] <= 0 and not _served(nodes, row, resource):
                named = flags & AWAY and nodes.columns["gpu"][row] == resource
                out[i] = codes.away if named else codes.none


def count(nodes: NodeTable, pods: PodTable, ask: Ask, rows: list[int], out: list[int], codes: CountCodes) -> None:
    _check(nodes, ask, rows, out)
    for resource, _ in asked(ask):
        for i, row in _open(rows, out):
            if not _served(nodes, row, resource):
                out[i] = _in_all(nodes, pods, ask, resource, row, codes)
        for i, row in _open(rows, out):
            if not _served(nodes, row, resource):
                out[i] = _on_gpus(nodes, pods, ask, resource, row, codes)


def _in_all(nodes: NodeTable, pods: PodTable, ask: Ask, resource: int, row: int, codes: CountCodes) -> int:
    """Why a node has too few units in all; 0 = it has enough."""
    wanted = ask.amounts[resource]
    on_node = [pods.rows[pod] for pod in pods.on(row)]
    releasing = sum(pod.amounts[resource] for pod in on_node if pod.flags & TERMINATING)
    lower = sum(
        pod.amounts[resource] for pod in on_node if not pod.flags & TERMINATING and _may_go(pods, pod, ask.priority)
    )
    free = nodes.free_count(resource, row)
    if free >= wanted:
        return 0
    if nodes.alloc[row][resource] < wanted:
        return codes.few
    if free + nodes.tentative[row][resource] >= wanted:
        return codes.assumed
    if free + releasing >= wanted:
        return codes.releasing
    if free + nodes.claim[row][resource] >= wanted:
        return codes.reserved
    evictable = nodes.evictable[row][resource]
    return codes.busy if free + releasing + lower + evictable >= wanted else codes.held


def _on_gpus(nodes: NodeTable, pods: PodTable, ask: Ask, resource: int, row: int, codes: CountCodes) -> int:
    """Why too few GPUs of a node have a share left; 0 = enough of them have."""
    at = nodes.node(row)
    share, devices = ask.share, ask.amounts[resource] // ask.share
    if share <= 1 or at.gpu != resource or at.healthy == 0:
        return 0
    gpus = [gpu for gpu in range(MOST_GPUS) if at.healthy >> gpu & 1]
    left = {gpu: 0 if at.sure >> gpu & 1 else at.units - at.parts[gpu] for gpu in gpus}
    known = {gpu: left[gpu] for gpu in gpus if not at.likely >> gpu & 1}
    on_node = [pods.rows[pod] for pod in pods.on(row)]
    releasing = [pod for pod in on_node if pod.flags & TERMINATING]
    gone = releasing + [pod for pod in on_node if not pod.flags & TERMINATING and _may_go(pods, pod, ask.priority)]

    def enough(room: dict[int, int], gone: list[PodRow] = []) -> bool:  # noqa: B006
        freed = {gpu: units + sum(_each(pod, resource, gpu) for pod in gone) for gpu, units in room.items()}
        return sum(units >= share for units in freed.values()) >= devices

    if share > at.units or len(gpus) < devices:
        return codes.few
    if enough(nodes.left(row)):
        return 0
    if enough(known):
        return codes.assumed if nodes.tentative[row][resource] > 0 else codes.reserved
    if enough(known, releasing):
        return codes.releasing
    return codes.busy if enough(known, gone) else codes.held


def _each(pod: PodRow, resource: int, gpu: int) -> int:
    """Units that a pod is known to hold on a GPU."""
    return pod.amounts[resource] // pod.mask.bit_count() if pod.mask >> gpu & 1 else 0


def links(nodes: NodeTable, pods: PodTable, ask: Ask, rows: list[int], out: list[int], codes: LinkCodes) -> None:
    _check(nodes, ask, rows, out)
    if ask.links != "required" or ask.wanted < 2:
        return
    for i, row in _open(rows, out):
        out[i] = _unlinked(nodes, pods, ask, row, codes)


UNSEEN, UNMET = 1 << 31, 1 << 30


def _check_given(rows: list[int], codes: list[int], given: list[int]) -> None:
    if len(rows) != len(codes):
        raise ValueError("rows and codes differ in length")
    if any(not 0 <= row < len(given) for row in rows):
        raise IndexError("row outside of what is given")


def unseen(rows: list[int], codes: list[int], given: list[int]) -> list[int]:
    _check_given(rows, codes, given)
    return [row for _, row in _open(rows, codes) if given[row] == UNSEEN]


def unmet(rows: list[int], out: list[int], given: list[int], code: int) -> int:
    _check_given(rows, out, given)
    rejected = [i for i, row in _open(rows, out) if given[row] == UNMET]
    for i in rejected:
        out[i] = code
    return min(rejected, default=-1)


def given_links(
    nodes: NodeTable, resource: int, rows: list[int], out: list[int], given: list[int], codes: LinkCodes
) -> None:
    own = (0, codes.unknown, codes.never, codes.pending, codes.busy, codes.held)
    for i, row in _given(nodes, resource, rows, out, given):
        if out[i] in own:
            inside = _inside(nodes, row, given[row])
            linked = given[row].bit_count() == 1
            if not linked and inside == given[row]:
                linked = (nodes.shapes.ring(nodes.node(row).shape, inside) or 0) > 0
            out[i] = 0 if linked else codes.never if _is_empty(nodes, row) else codes.held


def given_nics(
    nodes: NodeTable, resource: int, rows: list[int], out: list[int], given: list[int], codes: NicCodes
) -> None:
    own = (0, codes.unknown, codes.never, codes.pending, codes.held)
    for i, row in _given(nodes, resource, rows, out, given):
        near = nodes.shapes.nics(nodes.node(row).shape, _inside(nodes, row, given[row]))
        if out[i] in own and near is not None:
            enough = near >= given[row].bit_count()
            out[i] = 0 if enough else codes.never if _is_empty(nodes, row) else codes.held


def _inside(nodes: NodeTable, row: int, gpus: int) -> int:
    """Those that the shape of the node has."""
    return gpus & ((1 << (nodes.shapes.gpus(nodes.node(row).shape) or 0)) - 1)


def _given(nodes: NodeTable, resource: int, rows: list[int], out: list[int], given: list[int]) -> list[tuple[int, int]]:
    """(index, row) of the nodes whose GPUs are given for certain."""
    check(nodes, rows, out)
    _check_given(rows, out, given)
    if not 3 <= resource < nodes.resources:
        raise ValueError("no GPU resource of the table")
    certain = []
    for i, row in enumerate(rows):
        node = nodes.node(row)
        if given[row] not in (0, UNSEEN, UNMET) and node.shape and node.gpu == resource and not node.claim[resource]:
            certain.append((i, row))
    return certain


def _is_empty(nodes: NodeTable, row: int) -> bool:
    node = nodes.node(row)
    return not node.unknown and not node.healthy & (node.sure | node.likely)


def _unlinked(nodes: NodeTable, pods: PodTable, ask: Ask, row: int, codes: LinkCodes) -> int:
    """Why a node is not certain to hand out linked GPUs; 0 = it is certain."""
    at, shapes, wanted = nodes.node(row), nodes.shapes, ask.wanted
    hidden = max(0, at.healthy.bit_count() - at.alloc[ask.resource])
    named = nodes.named(ask.resource, row)
    unknown = at.unknown + (at.likely & ~at.sure).bit_count() + at.claim[ask.resource] - named.bit_count() + hidden
    free = at.healthy & ~at.sure & ~named
    on_node = [pods.rows[pod] for pod in pods.on(row)]
    gone = [pod for pod in on_node if pod.flags & TERMINATING or _may_go(pods, pod, ask.priority)]
    stay = [pod for pod in on_node if pod not in gone]
    freed = (_union(gone) | free) & ~_union(stay)
    left = max(0, unknown - sum(pod.unsure for pod in gone))
    if at.shape == 0 or at.gpu != ask.resource:
        return codes.unknown
    if shapes.certain(at.shape, free, wanted, unknown, ask.containers, ask.planned) == CERTAIN:
        return 0
    if shapes.certain(at.shape, at.healthy, wanted, hidden, ask.containers, ask.planned) != CERTAIN:
        return codes.never
    if at.pending > 0 or at.tentative[ask.resource] > 0:
        return codes.pending
    certain = shapes.certain(at.shape, at.healthy & freed, wanted, left, ask.containers, ask.planned) == CERTAIN
    return codes.busy if certain else codes.held


def _union(pods: list[PodRow]) -> int:
    mask = 0
    for pod in pods:
        mask |= pod.mask
    return mask


def nics(nodes: NodeTable, ask: Ask, rows: list[int], out: list[int], codes: NicCodes) -> None:
    _check(nodes, ask, rows, out)
    if ask.nics != "required" or ask.wanted < 1:
        return
    for i, row in _open(rows, out):
        out[i] = _without_nics(nodes, ask, row, codes)


def _without_nics(nodes: NodeTable, ask: Ask, row: int, codes: NicCodes) -> int:
    at, shapes = nodes.node(row), nodes.shapes
    if at.gpu != ask.resource or not at.shape or shapes.nics(at.shape, 0) is None:
        return codes.unknown
    linked, hidden = ask.links == "required", max(0, at.healthy.bit_count() - at.alloc[ask.resource])
    named = nodes.named(ask.resource, row)
    unknown = at.unknown + (at.likely & ~at.sure).bit_count() + at.claim[ask.resource] - named.bit_count() + hidden
    free = at.healthy & ~at.sure & ~named
    if shapes.certain_nics(at.shape, free, ask, unknown, linked) == CERTAIN:
        return 0
    if shapes.certain_nics(at.shape, at.healthy, ask, hidden, linked) != CERTAIN:
        return codes.never
    return codes.pending if at.pending > 0 or at.tentative[ask.resource] > 0 else codes.held


def link_table(shapes: LinkShapes, shape: int, gpus: int, wanted: int, containers: int, planned: bool = False) -> bytes:
    if not 0 <= gpus <= 16:
        raise ValueError("a node has at most 16 GPUs")

    def sure(free: int) -> bool:
        if free.bit_count() < wanted:
            return False
        if containers == 0:
            return uniform(shapes, shape, free, wanted)
        return wanted < 2 or shapes.certain(shape, free, wanted, 0, containers, planned) == CERTAIN

    return bytes(sure(free) for free in range(1 << gpus))


def monotone(table: bytes) -> bool:
    if len(table).bit_count() != 1:
        raise ValueError("a table has one mark for each set of GPUs")
    sets = range(len(table))
    return not any(table[one] and not table[more] for one in sets for more in sets if one & more == one)


def uniform(shapes: LinkShapes, shape: int, healthy: int, wanted: int) -> bool:
    if wanted < 2:
        return True
    ids = [gpu for gpu in range(healthy.bit_length()) if healthy >> gpu & 1]
    sets = [sum(1 << gpu for gpu in chosen) for chosen in combinations(ids, wanted)]
    return bool(sets) and all(shapes.linked(shape, chosen) for chosen in sets)


def withhold(rows: list[int], out: list[int], code: int, but: int = -1) -> int:
    if len(rows) != len(out):
        raise ValueError("rows and codes differ in length")
    found = [i for i, row in enumerate(rows) if out[i] == 0 and row != but]
    for i in found:
        out[i] = code
    return len(found)


def passed(rows: list[int], codes: list[int]) -> list[int]:
    if len(rows) != len(codes):
        raise ValueError("rows and codes differ in length")
    return [row for row, code in zip(rows, codes, strict=True) if code == 0]


def rejected(rows: list[int], codes: list[int], chosen: list[int]) -> tuple[list[int], list[int]]:
    if len(rows) != len(codes) or len(chosen) != 256:
        raise ValueError("rows and codes differ in length, or chosen has not 256 marks")
    found = [(row, code) for row, code in zip(rows, codes, strict=True) if code != 0 and chosen[code]]
    return [row for row, _ in found], [code for _, code in found]


def counts(codes: list[int]) -> dict[int, int]:
    return {code: codes.count(code) for code in sorted(set(codes)) if code}
