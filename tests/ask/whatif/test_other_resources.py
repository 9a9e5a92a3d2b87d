"""Resources besides CPU, memory, pod slots and GPUs: counted by amounts, for one pod, a gang and an eviction."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from extender.errors import BadInput
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node, pod, running
from tests.world import JSON

EFA, RDMA, PAGES, DISK = "vpc.amazonaws.com/efa", "rdma/hca", "hugepages-2Mi", "ephemeral-storage"


def offering(name: str, **amounts: Any) -> JSON:
    """A node with 8 GPUs that offers `amounts`, by the names of the resources in capitals."""
    made = node(name)
    made["status"]["allocatable"] |= {globals()[key]: str(amount) for key, amount in amounts.items()}
    return made


def asking(made: JSON, **amounts: Any) -> JSON:
    resources = made["spec"]["containers"][0].setdefault("resources", {})
    resources.setdefault("limits", {}).update({globals()[key]: str(amount) for key, amount in amounts.items()})
    return made


def nodes_of(answer: JSON) -> list[str | None]:
    return [result["node"] for result in answer["results"]]


def test_pods_take_what_nodes_offer_until_it_is_taken() -> None:
    cluster = [offering("a", EFA=32), offering("b", EFA=16), offering("c")]
    answer = ask(cluster, [asking(pod(f"p{i}", 1), EFA=16) for i in range(4)])
    assert Counter(nodes_of(answer)) == {"a": 2, "b": 1, None: 1}
    last = answer["results"][-1]
    assert last["reasons"] == {"too-little-of-another-resource": 3}
    assert last["nearest"]["missing"] == [{"what": EFA, "have": 0, "need": 16, "unit": "units"}]
    assert all(result["not_checked"] == [] for result in answer["results"])


@pytest.mark.parametrize(("resource", "has", "wants"), [("PAGES", "4Gi", "3Gi"), ("DISK", "100Gi", "60Gi")])
def test_bytes_of_huge_pages_and_disks_count_too(resource: str, has: str, wants: str) -> None:
    answer = ask([offering("a", **{resource: has})], [asking(pod(f"p{i}", 1), **{resource: wants}) for i in (0, 1)])
    assert nodes_of(answer) == ["a", None]


def test_running_pods_count_until_they_have_ended() -> None:
    holder = asking(running("r", "a", [0], priority=0), EFA=32)
    ended = asking(running("e", "b", [0]), EFA=32) | {"status": {"phase": "Succeeded"}}
    cluster = [offering("a", EFA=32), offering("b", EFA=32), holder, ended]
    assert nodes_of(ask(cluster, [asking(pod("p", 1, priority=0), EFA=1)])) == ["b"]


def test_an_eviction_frees_them() -> None:
    """The GPUs are free; of the two pods the one that holds the interfaces is evicted."""
    cluster = [
        offering("a", EFA=32),
        asking(running("with", "a", [0], priority=0), EFA=32),
        running("without", "a", [1], priority=0),
    ]
    (result,) = ask(cluster, [asking(pod("p", 1, priority=9), EFA=8)])["results"]
    assert (result["verdict"], [victim["name"] for victim in result["victims"]]) == ("evict", ["with"])
    cluster[1]["spec"]["priority"] = 9
    (result,) = ask(cluster, [asking(pod("p", 1, priority=9), EFA=8)])["results"]
    assert (result["verdict"], result["victims"]) == ("cannot", [])


def gang(size: int, **amounts: Any) -> list[JSON]:
    note = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": str(size)}
    return [asking(pod(f"g{i}", 1, priority=9, annotations=note), **amounts) for i in range(size)]


def test_a_gang_is_placed_by_them_as_a_whole() -> None:
    cluster = [offering("a", EFA=2, RDMA=9), offering("b", EFA=1, RDMA=9)]
    answer = ask(cluster, gang(3, EFA=1, RDMA=2))
    assert Counter(nodes_of(answer)) == {"a": 2, "b": 1}
    assert nodes_of(ask(cluster, gang(4, EFA=1, RDMA=2))) == [None] * 4


def test_pods_are_evicted_for_a_gang_that_lacks_them() -> None:
    cluster = [
        offering("a", EFA=2),
        asking(running("with", "a", [0], priority=0), EFA=1),
        running("without", "a", [1], priority=0),
    ]
    answer = ask(cluster, gang(2, EFA=1))
    (group,) = answer["groups"]
    assert (group["verdict"], [victim["name"] for victim in group["victims"]]) == ("evict", ["with"])


def test_what_a_device_class_serves_is_named_and_not_counted() -> None:
    served = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nics"},
        "spec": {"extendedResourceName": RDMA},
    }  # fmt: skip
    answer = ask([node("a"), served], [asking(pod("p", 1), RDMA=1)])
    (result,) = answer["results"]
    assert (result["verdict"], result["not_checked"]) == ("fits", [f"resource {RDMA}"])


@pytest.mark.parametrize("together", [False, True])
def test_random_pods_are_placed_within_what_is_offered(together: bool) -> None:
    """No node gives more than it has; and a pod alone that finds no node would fit on none."""
    for seed in range(12):
        rng = Random(seed)
        has = {name: {"EFA": rng.choice([0, 2, 4]), "PAGES": rng.choice([0, 3, 6])} for name in "abc"}
        wants = [{"EFA": rng.choice([0, 1, 2]), "PAGES": rng.choice([0, 1, 3])} for _ in range(5)]
        note = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "5"} if together else {}
        pods = [asking(pod(f"p{i}", 1, annotations=note), **amounts) for i, amounts in enumerate(wants)]
        chosen = nodes_of(ask([offering(name, **amounts) for name, amounts in has.items()], pods))
        for on, amounts in zip(chosen, wants, strict=True):
            if on is None and not together:
                assert all(any(left[key] < amounts[key] for key in amounts) for left in has.values())
            if on is None:
                continue
            for key, amount in amounts.items():
                has[on][key] -= amount
                assert has[on][key] >= 0


def refused(answer: Any, *args: Any) -> str:
    with pytest.raises(BadInput) as caught:
        answer(*args)
    return str(caught.value)


def claiming(device_class: str) -> list[JSON]:
    """A pod with a claim of its own, and what it names."""
    template = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}}},
    }  # fmt: skip
    spec = {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}]}
    return [pod("p", 0, spec=spec), template]


@pytest.mark.parametrize("name", ["dra.net", "dra.cpu", "compute-domain-default-channel.nvidia.com"])
def test_a_pod_that_asks_for_other_devices_by_claims_is_not_ours(name: str) -> None:
    asked, template = claiming(name)
    selector = {"cel": {"expression": f"device.driver == '{name}'"}}
    of_devices = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }  # fmt: skip
    text = refused(ask, [node("a"), template, of_devices], [asked])
    assert f"it is not ours: it asks for devices of DeviceClass {name}, which do not count as GPUs" in text


def test_a_pod_that_asks_for_other_resources_is_not_ours() -> None:
    assert f"it is not ours: it asks for {RDMA}, which do not" in refused(
        ask, [node("a")], [asking(pod("p", 0), RDMA=1)]
    )
    assert "it asks for no GPU" in refused(ask, [node("a")], [asking(pod("p", 0), DISK="1Gi")])
    answer = ask([node("a")], [asking(pod("p", 0), RDMA=1), pod("q", 1)])
    assert [result["pod"]["name"] for result in answer["results"]] == ["q"]
    assert any(warning["code"] == "not-ours" and RDMA in warning["message"] for warning in answer["warnings"])


@pytest.mark.parametrize("name", ["gpu-fraction", "gpu-memory"])
def test_a_part_of_a_gpu_that_another_scheduler_gives_is_named(name: str) -> None:
    """KAI and run:ai read annotations; the pod asks for CPU and memory alone."""
    part = pod("part", 0, annotations={name: "0.5"})
    text = f"it asks another scheduler for a part of a GPU, by the annotation {name}"
    assert f"it is not ours: {text}" in refused(ask, [node("a")], [part])
    answer = ask([node("a")], [part, pod("q", 1)])
    (warning,) = [warning for warning in answer["warnings"] if warning["code"] == "not-ours"]
    assert warning["message"] == f"pod default/part: it is not ours: {text}; that scheduler places it"
    (result,) = ask([node("a")], [pod("both", 1, annotations={name: "0.5"})])["results"]
    assert f"a part of a GPU by the annotation {name}" in result["not_checked"]


@pytest.mark.parametrize("planned", [{}, {"gpu-extender.io/gpus": "0,1"}])
def test_what_a_nominated_pod_will_take_is_taken(planned: JSON) -> None:
    """For pods of its priority and below; and for a gang whose first pod asks for nothing of it."""
    nominated = asking(pod("n", 2, priority=5, nominated="a", annotations=planned), EFA=32)
    cluster = [offering("a", EFA=32), nominated]
    asked = asking(pod("p", 1, priority=5), EFA=8)
    (result,) = ask(cluster, [asked])["results"]
    assert (result["verdict"], result["reasons"]) == ("cannot", {"too-little-of-another-resource": 1})
    asked["spec"]["priority"] = 6
    assert nodes_of(ask(cluster, [asked])) == ["a"]
    note = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    pair = [pod("g0", 1, priority=5, annotations=note), asking(pod("g1", 1, priority=5, annotations=note), EFA=8)]
    assert nodes_of(ask(cluster, pair)) == [None, None]
    assert nodes_of(ask(cluster[:1], pair)) == ["a", "a"]


def test_a_pod_of_very_many_resources_is_read_within_bounds() -> None:
    asked = pod("p", 1)
    limits = asked["spec"]["containers"][0]["resources"]["limits"]
    limits.update({f"example.com/r{number:04}": "1" for number in range(3000)})
    (result,) = ask([node("a"), node("b")], [asked])["results"]
    assert (result["verdict"], len(result["not_checked"])) == ("cannot", 64)
    assert result["reasons"] == {"too-little-of-another-resource": 2}
