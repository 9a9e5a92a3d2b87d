"""All nodes as filter judges them for one pod: why each is rejected, and how many each stage leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from extender.ask.judge import Judge
from extender.ask.node_reasons import REPELLED, TOO_LITTLE, UNREADABLE
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.node_gpus import GpuAsk
from extender.objects.nodes import PASSING
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import Taint, untolerated
from extender.policy import reasons, roles
from extender.policy.contracts import Class
from extender.policy.reasons import REASONS
from extender.policy.rules import Count, Failing, Hazard, Links, Nics, ResourceOffered
from extender.preemption.search import Preemptor

MOST_NAMED: Final = 24
"""Nodes that are named for each reason, the first by name."""
UNUSABLE: Final = frozenset(reason.code for rule in (ResourceOffered, Failing) for reason in rule.reasons)
TOO_FEW: Final = frozenset(reason.code for reason in Count.reasons)
_UNLINKED: Final = frozenset(reason.code for rule in (Links, Nics, Hazard) for reason in rule.reasons)
PASSING_REASONS: Final = tuple(
    reason.key for reason in REASONS.values() if reason.cls is Class.TRANSIENT and not reason.lasting
)
"""Reasons that pass by themselves."""
NOT_LINKED: Final = (reasons.LINKS_BUSY.key, reasons.LINKS_HELD.key)
RESERVED: Final = (reasons.GPUS_RESERVED.key, reasons.HANDOVER.key)
_NEAREST: Final = (
    frozenset(PASSING_REASONS),
    frozenset({*TOO_LITTLE, REPELLED}),
    frozenset({reasons.LINKS_BUSY.key}),
    frozenset({reasons.LINKS_HELD.key}),
    frozenset({reasons.NICS_HELD.key}),
    frozenset(reason.key for reason in Hazard.reasons),
    frozenset(RESERVED),
    frozenset({reasons.GPUS_BUSY.key, reasons.GPUS_RELEASING.key}),
    frozenset({reasons.GPUS_HELD.key}),
)
"""Reasons by how little such a node lacks, the least first; all others are of machines that cannot take the pod."""
_ORDER: Final = {
    key: at for at, key in enumerate((*TOO_LITTLE, REPELLED, *(reason.key for reason in REASONS.values())))
}


class Stage(NamedTuple):
    """How many nodes a stage of the filter leaves."""

    stage: str
    nodes: int


@dataclass(frozen=True, slots=True)
class JudgedNodes:
    """The nodes as filter judges a pod."""

    funnel: tuple[Stage, ...]
    """How many nodes each stage leaves, in order."""
    reasons: Counter[str]
    """How many nodes are rejected, by reason."""
    named: Mapping[str, Sequence[str]]
    """The first MOST_NAMED of them by name, by reason."""
    codes: dict[str, int]
    """Of the nodes that admit it, by name: our own reason or 0."""
    bare: dict[str, int]
    """The same without the claims of other pods."""
    short: dict[str, tuple[int, ...]]
    """Of the nodes with code 0, by name: the resources of which too little is free, by index."""
    repelled: frozenset[str]
    """The nodes where a running pod repels it, or it such a pod."""
    cordoned: list[str]
    """The nodes that only a cordon keeps it off."""

    @property
    def open(self) -> list[str]:
        """The nodes that admit it and where no running pod repels it, by name."""
        return [name for name in self.codes if name not in self.repelled] if self.repelled else list(self.codes)

    @property
    def fits(self) -> list[str]:
        """The nodes where it fits now, by name."""
        return [name for name, short in self.short.items() if not short and name not in self.repelled]


def read(judge: Judge, asked: Preemptor) -> JudgedNodes:
    """The nodes as they are."""
    cluster, pod = judge.cluster, asked.pod
    rejections = _Rejections()
    cordoned: list[str] = []
    names = sorted(cluster.nodes)
    names, others = ([], [(name, UNREADABLE) for name in names]) if pod.unread else admitting(pod, cluster, names)
    for name, why in others:
        rejections.add(why, name)
        if why == CORDONED and not kept_off(pod, uncordoned(cluster.nodes[name])):
            cordoned.append(name)
    seen = len(names) + len(others)
    rows = judge.rows(names)
    bare = dict(zip(names, judge.policy.judge(cluster.tables, asked.request, rows), strict=True))
    with judge.claims.of(asked.request, asked.now):
        row_codes = judge.codes(asked, rows)[0]
    codes = dict(zip(names, row_codes, strict=True))
    short = judge.roomy(asked, [name for name, code in codes.items() if not code])
    off = frozenset(cluster.names[row] for row in roles.repelled(cluster, pod) if row >= 0)
    repelled = off.intersection(codes)
    cordoned = sorted(set(cordoned) - off)
    keys = {code: REASONS[code].key for code in {*row_codes} if code}
    for name, code in codes.items():
        if code:
            rejections.add(keys[code], name)
        elif short.get(name):
            rejections.add(TOO_LITTLE[short[name][0]], name)
        elif name in repelled:
            rejections.add(REPELLED, name)
    remaining = sum(not lacking and name not in repelled for name, lacking in short.items())
    funnel = _funnel(seen, bare, codes, remaining)
    return JudgedNodes(funnel, rejections.counts, rejections.named, codes, bare, short, repelled, cordoned)


def deciding(counts: Mapping[str, int]) -> str:
    """Of the reasons of nodes, with how many nodes each has, the one that a pod waits for: that of the nodes which lack
    the least, there of most nodes, then the first in the order of the rules; "": none of them is of a rule."""
    known = [key for key in counts if key in _ORDER and counts[key]]
    return min(known, key=lambda key: (_nearness(key), -counts[key], _ORDER[key]), default="")


def _nearness(reason: str) -> int:
    return next((at for at, keys in enumerate(_NEAREST) if reason in keys), len(_NEAREST))


class _Rejections:
    """How many nodes are rejected for what, and the first of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.named: dict[str, list[str]] = {}

    def add(self, reason: str, name: str) -> None:
        """One more node; names come in order."""
        count = self.counts.get(reason, 0)
        self.counts[reason] = count + 1
        if count < MOST_NAMED:
            self.named.setdefault(reason, []).append(name)


