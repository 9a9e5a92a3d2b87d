"""The extender protocol as kube-scheduler speaks it: JSON over one connection that stays open.

Written from the scheduler's side, on its own, so that a field that the server misspells is missed here as it would be
there. Go's rules count: fields are matched without regard to case, what is not named is zero, a name that was not sent
fails the whole call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

Object = dict[str, Any]


class CallFailed(Exception):
    """The verb failed: the scheduler gives this cycle up and tries the pod again."""


class Filtered(NamedTuple):
    """The answer of filter."""

    passed: tuple[str, ...]
    failed: dict[str, str]  # node -> reason
    unresolvable: dict[str, str]  # node -> reason


class Extender:
    """One server; for one thread. `calls` counts what was asked, by verb; `connections` how often we dialed."""

    def __init__(self, host: str, port: int, timeout: float = 5.0) -> None:
        self.calls: Counter[str] = Counter()
        self.connections = 0
        self._host, self._port, self._timeout = host, port, timeout
        self._connection: HTTPConnection | None = None

    def filter(self, pod: Object, nodes: Sequence[str]) -> Filtered:
        """The answer to one filter call; CallFailed for an error, and for a node that was not sent."""
        answer = self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if not isinstance(answer, dict):
            raise CallFailed("filter: the answer is not an object")
        folded = _folded(answer)
        if folded.get("error"):
            raise CallFailed(str(folded["error"]))
        passed = tuple(folded.get("nodenames") or ())
        if strangers := sorted(set(passed) - set(nodes)):
            raise CallFailed(f"filter: claims a node that was not sent: {strangers[0]}")
        return Filtered(passed, folded.get("failednodes") or {}, folded.get("failedandunresolvablenodes") or {})

    def prioritize(self, pod: Object, nodes: Sequence[str]) -> dict[str, int]:
        """Points by node. kube-scheduler ignores what is wrong here; we do not."""
        answer = self._post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if not isinstance(answer, list):
            raise CallFailed("prioritize: the answer is not an array")
        points: Counter[str] = Counter()
        for entry in map(_folded, answer):
            if type(entry.get("score", 0)) is not int:
                raise CallFailed(f"prioritize: the score {entry['score']!r} is not an integer")
            points[str(entry.get("host", ""))] += entry.get("score", 0)
        return dict(points)

    def preempt(
        self, pod: Object, offered: Mapping[str, tuple[Sequence[str], int]]
    ) -> dict[str, tuple[list[str], int]]:
        """Node -> (uids of the victims, violations), as offered and as answered."""
        meta = {
            node: {"Pods": [{"UID": uid} for uid in victims], "NumPDBViolations": violations}
            for node, (victims, violations) in offered.items()
        }
        answer = self._post("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})
        if not isinstance(answer, dict):
            raise CallFailed("preempt: the answer is not an object")
        offers = {}
        for node, victims in (_folded(answer).get("nodenametometavictims") or {}).items():
            folded = _folded(victims)  # a null here would crash the scheduler: let it crash us too
            pods = [str(_folded(pod)["uid"]) for pod in folded.get("pods") or ()]
            if not pods:
                raise CallFailed(f"preempt: expected at least one victim pod on node {node!r}")
            offers[node] = (pods, int(folded.get("numpdbviolations", 0)))
        return offers

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Have the server bind the pod; CallFailed with its error."""
        answer = self._post("bind", {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node})
        if not isinstance(answer, dict):
            raise CallFailed("bind: the answer is not an object")
        if error := _folded(answer).get("error"):
            raise CallFailed(str(error))

    def decisions(self, pod: str) -> list[Object]:
        """What the debug endpoint has kept about NAMESPACE/NAME, newest first."""
        answer = self._exchange("GET", f"/debug/decisions?pod={pod}", None)
        return list(answer["decisions"])

    def queue(self) -> Object:
        """What waits behind the gate of the queue, as the debug endpoint has it."""
        answer: Object = self._exchange("GET", "/debug/queue", None)
        return answer

    def explained(self, pod: str) -> Object:
        """The verdict on NAMESPACE/NAME, as the debug endpoint has it."""
        answer: Object = self._exchange("GET", f"/debug/explain?pod={pod}", None)
        return answer

    def preferred(self, pod: str) -> str:
        """Why the best node for NAMESPACE/NAME is before the second, as the pod's page has it."""
        return str(self._exchange("GET", f"/pod.json?pod={pod}", None)["because"])

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, verb: str, body: object) -> Any:
        self.calls[verb] += 1
        return self._exchange("POST", f"/v1/{verb}", json.dumps(body).encode())

    def _exchange(self, method: str, path: str, body: bytes | None) -> Any:
        if self._connection is None:
            self._connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
            self.connections += 1
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise CallFailed(f"{path}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise CallFailed(f"{path}: code {response.status}")
        try:
            return json.loads(raw)
        except ValueError as error:
            raise CallFailed(f"{path}: the answer is not JSON") from error


def _folded(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in answer.items()}
