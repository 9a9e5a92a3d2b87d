"""The fleet at a glance: what is left of each GPU model, and why pods wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from ext_core import fit, survey
from ext_core.link_sets import LinkSets
from extender.ask.judge import Judge, blocks
from extender.ask.nodes import SHORT
from extender.cluster.cluster import ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import PodRecord
from extender.policy.pod_request import wants_of
from extender.policy.roles import Unplaceable, admitted
from extender.policy.rules import REASONS
from extender.policy.rules.count import FEW, NONE
from extender.preemption.candidates import Preemptor
from extender.queue import report
from extender.queue.report import QueueReport, Why
from extender.queue.usage import model_of

SIZES: Final = (2, 4, 8, 16)
"""Sizes of linked sets."""
POD_SIZES: Final = ((1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (inf, "17+"))
"""Most GPUs of a pod, and what such pods are called."""
LOOKED_AT: Final = 1024
"""Nodes that are counted together."""
MOST_PASSED: Final = 512
"""Nodes with free GPUs whose CPU, memory and pod slots are looked at."""
UNFIT: Final = (FEW.code, NONE.code)
"""Machines that are too small, or of another kind: they are the reason only where there are no others."""
FITS, NOT_ADMITTED, GATED, UNREADABLE = "fits", "not-admitted", "gated", "not-judged"
MEANINGS: Final[Mapping[str, str]] = {
    FITS: "a node has room now",
    NOT_ADMITTED: "no node admits it (cordon, taints, selectors, affinity)",
    GATED: "a scheduling gate holds it back",
    UNREADABLE: "its requirements cannot be read",
    SHORT[0]: "the nodes with free GPUs lack CPU",
    SHORT[1]: "the nodes with free GPUs lack memory",
    SHORT[2]: "the nodes with free GPUs lack pod slots",
    **{reason.key: reason.text.removeprefix("gpu-extender: ") for reason in REASONS.values()},
    **{f"queue: {code}": text for code, text in report.MEANINGS.items()},
}
"""What each reason means of any pod."""


class Model:
    """What there is, and what is left, of one GPU model."""

    def __init__(self, name: str) -> None:
        self.name, self.nodes, self.gpus, self.free, self.whole = name, 0, 0, 0, 0
        self.closed: dict[str, Counter[str]] = {}
        """What the nodes that take no pods have, by why they do not."""
        self.sets: Counter[int] = Counter()
        self.graphs: Counter[tuple[int, int]] = Counter()
        """How many nodes have this shape and this mask of free GPUs."""

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        sets = [{"gpus": size, "sets": self.sets[size]} for size in SIZES if self.sets[size]]
        return {
            "model": self.name,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "free_gpus": self.free,
            "whole_nodes": self.whole,
            "linked_sets": sets,
            "closed": [{"reason": why, **self.closed[why]} for why in sorted(self.closed)],
        }


def models(cluster: ClusterView) -> list[dict[str, Any]]:
    """Of each model, over the nodes that take pods: whole nodes (no pod holds a GPU there), and how many disjoint
    linked sets of each size are free. A node counts no sets where its links, or the positions of held GPUs, are not
    known. The nodes that take no pods (`NodeRecord.closed`) are counted apart."""
    labels, by_name = cluster.settings.mix.model_labels, dict[str, Model]()
    for block in blocks(sorted(cluster.gpus.topologies), LOOKED_AT):
        rows = cluster.rows.index.rows(block)
        node_records = map(cluster.nodes.get, [cluster.names[row] for row in rows])
        texts = [None if node is None else (model_of(node, labels), node.closed) for node in node_records]
        alike = Counter(zip(texts, *survey.stock(cluster.tables.nodes, rows), strict=True))
        for (stated, gpus, free, shape, mask), nodes in alike.items():
            if stated is None:
                continue
            text, closed = stated
            if (model := by_name.get(text)) is None:
                model = by_name[text] = Model(text)
            if closed:
                apart = model.closed.setdefault(closed, Counter(nodes=0, gpus=0, free_gpus=0))
                apart.update(nodes=nodes, gpus=nodes * gpus, free_gpus=nodes * free)
                continue
            model.nodes += nodes
            model.gpus += nodes * gpus
            model.free += nodes * free
            model.whole += nodes * (free == gpus > 0)
            if shape:
                model.graphs[shape, mask] += nodes
    _count_sets(by_name.values(), cluster)
    return [by_name[name].as_json() for name in sorted(by_name)]


def free_gpus(cluster: ClusterView, row: int) -> int:
    """The GPUs (units of them) of a node that no pod holds, of all resources together."""
    free = cluster.tables.nodes.free_of(row)[FIRST_GPU:]
    return sum(free) if min(free) >= 0 else sum([gpus for gpus in free if gpus > 0])


def _count_sets(fleet_models: Iterable[Model], cluster: ClusterView) -> None:
    """Each graph once: nodes of one kind that hold as many pods have few different ones."""
    sets = LinkSets(cluster.tables.shapes)
    known: dict[tuple[int, int], list[int]] = {}
    for model in fleet_models:
        for graph, nodes in model.graphs.items():
            if graph not in known:
                known[graph] = [sets.most(*graph, size) for size in SIZES]
            for size, number in zip(SIZES, known[graph], strict=True):
                model.sets[size] += nodes * number


def by_reason(waiting: Sequence[tuple[PodRecord, Why]]) -> list[dict[str, Any]]:
    """How many pods wait, with how many GPUs. `waiting`: as `reasons` gives them."""
    pods: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for pod, why in waiting:
        pods[why.reason] += 1
        gpus[why.reason] += sum(count for _, count in pod.gpus)
    return [
        {"reason": reason, "text": MEANINGS[reason], "pods": pods[reason], "gpus": gpus[reason]}
        for reason in sorted(pods)
    ]


def by_size(waiting: Sequence[tuple[PodRecord, Why]]) -> Mapping[tuple[str, str], int]:
    """How many pods wait, by reason and by the GPUs that a pod asks for (POD_SIZES). `waiting`: as `reasons` gives
    them."""
    pods: Counter[tuple[str, str]] = Counter()
    for pod, why in waiting:
        gpus = sum(count for _, count in pod.gpus)
        pods[why.reason, next(text for most, text in POD_SIZES if gpus <= most)] += 1
    return pods


def reasons(
    judge: Judge, question: Callable[[PodRecord], Preemptor], report: QueueReport | None
) -> list[tuple[PodRecord, Why]]:
    """Each pod that waits, and why: of the queue as its gang. `question`: of a pod, at this moment. Pods that ask for
    the same are judged once."""
    queued = _queued(report)
    waiting: list[tuple[PodRecord, Why]] = []
    known: dict[Hashable, Why] = {}
    for uid in [*judge.cluster.placements.queued, *judge.cluster.placements.waiting]:
        pod = judge.cluster.pods.get(uid)
        if pod is None or pod.node or not pod.gpus:
            continue
        if pod.gated:
            why = queued.get(uid) or meaning(GATED)
        else:
            key = alike(pod)
            if key not in known:
                known[key] = of_nodes(judge, question(pod))
            why = known[key]
        waiting.append((pod, why))
    return waiting


def alike(pod: PodRecord) -> Hashable:
    """What the verdict on a pod outside the queue depends on, as far as the pod itself states it."""
    return (
        pod.namespace, wants_of(pod), pod.priority, pod.never,
        pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms, pod.nominated_node,
        tuple(pod.annotations.items()), tuple(pod.labels.items()),
    )  # fmt: skip


def _queued(report: QueueReport | None) -> Mapping[str, Why]:
    """Why each gang waits, by the uids of its pods."""
    gangs = () if report is None else report.waiting
    return {pod.uid: waiting.why for waiting in gangs for pod in waiting.gang.pods}


def meaning(reason: str) -> Why:
    """The reason with what it means of any pod."""
    return Why(reason, MEANINGS[reason])


def of_nodes(judge: Judge, asked: Preemptor) -> Why:
    """Why a pod outside the queue waits: the reason of most nodes that admit it and are large enough; `fits` where a
    node has room now."""
    return meaning(_reason(judge, asked))


def _reason(judge: Judge, asked: Preemptor) -> str:
    cluster = judge.cluster
    try:
        rows = admitted(cluster, asked.pod, cluster.rows.all())
    except Unplaceable:
        return UNREADABLE
    with judge.claims.of(asked.request, asked.now):
        codes, _ = judge.codes(asked, rows)
        passed = fit.passed(rows, codes)[:MOST_PASSED]
        short = [judge.short(asked, row) for row in passed]
    if not all(short):
        return FITS
    if short:
        return SHORT[short[0][0]]
    counts = fit.counts(codes)
    likely = {code: number for code, number in counts.items() if code not in UNFIT} or counts
    return REASONS[max(sorted(likely), key=likely.__getitem__)].key if likely else NOT_ADMITTED
