"""`gpu-extender compare`: what the cache missed is told, what is the same is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from extender.ask.forks import MOST_ASKED
from extender.cli import main
from extender.server.serve import config
from extender.settings import Settings
from tests.waiting import in_thread, wait_for
from tests.world import World, machine, pairs, workload


@contextmanager
def serving(world: World) -> Iterator[str]:
    """The world's server on a socket of its own; its address."""
    host = uvicorn.Server(config(world.app, world.server.connections, Settings.model_validate({"server": {"port": 0}})))
    with in_thread(host.run, lambda: setattr(host, "should_exit", True)):
        wait_for(lambda: host.started)
        yield f"http://127.0.0.1:{host.servers[0].sockets[0].getsockname()[1]}"


def lists(path: Path, *objects: Any) -> Path:
    items = [{"kind": "Node" if "capacity" in item.get("status", {}) else "Pod", **item} for item in objects]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def ask(server: str, cluster: Path, *more: str) -> int:
    return main(["compare", "--server", server, "--cluster", str(cluster), "--settle", "0", *more])


def test_differences_are_told_and_equal_views_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.node("n", 4, links=pairs(4))
    world.pod("a", 2, "n", annotations={"gpu-extender.io/gpus": "0,1"}, held=(2, 3))
    node = machine("n", 4, links=pairs(4))
    plan = {"gpu-extender.io/gpus": "0,1"}
    same = lists(tmp_path / "same", node, workload("a", 2, node="n", phase="Running", annotations=plan, held=(2, 3)))
    moved = lists(
        tmp_path / "moved",
        node,
        machine("m", 4),
        workload("a", 2, node="n", phase="Running", annotations=plan, held=(0, 1)),
        workload("b", 1, node="n", phase="Running"),
    )
    with serving(world) as server:
        assert ask(server, same) == 0
        assert "1 node, 1 pod: 0 differences" in (said := capsys.readouterr().out)
        assert "planned GPUs: 0 pods with the GPUs that were planned, 1 with others" in said
        assert ask(server, moved, "-o", "json") == 10
        found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "Comparison"
    assert [(one["kind"], one["name"], one["what"]) for one in found["differences"]] == [
        ("Node", "m", "missing"),
        ("Pod", "default/a", "gpus"),
        ("Pod", "default/b", "missing"),
    ]
    assert (found["differences"][1]["cached"], found["differences"][1]["listed"]) == ([2, 3], [0, 1])
    assert found["drift"] == {"as_planned": 0, "otherwise": 1}


def test_a_server_that_others_are_asking_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.node("n", 4)
    world.server.asks._asked = MOST_ASKED

    def let_go() -> None:
        world.server.asks._asked = 0

    with serving(world) as server:
        later = threading.Timer(0.5, let_go)
        later.start()
        assert ask(server, lists(tmp_path / "same", machine("n", 4))) == 0
        later.join(10)
    assert "1 node, 0 pods: 0 differences" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("http://127.0.0.1:9", lists(tmp_path / "none", machine("n"))) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
