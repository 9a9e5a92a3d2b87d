"""`capacity`, by the server and by the API server alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cli import main
from tests.e2e.cluster import ControlPlane
from tests.e2e.scene import SceneFactory
from tests.waiting import wait_for


def test_capacity(scene: SceneFactory, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = scene({name: {"topology": "a100-pcie-4"} for name in ("p1", "p2")})
    cluster.pod("one", 1)
    cluster.running("one")
    cluster.pod("big", 8)

    def asked(*source: str) -> Any:
        assert main(["capacity", *source, "-o", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    def settled() -> Any:
        live, listed = asked("--server", cluster.extender.url), asked("--kubeconfig", str(control_plane.kubeconfig()))
        same = all(len(live[part]) == len(listed[part]) for part in ("largest", "unblock"))
        return live if same and live["largest"] == listed["largest"] else None

    shown = wait_for(settled, 60, "both answer the same")
    largest = {one["links"]: (one["gpus"], one["nodes"]) for one in shown["largest"]}
    assert largest == {"any": (4, 1), "required": (2, 2)}
    assert list(shown["whole_nodes"].values()) == [1]
    assert [one["pod"] for one in shown["unblock"]] == [f"{cluster.namespace}/big"]
