"""A small kube-scheduler: one pod a cycle, in-tree filters, then the extender's verbs over HTTP.

What a cycle does, in order (as Kubernetes 1.37 has it): the nominated node alone, if there is one; filter; one feasible
node is taken without prioritize; the highest points, ties by lot; bind. With no node: victims by the in-tree rules on
nodes where evicting helps, preempt, eviction, nomination; the pod is tried again when its victims are gone. An Error
gives the cycle up and the pod is tried again. Points of in-tree scorers are not modelled: the extender's decide.
A pod that has its GPUs by ResourceClaims alone does not reach the extender (`managedResources`), and evicts nobody.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any, Literal, NamedTuple

from extender.sim import in_tree
from extender.sim.claims import DynamicResources
from extender.sim.cluster import SimCluster
from extender.sim.in_tree import InTreeVictims, Refusal, priority
from extender.sim.machines import GPU

Object = dict[str, Any]
ATTEMPTS = 5  # cycles that one pod gets in one run while the extender answers Error


@dataclass
class CycleOutcome:
    """One cycle of one pod."""

    uid: str
    result: Literal["bound", "waits", "nominated", "again"]
    node: str = ""
    sent: tuple[str, ...] = ()  # the nodes that filter was asked about
    passed: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  # node -> reason
    points: dict[str, int] = field(default_factory=dict)
    message: str = ""  # what the FailedScheduling event states
    offered: dict[str, InTreeVictims] = field(default_factory=dict)  # victims by the in-tree rules alone
    victims: tuple[str, ...] = ()


class Scheduler:
    """`settle` is called before each cycle: it waits until the extender has seen what we wrote."""

    def __init__(
        self,
        cluster: SimCluster,
        extender: Extender,
        *,
        seed: int = 0,
        settle: Callable[[], None] = lambda: None,
        bound: Callable[[], None] = lambda: None,
    ) -> None:
        """`bound` is called after each binding."""
        self._cluster = cluster
        self._extender = extender
        self._rng = random.Random(seed)
        self._settle = settle
        self._bound = bound
        self._devices = DynamicResources(cluster)

    def run(self, uids: Iterable[str] | None = None) -> list[CycleOutcome]:
        """One cycle for each pod without a node (or of `uids`): higher priority first, then the elder.

        A pod behind a scheduling gate is not tried. A cycle that ends in an Error is repeated, a few times at most.
        """
        wanted = None if uids is None else set(uids)
        waiting = [
            pod
            for pod in self._cluster.pods()
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
        ]
        queue = sorted(waiting, key=lambda pod: -priority(pod))  # stable: the order of creation within a priority
        outcomes = []
        for pod in queue:
            uid = str(pod["metadata"]["uid"])
            if wanted is not None and uid not in wanted:
                continue
            for _ in range(ATTEMPTS):
                outcome = self.cycle(uid)
                if outcome.result != "again":
                    break
            outcomes.append(outcome)
        return outcomes

    def cycle(self, uid: str) -> CycleOutcome:
        """Schedule one pod, once; KeyError when it does not exist."""
        self._settle()
        pod = self._cluster.pod(uid)
        if pod is None:
            raise KeyError(uid)
        try:
            outcome = self._cycle(pod, uid)
        except CallFailed as error:
            # As kube-scheduler: a cycle that failed (other than for want of a node) forgets the nomination.
            self._cluster.set_status(uid, nominatedNodeName=None)
            return CycleOutcome(uid, "again", message=str(error))
        if outcome.result in ("waits", "nominated"):
            status = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": outcome.message}
            self._cluster.set_status(uid, conditions=[status])
        return outcome

    def _cycle(self, pod: Object, uid: str) -> CycleOutcome:
        nodes = self._cluster.nodes()
        nominated = pod["status"].get("nominatedNodeName")
        if nominated and any(node["metadata"]["name"] == nominated for node in nodes):
            fast = self._find(pod, [node for node in nodes if node["metadata"]["name"] == nominated])[0]
            if fast.passed:
                return self._bind(pod, fast, nominated)
        outcome, statuses = self._find(pod, nodes)
        if not outcome.passed:
            return outcome if _by_claims(pod) else self._preempt(pod, outcome, statuses)
        if len(outcome.passed) == 1 or _by_claims(pod):
            return self._bind(pod, outcome, outcome.passed[0])
        outcome.points = self._extender.prioritize(_sent(pod), outcome.passed)
        most = max(outcome.points.get(node, 0) for node in outcome.passed)
        return self._bind(
            pod, outcome, self._rng.choice([n for n in outcome.passed if outcome.points.get(n, 0) == most])
        )

    def _find(self, pod: Object, nodes: list[Object]) -> tuple[CycleOutcome, dict[str, Refusal]]:
        statuses: dict[str, Refusal] = {}
        sent = []
        for node in nodes:
            name = str(node["metadata"]["name"])
            why = in_tree.refusal(pod, node, [*self._cluster.pods(name), *self._nominated(pod, name)])
            why = why or self._devices.refusal(pod, name)
            if why is None:
                sent.append(name)
            else:
                statuses[name] = why
        asks = sent and not _by_claims(pod)
        answer = self._extender.filter(_sent(pod), sent) if asks else Filtered(tuple(sent), {}, {})
        statuses |= {name: Refusal(why, True) for name, why in answer.failed.items()}
        statuses |= {name: Refusal(why, False) for name, why in answer.unresolvable.items()}
        reasons = {name: why.reason for name, why in sorted(statuses.items()) if name not in answer.passed}
        outcome = CycleOutcome(
            str(pod["metadata"]["uid"]), "waits", sent=tuple(sent), passed=answer.passed, refused=reasons
        )
        counted = Counter(reasons.values())
        outcome.message = f"0/{len(nodes)} nodes are available: " + ", ".join(
            sorted(f"{count} {reason}" for reason, count in counted.items())
        )
        return outcome, statuses

    def _nominated(self, pod: Object, node: str) -> list[Object]:
        """Other pods that were promised a place there and count before this one."""
        return [
            other
            for other in self._cluster.pods()
            if other["status"].get("nominatedNodeName") == node
            and not other["spec"].get("nodeName")
            and other["metadata"]["uid"] != pod["metadata"]["uid"]
            and priority(other) >= priority(pod)
        ]

    def _bind(self, pod: Object, outcome: CycleOutcome, node: str) -> CycleOutcome:
        meta = pod["metadata"]
        if _by_claims(pod):
            self._devices.reserve(pod, node)
            self._cluster.bind(meta["uid"], node, {})
        else:
            self._extender.bind(meta["namespace"], meta["name"], meta["uid"], node)
        outcome.result, outcome.node, outcome.message = "bound", node, ""
        self._bound()
        return outcome

    def _preempt(self, pod: Object, outcome: CycleOutcome, statuses: dict[str, Refusal]) -> CycleOutcome:
        nominated = pod["status"].get("nominatedNodeName")
        going = nominated and any(
            "deletionTimestamp" in other["metadata"] and priority(other) < priority(pod)
            for other in self._cluster.pods(nominated)
        )
        if pod["spec"].get("preemptionPolicy") == "Never" or going:
            return outcome
        for name, status in statuses.items():
            if status.resolvable:
                node = self._cluster.node(name)
                pods, others = self._cluster.pods(name), self._nominated(pod, name)
                chosen = in_tree.victims(pod, node, pods, others, self._cluster.all("PodDisruptionBudget"))
                if chosen is not None and chosen.pods:  # up to 1.37 a node without victims is no candidate
                    outcome.offered[name] = chosen
        if not outcome.offered:
            return outcome
        offered = {
            name: ([str(victim["metadata"]["uid"]) for victim in chosen.pods], chosen.violations)
            for name, chosen in outcome.offered.items()
        }
        answer = self._extender.preempt(_sent(pod), offered)
        candidates = {name: self._as_victims(name, uids, violations) for name, (uids, violations) in answer.items()}
        if not candidates:
            return outcome
        outcome.result, outcome.node = "nominated", in_tree.pick(candidates)
        outcome.victims = tuple(str(victim["metadata"]["uid"]) for victim in candidates[outcome.node].pods)
        for victim in outcome.victims:
            self._cluster.delete(victim)
        self._cluster.set_status(outcome.uid, nominatedNodeName=outcome.node)
        return outcome

    def _as_victims(self, node: str, uids: list[str], violations: int) -> InTreeVictims:
        by_uid = {str(pod["metadata"]["uid"]): pod for pod in self._cluster.pods(node)}
        for uid in uids:
            if uid not in by_uid:
                raise CallFailed(f"preempt: claims to preempt pod (UID {uid}) not found on node {node!r}")
        return InTreeVictims(tuple(by_uid[uid] for uid in uids), violations)


def _by_claims(pod: Object) -> bool:
    return bool(pod["spec"].get("resourceClaims")) and not in_tree.asked(pod)[GPU]


def _sent(pod: Object) -> Object:
    """The pod as it goes over the wire: from the informer's cache, so without kind and apiVersion."""
    return {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}


# -- the extender protocol as kube-scheduler speaks it: JSON over one connection that stays open.
#
# Written from the scheduler's side, on its own, so that a field that the server misspells is missed here as it would be
# there. Go's rules count: fields are matched without regard to case, what is not named is zero, a name that was not
# sent fails the whole call.


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
