"""TokenReview and SubjectAccessReview: what is sent, and what each answer means."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import pytest

from extender.kube.client import ApiError, NoAnswer
from extender.server.gate import ListPods, PathRight, Reviews, User
from tests.kube.api_server import Answer, Script, client_of, failed, hung_up, whole
from tests.waiting import run_bounded

T = TypeVar("T")
USER = User("anna", "u-1", ("admins", "system:authenticated"), (("scopes", ("a", "b")),))


def asked(answer: Answer, ask: Callable[[Reviews], Awaitable[T]]) -> tuple[T, Any]:
    """(what came of one question, the body that was sent)."""
    script = Script([answer])

    async def run() -> T:
        async with client_of(script, timeout=5) as server:
            return await ask(Reviews(server))

    result = run_bounded(run())
    [request] = script.requests
    assert request.method == "POST"
    return result, (request.path, json.loads(request.body))


def test_a_user_is_all_that_the_token_review_states() -> None:
    user = {"username": "anna", "uid": "u-1", "groups": list(USER.groups), "extra": {"scopes": ["a", "b"]}}
    found, (path, body) = asked(whole(201, {"status": {"authenticated": True, "user": user}}), lambda it: it.user("t"))
    assert found == USER
    assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert body == {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "t"}}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "error": "expired"},
        {"authenticated": False, "user": {"username": "anna"}},
        {"authenticated": True},
        {"authenticated": True, "user": {"username": ""}},
    ],
)
def test_what_names_no_user_is_none(status: Mapping[str, Any]) -> None:
    assert asked(whole(201, {"status": status}), lambda it: it.user("t"))[0] is None


@pytest.mark.parametrize(
    ("right", "attributes"),
    [
        (PathRight("/metrics"), {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
        (PathRight("/debug/whatif", "post"), {"nonResourceAttributes": {"path": "/debug/whatif", "verb": "post"}}),
        (ListPods("ns"), {"resourceAttributes": {"namespace": "ns", "verb": "list", "resource": "pods"}}),
        (ListPods(), {"resourceAttributes": {"namespace": "", "verb": "list", "resource": "pods"}}),
    ],
)
def test_a_right_is_asked_for_with_all_of_the_user(right: PathRight | ListPods, attributes: Mapping[str, Any]) -> None:
    for status, allowed in (({"allowed": True}, True), ({"allowed": False}, False), ({"denied": True}, False)):
        found, (path, body) = asked(whole(201, {"status": status}), lambda it: it.may(USER, right))
        assert found == allowed
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        user = {"user": "anna", "uid": "u-1", "groups": list(USER.groups), "extra": {"scopes": ["a", "b"]}}
        assert body["spec"] == {**user, **attributes}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failed(403), ApiError),
        (hung_up(), NoAnswer),
        (whole(201, b"no JSON"), NoAnswer),
        (whole(201, {"status": {"authenticated": "yes", "allowed": "yes"}}), NoAnswer),
        (whole(201, {}), NoAnswer),
    ],
)
def test_no_answer_is_no_yes(answer: Answer, error: type[Exception]) -> None:
    for ask in (lambda it: it.user("t"), lambda it: it.may(USER, PathRight("/metrics"))):
        with pytest.raises(error):
            asked(answer, ask)
