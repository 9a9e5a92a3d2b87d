"""What a pod asks for that no verdict looks at: kube-scheduler decides it. One list a pod, one warning an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import PLAN
from extender.objects.records import PodRecord
from extender.queue.placement import not_modelled
from extender.settings import Settings

MOST_ASKED: Final = 32
"""What is not checked that the warning names."""
MOST_REASONS: Final = 8
"""Reasons for which slices do not count that are named."""


def of_pod(cluster: ClusterView, pod: PodRecord) -> list[str]:
    """What is not checked of the pod, of whose nodes all have been judged."""
    unknown = bool(cluster.dra.fits.unknown_on(pod))
    served = [f"devices of the DeviceClass that serves {name}" for name, _ in pod.gpus if name in cluster.dra.uncounted]
    return not_modelled(pod, cluster.device_classes.values(), claims=unknown) + served


def summary(pods: Iterable[tuple[str, Sequence[str]]]) -> list[dict[str, str]]:
    """The one warning of an answer. `pods`: NAMESPACE/NAME, and what is not checked of it."""
    asking: dict[str, list[str]] = {}
    for pod, names in pods:
        for name in names:
            asking.setdefault(name, []).append(pod)
    if not asking:
        return []
    parts = [f"{name} ({_first(of)})" for name, of in list(asking.items())[:MOST_ASKED]]
    parts += [f"and {len(asking) - MOST_ASKED} more"] if len(asking) > MOST_ASKED else []
    return [{"code": "not-all-checked", "message": f"not checked here, kube-scheduler decides it: {', '.join(parts)}"}]


def _first(pods: Sequence[str]) -> str:
    return pods[0] if len(pods) == 1 else f"{pods[0]} and {count(len(pods) - 1, 'more pod')}"


def skipped_slices(cluster: ClusterView, pods: Iterable[PodRecord]) -> list[dict[str, str]]:
    """The warning of what is published and does not count, where one of the pods asks for devices by claims."""
    reasons = cluster.dra.published.skipped() if any(pod.claims for pod in pods) else {}
    if not reasons:
        return []
    parts = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    hidden = len(parts) - MOST_REASONS
    more = [f"and {count(hidden, 'more reason')}"] if hidden > 0 else []
    text = f"not all that drivers publish counts as GPUs: {'; '.join([*parts[:MOST_REASONS], *more])}"
    return [{"code": "slices-skipped", "message": text}]


def preferred(pod: PodRecord, settings: Settings) -> Iterator[dict[str, str]]:
    """The warning of what the pod prefers."""
    name, owner = f"pod {pod.namespace}/{pod.name}", pod.owner
    # Equal pods of one owner get one warning.
    alike = name if owner is None else f"{owner.kind} {pod.namespace}/{owner.name}"
    if (text := preference(pod, settings)) is not None:
        yield {"code": "preference-not-counted", "message": f"{alike} {text}"}


def other_schedulers(pods: Iterable[PodRecord], settings: Settings) -> Iterator[dict[str, str]]:
    """One warning for each scheduler of these pods that does not ask us. None of a pod that kube-scheduler tried."""
    alike: dict[str, list[str]] = {}
    for pod in pods:
        if not pod.pod_scheduled and (text := scheduler(pod, settings)) is not None:
            alike.setdefault(text, []).append(f"{pod.namespace}/{pod.name}")
    for text, names in alike.items():
        more = f"; so do {count(len(names) - 1, 'more pod')}" if len(names) > 1 else ""
        yield {"code": "other-scheduler", "message": f"pod {names[0]} {text}{more}"}


def silent_schedulers(
    cluster: ClusterView, asked: Iterable[str], pods: Iterable[PodRecord]
) -> Iterator[dict[str, str]]:
    """One warning for each scheduler of these pods that may ask us by the settings and seems not to, while another one
    does. `asked`: uids of pods about which we were asked. Bind writes its plan on the pods."""
    first: dict[str, PodRecord] = {}
    for pod in pods:
        if not pod.gates and scheduler(pod, cluster.settings) is None:
            first.setdefault(pod.scheduler_name, pod)
    if not first:
        return
    heard = {known.scheduler_name for uid in asked if (known := cluster.pods.get(uid)) is not None}
    heard |= {pod.scheduler_name for pod in cluster.pods.values() if pod.node and PLAN in pod.annotations}
    for name, pod in first.items() if heard else ():
        if name not in heard:
            why = f"it has no kept decision and no pod whose GPUs bind planned, while {min(heard)} has"
            text = f"pod {pod.namespace}/{pod.name}: its scheduler {name} seems not to ask gpu-extender ({why})"
            yield {"code": "scheduler-silent", "message": f"{text}: does its configuration have this extender?"}


def preference(pod: PodRecord, settings: Settings) -> str | None:
    """What becomes of its preferred affinity and soft spread constraints; None without any."""
    asked = [
        text
        for text, applies in (
            ("preferred affinity or anti-affinity", pod.preferred_affinity),
            ("a soft topology spread constraint", pod.soft_spread),
        )
        if applies
    ]
    if not asked:
        return None
    if settings.only_the_best_class_wins:
        effect = (
            f"at schedulerWeight {settings.scheduler_weight} our order outweighs it, so it decides nothing on the "
            "first attempt: make it required, or write gpu-extender.io/placement: spread for replicas on different "
            "nodes"
        )
    else:
        effect = "kube-scheduler counts it beside our points, and may choose another node than stated here"
    return f"has {' and '.join(asked)}: {effect}"


def scheduler(pod: PodRecord, settings: Settings) -> str | None:
    """Whether its scheduler is none of those that ask us; None where it is one of them."""
    if pod.scheduler_name in settings.schedulers:
        return None
    return (
        f"names schedulerName {pod.scheduler_name}, which is none of the schedulers that ask gpu-extender "
        f"({', '.join(settings.schedulers)}; setting: schedulers): that scheduler decides without us"
    )
