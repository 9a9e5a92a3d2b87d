"""EvictionRequests on a real control plane with the gate EvictionRequestAPI.

No controller of Kubernetes 1.37 serves these objects. The test is the stand-in for a responder: it reads them, and has
the pod answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from tests.e2e import api as clients
from tests.e2e.api import Api, Kind, Object
from tests.e2e.build import release
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import CONTROL_PLANE
from tests.e2e.kubelet import RAN_SECONDS
from tests.e2e.rights import grant
from tests.e2e.scene import V100, Scene, SceneFactory
from tests.e2e.test_evictions import evicted
from tests.e2e.test_preemption import classes
from tests.e2e.test_saving import OURS, request, settings
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(release() < "1.37", reason="the API is new in 1.37")
API = "lifecycle.k8s.io/v1alpha1"
RESPONDERS = [{"name": "example.com/saver", "priority": 10_000}]


@pytest.fixture(scope="module")
def control_plane(binaries: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """With the API, which 1.37 has as alpha and switches off; and with scheduling groups, which it rejects."""
    before = request.config.stash.get(CONTROL_PLANE, None)
    clients.KINDS["EvictionRequest"] = Kind(API, "evictionrequests")
    gates = ["EvictionRequestAPI", "GenericWorkload"]
    with ControlPlane(binaries, features=gates, apis=[API, "scheduling.k8s.io/v1beta1"]) as running:
        request.config.stash[CONTROL_PLANE] = running
        yield running
    del clients.KINDS["EvictionRequest"]
    if before is not None:
        request.config.stash[CONTROL_PLANE] = before


def asked(cluster: Scene) -> list[Object]:
    return list(cluster.api.list("EvictionRequest", cluster.namespace))


@pytest.fixture
def preempting(scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str) -> Scene:
    """A training that names a responder has all GPUs, and a pod of a higher priority comes. The server has no more
    rights than the manifests give."""
    grant(api, namespace, "deployment.yaml", "evictions/rights.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    chosen: dict[str, Any] = settings(namespace, 600)
    chosen["preemption"]["evictionRequests"] = True
    cluster = scene({"n1": V100}, settings=chosen, kubeconfig=account, kubelet={"termination_seconds": 1})
    classes(cluster)
    notes = {OURS + "saves-on-request": "10s", RAN_SECONDS: "60"}
    made = cluster.pod("train", 8, priority_class="low", annotations=notes, evictionResponders=RESPONDERS)
    assert made["spec"]["evictionResponders"]  # the gate is on: the field stays
    cluster.running("train")
    cluster.pod("urgent", 8, priority_class="high")
    return cluster


def test_a_responder_is_asked_and_the_object_ends_with_the_pod(preempting: Scene) -> None:
    [made] = wait_for(lambda: asked(preempting), 60, "the EvictionRequest")
    assert made["spec"] == {
        "target": {"pod": {"name": "train", "uid": preempting.uids["train"]}},
        "requester": OURS + "evictions",
        "intent": "Eviction",
    }
    answer = {"metadata": {"annotations": {OURS + "saved": request(preempting)["id"]}}}
    preempting.api.patch("Pod", "train", answer, preempting.namespace)
    assert preempting.running("urgent", timeout=60) == ["n1"]
    assert evicted(preempting) == 1
    wait_for(lambda: not asked(preempting), 60, "the garbage collector deletes it")


def test_it_is_withdrawn_when_the_need_ends(preempting: Scene) -> None:
    wait_for(lambda: asked(preempting), 60, "the EvictionRequest")
    preempting.api.delete("Pod", "urgent", preempting.namespace)
    wait_for(lambda: not asked(preempting), 60, "it is withdrawn")

    def conditions() -> list[str]:
        stated = preempting.get("train")["status"]["conditions"]
        return [each["reason"] for each in stated if each["type"] == OURS + "SaveRequested"]

    wait_for(lambda: conditions() == ["Withdrawn"], 60, "the condition")
    assert evicted(preempting) == 0


def test_a_pod_of_a_scheduling_group_names_no_responders(api: Api, namespace: str) -> None:
    """So there is none to ask: the API server rejects such a pod."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "member", "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "example.com/none"}],
            "schedulingGroup": {"podGroupName": "g"},
            "evictionResponders": RESPONDERS,
        },
    }
    with pytest.raises(ApiError, match=r"schedulingGroup|evictionResponders"):
        api.create(pod)
