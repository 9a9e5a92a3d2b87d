"""The kinds of objects that are watched, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from extender.objects.records import Kind


@dataclass(frozen=True)
class WatchedKind:
    """Where a kind is listed and watched."""

    kind: Kind
    path: str
    limit: int = 250
    """Objects a page at most: what one answer may hold the event loop for. Fewer where they are large."""
    field_selector: str = ""
    optional: bool = False
    """The API may not be served: 404 means that there are none; of a `group`, and where `renounced`, 403, too."""
    group: tuple[str, str] | None = None
    """(API group, kind) of the objects, where several kinds are read as Group."""
    renounced: bool = False
    """The rights may be missing: what works without these objects continues."""
    prompt: bool = False
    """Evictions rest on it: it is watched in short turns, so that a loss is noticed within seconds."""

    @property
    def name(self) -> str:
        """Its name in readiness and metrics."""
        return self.kind if self.group is None else f"{self.group[1]}.{self.group[0]}"


_DRA: Final[tuple[tuple[Kind, str, int], ...]] = (
    ("ResourceSlice", "resourceslices", 25),  # up to 128 devices each
    ("ResourceClaim", "resourceclaims", 250),
    ("ResourceClaimTemplate", "resourceclaimtemplates", 250),
    ("DeviceTaintRule", "devicetaintrules", 250),  # from 1.37 on
)
# Finished pods hold nothing: they are left out as in kube-scheduler's own informer, and leave as deleted.
PODS: Final = WatchedKind(
    "Pod", "/api/v1/pods", field_selector="status.phase!=Succeeded,status.phase!=Failed", prompt=True
)
# They report on their node (`cluster/node_health.py`): the event by which a pod leaves PODS has its former state.
FAILED_PODS: Final = WatchedKind("FailedPod", "/api/v1/pods", field_selector="status.phase=Failed")
NODES: Final = WatchedKind("Node", "/api/v1/nodes", limit=100, prompt=True)  # about three times as large as pods
# Prompt, too: kube-scheduler deletes what we answer without asking the API server about budgets.
BUDGETS: Final = WatchedKind("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", prompt=True)
PRIORITY_CLASSES: Final = WatchedKind("PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses")
DEVICE_CLASSES: Final = WatchedKind("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses", optional=True)
# They reject pods that are to be created, so no verb rests on them. Their status follows each pod of their namespace.
QUOTAS: Final = WatchedKind("ResourceQuota", "/api/v1/resourcequotas", optional=True, renounced=True)
# Without them the GPUs of DRA drivers are not known, and kube-scheduler alone places pods with claims.
DRA: Final = tuple(
    WatchedKind(kind, f"/apis/resource.k8s.io/v1/{plural}", limit=limit, optional=True, renounced=True)
    for kind, plural, limit in _DRA
)
# They state how many pods of a gang must run (extender.objects.gangs). Only what is installed is served.
GROUPS: Final = tuple(
    WatchedKind("Group", f"/apis/{api}/{version}/{plural}", limit=500, optional=True, group=(api, kind))
    for api, version, kind, plural in (
        ("batch", "v1", "Job", "jobs"),
        ("apps", "v1", "StatefulSet", "statefulsets"),
        ("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
        ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha3", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha1", "Workload", "workloads"),
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        ("ray.io", "v1", "RayCluster", "rayclusters"),
        ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        ("kubeflow.org", "v1", "TFJob", "tfjobs"),
        ("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs"),
        ("kubeflow.org", "v1", "PaddleJob", "paddlejobs"),
        ("kubeflow.org", "v1", "JAXJob", "jaxjobs"),
    )
)
WATCHED_KINDS: Final = (PODS, NODES, BUDGETS, PRIORITY_CLASSES, DEVICE_CLASSES, QUOTAS, *DRA, *GROUPS, FAILED_PODS)
