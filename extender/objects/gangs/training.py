"""The training operators (kubeflow.org): PyTorchJob, MPIJob and others."""

from __future__ import annotations

from typing import Final

from extender.objects import schema
from extender.objects.gangs.source import Parts, Ref, Source
from extender.objects.records import PodRecord

NAME: Final = "training.kubeflow.org/job-name"
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
        roles = [
            role
            for specs in (
                spec.pytorch_replica_specs,
                spec.tf_replica_specs,
                spec.mpi_replica_specs,
                spec.xgb_replica_specs,
                spec.paddle_replica_specs,
                spec.jax_replica_specs,
                spec.mx_replica_specs,
            )
            for role in (specs or {}).items()
        ]
        if not roles:
            return None, ()
        elastic = spec.elastic_policy.min_replicas if spec.elastic_policy else None
        return sum(
            min(elastic, count) if elastic is not None and name == "Worker" else count
            for name, count in ((name, 1 if one.replicas is None else one.replicas) for name, one in roles)
        ), ()
