"""How many GPUs there are, how many each queue holds, and how many its gangs wait for: by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.cluster.slices import Sliced, pauses
from extender.objects.queueing import queue_of
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import NodeTerm, Toleration
from extender.queue.gang import WaitingGang
from extender.queue.quota import Amounts, QueueRules
from extender.settings import Settings

LEAST_GPUS: Final = 1e-6
"""Less use than this is forgotten."""
MOST_QUEUES: Final = 1000
"""That hold no GPUs now, and whose use is kept: any user that may create pods chooses names of queues."""
NO_MODEL: Final = ""
"""The model of a node that does not exist."""
NOTHING: Final[Mapping[str, str]] = {}
NO_PODS: Final[Mapping[str, PodRecord]] = {}


def rules_of(settings: Settings) -> dict[str, QueueRules]:
    """The rules of the queues that the settings name."""
    return {
        name: QueueRules(rule.weight, rule.guaranteed_gpus, rule.limit_gpus, rule.borrow)
        for name, rule in settings.queue.queues.items()
    }


class Rules:
    """The rules of the queues, by the settings that count now."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster, self._settings = cluster, cluster.settings
        self._rules = rules_of(cluster.settings)

    def now(self) -> Mapping[str, QueueRules]:
        """By the names of the queues that the settings name; of one object until other settings are loaded."""
        if self._settings is not self._cluster.settings:
            self._settings = self._cluster.settings
            self._rules = rules_of(self._settings)
        return self._rules


def model_of(node: NodeRecord, labels: Sequence[str]) -> str:
    """The GPU model of a node: the value of the first of the `labels` that it has, else its first GPU resource."""
    for key in labels:  # a generator would cost twice as much, and all nodes are asked about
        if model := node.labels.get(key):
            return model
    return min(node.gpus, default=NO_MODEL)


def named_models(gang: WaitingGang, labels: Sequence[str]) -> set[str]:
    """The GPU models that the node selectors of its pods name; none where the gang may get any. `labels`: as above."""
    return {text for pod in gang.pods for key, text in pod.node_selector if key in labels}


Asked = tuple[tuple[tuple[str, str], ...], tuple[NodeTerm, ...] | None, tuple[Toleration, ...]]
"""What a pod states of its nodes: node selector, required node affinity, tolerations."""


class DecayedUse:
    """How many GPUs each queue has held on average, by model; earlier use counts less. It begins with what is held when
    it is first asked: another holder of the Lease does not know the past."""

    def __init__(self) -> None:
        self._mean: Mapping[str, Mapping[str, float]] = {}
        self._held: Amounts = {}  # since `_at`
        self._at = -inf
        self._paused = False

    def pause(self) -> None:
        """What was held since it was last asked is not known, and does not count."""
        self._paused = True

    def of(self, held: Amounts, now: float, half_life: float) -> Mapping[str, Mapping[str, float]]:
        """By queue and model. `held`: now; `now`: seconds; `half_life`: seconds after which use counts half, 0: what is
        held now."""
        if not half_life:
            self._mean, self._held, self._at = {}, {}, -inf
            return held
        passed = 0.0 if self._paused else max(0.0, now - self._at)
        weight_before = 0.5 ** (passed / half_life)
        parts = ((1.0, held),) if self._at == -inf else ((weight_before, self._mean), (1.0 - weight_before, self._held))
        means: dict[str, dict[str, float]] = {}
        for weight, part in parts:
            for queue, counts in part.items():
                for model, count in counts.items():
                    if (more := weight * count) >= LEAST_GPUS:
                        of_queue = means.setdefault(queue, {})
                        of_queue[model] = of_queue.get(model, 0.0) + more
        idle = [queue for queue in means if queue not in held]
        for queue in sorted(idle, key=lambda name: sum(means[name].values()))[: max(0, len(idle) - MOST_QUEUES)]:
            del means[queue]
        self._mean, self._at, self._paused = means, now, False
        self._held = {queue: dict(counts) for queue, counts in held.items()}  # the planner adds to it
        return means


