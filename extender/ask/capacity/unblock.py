"""What would start the first gangs and pods that wait: the verdict on each, with its ways out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from extender.ask.explanation import Explanation
from extender.ask.judge import Judge
from extender.cluster.slices import finish, in_order
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import PodRecord
from extender.policy.pod_request import wants_of
from extender.queue.report import QueueReport

FIRST: Final = 3
"""Gangs, and kinds of single pods, that are explained."""
MOST_ASKED: Final = 8
"""Kinds of pods that are judged to find those: one that fits now needs nothing."""
Explain = Callable[[PodRecord], Explanation]


def unblock(judge: Judge, report: QueueReport | None, explain: Explain) -> list[dict[str, Any]]:
    """The first gangs of the queue, then the first pods outside of it, by priority and age; equal pods once."""
    entries = _gangs(judge, report, explain)
    return entries + _pods(judge, explain)


def _gangs(judge: Judge, report: QueueReport | None, explain: Explain) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for entry in () if report is None else report.waiting:
        if len(entries) == FIRST:
            break
        cluster = judge.cluster
        known = (cluster.pods.get(pod.uid) for pod in entry.gang.pods)
        # A gang may begin with a pod without GPUs, as a launcher is: no verdict is made of it.
        waiting = (pod for pod in known if pod is not None and not pod.node)
        first = next((pod for pod in waiting if any(cluster.amounts(pod)[FIRST_GPU:])), None)
        if first is None:
            continue
        shown = explain(first)
        entries.append(_entry(shown, str(entry.gang.ref), len(entry.gang.pods), entry.gang.gpus))
    return entries


def _pods(judge: Judge, explain: Explain) -> list[dict[str, Any]]:
    alike: dict[Hashable, list[str]] = {}
    order: list[tuple[int, float, str, str, str]] = []
    for uid in list(judge.cluster.placements.waiting):
        pod = judge.cluster.pods.get(uid)
        if pod is not None and not pod.node:
            order.append((-pod.priority, pod.created or 0.0, pod.namespace, pod.name, uid))
    ordered = finish(in_order(order))
    for *_, uid in ordered:
        if (pod := judge.cluster.pods.get(uid)) is not None:
            alike.setdefault(ask_of(pod), []).append(uid)
    entries: list[dict[str, Any]] = []
    for uids in _few(alike):
        pod = judge.cluster.pods.get(uids[0])
        if pod is None or pod.node:
            continue
        shown = explain(pod)
        if shown.verdict != "fits":
            entries.append(_entry(shown, None, len(uids), len(uids) * sum(count for _, count in pod.gpus)))
        if len(entries) == FIRST:
            break
    return entries


def ask_of(pod: PodRecord) -> Hashable:
    """What its verdict depends on, as far as the pod itself states it."""
    return (
        pod.namespace, wants_of(pod), pod.priority, pod.never,
        pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms, pod.nominated_node,
        tuple(pod.annotations.items()), tuple(pod.labels.items()),
    )  # fmt: skip


def _few(alike: dict[Hashable, list[str]]) -> Iterator[list[str]]:
    for number, uids in enumerate(alike.values()):
        if number == MOST_ASKED:
            return
        yield uids


def _entry(shown: Explanation, gang: str | None, pods: int, gpus: int) -> dict[str, Any]:
    explained = shown.as_json()
    return {
        "gang": gang,
        "pod": f"{shown.pod.namespace}/{shown.pod.name}",
        "priority": shown.pod.priority,
        "pods": pods,
        "gpus": gpus,
        "verdict": shown.verdict,
        "sentence": shown.sentence,
        "nearest": explained["nearest"],
        "ways_out": explained["ways_out"],
    }
