"""A run of the real kube-scheduler, recorded by the server and answered again: the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path

import pytest

from extender.cli import main
from extender.kube.client import ApiError
from tests.e2e import builders
from tests.e2e.extender_process import SETTINGS_HEAD
from tests.e2e.scene import SceneFactory

DECISIONS = int(os.environ.get("GPU_EXTENDER_REPLAY_DECISIONS", "60"))
"""Decisions of the run; the target is stated for 500."""
ROUND = 12
FLEET = ("dgx-h100", "dgx1-v100", "a100-pcie-4")


@pytest.mark.parametrize("bind", [False, True], ids=["scheduler-binds", "extender-binds"])
def test_a_recorded_run_is_answered_again_with_the_same_bytes(
    scene: SceneFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str], bind: bool
) -> None:
    folder, chance = tmp_path / "record", random.Random(15)
    nodes = {f"n{i}": {"topology": FLEET[i % len(FLEET)]} for i in range(6)}
    cluster = scene(nodes, bind=bind, settings={"record": {"fileBytes": 8_000}}, arguments=("--record", str(folder)))
    cluster.priorities(low=10, high=1000)
    decided = turn = 0
    while decided < DECISIONS:
        turn += 1
        assert turn < DECISIONS, f"{decided} decisions in {turn} rounds"
        pods = [
            builders.pod(
                f"p{turn}-{i}",
                cluster.namespace,
                chance.choice((1, 1, 2, 4)),
                priority_class=chance.choice(("low", "low", "high")),
                annotations={"gpu-extender.io/links": chance.choice(("required", "preferred", "ignore"))},
                grace=1,
            )
            for i in range(ROUND)
        ]
        cluster.create_all(pods)
        cluster.kubelets.settle()
        running = [pod["metadata"]["name"] for pod in cluster.api.list("Pod", cluster.namespace)]
        for name in chance.sample(running, len(running) // 2):
            with contextlib.suppress(ApiError):  # evicted meanwhile
                cluster.api.delete("Pod", name, cluster.namespace)
        cluster.kubelets.settle()
        decided = int(cluster.metric("gpu_extender_decisions_total"))
    cluster.extender.stop()
    code = main(["replay", str(folder), "-o", "json"])
    report = json.loads(capsys.readouterr().out)
    with capsys.disabled():
        print(f"\n{decided} decisions, {report['requests']} requests, {report['files']} files")
    assert (report["first_difference"], report["warnings"]) == (None, [])
    assert (code, report["identical"]) == (0, report["requests"])
    assert report["requests"] >= 0.9 * decided  # again looks and pods without GPUs are no requests of their own
    (tmp_path / "other.yaml").write_text(json.dumps(SETTINGS_HEAD | {"scorers": [{"name": "spread", "weight": 1.0}]}))
    code = main(["replay", str(folder), "--config", str(tmp_path / "other.yaml"), "-o", "json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 10
    assert report["changed"]
    assert report["totals"]["placements"]["was"] > 0
