"""A real kube-scheduler asks over mTLS: who is rejected, and what a renewed certificate costs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trustme

from tests import plain
from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Api, Objects
from tests.e2e.cluster import ControlPlane, parse_metrics
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory, SchedulerFactory
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kustomize import MANIFESTS, built, kubectl, overlay, templates
from tests.e2e.pod_network import PodNetwork
from tests.e2e.process import Component, free_port
from tests.e2e.queueing import SYSTEM
from tests.e2e.remote import NAME, PARTS, Caller, Issued, caller, entry
from tests.e2e.rights import denied
from tests.e2e.scraping import check_metrics
from tests.server.certificate_files import Files, client, written
from tests.waiting import wait_for
from tests.world import workload
from tests.yaml_text import objects_in

ANSWERED = "gpu_extender_request_duration_seconds_count"


class Remote(NamedTuple):
    """`port`: of the verbs; `plain`: URL of the metrics."""

    issued: Issued
    port: int
    plain: str
    process: ExtenderProcess

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels."""
        page = parse_metrics(plain.get(f"{self.plain}/metrics").text)
        return sum(
            value
            for series, value in page.items()
            if series.startswith(name) and all(f'{key}="{text}"' in series for key, text in labels.items())
        )


@pytest.fixture
def remote(api: Api, kubelets: KubeletsFactory, extender_process: ExtenderFactory, tmp_path: Path) -> Remote:
    """gpu-extender with TLS, beside two nodes of 8 GPUs."""
    nodes = kubelets()
    for name in ("n1", "n2"):
        nodes.add_node(name, topology="dgx-h100", cpu="64")
    issued, port, plain = Issued(tmp_path / "issued"), free_port(), free_port()
    process = extender_process(arguments=issued.arguments(port, plain), probe_port=plain)
    return Remote(issued, port, f"http://127.0.0.1:{plain}", process)


def said(process: Component, text: str) -> bool:
    return text in process.log.read_text()


def renewed(remote: Remote, callers: Sequence[Caller], times: int) -> bool:
    """So often: read by the server once each, and shown to every caller."""
    read = remote.metric("gpu_extender_certificate_reads_total", result="ok")
    return read == times and all(len(one.serials) > times for one in callers)


def bound(api: Api, name: str, namespace: str) -> bool:
    return bool(api.get("Pod", name, namespace)["spec"].get("nodeName"))


class Wrong(NamedTuple):
    """`made`: what kube-scheduler shows and trusts; `ours`: whose log has the reason (else kube-scheduler's)."""

    made: Callable[[trustme.CA], tuple[trustme.LeafCert, trustme.CA]]
    reason: str
    ours: bool = True


WRONG = {
    "a CA that is not the server's": Wrong(
        lambda ca: (client(ca), trustme.CA()), "certificate signed by unknown authority", ours=False
    ),
    "an expired client certificate": Wrong(lambda ca: (client(ca, expired=True), ca), "certificate has expired"),
    "a client certificate of another CA": Wrong(lambda ca: (client(trustme.CA()), ca), "unable to get local issuer"),
}


def test_kube_scheduler_schedules_over_mtls_and_others_are_rejected(
    api: Api, namespace: str, remote: Remote, scheduler: SchedulerFactory, tmp_path: Path
) -> None:
    """Each kube-scheduler has a pod of its own, which waits while its calls are rejected."""
    for number, (which, wrong) in enumerate(WRONG.items()):
        files, name = written(tmp_path / str(number), *wrong.made(remote.issued.ca)), f"wrong-{number}"
        process = scheduler({"extenders": [entry(remote.port, files)], "profiles": [{"schedulerName": name}]})
        api.create(builders.pod(name, namespace, gpus=2, scheduler=name))
        wait_for(partial(said, remote.process if wrong.ours else process, wrong.reason), 60, f"{which}: {wrong.reason}")
        wait_for(partial(said, process, "Error scheduling pod"), 60, f"{which}: it retries")
        assert not bound(api, name, namespace)
        process.kill()
    assert remote.metric(ANSWERED) == 0
    assert remote.metric("gpu_extender_handshakes_failed_total") >= len(WRONG)
    scheduler({"extenders": [entry(remote.port, remote.issued.client)], "profiles": [{"schedulerName": "right"}]})
    api.create(builders.pod("right", namespace, gpus=2, scheduler="right"))
    wait_for(lambda: bound(api, "right", namespace), 60, "the pod is bound")
    assert remote.metric(ANSWERED, verb="filter", result="ok") >= 1