class Models:
    """The GPU model of each node that offers GPUs, and what there is of each, for one plan."""

    def __init__(self, cluster: ClusterView) -> None:
        """Of no node yet: `read` adds them."""
        self._cluster = cluster
        self._records: dict[str, NodeRecord] = {}  # of which they are
        self.by_node: dict[str, str] = {}
        self.capacity: dict[str, int] = {}
        self._rows_of: dict[str, int] = {}
        self._admitted: dict[Asked, frozenset[str]] = {}

    @classmethod
    def read(cls, cluster: ClusterView, before: Models | None = None) -> Sliced[Models]:
        """Of all nodes that offer GPUs, in slices. `before`: what was read earlier, of nodes that are the same."""
        models_now, labels = cls(cluster), cluster.settings.mix.model_labels
        known, models = ({}, {}) if before is None else (before._records, before.by_node)
        for name, pause in pauses(list(cluster.gpus.topologies)):
            if pause:
                yield
            if (node := cluster.nodes.get(name)) is not None:
                models_now._records[name] = node
                model = models[name] if known.get(name) is node else model_of(node, labels)
                models_now.by_node[name] = model
                models_now.capacity[model] = models_now.capacity.get(model, 0) + sum(node.gpus.values())
        return models_now

    def held(
        self, seats: Mapping[str, str] = NOTHING, late: Mapping[str, PodRecord] = NO_PODS
    ) -> Sliced[dict[str, dict[str, int]]]:
        """GPUs by queue and model that its bound pods hold, and that its released pods are nominated for or have seats
        for, in slices. `seats`: uid of an unbound pod -> node; `late`: by uid, those of these pods that do not exist
        yet. Pods on unknown nodes hold nothing."""
        cluster, by_node = self._cluster, self.by_node
        nominated, queued = cluster.placements.nominated, cluster.placements.queued
        released: dict[str, list[str]] = {}
        for uid, node in ({uid: node for uid, node in nominated.items() if uid not in queued} | dict(seats)).items():
            released.setdefault(node, []).append(uid)
        by_queue: dict[str, dict[str, int]] = {}
        for (node, model), pause in pauses(by_node.items()):
            if pause:
                yield
            uids: Iterable[str] = cluster.placements.bound.get(node, ())
            if node in released:
                uids = {*uids, *released[node]}
            for uid in uids:
                pod = cluster.pods.get(uid) or late.get(uid)
                if pod is not None and pod.gpus and pod.node in ("", node):
                    counts = by_queue.setdefault(queue_of(pod), {})
                    for _, count in pod.gpus:
                        counts[model] = counts.get(model, 0) + count
        return by_queue

    def wanted(self, gangs: Iterable[WaitingGang]) -> Sliced[dict[str, dict[str, int]]]:
        """GPUs by queue and model that complete gangs wait for, in slices; of each model where a gang may get
        several."""
        by_queue: dict[str, dict[str, int]] = {}
        for gang, pause in pauses(gangs):
            if pause:
                yield
            if gang.complete:
                counts = by_queue.setdefault(gang.queue, {})
                for model in self.allowed(gang):
                    counts[model] = counts.get(model, 0) + gang.gpus
        return by_queue

    def allowed(self, gang: WaitingGang) -> list[str]:
        """The models of the nodes that the node selectors, node affinity and tolerations of its pods with GPUs leave,
        each model that any of them may get; cordons are not looked at."""
        asked = {(pod.node_selector, pod.node_terms, pod.tolerations) for pod in gang.pods if pod.gpus}
        return sorted(frozenset[str]().union(*map(self._admitting, asked)))

    def _admitting(self, asked: Asked) -> frozenset[str]:
        """The models of the nodes that such pods may run on; of all nodes where that takes too long."""
        known = self._admitted.get(asked)
        if known is None:
            eligibility = self._cluster.eligibility
            try:
                rows = int.from_bytes(eligibility.rows(eligibility.program(*asked, MOST_PARTS)).tobytes(), "little")
            except TooLong:
                rows = -1
            known = self._admitted[asked] = frozenset(model for model, of in self._rows().items() if rows & of)
        return known

    def _rows(self) -> Mapping[str, int]:
        """By model the rows of its nodes, one bit each."""
        if not self._rows_of:
            for name, model in self.by_node.items():
                if (row := self._cluster.row(name)) >= 0:
                    self._rows_of[model] = self._rows_of.get(model, 0) | 1 << row
        return self._rows_of

    def of(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """GPUs by model, of GPUs by node: what a placed gang asks its quota for."""
        by_model: dict[str, int] = {}
        for node, count in gpus.items():
            model = self.by_node.get(node, NO_MODEL)
            by_model[model] = by_model.get(model, 0) + count
        return by_model
