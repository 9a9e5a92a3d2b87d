"""What an account has asked the API server, and which right of which role each request needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.e2e.api import Object, Objects
from tests.e2e.cluster import ControlPlane


class Right(NamedTuple):
    """One verb on one resource of one group. `name`: of the object where the role names it; `namespace`: of a Role;
    `role`: which one has it."""

    role: str
    namespace: str
    group: str
    resource: str
    verb: str
    name: str

    def allows(self, asked: Request) -> bool:
        """Whether a request needs this right."""
        same = (self.group, self.resource, self.verb) == (asked.group, asked.resource, asked.verb)
        return same and self.name in ("", asked.name) and self.namespace in ("", asked.namespace)


class Request(NamedTuple):
    """What was asked. `allowed`: by the authorizer; `status`: of the answer."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str
    allowed: bool
    status: int


def rights(role: Object) -> Iterator[Right]:
    """Every right of a Role or ClusterRole by itself."""
    meta = role["metadata"]
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Right(meta["name"], meta.get("namespace", ""), group, resource, verb, name)


def without(role: Object, right: Right) -> list[Object]:
    """The rules of the role with each right as a rule of its own, without this one."""
    return [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
        | ({"resourceNames": [one.name]} if one.name else {})
        for one in rights(role)
        if one != right
    ]


def roles_of(objects: Objects, account: str) -> Objects:
    """The Roles and ClusterRoles among the objects that are bound to a ServiceAccount among them."""
    bound = {
        (made["roleRef"]["kind"], made["roleRef"]["name"])
        for made in objects
        if made["kind"].endswith("RoleBinding") and any(one["name"] == account for one in made["subjects"])
    }
    return [made for made in objects if (made["kind"], made["metadata"]["name"]) in bound]


def requests(control_plane: ControlPlane, user: str, since: int = 0) -> set[Request]:
    """The requests of an account so far, each once, without its first `since`: tests before have made these."""
    return set(_requests(control_plane.audited(user)[since:]))


def _requests(events: Iterable[Object]) -> Iterator[Request]:
    for event in events:
        about = event.get("objectRef")
        if about is None:
            continue
        resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
        yield Request(
            about.get("apiGroup", ""),
            resource,
            event["verb"],
            about.get("namespace", ""),
            about.get("name", ""),
            event["annotations"].get("authorization.k8s.io/decision") == "allow",
            event["responseStatus"]["code"],
        )
