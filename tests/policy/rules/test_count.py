"""Rules `count` and `resource`: enough GPUs are free, and the node offers the resource at all."""

from __future__ import annotations

from extender.policy.contracts import Class
from extender.policy.reasons import (
    DEVICE_PLUGIN_AWAY,
    GPUS_BUSY,
    GPUS_HELD,
    GPUS_PROMISED,
    GPUS_RELEASING,
    GPUS_RESERVED,
    NO_GPU_RESOURCE,
    TOO_FEW_GPUS,
)
from extender.policy.rules import Count, ResourceOffered
from tests.tables import AMD, Small, request

TERMINATING, SPARED = 1, 2  # of pods
AWAY, DRA = 2, 1 << 3  # of nodes

# -- rule `count`: the pod asks for 3 at priority 10, the node has 4 ---------------------------------------------------


asks = request(3, priority=10)


def test_enough_are_free(small: Small) -> None:
    assert small.reason(Count(), asks, small.node(4, used=1)) is None  # 4 - 1 = 3


def test_few(small: Small) -> None:
    assert small.reason(Count(), asks, small.node(2)) is TOO_FEW_GPUS  # 2 < 3 even when it is empty
    assert TOO_FEW_GPUS.cls is Class.HOPELESS


def test_promised(small: Small) -> None:
    row = small.node(4)
    small.claim(row, 2, tentative=True)
    assert small.reason(Count(), asks, row) is GPUS_PROMISED  # 4 - 2 = 2 < 3, but for the 2 in flight 4
    assert GPUS_PROMISED.cls is Class.TRANSIENT


def test_reserved(small: Small) -> None:
    row = small.node(4)
    small.claim(row, 2)
    assert small.reason(Count(), asks, row) is GPUS_RESERVED  # 4 - 2 = 2 < 3, but for the nominated pod's 2 it is 4
    assert GPUS_RESERVED.cls is Class.HOPELESS


def test_promised_and_reserved_together_are_reserved(small: Small) -> None:
    row = small.node(4)
    small.claim(row, 1, tentative=True)
    small.claim(row, 2)
    assert small.reason(Count(), asks, row) is GPUS_RESERVED  # 4 - 3 = 1; + 1 in flight = 2 < 3; + 2 nominated = 4


def test_releasing(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 3, priority=99, flags=TERMINATING)  # whatever its priority
    assert small.reason(Count(), asks, row) is GPUS_RELEASING  # 4 - 4 + 3 = 3
    assert GPUS_RELEASING.cls is Class.EVICTABLE


def test_busy(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 1, flags=TERMINATING)
    small.pod(row, 2, priority=9)
    assert small.reason(Count(), asks, row) is GPUS_BUSY  # 0 + 1 terminating + 2 of lower priority = 3
    assert GPUS_BUSY.cls is Class.EVICTABLE


def test_held_by_equal_priority(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 2, priority=9)
    small.pod(row, 2, priority=10)
    assert small.reason(Count(), asks, row) is GPUS_HELD  # 0 + 2 < 3
    assert GPUS_HELD.cls is Class.HOPELESS


def test_held_by_a_spared_pod(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 4, priority=0, flags=SPARED)
    assert small.reason(Count(), asks, row) is GPUS_HELD


def test_held_by_a_protected_pod(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 2, priority=0, until=1000)
    small.pod(row, 1, priority=0)
    small.tables.pods.now = 999
    assert small.reason(Count(), asks, row) is GPUS_HELD  # 0 + 1 < 3: the other's 2 may not be had
    small.tables.pods.now = 1000
    assert small.reason(Count(), asks, row) is GPUS_BUSY


def test_protection_holds_up_nobody_who_ends(small: Small) -> None:
    row = small.node(4, used=4)
    small.pod(row, 3, priority=0, until=1000, flags=TERMINATING)
    assert small.reason(Count(), asks, row) is GPUS_RELEASING


