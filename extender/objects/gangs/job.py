"""A batch Job: its pods, where there are several."""

from __future__ import annotations

from extender.objects import schema
from extender.objects.gangs.source import Parts, Source, parallel_pods


class Job(Source):
    """Pods that the Job owns. A Job of one pod is no gang: no other pod ends with it."""

    name = "job"
    states = "jobs.batch"
    kinds = (("batch", "Job"),)
    alone = False

    def owns(self, api: str, kind: str) -> bool:
        """The Job."""
        return (api, kind) in self.kinds

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """Parallelism, at most the completions that are left."""
        return parallel_pods(spec.parallelism, spec.completions, status.succeeded), ()
