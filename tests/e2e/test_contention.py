"""Preemptors of six priorities compete at once: the share of second evictions, and how long the preemptors wait.

One seed in two orders; GPU_EXTENDER_CONTENTION=3 (seeds) gives the figures of docs/internals/preemption.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.conftest import KubeletsFactory, SchedulerFactory
from tests.e2e.contention import PACE, Result, Scenario, run
from tests.e2e.extender_process import extender_entry
from tests.e2e.recorder import RecordingExtender
from tests.e2e.scene import SceneFactory, quiet
from tests.waiting import wait_for

SEEDS = int(os.environ.get("GPU_EXTENDER_CONTENTION", "1"))
ORDERS = ("random", "lowest-first")
MOST_EXCESS = 1.25  # GPUs evicted, of GPUs that the preemptors request


@pytest.fixture(scope="module")
def totals() -> dict[str, Result]:
    """What the scenarios came to, by order; printed as they come in."""
    return {order: Result() for order in ORDERS}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("order", ORDERS)
def test_second_evictions(
    scene: SceneFactory, tmp_path: Path, totals: dict[str, Result], order: str, seed: int
) -> None:
    scenario = Scenario(seed, order, pace=PACE)
    cluster = scene(
        {name: {"topology": "dgx-h100"} for name in scenario.victims()},
        kubelet={"termination_seconds": 1, "start_seconds": 0.2},
        verbosity=4,
    )
    result, trace, ones = run(cluster, scenario)
    totals[order] += result
    logs = (cluster.extender.log, cluster.scheduler.log)
    story = trace.story([one.name for one in ones], ones[0].created - 1, ones[-1].created + 30, *logs)
    (tmp_path / "story.txt").write_text(story)
    print(f"\n{order} {seed}: {result}", *result.lines, f"total {order}: {totals[order]}", tmp_path, sep="\n")
    assert result.evictions >= len(ones) / 2  # it was about evictions
    assert result.second["unexplained"] == 0
    assert result.gpus_evicted <= MOST_EXCESS * result.gpus_needed
    assert cluster.kubelets.truth.double_allocations == 0


def test_a_preemptor_that_is_told_to_wait_does_not_come_back_by_itself(
    api: Api, kubelets: KubeletsFactory, scheduler: SchedulerFactory
) -> None:
    """Why no preemptor waits for a higher priority to show: on a full cluster only the end of a pod wakes it."""
    kubelets().add_node("n1", topology="dgx-h100")
    for name, value in (("low", 10), ("high", 100)):
        api.create(builders.priority_class(name, value))
    for i in range(8):
        api.create(builders.pod(f"v{i}", priority_class="low", node_name="n1", grace=1))

    def full() -> bool:
        return all(api.get("Pod", f"v{i}", "default")["status"].get("phase") == "Running" for i in range(8))

    wait_for(full, 60, "the node is full")
    with RecordingExtender({"preempt": lambda arguments: {"NodeNameToMetaVictims": {}}}) as recorder:
        entry = extender_entry(recorder.url)
        del entry["bindVerb"]
        scheduler({"extenders": [entry]})
        api.create(builders.pod("urgent", gpus=2, priority_class="high"))
        wait_for(lambda: recorder.bodies("preempt"), 60, "preempt is called")
        for i in range(4):
            quiet(1.5)  # longer than the backoff after a first attempt
            api.patch("Pod", "v0", {"metadata": {"annotations": {"x": str(i)}}}, "default")
        assert len(recorder.bodies("preempt")) == 1
        api.delete("Pod", "v1", "default")
        wait_for(lambda: len(recorder.bodies("preempt")) > 1, 60, "preempt is called again")
