"""Gangs for tests of what is decided about them, without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import finish
from extender.objects import records
from extender.objects.gangs import Ref
from extender.queue.gang import WaitingGang, waits
from tests.world import GPU, WALL, workload


def gang(name: str, pods: int = 1, gpus: int = 1, **facts: Any) -> WaitingGang:
    """A complete gang of `pods` pods with `gpus` GPUs each, created at WALL; `facts`: what differs."""
    made = [json.dumps(workload(f"{name}-{i}", gpus)).encode() for i in range(pods)]
    plain = WaitingGang(
        ref=Ref("gpu-extender", "default", name),
        pods=tuple(records.pod(one, frozenset({GPU})) for one in made),
        members=(),
        other_gates=(),
        size=pods,
        minimum=pods,
        known=True,
        priority=0,
        created=WALL,
        queue="default",
        domain=None,
        seconds=None,
        ends_at=None,
    )
    return replace(plain, **facts)


def waiting(cluster: ClusterView) -> list[WaitingGang]:
    """All gangs that have pods behind our gate, by ref."""
    return sorted(finish(waits(cluster)), key=lambda one: one.ref)
