"""Helm of the release in `helm/go.mod`, and what it makes of the chart in `manifests/`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.e2e.api import Object
from tests.e2e.build import build_helm
from tests.e2e.kustomize import MANIFESTS, printed


def helm(*words: str, kubeconfig: Path | None = None, stdin: str | None = None) -> str:
    """The output of one call. subprocess.CalledProcessError with what it printed."""
    return printed(build_helm(), words, kubeconfig, stdin)


def rendered(*words: str, chart: Path = MANIFESTS, values: str = "{}") -> str:
    """What `helm template` prints with these further words and values (YAML)."""
    return helm("template", "gpu-extender", str(chart), "--values=-", *words, stdin=values)


def components(names: Iterable[str]) -> list[str]:
    """The words that add these components."""
    return [f"--set=components.{name}=true" for name in names]


def by_name(text: str) -> dict[str, Object]:
    """The objects of a stream by KIND/NAMESPACE/NAME. ruamel.yaml would take minutes for all cases."""
    objects = [made for made in yaml.load_all(text, yaml.CSafeLoader) if made]
    named = {
        f"{made['kind']}/{made['metadata'].get('namespace', '')}/{made['metadata']['name']}": made for made in objects
    }
    assert len(named) == len(objects)
    return named
