"""The manifests of the queue on the real API server, without a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.objects.queueing import GATE
from tests.e2e import builders
from tests.e2e.api import Api, Object, Objects, path_of
from tests.e2e.build import release
from tests.waiting import wait_for
from tests.yaml_text import objects_in

MANIFESTS = Path(__file__).parents[2] / "manifests" / "queue"
SYSTEM = "gpu-extender-system"
SCHEDULER = "gpu-scheduler"
LABEL = {"gpu-extender.io/queueing": "enabled"}
GATED = [GATE]


def objects() -> Objects:
    """What `kubectl apply -k manifests/queue` makes, in its order."""
    [kustomization] = objects_in(MANIFESTS / "kustomization.yaml")
    return [made for name in kustomization["resources"] for made in objects_in(MANIFESTS / name)]


@contextmanager
def installed(api: Api) -> Iterator[None]:
    """The manifests applied, and the account of the server; taken away in the end. Skips where the release lacks what
    they are."""
    if release() < "1.36":
        pytest.skip("before 1.36 MutatingAdmissionPolicy is not served by default")
    # The namespace of the test before takes the controller seconds to end.
    wait_for(lambda: api.find("Namespace", SYSTEM) is None, 120, "the namespace is gone")
    api.create(builders.namespace(SYSTEM))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SCHEDULER, "namespace": SYSTEM}}
    api.create(account)
    made = objects()
    try:
        for one in made:
            api.create(one)
        yield
    finally:
        for one in made:
            if "namespace" not in one["metadata"] and api.find(one["kind"], one["metadata"]["name"]):
                api.delete(one["kind"], one["metadata"]["name"])


def queued_namespace(api: Api, annotations: dict[str, str] | None = None) -> str:
    """A namespace with the label, in which the policy is at work."""
    meta = {"generateName": "queued-", "labels": LABEL, "annotations": annotations or {}}
    name = str(api.create({**builders.namespace(""), "metadata": meta})["metadata"]["name"])
    # A policy takes the API server a moment to see.
    wait_for(lambda: gates(tried(api, pod("probe", name))) == GATED, 60, "the policy adds the gate")
    return name


def pod(name: str, namespace: str, gpus: int = 1, **more: Any) -> Object:
    """A pod of the scheduler that asks us."""
    return builders.pod(name, namespace, gpus, **{"scheduler": SCHEDULER, "grace": 0, **more})


def tried(api: Api, wanted: Object) -> Object:
    """What the API server would make of it; nothing is stored."""
    path = path_of(wanted["kind"], namespace=wanted["metadata"]["namespace"])
    return api.request("POST", path, wanted, params={"dryRun": "All"})


def gates(made: Object) -> list[str]:
    """The names of the pod's gates."""
    return [gate["name"] for gate in made["spec"].get("schedulingGates", ())]


def refusal(call: Any, *args: Any, **named: Any) -> str:
    """Why the API server refuses the call; "" when it does not."""
    try:
        call(*args, **named)
    except ApiError as error:
        return str(error)
    return ""


def other_policy(expression: str) -> Objects:
    """A policy of another author, and its binding: it changes new pods with the label gpus-by=policy. `expression`: its
    ApplyConfiguration, in CEL."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "reinvocationPolicy": "Never",
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "objectSelector": {"matchLabels": {"gpus-by": "policy"}}},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }
    meta = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "gpus"}}
    return [
        {**meta, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**meta, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "gpus"}},
    ]
