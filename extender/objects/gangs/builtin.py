"""What Kubernetes' own controllers create: the pods of a batch Job, and of a StatefulSet that says it is a gang."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.members import OUR_MINIMUM, OUR_SIZE, Members
from extender.objects.gangs.source import Objects, Parts, Ref, Source, agreed, number, parallel_pods
from extender.objects.gangs.templates import Late, TemplatesSpec
from extender.objects.records import PodRecord

POD_INDEX: Final = "apps.kubernetes.io/pod-index"


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
        return self.stated_size(kind, spec, status), ()

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int:
        """The same: the Job runs as many at once. It remakes no pod of an index that has failed for good."""
        ended = (status.succeeded or 0) + _indexes(status.failed_indexes or "")
        return parallel_pods(spec.parallelism, spec.completions, ended)


class StatefulSet(Source):
    """Pods of a StatefulSet that state a size or a minimum of their gang. Those of others are independent replicas."""

    name = "statefulset"
    states = "statefulsets.apps"
    kinds = (("apps", "StatefulSet"),)

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

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """All replicas."""
        return _replicas(spec)

    def late(self, name: str, wire: schema.Group) -> tuple[Late, ...]:
        """All pods but the first, unless it creates them in parallel."""
        spec = wire.spec or schema.GroupSpec()
        if spec.pod_management_policy == "Parallel" or _replicas(spec) < 2:
            return ()
        start = (spec.ordinals.start if spec.ordinals else None) or 0
        return (Late("", name, POD_INDEX, start + 1, start + _replicas(spec)),)

    def template(self, role: str, spec: TemplatesSpec) -> schema.Pod | None:
        """The one that it has."""
        return spec.template


def _indexes(text: str) -> int:
    """How many indexes a text such as "0,3-5" names; a part that is not one names none."""
    total = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low is not None and high is not None:
            total += max(0, high - low + 1)
    return total


def _replicas(spec: schema.GroupSpec) -> int:
    return 1 if spec.replicas is None else spec.replicas