def test_certificates_are_renewed_under_load_without_a_lost_call(
    api: Api, namespace: str, remote: Remote, scheduler: SchedulerFactory
) -> None:
    """kube-scheduler places pods on kept connections; two callers begin new ones all the time."""
    files: Files = remote.issued.client
    process = scheduler({"extenders": [entry(remote.port, files)]})
    asked = {"Pod": workload("asked", 1), "NodeNames": ["n1", "n2"]}
    callers = [caller(remote.port, remote.issued.ca, asked) for _ in range(2)]
    made = 0
    with callers[0].calling(), callers[1].calling():
        for renewal in range(1, 4):
            seen = [one.calls for one in callers]
            for _ in range(4):
                api.create(builders.pod(f"p{made}", namespace, gpus=1))
                made += 1
            remote.issued.renew()
            wait_for(partial(renewed, remote, callers, renewal), 60, "the new certificate is shown")
            assert all(one.calls > before for one, before in zip(callers, seen, strict=True))
        wait_for(lambda: all(bound(api, f"p{i}", namespace) for i in range(made)), 60, "all pods are bound")
    assert [one.failures for one in callers] == [[], []]
    assert remote.metric("gpu_extender_certificate_reads_total", result="failed") == 0
    page = parse_metrics(plain.get(f"{remote.plain}/metrics").text)
    assert [one for one in page if one.startswith(ANSWERED) and 'result="ok"' not in one] == []
    failed = [value for name, value in process.metrics().items() if name.startswith("scheduler_schedule_attempts_total")
              and 'result="error"' in name]  # fmt: skip
    assert sum(failed) == 0


@pytest.fixture
def installed(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Objects]:
    """The component `remote`, applied; its Secret is of the script's making."""
    admin = control_plane.kubeconfig()
    folder = overlay(tmp_path / "site", ("remote",))
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 60, "our namespace is gone")
    kubectl("apply", "-k", str(folder), kubeconfig=admin)
    made = Issued(tmp_path / "issued")
    files = {part: (made.server.cert.parent / part).read_text() for part in PARTS}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gpu-extender-tls", "namespace": SYSTEM},
              "stringData": files}  # fmt: skip
    yield [*built(folder), secret]
    kubectl("delete", "-k", str(folder), "--ignore-not-found", "--wait=false", kubeconfig=admin)


def scheduler_config(folder: Path, service: str) -> dict[str, Any]:
    """`kube-scheduler-config.sed` applied; `service` (HOST:PORT) is the Service; `folder` has the certificates."""
    script, config = MANIFESTS / "remote" / "kube-scheduler-config.sed", MANIFESTS / "kube-scheduler-config.yaml"
    text = subprocess.run(["sed", "-f", script, config], check=True, capture_output=True, text=True).stdout
    assert f"https://{NAME}:8443/" in text
    text = text.replace(f"https://{NAME}:8443/", f"https://{service}/")
    text = text.replace("/etc/kubernetes/kube-scheduler/", f"{folder}/")
    [made] = objects_in(text)
    return {**made, "leaderElection": {"leaderElect": False}}


