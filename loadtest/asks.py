"""The requests of the load test: bodies with holes for what is new in each call, and what a right answer to each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks import fleet
from loadtest import recording
from loadtest.target import Pod, Target

CANDIDATES = 100
"""Nodes that kube-scheduler offers to preempt at least; above 1,000 nodes a tenth of them."""
LARGEST_WITH_NODES = 1_000
"""Whole Node objects of 13 kB each: as many as stay far below the body limit of the server."""
PRIORITY = 987_654_321
_HOLES = (b"@uid@", b"@pod@", b"@gang@", b'"priority":%d' % PRIORITY)
_UID = b"20000000-0000-4000-8000-%012x"


class WrongAnswer(ValueError):
    """An answer that is not what was asked for: its time means nothing."""


Check = Callable[[Any], Any]


class Body:
    """A request with holes: the pod's uid and name, its gang, its priority."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        parts: list[tuple[int, bytes]] = [(-1, orjson.dumps(asked))]
        for hole, mark in enumerate(_HOLES):
            cut: list[tuple[int, bytes]] = []
            for kind, text in parts:
                first, *rest = text.split(mark)
                cut += [(kind, first), *((hole, part) for part in rest)]
            parts = cut
        self._parts = parts

    def fill(self, number: int, gang: int = 0) -> bytes:
        """Of the pod `number`; its priority is above that of all before it."""
        texts = (
            _UID % number,
            b"loadtest-%d" % number,
            b"gang-%d" % gang,
            b'"priority":%d' % (fleet.PREEMPTOR + number),
        )
        return b"".join(texts[hole] + part if hole >= 0 else part for hole, part in self._parts)


@dataclass(frozen=True)
class Ask:
    """One kind of call. `verb`: its name in the figures; `path`: of its URL; `check`: what a right answer holds, or
    WrongAnswer; `key`: of the answer that the null sends back."""

    verb: str
    names: int
    path: str
    body: Body
    check: Check

    @property
    def key(self) -> str:
        """Without characters that a URL has another meaning for."""
        return f"{self.verb.replace(', ', '-')}-{self.names}"


def waiting_pod(gpus: int, namespace: str, *, preempts: bool = False, gang: int = 0) -> Pod:
    """A pod as kube-scheduler sends one. `gang`: how many belong together."""
    made = fleet.asking_pod(gpus)
    made["metadata"] |= {"name": "@pod@", "namespace": namespace, "uid": "@uid@"}
    if gang:
        made["metadata"]["labels"] |= {"gpu-extender.io/gang": "@gang@", "gpu-extender.io/gang-min": str(gang)}
    made["spec"]["priority"] = PRIORITY if preempts else 0
    return made


