"""Which writes the API server refuses for want of a right; both clients note them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from extender.kube.client import REMEMBERED_SECONDS, ApiError, ApiServer, Forbidden
from tests.kube.api_server import Script, failed, serving

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


async def _no_headers() -> Mapping[str, str]:
    return {}


@pytest.mark.parametrize("kept", [False, True])
def test_connections_of_its_own_note_it_too(kept: bool) -> None:
    async def run() -> str:
        message = RBAC.format("patch", "pods/status", "")
        script = Script([failed(403, message)])
        async with serving(script) as url, ApiServer(url, headers=_no_headers) as server:
            client = server.apart(1) if kept else server
            with pytest.raises(ApiError):
                await client.patch("/api/v1/namespaces/x/pods/p/status", b"{}")
            if kept:
                await client.close()
            return server.forbidden.problem()

    assert "patch pods/status" in asyncio.run(run())
