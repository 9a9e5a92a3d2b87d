"""manifests/explicit-class: GPU pods of a labelled namespace have to name a PriorityClass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.kustomize import MANIFESTS, kubectl
from tests.e2e.queueing import refusal, tried
from tests.waiting import wait_for

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
