"""The whole answer: the nodes are changed, then pods and gangs are placed one after the other, each on what those
before it leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from ext_core import fit
from extender.ask.quotas import used
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import daemons, group, running, single
from extender.ask.whatif.admission import Owners, admit, known, node_of
from extender.ask.whatif.drains import Drain
from extender.ask.whatif.question import MOST_PODS, Question
from extender.ask.whatif.quotas import Admission, refuse_group, refuse_single
from extender.ask.whatif.single import warning
from extender.cluster.cluster import Cluster, ClusterView
from extender.errors import BadInput
from extender.objects import gangs
from extender.objects.queueing import INDICES, is_queued
from extender.objects.records import Event, PodRecord
from extender.queue.gang import SINGLE, WaitingGang, formed
from extender.queue.gang import single as queued_alone
from extender.queue.report import first_names
from extender.reservations.seats import is_absent

EXIT_CODES: Final = {"fits": 0, "evict": 10, "cannot": 11}
NUMBERS: Final = frozenset((*INDICES, "statefulset.kubernetes.io/pod-name"))
AboutPod = Callable[[ClusterView, PodRecord, float], Iterable[Mapping[str, str]]]
"""Warnings of what a pod states."""


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

    def pieces(self) -> Iterator[bytes]:
        """The text of the JSON form, in small pieces."""
        whole = self.as_json()
        lists = [name for name, value in whole.items() if isinstance(value, list)]
        yield orjson.dumps({name: value for name, value in whole.items() if name not in lists})[:-1]
        for name in lists:
            yield b',"' + name.encode() + b'":['
            comma = b""
            for entry in whole[name]:
                yield comma + orjson.dumps(entry)
                comma = b","
            yield b"]"
        yield b"}"


class Unit(NamedTuple):
    """What is placed at once: a gang, or a pod alone."""

    pods: list[PodRecord]
    ref: gangs.Ref | None = None


def answer(
    snapshot: SupposedCluster, question: Question, wall: float, about_pod: AboutPod = lambda cluster, pod, wall: ()
) -> WhatIfAnswer:
    """The answer. The snapshot is changed by it, and serves no second question. `wall`: the time at which it is asked,
    seconds since 1970. NotFound, BadInput."""
    cluster = snapshot.cluster
    answered = WhatIfAnswer(snapshot.settings.policy_hash, plans=bool(cluster.tables.shapes.planned))
    answered.warn(about_cluster(cluster))
    cluster.apply([*(Event("Group", "set", record) for record in question.groups), *question.objects], snapshot.now)
    drain = Drain.of(cluster, question.changes.drain, wall) if question.of_drain else None
    answered.warn(snapshot.suppose(question.changes))
    if question.holdings:
        answered.holdings = _holdings(cluster)
    if question.ignored:
        text = f"objects that make no pods are ignored: {', '.join(question.ignored)}"
        answered.warn([warning("ignored", text)])
    answered.warn(warning("field-not-read", text) for text in question.unread)
    answered.warn(warning("assumed", text) for text in question.assumed)
    answered.warn(warning("repeated-key", text) for text in question.repeated)
    if drain is not None:
        moved = drain.place(snapshot, wall)
        answered.results, answered.groups, answered.cost = moved.results, moved.groups, drain.cost
        answered.warn(moved.warnings)
        return answered
    pods = _admitted(cluster, daemons.on_nodes(cluster, question), answered)
    cluster.expect(pods)
    admission = Admission(snapshot, used(cluster, {pod.namespace for pod in pods}, wall), pods)
    passed: list[single.NotOurs] = []
    for unit in units(cluster, pods):
        if any(pod.claim_refs for pod in unit.pods):  # a pod before them may have a claim of theirs
            unit = Unit([cluster.dra.read(pod) for pod in unit.pods], unit.ref)
        for pod in unit.pods:
            answered.warn([*about_pod(cluster, pod, wall), *admission.about(pod)])
        gang = None if unit.ref is None else formed(cluster, unit.ref, unit.pods)
        for asked in [gang] if gang is not None else [queued_alone(cluster, pod) for pod in unit.pods]:
            try:
                _place(snapshot, admission, asked, wall, answered, alone=gang is None)
            except single.NotOurs as error:
                passed.append(error)
    if passed and not (answered.results or answered.groups):
        raise passed[0]
    answered.warn(warning("not-ours", f"{error}; kube-scheduler places it by all else") for error in passed)
    return answered


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
    """The pods in order, as the API server would write them."""
    pods: list[PodRecord] = []
    with_node: list[str] = []
    owners = Owners(cluster)
    asked = [owners.of(cluster.dra.read(pod)) for pod in question.pods]
    existing = _existing(cluster, question, asked, answered)
    for number, pod in enumerate(asked):
        match = existing.get(number)
        if match is not None and match.node:
            with_node.append(match.name)
        else:
            pods.append(admit(cluster, pod if match is None else msgspec.structs.replace(pod, uid=match.uid), number))
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
        matches = running.counterparts(cluster, ref, [asked[number] for number in numbers])
        matched |= {number: match for number, match in zip(numbers, matches, strict=True) if match is not None}
        if all(number in matched and matched[number].node for number in numbers):
            answered.groups.append(running.group(cluster, ref))
    return matched


def _place(
    snapshot: SupposedCluster,
    admission: Admission,
    gang: WaitingGang,
    wall: float,
    answered: WhatIfAnswer,
    *,
    alone: bool,
) -> None:
    """Place a gang, or a pod alone. NotOurs: the pod asks for no GPU."""
    if not alone:
        _gang(snapshot, admission, gang, wall, answered)
    elif _by_itself(snapshot, gang):
        _single(snapshot, admission, gang.pods[0], wall, answered)
    else:  # its queue treats it as a gang of one
        _whole(snapshot, admission, gang, wall, answered)


def _single(
    snapshot: SupposedCluster, admission: Admission, pod: PodRecord, wall: float, answered: WhatIfAnswer
) -> None:
    same = msgspec.structs.replace(pod, uid="", name="", labels=_unnumbered(pod))
    before = answered.latest
    new = pod.uid not in snapshot.cluster.pods  # else others may be assumed or reserved for it
    if new and before is not None and before[:2] == (same, snapshot.cluster.generation):
        # Nothing was placed since an equal pod was judged.
        judged = replace(
            before[2],
            result=before[2].result | {"pod": single.named(pod)},
            warnings=list(single.about(snapshot, snapshot.claims.alone(pod), pod)),
        )
    else:
        judged = single.judge(snapshot, pod, wall)
        answered.latest = same, snapshot.cluster.generation, judged
    if admission.excess([pod]):
        judged = refuse_single(snapshot, admission, pod, judged, wall)
    else:
        admission.create([pod])
    answered.results.append(judged.result)
    answered.warn(judged.warnings)
    snapshot.evict(judged.victims)
    if judged.node:
        if not answered.plans:
            answered.warn(_at_once(snapshot, pod, judged.node, answered.placed))
        snapshot.place(pod, judged.node, judged.gpus)
        answered.placed[pod.uid] = pod.name


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


def _gang(
    snapshot: SupposedCluster, admission: Admission, gang: WaitingGang, wall: float, answered: WhatIfAnswer
) -> None:
    if len(gang.pods) > MOST_PODS:
        raise BadInput(f"it has {len(gang.pods)} pods; {MOST_PODS} are placed at once", path=f"gang {gang.ref}")
    if gang.lacking <= 1 and _by_itself(snapshot, gang):
        before = len(answered.results)
        _single(snapshot, admission, gang.pods[0], wall, answered)
        answered.groups.append(group.of_one(snapshot.cluster, gang, answered.results[before]))
        return
    judged = _whole(snapshot, admission, gang, wall, answered)
    answered.groups.append(judged.group)


def _whole(
    snapshot: SupposedCluster, admission: Admission, gang: WaitingGang, wall: float, answered: WhatIfAnswer
) -> group.Grouped:
    """Place a gang, and report it for each pod."""
    judged = group.judge(snapshot, gang, wall)
    if admission.excess(judged.pods):
        judged = refuse_group(snapshot, admission, gang, judged, wall)
    else:
        admission.create(judged.pods)
    answered.results += judged.results
    answered.warn(judged.warnings)
    group.carry_out(snapshot, judged)
    return judged


def _by_itself(snapshot: SupposedCluster, gang: WaitingGang) -> bool:
    """Whether what kube-scheduler and filter ask of its only pod is all that is asked."""
    first = gang.pods[0]
    if len(gang.pods) > 1 or is_absent(first.uid) or first.claim_numbers:
        return False
    bounded = gang.domain is not None and gang.domain.required
    in_gang = gang.ref.source != SINGLE
    if gang.apart:
        return False
    return not (bounded and (in_gang or is_queued(first))) and not (is_queued(first) and snapshot.settings.queue.queues)


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
