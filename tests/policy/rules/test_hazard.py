"""Rule `hazard`: the device plugin is known to fail the pod. Five GPUs, 0 and 1 on one PCIe switch; the pod asks 3."""

from __future__ import annotations

from typing import Any

import pytest

from extender.policy.contracts import Class
from extender.policy.reasons import PLUGIN_LOST_GPU, PLUGIN_PANICS
from extender.policy.rules import Hazard
from tests.tables import AMD, Small, request, switch

PANICS_MAY, PANICS_KNOWN, LOST_MAY, LOST_KNOWN = 1, 2, 4, 8
NEAR = [[4 * (a + b == 1) for b in range(5)] for a in range(5)]


def five(flags: int, **more: Any) -> tuple[Small, int]:
    """Over all five free GPUs the plugin crashes with probability .3 when it chooses three."""
    small = Small()
    shape = small.tables.shapes.intern(
        switch(5), gpu_total=True, pcie=NEAR, numa=None, plugin="nvidia", gbps=25.0
    )  # fmt: skip
    row = small.node(5, shape=shape, **more)
    small.tables.hazards.set(row, flags)
    return small, row


def test_a_version_that_is_known_to_crash() -> None:
    small, row = five(PANICS_KNOWN)
    assert small.reason(Hazard(), request(3), row) is PLUGIN_PANICS
    assert small.reason(Hazard(), request(2), row) is None  # 0-1, and no set with an empty place has as many points
    assert small.reason(Hazard(), request(5), row) is None  # all there are: nothing to choose
    assert PLUGIN_PANICS.cls is Class.HOPELESS


@pytest.mark.parametrize("links", ["required", "ignore"])
def test_links_do_not_matter(links: str) -> None:
    small, row = five(PANICS_KNOWN)
    assert small.reason(Hazard(), request(3, links=links), row) is PLUGIN_PANICS


def test_another_free_set_is_harmless() -> None:
    small, row = five(PANICS_KNOWN, used=1, sure=0b10000)
    assert small.reason(Hazard(), request(3), row) is None


@pytest.mark.parametrize(
    "unseen",
    [{"used": 1, "unknown": 1}, {"used": 1, "likely": 0b1}, {"pending": 1}, {"there": 4}],
    ids=["held by nobody knows whom", "only planned", "an admission under way", "one is ill, nobody says which"],
)
def test_what_is_not_seen_refuses_nobody(unseen: dict[str, int]) -> None:
    small, row = five(PANICS_KNOWN, **unseen)
    assert small.reason(Hazard(), request(3), row) is None


def test_a_pod_on_its_way_refuses_nobody() -> None:
    small, row = five(PANICS_KNOWN)
    small.claim(row, 1, wanted=0b1)
    assert small.reason(Hazard(), request(3), row) is None


def test_several_containers_are_served_one_by_one() -> None:
    small, row = five(PANICS_KNOWN)
    assert small.reason(Hazard(), request(3, containers=2), row) is None


def test_a_version_that_nobody_knows() -> None:
    for flags in (0, PANICS_MAY, LOST_MAY, PANICS_MAY | LOST_MAY):
        small, row = five(flags)
        assert small.reason(Hazard(), request(3), row) is None


def test_a_lost_gpu_fails_every_pod() -> None:
    small, row = five(PANICS_KNOWN | LOST_KNOWN)
    for gpus in (1, 3, 5):
        assert small.reason(Hazard(), request(gpus), row) is PLUGIN_LOST_GPU
    assert small.reason(Hazard(), request(0, amd=1), row) is None  # not this plugin's
    assert PLUGIN_LOST_GPU.cls is Class.HOPELESS


def test_an_earlier_reason_stands() -> None:
    small, row = five(PANICS_KNOWN | LOST_KNOWN)
    assert small.reason(Hazard(), request(3), row, before=20) is None
    small.node(4, gpu=AMD)
