"""Moves of running pods that make room for an advance reservation, as they are planned and kept."""

from __future__ import annotations

import msgspec


class MovedPod(msgspec.Struct, frozen=True, array_like=True):
    """A pod that moves."""

    uid: str
    pod: str
    """namespace/name, for people."""
    to: str
    """Its next node."""


class PlannedMove(msgspec.Struct, frozen=True, array_like=True):
    """Pods that leave their nodes together: one, or all of a gang."""

    pods: tuple[MovedPod, ...]
