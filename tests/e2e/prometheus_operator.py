"""The kinds of Prometheus Operator that our manifests use, by the CustomResourceDefinitions of its release.

They are files of its Go module, which `prometheusoperator/go.mod` names. The operator itself does not run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.build import cache_root, module_hash, once
from tests.e2e.kustomize import kubectl
from tests.waiting import wait_for

MODULE = Path(__file__).parent / "prometheusoperator"
NAME = "github.com/prometheus-operator/prometheus-operator"
KINDS = ("podmonitors", "prometheusrules")


def definitions(say: Callable[[str], None] = print) -> Path:
    """The folder with a definition of each kind; downloaded (4 MB) when it is not there yet."""

    def make(go: str, folder: Path) -> None:
        say(f"downloading the kinds of Prometheus Operator with {go}")
        done = subprocess.run(
            [go, "mod", "download", "-json", NAME], cwd=MODULE, check=True, capture_output=True, text=True
        )
        source = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
        folder.mkdir()
        for kind in KINDS:
            shutil.copyfile(source / f"monitoring.coreos.com_{kind}.yaml", folder / f"{kind}.yaml")

    home = cache_root() / "prometheusoperator" / module_hash("go.mod", MODULE)
    return once(home, "Prometheus Operator's module", say, make)


@contextlib.contextmanager
def served(kubeconfig: Path) -> Iterator[None]:
    """The API server knows the kinds; it forgets them in the end."""
    folder = str(definitions())
    kubectl("apply", "--server-side", "-f", folder, kubeconfig=kubeconfig)
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", folder, kubeconfig=kubeconfig)
    wait_for(lambda: _discovered(kubeconfig), 60, "the kinds are discovered")
    yield
    kubectl("delete", "-f", folder, kubeconfig=kubeconfig)


def _discovered(kubeconfig: Path) -> bool:
    """Whether kubectl finds the kinds, which the API server lists a moment after it serves them."""
    try:
        kubectl("get", ",".join(KINDS), "--all-namespaces", kubeconfig=kubeconfig)
    except subprocess.CalledProcessError:
        return False
    return True
