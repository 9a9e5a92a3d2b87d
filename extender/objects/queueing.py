"""What a pod states for the queue: its gate, its queue, its domain, its duration, and its rank among the gang's pods.

Invalid values are ignored, as those of every annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from extender.objects.progress import duration
from extender.objects.records import PodRecord

GATE: Final = "gpu-extender.io/queue"
"""The scheduling gate of pods that wait in a queue of ours."""
QUEUEING: Final = "gpu-extender.io/queueing"
"""The label of a namespace whose pods get the gate when they are created, where it is `enabled`."""
QUEUE: Final = "gpu-extender.io/queue"
"""The label that names the queue."""
GANG: Final = "gpu-extender.io/gang"
"""The label or annotation that names the gang."""
DOMAIN: Final = "gpu-extender.io/domain"
DURATION: Final = "gpu-extender.io/duration"
WANTS_NODES: Final = "gpu-extender.io/wants-nodes"
"""The annotation of a pod that waits in a queue of ours without our gate, so that an autoscaler sees it: since when."""
PINNED: Final = "gpu-extender.io/pinned"
"""The annotation of a released pod that may run on one node alone: its name."""

KUEUE_REQUIRED: Final = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED: Final = "kueue.x-k8s.io/podset-preferred-topology"
KUEUE_SLICES: Final = "kueue.x-k8s.io/podset-slice-required-topology"
JOBSET_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
VOLCANO_MODE: Final = "volcano.sh/network-topology-mode"
VOLCANO_TIER: Final = "volcano.sh/network-topology-highest-tier"
VOLCANO_TIERS: Final = {"1": "rack", "2": "block", "3": "zone"}
"""The levels of its tiers: those of leaf, spine and core switches. Its own HyperNodes are not read."""
_REQUIRED: Final = (KUEUE_REQUIRED, JOBSET_EXCLUSIVE, LWS_EXCLUSIVE)

COMPLETION: Final = "batch.kubernetes.io/job-completion-index"
ROLES: Final = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/job-role",  # MPIJob
    "volcano.sh/task-spec",
    "grove.io/podclique",
)
JOBSET_JOB: Final = "jobset.sigs.k8s.io/job-key"
"""The label that is the same for the pods of one Job of a JobSet, and of no other."""
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
RAY_NODE: Final = "ray.io/node-type"
RAY_GROUP: Final = "ray.io/group"
RAY_REPLICA: Final = "ray.io/worker-group-replica-index"
RAY_HOST: Final = "ray.io/replica-host-index"
INDICES: Final = (
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "kueue.x-k8s.io/pod-group-pod-index",
    COMPLETION,
    "apps.kubernetes.io/pod-index",  # StatefulSet
    "volcano.sh/task-index",
    "grove.io/podclique-pod-index",
)
"""Labels that count a pod among those of its role."""
INNER: Final = 1_000_000
"""Pods of one Job of a JobSet, or hosts of one replica of a RayCluster: more are not told apart by their index."""


class Domain(NamedTuple):
    """Where the pods of a gang shall be together."""

    level: str  # the key of a node label, or a short name of one ("rack")
    required: bool  # elsewhere the gang does not start


def is_queued(pod: PodRecord) -> bool:
    """Whether the pod waits in a queue of ours: behind our gate, or shown to the autoscaler."""
    return GATE in pod.gates or WANTS_NODES in pod.annotations


def domain_of(pod: PodRecord) -> Domain | None:
    """The domain that the pod states: our annotation, `required:LEVEL` or `preferred:LEVEL`, else those of Kueue,
    JobSet, LeaderWorkerSet and Volcano. JobSet's concerns each of its Jobs alone. None without a valid one."""
    notes = pod.annotations
    if not notes:
        return None
    ours = stated_domain(notes.get(DOMAIN, ""))
    if ours is not None:
        return ours
    for key in _REQUIRED:
        if notes.get(key):
            return Domain(notes[key], True)
    if notes.get(KUEUE_PREFERRED):
        return Domain(notes[KUEUE_PREFERRED], False)
    return _volcano(notes)


