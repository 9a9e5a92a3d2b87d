"""Invalid annotations, labels and objects of a cluster, which are ignored: one warning each, so that no answer rests on
a silent repair. People write them by hand: annotations, labels, the minimum of a group, files put together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from extender.cluster.cluster import ClusterView
from extender.cluster.statements import HELD, PLAN
from extender.objects import gangs, progress
from extender.objects.annotations import typos_of_pod
from extender.objects.nodes import DRAIN
from extender.objects.parts import api_group
from extender.objects.records import PodRecord
from extender.preemption.draining import drain_of

MOST = 20  # of one kind; the others are counted
Warned = dict[str, str]


def found(cluster: ClusterView, items: Iterable[Any], wall: float, *, typos: bool = True) -> list[Warned]:
    """`code` and `message` of each, pods in the order of their names. `items`: the objects as they stand in the file;
    `wall`: seconds since 1970; `typos`: whether names and values of pods that nothing understands are among them."""
    pods = sorted(cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))
    items = list(items)
    warnings = [
        *_twice(items),
        *(_warning("field-not-read", text) for item in items for text in unread(item)),
        *(warning for pod in pods for warning in of_pod(cluster, pod, wall, typos=typos)),
        *_of_nodes(cluster),
        *_of_groups(cluster),
    ]
    return _cut(warnings)


def _warning(code: str, message: str) -> Warned:
    return {"code": code, "message": message}


def _cut(warnings: list[Warned]) -> list[Warned]:
    count = Counter(warning["code"] for warning in warnings)
    seen: Counter[str] = Counter()
    shown = []
    for warning in warnings:
        seen[warning["code"]] += 1
        if seen[warning["code"]] <= MOST:
            shown.append(warning)
        elif seen[warning["code"]] == MOST + 1:
            shown.append(_warning(warning["code"], f"and {count[warning['code']] - MOST} more like that"))
    return shown


def _twice(items: Iterable[Any]) -> Iterator[Warned]:
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
            yield _warning("uid-twice", f"{both} have the same uid {uid}: only the last one counts")
    for (kind, name), times in sorted(names.items()):
        if times > 1:
            several = len(apart[name]) if kind == "pod" else 1
            counts = "the last one counts" if several < 2 else f"each of its {several} uids counts"
            yield _warning("object-twice", f"{kind} {name} is in the file {times} times: {counts}")


def of_pod(cluster: ClusterView, pod: PodRecord, wall: float, *, typos: bool = True) -> Iterator[Warned]:
    """Warnings of one pod: its annotations, labels and place. `typos`: whether names and values that nothing
    understands (`bad-NAME`) are among them."""
    name = f"pod {pod.namespace}/{pod.name}"
    for typo in typos_of_pod(pod, cluster.settings.topology_levels) if typos else ():
        code = typo.code if typo.code == "unknown-name" else f"bad-{typo.key.partition('/')[2]}"
        yield _warning(code, f"{name}: {typo.text}")
    if progress.checkpoint(saved := pod.annotations.get(progress.CHECKPOINT, "")) > wall * 1000:
        text = f"{name}: {progress.CHECKPOINT} is {saved}, which is in the future: it counts as saved just now"
        yield _warning("checkpoint-in-future", text)
    yield from (bounded.warning(pod) for bounded in cluster.gangs.bounded(pod, cluster.tables.pods.now))
    if pod.node and not pod.finished:
        yield from _of_place(cluster, pod, name)


def _of_place(cluster: ClusterView, pod: PodRecord, name: str) -> Iterator[Warned]:
    if pod.node not in cluster.nodes:
        if not cluster.nodes:
            return  # a file of pods alone
        yield _warning("node-missing", f"{name} is on node {pod.node}, which does not exist: it holds nothing anywhere")
        return
    holding = cluster.gpus.holding(pod.node, pod.uid)
    how = "" if holding is None else holding.how
    if HELD in pod.annotations and not cluster.gpus.held_counts and how:
        yield _warning(
            "held-gpus-not-trusted",
            f"{name}: {HELD} is {pod.annotations[HELD][:80]!r}: ignored, since every writer of the "
            "pod could have written it (settings: claims.heldGpus)",
        )
    elif HELD in pod.annotations and how not in ("", "observed"):
        yield _warning(
            "bad-held-gpus",
            f"{name}: {HELD} is {pod.annotations[HELD]!r}, which are no GPUs of {pod.node} that it can hold: ignored",
        )
    elif PLAN in pod.annotations and how == "unknown":
        yield _warning(
            "bad-gpus",
            f"{name}: {PLAN} is {pod.annotations[PLAN]!r}, which it cannot have on {pod.node} (other "
            "pods hold them, or they do not exist): ignored",
        )


def _of_nodes(cluster: ClusterView) -> Iterator[Warned]:
    for name in sorted(cluster.gpus.ledgers):
        if cluster.gpus.ledgers[name].doubled:
            yield _warning("gpus-held-twice", f"node {name}: several pods are stated to hold the same GPU")
    for name, node in sorted(cluster.nodes.items()):
        if DRAIN in node.annotations and drain_of(cluster, node) is None:
            wrong = "which is no time with a zone (2026-11-21T15:00:00Z), and not empty: the node is not emptied"
            yield _warning(
                "bad-drain", f"node {name}: annotation {DRAIN} is {node.annotations[DRAIN][:100]!r}, {wrong}"
            )


def _of_groups(cluster: ClusterView) -> Iterator[Warned]:
    for (_, kind, space, name), record in sorted(cluster.gangs.objects.items()):
        minimums = (record.minimum, *(least for _, least in record.parts))
        if any(least is not None and not 0 <= least <= gangs.MOST for least in minimums):
            yield _warning(
                "bad-minimum",
                f"{kind} {space}/{name}: its minimum is not a possible number of pods: all of them count",
            )


# -- fields that change what is scheduled or evicted, and that are not read --------------------------------------------

GROUP_FIELDS: Final = {
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


def unread(item: Any) -> Iterator[str]:
    """One sentence for each such field that the object states."""
    if not isinstance(item, Mapping):
        return
    kind, api, spec = item.get("kind"), item.get("apiVersion"), item.get("spec")
    group = api_group(api if isinstance(api, str) else None)
    if not isinstance(spec, Mapping):
        return
    name = f"{kind} {_unread_name(item)}"
    if kind == "PodDisruptionBudget" and spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        yield (
            f"{name}: unhealthyPodEvictionPolicy AlwaysAllow is not read: a pod that is not ready counts against the "
            "budget as any other, as in the preemption of kube-scheduler"
        )
    elif group == "scheduling.k8s.io" and kind == "PodGroup":
        yield from _of_group(name, {key: value for key, value in spec.items() if key != "schedulingConstraints"})
    elif group == "scheduling.k8s.io" and kind == "Workload":
        for key in ("podGroups", "podGroupTemplates"):
            parts = spec.get(key)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, Mapping):
                    yield from _of_group(f"{name}, {key} {part.get('name')}", part)


def _of_group(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for field, instead in GROUP_FIELDS.items():
        if spec.get(field) not in (None, [], {}):
            yield f"{name}: {field} is not read: {instead}"


def _unread_name(item: Mapping[str, Any]) -> str:
    meta = item.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return f"{meta.get('namespace') or 'default'}/{meta.get('name') or ''}"
