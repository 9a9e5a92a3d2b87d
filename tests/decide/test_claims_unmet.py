"""filter: nodes whose devices do not meet a claim that is not counted as GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sim import claims as dra
from tests.cluster.dra.world import DraWorld


@pytest.fixture
def world() -> DraWorld:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1")
    made.dra_node("n2", taints=dict.fromkeys(range(6), "broken"))
    return made


def claim(world: DraWorld, **asked: Any) -> None:
    made = dra.claim("c", "default", 2)
    made["spec"]["devices"]["requests"][0]["exactly"] |= asked
    world.set("ResourceClaim", made)


def test_a_node_that_does_not_meet_the_claim_is_rejected_with_the_request(world: DraWorld) -> None:
    selectors = [{"cel": {"expression": f"device.attributes['{dra.DRIVER}'].uuid.endsWith('none')"}}]
    claim(world, selectors=selectors)
    answer = world.filter(world.claimant("p", "c"))
    assert not answer["NodeNames"]
    [text] = set(answer["FailedAndUnresolvableNodes"].values())
    assert text.startswith("gpu-extender: the devices that are published and free there do not meet a ResourceClaim")
    assert text.endswith(": request gpus of claim c")


def test_a_node_that_meets_it_passes(world: DraWorld) -> None:
    claim(world, count=8, tolerations=[{"operator": "Exists"}])
    assert world.filter(world.claimant("p", "c"))["NodeNames"] == ["n1"]
