"""The manifests of claims-rewrite: valid against the API's schemas, and true to those of the queue and to the code."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest

from extender.kube import pod_writes
from extender.objects.queueing import GATE
from extender.sim.claims import DRIVER, claim
from tests.test_manifests import MANIFESTS, documents
from tests.test_queue_manifests import POLICY as QUEUE
from tests.test_queue_manifests import named

POLICY, BINDING = documents("claims-rewrite/policy.yaml")
TEMPLATES = documents("claims-rewrite/templates.yaml")
VARIABLES = {one["name"]: one["expression"] for one in POLICY["spec"]["variables"]}
[MUTATION] = POLICY["spec"]["mutations"]
PATCH = MUTATION["jsonPatch"]["expression"]


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("made", [POLICY, BINDING, *TEMPLATES], ids=lambda made: str(made["metadata"]["name"]))
def test_every_object_is_valid(made: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(made, release, strict=True)


def test_each_count_has_a_template_that_the_policy_names() -> None:
    """In no namespace of its own, of the DeviceClass that the queue can read, and as the simulated driver has them."""
    counts = [int(number) for number in re.findall(r"\d+", VARIABLES["counts"])]
    assert counts == [*range(1, 9), 16]
    [prefix] = {text for text in named(PATCH) + named(VARIABLES["taken"]) if text.startswith("gpu-extender-")}
    for count, template in zip(counts, TEMPLATES, strict=True):
        wanted = claim(f"{prefix}{count}", "", count, device_class=DRIVER, template=True)
        assert (template["kind"], template["spec"]) == (wanted["kind"], wanted["spec"])
        assert template["metadata"]["name"] == wanted["metadata"]["name"]
        assert "namespace" not in template["metadata"]


def test_the_policy_is_about_the_same_pods_as_that_of_the_queue() -> None:
    """A pod that it rewrites waits in the queue, and what switches the queue off ends it."""
    theirs = {one["name"]: one["expression"] for one in QUEUE["spec"]["variables"]}
    assert VARIABLES["schedulers"] == theirs["schedulers"]
    assert named(VARIABLES["resource"])[0] in named(theirs["gpus"])
    assert GATE in named(PATCH)
    ours, queue = POLICY["spec"], QUEUE["spec"]
    for field in ("failurePolicy", "reinvocationPolicy", "matchConditions"):
        assert ours[field] == queue[field]
    assert ours["matchConstraints"]["resourceRules"] == queue["matchConstraints"]["resourceRules"]
    selector, wanted = (spec["matchConstraints"]["namespaceSelector"] for spec in (ours, queue))
    assert selector["matchExpressions"] == wanted["matchExpressions"]
    assert selector["matchLabels"] == {**wanted["matchLabels"], "gpu-extender.io/claims": "enabled"}
    assert POLICY["metadata"]["name"] == BINDING["spec"]["policyName"] == pod_writes.POLICIES[1]


def test_templates_are_for_namespaces_and_not_of_the_component() -> None:
    [kustomization] = documents("claims-rewrite/kustomization.yaml")
    assert kustomization["resources"] == ["policy.yaml"]
    files = {path.name for path in (MANIFESTS / "claims-rewrite").iterdir()}
    assert files == {"kustomization.yaml", "policy.yaml", "templates.yaml"}
    assert "claims-rewrite/templates.yaml" in (MANIFESTS / ".helmignore").read_text().splitlines()
