"""The account of the server and its rights, as the manifests state them, in a namespace of a test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane, parse_metrics
from tests.e2e.queueing import SYSTEM
from tests.yaml_text import objects_in

MANIFESTS = Path(__file__).parents[2] / "manifests"
_KINDS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
_DENIED = re.compile(r'authorization_attempts_total\{.*result="(denied|no-opinion)"')


def grant(api: Api, namespace: str, *files: str, accounts: bool = True) -> None:
    """Make what these manifests grant. Names of roles of the whole cluster get the namespace as their suffix.
    `accounts`: the accounts too."""
    for file in files:
        for made in objects_in(MANIFESTS / file):
            if made["kind"] == "ServiceAccount" and not accounts:
                continue
            if made["kind"] not in _KINDS or made["metadata"].get("namespace") == "kube-system":
                continue
            text = json.dumps(made).replace(f'"{SYSTEM}"', json.dumps(namespace))
            own: Object = json.loads(text)
            if made["kind"].startswith("Cluster"):
                own["metadata"]["name"] += f"-{namespace}"
                if made["roleRef"]["name"].startswith("gpu-extender") if "roleRef" in made else False:
                    own["roleRef"]["name"] += f"-{namespace}"
            api.create(own)


@contextmanager
def without(api: Api, namespace: str, name: str, resource: str) -> Iterator[None]:
    """A Role that `grant` has made, without the rules about a resource, until the block ends."""
    rules = api.get("Role", name, namespace)["rules"]
    left = [rule for rule in rules if resource not in rule["resources"]]
    assert left != rules
    api.patch("Role", name, {"rules": left}, namespace)
    yield
    api.patch("Role", name, {"rules": rules}, namespace)


def denied(control_plane: ControlPlane) -> float:
    """How many requests the API server has refused for want of rights, of all clients."""
    page = parse_metrics(control_plane.api.text("/metrics"))
    return sum(value for name, value in page.items() if _DENIED.match(name))
