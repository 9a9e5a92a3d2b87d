"""GPU pods, and owners of them, whose scheduler does not ask us."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from extender.ask import unchecked
from extender.ask.checks.finding import Finding, Item, Posture, name_of, namespace_of
from extender.objects import gangs, records
from extender.objects.parts import api_group

MOST_PODS: Final = 1_000
"""Of one owner that are looked at: pods of one template are alike."""


def findings(posture: Posture) -> Iterator[Finding]:
    """One for each pod that waits and each owner; equal ones are grouped."""
    for pod in sorted(posture.cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        if pod.gpus and not pod.node and not pod.finished:
            yield from _finding(posture, f"Pod/{pod.namespace}/{pod.name}", pod)
    for item in posture.items:
        kind, api = item.get("kind"), item.get("apiVersion")
        if isinstance(kind, str) and gangs.creates_pods(api_group(api if isinstance(api, str) else None), kind):
            for pod in _templates(posture, item):
                yield from _finding(posture, f"{kind}/{namespace_of(item)}/{name_of(item)}", pod)


def _templates(posture: Posture, item: Item) -> list[records.PodRecord]:
    """One pod for each scheduler of the owner's GPU pods. What cannot be read is reported elsewhere."""
    by_scheduler: dict[str, records.PodRecord] = {}
    try:
        for pod in islice(gangs.read_owner(item, posture.cluster.gpu_names).pods(), MOST_PODS):
            if pod.gpus:
                by_scheduler.setdefault(pod.scheduler_name, pod)
    except records.RecordError:
        return []
    return list(by_scheduler.values())


def _finding(posture: Posture, about: str, pod: records.PodRecord) -> Iterator[Finding]:
    text = unchecked.scheduler(pod, posture.settings)
    if text is not None:
        yield Finding(
            "warning", "other-scheduler", about, text,
            f"Write schedulerName: {posture.settings.schedulers[0]}, or add the name to schedulers of the settings if "
            "that profile has gpu-extender among its extenders.", repeats=True,
        )  # fmt: skip
