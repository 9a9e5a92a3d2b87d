"""Credentials and connections: kubeconfigs, fresh tokens, what is said when they fail, and which rights are missing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import REMEMBERED_SECONDS, ApiError, ApiServer, CredentialsError, Forbidden, NoAnswer
from tests.kube.api_server import Script, client_of, failed, serving, whole
from tests.waiting import run_bounded


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

    run_bounded(run())
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
        with pytest.raises(NoAnswer, match="no fresh credentials"):
            await server.get("/version")

    assert run_against({"tokenFile": str(file)}, tmp_path, ask, lambda: now) == []


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"clusters": []}'])
def test_no_usable_kubeconfig(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError):
        run_bounded(ApiServer.connect(str(path)))


def test_outside_of_a_pod_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsError, match="service account"):
        run_bounded(ApiServer.connect())


async def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    async with await ApiServer.connect(kubeconfig(tmp_path, "http://127.0.0.1:1", {"token": "t"})) as server:
        with pytest.raises(NoAnswer, match="GET /version"):
            await server.get("/version")


async def test_a_path_prefix_of_the_server_stays(tmp_path: Path) -> None:
    """Servers behind a proxy have one, as ``https://proxy/k8s/clusters/c-1``."""
    script = Script([whole(200, {})])
    async with (
        serving(script) as url,
        await ApiServer.connect(kubeconfig(tmp_path, f"{url}/k8s/c-1", {})) as server,
    ):
        await server.get("/api/v1/pods", {"limit": "1"})
    assert (script.requests[0].path, script.requests[0].params) == ("/k8s/c-1/api/v1/pods", {"limit": "1"})


# -- rights that are missing


RBAC = 'pods "p" is forbidden: User "a:b" cannot {} resource "{}" in API group "{}" in the namespace "x"'


def test_a_right_that_is_missing_is_named_and_forgotten() -> None:
    now = 100.0
    noted = Forbidden(lambda: now)
    noted.note("POST", 403, RBAC.format("create", "pods/eviction", ""))
    now += 10
    noted.note("PATCH", 403, RBAC.format("update", "leases", "coordination.k8s.io"))
    assert noted.problem() == (
        "not allowed in the last 10 min: create pods/eviction, update leases of coordination.k8s.io"
    )
    now += REMEMBERED_SECONDS - 10
    assert noted.problem() == "not allowed in the last 10 min: update leases of coordination.k8s.io"
    now += 10
    assert noted.problem() == ""


@pytest.mark.parametrize(
    ("method", "status", "message"),
    [
        ("GET", 403, RBAC.format("list", "pods", "")),
        ("POST", 409, RBAC.format("create", "pods", "")),
        ("POST", 403, 'pods "p" is forbidden: exceeded quota: q'),
        ("POST", 403, 'pods "p" is forbidden: unable to create new content because it is being terminated'),
        ("POST", 403, ""),
    ],
)
def test_what_is_no_missing_right_is_not_noted(method: str, status: int, message: str) -> None:
    noted = Forbidden()
    noted.note(method, status, message)
    assert noted.problem() == ""


def test_hostile_words_fill_no_memory() -> None:
    noted = Forbidden()
    for number in range(1000):
        noted.note("POST", 403, RBAC.format("create", f"r{number}", ""))
    assert noted.problem().count(",") < 64


@pytest.mark.parametrize("kept", [False, True])
def test_connections_of_its_own_note_it_too(kept: bool) -> None:
    async def run() -> str:
        message = RBAC.format("patch", "pods/status", "")
        script = Script([failed(403, message)])
        async with client_of(script) as server:
            client = server.apart(1) if kept else server
            with pytest.raises(ApiError):
                await client.patch("/api/v1/namespaces/x/pods/p/status", b"{}")
            if kept:
                await client.close()
            return server.forbidden.problem()

    assert "patch pods/status" in run_bounded(run())
