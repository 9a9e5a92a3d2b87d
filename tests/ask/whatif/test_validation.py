"""What the API server would not write is left out by name, with its reason; the rest of the question is answered."""

from __future__ import annotations

from typing import Any

import pytest

from extender.ask.whatif import question
from extender.ask.whatif.question import Document
from extender.errors import BadCluster
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node
from tests.world import GPU, JSON


def pod(name: str = "p", *containers: JSON, **spec: Any) -> JSON:
    listed = list(containers) or [{"name": "c", "resources": {"limits": {GPU: 1}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": listed, **spec}}


def asking(**resources: Any) -> JSON:
    return {"name": "c", "resources": resources}


def request(**stated: Any) -> JSON:
    return {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", **stated}}]}}


def claim(spec: JSON) -> JSON:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}


def deployment(labels: JSON, **spec: Any) -> JSON:
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    return {**made, "spec": {"template": template, **spec}}


CLAIM = {"name": "g", "resourceClaimName": "x"}
ONE_OF = "must be one of the names in pod.spec.resourceClaims"
REFUSED: dict[str, JSON] = {
    "resources.requests: Invalid value: 1: must be equal to nvidia.com/gpu limit of 2": pod(
        "x", asking(requests={GPU: 1}, limits={GPU: 2})
    ),
    "limits: Required value: Limit must be set for non overcommitable resources": pod("x", asking(requests={GPU: 1})),
    "less than or equal to cpu limit of 500m": pod("x", asking(requests={"cpu": 2}, limits={"cpu": "500m"})),
    "not a whole number: 0.5": pod("x", asking(limits={GPU: 0.5})),
    "negative quantity": pod("x", asking(limits={GPU: -1})),
    'limits[gpu]: Invalid value: "gpu": must be a standard resource': pod("x", asking(limits={"gpu": 1})),
    f'claims[0]: Not found: "g": {ONE_OF} which is empty': pod("x", asking(claims=[{"name": "g"}])),
    f'claims[0]: Not found: "h": {ONE_OF}: g': pod("x", asking(claims=[{"name": "h"}]), resourceClaims=[CLAIM]),
    "resourceClaims[0]: Invalid value: ": pod("x", resourceClaims=[{"name": "g"}]),
    "at most one of": pod("x", resourceClaims=[{**CLAIM, "resourceClaimTemplateName": "t"}]),
    'resourceClaims[1].name: Duplicate value: "g"': pod("x", resourceClaims=[CLAIM, CLAIM]),
    'containers[1].name: Duplicate value: "c"': pod("x", asking(), asking()),
    "spec.containers: Required value": pod("x") | {"spec": {"containers": []}},
    "requests[0].exactly.count: Invalid value: -3: must be greater than zero": claim(request(count=-3)),
    "must not be specified when allocationMode is 'All'": claim(request(count=2, allocationMode="All")),
    'allocationMode: Unsupported value: "Some"': claim(request(allocationMode="Some")),
    "exactly.deviceClassName: Required value": claim(request(deviceClassName="")),
    "exactly one of `exactly` or `firstAvailable` is required": claim({"devices": {"requests": [{"name": "g"}]}}),
    "must be the name of a request": claim({"devices": {**request()["devices"], "constraints": [{"requests": ["h"]}]}}),
    "`selector` does not match template `labels`": deployment({"app": "b"}, selector={"matchLabels": {"app": "a"}}),
    "-1 is not a number of pods": deployment({}, replicas=-1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_it_is_left_out_by_name_and_the_rest_is_answered(why: str) -> None:
    refused = REFUSED[why]
    answer = ask([node("n1")], [refused, pod("other")])
    assert [result["pod"]["name"] for result in answer["results"]] == ["other"]
    (warning,) = [warning["message"] for warning in answer["warnings"] if warning["code"] == "object-left-out"]
    assert warning.startswith(f"{refused['kind']} default/x is left out: ")
    assert why in warning


def test_alone_it_is_an_error_with_its_place() -> None:
    refused = pod("x", asking(requests={GPU: 1}, limits={GPU: 2}))
    with pytest.raises(BadCluster, match=r"must be equal to") as raised:
        question.read([Document(refused, "f: items[0]")], frozenset({GPU}))
    assert raised.value.path == "f: items[0].spec.containers[0].resources.requests"


VALID: list[JSON] = [
    pod("x", asking(requests={GPU: "2", "cpu": "500m"}, limits={GPU: 2, "cpu": "1"})),
    pod("x", asking(requests={"cpu": "9"}, limits={GPU: 1})),
    deployment({"app": "a", "more": "b"}, selector={"matchLabels": {"app": "a"}}),
    deployment({"app": "a"}),
]


@pytest.mark.parametrize("valid", VALID)
def test_what_it_would_write_is_answered(valid: JSON) -> None:
    answer = ask([node("n1")], [valid])
    assert not [warning for warning in answer["warnings"] if warning["code"] == "object-left-out"]


# -- RuntimeClass


def test_the_runtime_class_of_the_question_counts() -> None:
    nodes = [node("a"), node("b", labels={"kata": "yes"}), node("c", labels={"kata": "yes"})]
    nodes[1]["spec"] = {"taints": [{"key": "kata", "effect": "NoSchedule"}, {"key": "down", "effect": "NoSchedule"}]}
    nodes[2]["spec"] = {"taints": [{"key": "kata", "effect": "NoSchedule"}]}
    scheduling = {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]}
    stated: JSON = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}}
    stated |= {"handler": "h", "scheduling": scheduling, "overhead": {"podFixed": {"cpu": "1"}}}
    owner = deployment({})
    owner["spec"]["template"]["spec"] = pod(runtimeClassName="kata")["spec"]
    asked = [stated, pod(runtimeClassName="kata"), owner]
    answer = ask(nodes, asked)
    assert [result["node"] for result in answer["results"]] == ["c", "c"]
    assert not [warning for warning in answer["warnings"] if warning["code"] == "not-all-checked"]
    stated["overhead"]["podFixed"]["cpu"] = "1000"
    assert {result["verdict"] for result in ask(nodes, asked)["results"]} == {"cannot"}


def test_a_runtime_class_that_is_not_in_the_question_is_named() -> None:
    answer = ask([node("a")], [pod(runtimeClassName="nvidia")])
    assert [result["not_checked"] for result in answer["results"]] == [["RuntimeClass nvidia"]]
