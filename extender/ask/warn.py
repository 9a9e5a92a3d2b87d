"""What answers warn of: one code and one sentence each, so that no answer rests on a silent repair or gap."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.gangs import mixes_models
from extender.cluster.nodes import model_of
from extender.cluster.statements import HELD, PLAN
from extender.objects import gangs, progress
from extender.objects.annotations import typos_of_pod
from extender.objects.nodes import DRAIN
from extender.objects.parts import api_group
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_whole
from extender.preemption.draining import drain_of
from extender.queue.placement import not_modelled
from extender.settings import Settings

MOST_ASKED: Final = 32
"""What is not checked that the warning names."""
MOST_REASONS: Final = 8
"""Reasons for which slices do not count that are named."""
MOST_OF_KIND: Final = 20
"""Invalid objects of one kind that are named; the others are counted."""
Warned = dict[str, str]


def warning(code: str, message: str) -> Warned:
    """As every answer has it."""
    return {"code": code, "message": message}


def several_resources(cluster: ClusterView, name: str) -> str:
    """That of a node only the GPUs of one resource are known one by one, for people; "" where it offers no others."""
    node = cluster.nodes[name]
    offered = [resource for resource in cluster.gpus.names if node.gpus.get(resource, 0) > 0]
    if len(offered) < 2:
        return ""
    return (
        f"GPUs of several resources ({', '.join(offered)}): links, capacity and which pod holds which GPU are known "
        f"for {offered[0]} alone"
    )


# -- what a pod asks for that no verdict looks at: kube-scheduler decides it


def not_checked(cluster: ClusterView, pod: PodRecord) -> list[str]:
    """What is not checked of the pod, of whose nodes all have been judged."""
    unknown = bool(cluster.dra.fits.unknown_on(pod))
    served = [f"devices of the DeviceClass that serves {name}" for name, _ in pod.gpus if name in cluster.dra.uncounted]
    return not_modelled(pod, cluster.device_classes.values(), claims=unknown) + served


def not_all_checked(pods: Iterable[tuple[str, Sequence[str]]]) -> list[Warned]:
    """The one warning of an answer. `pods`: NAMESPACE/NAME, and what is not checked of it."""
    asking: dict[str, list[str]] = {}
    for pod, names in pods:
        for name in names:
            asking.setdefault(name, []).append(pod)
    if not asking:
        return []
    parts = [f"{name} ({_first_pod(of)})" for name, of in list(asking.items())[:MOST_ASKED]]
    parts += [f"and {len(asking) - MOST_ASKED} more"] if len(asking) > MOST_ASKED else []
    return [warning("not-all-checked", f"not checked here, kube-scheduler decides it: {', '.join(parts)}")]


def _first_pod(pods: Sequence[str]) -> str:
    return pods[0] if len(pods) == 1 else f"{pods[0]} and {count(len(pods) - 1, 'more pod')}"


def skipped_slices(cluster: ClusterView, pods: Iterable[PodRecord]) -> list[Warned]:
    """The warning of what is published and does not count, where one of the pods asks for devices by claims."""
    reasons = cluster.dra.published.skipped() if any(pod.claims for pod in pods) else {}
    if not reasons:
        return []
    parts = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    hidden = len(parts) - MOST_REASONS
    more = [f"and {count(hidden, 'more reason')}"] if hidden > 0 else []
    text = f"not all that drivers publish counts as GPUs: {'; '.join([*parts[:MOST_REASONS], *more])}"
    return [warning("slices-skipped", text)]


def preference_not_counted(pod: PodRecord, settings: Settings) -> Iterator[Warned]:
    """The warning of what becomes of its preferred affinity and soft spread constraints. Equal pods of one owner get
    one warning."""
    stated = (
        ("preferred affinity or anti-affinity", pod.preferred_affinity),
        ("a soft topology spread constraint", pod.soft_spread),
    )
    asked = [text for text, applies in stated if applies]
    if not asked:
        return
    if settings.only_the_best_class_wins:
        effect = (
            f"at schedulerWeight {settings.scheduler_weight} our order outweighs it, so it decides nothing on the "
            "first attempt: make it required, or write gpu-extender.io/placement: spread for replicas on different "
            "nodes"
        )
    else:
        effect = "kube-scheduler counts it beside our points, and may choose another node than stated here"
    owner = pod.owner
    alike = f"pod {pod.namespace}/{pod.name}" if owner is None else f"{owner.kind} {pod.namespace}/{owner.name}"
    yield warning("preference-not-counted", f"{alike} has {' and '.join(asked)}: {effect}")


def other_schedulers(pods: Iterable[PodRecord], settings: Settings) -> Iterator[Warned]:
    """One warning for each scheduler of these pods that does not ask us. None of a pod that kube-scheduler tried."""
    alike: dict[str, list[str]] = {}
    for pod in pods:
        if not pod.pod_scheduled and (text := foreign_scheduler(pod, settings)) is not None:
            alike.setdefault(text, []).append(f"{pod.namespace}/{pod.name}")
    for text, names in alike.items():
        more = f"; so do {count(len(names) - 1, 'more pod')}" if len(names) > 1 else ""
        yield warning("other-scheduler", f"pod {names[0]} {text}{more}")


def silent_schedulers(cluster: ClusterView, asked: Iterable[str], pods: Iterable[PodRecord]) -> Iterator[Warned]:
    """One warning for each scheduler of these pods that may ask us by the settings and seems not to, while another one
    does. `asked`: uids of pods about which we were asked. Bind writes its plan on the pods."""
    first: dict[str, PodRecord] = {}
    for pod in pods:
        if not pod.gates and foreign_scheduler(pod, cluster.settings) is None:
            first.setdefault(pod.scheduler_name, pod)
    if not first:
        return
    heard = {known.scheduler_name for uid in asked if (known := cluster.pods.get(uid)) is not None}
    heard |= {pod.scheduler_name for pod in cluster.pods.values() if pod.node and PLAN in pod.annotations}
    for name, pod in first.items() if heard else ():
        if name not in heard:
            why = f"it has no kept decision and no pod whose GPUs bind planned, while {min(heard)} has"
            text = f"pod {pod.namespace}/{pod.name}: its scheduler {name} seems not to ask gpu-extender ({why})"
            yield warning("scheduler-silent", f"{text}: does its configuration have this extender?")


def foreign_scheduler(pod: PodRecord, settings: Settings) -> str | None:
    """Whether its scheduler is none of those that ask us; None where it is one of them."""
    if pod.scheduler_name in settings.schedulers:
        return None
    return (
        f"names schedulerName {pod.scheduler_name}, which is none of the schedulers that ask gpu-extender "
        f"({', '.join(settings.schedulers)}; setting: schedulers): that scheduler decides without us"
    )


# -- the GPUs of a place


def several_models(cluster: ClusterView, gang: str, places: Iterable[tuple[PodRecord, str]]) -> Iterator[Warned]:
    """The warning of a gang that is on several GPU models and need not be. `gang`: its name; `places`: each of its pods
    with its node."""
    settings = cluster.settings
    asking = [(pod, cluster.nodes[node]) for pod, node in places if pod.gpu_count and node in cluster.nodes]
    models = Counter(model_of(node, settings.mix.model_labels) for _, node in asking)
    if len(models) > 1 and not all(mixes_models(pod, settings.placement) for pod, _ in asking):
        shown = ", ".join(f"{model}: {count(pods, 'pod')}" for model, pods in sorted(models.items()))
        text = f"gang {gang} is on {len(models)} GPU models ({shown}): no place was found for it on a single one"
        yield warning("several-gpu-models", text)


def shared_gpus(cluster: ClusterView, pod: PodRecord, request: PodRequest, node: str) -> Iterator[Warned]:
    """The warning of a pod that asks for several GPUs, of a node that hands out shares by that name."""
    division = cluster.gpus.divisions.get(node)
    if division is None or division.whole or request.wanted < 2 or not wants_whole(request, cluster.resources):
        return
    physical = f"{count(division.gpus, 'GPU')}, " if division.gpus else ""
    text = (
        f"pod {pod.namespace}/{pod.name} asks for {request.wanted} GPUs, and gets as many shares of {node} "
        f"({physical}{division.detail}): several of them may be of one GPU"
    )
    yield warning("shared-gpus", text)


# -- invalid annotations, labels and objects, which are ignored: people write them by hand


def invalid_objects(cluster: ClusterView, items: Iterable[Any], wall: float, *, typos: bool = True) -> list[Warned]:
    """`code` and `message` of each, pods in the order of their names. `items`: the objects as they stand in the file;
    `wall`: seconds since 1970; `typos`: whether names and values of pods that nothing understands are among them."""
    pods = sorted(cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))
    items = list(items)
    warnings = [
        *_stated_twice(items),
        *(warning("field-not-read", text) for item in items for text in unread_fields(item)),
        *(entry for pod in pods for entry in invalid_on_pod(cluster, pod, wall, typos=typos)),
        *_invalid_on_nodes(cluster),
        *_invalid_groups(cluster),
    ]
    return _first_of_kinds(warnings)


def _first_of_kinds(warnings: list[Warned]) -> list[Warned]:
    numbers = Counter(entry["code"] for entry in warnings)
    seen: Counter[str] = Counter()
    shown = []
    for entry in warnings:
        code = entry["code"]
        seen[code] += 1
        if seen[code] <= MOST_OF_KIND:
            shown.append(entry)
        elif seen[code] == MOST_OF_KIND + 1:
            shown.append(warning(code, f"and {numbers[code] - MOST_OF_KIND} more like that"))
    return shown


def _stated_twice(items: Iterable[Any]) -> Iterator[Warned]:
    """Objects that stand in the file more than once: the last one counts, but pods with other uids count each."""
    names: Counter[tuple[str, str]] = Counter()
    uids: dict[str, str] = {}
    apart: defaultdict[str, set[str]] = defaultdict(set)  # the uids of the pods of one name
    for item in items:
        meta = item.get("metadata") if isinstance(item, Mapping) else None
        kind = item.get("kind") if isinstance(item, Mapping) else None
        if not isinstance(meta, Mapping) or kind not in ("Node", "Pod"):
            continue
        name = str(meta.get("name") or meta.get("generateName") or "")
        if kind == "Node":
            names["node", name] += 1
            continue
        name = f"{meta.get('namespace') or 'default'}/{name}"
        names["pod", name] += 1
        uid = str(meta.get("uid") or "")
        apart[name].add(uid)
        if uid and uids.setdefault(uid, name) != name:
            both = f"pods {uids[uid]} and {name}"
            yield warning("uid-twice", f"{both} have the same uid {uid}: only the last one counts")
    for (kind, name), times in sorted(names.items()):
        if times > 1:
            several = len(apart[name]) if kind == "pod" else 1
            counts = "the last one counts" if several < 2 else f"each of its {several} uids counts"
            yield warning("object-twice", f"{kind} {name} is in the file {times} times: {counts}")


def invalid_on_pod(cluster: ClusterView, pod: PodRecord, wall: float, *, typos: bool = True) -> Iterator[Warned]:
    """Warnings of one pod: its annotations, labels and place. `typos`: whether names and values that nothing
    understands (`bad-NAME`) are among them."""
    name = f"pod {pod.namespace}/{pod.name}"
    for typo in typos_of_pod(pod, cluster.settings.topology_levels) if typos else ():
        code = typo.code if typo.code == "unknown-name" else f"bad-{typo.key.partition('/')[2]}"
        yield warning(code, f"{name}: {typo.text}")
    if progress.checkpoint(saved := pod.annotations.get(progress.CHECKPOINT, "")) > wall * 1000:
        text = f"{name}: {progress.CHECKPOINT} is {saved}, which is in the future: it counts as saved just now"
        yield warning("checkpoint-in-future", text)
    yield from (bounded.warning(pod) for bounded in cluster.gangs.bounded(pod, cluster.tables.pods.now))
    if pod.node and not pod.finished:
        yield from _invalid_place(cluster, pod, name)


def _invalid_place(cluster: ClusterView, pod: PodRecord, name: str) -> Iterator[Warned]:
    if pod.node not in cluster.nodes:
        if not cluster.nodes:
            return  # a file of pods alone
        yield warning("node-missing", f"{name} is on node {pod.node}, which does not exist: it holds nothing anywhere")
        return
    holding = cluster.gpus.holding(pod.node, pod.uid)
    how = "" if holding is None else holding.how
    if HELD in pod.annotations and not cluster.gpus.held_counts and how:
        yield warning(
            "held-gpus-not-trusted",
            f"{name}: {HELD} is {pod.annotations[HELD][:80]!r}: ignored, since every writer of the "
            "pod could have written it (settings: claims.heldGpus)",
        )
    elif HELD in pod.annotations and how not in ("", "observed"):
        yield warning(
            "bad-held-gpus",
            f"{name}: {HELD} is {pod.annotations[HELD]!r}, which are no GPUs of {pod.node} that it can hold: ignored",
        )
    elif PLAN in pod.annotations and how == "unknown":
        yield warning(
            "bad-gpus",
            f"{name}: {PLAN} is {pod.annotations[PLAN]!r}, which it cannot have on {pod.node} (other "
            "pods hold them, or they do not exist): ignored",
        )


def _invalid_on_nodes(cluster: ClusterView) -> Iterator[Warned]:
    for name in sorted(cluster.gpus.ledgers):
        if cluster.gpus.ledgers[name].doubled:
            yield warning("gpus-held-twice", f"node {name}: several pods are stated to hold the same GPU")
    for name, node in sorted(cluster.nodes.items()):
        if DRAIN in node.annotations and drain_of(cluster, node) is None:
            wrong = "which is no time with a zone (2026-11-21T15:00:00Z), and not empty: the node is not emptied"
            yield warning("bad-drain", f"node {name}: annotation {DRAIN} is {node.annotations[DRAIN][:100]!r}, {wrong}")


def _invalid_groups(cluster: ClusterView) -> Iterator[Warned]:
    for (_, kind, space, name), record in sorted(cluster.gangs.objects.items()):
        minimums = (record.minimum, *(least for _, least in record.parts))
        if any(least is not None and not 0 <= least <= gangs.MOST for least in minimums):
            yield warning(
                "bad-minimum",
                f"{kind} {space}/{name}: its minimum is not a possible number of pods: all of them count",
            )


# -- fields that change what is scheduled or evicted, and that are not read --------------------------------------------

UNREAD_GROUP_FIELDS: Final = {
    "schedulingConstraints": "its pods are not kept in one domain: write gpu-extender.io/domain on them",
    "disruptionMode": "its pods are evicted by their minimum alone",
    "priority": "the priority of each pod counts",
    "priorityClassName": "the PriorityClass of each pod counts",
    "preemptionPolicy": "the preemptionPolicy of each pod counts",
    "resourceClaims": "devices of these claims are not counted",
    "parentCompositePodGroupName": "each PodGroup starts by itself",
}
"""Of a PodGroup of scheduling.k8s.io, and of the templates of a Workload: what counts instead. The constraints of a
PodGroup itself are read."""


def unread_fields(item: Any) -> Iterator[str]:
    """One sentence for each such field that the object states."""
    if not isinstance(item, Mapping):
        return
    kind, api, spec = item.get("kind"), item.get("apiVersion"), item.get("spec")
    group = api_group(api if isinstance(api, str) else None)
    if not isinstance(spec, Mapping):
        return
    name = f"{kind} {_object_name(item)}"
    if kind == "PodDisruptionBudget" and spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        yield (
            f"{name}: unhealthyPodEvictionPolicy AlwaysAllow is not read: a pod that is not ready counts against the "
            "budget as any other, as in the preemption of kube-scheduler"
        )
    elif group == "scheduling.k8s.io" and kind == "PodGroup":
        yield from _unread_of_group(name, {key: value for key, value in spec.items() if key != "schedulingConstraints"})
    elif group == "scheduling.k8s.io" and kind == "Workload":
        for key in ("podGroups", "podGroupTemplates"):
            parts = spec.get(key)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, Mapping):
                    yield from _unread_of_group(f"{name}, {key} {part.get('name')}", part)


def _unread_of_group(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for field, instead in UNREAD_GROUP_FIELDS.items():
        if spec.get(field) not in (None, [], {}):
            yield f"{name}: {field} is not read: {instead}"


def _object_name(item: Mapping[str, Any]) -> str:
    meta = item.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return f"{meta.get('namespace') or 'default'}/{meta.get('name') or ''}"
