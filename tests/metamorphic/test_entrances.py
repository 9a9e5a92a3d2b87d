"""One question through every entrance: the queue, what-if, explain and capacity over a file, and a server with the same
objects. They agree on whether a gang of the queue starts, where, why not, and what helps at which cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from extender.ask import offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import question
from tests.metamorphic.answers import events, queued
from tests.metamorphic.clusters import CASES, Stated, drawn, with_claims
from tests.web.page.scene import with_queue
from tests.world import JSON, World

HELD_BACK = ("order", "delays", "depth")
"""Of gangs that may have a place."""


def members(stated: Stated) -> dict[str, list[str]]:
    """NAMESPACE/NAME of the pods behind the gate, by gang as answers name it."""
    by_gang: dict[str, list[str]] = {}
    for pod in stated.of("Pod"):
        if pod["spec"].get("schedulingGates"):
            meta = pod["metadata"]
            gang = meta["annotations"].get("gpu-extender.io/gang", meta["name"])
            by_gang.setdefault(f"{meta['namespace']}/{gang}", []).append(f"{meta['namespace']}/{meta['name']}")
    return by_gang


def whatif(stated: Stated, pods: list[str]) -> JSON:
    """Of these pods of the file."""
    supposed = SupposedCluster.of(stated.settings, events(stated))
    named = [(pod.partition("/")[0], pod.partition("/")[2]) for pod in pods]
    return offline.whatif(supposed, question.read([], supposed.cluster.gpu_names, named), stated.wall, stated.items)


def explain(stated: Stated, pod: str) -> JSON:
    namespace, _, name = pod.partition("/")
    return offline.explain(stated.settings, events(stated), (namespace, name), stated.wall)


def places(results: list[JSON]) -> Counter[str]:
    """How many pods go to each node."""
    return Counter(result["node"] for result in results if result["node"])


def worlds() -> Iterator[tuple[str, Stated]]:
    for seed in range(2 * CASES):
        yield f"drawn-{seed}", drawn(seed)
    for seed in range(CASES):
        yield f"claims-{seed}", with_claims(drawn(seed))


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, Stated, JSON]]:
    """Each cluster with the answer of the queue."""
    return [(name, stated, queued(stated)) for name, stated in worlds()]


def test_what_if_places_what_the_queue_starts(asked: list[tuple[str, Stated, JSON]]) -> None:
    seen = 0
    for name, stated, queue in asked:
        pods = members(stated)
        for start in queue["starts"]:
            answer = whatif(stated, pods[start["gang"]])
            assert places(answer["results"]) >= places(start["pods"]), (name, start["gang"])
            assert not [result for result in answer["results"] if result["victims"]], (name, start["gang"])
            by_name = {result["pod"]["name"]: result for result in answer["results"]}
            for pod in start["pods"]:
                assert (by_name[pod["name"]]["node"], by_name[pod["name"]]["gpus"]) == (pod["node"], pod["gpus"]), name
            shown = explain(stated, pods[start["gang"]][0])
            assert f"the queue starts {start['gang']} now, on {start['pods'][0]['node']}" in shown["sentence"], name
            assert not shown["ways_out"], name
            seen += 1
    assert seen > CASES


def test_what_waits_in_the_queue_waits_everywhere(asked: list[tuple[str, Stated, JSON]]) -> None:
    seen: Counter[str] = Counter()
    for name, stated, queue in asked:
        pods = members(stated)
        for entry in queue["waiting"]:
            answer = whatif(stated, pods[entry["gang"]])
            verdicts = {result["verdict"] for result in answer["results"]}
            assert entry["reason"] in HELD_BACK or "fits" not in verdicts, (name, entry["gang"], entry["reason"])
            (group,) = answer["groups"] or (None,)
            if group is not None and entry["reason"] in ("place", "never", "head"):
                least, told = group["text"].partition(" of ")[0], entry["text"].partition(" of ")[0]
                if entry["reason"] == "never" and least.isdecimal() and told.isdecimal():
                    assert int(told) >= int(least), (name, entry, group)  # whatever ends, not what fits now
                else:
                    assert not least.isdecimal() or entry["text"].startswith((least, group["text"])), (name, entry)
            shown = explain(stated, pods[entry["gang"]][0])
            first = group or answer["results"][0]
            ways = [(way["kind"], way["change"], way["cost"]) for way in first.get("ways_out", ())]
            assert [(way["kind"], way["change"], way["cost"]) for way in shown["ways_out"]] == ways, (
                name,
                entry["gang"],
            )
            assert entry["text"] in shown["sentence"], (name, entry["gang"])
            assert shown["sentence"].count("cheapest way out") <= 1, (name, entry["gang"])
            seen[entry["reason"]] += 1
    assert sum(seen.values()) > CASES, seen


def test_capacity_and_a_server_state_what_explain_states(asked: list[tuple[str, Stated, JSON]]) -> None:
    seen: Counter[str] = Counter()
    for name, stated, queue in asked:
        for entry in offline.explainer(stated.settings, events(stated), stated.wall).capacity()["unblock"]:
            shown = explain(stated, entry["pod"])
            assert (entry["verdict"], entry["sentence"]) == (shown["verdict"], shown["sentence"]), (name, entry["pod"])
            assert entry["ways_out"] == shown["ways_out"], (name, entry["pod"])
            seen["capacity"] += 1
        if "claims" in name:
            continue  # a file's gated claims are the queue's, a server's only where its settings state that
        world = World(stated.settings)
        world.wall = stated.wall
        world.cluster.apply(events(stated), world.now)
        with_queue(world)
        for gang, pods in members(stated).items():
            starts = any(start["gang"] == gang for start in queue["starts"])
            if not starts and queue["starts"]:
                continue  # there all of these have seats, also those that come after it
            server, shown = world.call(f"/debug/explain?pod={pods[0]}", method="GET").json, explain(stated, pods[0])
            assert server["sentence"] == shown["sentence"], (name, gang)
            assert server["ways_out"] == shown["ways_out"], (name, gang)
            seen["starts" if starts else "waits"] += 1
    assert min(seen.values()) > 3, seen
