"""Whose a token is, and what that user may do: the API server's own answers (TokenReview, SubjectAccessReview)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from extender.kube.client import ApiServer, NoAnswer

_TOKENS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(NamedTuple):
    """Whom a token stands for. All of it is reviewed: an authorizer may look at any part."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class PathRight(NamedTuple):
    """The right to ask for a path."""

    path: str
    verb: str = "get"  # the HTTP method in lower case

    def attributes(self) -> Mapping[str, Any]:
        """Of a SubjectAccessReview."""
        return {"nonResourceAttributes": {"path": self.path, "verb": self.verb}}


class ListPods(NamedTuple):
    """The right to list the pods of a namespace; "": of all."""

    namespace: str = ""

    def attributes(self) -> Mapping[str, Any]:
        """Of a SubjectAccessReview."""
        return {"resourceAttributes": {"namespace": self.namespace, "verb": "list", "resource": "pods"}}


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    allowed: bool = False


class _Answer(msgspec.Struct):
    status: _Status


class Reviews:
    """The two questions. ApiError: the server refuses them; NoAnswer: it gives no answer that can be used."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def user(self, token: str) -> User | None:
        """None: the API server accepts no such token."""
        status = await self._ask(_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.user
        if not status.authenticated or not user.username:
            return None
        return User(user.username, user.uid, user.groups, tuple(sorted(user.extra.items())))

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        """Whether the user has the right."""
        spec = {"user": user.name, "uid": user.uid, "groups": user.groups, "extra": dict(user.extra)}
        body = {**spec, **right.attributes()}
        return (await self._ask(_ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", body)).allowed

    async def _ask(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> _Status:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        answer = await self._server.post(path, body)
        try:
            return msgspec.json.decode(answer, type=_Answer).status
        except msgspec.MsgspecError as error:
            raise NoAnswer(f"{kind}: an answer that cannot be read: {error}") from error
