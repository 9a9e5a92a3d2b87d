"""The training operators (kubeflow.org): PyTorchJob, MPIJob and others."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.source import Parts, Ref, Source
from extender.objects.gangs.templates import Late, TemplatesSpec
from extender.objects.records import PodRecord

NAME: Final = "training.kubeflow.org/job-name"
ROLE: Final = "training.kubeflow.org/job-role"
LAUNCHER: Final = "Launcher"
API: Final = "kubeflow.org"


class Training(Source):
    """Pods with the label of the job, or owned by it."""

    name = "training"
    states = "pytorchjobs.kubeflow.org, mpijobs.kubeflow.org ..."
    kinds = tuple(
        (API, kind) for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob")
    )

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        found = pod.labels.get(NAME)
        return Ref(self.name, pod.namespace, found) if found else None

    def owns(self, api: str, kind: str) -> bool:
        """Any kind of the operators."""
        return api == API

    def stated(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> tuple[int | None, Parts]:
        """minAvailable, else (elastic) minReplicas, else all replicas."""
        policy = spec.run_policy.scheduling_policy if spec.run_policy else None
        if policy is not None and policy.min_available is not None:
            return policy.min_available, ()
        roles = _roles(spec)
        if not roles:
            return None, ()
        elastic = spec.elastic_policy.min_replicas if spec.elastic_policy else None
        return sum(
            min(elastic, count) if elastic is not None and name == "Worker" else count for name, count in roles
        ), ()

    def stated_size(self, kind: str, spec: schema.GroupSpec, status: schema.GroupStatus) -> int | None:
        """All replicas."""
        roles = _roles(spec)
        return sum(count for _, count in roles) if roles else None

    def succeeded(self, spec: schema.GroupSpec, status: schema.GroupStatus) -> int:
        """Of all roles. A failed pod is no such: the operator remakes it, or ends the job."""
        counts = status.replica_statuses or {}
        return sum(min(max(0, counts[name].succeeded or 0), pods) for name, pods in _roles(spec) if name in counts)

    def late(self, name: str, wire: schema.Group) -> tuple[Late, ...]:
        """The launcher of an MPIJob that waits for the workers."""
        spec = wire.spec or schema.GroupSpec()
        if spec.launcher_creation_policy != "WaitForWorkersReady":
            return ()
        labels = ((NAME, name), (ROLE, "launcher"))
        return tuple(
            Late(role, f"{name}-launcher", "", 0, count, labels) for role, count in _roles(spec) if role == LAUNCHER
        )

    def template(self, role: str, spec: TemplatesSpec) -> schema.Pod | None:
        """That of the role."""
        found = (spec.mpi_replica_specs or {}).get(role)
        return found.template if found is not None else None


def _roles(spec: schema.GroupSpec) -> list[tuple[str, int]]:
    """(role, replicas); a role of one of the kinds."""
    return [
        (name, 1 if one.replicas is None else one.replicas)
        for specs in (
            spec.pytorch_replica_specs,
            spec.tf_replica_specs,
            spec.mpi_replica_specs,
            spec.xgb_replica_specs,
            spec.paddle_replica_specs,
            spec.jax_replica_specs,
            spec.mx_replica_specs,
        )
        for name, one in (specs or {}).items()
    ]
