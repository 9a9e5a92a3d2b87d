"""The whole answer: the nodes are changed, then pods and gangs are placed one after the other, each on what those
before it leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from ext_core import columns, fit
from extender.ask import place, warn
from extender.ask.place import QueueLook, by_itself
from extender.ask.suppose import SupposedCluster
from extender.ask.text import gpu_part
from extender.ask.warn import warning
from extender.ask.whatif import group, single
from extender.ask.whatif.admission import (
    Owners,
    QuotaAdmission,
    admit,
    known,
    node_of,
    quota_use,
    refuse_gang,
    refuse_pod,
)
from extender.ask.whatif.drains import Drain
from extender.ask.whatif.question import MOST_PODS, Question
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.errors import BadInput
from extender.objects import gangs
from extender.objects.queueing import INDICES, is_queued
from extender.objects.records import Event, PodRecord
from extender.objects.selectors import NodeTerm, Requirement, Toleration
from extender.queue.gang import WaitingGang, formed
from extender.queue.gang import single as queued_alone
from extender.queue.places import GangStart
from extender.queue.report import first_names

EXIT_CODES: Final = {"fits": 0, "evict": 10, "cannot": 11}
MOST_NAMED: Final = 5
"""Gangs that one warning names."""
HELD_BACK: Final = frozenset({"order", "delays", "depth"})
"""Codes of gangs that may have a place, and wait."""
NUMBERS: Final = frozenset((*INDICES, "statefulset.kubernetes.io/pod-name"))


@dataclass(slots=True)
class WhatIfAnswer:
    """`kind: WhatIf`."""

    policy_hash: str
    warnings: list[Mapping[str, str]] = field(default_factory=list)
    holdings: list[dict[str, Any]] = field(default_factory=list)
    """Which pod held which GPUs before anything was placed."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """One for each pod."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """One for each gang."""
    placed: dict[str, str] = field(default_factory=dict)
    """uid of each single pod that was placed -> its name."""
    plans: bool = False
    """Whether bind is known to write plans, which the relays enforce: the GPUs of a pod are then known at once."""
    latest: tuple[PodRecord, int, single.Single] | None = None
    """The single pod that was judged last, without what differs among its equals; at which generation; and how."""
    cost: list[dict[str, Any]] | None = None
    """Of a drain: what the move of its pods costs; None where no pod is moved."""

    def warn(self, warnings: Iterable[Mapping[str, str]]) -> None:
        """Add those that are new."""
        self.warnings += [entry for entry in warnings if entry not in self.warnings]

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        cost = {} if self.cost is None else {"cost": self.cost}
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "WhatIf",
            "warnings": [dict(entry) for entry in self.warnings],
            "policy_hash": self.policy_hash,
            "holdings": self.holdings,
            "results": self.results,
            "groups": self.groups,
            **cost,
        }


class Unit(NamedTuple):
    """What is placed at once: a gang, or a pod alone."""

    pods: list[PodRecord]
    ref: gangs.Ref | None = None


def answer(
    snapshot: SupposedCluster,
    question: Question,
    wall: float,
    queue: QueueLook | None = None,
    asked: Iterable[str] = (),
) -> WhatIfAnswer:
    """The answer. The cluster is changed by it, and serves no second question. `wall`: the time at which it is asked,
    seconds since 1970; `queue`: the latest look at the queue, None: the answer makes one; `asked`: uids of pods about
    which kube-scheduler has asked. NotFound, BadInput."""
    cluster = snapshot.cluster
    answered = WhatIfAnswer(snapshot.settings.policy_hash, plans=bool(cluster.tables.shapes.planned))
    answered.warn(about_cluster(cluster))
    cluster.apply([*(Event("Group", "set", record) for record in question.groups), *question.objects], snapshot.now)
    drain = Drain.of(cluster, question.changes.drain, wall) if question.of_drain else None
    answered.warn(snapshot.suppose(question.changes))
    if question.holdings:
        answered.holdings = _holdings(cluster)
    answered.warn(_about_question(question))
    if drain is not None:
        _move(snapshot, drain, wall, queue, answered)
        return answered
    question = daemon_pods(cluster, question)
    answered.warn(warning("assumed", text) for text in question.assumed)
    pods = _admitted(cluster, question, answered)
    answered.warn(warn.skipped_slices(cluster, pods))
    cluster.expect(pods)
    asking_gpus = [pod for pod in pods if pod.gpus or cluster.dra.asks_gpus(pod)]
    schedulers = warn.other_schedulers(asking_gpus, snapshot.settings)
    answered.warn([*schedulers, *warn.silent_schedulers(cluster, asked, asking_gpus)])
    admission = QuotaAdmission(snapshot, quota_use(cluster, {pod.namespace for pod in pods}, wall), pods)
    passed: dict[object, list[tuple[single.NotOurs, str]]] = {}  # by owner, with what becomes of the pod
    queue = _queue(snapshot, pods, wall) if queue is None else queue
    answered.warn(_before(queue, pods))
    for unit in units(cluster, pods):
        if any(pod.claim_refs for pod in unit.pods):  # a pod before them may have a claim of theirs
            unit = Unit([cluster.dra.read(pod) for pod in unit.pods], unit.ref)
        for pod in unit.pods:
            answered.warn([*warn.invalid_on_pod(cluster, pod, wall), *admission.about(pod)])
        asking = Asking(snapshot, admission, wall, queue, answered)
        gang = None if unit.ref is None else formed(cluster, unit.ref, unit.pods)
        for waiting in [gang] if gang is not None else [queued_alone(cluster, pod) for pod in unit.pods]:
            try:
                asking.place(waiting, alone=gang is None)
            except single.NotOurs as error:
                pod = waiting.pods[0]
                rest = "that scheduler places it" if gpu_part(pod) else "kube-scheduler places it by all else"
                passed.setdefault(pod.owner or pod.uid, []).append((error, rest))
    if passed and not (answered.results or answered.groups):
        not_ours, _ = next(iter(passed.values()))[0]
        texts = [not_ours.message, *question.rejected[:MOST_NAMED], *question.assumed[:MOST_NAMED]]
        raise single.NotOurs("; ".join(texts), path=not_ours.path)
    for (first, rest), *others in passed.values():
        more = f", and so do {len(others)} more of its owner" if others else ""
        answered.warn([warning("not-ours", f"{first}; {rest}{more}")])
    answered.warn(_unchecked(answered))
    return answered


def _move(
    snapshot: SupposedCluster, drain: Drain, wall: float, queue: QueueLook | None, answered: WhatIfAnswer
) -> None:
    """Answer where the pods of a drain go. `queue`: as for `answer`; what it starts is placed first."""
    uids = [pod.uid for pod in drain.pods]
    queue = place.look(snapshot.judge, snapshot.now, wall) if queue is None else queue
    answered.warn(_placed_first(queue.before(uids)))
    with queue.seated(snapshot.claims, uids):
        moved = drain.place(snapshot, wall)
    answered.results, answered.groups, answered.cost = moved.results, moved.groups, drain.cost
    answered.warn([*moved.warnings, *warn.other_schedulers(drain.pods, snapshot.settings)])
    answered.warn(_unchecked(answered))


def _about_question(question: Question) -> Iterator[dict[str, str]]:
    """Warnings of how its objects are read."""
    if question.ignored:
        yield warning("ignored", f"objects that make no pods are ignored: {', '.join(question.ignored)}")
    yield from (warning("field-not-read", text) for text in question.unread)
    yield from (warning("assumed", text) for text in question.assumed)
    yield from (warning("repeated-key", text) for text in question.repeated)
    yield from (warning("object-left-out", text) for text in question.rejected[:MOST_NAMED])


def _unchecked(answered: WhatIfAnswer) -> list[dict[str, str]]:
    """The warning of what is not checked of its pods."""
    return warn.not_all_checked(
        (f"{result['pod']['namespace']}/{result['pod']['name']}", result["not_checked"]) for result in answered.results
    )


def exit_code(answered: Mapping[str, Any]) -> int:
    """Of the worst result."""
    return max((EXIT_CODES[result["verdict"]] for result in answered["results"]), default=0)


def about_cluster(cluster: Cluster) -> list[dict[str, str]]:
    """Warnings of a cluster that no question is about."""
    warnings = []
    if not cluster.nodes:
        warnings.append(warning("no-nodes", "the cluster has no nodes"))
    if cluster.faults:
        warnings.append(warning("left-out", f"{cluster.faults} objects could not be held and are left out"))
    return warnings


def units(cluster: ClusterView, pods: Sequence[PodRecord]) -> list[Unit]:
    """What is placed at once, in the order of the first pods."""
    by_ref: dict[object, Unit] = {}
    for pod in pods:
        ref = cluster.gangs.ref(pod)
        by_ref.setdefault(ref or pod.uid, Unit([], ref)).pods.append(pod)
    return list(by_ref.values())


def _admitted(cluster: ClusterView, question: Question, answered: WhatIfAnswer) -> list[PodRecord]:
    """The pods in order, as the API server would write them; those that it would not write are named, and the rest is
    answered. BadInput: none is left."""
    pods: list[PodRecord] = []
    with_node: list[str] = []
    rejected: list[BadInput] = []
    owners = Owners(cluster)
    asked = [owners.of(cluster.dra.read(pod)) for pod in question.pods]
    existing = _existing(cluster, question, asked, answered)
    for number, pod in enumerate(asked):
        match = existing.get(number)
        if match is not None and match.node:
            with_node.append(match.name)
            continue
        try:
            pods.append(admit(cluster, pod if match is None else msgspec.structs.replace(pod, uid=match.uid), number))
        except BadInput as error:
            rejected.append(error)
    if rejected and not (pods or with_node or question.named):
        raise rejected[0]
    answered.warn(
        warning("pod-left-out", f"{error.path} is left out: {error.message}") for error in rejected[:MOST_NAMED]
    )
    if with_node:
        text = f"pods that have a node already are not placed again: {first_names(with_node, 5)}"
        answered.warn([warning("runs-already", text)])
    seen = {pod.uid for pod in pods}
    pods += [pod for name in question.named if (pod := known(cluster, *name)).uid not in seen]
    return pods


def _existing(
    cluster: ClusterView, question: Question, asked: Sequence[PodRecord], answered: WhatIfAnswer
) -> dict[int, PodRecord]:
    """The pods of the cluster that pods of owners in the question are, by their number there. A gang of which all pods
    run is answered here."""
    matched: dict[int, PodRecord] = {}
    of_gangs: dict[gangs.Ref, list[int]] = {}
    for number, pod in enumerate(asked):
        if (pod.namespace, pod.name) not in question.expanded:
            continue
        existing = cluster.pod(pod.namespace, pod.name)
        if existing is not None and node_of(cluster, pod):
            matched[number] = existing
        if (ref := cluster.gangs.ref(pod)) is not None:
            of_gangs.setdefault(ref, []).append(number)
    for ref, numbers in of_gangs.items():
        matches = group.counterparts(cluster, ref, [asked[number] for number in numbers])
        matched |= {number: match for number, match in zip(numbers, matches, strict=True) if match is not None}
        if all(number in matched and matched[number].node for number in numbers):
            answered.groups.append(group.running_whole(cluster, ref))
    return matched


@dataclass(frozen=True, slots=True)
class Asking:
    """Places the units of one question, one after the other."""

    supposed: SupposedCluster
    admission: QuotaAdmission
    wall: float
    queue: QueueLook
    answered: WhatIfAnswer

    def place(self, gang: WaitingGang, *, alone: bool) -> None:
        """Place a gang, or a pod alone, which its queue treats as a gang of one. BadInput: it is too large. NotOurs: no
        pod of it asks for a GPU."""
        if len(gang.pods) > MOST_PODS:
            raise BadInput(f"it has {len(gang.pods)} pods; {MOST_PODS} are placed at once", path=f"gang {gang.ref}")
        answered = self.answered
        with self.queue.seated(self.supposed.claims, [pod.uid for pod in gang.pods]):
            start, before = self._start(gang), len(answered.results)
            if start is None and gang.lacking <= 1 and by_itself(self.supposed, gang):
                self._single(gang.pods[0])
                groups = [group.of_one(self.supposed.cluster, gang, answered.results[before])] if not alone else []
            else:
                groups = self._whole(gang, start)
        answered.groups += [] if alone else groups

    def _start(self, gang: WaitingGang) -> GangStart | None:
        """The start of the gang, where the queue starts it as it is asked about."""
        start = self.queue.start(pod.uid for pod in gang.pods)
        if start is None:
            return None
        known = {pod.uid: pod for pod in start.gang.pods}
        return start if all(known.get(pod.uid) == pod for pod in gang.pods) else None

    def _whole(self, gang: WaitingGang, start: GangStart | None) -> list[dict[str, Any]]:
        """Place a gang, and report it for each pod. Its groups: where the queue starts a part of it, the others too."""
        if start is None:
            return [self._placed(group.judge(self.supposed, gang, self.wall, report=self.queue.report), gang)]
        first = replace(gang, pods=start.gang.pods[: len(start.seats)])
        others = start.gang.pods[len(start.seats) :]
        groups = [self._placed(group.judge(self.supposed, first, self.wall, start=start.placed), first)]
        rest = formed(self.supposed.cluster, gang.ref, others) if others else None
        if rest is not None:  # no pod is evicted for further pods of a gang that runs
            groups.append(self._placed(group.judge(self.supposed, rest, self.wall, evicts=False), rest))
        return groups

    def _placed(self, judged: group.Grouped, gang: WaitingGang) -> dict[str, Any]:
        """Place what was judged. Gives the group."""
        if self.admission.excess(judged.pods):
            judged = refuse_gang(self.supposed, self.admission, gang, judged, self.wall)
        else:
            self.admission.create(judged.pods)
        self.answered.results += judged.results
        self.answered.warn(judged.warnings)
        group.carry_out(self.supposed, judged)
        return judged.group

    def _single(self, pod: PodRecord) -> None:
        """Place a pod, and report it."""
        supposed, answered = self.supposed, self.answered
        same = msgspec.structs.replace(pod, uid="", name="", labels=_unnumbered(pod))
        before = answered.latest
        new = pod.uid not in supposed.cluster.pods  # else others may be assumed or reserved for it
        if new and before is not None and before[:2] == (same, supposed.cluster.generation):
            # Nothing was placed since an equal pod was judged.
            judged = replace(
                before[2],
                result=before[2].result | {"pod": single.named(pod)},
                warnings=list(single.about(supposed, supposed.claims.alone(pod), pod)),
            )
        else:
            judged = single.judge(supposed, pod, self.wall)
            answered.latest = same, supposed.cluster.generation, judged
        if self.admission.excess([pod]):
            judged = refuse_pod(supposed, self.admission, pod, judged, self.wall)
        else:
            self.admission.create([pod])
        answered.results.append(judged.result)
        answered.warn(judged.warnings)
        supposed.evict(judged.victims)
        if judged.node:
            if not answered.plans:
                answered.warn(_at_once(supposed, pod, judged.node, answered.placed))
            supposed.place(pod, judged.node, judged.gpus)
            answered.placed[pod.uid] = pod.name


def _queue(snapshot: SupposedCluster, pods: Sequence[PodRecord], wall: float) -> QueueLook:
    """What the queue does now, where the question is about pods of it: what it starts is placed first."""
    if not any(map(is_queued, pods)):
        return QueueLook()
    return place.look(snapshot.judge, snapshot.now, wall)


def _before(queue: QueueLook, pods: Sequence[PodRecord]) -> Iterator[dict[str, str]]:
    """Warnings of what the queue does first, and of what holds the pods back beside a place."""
    asked = {pod.uid for pod in pods if is_queued(pod)}
    waiting = [pod.uid for pod in pods if pod.uid in asked and queue.start([pod.uid]) is None]
    before = {start.name: start for uid in waiting for start in queue.before([uid])}
    yield from _placed_first(start for start in before.values() if asked.isdisjoint(pod.uid for pod in start.gang.pods))
    length = 0 if queue.report is None else len(queue.report.waiting)
    named: set[int] = set()
    for pod in pods:
        entry = queue.entry([pod.uid])
        if entry is None or entry[0] in named:
            continue
        position, waits = entry
        if position == 1 and waits.code not in HELD_BACK:
            continue  # why it does not start is what is answered
        named.add(position)
        behind = f", behind {waits.blocked_by}" if waits.blocked_by else ""
        yield warning(
            "waits-in-queue",
            f"{waits.gang.ref} is at position {position} of {length} in the queue{behind} ({waits.code}: "
            f"{waits.text}): the answer does not wait for those before it",
        )


def _placed_first(starts: Iterable[GangStart]) -> Iterator[dict[str, str]]:
    """A warning of what the queue starts before the pods of the question."""
    if names := [f"{start.gang.ref} on {place.where(start.seats)}" for start in starts]:
        text = f"the queue starts these now, and they are placed first: {first_names(names, MOST_NAMED)}"
        yield warning("starts-before", text)


def _at_once(
    snapshot: SupposedCluster, pod: PodRecord, node: str, placed: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """A warning where, without plans, the pod is kept off the node until it is known which GPUs the pods of the
    question before it have there. `placed`: names of these by uid."""
    cluster, request = snapshot.cluster, snapshot.claims.alone(pod)
    if request.links != "required" or node not in cluster.gpus.ledgers:
        return
    shape, healthy, _ = cluster.tables.nodes.graph_of(cluster.row(node))
    if fit.uniform(cluster.tables.shapes, shape, healthy, request.wanted):
        return
    before = [placed[holding.uid] for holding in cluster.gpus.ledgers[node].holdings if holding.uid in placed]
    if before:
        text = (
            f"pod {pod.namespace}/{pod.name} requires links and follows {first_names(before, 3)} on {node}: this "
            "holds where kube-scheduler calls the bind verb, and no pod that bind placed was seen yet. Without it, and "
            "created at the same time, it may go to another node (links-pending)"
        )
        yield warning("links-at-once", text)


def _unnumbered(pod: PodRecord) -> dict[str, str]:
    """The labels without those that tell the pods of one owner apart."""
    return {key: text for key, text in pod.labels.items() if key not in NUMBERS}


def _holdings(cluster: ClusterView) -> list[dict[str, Any]]:
    """Which pod holds which GPUs, and how that is known."""
    holdings: list[dict[str, Any]] = []
    for name in sorted(cluster.gpus.ledgers):
        holdings += [
            {
                "uid": holding.uid,
                "node": name,
                "gpus": None if holding.gpus is None else list(holding.gpus),
                "how": holding.how,
            }
            for holding in sorted(cluster.gpus.ledgers[name].holdings, key=lambda holding: holding.uid)
        ]
    return holdings


# -- the pods of a DaemonSet: one for each node that its template admits, pinned to it as its controller pins them


TOLERATIONS: Final = (
    Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/disk-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/memory-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/pid-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/unschedulable", "Exists", "", "NoSchedule"),
)
"""What the controller adds (kubernetes.io, DaemonSet, "Taints and tolerations")."""


def daemon_pods(cluster: ClusterView, question: Question) -> Question:
    """The question with the pods of DaemonSets on the nodes of the cluster, but for nodes where they are already.
    BadInput: there are too many."""
    if not question.per_node:
        return question
    pods: list[PodRecord] = []
    nowhere: list[str] = []
    for pod in question.pods:
        if (pod.namespace, pod.name) not in question.per_node:
            pods.append(pod)
        else:
            names = _admitting(cluster, _tolerating(pod))
            pods += _daemon_pod(cluster, pod, names)
            nowhere += [] if names else [f"no node admits the pods of {_daemon_name(pod)}: it creates none"]
        if len(pods) + len(question.named) > MOST_PODS:
            path = f"pod {pod.namespace}/{pod.name}"
            raise BadInput(f"more than {MOST_PODS} pods; ask about fewer at once", path=path)
    return replace(question, pods=tuple(pods), assumed=(*question.assumed, *nowhere))


def _daemon_name(pod: PodRecord) -> str:
    owner = pod.owner
    return pod.name if owner is None else f"{owner.kind} {pod.namespace}/{owner.name}"


def _tolerating(pod: PodRecord) -> PodRecord:
    return msgspec.structs.replace(pod, daemon=True, tolerations=(*pod.tolerations, *TOLERATIONS))


def _daemon_pod(cluster: ClusterView, pod: PodRecord, names: Iterable[str]) -> Iterator[PodRecord]:
    """`names`: of the nodes that admit it."""
    owner = pod.owner
    running = {
        other.node
        for other in cluster.pods.values()
        if owner is not None
        and other.owner is not None
        and (other.owner.kind, other.owner.name, other.namespace) == (owner.kind, owner.name, pod.namespace)
    }
    tolerating = _tolerating(pod)
    prefix = pod.name if owner is None else owner.name
    for name in names:
        if name not in running:
            pin = NodeTerm(fields=(Requirement("metadata.name", "In", (name,)),))
            yield msgspec.structs.replace(tolerating, name=f"{prefix}-{name}", node_terms=(pin,))


def _admitting(cluster: ClusterView, pod: PodRecord) -> list[str]:
    """The nodes for which the controller makes a pod; what a node has left does not count."""
    eligibility = cluster.eligibility
    try:
        program = eligibility.program(pod.node_selector, pod.node_terms, pod.tolerations, MOST_PARTS)
    except TooLong:
        raise BadInput("its node selector has too many parts", path=f"pod {pod.namespace}/{pod.name}") from None
    return sorted(cluster.names[row] for row in columns.kept(cluster.rows.all(), eligibility.rows(program)))
