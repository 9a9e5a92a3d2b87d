"""What is applied can be removed by the commands of docs/install.md and docs/queue.md, and nothing is left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from extender import cli
from tests.e2e.api import Api
from tests.e2e.build import release
from tests.e2e.cluster import ControlPlane
from tests.e2e.followed_page import sections
from tests.e2e.kustomize import MANIFESTS, kubectl, overlay
from tests.e2e.queueing import SYSTEM
from tests.installed import ROOT
from tests.waiting import wait_for

OURS = "app.kubernetes.io/name=gpu-extender"
KINDS = "clusterroles,clusterrolebindings,rolebindings,roles,validatingadmissionpolicies,configmaps,serviceaccounts"
POLICIES = "mutatingadmissionpolicies,mutatingadmissionpolicybindings"
REMOVAL = [
    step.command for step in sections(ROOT / "docs" / "install.md")["7. Removal"] if "kubectl delete" in step.command
]
QUEUE = "kubectl delete --ignore-not-found -k manifests/queue"


class Removed:
    """kubectl with the rights of an administrator, in a folder whose `site` is an overlay."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig, self.site = kubeconfig, folder / "site"

    def run(self, command: str) -> str:
        words = command.split()[1:]
        places = {"site": str(self.site), "manifests/queue": str(MANIFESTS / "queue")}
        return kubectl(*(places.get(word, word) for word in words), kubeconfig=self.kubeconfig)

    def left(self) -> list[str]:
        """What of ours exists, the namespace and what ends with it left out."""
        found = kubectl("get", self._kinds(), "-A", "-l", OURS, "-o", "name", kubeconfig=self.kubeconfig)
        return found.split()

    def begin(self) -> None:
        """Nothing of ours exists: other tests apply parts of it in kube-system."""
        kubectl("delete", self._kinds(), "-A", "-l", OURS, "--ignore-not-found", kubeconfig=self.kubeconfig)
        wait_for(lambda: not self.left(), 60, self.left)

    def _kinds(self) -> str:
        return f"{KINDS},{POLICIES}" if release() >= "1.36" else KINDS


@pytest.fixture
def removed(control_plane: ControlPlane, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Removed:
    # For hours kubectl remembers which kinds an API server has: other tests serve those of Prometheus for a while.
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl"))
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 120, "the namespace of the test before is gone")
    made = Removed(control_plane.kubeconfig(), tmp_path)
    made.begin()
    return made


def test_the_page_has_the_commands() -> None:
    assert len([command for command in REMOVAL if "pods" not in command]) == 2
    assert QUEUE in (ROOT / "docs" / "queue.md").read_text()


def remove(removed: Removed) -> None:
    for command in REMOVAL:
        if "pods" not in command:
            removed.run(command)


@pytest.mark.skipif(release() < "1.36", reason="MutatingAdmissionPolicy is not served")
def test_the_queue_is_removed_after_gates_off(removed: Removed) -> None:
    overlay(removed.site.parent / "site", ["queue"])
    removed.run("kubectl apply -k site")
    assert cli.main(["gates", "off", "--kubeconfig", str(removed.kubeconfig)]) == 0
    removed.run(QUEUE)
    assert [name for name in removed.left() if "queue" in name] == []
    remove(removed)
    assert removed.left() == []


def test_the_rights_of_readers_are_removed(removed: Removed) -> None:
    overlay(removed.site.parent / "site", [])
    removed.run("kubectl apply -k site")
    kubectl("apply", "-f", str(MANIFESTS / "reader.yaml"), kubeconfig=removed.kubeconfig)
    assert [name for name in removed.left() if name.endswith("gpu-extender-pages")]
    remove(removed)
    assert removed.left() == []


def test_monitoring_without_its_kinds_is_removed(removed: Removed) -> None:
    overlay(removed.site.parent / "site", ["monitoring"])
    with pytest.raises(subprocess.CalledProcessError) as error:
        removed.run("kubectl apply -k site")
    assert "no matches for kind" in error.value.stderr
    # As the page says: taken out of the overlay, then deleted.
    (removed.site / "kustomization.yaml").unlink()
    removed.site.rmdir()
    overlay(removed.site.parent / "site", [])
    with pytest.raises(subprocess.CalledProcessError) as error:
        kubectl("delete", "--ignore-not-found", "-k", str(MANIFESTS / "monitoring"), kubeconfig=removed.kubeconfig)
    assert all("not found" not in line or "mapping" in line for line in error.value.stderr.splitlines())
    remove(removed)
    assert removed.left() == []
