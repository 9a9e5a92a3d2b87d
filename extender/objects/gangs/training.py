"""The training operators (kubeflow.org): PyTorchJob, MPIJob and others."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.roles import OwnerObject, OwnerRoles, Role, Section, role_at
from extender.objects.gangs.source import GangSource, Ref
from extender.objects.records import PodRecord

PREFIX: Final = "training.kubeflow.org/"
NAME: Final = f"{PREFIX}job-name"
ROLE: Final = f"{PREFIX}job-role"
REPLICA_TYPE: Final = f"{PREFIX}replica-type"
REPLICA_INDEX: Final = f"{PREFIX}replica-index"
LAUNCHER: Final = "Launcher"
FIRST: Final = ("Master", "Chief", LAUNCHER, "Scheduler")
"""Roles that come before the workers."""
API: Final = "kubeflow.org"
FIELDS: Final = {
    "PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs", "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs", "PaddleJob": "paddleReplicaSpecs", "JAXJob": "jaxReplicaSpecs",
    "MXJob": "mxReplicaSpecs",
}  # fmt: skip
"""The field of each kind with its roles."""


class Training(GangSource):
    """Pods with the label of the job, or owned by it."""

    name = "training"
    states = "pytorchjobs.kubeflow.org, mpijobs.kubeflow.org ..."
    kinds = tuple((API, kind) for kind in FIELDS)

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        name = pod.labels.get(NAME)
        return Ref(self.name, pod.namespace, name) if name else None

    def owns(self, api: str, kind: str) -> bool:
        """Any kind of the operators."""
        return api == API

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """All replicas. Of these must run: minAvailable, else (elastic) minReplicas, else all. A failed pod does not
        count as succeeded: the operator remakes it, or ends the job."""
        spec = owner.spec
        sections = spec.named(FIELDS[owner.kind])
        names = sorted(sections, key=lambda name: (name not in FIRST, name))
        roles = tuple(_role(owner, name, sections[name]) for name in names)
        least = spec.section("runPolicy").section("schedulingPolicy").number("minAvailable")
        if not roles:
            return OwnerRoles(minimum=least)
        if least is None:
            elastic = spec.section("elasticPolicy").number("minReplicas")
            least = sum(
                min(elastic, role.count) if elastic is not None and role.name == "Worker" else role.count
                for role in roles
            )
        statuses = owner.status.named("replicaStatuses")
        ended = [
            min(max(0, statuses[role.name].number("succeeded") or 0), role.count)
            for role in roles
            if role.name in statuses
        ]
        return OwnerRoles(roles, least, size=sum(role.count for role in roles), succeeded=sum(ended))


def _role(owner: OwnerObject, name: str, section: Section) -> Role:
    """The MPI operator writes a role, counts the workers alone, and may create the launcher once the workers run."""
    if owner.kind != "MPIJob":
        labels = {NAME: owner.name, REPLICA_TYPE: name.lower()}
        return role_at(section, name=name, labels=labels, index_label=REPLICA_INDEX)
    launcher = name == LAUNCHER
    waits = launcher and owner.spec.text("launcherCreationPolicy") == "WaitForWorkersReady"
    return role_at(
        section, name=name, creator=f"{owner.name}-launcher" if launcher else owner.name,
        labels={NAME: owner.name, ROLE: name.lower()}, index_label=REPLICA_INDEX if name == "Worker" else "",
        early=0 if waits else None,
    )  # fmt: skip
