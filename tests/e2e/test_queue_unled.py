"""The steps of docs/queue.md in the wrong order: gated pods, and a server that was not started again."""

from __future__ import annotations

import json

import pytest

from extender import cli
from extender.act.gated import REASON
from extender.objects.queueing import GATE
from tests import plain
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.conftest import ExtenderFactory
from tests.waiting import wait_for


def test_a_gated_pod_learns_that_the_queue_is_off_and_starts_after_the_restart(
    api: Api, namespace: str, extender_process: ExtenderFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = {"lease": f"queue-{namespace}", "reservations": f"seats-{namespace}"}
    server = extender_process({"queue": queue})
    api.create(builders.node("n1", 8))
    api.create(builders.pod("waits", namespace, 1, schedulingGates=[{"name": GATE}]))
    server.configure({"queue": {**queue, "enabled": True}})
    [event] = wait_for(lambda: api.list("Event", namespace, fields=f"reason={REASON}"), 90, "the Event is written")
    assert "queue.enabled was false when this server started; set it, then restart the servers" in event["message"]
    assert event["involvedObject"]["name"] == "waits"
    assert cli.main(["check", "--live", "--server", server.url, "-o", "json"]) == 1
    [replica] = json.loads(capsys.readouterr().out)["replicas"]
    problems = {one["part"]: one["problem"] for one in replica["degraded"]}
    assert "queue.enabled" in problems["settings"]
    assert "no instance releases them" in problems["queue"]
    assert cli.main(["queue", "--server", server.url]) == 0
    assert "queue.enabled was false when this server started" in capsys.readouterr().out
    server.restart()

    def opened() -> bool:
        return not api.get("Pod", "waits", namespace)["spec"].get("schedulingGates")

    wait_for(opened, 60, "the gate is opened")
    wait_for(lambda: not plain.get(f"{server.url}/readyz").json()["degraded"], 60, "all is well")