class Asks:
    """What one target can be asked."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._some = {size: target.some(size) for size in target.sizes}

    def one_gpu(self, size: int, gang: int = 0) -> Ask:
        """filter for a pod that fits on some node of a fleet of ours."""
        return self.filter(waiting_pod(1, self._target.namespace, gang=gang), size)

    def filter(self, pod: Pod, size: int) -> Ask:
        """filter for a pod; the check returns the names that are answered."""
        names = self._some[size]
        body = Body({"Pod": pod, "Nodes": None, "NodeNames": names})
        return Ask(
            "filter", size, "/v1/filter", body, _filtered(frozenset(names), self._target.fits, self._target.live)
        )

    def too_many(self, size: int) -> Ask:
        """filter for a pod that fits nowhere: more GPUs than a node has, or than one has free in our frozen fleet.
        kube-scheduler names no node that has too few free: a live server takes that for news to come, an Error."""
        names = self._some[size]
        pod = waiting_pod(self._target.many, self._target.namespace, preempts=not self._target.live)
        body = Body({"Pod": pod, "Nodes": None, "NodeNames": names})
        return Ask("filter, rejected", size, "/v1/filter", body, _rejected(frozenset(names), self._target.live))

    def prioritize(self, names: Sequence[str], gang: int = 0, pod: Pod | None = None) -> Ask:
        """The points of these nodes, for a one-GPU pod or for `pod`; the check returns a node of the best."""
        asked = pod or waiting_pod(1, self._target.namespace, gang=gang)
        body = Body({"Pod": asked, "Nodes": None, "NodeNames": list(names)})
        return Ask("prioritize", len(names), "/v1/prioritize", body, _scored(frozenset(names)))

    def prioritize_all(self, size: int) -> Ask:
        """The points of as many nodes as filter was asked about, as for a retry."""
        return self.prioritize(self._some[size])

    def preempt(self, size: int, pod: Pod | None = None) -> Ask | None:
        """preempt for a pod of high priority, or for `pod`; None where no node has a pod to offer."""
        priority = (pod["spec"].get("priority") or 0) if pod else fleet.PREEMPTOR
        most = max(CANDIDATES, size // 10)
        offered: dict[str, list[str]] = {}
        for name in self._some[size]:
            victims = [uid for uid, its in self._target.victims.get(name, ()) if its < priority]
            if victims and len(offered) < most:
                offered[name] = victims
        if not offered:
            return None
        victims_by_node = {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in offered.items()
        }
        asked = pod or waiting_pod(self._target.many, self._target.namespace, preempts=True)
        body = Body({"Pod": asked, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims_by_node})
        return Ask("preempt", len(offered), "/v1/preempt", body, _evicts(offered, not self._target.live))

    def release(self) -> Ask:
        """filter over no node: the server forgets the GPUs that it assumes taken by this pod."""
        body = Body({"Pod": waiting_pod(1, self._target.namespace), "Nodes": None, "NodeNames": []})
        return Ask("release", 0, "/v1/filter", body, _filtered(frozenset(), False, True))

    def bind(self, pod: Pod, node: str) -> Ask:
        """The Binding of a pod that exists."""
        meta = pod["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return Ask("bind", 1, "/v1/bind", Body(asked), _bound)

    def with_nodes(self, size: int) -> Ask:
        """filter in the form with whole Node objects (`nodeCacheCapable: false`)."""
        names = self._some[size][:LARGEST_WITH_NODES]
        recorded = next(line for line in recording.read().lists if line.path == recording.NODES).fill(0, 0, 1, 1)
        items = [orjson.loads(recorded.replace(b"gpu-worker-0000", name.encode())) for name in names]
        pod = waiting_pod(1, self._target.namespace)
        body = Body({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
        check = _filtered_nodes(frozenset(names), self._target.fits, self._target.live)
        return Ask("filter, Node objects", len(names), "/v1/filter", body, check)


def _rejections(answer: Any, asked: frozenset[str]) -> set[str]:
    if answer["Error"]:
        raise WrongAnswer(f"Error: {answer['Error']}")
    found = {*(answer["FailedNodes"] or ()), *(answer["FailedAndUnresolvableNodes"] or ())}
    if not asked.issuperset(found):
        raise WrongAnswer("a node is rejected that was not asked about")
    return found


def _passed(answer: Any, names: list[str], asked: frozenset[str], fits: bool) -> list[str]:
    rejected = _rejections(answer, asked)
    if not asked.issuperset(names) or len(set(names)) != len(names) or rejected.intersection(names):
        raise WrongAnswer("a node is answered twice, was rejected, or was not asked about")
    if fits and not names:
        raise WrongAnswer("a one-GPU pod fits somewhere")
    return names


def tries_again(answer: Any) -> bool:
    """Whether filter answers an Error that states a reason: it waits for news, and kube-scheduler tries again."""
    error = str(answer["Error"])
    return error.startswith("gpu-extender: ") and "internal error" not in error


def _filtered(asked: frozenset[str], fits: bool, live: bool) -> Check:
    """`fits`: whether a node must be answered; `live`: whether a server may wait for news."""

    def check(answer: Any) -> list[str]:
        if live and not fits and tries_again(answer):
            return []
        return _passed(answer, list(answer["NodeNames"] or ()), asked, fits)

    return check


def _filtered_nodes(asked: frozenset[str], fits: bool, live: bool) -> Check:
    def check(answer: Any) -> list[str]:
        if live and not fits and tries_again(answer):
            return []
        _rejections(answer, asked)
        if answer["NodeNames"] is not None:
            raise WrongAnswer("Node objects were sent, and names are answered")
        return _passed(answer, [node["metadata"]["name"] for node in answer["Nodes"]["items"]], asked, fits)

    return check


def _rejected(asked: frozenset[str], live: bool) -> Check:
    """`live`: kube-scheduler names no node with too few GPUs, so the server may wait for news."""

    def check(answer: Any) -> list[str]:
        if live and tries_again(answer):
            return []
        if _rejections(answer, asked) != asked or answer["NodeNames"]:
            raise WrongAnswer("a pod passes that fits nowhere, or a node has no reason")
        return []

    return check


def _scored(asked: frozenset[str]) -> Check:
    def check(answer: Any) -> str:
        points = {entry["Host"]: entry["Score"] for entry in answer}
        if points.keys() != asked or len(answer) != len(asked):
            raise WrongAnswer("not every name has points, or one has them twice")
        if not all(isinstance(score, int) and 0 <= score <= 10 for score in points.values()):
            raise WrongAnswer("points are not whole numbers from 0 to 10")
        return max(points, key=points.__getitem__, default="")

    return check


def _evicts(offered: Mapping[str, list[str]], all_of_them: bool) -> Check:
    """`all_of_them`: a whole node is asked for, so all its pods are evicted."""

    def check(answer: Any) -> bool:
        found = answer["NodeNameToMetaVictims"] or {}
        if len(found) > 1 or not found.keys() <= offered.keys():
            raise WrongAnswer("more than one node is answered, or one that was not offered")
        for node, victims in found.items():
            uids = [pod["UID"] for pod in victims["Pods"]]
            if not uids or len(set(uids)) != len(uids) or (all_of_them and not set(offered[node]) <= set(uids)):
                raise WrongAnswer("the victims are none, are named twice, or do not suffice")
        if all_of_them and not found:
            raise WrongAnswer("no victims are answered, and there are some")
        return True

    return check


def _bound(answer: Any) -> bool:
    if answer["Error"]:
        raise WrongAnswer(f"Error: {answer['Error']}")
    return True
