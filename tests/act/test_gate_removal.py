"""Our gates in shadow mode: removed at once, whatever becomes of the gate of another pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extender.act.gated import RETRY_SECONDS, GateRemoval
from extender.kube import pod_writes
from extender.kube.pod_writes import Tally
from extender.objects.queueing import GATE
from extender.objects.records import PodRecord
from tests.waiting import run_bounded
from tests.world import World


def test_a_pod_whose_gate_stays_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World()
    tried: list[str] = []

    async def removed(server: Any, wanted: Callable[[PodRecord], bool], progress: Any) -> Tally:
        tally = Tally()
        for uid in list(made.cluster.placements.queued):
            pod = made.cluster.pods[uid]
            if not wanted(pod):
                continue
            tried.append(pod.name)
            if pod.name == "stuck":
                tally.refused.append((pod, "denied by a policy"))
            else:
                tally.removed["default"] = tally.removed.get("default", 0) + 1
                made.pod(pod.name, 1)
        return tally

    monkeypatch.setattr(pod_writes, "remove_gates", removed)
    server: Any = None
    removal = GateRemoval(server, made.cluster, lambda: made.now)
    gated = {"schedulingGates": [{"name": GATE}]}
    for name in ("stuck", "first"):
        made.pod(name, 1, spec=gated)
    assert run_bounded(removal.look())  # so the next look comes as soon as ever
    made.pod("second", 1, spec=gated)
    assert run_bounded(removal.look())
    assert run_bounded(removal.look())
    assert tried == ["stuck", "first", "second"]
    made.now += RETRY_SECONDS
    assert run_bounded(removal.look())
    assert tried[3:] == ["stuck"]
