"""docs/install.md, word by word: its commands on the real control plane, each with its check.

The clone is a copy of the tracked files. kubectl, Helm, the API server, the controllers and kube-scheduler are real;
the pods of our manifests run as processes (`pod_runner.py`), and the GPU node is simulated. `docker` alone is not run:
`test_dist.py` builds and runs the image's root file system by the steps of the Dockerfile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e import builders, containers_by_hand
from tests.e2e.api import Api
from tests.e2e.audit import requests
from tests.e2e.build import build_helm, build_kubectl
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory, SchedulerFactory
from tests.e2e.followed_page import Shell, clone, sections
from tests.e2e.helm_chart import helm
from tests.e2e.kustomize import kubectl
from tests.e2e.pod_network import PodNetwork
from tests.e2e.pod_runner import PodRunner
from tests.e2e.queueing import SYSTEM
from tests.e2e.replicas import on_path
from tests.installed import ROOT
from tests.waiting import wait_for

PAGE = sections(ROOT / "docs" / "install.md")
STEPS = [title for title in PAGE if title[:1].isdigit()]
HELM = "Helm instead of kustomize"
NOT_RUN = ("docker",)
ACCOUNT = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
LEFT = "rolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
"""What a test that fails leaves behind, and the cleaning of the cluster does not remove."""
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


class Reader:
    """Follows the page in one shell."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def follow(self, title: str) -> None:
        """All commands below this heading."""
        for step in PAGE[title]:
            if not step.command.startswith(NOT_RUN):
                self._shell.follow(step)


@pytest.fixture
def reader(
    control_plane: ControlPlane,
    api: Api,
    kubelets: KubeletsFactory,
    scheduler: SchedulerFactory,
    tmp_path: Path,
) -> Iterator[Reader]:
    """A control plane as kubeadm makes one: its own kube-scheduler, a node for the pods of the system, a GPU node."""
    containers_by_hand.needed()
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 120, "the namespace of the test before is gone")
    programs, files = tmp_path / "programs", tmp_path / "shell"
    programs.mkdir()
    files.mkdir()
    path = on_path(programs, build_kubectl())
    (programs / "helm").symlink_to(build_helm())
    kubelets().add_node("gpu-1", topology="dgx-h100", taints=[TAINT])
    scheduler({})
    kubeconfig = control_plane.kubeconfig()
    env = {
        "PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig),
        "NO_PROXY": "127.0.0.1,localhost", "PYTHONPATH": str(ROOT), "LANG": os.environ.get("LANG", "C.UTF-8"),
    }  # fmt: skip
    # The page takes port 8888 and others of its machine, which may be in use here: the shell has its own loopback.
    with (
        closing(PodNetwork.of(control_plane)) as network,
        PodRunner(control_plane, tmp_path / "pods"),
        Shell(clone(tmp_path / "clone"), files, env, network.enter) as shell,
    ):
        yield Reader(shell)
    helm("uninstall", "gpu-extender", "--namespace=default", "--ignore-not-found", kubeconfig=kubeconfig)
    kubectl("delete", LEFT, "--all-namespaces", "--selector=app.kubernetes.io/name=gpu-extender", kubeconfig=kubeconfig)


def test_every_step_has_a_check() -> None:
    assert len(STEPS) == 7
    assert [title for title in [*STEPS, HELM] if not any(step.check is not None for step in PAGE[title])] == []


def test_the_page_from_shadow_mode_to_removal(reader: Reader, control_plane: ControlPlane, api: Api) -> None:
    image, versions, shadow, components, scheduling, evictions, removal = STEPS
    for title in ("", image, versions):
        reader.follow(title)
    api.create(builders.pod("before-us", gpus=1, tolerations=[{"operator": "Exists"}]))
    reader.follow(shadow)
    before = len(control_plane.audited(ACCOUNT))
    for title in (components, scheduling):
        reader.follow(title)
    assert api.get("Pod", "gpu-pod", "default")["spec"]["nodeName"] == "gpu-1"
    asked = requests(control_plane, ACCOUNT, before)
    assert asked
    assert [one for one in asked if not one.allowed] == []
    reader.follow(evictions)  # its way back, too, takes rights from pods that terminate
    reader.follow(removal)  # the rights end while the pods terminate
    assert api.get("Pod", "before-us", "default")["status"]["phase"] == "Running"


def test_the_page_with_helm(reader: Reader) -> None:
    for title in STEPS[:2]:
        reader.follow(title)
    reader.follow(HELM)
