"""JobSet: all pods of its Jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from extender.objects import schema
from extender.objects.gangs.members import Members
from extender.objects.gangs.source import MOST, Objects, Parts, Ref, Source, parallel_pods
from extender.objects.gangs.templates import Late, TemplatesSpec
from extender.objects.records import PodRecord

NAME: Final = "jobset.sigs.k8s.io/jobset-name"
ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX: Final = "jobset.sigs.k8s.io/job-index"
COMPLETION: Final = "batch.kubernetes.io/job-completion-index"
EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""With this annotation the nodes are labelled for the Jobs beforehand, and no pod is refused at creation."""


class JobSet(Source):
    """Pods with the label of the JobSet, or of its Jobs."""

    name = "jobset"
    states = "jobsets.jobset.x-k8s.io"
    kinds = (("jobset.x-k8s.io", "JobSet"),)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        found = pod.labels.get(NAME)
        return Ref(self.name, pod.namespace, found) if found else None

    def owns(self, api: str, kind: str) -> bool:
        """The JobSet above the Job."""
        return (api, kind) in self.kinds

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """Replicas x parallelism of each replicated Job, summed."""
        jobs = spec.replicated_jobs or ()
        return (sum(_replicas(one) * _pods(one) for one in jobs) if jobs else None), ()

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """The same without the replicated Jobs that complete before others begin (a TrainJob's initializers), and
        without the Jobs that have succeeded."""
        jobs = spec.replicated_jobs or ()
        first = _first(jobs)
        ended = {one.name: one.succeeded or 0 for one in status.replicated_jobs_status or ()}
        left = [max(0, _replicas(one) - ended.get(one.name, 0)) * _pods(one) for one in jobs if one.name not in first]
        return sum(left) if jobs else None

    def jobs(self, name: str, spec: schema.GroupSpec) -> tuple[tuple[str, int, int], ...]:
        """Those of the replicated Jobs, without the ones that complete before others begin."""
        jobs = spec.replicated_jobs or ()
        first = _first(jobs)
        return tuple((f"{name}-{one.name}-", _replicas(one), _pods(one)) for one in jobs if one.name not in first)

    def size(self, ref: Ref, members: Members, objects: Objects) -> int | None:
        """What its Jobs still run at once, of Jobs that do not exist what their template states; at most what the
        JobSet's own status leaves."""
        found = self.object(ref, objects)
        whole = 0 if found is None else sum(replicas * pods for _, replicas, pods in found.jobs)
        if found is None or found.size is None or whole > MOST:
            return None if found is None else found.size
        ended = 0
        for prefix, replicas, pods in found.jobs:
            for number in range(replicas if pods else 0):
                job = objects.get(("batch", "Job", ref.namespace, f"{prefix}{number}"))
                if job is not None and job.size is not None and job.owner is not None and job.owner.name == ref.name:
                    ended += max(0, pods - job.size)
        return min(found.size, max(0, whole - ended))

    def late(self, name: str, wire: schema.Group) -> tuple[Late, ...]:
        """With startupPolicy InOrder all pods of the second replicated Job and of those after it; with dependsOn those
        of the replicated Jobs that wait until others are ready; with an exclusive topology all pods but the first of
        each Job, which JobSet refuses until the first one has a node."""
        return tuple(_late(name, wire))

    def before(self, spec: schema.GroupSpec) -> tuple[str, ...]:
        """The replicated Jobs of which others depend on the completion."""
        return tuple(sorted(name for name in _first(spec.replicated_jobs or ()) if name))

    def template(self, role: str, spec: TemplatesSpec) -> schema.Pod | None:
        """That of the replicated Job."""
        for one in spec.replicated_jobs or ():
            if one.name == role and one.template is not None and one.template.spec is not None:
                return one.template.spec.template
        return None


def _late(name: str, wire: schema.Group) -> Iterator[Late]:
    spec = wire.spec or schema.GroupSpec()
    jobs, policy = spec.replicated_jobs or (), spec.startup_policy
    in_order = isinstance(policy, dict) and policy.get("startupPolicyOrder") == "InOrder"
    first = _first(jobs)
    for number, one in enumerate(jobs):
        waits = (in_order and number > 0) or any(before.status == "Ready" for before in one.depends_on or ())
        apart = _exclusive(wire.metadata) or _exclusive(one.template.metadata if one.template else None)
        begin = 0 if waits else 1
        if one.name not in first and (waits or apart) and _pods(one) > begin:
            role = one.name or ""
            labels = ((NAME, name), (ROLE, role))
            yield Late(role, f"{name}-{role}", COMPLETION, begin, _pods(one), labels, INDEX, _replicas(one))


def _exclusive(meta: schema.Metadata | None) -> bool:
    notes: Mapping[str, str | None] = (meta.annotations if meta else None) or {}
    return bool(notes.get(EXCLUSIVE)) and BY_SELECTOR not in notes


def _first(jobs: list[schema.ReplicatedJob] | tuple[()]) -> set[str | None]:
    """The replicated Jobs that complete before others begin."""
    return {before.name for one in jobs for before in one.depends_on or () if before.status == "Complete"}


def _replicas(one: schema.ReplicatedJob) -> int:
    return 1 if one.replicas is None else one.replicas


def _pods(one: schema.ReplicatedJob) -> int:
    """Of each of its Jobs."""
    job = one.template.spec if one.template else None
    return parallel_pods(job.parallelism, job.completions) if job else 1
