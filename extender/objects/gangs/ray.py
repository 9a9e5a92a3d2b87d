"""RayCluster: the head and all workers."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.source import Parts, Ref, Source
from extender.objects.records import PodRecord

NAME: Final = "ray.io/cluster"


class Ray(Source):
    """Pods with the label of the cluster, or owned by it."""

    name = "ray"
    states = "rayclusters.ray.io"
    kinds = (("ray.io", "RayCluster"),)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        found = pod.labels.get(NAME)
        return Ref(self.name, pod.namespace, found) if found else None

    def owns(self, api: str, kind: str) -> bool:
        """The RayCluster."""
        return (api, kind) in self.kinds

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """The head, and all hosts of each group of workers: with the autoscaler as many as it always keeps."""
        return _pods(spec, least=bool(spec.enable_in_tree_autoscaling)), ()

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """The head, and all hosts that it has now: its autoscaler changes the number."""
        return _pods(spec, least=False)


def _pods(spec: schema.GroupSpec, *, least: bool) -> int:
    return 1 + sum(
        ((group.min_replicas if least or group.replicas is None else group.replicas) or 0)
        * (1 if group.num_of_hosts is None else group.num_of_hosts)
        for group in spec.worker_group_specs or ()
    )
