"""Rule `resource`: the node offers the GPU resource at all."""

from __future__ import annotations

from extender.policy.contracts import Class
from extender.policy.reasons import DEVICE_PLUGIN_AWAY, NO_GPU_RESOURCE
from extender.policy.rules import ResourceOffered
from tests.tables import AMD, Small, request

DRA_FLAG, AWAY_FLAG = 1 << 3, 2


def test_a_node_with_gpus_passes_even_when_all_are_held(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(4, used=4)) is None


def test_no_such_resource(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(0, flags=0)) is NO_GPU_RESOURCE
    assert NO_GPU_RESOURCE.cls is Class.HOPELESS


def test_gpus_of_another_resource_do_not_mean_that_a_plugin_is_away(small: Small) -> None:
    row = small.node(4, gpu=AMD, flags=AWAY_FLAG)  # AMD's GPUs are there; the pod asks for NVIDIA's
    assert small.reason(ResourceOffered(), request(2), row) is NO_GPU_RESOURCE


def test_the_plugin_is_away(small: Small) -> None:
    row = small.node(4, there=0, flags=AWAY_FLAG)  # capacity 4, allocatable 0
    assert small.reason(ResourceOffered(), request(2), row) is DEVICE_PLUGIN_AWAY
    assert DEVICE_PLUGIN_AWAY.cls is Class.TRANSIENT


def test_a_device_class_may_serve_it(small: Small) -> None:
    row = small.node(4, there=0, flags=DRA_FLAG | AWAY_FLAG)
    assert small.reason(ResourceOffered(), request(2), row) is None


def test_every_resource_that_is_asked_counts(small: Small) -> None:
    row = small.node(4, flags=0)
    assert (
        small.reason(ResourceOffered(), request(2, amd=1), row) is NO_GPU_RESOURCE
    )  # NVIDIA's are there, AMD's are not


def test_the_earlier_rule_wins(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(4, there=0), before=1) is None
