"""Reservations grow old; the time is an argument."""

from __future__ import annotations

from extender.reservations.reservations import Reservation, Reservations

AMOUNTS = (1000, 0, 1, 2)


def reservation(uid: str, at: float) -> Reservation:
    return Reservation(uid=uid, node="n", victims=("v",), amounts=AMOUNTS, priority=5, at=at)


def test_a_reservation_is_dropped() -> None:
    kept = Reservations()
    kept.add(reservation("a", at=1.0))
    assert kept.of("a", 1.0) == reservation("a", at=1.0)
    kept.drop("a")
    kept.drop("unheard-of")
    assert kept.of("a", 1.0) is None


def test_a_reservation_grows_old() -> None:
    kept = Reservations(seconds=600.0)
    kept.add(reservation("a", at=0.0))
    kept.add(reservation("b", at=10.0))
    assert [one.uid for one in kept.current(600.0)] == ["a", "b"]
    assert kept.of("a", 600.0) is not None
    assert [one.uid for one in kept.current(600.5)] == ["b"]
    assert kept.of("a", 600.5) is None
    assert kept.of("b", 610.5) is None


def test_a_new_reservation_replaces_the_old() -> None:
    kept = Reservations()
    kept.add(reservation("a", at=0.0))
    kept.add(reservation("a", at=500.0))
    assert kept.of("a", 1100.0) == reservation("a", at=500.0)
    assert len(kept.current(1100.0)) == 1


def test_a_pod_that_never_came_has_no_reservation() -> None:
    kept = Reservations()
    assert kept.of("a", 0.0) is None
    assert kept.current(0.0) == []
