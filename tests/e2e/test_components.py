"""The kustomizations of `manifests/` on the real API server, and the containers that they describe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import builders, containers_by_hand, prometheus_operator
from tests.e2e.api import Api, Objects
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory
from tests.e2e.effect import wait_for_effect
from tests.e2e.kustomize import COMPONENTS, FORMS, MANIFESTS, built, kubectl, overlay, templates
from tests.e2e.pod_network import PodNetwork
from tests.e2e.process import Component
from tests.e2e.queueing import SYSTEM
from tests.e2e.rights import denied
from tests.e2e.scraping import check_metrics
from tests.waiting import wait_for
from tests.yaml_text import objects_in

ADDITIONS = tuple(name for name in COMPONENTS if name not in FORMS)
CASES = [
    (),
    ("queue",),
    ("openshift",),
    *((form,) for form in FORMS),
    ADDITIONS,
    *((*ADDITIONS, form) for form in FORMS),
    ("remote", "openshift"),
]
"""Alone: none, and those that change objects of others. What the others add is the same among all of them."""
OWN_NAMESPACES = (SYSTEM, "gpu-extender-node")


def text_of(objects: Objects) -> str:
    return "\n---\n".join(json.dumps(made) for made in objects)


@pytest.fixture
def admin(control_plane: ControlPlane, api: Api) -> Path:
    """A kubeconfig; no namespace of ours is left from a test before."""
    wait_for(lambda: not any(api.find("Namespace", name) for name in OWN_NAMESPACES), 120, "our namespaces are gone")
    return control_plane.kubeconfig()


@pytest.fixture
def prometheus_kinds(admin: Path) -> Iterator[None]:
    """The API server knows the kinds of Prometheus Operator, with their schemas."""
    with prometheus_operator.served(admin):
        yield


def test_every_object_of_every_component_passes_a_dry_run(admin: Path, prometheus_kinds: None, tmp_path: Path) -> None:
    """With the pods of the workloads, so that the namespaces' Pod Security levels judge them."""
    seen: set[str] = set()
    overlays = [overlay(tmp_path / str(number), components) for number, components in enumerate(CASES)]
    for folder in (*overlays, MANIFESTS / "shadow"):
        objects = built(folder)
        spaces = [made for made in objects if made["kind"] == "Namespace"]
        kubectl("apply", "--server-side", "-f", "-", kubeconfig=admin, stdin=text_of(spaces))
        everything = [*objects, *templates(objects)]
        said = kubectl(
            "apply", "--server-side", "--dry-run=server", "-f", "-", kubeconfig=admin, stdin=text_of(everything)
        )
        assert said.count("serverside-applied (server dry run)") == len(everything), folder
        seen |= {f"{made['kind']}/{made['metadata']['name']}" for made in objects}
    assert {
        "ValidatingAdmissionPolicy/gpu-extender-pods",
        "CronJob/gpu-extender-queue-open",
        "Deployment/gpu-extender-observer",
        "PrometheusRule/gpu-extender",
        "Deployment/gpu-extender",
        "Service/gpu-extender",
        "PodMonitor/gpu-extender",
    } <= seen
    static = built(MANIFESTS / "kubeadm" / "host")
    kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", kubeconfig=admin, stdin=text_of(static))


def test_a_pod_beyond_the_restricted_level_is_rejected(admin: Path, tmp_path: Path) -> None:
    """The dry run above judges: one capability more, and it fails."""
    objects = built(MANIFESTS)
    kubectl("apply", "--server-side", "-f", "-", kubeconfig=admin, stdin=text_of(objects[:1]))
    [pod] = templates(objects)
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = {"add": ["SYS_ADMIN"]}
    with pytest.raises(Exception, match="returned non-zero") as error:
        kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", kubeconfig=admin, stdin=text_of([pod]))
    assert "violates PodSecurity" in error.value.stderr  # type: ignore[attr-defined]


