"""PriorityClasses of the manifests, their quotas and policies, as the real API server takes and enforces them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.kustomize import MANIFESTS, built, kubectl, overlay, templates
from tests.e2e.queueing import refusal, tried
from tests.waiting import wait_for
from tests.yaml_text import objects_in

PRIORITIES = Path(__file__).parents[2] / "manifests" / "priorities"
SETS = sorted(path.parent for path in PRIORITIES.glob("*/classes.yaml"))
GPU = f"requests.{builders.GPU}"


def pod(name: str, namespace: str, gpus: int, cls: str) -> Object:
    made: dict[str, Any] = builders.pod(name, namespace, gpus=gpus)
    for field in ("priority", "preemptionPolicy"):
        made["spec"].pop(field, None)
    made["spec"]["priorityClassName"] = cls
    return made


def limits(api: Api, wanted: Object) -> bool:
    """Whether the pod exceeds a quota, as admission knows by now."""
    return "exceeded quota" in refusal(tried, api, wanted)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
def test_classes_give_their_priority_and_quotas_count_by_class(api: Api, namespace: str, path: Path) -> None:
    files = (path / "classes.yaml", path / "quotas" / "quotas.yaml")
    items = [item for file in files for item in objects_in(file)]
    classes = {item["metadata"]["name"]: item for item in items if item["kind"] == "PriorityClass"}
    quotas = {item["spec"]["scopeSelector"]["matchExpressions"][0]["values"][0]: item for item in items[len(classes) :]}
    assert classes.keys() == quotas.keys()
    for item in items:
        if item["kind"] == "ResourceQuota":
            item["metadata"]["namespace"] = namespace
        api.create(item)
    for name, item in classes.items():
        limit = int(quotas[name]["spec"]["hard"][GPU])
        # The quota controller counts, and then admission learns it: no pod is stored meanwhile.
        wait_for(partial(limits, api, pod(f"{name}-probe", namespace, limit + 1, name)), 60, f"{name} is counted")
        made = api.create(pod(f"{name}-fits", namespace, limit, name))
        assert made["spec"]["priority"] == item["value"]
        assert made["spec"]["preemptionPolicy"] == item["preemptionPolicy"]
        with pytest.raises(ApiError) as refused:
            api.create(pod(f"{name}-too-many", namespace, 1, name))
        assert refused.value.status == 403
        assert f"exceeded quota: gpus-{name}" in refused.value.message
    with pytest.raises(ApiError) as unknown:
        api.create(pod("strange", namespace, 1, "no-such-class"))
    assert unknown.value.status == 403


# -- a cluster that admits critical priorities outside kube-system only where a quota names them, as GKE does ----------


CRITICAL = ("system-node-critical", "system-cluster-critical")


@pytest.fixture
def limited(binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane(binaries, limited_priorities=CRITICAL) as running:
        yield running


def test_the_pods_of_every_critical_workload_are_admitted(limited: ControlPlane, tmp_path: Path) -> None:
    objects = built(overlay(tmp_path / "site", ("gke", "queue", "node")))
    wanted = templates(objects)
    critical = {pod["metadata"]["name"]: pod["spec"]["priorityClassName"] for pod in wanted}
    assert set(critical.values()) == set(CRITICAL)
    first = [made for made in objects if made["kind"] == "Namespace"]
    quotas = [made for made in objects if made["kind"] == "ResourceQuota"]
    admin = limited.kubeconfig()
    api: Api = limited.api
    kubectl("apply", "-f", "-", kubeconfig=admin, stdin="\n---\n".join(map(json.dumps, first)))
    for pod in wanted:
        assert "insufficient quota to match these scopes" in refusal(tried, api, pod)
    kubectl("apply", "-f", "-", kubeconfig=admin, stdin="\n---\n".join(map(json.dumps, quotas)))

    def refused() -> dict[str, str]:
        found: list[Object] = [pod for pod in wanted if refusal(tried, api, pod)]
        return {pod["metadata"]["name"]: refusal(tried, api, pod) for pod in found}

    wait_for(lambda: not refused(), 60, lambda: f"all are admitted: {refused()}")


# -- manifests/explicit-class: GPU pods of a labelled namespace have to name a PriorityClass ---------------------------


LABEL = {"gpu-extender.io/explicit-class": "required"}


@pytest.fixture
def policy(control_plane: ControlPlane) -> Iterator[None]:
    admin, file = control_plane.kubeconfig(), str(MANIFESTS / "explicit-class" / "policy.yaml")
    kubectl("apply", "-f", file, kubeconfig=admin)
    yield
    kubectl("delete", "-f", file, kubeconfig=admin)


def gpu_pod(name: str, namespace: str, gpus: int = 1, priority_class: str = "") -> Object:
    made = builders.pod(name, namespace, gpus)
    if priority_class:
        made["spec"]["priorityClassName"] = priority_class
    return made


def test_a_gpu_pod_without_a_class_is_denied_in_a_labelled_namespace(api: Api, namespace: str, policy: None) -> None:
    api.create(builders.priority_class("stated", 10))
    tried(api, gpu_pod("free", namespace))  # no label yet
    api.patch("Namespace", namespace, {"metadata": {"labels": LABEL}})
    text = wait_for(lambda: refusal(tried, api, gpu_pod("none", namespace)), 60, "the policy is at work")
    assert "has to name a PriorityClass in this namespace" in text
    tried(api, gpu_pod("named", namespace, priority_class="stated"))
    tried(api, gpu_pod("cpu", namespace, 0))
    inside = gpu_pod("init", namespace, 0)
    inside["spec"]["initContainers"] = [
        {"name": "i", "image": "i", "resources": {"limits": {builders.GPU: "1"}}},
    ]
    assert "has to name a PriorityClass" in refusal(tried, api, inside)
