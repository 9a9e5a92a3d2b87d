"""`explain` and `capacity` of a real control plane, and a way out that is carried out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cli import main
from tests.e2e.cluster import ControlPlane
from tests.e2e.scene import PAIRS, SceneFactory
from tests.waiting import wait_for


def test_a_pod_that_waits_and_its_way_out(scene: SceneFactory, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = scene({"p1": PAIRS})

    def explained(name: str, verdict: str) -> Any:
        """Once the watch has brought what the verdict follows from."""

        def look() -> Any:
            code = main(["explain", f"{cluster.namespace}/{name}", "--server", cluster.extender.url, "-o", "json"])
            said = capsys.readouterr().out
            shown = json.loads(said) if code == 0 else {}
            return shown if shown.get("verdict") == verdict else None

        return wait_for(look, 60)

    names = [f"one{i}" for i in range(4)]
    for name in names:
        cluster.pod(name, 1, grace=1)
    cluster.running(*names)
    holder = {next(iter(cluster.gpus(name))): name for name in names}
    for gpu in (0, 2):  # GPUs 0 and 2 are free then, and not joined
        cluster.api.delete("Pod", holder[gpu], cluster.namespace)
    cluster.kubelets.settle()
    cluster.pod("later", 1, scheduler="nobody")  # no scheduler asks about it
    shown = explained("later", "fits")
    assert (shown["node"], shown["decisions"]) == ("p1", [])
    assert "kube-scheduler has not asked about it" in shown["sentence"]
    cluster.pod("pair", 2, links="required")
    cluster.unschedulable("pair", "gpu-extender: the free GPUs are not linked")
    shown = explained("pair", "waits")
    why = "1 node has enough free GPUs, but no linked set of 2 GPUs; it may not evict: no pod of a priority below"
    assert why in shown["sentence"]
    assert "nearest: p1, a linked set of 1 instead of 2 GPUs" in shown["sentence"]
    assert [one["verb"] for one in shown["decisions"]][-1] == "filter"
    ways = {way["kind"]: way for way in shown["ways_out"]}
    assert {"relax-links", "smaller", "add-nodes"} <= set(ways)
    relaxed = ways["relax-links"]["spec"]
    cluster.pod("loose", 2, annotations={relaxed["annotation"]: relaxed["value"]})
    assert cluster.running("loose") == [relaxed["node"]]
    shown = explained("loose", "runs")
    assert shown["node"] == "p1"
    assert frozenset(shown["gpus"]) == cluster.gpus("loose")


# -- `capacity`, by the server and by the API server alone -------------------------------------------------------------


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
