"""Rule `links`: links: required. The pod asks for 2 at priority 10; nothing is known of how the plugin chooses."""

from __future__ import annotations

from extender.policy.contracts import Class
from extender.policy.reasons import LINKS_BUSY, LINKS_HELD, LINKS_NEVER, LINKS_PENDING, LINKS_UNKNOWN
from extender.policy.rules import Links
from tests.tables import AMD, Small, pairs, request, switch

TERMINATING, SPARED = 1, 2
asks = request(2, priority=10, links="required")
# Four GPUs in a row, 0-1-2 and 3: 3 has no link. Any two of {0, 1, 2} are linked, so two are certain while 3 is held.
ODD = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
# Two groups of three, fully linked within: 0, 1, 2 and 3, 4, 5.
GROUPS = [[1 if a != b and a // 3 == b // 3 else 0 for b in range(6)] for a in range(6)]


def test_linked_whatever_is_handed_out(small: Small) -> None:
    assert small.reason(Links(), asks, small.node(8, shape=small.shape(switch()))) is None
    row = small.node(8, used=6, sure=0b111111, shape=small.shape(switch()))
    assert small.reason(Links(), asks, row) is None  # 6 and 7 are left, and linked


def test_only_who_requires_links_is_refused(small: Small) -> None:
    row = small.node(4, shape=0)
    for links in ("preferred", "ignore"):
        assert small.reason(Links(), request(2, links=links), row) is None
    assert small.reason(Links(), request(1, links="required"), row) is None  # one GPU needs no link


def test_the_graph_of_another_resource_says_nothing(small: Small) -> None:
    assert small.reason(Links(), asks, small.node(4, gpu=AMD)) is LINKS_UNKNOWN  # of what it would get nothing is known


def test_graph(small: Small) -> None:
    assert small.reason(Links(), asks, small.node(4, shape=0)) is LINKS_UNKNOWN
    assert LINKS_UNKNOWN.cls is Class.HOPELESS


def test_never(small: Small) -> None:
    row = small.node(4, shape=small.shape(pairs()))
    assert small.reason(Links(), asks, row) is LINKS_NEVER  # any two of the empty node: 0 and 2 are possible
    assert LINKS_NEVER.cls is Class.HOPELESS


def test_never_certain_counts_positions_of_unhealthy_gpus(small: Small) -> None:
    shape = small.shape(switch())
    # 8 in the graph, 2 allocatable, and nobody says which 6 are ill: all sets of two are linked, so it is certain ...
    assert small.reason(Links(), asks, small.node(8, there=2, shape=shape)) is None
    # ... but of 8 less 6 no three can be handed out.
    assert small.reason(Links(), request(3, links="required"), small.node(8, there=2, shape=shape)) is LINKS_NEVER


def test_pending(small: Small) -> None:
    shape = small.shape(switch(4))
    row = small.node(4, used=3, unknown=3, pending=3, shape=shape)
    assert small.reason(Links(), asks, row) is LINKS_PENDING  # 4 less 3 nobody knows: 1 < 2
    row = small.node(4, shape=shape)
    small.claim(row, 3, tentative=True)
    assert small.reason(Links(), asks, row) is LINKS_PENDING  # the same for a pod in flight
    assert LINKS_PENDING.cls is Class.TRANSIENT


def test_busy(small: Small) -> None:
    row = small.node(4, used=3, sure=0b0111, shape=small.shape(switch(4)))
    small.pod(row, 2, priority=9, mask=0b0011)
    small.pod(row, 1, priority=10, mask=0b0100)
    assert small.reason(Links(), asks, row) is LINKS_BUSY  # free: 3, with the eviction 0, 1, 3, all linked
    assert LINKS_BUSY.cls is Class.EVICTABLE
    assert LINKS_BUSY.links_only


def test_busy_when_a_terminating_pod_goes(small: Small) -> None:
    row = small.node(4, used=3, sure=0b0111, shape=small.shape(switch(4)))
    small.pod(row, 3, priority=99, mask=0b0111, flags=TERMINATING)
    assert small.reason(Links(), asks, row) is LINKS_BUSY


def test_busy_counts_what_is_held_at_unknown_positions(small: Small) -> None:
    row = small.node(4, used=3, unknown=3, shape=small.shape(switch(4)))
    small.pod(row, 3, priority=9, unsure=3)
    assert small.reason(Links(), asks, row) is LINKS_BUSY  # 3 unknown less the victim's 3 = 0


def test_held(small: Small) -> None:
    shape = small.shape(switch(4))
    row = small.node(4, used=3, sure=0b0111, shape=shape)
    small.pod(row, 3, priority=10, mask=0b0111)
    assert small.reason(Links(), asks, row) is LINKS_HELD  # not below the pod's priority
    row = small.node(4, used=3, sure=0b0111, shape=shape)
    small.pod(row, 3, priority=0, mask=0b0111, flags=SPARED)
    assert small.reason(Links(), asks, row) is LINKS_HELD
    assert LINKS_HELD.cls is Class.HOPELESS


def test_held_by_a_protected_pod(small: Small) -> None:
    row = small.node(4, used=3, sure=0b0111, shape=small.shape(switch(4)))
    small.pod(row, 3, priority=0, mask=0b0111, until=1000)
    assert small.reason(Links(), asks, row) is LINKS_HELD
    small.tables.pods.now = 1000
    assert small.reason(Links(), asks, row) is LINKS_BUSY


def test_never_stands_although_the_free_ones_could_be_linked_later(small: Small) -> None:
    # GPU 3 has no link. While a pod holds it, any two of the others are linked; now 2 is held instead.
    shape = small.shape(ODD)
    assert small.reason(Links(), asks, small.node(4, used=1, sure=0b1000, shape=shape)) is None
    assert small.reason(Links(), asks, small.node(4, used=1, sure=0b0100, shape=shape)) is LINKS_NEVER


def test_a_planned_pod_may_hold_others(small: Small) -> None:
    shape = small.shape(GROUPS)
    assert small.reason(Links(), asks, small.node(6, used=3, sure=0b111000, shape=shape)) is None
    # The same three planned: they may be others, and 2 and 3 may be what is left.
    assert small.reason(Links(), asks, small.node(6, used=3, likely=0b111000, shape=shape)) is LINKS_NEVER
