"""JobSet: all pods of its Jobs."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.source import Parts, Ref, Source, parallel_pods
from extender.objects.records import PodRecord

NAME: Final = "jobset.sigs.k8s.io/jobset-name"


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
        jobs = [(one.replicas, one.template.spec if one.template else None) for one in spec.replicated_jobs or ()]
        if not jobs:
            return None, ()
        return sum(
            (1 if count is None else count) * (parallel_pods(job.parallelism, job.completions, None) if job else 1)
            for count, job in jobs
        ), ()
