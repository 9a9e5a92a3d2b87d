"""What makes a server not ready, and what only degrades it: then it answers on, and says what does not work."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from extender.act import settings_file
from extender.act.controller import QUEUE, Leadership
from extender.act.settings_file import SettingsFile
from extender.kube.own_objects import Lease
from extender.metrics import PARTS, Metrics
from extender.server.certificates import Certificates
from extender.settings import Settings
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.server.certificate_files import written
from tests.waiting import run_bounded
from tests.world import World, logged

HEAD = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"


def degraded(world: World) -> dict[str, str]:
    reply = world.call("/readyz", method="GET")
    assert (reply.status, reply.json["ready"]) == (200, True)
    return {one["part"]: one["problem"] for one in reply.json["degraded"]}


def test_a_server_that_is_well_says_so(world: World) -> None:
    assert degraded(world) == {}
    reply = world.call("/readyz", method="GET").json
    assert (reply["settings"], bool(reply["version"])) == (world.settings.hash, True)
    text = world.call("/readyz?verbose", method="GET").body.decode()
    assert text.splitlines() == [
        "[+]lists ok", "[+]watches ok", *(f"[+]{part} ok" for part in PARTS), "readyz check passed",
    ]  # fmt: skip
    assert all(world.metric("degraded", part=part) == 0 for part in PARTS)


def test_an_invalid_settings_file_degrades_and_the_settings_before_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_file, "SETTLE_SECONDS", 0.0)
    world, file = World(), tmp_path / "settings.yaml"
    world.node("n", 2)
    controller = SettingsFile(file, world.verbs, world.metrics)

    def load(text: str) -> dict[str, str]:
        file.write_text(HEAD + text)
        run_bounded(controller.look())
        return degraded(world)

    said = load("scorers: [{name: nothing, weight: 1}]\n")["settings"]
    assert "the file is invalid, so the settings before it count" in said
    assert "nothing" in said
    assert world.metric("degraded", part="settings") == 1
    assert world.filter(world.pod("p", 1))["NodeNames"] == ["n"]
    assert "queue.enabled" in load("queue: {enabled: true}\n")["settings"]
    assert load("scorers: [{name: packing, weight: 2}]\n") == {}
    assert world.metric("degraded", part="settings") == 0


def certificates(folder: Path, ca: trustme.CA, until: datetime.datetime, metrics: Metrics) -> Certificates:
    issued = ca.issue_cert("localhost", not_before=until - datetime.timedelta(days=9), not_after=until)
    files = written(folder, issued, ca)
    return Certificates(Settings.model_validate({"server": {"tls": files.tls()}}).server.tls, metrics)


def test_an_expired_certificate_is_an_error_in_the_log_and_degrades(tmp_path: Path) -> None:
    ca, metrics, now = trustme.CA(), Metrics(), datetime.datetime.now(datetime.UTC)
    with logged() as lines:
        made = certificates(tmp_path / "tls", ca, now - datetime.timedelta(days=1), metrics)
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert line["event"] == "a certificate has expired: replace the file"
    assert "tls.crt expired at" in metrics.degraded.problems["certificates"]
    certificates(tmp_path / "tls", ca, now + datetime.timedelta(days=1), Metrics())
    made.refresh()
    made.check_ends()
    assert metrics.degraded.problems["certificates"] == ""


def test_a_certificate_expires_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, now = Metrics(), datetime.datetime.now(datetime.UTC)
    made = certificates(tmp_path / "tls", trustme.CA(), now + datetime.timedelta(days=1), metrics)
    assert metrics.degraded.problems["certificates"] == ""
    later = time.time() + 2 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    with logged() as lines:
        made.check_ends()
        made.check_ends()
    assert [line["log_level"] for line in lines] == ["error"]
    assert "expired at" in metrics.degraded.problems["certificates"]


def test_new_certificates_that_cannot_be_used_degrade(tmp_path: Path) -> None:
    ca, metrics, now = trustme.CA(), Metrics(), datetime.datetime.now(datetime.UTC)
    made = certificates(tmp_path / "tls", ca, now + datetime.timedelta(days=1), metrics)
    (tmp_path / "tls" / "tls.crt").write_text("half of it")
    made.refresh()
    assert "new ones cannot be used, those before stay" in metrics.degraded.problems["certificates"]


async def test_a_missing_right_to_the_lease_degrades_and_its_return_ends_that() -> None:
    metrics, objects = Metrics(), Objects(fail=lambda request: 403)
    now = 100.0
    async with connected(objects) as server:
        lease = Lease(server, "kube-system", "gpu-extender-queue", "me")
        leads = Leadership(lease, QUEUE, metrics.queue_leader, metrics.degraded, lambda: now)
        await leads.campaign(True)
        said = metrics.degraded.problems["queue"]
        assert "no pod is released from the queue: the Lease cannot be read or written" in said
        assert "manifests/queue/controller.yaml" in said
        objects.fail = lambda request: 0
        now += 60
        await leads.campaign(True)
        assert metrics.degraded.problems["queue"] == ""


def test_a_part_has_several_sources() -> None:
    noted: Any = Metrics().degraded
    noted.note("queue", "the first", "a")
    noted.note("queue", "the second", "b")
    assert noted.problems["queue"] == "the first; the second"
    noted.note("queue", "", "a")
    assert noted.problems["queue"] == "the second"


def test_no_problem_is_named_where_pages_need_a_token() -> None:
    nobody: Any = object()
    world = World(Settings.model_validate({"server": {"debug": {"authorize": True}}}), reviews=nobody)
    world.metrics.degraded.note("events", "a name that is nobody's business")
    assert degraded(world) == {"events": "the log of the server has it"}
    assert "business" not in world.call("/readyz?verbose", method="GET").body.decode()