def _funnel(seen: int, bare: Mapping[str, int], codes: Mapping[str, int], remaining: int) -> tuple[Stage, ...]:
    """How many nodes each stage leaves, each node left out by the reason that rejects it. Up to `enough-gpus` claims do
    not count: too few GPUs only with them are reserved. What is neither of the GPUs of the node nor of their links is
    of other pods and of time, as what is reserved."""
    counts = Counter(codes.values())
    reserved = sum(code in TOO_FEW and bare[name] not in TOO_FEW for name, code in codes.items())
    usable = len(codes) - sum(counts[code] for code in UNUSABLE)
    linked = counts[0]
    stages = {
        "seen": seen,
        "admitted": len(codes),
        "usable": usable,
        "enough-gpus": usable + reserved - sum(counts[code] for code in TOO_FEW),
        "unreserved": linked + sum(counts[code] for code in _UNLINKED),
        "linked": linked,
        "left": remaining,
    }
    return tuple(Stage(stage, count) for stage, count in stages.items())


# -- which nodes admit a pod, whatever runs there

CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
CORDONED: Final = "cordoned"


def kept_off(pod: PodRecord, node: NodeRecord) -> str:
    """Why kube-scheduler keeps the pod off the node whatever runs there; "" when it does not."""
    return _kept_off_by_spec(pod, node) or GpuAsk.of(pod).mismatch(node)


def _kept_off_by_spec(pod: PodRecord, node: NodeRecord) -> str:
    """As `kept_off`, but for how the node offers its GPUs."""
    if not (node.unschedulable or node.taints or is_choosy(pod)):
        return ""  # so are nearly all of thousands of nodes
    if node.unschedulable and untolerated((CORDON,), pod.tolerations) is not None:
        return CORDONED
    if any(node.labels.get(key) != wanted for key, wanted in pod.node_selector):
        return "node-selector"
    if not pod.accepts(node):
        return "node-affinity"
    taints = [taint for taint in node.taints if taint.key != CORDON.key or not node.unschedulable]
    return "taint" if untolerated(taints, pod.tolerations) is not None else ""


def admitting(pod: PodRecord, cluster: ClusterView, names: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(the names of the nodes that admit the pod; (name, why) of the others, as `kept_off` states), in their order.
    `names`: of nodes that exist."""
    nodes, restricted, choosy, asked = cluster.nodes, cluster.restricted, is_choosy(pod), GpuAsk.of(pod)
    fits = cluster.dra.fits
    claims = fits.of(pod)
    suspects = (
        names if claims is not None or tells_apart(pod, cluster) else [name for name in names if name in restricted]
    )
    others = []
    for name in suspects:
        node = nodes[name]
        why = _kept_off_by_spec(pod, node) if choosy or name in restricted else ""
        why = why or asked.mismatch(node)
        if claims is not None:
            why = why or fits.rejects(node, claims)
        if why:
            others.append((name, why))
    if not others:
        return names, others
    rejecting = {name for name, _ in others}
    return [name for name in names if name not in rejecting], others


def tells_apart(pod: PodRecord, cluster: ClusterView) -> bool:
    """Whether it may be kept off nodes that are neither cordoned nor tainted."""
    return is_choosy(pod) or bool(pod.claimed or pod.claim_node) or (bool(pod.gpus) and bool(cluster.dra.slices))


def is_choosy(pod: PodRecord) -> bool:
    """Whether it states anything about the labels or the name of its node."""
    return bool(pod.node_selector) or pod.node_terms is not None


def uncordoned(node: NodeRecord) -> NodeRecord:
    """The node as it is once it is uncordoned: the node controller takes its taint away too."""
    taints = tuple(taint for taint in node.taints if taint.key != CORDON.key)
    return msgspec.structs.replace(node, unschedulable=False, taints=taints)


def ready(node: NodeRecord) -> NodeRecord:
    """The node without what passes: a cordon, and the taints that Kubernetes sets for conditions of nodes."""
    if not (node.unschedulable or node.taints):
        return node
    taints = tuple(taint for taint in node.taints if not taint.key.startswith(PASSING))
    return msgspec.structs.replace(node, unschedulable=False, taints=taints)