def test_a_claim_stands_in_the_way_of_an_eviction_too(small: Small) -> None:
    row = small.node(4, used=2)
    small.claim(row, 2)
    small.pod(row, 2, priority=0)
    assert small.reason(Count(), asks, row) is GPUS_HELD  # 4 - 2 - 2 + 2 = 2 < 3; without the claim: 4


def test_assumed_pods_of_lower_priority_are_victims_too(small: Small) -> None:
    row = small.node(4, used=2)
    small.pod(row, 2, priority=0)
    small.claim(row, 2, tentative=True, evictable=True)
    assert (
        small.reason(Count(), asks, row) is GPUS_BUSY
    )  # 4 - 2 - 2 = 0 < 3; + 2 assumed = 2 < 3; + 2 of lower priority = 4
    small.claim(row, 1)
    assert small.reason(Count(), asks, row) is GPUS_BUSY  # the same less 1 that is nominated = 3
    small.claim(row, 1, tentative=True)
    assert small.reason(Count(), asks, row) is GPUS_HELD  # 1 of them is assumed and no victim: 2 < 3


def test_assumed_and_terminating_pods(small: Small) -> None:
    row = small.node(4, used=2)
    small.pod(row, 2, priority=99, flags=TERMINATING)
    small.claim(row, 2, tentative=True, evictable=True)
    assert small.reason(Count(), asks, row) is GPUS_BUSY  # 0 + 2 terminating = 2 < 3; + 2 assumed = 4


def test_another_resource_than_the_one_that_counts_positions(small: Small) -> None:
    row = small.node(4, gpu=AMD, used=4)
    assert small.reason(Count(), request(0, amd=1), row) is GPUS_HELD
    assert small.reason(Count(), request(0, amd=5), row) is TOO_FEW_GPUS


def test_pods_in_flight_are_told_apart_by_resource(small: Small) -> None:
    row = small.node(4, amd=4)
    small.claim(row, 0, amd=4, tentative=True)
    assert small.reason(Count(), request(0, amd=1), row) is GPUS_PROMISED  # 4 - 4 = 0 < 1, but for the 4 in flight
    small.claim(row, 2)
    assert small.reason(Count(), asks, row) is GPUS_RESERVED  # none of the 2 that it lacks is in flight


def test_a_device_class_may_serve_a_node_without_gpus(small: Small) -> None:
    assert small.reason(Count(), asks, small.node(4, there=0, flags=DRA)) is None
    assert small.reason(Count(), asks, small.node(2, flags=DRA)) is TOO_FEW_GPUS  # it offers GPUs itself: those count


# -- rule `resource`: the node offers the GPU resource at all ----------------------------------------------------------


def test_a_node_with_gpus_passes_even_when_all_are_held(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(4, used=4)) is None


def test_no_such_resource(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(0, flags=0)) is NO_GPU_RESOURCE
    assert NO_GPU_RESOURCE.cls is Class.HOPELESS


def test_gpus_of_another_resource_do_not_mean_that_a_plugin_is_away(small: Small) -> None:
    row = small.node(4, gpu=AMD, flags=AWAY)  # AMD's GPUs are there; the pod asks for NVIDIA's
    assert small.reason(ResourceOffered(), request(2), row) is NO_GPU_RESOURCE


def test_the_plugin_is_away(small: Small) -> None:
    row = small.node(4, there=0, flags=AWAY)  # capacity 4, allocatable 0
    assert small.reason(ResourceOffered(), request(2), row) is DEVICE_PLUGIN_AWAY
    assert DEVICE_PLUGIN_AWAY.cls is Class.TRANSIENT


def test_a_device_class_may_serve_it(small: Small) -> None:
    row = small.node(4, there=0, flags=DRA | AWAY)
    assert small.reason(ResourceOffered(), request(2), row) is None


def test_every_resource_that_is_asked_counts(small: Small) -> None:
    row = small.node(4, flags=0)
    assert (
        small.reason(ResourceOffered(), request(2, amd=1), row) is NO_GPU_RESOURCE
    )  # NVIDIA's are there, AMD's are not


def test_the_earlier_rule_wins(small: Small) -> None:
    assert small.reason(ResourceOffered(), request(2), small.node(4, there=0), before=1) is None
