"""How hints name the program: as its user calls it, in all text of every command of the plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request

import pytest

from extender.cli import kubectl, sources
from extender.cli.kubectl import NAMESPACE, Installed, Replica, Tunnel
from extender.errors import Unreachable
from tests.cli.canned import Cli
from tests.web.page.served import served
from tests.world import World, workload

Captured = pytest.CaptureFixture[str]
PLAIN = "gpu-extender top"
WORDS = {
    "explain": ["default/p"],
    "decisions": [],
    "map": [],
    "top": [],
    "capacity": [],
    "queue": [],
    "shadow": [],
    "whatif": ["--pod", "default/p"],
    "plan": ["--node", "n"],
    "check": ["--live"],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose every command has a sentence to show."""
    world = World()
    world.node("n", 8)
    world.node("cordoned", 8, unschedulable=True)
    world.pod("p", 9)
    world.pod("light", 0, "n")
    world.filter(workload("p", 9))
    with served(world) as url:
        yield url


@pytest.fixture
def plugin(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin without a kubectl: the server's sentences end with a hint, as any of them may."""

    @contextmanager
    def forwarded(*given: object) -> Iterator[Tunnel]:
        yield Tunnel(url, lambda: "")

    def hinted(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {key: hinted(part, key) for key, part in value.items()}
        if isinstance(value, list):
            return [hinted(part, key) for part in value]
        sentence = isinstance(value, str) and (" " in value or key in ("closed", "reason"))
        return f"{value} (`{PLAIN}`)" if sentence else value

    read: Callable[[Request, float], bytes] = sources._read
    monkeypatch.setattr(sources, "_read", lambda *given: json.dumps(hinted(json.loads(read(*given)))).encode())
    monkeypatch.setattr(kubectl, "find", lambda *given: Replica(NAMESPACE, "a", f"see {PLAIN}"))
    monkeypatch.setattr(kubectl, "forwarded", forwarded)
    pods = [{"metadata": {"name": "a"}, "spec": {}}]
    monkeypatch.setattr(kubectl, "everything", lambda *given: Installed(pods, [], None, Unreachable(f"no: {PLAIN}")))
    monkeypatch.setenv("KUBECTL_PATH", "/nowhere/kubectl")


def bare(text: str) -> bool:
    """Whether a hint names the program without kubectl."""
    return PLAIN in text.replace(f"kubectl {PLAIN}", "")


def test_every_command_of_the_plugin_is_tried() -> None:
    assert set(WORDS) == set(kubectl.OFFERED)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", WORDS)
def test_no_text_of_the_plugin_names_a_command_without_kubectl(name: str, capsys: Captured) -> None:
    kubectl.main([name, *WORDS[name], "-n", "default"])
    said = capsys.readouterr()
    assert f"kubectl {PLAIN}" in said.out, said
    assert not bare(said.out + said.err)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", WORDS)
def test_what_is_for_programs_names_commands_as_the_server_does(name: str, capsys: Captured) -> None:
    kubectl.main([name, *WORDS[name], "-n", "default", "-o", "json"])
    said = capsys.readouterr()
    assert bare(said.out), said
    assert f"kubectl {PLAIN}" not in said.out
    assert not bare(said.err)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", WORDS)
def test_no_error_of_the_plugin_names_a_command_without_kubectl(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fails(*given: object) -> bytes:
        raise Unreachable(f"it is down: `{PLAIN}`")

    monkeypatch.setattr(sources, "_read", fails)
    assert kubectl.main([name, *WORDS[name], "-n", "default"]) == 1
    said = capsys.readouterr()
    assert f"it is down: `kubectl {PLAIN}`" in said.out + said.err
    assert not bare(said.out + said.err)
    kubectl.main([name, *WORDS[name], "-n", "default", "-o", "json"])
    said = capsys.readouterr()
    assert f"it is down: `{PLAIN}`" in said.out + said.err


@pytest.mark.parametrize("name", WORDS)
def test_no_help_of_the_plugin_names_a_command_without_kubectl(name: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        kubectl.main([name, "--help"])
    words = capsys.readouterr().out.split()
    places = [at for at, word in enumerate(words[:-1]) if word == "gpu-extender" and words[at - 1] != "kubectl"]
    named = {words[at + 1] for at in places}
    assert not named & (set(kubectl.OFFERED) - {"check"})


def test_a_hint_that_the_plugin_cannot_follow_stays() -> None:
    for text in (
        "gpu-extender topo -o annotation", "gpu-extender check judges a cluster", "gpu-extender whatif --kubeconfig F",
        "kubectl gpu-extender top", "does gpu-extender serve there?", "a/gpu-extender top", "my-gpu-extender top",
    ):  # fmt: skip
        assert kubectl.HINT.sub("X", text) == text
    assert kubectl.HINT.sub("X", "`gpu-extender check --live`, gpu-extender queue.") == "`X check --live`, X queue."


@pytest.mark.usefixtures("plugin")
def test_the_plugin_does_not_advise_to_name_an_address(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, capsys: Captured
) -> None:
    """`--server` means another thing to kubectl."""

    @contextmanager
    def closed(*given: object) -> Iterator[Tunnel]:
        yield Tunnel("http://127.0.0.1:1", lambda: "")

    monkeypatch.undo()
    monkeypatch.setattr(kubectl, "forwarded", closed)
    monkeypatch.setattr(kubectl, "find", lambda *given: Replica(NAMESPACE, "a"))
    pods = [{"metadata": {"name": "a"}, "spec": {}}]
    monkeypatch.setattr(kubectl, "everything", lambda *given: Installed(pods, [], None, None))
    for name in ("top", "check"):
        assert kubectl.main([name, *WORDS[name]]) == 1
        said = capsys.readouterr()
        assert (os.strerror(111) in said.out + said.err, "--server" in said.out + said.err) == (True, False)
    assert "--server names another address" in cli.err(["top", "--server", "http://127.0.0.1:1"], 1)
