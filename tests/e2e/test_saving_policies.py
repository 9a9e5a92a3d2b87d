"""manifests/saving: pods that can be asked get the file of the request, and a saver may only annotate its own pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.build import release
from tests.e2e.cluster import ControlPlane
from tests.e2e.kustomize import MANIFESTS, kubectl
from tests.e2e.queueing import refusal, tried
from tests.waiting import wait_for
from tests.yaml_text import objects_in

LABEL = {"gpu-extender.io/saving": "enabled"}
ASKED = {"gpu-extender.io/saves-on-request": "5m"}
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "saving"
SAVER = "gpu-extender-saver"


@pytest.fixture
def policies(control_plane: ControlPlane) -> Iterator[None]:
    if release() < "1.36":
        pytest.skip("before 1.36 MutatingAdmissionPolicy is not served by default")
    admin, files = (
        control_plane.kubeconfig(),
        [str(MANIFESTS / "saving" / name) for name in ("policy.yaml", "own-pod.yaml")],
    )
    for file in files:
        kubectl("apply", "-f", file, kubeconfig=admin)
    yield
    for file in files:
        kubectl("delete", "-f", file, kubeconfig=admin)


def gpu_pod(name: str, namespace: str, **annotations: str) -> Object:
    made = builders.pod(name, namespace, 1)
    made["metadata"].setdefault("annotations", {}).update(annotations)
    return made


def mounts(made: Object) -> list[list[str]]:
    """Of each container the paths where the volume is mounted."""
    return [
        [mount["mountPath"] for mount in container.get("volumeMounts", ()) if mount["name"] == "gpu-extender"]
        for container in made["spec"]["containers"]
    ]


def test_pods_that_can_be_asked_get_the_file(api: Api, namespace: str, policies: None) -> None:
    assert mounts(tried(api, gpu_pod("free", namespace, **ASKED))) == [[]]  # no label yet
    api.patch("Namespace", namespace, {"metadata": {"labels": LABEL}})
    wait_for(lambda: mounts(tried(api, gpu_pod("p", namespace, **ASKED))) != [[]], 60, "the policy is at work")

    two = gpu_pod("two", namespace, **ASKED)
    two["spec"]["containers"].append(builders.container("sidecar"))
    two["spec"]["volumes"] = [{"name": "work", "emptyDir": {}}]
    two["spec"]["containers"][0]["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
    made = tried(api, two)
    assert mounts(made) == [["/etc/gpu-extender"]] * 2
    assert "/work" in [mount["mountPath"] for mount in made["spec"]["containers"][0]["volumeMounts"]]
    (volume,) = [volume for volume in made["spec"]["volumes"] if volume["name"] == "gpu-extender"]
    (item,) = volume["downwardAPI"]["items"]
    assert item["path"] == "save-requested"
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['gpu-extender.io/save-requested']"

    assert mounts(tried(api, gpu_pod("cannot", namespace))) == [[]]
    own = gpu_pod("own", namespace, **ASKED)
    own["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
    own["spec"]["containers"][0]["volumeMounts"] = [{"name": "mine", "mountPath": "/etc/gpu-extender"}]
    assert mounts(tried(api, own)) == [[]]  # as it is: not rejected


def test_the_job_of_the_example_is_valid(api: Api, namespace: str, policies: None) -> None:
    job = objects_in(EXAMPLES / "job.yaml")[0]
    job["metadata"]["namespace"] = namespace
    template = api.create(job)["spec"]["template"]["spec"]
    assert [volume["name"] for volume in template["volumes"]] == ["gpu-extender", "checkpoints"]


@pytest.fixture
def saver(api: Api, namespace: str, control_plane: ControlPlane, policies: None) -> Iterator[tuple[Api, Object]]:
    """A client with the token that kubelet mounts into a pod of the account, and that pod."""
    admin = control_plane.kubeconfig()
    kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "role.yaml"), kubeconfig=admin)
    pod = gpu_pod("mine", namespace, **ASKED)
    pod["spec"]["serviceAccountName"] = SAVER
    made = api.create(pod)
    api.create(gpu_pod("other", namespace, **ASKED))
    token = control_plane.account_token(namespace, SAVER, pod=made)
    with Api(control_plane.url, token, control_plane.ca) as client:
        yield client, made


def annotated(client: Api, name: str, namespace: str, **annotations: Any) -> Object:
    return client.patch("Pod", name, {"metadata": {"annotations": annotations}}, namespace)


def test_a_saver_annotates_its_own_pod_and_nothing_else(saver: tuple[Api, Object], namespace: str) -> None:
    client, _ = saver
    free = {"gpu-extender.io/last-checkpoint": "2026-11-28T15:00:00Z", "gpu-extender.io/saved": "r1"}
    wait_for(lambda: not refusal(annotated, client, "mine", namespace, **free), 60, "the Role is at work")
    wait_for(lambda: "the pod that it runs in" in refusal(annotated, client, "other", namespace, **free), 60, "policy")
    only = "may only change gpu-extender.io/last-checkpoint and gpu-extender.io/saved"
    for changed in (
        {"metadata": {"annotations": {"gpu-extender.io/protect-for": "9h"}}},
        {"metadata": {"annotations": {"gpu-extender.io/saves-on-request": None}}},
        {"metadata": {"labels": {"app": "x"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"spec": {"activeDeadlineSeconds": 9}},
    ):
        text = refusal(client.patch, "Pod", "mine", changed, namespace)
        assert only in text, (changed, text)
    assert re.search("forbidden|cannot", refusal(client.delete, "Pod", "other", namespace))
