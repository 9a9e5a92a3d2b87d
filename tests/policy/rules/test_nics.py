"""Rule `nics`: nics: required. The device plugin hands out any free GPUs: only what holds for all sets is certain."""

from __future__ import annotations

from extender.policy.contracts import Class
from extender.policy.reasons import NICS_HELD, NICS_NEVER, NICS_PENDING, NICS_UNKNOWN
from extender.policy.rules import Nics
from tests.tables import AMD, Small, request, switch

asks = request(2, nics="required")
EACH = [1 << gpu for gpu in range(8)]
"""A NIC for each GPU."""
THREE = [0b11, 0b100, 0b1000]
"""Of four GPUs the first two share a NIC."""


def test_each_gpu_has_one(small: Small) -> None:
    assert small.reason(Nics(), asks, small.node(8, shape=small.shape(switch(), nics=EACH))) is None
    row = small.node(8, used=5, sure=0b11111, shape=small.shape(switch(), nics=EACH))
    assert small.reason(Nics(), request(3, nics="required"), row) is None


def test_only_pods_that_require_nics_are_rejected(small: Small) -> None:
    row = small.node(4, shape=small.shape(switch(4), nics=[]))
    for nics in ("", "preferred", "ignore"):
        assert Nics().idle(small.tables, request(2, nics=nics))
        assert small.reason(Nics(), request(2, nics=nics), row) is None
    assert not Nics().idle(small.tables, asks)
    assert Nics().idle(small.tables, request(0, nics="required"))
    assert small.reason(Nics(), request(1, nics="required"), row) is NICS_NEVER  # one GPU needs a NIC too


def test_unknown(small: Small) -> None:
    assert small.reason(Nics(), asks, small.node(4, shape=0)) is NICS_UNKNOWN
    assert small.reason(Nics(), asks, small.node(4, shape=small.shape(switch(4)))) is NICS_UNKNOWN
    assert (
        small.reason(Nics(), asks, small.node(4, gpu=AMD, shape=small.shape(switch(4), nics=EACH[:4]))) is NICS_UNKNOWN
    )
    assert NICS_UNKNOWN.cls is Class.HOPELESS


def test_never(small: Small) -> None:
    """Of the empty node 0 and 1 may be handed out, which share a NIC."""
    assert small.reason(Nics(), asks, small.node(4, shape=small.shape(switch(4), nics=THREE))) is NICS_NEVER
    assert (
        small.reason(Nics(), request(1, nics="required"), small.node(4, shape=small.shape(switch(4), nics=THREE)))
        is None
    )


def test_held_and_pending(small: Small) -> None:
    """With its relay the node hands out what is planned: 0 and 2 while all are free, nothing while 2 and 3 are held."""
    small.tables.shapes.planned = True
    shape = small.tables.shapes.intern_with_nics(
        THREE, switch(4), gpu_total=False, pcie=None, numa=None, plugin="relay", gbps=25.0
    )
    assert small.reason(Nics(), asks, small.node(4, shape=shape)) is None
    assert small.reason(Nics(), asks, small.node(4, used=2, sure=0b1100, shape=shape)) is NICS_HELD
    assert small.reason(Nics(), asks, small.node(4, used=2, sure=0b1100, pending=1, shape=shape)) is NICS_PENDING
    assert small.reason(Nics(), asks, small.node(4, used=1, unknown=1, shape=shape)) is NICS_HELD  # it may be 2 or 3
    assert (NICS_PENDING.cls, NICS_HELD.cls) == (Class.TRANSIENT, Class.HOPELESS)


def test_both_at_once(small: Small) -> None:
    """0=1 and 2=3 are linked, each pair has one NIC: no two GPUs are linked and have a NIC each."""
    small.tables.shapes.planned = True
    pairs = [[4 if a != b and a // 2 == b // 2 else 0 for b in range(4)] for a in range(4)]
    shape = small.tables.shapes.intern_with_nics(
        [0b11, 0b1100], pairs, gpu_total=False, pcie=None, numa=None, plugin="relay", gbps=25.0
    )
    row = small.node(4, shape=shape)
    assert small.reason(Nics(), asks, row) is None
    assert small.reason(Nics(), request(2, links="required", nics="required"), row) is NICS_NEVER


def test_what_an_earlier_rule_rejected_stays(small: Small) -> None:
    assert small.reason(Nics(), asks, small.node(4, shape=0), before=10) is None
