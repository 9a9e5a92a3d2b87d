"""Empties a cluster between tests: much faster than a new one."""

from __future__ import annotations

import contextlib

from extender.kube.client import ApiError, NoAnswer
from tests.e2e.api import Api
from tests.e2e.cluster import FIRST_NAMESPACES
from tests.waiting import wait_for

# Owners first, or their controllers make new pods while the old ones go.
OWNERS = ("Deployment", "StatefulSet", "Job", "ReplicaSet")
OURS = "app.kubernetes.io/name=gpu-extender"
"""The label of what the manifests make."""


def clean(api: Api) -> None:
    """Removes all workloads, pods, nodes with their Events, budgets, quotas, devices with their claims, test
    namespaces, rights of ours in the whole cluster, and what servers keep in kube-system.

    Nobody else may be writing.
    """
    namespaces = [item["metadata"]["name"] for item in api.list("Namespace")]
    for kind in OWNERS:
        for namespace in {item["metadata"]["namespace"] for item in api.list(kind)}:
            api.delete_all(kind, namespace)

    def no_pods() -> bool:
        pods = api.list("Pod")
        for namespace in {pod["metadata"]["namespace"] for pod in pods}:
            with contextlib.suppress(NoAnswer):  # thousands take longer than a request may: the next look goes on
                api.delete_all("Pod", namespace)
        for pod in pods:
            if pod["metadata"].get("finalizers"):
                _drop_finalizers(api, pod["metadata"]["name"], pod["metadata"]["namespace"])
        return not pods

    wait_for(no_pods, 120, "all pods gone")
    wait_for(lambda: _no_claims(api), 60, "all claims gone")  # devices of the next test have the same names
    for kind in ("PodDisruptionBudget", "ResourceQuota"):
        for namespace in {item["metadata"]["namespace"] for item in api.list(kind)}:
            api.delete_all(kind, namespace)
    api.delete_all("Node")
    for kind in ("DeviceTaintRule", "ResourceSlice", "DeviceClass"):
        _delete_served(api, kind)
    api.delete_all("Event", "default")  # those of nodes, whose names come again
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        api.delete_all(kind, labels=OURS)
    for kind in ("ConfigMap", "Lease"):
        for item in api.list(kind, "kube-system"):
            if item["metadata"]["name"].startswith("gpu-extender"):
                api.delete(kind, item["metadata"]["name"], "kube-system")
    for item in api.list("PriorityClass"):
        if not item["metadata"]["name"].startswith("system-"):
            api.delete("PriorityClass", item["metadata"]["name"])
    # Their end takes the namespace controller seconds; nobody waits for it, the names are never used again.
    for namespace in set(namespaces) - {*FIRST_NAMESPACES}:
        try:
            api.delete("Namespace", namespace)
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _no_claims(api: Api) -> bool:
    """Whether no ResourceClaim is left; those that are left are deleted, and the claim controller deallocates them."""
    claims = api.list("ResourceClaim")
    for namespace in {claim["metadata"]["namespace"] for claim in claims}:
        api.delete_all("ResourceClaim", namespace)
    return not claims


def _delete_served(api: Api, kind: str) -> None:
    """All objects of a kind in the cluster, which a release may not serve: DeviceTaintRule before 1.36."""
    try:
        api.delete_all(kind)
    except ApiError as error:
        if error.status != 404:
            raise


def _drop_finalizers(api: Api, name: str, namespace: str) -> None:
    # The job controller keeps a finished pod until it has counted it, and its job is gone.
    try:
        api.patch("Pod", name, {"metadata": {"finalizers": None}}, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
