"""JobSet: all pods of its Jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from extender.objects.gangs.builtin import job_role
from extender.objects.gangs.pod_groups import POD_GROUP, stated_domain, stated_minimum
from extender.objects.gangs.roles import (
    GangSource,
    Members,
    Objects,
    OwnerObject,
    OwnerRoles,
    Ref,
    Role,
    Section,
    patched,
)
from extender.objects.queueing import COMPLETION, JOB_INDEX, JOBSET_EXCLUSIVE

NAME: Final = "jobset.sigs.k8s.io/jobset-name"
ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
MOST_JOBS: Final = 10_000
"""Of one JobSet, that are looked at: they take 2 ms."""
BY_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""With this annotation the nodes are labelled for the Jobs beforehand, and no pod is refused at creation."""


class JobSet(GangSource):
    """Pods with the label of the JobSet, or of its Jobs."""

    name = "jobset"
    states = "jobsets.jobset.x-k8s.io"
    kinds = (("jobset.x-k8s.io", "JobSet"),)
    marks = (NAME,)
    owning = True

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """What its Jobs still run at once, of Jobs that do not exist what their template states; at most what the
        JobSet's own status leaves. Of more than MOST_JOBS Jobs that alone counts."""
        owner = self.object(ref, objects)
        if owner is None or owner.size is None or sum(replicas for _, replicas, _ in owner.jobs) > MOST_JOBS:
            return None if owner is None else owner.size
        whole, ended = sum(replicas * pods for _, replicas, pods in owner.jobs), 0
        for prefix, replicas, pods in owner.jobs:
            for number in range(replicas):
                job = objects.get(("batch", "Job", ref.namespace, f"{prefix}{number}"))
                if job is not None and job.size is not None and job.owner is not None and job.owner.name == ref.name:
                    ended += max(0, pods - job.size)
        return min(owner.size, max(0, whole - ended))

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """Replicas x parallelism of each replicated Job. The size leaves out the replicated Jobs that complete before
        others begin (a TrainJob's initializers), and the Jobs that have succeeded."""
        jobs = owner.spec.sections("replicatedJobs")
        if not jobs:
            return OwnerRoles()
        first = {
            needed.text("name")
            for job in jobs
            for needed in job.sections("dependsOn")
            if needed.text("status") == "Complete"
        }
        roles = tuple(_role(owner, job, number, first) for number, job in enumerate(jobs))
        statuses = owner.status.sections("replicatedJobsStatus")
        ended = {status.text("name"): status.number("succeeded") or 0 for status in statuses}
        running = [max(0, role.groups - ended.get(role.name, 0)) * role.count for role in roles if not role.before]
        scheduling = owner.spec.section("scheduling")
        least = stated_minimum(scheduling)
        return OwnerRoles(
            roles,
            minimum=sum(role.groups * role.count for role in roles) if least is None else least,
            size=sum(running),
            domain=stated_domain(scheduling),
        )


def job_set(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The JobSet, or the PodGroups that its `scheduling` states for its replicated Jobs, or for each of their Jobs."""
    whole = JobSet().read(owner)
    entries = owner.spec.section("scheduling").sections("replicatedJobs")
    if not entries:
        yield whole
        return
    others = {role.name: role for role in whole.roles}
    for entry in entries:
        of_each, names = entry.section("job"), entry.texts("targetReplicatedJobs")
        roles = [others.pop(name) for name in names if name in others]
        if not of_each:
            yield _pod_group("-".join([owner.name, *(role.name for role in roles)]), roles, entry)
        for role in roles if of_each else ():
            for number in range(role.groups):
                single = replace(role, groups=1, group_label="", creator=f"{role.creator}-{number}")
                name = f"{owner.name}-{role.name}-{number}"
                yield _pod_group(name, [single.with_labels({JOB_INDEX: str(number)})], of_each)
    if others:
        yield whole._replace(roles=tuple(others.values()), minimum=0, size=None)


def _pod_group(name: str, roles: Iterable[Role], stated: Section) -> OwnerRoles:
    """The PodGroup of some roles. `stated`: its policy and constraints."""
    grouped = tuple(
        replace(role, template=patched(role.template, {"spec": {"schedulingGroup": {"podGroupName": name}}}))
        for role in roles
    )
    size, least = sum(role.pods for role in grouped), stated_minimum(stated)
    domain = stated_domain(stated)
    return OwnerRoles(
        grouped, size if least is None else least, (), size, stated_in=POD_GROUP, name=name, domain=domain
    )


def _role(owner: OwnerObject, job: Section, number: int, first: set[str]) -> Role:
    """A replicated Job, the `number`th. Its pods are created late with startupPolicy InOrder, but for the first
    replicated Job, or where it depends on others that are ready. With an exclusive topology all pods but the first of
    each Job are: JobSet refuses them until the first one has a node. `first`: as in `read`."""
    name, template = job.text("name"), job.section("template")
    startup = owner.spec.section("startupPolicy")
    in_order = number > 0 and startup.text("startupPolicyOrder") == "InOrder"
    waits = in_order or any(needed.text("status") == "Ready" for needed in job.sections("dependsOn"))
    notes = Section(owner.annotations, "metadata.annotations"), template.section("metadata").section("annotations")
    exclusive = next((level for note in reversed(notes) if (level := note.text(JOBSET_EXCLUSIVE))), "")
    apart = any(note.text(JOBSET_EXCLUSIVE) and note.raw(BY_SELECTOR) is None for note in notes)
    before = name in first
    return replace(
        job_role(template.section("spec"), ""),
        name=name,
        groups=job.count("replicas"),
        creator=f"{owner.name}-{name}",
        group_label=JOB_INDEX,
        index_label=COMPLETION,
        labels={NAME: owner.name, ROLE: name},
        notes={JOBSET_EXCLUSIVE: exclusive} if exclusive else {},
        early=None if before or not (waits or apart) else 0 if waits else 1,
        before=before,
    )
