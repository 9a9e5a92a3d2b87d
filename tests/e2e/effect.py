"""What the API server itself reads by a watch of its own: it stores an object, and acts on it a moment later.

Admission rejects a pod of a PriorityClass that it does not know yet, and gives it the value of a deleted one of the
same name. RBAC denies what a new binding grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from extender.kube.client import ApiError
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.e2e.api import Api, Object

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def wait_for_effect(api: Api, made: Object) -> None:
    """Wait until the API server acts on an object that was created; at once for other kinds."""
    what = f"{made['kind']} {made['metadata']['name']} has an effect"
    if made["kind"] == "PriorityClass":
        wait_for(lambda: _prioritizes(api, made), 60, what)
    elif made["kind"] in ("RoleBinding", "ClusterRoleBinding"):
        _wait_for_rights(api, made, what)


def _prioritizes(api: Api, made: Object) -> bool:
    """Whether a pod of the class gets its priority."""
    probe = {
        "metadata": {"name": "priority-probe"},
        "spec": {"containers": [{"name": "main", "image": "none"}], "priorityClassName": made["metadata"]["name"]},
    }
    try:
        pod = api.request("POST", "/api/v1/namespaces/default/pods", probe, params={"dryRun": "All"})
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return bool((pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (made["value"], made["preemptionPolicy"]))


def _wait_for_rights(api: Api, made: Object, what: str) -> None:
    """Until each subject has the first right of the role. Nothing where the role comes later."""
    space = made["metadata"].get("namespace", "")
    kind, name = made["roleRef"]["kind"], made["roleRef"]["name"]
    role = api.find(kind, name, space if kind == "Role" else None)
    if role is None:
        return
    if "aggregationRule" in role:  # a controller adds the rules up
        role = wait_for(lambda: (now := api.get(kind, name))["rules"] and now, 60, f"the rules of {name}")
    right = next((rule for rule in role["rules"] or () if rule.get("resources")), None)
    if right is None:
        return
    for subject in made.get("subjects", ()):
        review = {"resourceAttributes": _attributes(right, space), **_identity(subject)}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review}
        wait_for(lambda body=body: api.request("POST", _REVIEWS, body)["status"]["allowed"], 60, what)  # type: ignore[misc]


def _attributes(right: Mapping[str, Any], namespace: str) -> dict[str, str]:
    resource, _, subresource = right["resources"][0].partition("/")
    return {
        "namespace": namespace,
        "group": right["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "verb": right["verbs"][0],
        "name": right.get("resourceNames", [""])[0],
    }


def _identity(subject: Mapping[str, str]) -> dict[str, Any]:
    if subject["kind"] == "ServiceAccount":
        space = subject["namespace"]
        return {
            "user": f"system:serviceaccount:{space}:{subject['name']}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated"],
        }
    return {"user": "probe", "groups": [subject["name"]]} if subject["kind"] == "Group" else {"user": subject["name"]}
