"""Empties a cluster between tests: much faster than a new one."""

from __future__ import annotations

from extender.kube.client import ApiError
from tests.e2e.api import Api
from tests.waiting import wait_for

KEPT_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}
# Owners first, or their controllers make new pods while the old ones go.
OWNERS = ("Deployment", "StatefulSet", "Job", "ReplicaSet")


def clean(api: Api) -> None:
    """Removes all workloads, pods, nodes with their Events, budgets, quotas and test namespaces.

    Nobody else may be writing.
    """
    namespaces = [item["metadata"]["name"] for item in api.list("Namespace")]
    for kind in OWNERS:
        for namespace in {item["metadata"]["namespace"] for item in api.list(kind)}:
            api.delete_all(kind, namespace)

    def no_pods() -> bool:
        pods = api.list("Pod")
        for namespace in {pod["metadata"]["namespace"] for pod in pods}:
            api.delete_all("Pod", namespace)
        for pod in pods:
            if pod["metadata"].get("finalizers"):
                _drop_finalizers(api, pod["metadata"]["name"], pod["metadata"]["namespace"])
        return not pods

    wait_for(no_pods, 60, "all pods gone")
    for kind in ("PodDisruptionBudget", "ResourceQuota"):
        for namespace in {item["metadata"]["namespace"] for item in api.list(kind)}:
            api.delete_all(kind, namespace)
    api.delete_all("Node")
    api.delete_all("Event", "default")  # those of nodes, whose names come again
    for item in api.list("PriorityClass"):
        if not item["metadata"]["name"].startswith("system-"):
            api.delete("PriorityClass", item["metadata"]["name"])
    # Their end takes the namespace controller seconds; nobody waits for it, the names are never used again.
    for namespace in set(namespaces) - KEPT_NAMESPACES:
        try:
            api.delete("Namespace", namespace)
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _drop_finalizers(api: Api, name: str, namespace: str) -> None:
    # The job controller keeps a finished pod until it has counted it, and its job is gone.
    try:
        api.patch("Pod", name, {"metadata": {"finalizers": None}}, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
