"""A small cluster of gated pods behind tests.kube.api_server: it lists in pages, and removes gates by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from extender.objects.queueing import GATE
from tests.kube.api_server import Answer, Request, Script, Writer, failed, whole

Object = dict[str, Any]


def gated(name: str, *gates: str, namespace: str = "a", created: str = "2026-01-01T00:00:00Z") -> Object:
    """A pod behind these gates (none named: ours)."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": created}
    spec = {"schedulingGates": [{"name": gate} for gate in gates or (GATE,)], "containers": [{"name": "main"}]}
    return {"metadata": meta, "spec": spec}


@dataclass
class GatedCluster:
    """The objects, and what the next patches are answered instead of being carried out."""

    pods: list[Object] = field(default_factory=list)
    bindings: list[Object] = field(default_factory=list)
    namespaces: list[Object] = field(default_factory=list)
    faults: dict[str, list[Answer]] = field(default_factory=dict)
    """By the name of a pod."""
    lists: list[Answer] = field(default_factory=list)
    """What the next continued lists are answered."""
    deleted: list[str] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)

    def script(self) -> Script:
        """For `serving`."""
        return Script([self._answer])

    def gates(self) -> dict[str, list[str]]:
        """The gates of each pod, by its name."""
        return {
            pod["metadata"]["name"]: [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
            for pod in self.pods
        }

    async def _answer(self, request: Request, writer: Writer) -> None:
        self.asked.append(request)
        answer = self._patched(request) if request.method == "PATCH" else self._other(request)
        await answer(request, writer)

    def _other(self, request: Request) -> Answer:
        *_, last = request.path.split("/")
        if request.method == "DELETE":
            self.deleted.append(last)
            self.bindings = [one for one in self.bindings if one["metadata"]["name"] != last]
            return whole(200, {})
        if last == "mutatingadmissionpolicybindings":
            return whole(200, {"kind": "MutatingAdmissionPolicyBindingList", "items": self.bindings or None})
        if last == "namespaces":
            return self._page(request, self.namespaces, "Namespace")
        assert (last, request.params["fieldSelector"]) == ("pods", "spec.nodeName=")
        where = request.path.split("/")[4] if "namespaces" in request.path else None
        return self._page(request, [pod for pod in self.pods if where in (None, pod["metadata"]["namespace"])], "Pod")

    def _page(self, request: Request, items: list[Object], kind: str) -> Answer:
        if "continue" in request.params and self.lists:
            return self.lists.pop(0)
        start = int(request.params.get("continue", 0))
        end = start + int(request.params["limit"])
        meta = {"resourceVersion": "1", "continue": str(end) if end < len(items) else ""}
        return whole(200, {"kind": f"{kind}List", "metadata": meta, "items": items[start:end]})

    def _patched(self, request: Request) -> Answer:
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        namespace, name = request.path.split("/")[4], request.path.split("/")[6]
        if waiting := self.faults.get(name):
            return waiting.pop(0)
        patch = json.loads(request.body)
        for pod in self._named(namespace, name):
            if patch["metadata"]["uid"] != pod["metadata"]["uid"]:
                return failed(422, f'Pod "{name}" is invalid: metadata.uid: Invalid value: field is immutable')
            dropped = {one["name"] for one in patch["spec"]["schedulingGates"] if one["$patch"] == "delete"}
            pod["spec"]["schedulingGates"] = [
                gate for gate in pod["spec"]["schedulingGates"] if gate["name"] not in dropped
            ]
            return whole(200, pod)
        return failed(404, f'pods "{name}" not found')

    def _named(self, namespace: str, name: str) -> Iterator[Object]:
        return (
            pod for pod in self.pods if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name)
        )
