"""The measurement of NICs: the same in every run, and no way gives more than the machine has."""

from __future__ import annotations

from benchmarks import nics


def test_the_same_pods_give_the_same_figures() -> None:
    found = nics.measure(300, 3)
    assert found == nics.measure(300, 3)
    for ways in found.values():
        for row in ways.values():
            assert 0.0 <= row.gangs["aligned"] <= row.could <= 1.0
    assert found["p4d"]["planned with NICs"].gangs["aligned"] > found["p4d"]["planned"].gangs["aligned"]
