"""Tokens for metrics and pages: who passes, what is asked of the API server, and how often."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from extender.act.controller import Frozen
from extender.errors import BadInput, Busy
from extender.kube.client import ApiError, NoAnswer
from extender.metrics import Metrics
from extender.objects.decode import Invalid
from extender.server import gate as module
from extender.server.gate import (
    LONGEST_TOKEN,
    MOST_REMEMBERED,
    ListPods,
    PathRight,
    Reviewer,
    ReviewFailed,
    Reviews,
    User,
    token_of,
)
from extender.settings import Settings
from tests.waiting import run_bounded
from tests.world import World

AUTHORIZED = Settings.model_validate({"server": {"metrics": {"authorize": True}, "debug": {"authorize": True}}})


class ApiServer(Reviews):
    """Tokens are the names of users. `rights`: of each; `failure`: of every review."""

    def __init__(self, rights: Mapping[str, set[PathRight | ListPods]]) -> None:
        self.rights = rights
        self.failure: Exception | None = None
        self.asked: list[Any] = []

    async def user(self, token: str) -> User | None:
        self.asked.append(token)
        if self.failure:
            raise self.failure
        return User(token, groups=("system:authenticated",)) if token in self.rights else None

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        self.asked.append(right)
        if self.failure:
            raise self.failure
        assert user.groups == ("system:authenticated",)
        return right in self.rights[user.name] or (
            isinstance(right, PathRight) and PathRight("*") in self.rights[user.name]
        )


RIGHTS: dict[str, set[PathRight | ListPods]] = {
    "nobody": set(),
    "prometheus": {PathRight("/metrics")},
    "visitor": {PathRight("*")},
    "tenant": {PathRight("*"), ListPods("default")},
    "operator": {PathRight("*"), ListPods()},
}


@pytest.fixture
def asks() -> ApiServer:
    return ApiServer(RIGHTS)


@pytest.fixture
def world(asks: ApiServer) -> World:
    made = World(AUTHORIZED, reviews=asks)
    made.node("n", 4)
    made.pod("mine", 2)
    made.pod("other", 2, namespace="else")
    return made


def ask(world: World, path: str, token: str = "", method: str = "GET") -> httpx.Response:
    """On an event loop: a review waits."""

    async def answered() -> httpx.Response:
        transport = httpx.ASGITransport(world.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.request(method, path, headers={"authorization": f"Bearer {token}"} if token else {})

    return run_bounded(answered())


def status(world: World, path: str, token: str = "", method: str = "GET") -> int:
    return ask(world, path, token, method).status_code


ANY_POD = ("/debug/state", "/debug/decisions", "/debug/queue", "/debug/top", "/debug/capacity", "/debug/map", "/",
           "/debug/plan?for=1", "/.json", "/waiting.json", "/pod?pod=default/mine",
           "/debug/decisions?pod=default/mine")  # fmt: skip


@pytest.mark.parametrize("path", [*ANY_POD, "/metrics", "/debug/explain?pod=default/mine", "/debug/openapi.json"])
def test_without_a_token_that_is_accepted_nothing_is_answered(world: World, asks: ApiServer, path: str) -> None:
    assert status(world, path) == 401
    assert asks.asked == []
    assert status(world, path, "stranger") == 401
    assert status(world, path, "nobody") == 403


def test_verbs_and_health_need_no_token(world: World, asks: ApiServer) -> None:
    assert [status(world, path) for path in ("/healthz", "/livez", "/readyz")] == [200, 200, 200]
    assert world.filter(world.pod("new", 1))["NodeNames"] == ["n"]
    assert asks.asked == []


def test_a_path_needs_its_own_right(world: World, asks: ApiServer) -> None:
    assert status(world, "/metrics", "prometheus") == 200
    assert status(world, "/debug/openapi.json", "prometheus") == 403
    assert status(world, "/debug/openapi.json", "visitor") == 200
    assert PathRight("/debug/openapi.json") in asks.asked


@pytest.mark.parametrize("path", ANY_POD)
def test_pages_that_name_pods_need_the_right_to_list_them(world: World, path: str) -> None:
    assert status(world, path, "visitor") == 403
    assert status(world, path, "tenant") == 403
    assert status(world, path, "operator") == 200


def test_a_what_if_needs_it_too(world: World, asks: ApiServer) -> None:
    assert status(world, "/debug/whatif", "tenant", "POST") == 403
    assert PathRight("/debug/whatif", "post") in asks.asked
    assert status(world, "/debug/whatif", "operator", "POST") == 400  # not JSON


def test_a_tenant_sees_the_verdict_on_its_own_pods_without_those_of_others(world: World) -> None:
    def explained(token: str) -> Any:
        return ask(world, "/debug/explain?pod=default/mine", token).json()

    world.pod("high", 4, "n", priority=9, namespace="else")
    whole, own = explained("operator"), explained("tenant")
    assert own["verdict"] == whole["verdict"] == "waits"
    assert set(own) == set(whole)
    assert (own["sentence"], own["ways_out"], own["decisions"], own["queue"]) == ("", [], [], None)
    assert [one["code"] for one in own["warnings"]] == ["left-out"]
    assert "else" not in str({key: value for key, value in own.items() if key != "warnings"})
    assert status(world, "/debug/explain?pod=default/mine", "visitor") == 403


def test_whether_a_pod_exists_is_said_after_the_right_alone(world: World) -> None:
    assert status(world, "/debug/explain?pod=else/absent", "tenant") == 403
    assert status(world, "/debug/explain?pod=else/other", "tenant") == 403
    assert status(world, "/debug/explain?pod=default/absent", "tenant") == 404
    assert status(world, "/debug/explain", "tenant") == 403


@pytest.mark.parametrize(("settings", "named"), [(Settings(), 1), (AUTHORIZED, 0)])
def test_readiness_names_no_object_where_pages_need_a_token(settings: Settings, named: int, asks: ApiServer) -> None:
    made = World(settings, reviews=asks, source=Frozen([Invalid("Pod", "default/broken", "a sentence")]))
    assert len(made.call("/readyz", method="GET").json["warnings"]) == named


@pytest.mark.parametrize("failure", [NoAnswer("away"), ApiError(403, "not allowed"), TimeoutError()])
def test_without_an_answer_nobody_passes(world: World, asks: ApiServer, failure: Exception) -> None:
    asks.failure = failure
    assert status(world, "/metrics", "prometheus") == 503
    assert world.metric("reviews_total", kind="token", result="failed") == 1
    asks.failure = None
    assert status(world, "/metrics", "prometheus") == 200


async def test_answers_are_remembered_for_a_while() -> None:
    asks, now = ApiServer(RIGHTS), [0.0]
    reviewer = Reviewer(asks, Metrics(), lambda: now[0])

    async def passes(token: str) -> bool:
        user = await reviewer.user(token)
        return user is not None and await reviewer.may(user, PathRight("/metrics"))

    for at, token, asked in (
        (0, "prometheus", 2), (29, "prometheus", 0), (31, "prometheus", 1), (62, "prometheus", 2),
        (70, "nobody", 2), (74, "nobody", 0), (76, "nobody", 1), (80, "stranger", 1), (84, "stranger", 0),
        (86, "stranger", 1),
    ):  # fmt: skip
        now[0] = float(at)
        asks.asked.clear()
        assert await passes(token) == (token == "prometheus")
        assert len(asks.asked) == asked, at


async def test_new_tokens_are_bounded_in_memory_and_in_rate() -> None:
    asks, now = ApiServer(RIGHTS), [0.0]
    reviewer = Reviewer(asks, Metrics(), lambda: now[0])
    for i in range(100):
        assert await reviewer.user(f"token-{i}") is None
    with pytest.raises(Busy):
        await reviewer.user("one more")
    assert await reviewer.user("token-99") is None  # remembered
    for i in range(2 * MOST_REMEMBERED):
        now[0] += 0.1
        await reviewer.user(f"later-{i}")
    assert len(reviewer._users._kept) == MOST_REMEMBERED
    assert "later" not in str(reviewer._users._kept)  # a hash of the token alone


async def test_an_api_server_that_does_not_answer_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVIEW_SECONDS", 0.05)

    class Silent(ApiServer):
        async def user(self, token: str) -> User | None:
            await asyncio.sleep(3600)
            return None

    reviewer = Reviewer(Silent(RIGHTS), Metrics())
    answers = await asyncio.gather(*(reviewer.user(f"{i}") for i in range(20)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {ReviewFailed}


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc.def", "abc.def"),
        ("bearer  abc ", "abc"),
        (basic("anyone:abc"), "abc"),
        (basic(":a:b"), "a:b"),
        (basic("abc"), ""),
        ("Basic ???", ""),
        ("Basic /w==", ""),
        ("Digest abc", ""),
        ("abc", ""),
        ("", ""),
        ("Bearer", ""),
        ("Bearer a b", ""),
        ("Bearer a\tb", ""),
        ("Bearer ä", ""),
        (f"Bearer {'a' * LONGEST_TOKEN}", "a" * LONGEST_TOKEN),
        (f"Bearer {'a' * (LONGEST_TOKEN + 1)}", ""),
    ],
)
def test_what_can_be_a_token(header: str, token: str) -> None:
    assert token_of(header) == token


def test_both_forms_are_offered_to_a_client_without_a_token(world: World) -> None:
    offered = ask(world, "/").headers.get_list("www-authenticate")
    assert [value.split()[0] for value in offered] == ["Basic", "Bearer"]


def test_a_server_without_an_api_server_cannot_review() -> None:
    with pytest.raises(BadInput, match="reviewed by an API server"):
        assert World(AUTHORIZED).server
