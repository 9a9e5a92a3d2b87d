"""What an eviction costs: protection by class, work that is not saved, and disruption budgets that allow nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extender.ask.checks.finding import Finding, Posture, at, mapping, name_of, namespace_of, verb
from extender.ask.pending import partial_gangs
from extender.ask.spared import cause_of
from extender.ask.text import count, gpu_hours
from extender.objects.gangs import OUR_MINIMUM
from extender.objects.limits import SYSTEM_CLASSES
from extender.objects.progress import CHECKPOINT, INTERVAL, SAVES_ON_TERMINATION, duration, saved_ms, whole
from extender.objects.queueing import QUEUEING
from extender.objects.records import PodRecord
from extender.preemption.cost_inputs import work_lost

MOST_JOBS: Final = 50
_Workloads = dict[str, list[PodRecord]]


def findings(posture: Posture) -> Iterator[Finding]:
    """What an eviction costs, and which work and pods are not protected as intended."""
    yield from _protection(posture)
    silent, regular = _evictable(posture)
    yield from _not_saved(posture, silent)
    yield from _not_reported(posture, regular)
    yield from _too_short(posture)
    yield from _budgets(posture)
    yield from _partial_gangs(posture)


def _protection(posture: Posture) -> Iterator[Finding]:
    if not posture.classes_listed:
        return
    preemption, claims, placement = posture.settings.preemption, posture.settings.claims, posture.settings.placement
    for code, names, effect in (
        (
            "minimum-run-of-no-class",
            preemption.minimum_run_seconds,
            "preemption.minimumRunSeconds protects its pods, but {}: no pod is protected by it",
        ),
        (
            "ceiling-of-no-class",
            preemption.ceilings,
            "preemption.ceilings bounds what its pods may cost others, but {}: no eviction is bounded by it",
        ),
        (
            "wait-of-no-class",
            preemption.most_wait_seconds,
            "preemption.mostWaitSeconds has victims of its pods asked to save, but {}: no victim is asked by it",
        ),
        (
            "claims-of-no-class",
            claims.by_priority_class,
            "claims.byPriorityClass bounds what its pods may claim, but {}: no claim is bounded by it",
        ),
        (
            "placement-of-no-class",
            placement.by_priority_class,
            "placement.byPriorityClass states how its pods are placed, but {}: no pod is placed by it",
        ),
    ):
        for name in sorted(names.keys() - posture.classes):
            text = effect.format("the cluster has no such PriorityClass")
            yield Finding("error", code, f"PriorityClass/{name}", text, "Correct the name, or create the class.")


def _evictable(posture: Posture) -> tuple[_Workloads, _Workloads]:
    """By workload, the pods that may be evicted now and have no checkpoint: (those that do not state how often they
    save their work, those that do)."""
    silent: _Workloads = {}
    regular: _Workloads = {}
    for pod in posture.running():
        preemptors = (level for level in posture.levels if not level.never and level.name not in SYSTEM_CLASSES)
        if pod.terminating or not any(level.value > pod.priority for level in preemptors):
            continue
        match cause_of(posture.cluster, pod, posture.wall):
            case "daemonset" | "static" | "protected":
                continue
            case "claims" if pod.keeps_devices:  # others are evicted by the queue
                continue
            case "no-node" if posture.cluster.nodes:
                continue
        if saved_ms(pod) or posture.cluster.limits.saving(pod).on_termination >= 0:
            continue
        group = regular if whole(pod.annotations.get(INTERVAL, "")) else silent
        group.setdefault(_workload(posture, pod), []).append(pod)
    return silent, regular


def _workload(posture: Posture, pod: PodRecord) -> str:
    """What is lost together: the gang, else what owns the pod, else the pod."""
    ref = posture.cluster.gangs.ref(pod)
    if ref:
        return f"{ref.source}/{ref}"
    return f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}" if pod.owner else f"Pod/{pod.namespace}/{pod.name}"


def _loss(posture: Posture, pods: list[PodRecord]) -> int:
    """GPU-seconds."""
    return sum(work_lost(posture.cluster, pod, int(posture.wall * 1000)) for pod in pods)


def _not_saved(posture: Posture, workloads: _Workloads) -> Iterator[Finding]:
    """One for each of the MOST_JOBS that lose most, and one for all others."""
    costs = {name: _loss(posture, pods) for name, pods in workloads.items()}
    worst = sorted(workloads, key=lambda name: (-costs[name], name))
    for name in worst[:MOST_JOBS]:
        pods = workloads[name]
        gpus = sum(map(posture.gpus, pods))
        serves = name.startswith("ReplicaSet/")  # pods of a Deployment serve: most keep no work
        yield Finding(
            "info" if serves else "warning", "no-checkpoint", name,
            f"{count(len(pods), 'pod')} with {count(gpus, 'GPU')} can be evicted and never reported a checkpoint: "
            f"today that would lose {gpu_hours(costs[name])}",
            f"Write the annotation {CHECKPOINT} when a checkpoint is saved, or protect them (protect-for).",
            (("pods", len(pods)), ("gpus", gpus), ("work_lost_gpu_seconds", costs[name])),
        )  # fmt: skip
    if unlisted := worst[MOST_JOBS:]:
        yield Finding(
            "warning", "no-checkpoint-more", "cluster", f"{count(len(unlisted), 'more workload')} of that kind "
            f"{verb(len(unlisted), 'is', 'are')} not listed", "As above.",
            (("workloads", len(unlisted)), ("work_lost_gpu_seconds", sum(costs[name] for name in unlisted))),
        )  # fmt: skip


def _not_reported(posture: Posture, workloads: _Workloads) -> Iterator[Finding]:
    pods = [pod for name in sorted(workloads) for pod in workloads[name]]
    if not pods:
        return
    gpus, loss = sum(map(posture.gpus, pods)), _loss(posture, pods)
    yield Finding(
        "info", "checkpoint-not-reported", "cluster",
        f"{count(len(pods), 'pod')} with {count(gpus, 'GPU')} of {count(len(workloads), 'workload')} "
        f"{verb(len(pods), 'states', 'state')} how often work is saved, and not when it last was: all since the start "
        f"counts as lost, today {gpu_hours(loss)}",
        f"Write the annotation {CHECKPOINT} beside {INTERVAL}.",
        (("pods", len(pods)), ("gpus", gpus), ("work_lost_gpu_seconds", loss)),
    )  # fmt: skip


def _too_short(posture: Posture) -> Iterator[Finding]:
    """Pods that are killed before they have saved their work: by workload, for the MOST_JOBS with the most GPUs."""
    workloads: _Workloads = {}
    for pod in posture.running():
        seconds = duration(pod.annotations.get(SAVES_ON_TERMINATION, ""))
        if seconds is not None and seconds > pod.grace_seconds and not pod.terminating:
            workloads.setdefault(_workload(posture, pod), []).append(pod)
    gpus = {name: sum(map(posture.gpus, pods)) for name, pods in workloads.items()}
    for name in sorted(workloads, key=lambda name: (-gpus[name], name))[:MOST_JOBS]:
        pods = workloads[name]
        stated = max(duration(pod.annotations[SAVES_ON_TERMINATION]) or 0 for pod in pods)
        grace = min(pod.grace_seconds for pod in pods)
        yield Finding(
            "warning", "grace-too-short", name,
            f"{count(len(pods), 'pod')} with {count(gpus[name], 'GPU')} "
            f"{verb(len(pods), 'needs', 'need')} up to {count(stated, 'second')} to save work on termination, and "
            f"{verb(len(pods), 'is', 'are')} killed after {count(grace, 'second')}: it counts as not saved",
            f"Set terminationGracePeriodSeconds to {stated} or more.",
            (("pods", len(pods)), ("gpus", gpus[name]), ("seconds", stated), ("grace_seconds", grace)),
        )  # fmt: skip


def _partial_gangs(posture: Posture) -> Iterator[Finding]:
    for gang in partial_gangs(posture.cluster, posture.wall):
        yield Finding(
            "warning", "partial-gang", f"{gang.ref.source}/{gang.ref}", f"{gang.text}: these GPUs do no work",
            f"Let such pods start together, behind the gate of the queue: label namespace {gang.ref.namespace} "
            f"{QUEUEING}=enabled (docs/queue.md); or state {OUR_MINIMUM}, 0 where its pods are independent.",
            (("running", len(gang.running)), ("minimum", gang.minimum), ("waiting", gang.waiting), ("gpus", gang.gpus)),
        )  # fmt: skip


def _budgets(posture: Posture) -> Iterator[Finding]:
    pods = list(posture.running())
    budgets = posture.cluster.budgets.records
    specs = {
        (namespace_of(budget), name_of(budget)): mapping(at(budget, "spec"))
        for budget in posture.of("PodDisruptionBudget")
    }
    for key in sorted(budgets):
        budget, spec = budgets[key], specs.get(key, {})
        about = f"PodDisruptionBudget/{key[0]}/{key[1]}"
        if budget.selector.empty:
            yield Finding(
                "warning", "budget-selects-all", about, "its selector is empty: the Eviction API guards every pod of "
                "the namespace, kube-scheduler's preemption none", "Select the pods that are meant by their labels.",
            )  # fmt: skip
            continue
        inside = [pod for pod in pods if pod.namespace == key[0] and budget.selector.matches(pod.labels)]
        if not inside or budget.disruptions_allowed > 0:
            continue
        for_ever = spec.get("maxUnavailable") in (0, "0", "0%") or spec.get("minAvailable") == "100%"
        gpus = sum(map(posture.gpus, inside))
        yield Finding(
            "error" if for_ever else "warning", "budget-blocks-all", about,
            f"it allows no disruption {'ever' if for_ever else 'now'}: {count(len(inside), 'pod')} with "
            f"{count(gpus, 'GPU')} {verb(len(inside), 'is', 'are')} preempted last, and the Eviction API (drains) "
            f"rejects {verb(len(inside), 'its', 'their')} eviction",
            "Allow one disruption (maxUnavailable: 1), or use a PriorityClass to protect them.",
            (("pods", len(inside)), ("gpus", gpus)),
        )  # fmt: skip
