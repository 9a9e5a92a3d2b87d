"""Scorer `packing`: (used + request) / allocatable, GPU 10, CPU 1, memory 1."""

from __future__ import annotations

import pytest

from extender.policy.scorers import Packing
from tests.tables import AMD, GIB, Small, request


def test_weighted_mean(small: Small) -> None:
    row = small.node(8, used=2, cpu=(12_000, 64_000), memory=(48 * GIB, 256 * GIB))
    # GPU (2 + 4) / 8 = 0.75; CPU (12 + 4) / 64 = 0.25; memory (48 + 16) / 256 = 0.25
    # (10 * 0.75 + 1 * 0.25 + 1 * 0.25) / 12 = 8 / 12
    assert small.score(Packing(), request(4), row) == 8.0 / 12.0


def test_claims_count_as_used(small: Small) -> None:
    row = small.node(8)
    small.claim(row, 2)
    # GPU (0 + 2 + 2) / 8 = 0.5
    assert small.score(Packing(gpu=1, cpu=0, memory=0), request(2), row) == 0.5


def test_never_above_one(small: Small) -> None:
    row = small.node(4, used=4, cpu=(64_000, 64_000), memory=(256 * GIB, 256 * GIB))
    assert small.score(Packing(), request(4), row) == 1.0


def test_only_gpus_that_are_asked_weigh(small: Small) -> None:
    row = small.node(4, gpu=AMD, cpu=(28_000, 64_000), memory=(112 * GIB, 256 * GIB))
    # The pod asks for AMD's: NVIDIA's weigh nothing. AMD (0 + 1) / 4; CPU 32 / 64; memory 128 / 256
    # (10 * 0.25 + 0.5 + 0.5) / 12 = 3.5 / 12
    assert small.score(Packing(), request(0, amd=1), row) == 3.5 / 12.0


def test_a_node_without_the_resource_is_judged_by_the_others(small: Small) -> None:
    row = small.node(4, there=0, cpu=(12_000, 64_000), memory=(48 * GIB, 256 * GIB))
    assert small.score(Packing(), request(2), row) == 0.25  # (0.25 + 0.25) / 2


def test_weights_of_the_settings(small: Small) -> None:
    row = small.node(8, used=2, cpu=(12_000, 64_000), memory=(112 * GIB, 256 * GIB))
    # GPU 0.5, CPU 0.25, memory 0.5; weights 2, 1, 3: (1 + 0.25 + 1.5) / 6
    assert small.score(Packing(gpu=2, cpu=1, memory=3), request(2), row) == pytest.approx(2.75 / 6, abs=0)
    assert small.score(Packing(gpu=0, cpu=0, memory=0), request(2), row) == 0.0