def test_kubeadm_leaves_only_our_own_rights_for_our_user(tmp_path: Path) -> None:
    objects = built(overlay(tmp_path / "site", ("evictions", "queue", "kubeadm")))
    assert not [made for made in objects if made["kind"] in ("Deployment", "ConfigMap", "PodDisruptionBudget")]
    subjects = {made["metadata"]["name"]: made["subjects"] for made in objects if made["kind"].endswith("RoleBinding")}
    assert subjects.pop("gpu-extender-queue-open")[0]["kind"] == "ServiceAccount"
    assert set(subjects) == {"gpu-extender", "gpu-extender-evictions", "gpu-extender-queue"}
    user = {"kind": "User", "name": "gpu-extender", "apiGroup": "rbac.authorization.k8s.io"}
    assert all(subject == [user] for subject in subjects.values())


def test_remote_gives_our_rights_to_its_own_account_and_leaves_no_scheduler(tmp_path: Path) -> None:
    objects = built(
        overlay(tmp_path / "site", ("evictions", "queue", "provisioning-requests", "network-policy", "remote"))
    )
    assert [made["metadata"]["name"] for made in objects if made["kind"] == "Deployment"] == ["gpu-extender"]
    subjects = {made["metadata"]["name"]: made["subjects"] for made in objects if made["kind"].endswith("RoleBinding")}
    assert subjects.pop("gpu-extender-queue-open")[0]["name"] == "gpu-extender-queue-open"
    account = {"kind": "ServiceAccount", "name": "gpu-extender", "namespace": SYSTEM}
    assert set(subjects) == {"gpu-extender"} | {
        f"gpu-extender-{name}" for name in ("evictions", "queue", "provisioning-requests")
    }
    assert all(subject == [account] for subject in subjects.values())
    assert not [made for made in objects if "gpu-scheduler" in made["metadata"]["name"]]
    [pod] = [one for one in templates(objects) if one["metadata"]["name"] == "gpu-extender"]
    [service] = [made for made in objects if made["kind"] == "Service"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [policy] = [made for made in objects if made["kind"] == "NetworkPolicy"]
    listening = {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == listening
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == listening
    settings = [made["data"]["gpu-extender.yaml"] for made in objects if "gpu-extender.yaml" in made.get("data", {})]
    assert len(settings) == 1
    assert 'schedulerVersion: "1.37' in settings[0]


def test_openshift_chooses_every_user_in_the_schedulers_namespace(tmp_path: Path) -> None:
    for components, number in (((), 1), (("queue",), 2), (("queue", "remote"), 2)):
        folder = overlay(tmp_path / f"site{len(components)}", (*components, "openshift"))
        pods = templates(built(folder))
        assert len(pods) == number
        for pod in pods:
            assert "runAs" not in str(pod).replace("runAsNonRoot", "")


KUBEADM = """
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler, namespace: kube-system, labels: {component: kube-scheduler, tier: control-plane}}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v1.37.0
    command: [kube-scheduler, --authentication-kubeconfig=/etc/kubernetes/scheduler.conf,
      --authorization-kubeconfig=/etc/kubernetes/scheduler.conf, --bind-address=127.0.0.1,
      --kubeconfig=/etc/kubernetes/scheduler.conf, --leader-elect=true]
    volumeMounts: [{mountPath: /etc/kubernetes/scheduler.conf, name: kubeconfig, readOnly: true}]
  volumes: [{hostPath: {path: /etc/kubernetes/scheduler.conf, type: FileOrCreate}, name: kubeconfig}]
"""
"""What kubeadm writes for kube-scheduler, without its probes."""


def test_the_patch_of_kubeadm_keeps_what_kube_scheduler_had(tmp_path: Path) -> None:
    """kubeadm applies it as `kubectl patch --local` does: a strategic merge."""
    [before] = objects_in(KUBEADM)
    (tmp_path / "pod.json").write_text(json.dumps(before))
    patch = MANIFESTS / "kubeadm" / "patches" / "kube-scheduler+strategic.yaml"
    after: Any = json.loads(kubectl("patch", "--local", "-f", str(tmp_path / "pod.json"), "--type=strategic",
                                    f"--patch-file={patch}", "-o", "json"))  # fmt: skip
    [was], [container] = before["spec"]["containers"], after["spec"]["containers"]
    assert container["image"] == was["image"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {"kubeconfig", "kube-scheduler"}
    assert {volume["name"] for volume in after["spec"]["volumes"]} == {"kubeconfig", "kube-scheduler"}
    # kube-scheduler ignores these two beside --config; the file has both.
    assert set(was["command"]) - set(container["command"]) == {
        "--kubeconfig=/etc/kubernetes/scheduler.conf", "--leader-elect=true",
    }  # fmt: skip


@pytest.fixture
def applied(control_plane: ControlPlane, admin: Path) -> Iterator[Objects]:
    """`kubectl apply -k manifests`; deleted in the end."""
    kubectl("apply", "-k", str(MANIFESTS), kubeconfig=admin)
    objects = built(MANIFESTS)
    for made in objects:
        wait_for_effect(control_plane.api, made)
    yield objects
    kubectl("delete", "-k", str(MANIFESTS), "--ignore-not-found", "--wait=false", kubeconfig=admin)


def test_the_deployments_own_containers_schedule_a_pod(
    control_plane: ControlPlane, api: Api, namespace: str, applied: Objects, kubelets: KubeletsFactory, tmp_path: Path
) -> None:
    """No request of theirs is denied, and Prometheus reads the metrics. The image, its user and kubelet are no part."""
    containers_by_hand.needed()
    [pod] = templates(applied)
    [extender], [scheduler] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    before = denied(control_plane)
    started: list[Component] = []
    network = PodNetwork.of(control_plane)
    probe = partial(containers_by_hand.probe, extender, enter=network.enter)
    try:
        for container in (extender, scheduler):
            process = containers_by_hand.start(control_plane, pod, container, applied, tmp_path, network.enter)
            started.append(process)
            process.start()
            if container is extender:
                wait_for(lambda: probe("startupProbe"), 60, "the sidecar is ready")
        nodes = kubelets()
        nodes.add_node("n1", topology="dgx-h100")
        api.create(builders.pod("p", namespace, gpus=2, scheduler="gpu-scheduler"))
        wait_for(lambda: api.get("Pod", "p", namespace)["spec"].get("nodeName") == "n1", 60, "the pod is bound")
        assert probe("readinessProbe")
        assert probe("livenessProbe")
        assert api.get("Lease", "gpu-scheduler", SYSTEM)["spec"]["holderIdentity"]
        assert denied(control_plane) == before
        check_metrics(control_plane, api, namespace, network.forwarded(8444))
    finally:
        for process in reversed(started):
            process.stop()
        network.close()


@pytest.fixture
def observing(control_plane: ControlPlane, admin: Path) -> Iterator[Objects]:
    """`kubectl apply -k manifests/shadow`; deleted in the end."""
    folder = str(MANIFESTS / "shadow")
    kubectl("apply", "-k", folder, kubeconfig=admin)
    yield built(MANIFESTS / "shadow")
    kubectl("delete", "-k", folder, "--ignore-not-found", "--wait=false", kubeconfig=admin)


def test_prometheus_reads_the_metrics_of_the_observers_own_container(
    control_plane: ControlPlane, api: Api, namespace: str, observing: Objects, tmp_path: Path
) -> None:
    containers_by_hand.needed()
    [pod] = templates(observing)
    [container] = pod["spec"]["containers"]
    before = denied(control_plane)
    network = PodNetwork.of(control_plane)
    process = containers_by_hand.start(control_plane, pod, container, observing, tmp_path, network.enter)
    try:
        process.start()
        wait_for(lambda: containers_by_hand.probe(container, "readinessProbe", network.enter), 60, "it is ready")
        check_metrics(control_plane, api, namespace, network.forwarded(8444))
        assert denied(control_plane) == before
    finally:
        process.stop()
        network.close()
