"""A settings file that changes beside a running server, and beside the real API server."""

from __future__ import annotations

from tests import plain
from tests.e2e.scene import SceneFactory
from tests.waiting import wait_for


def test_weights_are_loaded_and_a_wrong_file_changes_nothing(scene: SceneFactory) -> None:
    cluster = scene({"n1": {"topology": "a100-pcie-4"}})
    cluster.pod("before", 1)
    cluster.running("before")

    def status() -> str:
        with plain.client() as http:
            return http.get(f"{cluster.extender.url}/statusz").text

    first = status().partition("Settings: ")[2].split()[0]
    cluster.extender.configure({"scorers": [{"name": "nothing", "weight": 1}]})
    wait_for(lambda: cluster.metric("gpu_extender_settings_reloads_total", 'result="invalid"') == 1, 60)
    assert f"Settings: {first}" in status()
    cluster.extender.configure({"scorers": [{"name": "packing", "weight": 1}]})
    wait_for(lambda: cluster.metric("gpu_extender_settings_reloads_total", 'result="loaded"') == 1, 60)
    second = status().partition("Settings: ")[2].split()[0]
    assert second != first
    cluster.pod("after", 1)
    cluster.running("after")
    assert {one["settings"] for one in cluster.decisions("after")} == {second}
    assert {one["settings"] for one in cluster.decisions("before")} == {first}
