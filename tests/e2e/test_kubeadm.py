"""docs/install.md, its section on kubeadm: the commands on a control plane whose certificates kubeadm made.

kubeadm, kubectl and the control plane are real. A node's kubelet is played (`static_pods.py`): it runs the manifests as
processes with their own arguments and files of the node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Api, Object
from tests.e2e.build import DEFAULT_RELEASE, build_kubeadm, build_kubectl, release
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory
from tests.e2e.followed_page import Shell, Step, clone, sections
from tests.e2e.replicas import on_path
from tests.e2e.scraping import check_metrics
from tests.e2e.static_pods import StaticNode
from tests.installed import ROOT
from tests.needs import lacking
from tests.waiting import wait_for
from tests.yaml_text import objects_in

TITLE = "kubeadm: a static pod"
STEPS = sections(ROOT / "docs" / "install.md")[TITLE]
SCHEDULER = "kubeadm init phase control-plane scheduler"
WAY_BACK = next(at for at, step in enumerate(STEPS) if step.command == f"{SCHEDULER} --config=kubeadm.yaml")
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
NO_PROXY = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
"""kubeadm writes the proxies of its environment into manifests."""
CONFIGURATION = """\
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v%s
certificatesDir: %s
controlPlaneEndpoint: %s
apiServer: {certSANs: [127.0.0.1]}
"""


@pytest.fixture(scope="module")
def kubeadm() -> Path:
    containers_by_hand.needed()
    if missing := [name for name in ("curl", "ip") if shutil.which(name) is None]:
        lacking(f"not installed: {', '.join(missing)} (the Debian packages curl and iproute2)")
    if release() != DEFAULT_RELEASE:
        pytest.skip(f"kubeadm is built for {DEFAULT_RELEASE} alone")
    return build_kubeadm()


@pytest.fixture(scope="module")
def control_plane(binaries: Path, kubeadm: Path) -> Iterator[ControlPlane]:
    """One of this file alone: kubeadm made its CA and the API server's certificate. The API server knows users by
    client certificates of that CA."""
    running = ControlPlane(binaries)
    folder = running.ca.parent
    file = running.folder / "kubeadm.yaml"
    file.write_text(CONFIGURATION % (DEFAULT_RELEASE, folder, running.url.removeprefix("https://")))
    for name in ("ca", "apiserver"):  # the API server takes both of these from its --cert-dir
        subprocess.run([str(kubeadm), "init", "phase", "certs", name, f"--config={file}"], check=True, timeout=60)
    running.ca = folder / "ca.crt"
    running.apiserver.argv.append(f"--client-ca-file={running.ca}")
    with running:
        yield running


@pytest.fixture
def node(control_plane: ControlPlane, api: Api, kubeadm: Path, tmp_path: Path) -> Iterator[StaticNode]:
    """A node as `kubeadm init` leaves it: scheduler.conf, kube-scheduler's manifest, the cluster's configuration."""
    file = control_plane.folder / "kubeadm.yaml"
    with StaticNode(control_plane, tmp_path / "node") as node:
        folder = node.etc / "kubernetes"

        def run(*words: str) -> str:
            return subprocess.run(
                [*node.enter, str(kubeadm), *words, f"--config={file}"],
                check=True, stdout=subprocess.PIPE, text=True, timeout=60, env=NO_PROXY,
            ).stdout  # fmt: skip

        (folder / "scheduler.conf").write_text(run("kubeconfig", "user", "--client-name=system:kube-scheduler"))
        run(*SCHEDULER.split()[1:])
        run("init", "phase", "upload-config", "kubeadm", f"--kubeconfig={control_plane.kubeconfig()}")
        yield node


@pytest.fixture
def shell(node: StaticNode, control_plane: ControlPlane, kubeadm: Path, tmp_path: Path) -> Iterator[Shell]:
    """On the node, in a clone."""
    programs, files = tmp_path / "programs", tmp_path / "shell"
    programs.mkdir()
    files.mkdir()
    path = on_path(programs, build_kubectl())
    (programs / "kubeadm").symlink_to(kubeadm)
    env = {
        "PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(control_plane.kubeconfig()),
        "PYTHONPATH": str(ROOT), "LANG": os.environ.get("LANG", "C.UTF-8"),
    }  # fmt: skip
    with Shell(clone(tmp_path / "clone"), files, env, node.enter) as shell:
        yield shell


def manifest(node: StaticNode, name: str) -> Object:
    made: Object = objects_in(node.manifests / f"{name}.yaml")[0]
    return made


def follow(shell: Shell, steps: list[Step]) -> None:
    for step in steps:
        shell.follow(step)


def gpu_pod(api: Api, name: str) -> Object:
    return api.create(builders.pod(name, gpus=1, tolerations=[{"operator": "Exists"}]))


def wait_until_bound(api: Api, name: str) -> None:
    wait_for(lambda: api.get("Pod", name, "default")["spec"].get("nodeName") == "gpu-1", 90, f"{name} is bound")


def error_of(api: Api, name: str) -> str:
    """What kube-scheduler states about a pod that it could not schedule."""
    conditions = api.get("Pod", name, "default")["status"].get("conditions", ())
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


def test_the_section_from_the_rights_to_the_way_back(
    control_plane: ControlPlane, api: Api, kubelets: KubeletsFactory, node: StaticNode, shell: Shell
) -> None:
    kubelets().add_node("gpu-1", topology="dgx-h100", taints=[TAINT])
    before = manifest(node, "kube-scheduler")
    gpu_pod(api, "before")
    wait_until_bound(api, "before")

    follow(shell, STEPS[:WAY_BACK])
    assert node.users("gpu-extender") == {manifest(node, "gpu-extender")["spec"]["securityContext"]["runAsUser"]}
    assert (node.etc / "kubernetes" / "gpu-extender" / "kubeconfig").stat().st_mode & 0o777 == 0o600
    check_metrics(control_plane, api, "default", node.forwarded(8444))

    ours = node.manifests / "gpu-extender.yaml"
    away = ours.rename(ours.with_suffix(".away"))
    wait_for(lambda: not node.users("gpu-extender"), 30, "gpu-extender has ended")
    gpu_pod(api, "waits")
    wait_for(lambda: "/v1/filter" in error_of(api, "waits"), 60, lambda: error_of(api, "waits"))
    away.rename(ours)
    wait_until_bound(api, "waits")

    follow(shell, STEPS[WAY_BACK:])
    assert manifest(node, "kube-scheduler") == before
    gpu_pod(api, "after")
    wait_until_bound(api, "after")
