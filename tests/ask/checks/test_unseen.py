"""check: node labels that look like levels of the topology."""

from __future__ import annotations

import pytest

from extender.objects.queueing import Domain
from extender.queue.levels import looks_like_level
from tests.ask.asking import findings
from tests.ask.checks.test_check import checked, node
from tests.queue.drawn import Case, gang
from tests.world import JSON, machine, workload

DOCUMENTED = "topology.kubernetes.io/rack"
CLOUD = "cloud.provider.com/topology-rack"


def labelled(name: str, key: str, value: str) -> JSON:
    made: JSON = {"kind": "Node"} | machine(name, 8)
    made["metadata"].setdefault("labels", {})[key] = value
    return made


def racks(key: str) -> list[JSON]:
    """Node a alone in rack one with room for one pod of 8; b and c share rack two."""
    return [labelled("a", key, "one"), labelled("b", key, "two"), labelled("c", key, "two")]


def test_the_documented_label_is_the_level_rack() -> None:
    """The label that guides tell people to write so that training pods stay together."""
    placed = Case(racks(DOCUMENTED), [], gang(2, 8), None).placed()
    assert (sorted(placed.nodes), placed.domain) == (["b", "c"], (DOCUMENTED, "two"))
    none = Case(racks(DOCUMENTED), [], gang(3, 8), Domain("rack", True)).place()
    assert getattr(none, "text", "") == f"2 of 3 pods fit now in {DOCUMENTED}=two, the domain that takes most"


def test_of_two_labels_for_racks_that_of_the_cloud_counts() -> None:
    nodes = racks(DOCUMENTED)
    for one, value in zip(nodes, ("x", "x", "y"), strict=True):
        one["metadata"]["labels"][CLOUD] = value
    placed = Case(nodes, [], gang(2, 8), Domain("rack", True)).placed()
    assert (sorted(placed.nodes), placed.domain) == (["a", "b"], (CLOUD, "x"))
    del nodes[2]["metadata"]["labels"][CLOUD]  # a node that has the other one alone is in a rack, too
    none = Case(nodes, [], gang(3, 8), Domain("rack", True)).place()
    assert getattr(none, "most", None) == 2


def test_a_label_that_looks_like_a_level_is_reported() -> None:
    (finding,) = [one for one in checked(*racks("example.com/rack"))["findings"] if "level" in one["code"]]
    assert (finding["code"], finding["about"], finding["facts"]) == (
        "label-not-a-level", "label/example.com/rack", {"nodes": 3},
    )  # fmt: skip
    assert "topologyLevels" in finding["remedy"]
    assert not [one for one in checked(*racks(DOCUMENTED))["findings"] if "level" in one["code"]]
    none = Case(racks("example.com/rack"), [], gang(2, 8), Domain("rack", True)).place()
    assert getattr(none, "text", "") == (
        "no node that may be chosen is in a domain of level rack: nodes have example.com/rack, which topologyLevels of "
        "the settings does not list"
    )


@pytest.mark.parametrize(("way", "effect"), [("required", "cannot start"), ("preferred", "no effect")])
def test_a_level_that_no_node_has_is_reported(way: str, effect: str) -> None:
    pod = {"kind": "Pod"} | workload("p", 1, annotations={"gpu-extender.io/domain": f"{way}:rack"})
    (finding,) = findings(checked(node(), pod), "domain-of-no-node")
    assert (finding["about"], effect in finding["message"]) == ("Pod/default/p", True)
    assert not findings(checked(*racks(DOCUMENTED), pod), "domain-of-no-node")


@pytest.mark.parametrize(
    "key",
    ["rack", "example.com/block", "superpod", "net.io/switch", "net.io/leaf", "spine-id", "hw/rackName",
     "x/leaf.switch", "nvidia.com/nvlink-domain", "acme/nvl72_domain"],
)  # fmt: skip
def test_names_of_levels(key: str) -> None:
    assert looks_like_level(key)


@pytest.mark.parametrize(
    "key",
    [DOCUMENTED, CLOUD, "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "storage/block-size", "id",
     "nvidia.com/gpu.product", "failure-domain.beta.kubernetes.io/zone", "rack.io/owner", "switchable", "", "a/"],
)  # fmt: skip
def test_names_of_no_levels(key: str) -> None:
    assert not looks_like_level(key)