def test_the_components_own_container_serves_kube_scheduler_and_prometheus(
    control_plane: ControlPlane,
    api: Api,
    namespace: str,
    installed: Objects,
    kubelets: KubeletsFactory,
    scheduler: SchedulerFactory,
    tmp_path: Path,
) -> None:
    """With its own arguments, account, rights and Secret. No request of it is denied."""
    containers_by_hand.needed()
    [pod] = [one for one in templates(installed) if one["metadata"]["name"] == "gpu-extender"]
    [container] = pod["spec"]["containers"]
    before = denied(control_plane)
    network = PodNetwork.of(control_plane)
    probe = partial(containers_by_hand.probe, container, enter=network.enter)
    process = containers_by_hand.start(control_plane, pod, container, installed, tmp_path, network.enter)
    try:
        process.start()
        wait_for(lambda: probe("startupProbe"), 60, "it has started")
        wait_for(lambda: probe("readinessProbe"), 60, "it is ready")
        assert probe("livenessProbe")
        kubelets().add_node("n1", topology="dgx-h100")
        scheduler(scheduler_config(tmp_path / "issued" / "client", network.forwarded(8443)))
        api.create(builders.pod("p", namespace, gpus=2, scheduler="gpu-scheduler"))
        wait_for(lambda: bound(api, "p", namespace), 60, "the pod is bound")
        assert denied(control_plane) == before
        _check_readers(control_plane, api, namespace, network)
    finally:
        process.stop()
        network.close()


def _check_readers(control_plane: ControlPlane, api: Api, namespace: str, network: PodNetwork) -> None:
    """Metrics are for tokens with the right; the page is on loopback; verbs need a certificate."""
    verbs, metrics, pages = (network.forwarded(port) for port in (8443, 8444, 8888))
    check_metrics(control_plane, api, namespace, metrics)
    assert plain.get(f"http://{pages}/debug/state").status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://{verbs}/healthz", verify=False, trust_env=False)


def test_pages_are_for_tokens_whose_user_may_list_the_pods(
    control_plane: ControlPlane, api: Api, namespace: str, kubelets: KubeletsFactory, extender_process: ExtenderFactory
) -> None:
    """With the role of manifests/reader.yaml: a tenant sees the verdict on its own pods, an operator every page."""
    kubelets().add_node("n1", topology="dgx-h100")
    port = free_port()
    extender_process({"server": {"debug": {"port": port, "authorize": True}}})
    admin = control_plane.kubeconfig()
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 60, "our namespace is gone")
    kubectl("create", "namespace", SYSTEM, kubeconfig=admin)
    kubectl("apply", "-f", str(MANIFESTS / "reader.yaml"), kubeconfig=admin)
    for name in ("tenant", "operator"):
        account = f"--serviceaccount={namespace}:{name}"
        kubectl("create", "serviceaccount", name, f"--namespace={namespace}", kubeconfig=admin)
        kubectl("create", "clusterrolebinding", f"{name}-{namespace}", "--clusterrole=gpu-extender-pages", account,
                kubeconfig=admin)  # fmt: skip
    tenant, operator = (f"--serviceaccount={namespace}:{name}" for name in ("tenant", "operator"))
    kubectl("create", "rolebinding", "view", "--clusterrole=view", tenant, f"--namespace={namespace}", kubeconfig=admin)
    kubectl("create", "clusterrolebinding", f"view-{namespace}", "--clusterrole=view", operator, kubeconfig=admin)
    try:
        api.create(builders.pod("p", namespace, gpus=2, scheduler="none"))
        own, other = f"/debug/explain?pod={namespace}/p", "/debug/explain?pod=default/p"
        with plain.client(base_url=f"http://127.0.0.1:{port}") as http:

            def asked(path: str, name: str) -> httpx.Response:
                return http.get(path, auth=("", control_plane.account_token(namespace, name)))

            wait_for(lambda: asked(own, "operator").status_code == 200, 60, "the rights count, and the pod is known")
            wait_for(lambda: asked(own, "tenant").status_code == 200, 60, "the tenant's too")
            assert [one["code"] for one in asked(own, "tenant").json()["warnings"]] == ["left-out"]
            assert asked(own, "operator").json()["sentence"]
            assert (asked(other, "tenant").status_code, asked(other, "operator").status_code) == (403, 404)
            assert (asked("/", "tenant").status_code, asked("/", "operator").status_code) == (403, 200)
            assert http.get("/").status_code == 401
    finally:
        kubectl("delete", "-f", str(MANIFESTS / "reader.yaml"), "--ignore-not-found", kubeconfig=admin)
        kubectl("delete", "namespace", SYSTEM, "--wait=false", kubeconfig=admin)
        names = [f"{name}-{namespace}" for name in ("tenant", "operator", "view")]
        kubectl("delete", "clusterrolebinding", *names, "--ignore-not-found", kubeconfig=admin)
