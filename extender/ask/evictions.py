"""What may evict a pod that runs, and at what cost; what is known of a pod that was evicted; and whether the priority
of a pod that waits allows it to evict others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from extender.ask.judge import Judge
from extender.ask.nodes import JudgedNodes
from extender.ask.pending import pods_that_wait
from extender.ask.text import count, gpu_hours, seconds
from extender.cluster.cluster import ClusterView
from extender.decide.evicted import EvictedPod
from extender.objects.records import PodRecord
from extender.objects.save_request import requested
from extender.preemption import certificate
from extender.preemption.search import Preemptor, price_alone
from extender.times import deadline


def cost_now(judge: Judge, pod: PodRecord, wall: float) -> list[dict[str, Any]] | None:
    """What evicting this pod alone would cost now, by term; None where it cannot be a victim."""
    eviction = price_alone(judge.cluster, judge.policy, pod, wall)
    return None if eviction is None else certificate.cost_of(judge.policy, eviction)


def evictable_by(cluster: ClusterView, pod: PodRecord) -> list[dict[str, Any]]:
    """The PriorityClasses whose pods may evict this one, the lowest first, and how many of their pods wait."""
    waiting: Counter[tuple[int, str]] = Counter()
    for other in pods_that_wait(cluster):
        if other.priority > pod.priority and not other.never:
            waiting[other.priority, other.priority_class] += 1
    classes = {
        (priority_class.value, name)
        for name, priority_class in cluster.priority_classes.items()
        if not priority_class.never
    }
    above = sorted(class_key for class_key in {*classes, *waiting} if class_key[0] > pod.priority)
    return [{"priority_class": name or None, "priority": value, "pods": waiting[value, name]} for value, name in above]


def past(entry: EvictedPod, wall: float, *, gone: bool = True) -> str:
    """What happened to a pod that is evicted. `gone`: it does not run any more."""
    cause, verb = entry.cause, "was evicted" if gone else "is being evicted"
    place = f" from {entry.pod.node}" if entry.pod.node else ""
    ago = "" if cause.at is None else f" (decided {seconds(max(0.0, wall - cause.at))} ago)"
    with_others = "" if (cause.victims or 1) < 2 else f", with {count((cause.victims or 1) - 1, 'other pod')}"
    return f"{verb}{place}{ago}{with_others}: {cause.why}; {_lost(entry)}"


def _lost(entry: EvictedPod) -> str:
    gpus = count(entry.gpu_count, "GPU")
    if entry.lost is None:
        return f"it held {gpus}, how much work it lost is not known"
    return f"it held {gpus} and lost {gpu_hours(entry.lost)} of work"


def before(entry: EvictedPod, wall: float) -> Mapping[str, str]:
    """The warning on a pod that has the name of one that was evicted."""
    pod = entry.pod
    return {
        "code": "evicted-before",
        "message": f"an earlier pod {pod.namespace}/{pod.name} (uid {pod.uid}) {past(entry, wall)}",
    }


def not_allowed(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """`preemption` of an Explanation; None where the pod may preempt, or where no pod holds GPUs that it asks for."""
    cluster, request = judge.cluster, asked.request
    lower = others = 0
    for name in nodes.open:
        for pod in cluster.pods_on(name):
            amounts = cluster.amounts(pod)
            if not pod.terminating and any(amounts[r] for r, _ in request.gpus):
                lower += pod.priority < request.priority
                others += pod.priority >= request.priority
    if not lower + others or (lower and not request.never):
        return None
    if request.never:
        held = f"{count(lower, 'pod')} of lower priority {'holds' if lower == 1 else 'hold'} GPUs that it could use"
        why = f"its preemptionPolicy is Never ({held})"
    else:
        why = f"no pod of a priority below {request.priority:,} holds GPUs that it could use"
    return {"allowed": False, "why": why, "lower": lower}


def asked(pod: PodRecord, wall: float) -> str:
    """That a pod is asked to save its work before it is evicted; "": it is not. `wall`: seconds since 1970."""
    request = requested(pod)
    if request is None:
        return ""
    return f"it is asked to save its work until {deadline(request.until, wall)}, before it is evicted for {request.by}"
