"""What documents show is what the program prints: each block behind `<!-- printed -->`, which has its commands, and in
the worked example of docs/preemption.md the Events.

After a change of words: GPU_EXTENDER_WRITE_DOCS=1 pytest tests/test_docs_example.py writes the blocks anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from extender import settings
from extender.act.controller import EVICTIONS, Leadership
from extender.act.events import EventRecorder
from extender.act.evictions import Evictor, OwnEvictions
from extender.act.save_history import SaveHistory
from extender.act.saving import SaveRequests
from extender.ask import frozen
from extender.cli import main
from extender.decide.evicted import OTHERS
from extender.kube.own_objects import Lease, Regarding
from extender.kube.pod_writes import PodEvictions, PodPatches
from extender.metrics import Metrics
from extender.reservations.release import CAUSES
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_reservations import connected, keeper
from tests.kube.objects import Objects
from tests.waiting import eventually, run_bounded
from tests.world import JSON, World

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "preemption.md"
CLUSTER, POD = "docs/examples/torn.yaml", "docs/examples/urgent.yaml"
NOW = "2026-03-02T12:00:00Z"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = re.compile(r"(?<=<!-- printed -->\n```\n)\$ .*?(?=\n```\n)", re.DOTALL)


class Ear(EventRecorder):
    """Events that are only heard."""

    def __init__(self) -> None:
        super().__init__(Metrics())
        self.heard: list[str] = []

    def tell(self, regarding: Regarding, reason: str, action: str, note: str, **more: Any) -> None:
        self.heard.append(f"{reason}  {regarding.namespace}/{regarding.name}\n  {note}")


def asked() -> JSON:
    """The pod as the API server has it: with the value of its PriorityClass, and a uid."""
    pod: JSON = YAML(typ="safe", pure=True).load((ROOT / POD).read_text())
    pod["metadata"]["uid"] = "pod-urgent"
    pod["spec"]["priority"] = 100_000
    pod["status"] = {"phase": "Pending"}
    return pod


def events() -> str:
    """The Events of one pod on its way: the filter call that refuses it, and the eviction a second later."""
    world = World(Settings.model_validate({"evictions": {"enabled": True}}))
    world.wall = datetime.fromisoformat(NOW).timestamp()
    world.cluster.apply(frozen.read(ROOT / CLUSTER, world.cluster.gpu_names), world.now)
    pod, ear = world.set("Pod", asked()), Ear()
    clock = Clock(lambda: world.now, lambda: world.wall)

    async def whole() -> JSON:
        async with connected(Objects()) as server:
            reservations = keeper(world, server)
            lease = Lease(server, "kube-system", "gpu-extender-evictions", "me", clock=clock)
            evictor = Evictor(
                PodEvictions(server, world.metrics),
                Leadership(lease, EVICTIONS, world.metrics.evictions_leader, world.metrics.degraded, clock.monotonic),
                reservations,
                SaveRequests(world.cluster, PodPatches(server), ear, world.metrics, SaveHistory(world.cluster, clock)),
            )
            controller = OwnEvictions(world.verbs, ear, world.metrics, evictor, clock=clock)
            world.connect(evictions=controller)
            task = asyncio.create_task(reservations.run())
            await eventually(lambda: not reservations.missing())
            request = json.dumps(world.args(pod)).encode()
            refused = await world.answered("filter", request)
            await controller.turn()
            world.now += 1.1
            await controller.turn()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return json.loads(refused.body)  # type: ignore[no-any-return]

    assert run_bounded(whole())["NodeNames"] == []
    return "\n".join(ear.heard)


def run(block: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The commands of a block, each with what it prints now."""
    shown = []
    for command in re.findall(r"^\$ gpu-extender (.*)$", block, re.MULTILINE):
        assert main(shlex.split(command)) in (0, 10, 11), command
        shown.append(f"$ gpu-extender {command}\n{capsys.readouterr().out}".rstrip("\n"))
    return "\n".join(re.sub(r" +$", "", text, flags=re.MULTILINE) for text in shown)


@pytest.mark.parametrize(
    "page", [page for page in DOCUMENTS if COMMANDS.search(page.read_text())], ids=lambda page: page.name
)
def test_commands_of_a_page_print_what_it_shows(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    text = page.read_text()
    printed = COMMANDS.sub(lambda block: run(block[0], capsys), text)
    if os.environ.get("GPU_EXTENDER_WRITE_DOCS"):
        page.write_text(printed)
        text = printed
    assert text == printed, "GPU_EXTENDER_WRITE_DOCS=1 writes it anew"


def test_the_events_of_the_page_are_what_the_program_writes() -> None:
    printed, page = events(), PAGE.read_text()
    [(head, told, end)] = re.findall(r"(<!-- printed: events -->\n```\n)(.*?)(\n```\n)", page, re.S)
    if os.environ.get("GPU_EXTENDER_WRITE_DOCS"):
        PAGE.write_text(page.replace(head + told + end, head + printed + end))
        told = printed
    assert told == printed, "GPU_EXTENDER_WRITE_DOCS=1 writes it anew"


def test_every_event_and_every_end_of_a_reservation_is_on_the_page() -> None:
    told = set(re.findall(r"`([\w-]+)`", PAGE.read_text()))
    code = "".join(path.read_text() for path in (ROOT / "extender").rglob("*.py"))
    reasons = set(re.findall(r'"((?:Chosen|Preemption|Eviction|GPUPods)[A-Z]\w+)"', code))
    reasons -= {*OTHERS, *settings.__all__, "EvictionRequest"}  # the last one is a kind
    assert len(reasons) >= 8
    assert reasons <= told
    assert set(CAUSES) <= told
