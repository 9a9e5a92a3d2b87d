"""What every entrance answers of a cluster that a file states."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import orjson

from extender.ask import checks, frozen
from extender.ask import offline as commands
from extender.ask.judge import over
from extender.ask.suppose import NOW, SupposedCluster, frozen_verbs
from extender.ask.whatif import question
from extender.ask.whatif.question import Changes, Document
from extender.cluster.cluster import Cluster
from extender.objects.queueing import GATE
from extender.web.node_pages import node_maps
from tests.metamorphic.clusters import Stated, drawn, with_claims
from tests.world import JSON, World

DIGITS: Final = 9  # of a score: sums in another order differ behind them


def events(stated: Stated) -> list[Any]:
    """The objects as the commands read them."""
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": list(stated.items)}).encode()
    return frozen.parse(raw, frozenset(one.name for one in stated.settings.resources))


def queued(stated: Stated) -> JSON:
    """`gpu-extender queue`."""
    return commands.queue(stated.settings, events(stated), stated.wall)


def asked(stated: Stated, changes: Changes | None = None, *, pending: bool = True) -> JSON:
    """`gpu-extender whatif`, of the manifests and, with `pending`, of the pods of the file that wait ungated."""
    snapshot = SupposedCluster.of(stated.settings, events(stated))
    documents = [Document(one, f"asked[{at}]") for at, one in enumerate(stated.asked)]
    made = question.read(documents, snapshot.cluster.gpu_names, sorted(_pending(stated)) if pending else (), changes)
    return commands.whatif(snapshot, made, stated.wall, stated.items)


def offline(stated: Stated) -> JSON:
    """What all commands answer over the file."""
    settings, wall = stated.settings, stated.wall
    mapped = over(frozen_verbs(settings, events(stated)))
    cluster = Cluster(settings)
    cluster.apply(events(stated), 0.0)
    nodes = sorted(one["metadata"]["name"] for one in stated.of("Node") if _gpus(one))
    return {
        "queue": queued(stated),
        "whatif": asked(stated),
        "cordoned": asked(stated, Changes(cordon=tuple(nodes[:1]))) if nodes else None,
        "top": commands.explainer(settings, events(stated), wall).fleet(),
        "capacity": commands.explainer(settings, events(stated), wall).capacity(),
        "map": orjson.loads(orjson.dumps(node_maps(mapped, NOW))),
        "check": checks.answer(settings, cluster, stated.items, wall),
        "explain": [commands.explain(settings, events(stated), pod, wall) for pod in sorted(_unbound(stated))],
    }


@cache
def known(seed: int, *, claims: bool) -> tuple[Stated, JSON, JSON]:
    """A cluster as it was drawn, or with its GPUs by claims, and what the commands and the verbs answer: once for all
    tests that state it in another way."""
    stated = with_claims(drawn(seed)) if claims else drawn(seed)
    return stated, offline(stated), verbs(stated)


def _gpus(node: JSON) -> bool:
    return any("/gpu" in name for name in node["status"]["allocatable"])


def _unbound(stated: Stated) -> Iterable[tuple[str, str]]:
    for pod in stated.of("Pod"):
        if not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
            yield pod["metadata"]["namespace"], pod["metadata"]["name"]


def _pending(stated: Stated) -> Iterable[tuple[str, str]]:
    gated = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in stated.of("Pod")
        if GATE in [gate["name"] for gate in one["spec"].get("schedulingGates", ())]
    }
    return (key for key in _unbound(stated) if key not in gated)


def verbs(stated: Stated) -> JSON:
    """What filter answers of each manifest that is a pod, prioritize of the nodes that pass, and preempt.
    kube-scheduler offers all pods of a lower priority. Each pod is asked about on a cluster of its own: an answer
    changes what is free."""
    answers: JSON = {}
    for pod in (one for one in stated.asked if one["kind"] == "Pod"):
        world = World(stated.settings)
        world.wall = stated.wall
        world.cluster.apply(events(stated), world.now)
        name = pod["metadata"]["name"]
        nodes = sorted(world.cluster.nodes)
        passed = world.filter(pod, nodes)
        answers[name] = {
            "filter": {key: sorted(some) if isinstance(some, (list, dict)) else some for key, some in passed.items()},
            "why": passed.get("FailedNodes"),
            "prioritize": world.prioritize(pod, passed.get("NodeNames") or ()),
            "scores": _scores(world),
        }
        if not passed.get("NodeNames"):
            answers[name]["preempt"] = _preempted(world, pod, nodes)
    return answers


def _scores(world: World) -> JSON:
    """The score of each node that passed, by the latest decision; of pods that are not ours there is none."""
    latest = world.call("/debug/decisions", method="GET").json["decisions"][:1]
    return {one["node"]: round(one["score"], DIGITS) for made in latest for one in made["nodes"] if one.get("score")}


def _preempted(world: World, pod: JSON, nodes: Iterable[str]) -> JSON:
    offered = {
        node: [one.uid.removeprefix("uid-") for one in world.cluster.pods.values() if _below(one, node, pod)]
        for node in nodes
    }
    chosen = world.preempt(pod, {node: sorted(pods) for node, pods in offered.items() if pods})
    return {"victims": chosen, "certificate": world.decision().get("certificate")}


def _below(other: Any, node: str, pod: JSON) -> bool:
    return bool(other.node == node and other.priority < pod["spec"]["priority"])


def difference(first: Any, second: Any, path: str = "") -> str:
    """Where two answers differ first, "" where they do not."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(one for one in second if one not in first)]:
            if key not in first or key not in second:
                return f"{path}.{key}: only in one"
            if found := difference(first[key], second[key], f"{path}.{key}"):
                return found
        return ""
    if isinstance(first, list) and isinstance(second, list):
        for at, (one, other) in enumerate(zip(first, second, strict=False)):
            if found := difference(one, other, f"{path}[{at}]"):
                return found
        return "" if len(first) == len(second) else f"{path}: {len(first)} and {len(second)} entries"
    return "" if first == second else f"{path}: {first!r} and {second!r}"
