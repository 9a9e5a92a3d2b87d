"""`kubectl` of the release under test, and what it builds of `manifests/`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.e2e.api import Object, Objects
from tests.e2e.build import build_kubectl
from tests.yaml_text import objects_in

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMPONENTS = tuple(
    sorted(path.parent.name for path in MANIFESTS.glob("*/kustomization.yaml") if "kind: Component" in path.read_text())
)
"""The folders that an overlay can add to the second scheduler."""
FORMS = ("kubeadm", "remote")
"""Those that replace it: one of them, after all that only add objects."""


def kubectl(*words: str, kubeconfig: Path | None = None, stdin: str | None = None) -> str:
    """The output of one call. subprocess.CalledProcessError with what it printed."""
    return printed(build_kubectl() / "kubectl", words, kubeconfig, stdin)


def printed(program: Path, words: Sequence[str], kubeconfig: Path | None = None, stdin: str | None = None) -> str:
    """What a program prints that reads a kubeconfig. subprocess.CalledProcessError with what it printed."""
    done = subprocess.run(
        [str(program), *words],
        env={**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)},
        input=stdin, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
    return done.stdout


def built(folder: Path) -> Objects:
    """The objects of a kustomization, in the order of `kubectl apply -k`."""
    return objects_in(kubectl("kustomize", str(folder)))


def overlay(folder: Path, components: Sequence[str], base: str = "") -> Path:
    """An overlay in a new folder, as docs/install.md describes it: the second scheduler with these components, or what
    the folder `base` of manifests/ makes."""
    folder.mkdir()
    names = [os.path.relpath(MANIFESTS / name, folder) for name in (base, *components)]
    lines = ["resources:", f"- {names[0]}", *(["components:"] if components else []), *(f"- {n}" for n in names[1:])]
    (folder / "kustomization.yaml").write_text("\n".join(lines) + "\n")
    return folder


def templates(objects: Iterable[Object]) -> Objects:
    """The pods that the workloads among these objects make, as their controllers would create them."""
    found = []
    for made in objects:
        spec = made.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template and made["kind"] in ("Deployment", "DaemonSet", "CronJob"):
            meta = {
                **template["metadata"],
                "name": made["metadata"]["name"],
                "namespace": made["metadata"]["namespace"],
            }
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})
    return found
