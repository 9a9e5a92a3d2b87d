"""Credentials and connections: kubeconfigs, fresh tokens, and what is said when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiServer, CredentialsError, Unreachable
from tests.kube.api_server import Script, serving, whole


def kubeconfig(folder: Path, url: str, user: dict[str, Any]) -> str:
    """A kubeconfig file (JSON is YAML) for one server and one user."""
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(made))
    return str(path)


def run_against(
    user: dict[str, Any],
    folder: Path,
    ask: Callable[[ApiServer], Awaitable[None]],
    clock: Callable[[], float] = lambda: 0.0,
) -> list[str]:
    """The Authorization headers that the server saw."""
    script = Script([whole(200, {})])

    async def run() -> None:
        async with (
            serving(script) as url,
            await ApiServer.connect(kubeconfig(folder, url, user), clock=clock) as server,
        ):
            await ask(server)

    asyncio.run(run())
    return [one.headers.get("authorization", "") for one in script.requests]


def test_a_token_of_a_kubeconfig_is_sent(tmp_path: Path) -> None:
    async def ask(server: ApiServer) -> None:
        assert await server.get("/version") == b"{}"

    assert run_against({"token": "abc"}, tmp_path, ask) == ["Bearer abc"]
    assert run_against({}, tmp_path, ask) == [""]


def test_a_token_file_is_read_anew_after_a_minute(tmp_path: Path) -> None:
    """kubelet replaces service account tokens long before they end."""
    now = 1000.0
    file = tmp_path / "token"
    file.write_text("first")

    async def ask(server: ApiServer) -> None:
        nonlocal now
        await server.get("/version")
        file.write_text("second")
        await server.get("/version")
        now += 61
        await server.get("/version")

    assert run_against({"tokenFile": str(file)}, tmp_path, ask, lambda: now) == [
        "Bearer first",
        "Bearer first",
        "Bearer second",
    ]


def test_a_token_file_that_goes_away_is_said(tmp_path: Path) -> None:
    now = 1000.0
    file = tmp_path / "token"
    file.write_text("first")

    async def ask(server: ApiServer) -> None:
        nonlocal now
        file.unlink()
        now += 61
        with pytest.raises(Unreachable, match="no fresh credentials"):
            await server.get("/version")

    assert run_against({"tokenFile": str(file)}, tmp_path, ask, lambda: now) == []


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"clusters": []}'])
def test_no_usable_kubeconfig(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError):
        asyncio.run(ApiServer.connect(str(path)))


def test_outside_of_a_pod_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsError, match="service account"):
        asyncio.run(ApiServer.connect())


def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    async def run() -> None:
        async with await ApiServer.connect(kubeconfig(tmp_path, "http://127.0.0.1:1", {"token": "t"})) as server:
            with pytest.raises(Unreachable, match="GET /version"):
                await server.get("/version")

    asyncio.run(run())


def test_a_path_prefix_of_the_server_stays(tmp_path: Path) -> None:
    """Servers behind a proxy have one, as ``https://proxy/k8s/clusters/c-1``."""
    script = Script([whole(200, {})])

    async def run() -> None:
        async with (
            serving(script) as url,
            await ApiServer.connect(kubeconfig(tmp_path, f"{url}/k8s/c-1", {})) as server,
        ):
            await server.get("/api/v1/pods", {"limit": "1"})

    asyncio.run(run())
    assert (script.requests[0].path, script.requests[0].params) == ("/k8s/c-1/api/v1/pods", {"limit": "1"})
