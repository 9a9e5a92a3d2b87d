"""Each right that the manifests give to the server's account is needed, and no other is: by the API server's audit log.

The account of `manifests/remote` is gpu-extender's alone, so no right of kube-scheduler hides one that is missing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.act.advance_store import STATE
from extender.kube.client import ApiError, ApiServer
from extender.kube.own_objects import EventsApi
from extender.objects.advance import CONFIG_MAP
from extender.objects.queueing import PINNED
from extender.sim import claims as dra
from extender.times import rfc3339
from tests import plain
from tests.e2e.api import Api, Object, Objects, path_of
from tests.e2e.audit import Request, Right, requests, rights, roles_of, without
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kustomize import built, kubectl, overlay
from tests.e2e.process import Component, free_port
from tests.e2e.queueing import SYSTEM
from tests.e2e.scene import H100, V100, Scene, SceneFactory
from tests.e2e.test_dra import publish
from tests.e2e.test_evictions import torn
from tests.e2e.test_preemption import classes
from tests.e2e.test_queue import gated, job, nodes_of
from tests.e2e.test_queue_autoscaler import provisioning  # noqa: F401 # a fixture
from tests.waiting import wait_for

ACCOUNT, OPENER = "gpu-extender", "gpu-extender-queue-open"
COMPONENTS = ("evictions", "queue", "planned-allocation", "provisioning-requests", "remote")
NOT_SERVED = {("scheduling.k8s.io", "podgroups"), ("scheduling.k8s.io", "workloads")}
"""Behind feature gates of the API server: they are listed, and watched only where they are served."""
LATER_SEATS = {f"gpu-extender-seats-{part}" for part in (1, 2, 3)}
"""Written only while the part before is in use or full (1 MiB)."""
GATED = "evictionrequests"
"""Behind a feature gate, and off by default: test_eviction_requests.py uses these rights."""
SYNTHETIC = "resourceclaims/binding"
"""The API server asks for it beside resourceclaims/status: no request is about it, and no audit log has it."""
GANG_KINDS = (
    ("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
    ("ray.io", "v1", "RayCluster", "rayclusters"),
    ("scheduler.grove.io", "v1alpha1", "PodGang", "podgangs"),
    ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
    ("kubeflow.org", "v1", "TFJob", "tfjobs"),
    ("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
    ("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs"),
    ("kubeflow.org", "v1", "PaddleJob", "paddlejobs"),
    ("kubeflow.org", "v1", "JAXJob", "jaxjobs"),
)


def definition(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def answers(api: Api, path: str) -> bool:
    try:
        api.request("GET", path)
    except ApiError:
        return False
    return True


@pytest.fixture
def gang_kinds(api: Api) -> Iterator[None]:
    """The kinds of other systems are served."""
    for one in GANG_KINDS:
        api.create(definition(*one))
    for group, version, kind, plural in GANG_KINDS:
        path = f"/apis/{group}/{version}/{plural}"
        wait_for(partial(answers, api, path), 60, f"{kind} of {group} is served")
    yield
    for group, _, _, plural in GANG_KINDS:
        api.delete("CustomResourceDefinition", f"{plural}.{group}")


@pytest.fixture
def installed(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Objects]:
    """The accounts and rights of these components; no workload of theirs runs."""
    admin, folder = control_plane.kubeconfig(), overlay(tmp_path / "site", COMPONENTS)
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 60, "our namespace is gone")
    kubectl("apply", "-k", str(folder), kubeconfig=admin)
    yield built(folder)
    kubectl("delete", "-k", str(folder), "--ignore-not-found", "--wait=false", kubeconfig=admin)


def settings(metrics_port: int) -> dict[str, Any]:
    return {
        "reservations": {"namespace": SYSTEM},
        "evictions": {"enabled": True},
        "queue": {"enabled": True, "autoscaler": "provisioningRequest", "plannedAllocation": True},
        "server": {"metrics": {"port": metrics_port, "authorize": True}},
    }


def run_everything(cluster: Scene, seen: Any, metrics_port: int, token: str) -> None:
    """Evicts, binds, releases a gang, asks for nodes for another one, allocates devices and evicts for them, reviews a
    token."""
    classes(cluster)
    torn(cluster)
    cluster.pod("urgent", 2, links="required", priority_class="high")
    assert cluster.running("urgent", timeout=60) == ["n1"]
    for number in range(5):
        cluster.kubelets.add_node(f"more-{number}", **H100)
    job(cluster, "gang", 2, 2)
    nodes_of(cluster, "gang", 2)
    cluster.api.create(dra.device_class())
    publish(cluster.api, "dra-1")
    claims = [{"name": "gpus", "resourceClaimName": "planned-claim"}]
    cluster.api.create(dra.claim("planned-claim", cluster.namespace, 2))
    cluster.api.create(gated(cluster, "planned", 0, resourceClaims=claims))
    wait_for(lambda: cluster.get("planned")["spec"].get("nodeName"), 60, lambda: str(cluster.get("planned")))
    assert cluster.get("planned")["metadata"]["annotations"][PINNED] == "dra-1"
    claims = [{"name": "gpus", "resourceClaimName": "evicting-claim"}]
    cluster.api.create(dra.claim("evicting-claim", cluster.namespace, 8))
    cluster.api.create(gated(cluster, "evicting", 0, resourceClaims=claims, priority_class="high"))
    wait_for(lambda: not cluster.alive(["planned"]), 60, "the pod that has devices is evicted")
    cluster.api.delete("Pod", "planned", cluster.namespace, grace=0)
    wait_for(lambda: cluster.get("evicting")["spec"].get("nodeName"), 60, lambda: str(cluster.get("evicting")))
    wait_for(lambda: not cluster.api.list("DeviceTaintRule"), 60, "no rule is left")
    job(cluster, "large", 9, 8)
    wait_for(lambda: cluster.api.list("ProvisioningRequest", cluster.namespace), 60, "the request for nodes")
    wait_for(lambda: any(one.resource == "provisioningrequests" and one.verb == "get" for one in seen()), 60, "a look")
    since = time.time() + 3
    entry = f"node: more-4\nfrom: {rfc3339(since)}\nuntil: {rfc3339(since + 4)}\n"
    meta = {"name": CONFIG_MAP, "namespace": SYSTEM}
    cluster.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"fan": entry}})
    wait_for(lambda: any(one.name == STATE and one.verb == "patch" for one in seen()), 60, "its end is kept")
    headers = {"authorization": f"Bearer {token}"}
    assert plain.get(f"http://127.0.0.1:{metrics_port}/metrics", headers=headers).status_code == 403


def repeat_an_event(kubeconfig: Path, event: Mapping[str, Any]) -> None:
    """As the server does after half a minute, by the same code."""

    async def repeated() -> None:
        async with await ApiServer.connect(str(kubeconfig)) as server:
            await EventsApi(server, "a test").repeat(
                event["metadata"]["name"], event["metadata"]["namespace"], 2, time.time()
            )

    asyncio.run(repeated())


def needless(held: list[Right], asked: set[Request]) -> list[Right]:
    listed = {(one.group, one.resource) for one in asked if one.verb == "list" and one.status == 404}
    return [
        one
        for one in held
        if not any(one.allows(request) for request in asked)
        and one.resource not in (SYNTHETIC, GATED)
        and not (one.verb == "watch" and (one.group, one.resource) in NOT_SERVED & listed)
        and not (one.verb == "patch" and one.name in LATER_SEATS)
    ]


@pytest.mark.usefixtures("provisioning", "gang_kinds")
def test_a_full_run_needs_each_right_of_the_server_and_no_other(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, installed: Objects
) -> None:
    held = [right for role in roles_of(installed, ACCOUNT) for right in rights(role)]
    user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
    before = len(control_plane.audited(user))
    account, port = control_plane.kubeconfig_of_account(SYSTEM, ACCOUNT), free_port()
    cluster = scene({"n1": V100}, settings=settings(port), kubeconfig=account, kubelet={"termination_seconds": 2})

    def seen() -> set[Request]:
        return requests(control_plane, user, before)

    token = control_plane.account_token(SYSTEM, OPENER)
    run_everything(cluster, seen, port, token)
    events = wait_for(lambda: api.list("Event", cluster.namespace, fields="reason=ChosenAsVictim"), 60, "the Event")
    repeat_an_event(account, events[0])
    cluster.extender.stop()  # it then writes what it has learned of the pods that come, and next time changes it
    cluster.extender.start()
    cluster.pod("later", 1)
    cluster.running("later")
    cluster.extender.stop()
    # The API server writes a line of its audit log after its answer.
    wait_for(lambda: not needless(held, seen()), 60, lambda: needless(held, seen()))
    assert [one for one in seen() if not one.allowed] == []


def test_a_full_run_of_the_opener_needs_each_of_its_rights(
    control_plane: ControlPlane, api: Api, namespace: str, installed: Objects, scene: SceneFactory
) -> None:
    held = [right for role in roles_of(installed, OPENER) for right in rights(role)]
    user = f"system:serviceaccount:{SYSTEM}:{OPENER}"
    before = len(control_plane.audited(user))
    account = control_plane.kubeconfig_of_account(SYSTEM, OPENER)
    cluster = scene({"n1": H100})
    api.create(gated(cluster, "waits", 1))
    time.sleep(2)
    words = ["gates", "open", "--older-than=1s", f"--kubeconfig={account}"]
    subprocess.run([sys.executable, "-m", "extender", *words], check=True, timeout=60)

    def seen() -> set[Request]:
        return requests(control_plane, user, before)

    wait_for(lambda: not needless(held, seen()), 60, lambda: needless(held, seen()))
    assert [one for one in seen() if not one.allowed] == []
    assert not cluster.get("waits")["spec"].get("schedulingGates")


def test_without_a_right_its_requests_are_denied(control_plane: ControlPlane, api: Api, installed: Objects) -> None:
    """The API server then denies what the full run needs it for. Components that can be installed apart may both have a
    right: it is taken from both."""
    for account in (ACCOUNT, OPENER):
        roles = roles_of(installed, account)
        for right in dict.fromkeys(right._replace(role="") for role in roles for right in rights(role)):
            holders = [role for role in roles if right in {one._replace(role="") for one in rights(role)}]
            for role in holders:
                replace(api, {**role, "rules": without(role, right._replace(role=role["metadata"]["name"]))})
            wait_for(partial(rejected, api, account, right), 60, f"{right} is denied")
            for role in holders:
                replace(api, role)
            wait_for(partial(may, api, account, right), 60, f"{right} is back")


NOT_READY = ("nodes", "pods", "poddisruptionbudgets", "priorityclasses")


def test_without_the_right_to_list_what_must_be_known_the_server_is_not_ready(
    control_plane: ControlPlane, api: Api, installed: Objects, tmp_path: Path
) -> None:
    """Each of them is named, and nothing else is missing."""
    account = control_plane.kubeconfig_of_account(SYSTEM, ACCOUNT)
    for role in roles_of(installed, ACCOUNT):
        for right in rights(role):
            if right.verb == "list" and right.resource in NOT_READY:
                role = {**role, "rules": without(role, right)}
                replace(api, role)
                wait_for(partial(rejected, api, ACCOUNT, right), 60, f"{right} is denied")
    process = ExtenderProcess(tmp_path, control_plane.logs, account, control_plane.reaper, number=1000)
    Component.start(process)
    try:
        for resource in NOT_READY:
            wait_for(partial(named, process, resource), 60, lambda: process.tail())
    finally:
        process.kill()


def named(process: ExtenderProcess, resource: str) -> str:
    """What /readyz states to be missing of a kind; "" where it does not."""
    try:
        answer = plain.get(f"{process.url}/readyz")
    except httpx.TransportError:
        return ""
    kind = "priorityclass" if resource == "priorityclasses" else resource.rstrip("s")
    texts = answer.json()["missing"] if answer.status_code == 503 else []
    return next((str(text) for text in texts if kind in text.lower() and "forbidden" in text), "")


def replace(api: Api, role: Object) -> None:
    meta = role["metadata"]
    api.request("PUT", path_of(role["kind"], meta["name"], meta.get("namespace", "")), role)


def rejected(api: Api, account: str, right: Right) -> bool:
    return not may(api, account, right)


def may(api: Api, account: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "subresource": subresource, "verb": right.verb,
                  "name": right.name, "namespace": right.namespace}  # fmt: skip
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}", "system:authenticated"]
    spec = {"user": f"system:serviceaccount:{SYSTEM}:{account}", "groups": groups, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"].get("allowed"))
