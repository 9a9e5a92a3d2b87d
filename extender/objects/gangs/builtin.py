"""What Kubernetes' own controllers create: the pods of a batch Job, and of a StatefulSet that states it is a gang."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.pod_groups import stated_domain, stated_minimum
from extender.objects.gangs.roles import (
    OUR_MINIMUM,
    OUR_SIZE,
    POD_INDEX,
    GangSource,
    Members,
    Objects,
    OwnerObject,
    OwnerRoles,
    Ref,
    Role,
    Section,
    agreed,
    number,
    role_at,
)
from extender.objects.pods import LONGEST_DEADLINE
from extender.objects.queueing import COMPLETION
from extender.objects.records import PodRecord

JOB_NAME: Final = "batch.kubernetes.io/job-name"
KUEUE_LEAST: Final = "kueue.x-k8s.io/job-min-parallelism"
DISRUPTED: Final = "DisruptionTarget"
BACKOFF_LIMIT: Final = 6
"""Of a Job that states none."""


class Job(GangSource):
    """Pods that the Job owns. A Job of one pod is no gang: no other pod ends with it."""

    name = "job"
    states = "jobs.batch"
    kinds = (("batch", "Job"),)
    alone = False
    owning = True

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """Parallelism, at most the completions that are left; pods of an index that failed for good stay away. Fewer
        must run where Kueue may admit it with fewer, or its own `scheduling` states it."""
        ended = (owner.status.number("succeeded") or 0) + _indexes(owner.status.text("failedIndexes"))
        role = job_role(owner.spec, owner.name, ended)
        scheduling = owner.spec.section("scheduling")
        least = next((n for n in (stated_minimum(scheduling), _partly(owner)) if n is not None), role.count)
        return OwnerRoles(
            (role,),
            minimum=min(least, role.count),
            size=role.count,
            ends_at=_ends_at(owner),
            domain=stated_domain(scheduling),
            failures_left=_failures_left(owner),
        )


class StatefulSet(GangSource):
    """Pods of a StatefulSet that state a size or a minimum of their gang. Those of others are independent replicas."""

    name = "statefulset"
    states = "statefulsets.apps"
    kinds = (("apps", "StatefulSet"),)
    marks = (OUR_SIZE, OUR_MINIMUM)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the owner, where the pod carries `gang-size` or `gang-min`."""
        owner = pod.owner
        if owner is None or (owner.api, owner.kind) not in self.kinds:
            return None
        stated = OUR_SIZE in pod.annotations or OUR_MINIMUM in pod.annotations or OUR_MINIMUM in pod.labels
        return Ref(self.name, pod.namespace, owner.name) if stated else None

    def minimum(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """`gang-size`, else all replicas."""
        stated = agreed(members, OUR_SIZE)
        return stated if stated is not None else super().size(ref, members, objects)

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """All replicas; all but the first are created late, unless it creates them in parallel."""
        spec = owner.spec
        in_order = spec.text("podManagementPolicy") != "Parallel"
        first = spec.section("ordinals").number("start") or 0
        role = role_at(spec, creator=owner.name, first=first, index_label=POD_INDEX, early=1 if in_order else None)
        return OwnerRoles((role,), size=role.count)


def job_role(spec: Section, name: str, ended: int = 0) -> Role:
    """The pods that a Job runs at once: parallelism (1 where it is absent), at most what is left to complete. `name`:
    of the Job; `ended`: how many of its completions have succeeded, or have failed for good."""
    wanted, completions = spec.count("parallelism"), spec.number("completions")
    count = wanted if completions is None else min(wanted, max(0, completions - ended))
    index = COMPLETION if spec.text("completionMode") == "Indexed" else ""
    return role_at(spec, count, labels={JOB_NAME: name}, index_label=index)


def _partly(owner: OwnerObject) -> int | None:
    """With how many pods Kueue may admit a Job; None where nothing valid states it."""
    least = number(owner.annotations.get(KUEUE_LEAST, ""))
    return least or None


def _ends_at(owner: OwnerObject) -> float | None:
    """When the deadline of a Job kills its pods, seconds since the epoch; None without one, or while it has not begun:
    it runs from the Job's start, be its pods gated or not."""
    start, seconds = owner.status.moment("startTime"), owner.spec.number("activeDeadlineSeconds")
    return None if start is None or seconds is None else start + min(max(seconds, 0), LONGEST_DEADLINE)


def _failures_left(owner: OwnerObject) -> int | None:
    """How many of its pods may be evicted before the Job fails instead of creating another one; None: any number. An
    evicted pod counts as failed, unless a rule on its condition DisruptionTarget states otherwise."""
    for rule in owner.spec.section("podFailurePolicy").sections("rules"):
        conditions = rule.sections("onPodConditions")
        if any(
            condition.text("type") == DISRUPTED and condition.text("status") in ("", "True") for condition in conditions
        ):
            if (action := rule.text("action")) in ("Ignore", "FailJob", "FailIndex"):
                return None if action == "Ignore" else 0
            break
    limit = owner.spec.number("backoffLimitPerIndex")  # of each index: how often one has failed is not read
    if limit is None:
        limit = owner.spec.number("backoffLimit")
        limit = (BACKOFF_LIMIT if limit is None else limit) - (owner.status.number("failed") or 0)
    return max(0, limit)


def _indexes(text: str) -> int:
    """How many indexes a text such as "0,3-5" names; a part that is not one names none."""
    total = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low is not None and high is not None:
            total += max(0, high - low + 1)
    return total
