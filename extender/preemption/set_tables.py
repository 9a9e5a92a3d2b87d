"""Which sets of free GPUs suffice on a candidate, and what each leaves broken up, as tables over masks of GPUs.

Where links are required a table states of each set of free GPUs whether our filter would pass it. It needs to know
every position; a node where some are unknown, or only deduced, is searched in three cases.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ext_core import fit, gather
from ext_core.links import LinkShapes
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import Holding
from extender.policy.contracts import PodRequest
from extender.policy.costs import LeftoverFragmentation
from extender.policy.policy import Policy

CERTAIN = 2  # of LinkShapes.certain
PRICED_GPUS = 8  # larger machines that are not uniform have too many sets to price
COUNT, HOPELESS = -1, -2  # instead of a table: counting is enough; no eviction helps


def set_tables(
    cluster: ClusterView,
    policy: Policy,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    *,
    required: bool,
) -> tuple[list[array[int]], set[int]]:
    """(by table: what each mask of free GPUs leaves broken up, by LeftoverFragmentation; candidates where no eviction
    helps). Fills `gathered.table`, by candidate, COUNT where counting is enough, and `gathered.ok`: by table, one byte
    for each mask, 1 where it suffices. `required`: the links are looked at."""
    priced = any(isinstance(cost, LeftoverFragmentation) for cost in policy.costs)
    if not required and not priced:
        return [], set()
    graph_kinds = _Kinds(cluster.tables.shapes, policy, request, required=required, priced=priced)
    kind_of, kinds = gather.graphs(cluster.tables.nodes, rows)
    table_of = [graph_kinds.table(*kind) for kind in kinds]
    gathered.ok.extend(graph_kinds.ok)
    impossible: set[int] = set()
    if required:
        for i, kind in enumerate(kind_of):
            gathered.table[i] = max(table_of[kind], COUNT)
        if HOPELESS in table_of:
            impossible.update(i for i, kind in enumerate(kind_of) if table_of[kind] == HOPELESS)
    elif graph_kinds.ok:
        # Where positions are unknown, what an eviction leaves free cannot be priced.
        for i, (kind, unknown) in enumerate(zip(kind_of, gathered.unknown, strict=True)):
            gathered.table[i] = COUNT if unknown else table_of[kind]
    return graph_kinds.prices, impossible


class _Kinds:
    """Makes the tables, one for each kind of machine."""

    def __init__(
        self, shapes: LinkShapes, policy: Policy, request: PodRequest, *, required: bool, priced: bool
    ) -> None:
        self._shapes, self._policy, self._request = shapes, policy, request
        self._required, self._priced = required, priced
        self._several = required and request.containers > 1  # then every set of that size has to be linked
        self._known: dict[tuple[int, int], int] = {}
        self.ok: list[bytes] = []
        self.prices: list[array[int]] = []

    def table(self, shape: int, healthy: int, gpu: int) -> int:
        """The table of a kind (a link shape, its healthy GPUs, their resource); COUNT or HOPELESS instead."""
        request, shapes, bits = self._request, self._shapes, healthy.bit_length()
        if not shape or gpu != request.resource:
            return HOPELESS if self._required else COUNT
        several = 0, request.containers, request.planned
        if self._several and shapes.certain(shape, healthy, request.wanted, *several) != CERTAIN:
            return HOPELESS  # so the filter says too: any pod that ends meanwhile would spoil the set
        if not self._required and bits > PRICED_GPUS:
            return COUNT
        if fit.uniform(shapes, shape, healthy, request.wanted) and not self._may_crash(shape, bits):
            return COUNT
        if (shape, bits) not in self._known:
            self._known[shape, bits] = len(self.ok)
            self.ok.append(self._sufficient(shape, bits))
            self.prices.append(self._prices(shape, bits))
        return self._known[shape, bits]

    def _may_crash(self, shape: int, bits: int) -> bool:
        """A plugin that may crash over some free sets hands out nothing there, linked or not: the filter rejects it."""
        if not self._required or self._several or bits > PRICED_GPUS:
            return False
        return any(self._shapes.crash(shape, mask, self._request.wanted) for mask in range(1 << bits))

    def _sufficient(self, shape: int, bits: int) -> bytes:
        if not self._required:
            return bytes([1]) * (1 << bits)
        request = self._request
        return fit.link_table(self._shapes, shape, bits, request.wanted, request.containers, request.planned)

    def _prices(self, shape: int, bits: int) -> array[int]:
        if self._priced and bits <= PRICED_GPUS:
            return self._policy.leftover(self._shapes, shape, bits, self._request.wanted)
        return array("q", bytes(8 << bits))


def deduced(cluster: ClusterView, name: str) -> Iterator[Holding]:
    """Holdings that are sure only because no other set is left."""
    return (
        holding
        for holding in cluster.gpus.ledgers[name].holdings
        if holding.mask and holding.how in ("planned", "predicted")
    )


def without_deduction(
    cluster: ClusterView,
    request: PodRequest,
    rows: array[int],
    gathered: gather.Gathered,
    nodes: int,
    prices: list[array[int]],
) -> None:
    """Makes three cases of each node that is in `rows` thrice (once below `nodes`, then twice in a row).

    Which pod holds the last set that is left is deduced, and no longer is once a pod with GPUs is gone: our filter will
    not know which of the GPUs are whose. So either only pods without GPUs are evicted; or all whose positions are not
    stated; or, where some of them stay, any set of the GPUs that may be free has to be linked."""
    kind_of, kinds = gather.graphs(cluster.tables.nodes, rows)
    known: dict[tuple[int, int], int] = {}
    for i in range(nodes, len(rows)):
        only_deduced = {holding.uid: holding for holding in deduced(cluster, cluster.names[rows[i]])}
        for holding in only_deduced.values():
            gathered.free[i] |= holding.mask
            gathered.unknown[i] += holding.count
        for k in range(gathered.start[i], gathered.start[i + 1]):
            if held := only_deduced.get(cluster.pod_rows.uids[gathered.pods[k]]):
                gathered.masks[k], gathered.unsure[k] = 0, held.count
        if (i - nodes) % 2:
            shape, healthy, _ = kinds[kind_of[i]]
            bits = healthy.bit_length()
            if (shape, bits) not in known:
                known[shape, bits] = len(gathered.ok)
                gathered.ok.append(fit.link_table(cluster.tables.shapes, shape, bits, request.wanted, 0))
                prices.append(array("q", bytes(8 << bits)))  # what stays free is not known
            gathered.table[i] = known[shape, bits]
            gathered.unknown[i] = 0
        elif only_deduced:
            first = rows.index(rows[i])
            for k in range(gathered.start[first], gathered.start[first + 1]):
                if gathered.gpus[k]:
                    gathered.masks[k] = 0
                    for r in range(len(cluster.resources)):
                        gathered.amounts[r, k] = 0
