"""What is unknown on objects of a real API server: one Event for each, by the rights that the manifests give. And
`capacity`, by the server and by the API server alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cli import main
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.rights import grant
from tests.e2e.scene import Scene, SceneFactory
from tests.waiting import wait_for

REASON = "reason=UnknownMetadata"


def events(cluster: Scene) -> dict[str, Object]:
    return {one["involvedObject"]["name"]: one for one in cluster.api.list("Event", cluster.namespace, fields=REASON)}


def test_an_event_for_each_unknown_name(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    grant(api, namespace, "deployment.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    cluster = scene({"p1": {"topology": "a100-pcie-4"}}, kubeconfig=account)
    cluster.pod("linked", 2, annotations={"gpu-extender.io/link": "required"})
    cluster.pod("packed", 1, annotations={"gpu-extender.io/placement": "packd"})
    cluster.pod("good", 1, links="preferred")

    def both() -> dict[str, Object] | None:
        there = events(cluster)
        return there if len(there) > 1 else None

    found = wait_for(both, 60, "the Events")
    assert set(found) == {"linked", "packed"}
    assert found["linked"]["message"].endswith("did you mean gpu-extender.io/links?")
    assert found["packed"]["message"].endswith("did you mean pack?")
    assert {one["type"] for one in found.values()} == {"Warning"}


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