def _volcano(notes: Mapping[str, str]) -> Domain | None:
    """The domain of Volcano's annotations."""
    return tier_domain(notes.get(VOLCANO_MODE, ""), notes.get(VOLCANO_TIER, "1"))


def tier_domain(mode: str, tier: str) -> Domain | None:
    """The domain of Volcano's network topology. `hard`: with the highest tier that is allowed; `soft`: as close as
    possible."""
    if mode == "soft":
        return Domain(VOLCANO_TIERS["1"], False)
    level = VOLCANO_TIERS.get(tier) if mode == "hard" else None
    return Domain(level, True) if level else None


def stated_domain(text: str) -> Domain | None:
    """The value of our annotation `domain`; None for anything else than `required:LEVEL` and `preferred:LEVEL`."""
    way, _, level = (part.strip() for part in text.partition(":"))
    return Domain(level, way == "required") if way in ("required", "preferred") and level else None


def duration_of(pod: PodRecord) -> float | None:
    """How long the pod runs at most, seconds: the annotation `duration` or its deadline, the shorter one. None: neither
    states it."""
    text, deadline = pod.annotations.get(DURATION), pod.deadline_seconds
    stated = (duration(text) if text else None) or deadline
    return None if stated is None else float(stated if deadline is None else min(stated, deadline))


def gated(pod: PodRecord) -> PodRecord:
    """The pod as the policy of the queue (manifests/queue) makes it in a labelled namespace, whatever its scheduler."""
    joins = pod.gpus or QUEUE in pod.labels or GANG in pod.labels or GANG in pod.annotations
    if pod.node or pod.daemon or GATE in pod.gates or not joins:
        return pod
    return msgspec.structs.replace(pod, gates=(*pod.gates, GATE))


def opened(pod: PodRecord) -> PodRecord:
    """The pod as it is once the queue has released it."""
    if GATE not in pod.gates and WANTS_NODES not in pod.annotations:
        return pod
    notes = {key: text for key, text in pod.annotations.items() if key != WANTS_NODES}
    return msgspec.structs.replace(pod, gates=tuple(gate for gate in pod.gates if gate != GATE), annotations=notes)


def queue_of(pod: PodRecord) -> str:
    """The queue that the pod waits in: its label, else its namespace."""
    return pod.labels.get(QUEUE) or pod.namespace


def rank_of(pod: PodRecord) -> tuple[str, int]:
    """(role, index) of the pod in its gang: "" where its owner has no roles, -1 where it has no index. Pods in this
    order are neighbours in the gang; with the Jobs of a JobSet and the replicas of a RayCluster, which count their own
    pods, the indices leave gaps."""
    labels, role = pod.labels, role_of(pod)
    if labels.get(RAY_NODE):
        return role, _nested(labels, RAY_REPLICA, RAY_HOST)
    if JOB_INDEX in labels:
        return role, _nested(labels, JOB_INDEX, COMPLETION)
    return role, next((index for key in INDICES if (index := _index(labels, key)) >= 0), -1)


_NAMES_ROLE: Final = frozenset((RAY_NODE, *ROLES))


def role_of(pod: PodRecord) -> str:
    """The role of the pod in its gang, "" where its owner has no roles."""
    labels = pod.labels
    if _NAMES_ROLE.isdisjoint(labels):  # nearly all pods; each event of a pod of a gang looks
        return ""
    node = labels.get(RAY_NODE)
    if node:
        return f"{node}/{labels.get(RAY_GROUP, '')}"
    return next((labels[key] for key in ROLES if labels.get(key)), "")


def _index(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _nested(labels: Mapping[str, str], outer: str, inner: str) -> int:
    """The index of a pod in a group that is counted itself; without one of its own it is the only pod of the group."""
    index = _index(labels, outer)
    return -1 if index < 0 else index * INNER + min(max(_index(labels, inner), 0), INNER - 1)
