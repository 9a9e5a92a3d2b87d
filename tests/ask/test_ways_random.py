"""The verdict and every way out against brute force, on random clusters."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from extender.ask import offline
from tests.ask.applied import applied
from tests.ask.asking import events
from tests.ask.test_whatif import ARBITRARY, asked, random_cluster, random_preemptor, told
from tests.cases import cases
from tests.oracles.ways import Ways
from tests.oracles.whatif import Brute
from tests.world import GPU, JSON, WALL, rfc3339

CASES = cases(300)
NAMES = {GPU: "gpus", "cpu": "cpu", "memory": "memory"}
GIB = 1 << 30


def explained(items: list[JSON], pod: JSON) -> JSON:
    whole = [*items, {"apiVersion": "v1", "kind": "Pod"} | pod]
    return offline.explain(ARBITRARY, events(whole), ("default", "p"), WALL)


def random_case(rng: random.Random) -> tuple[list[JSON], dict[str, list[list[int]] | None], JSON]:
    items, links = random_cluster(rng)
    for item in items:
        meta = item["metadata"]
        if "deletionTimestamp" in meta:
            meta["deletionTimestamp"] = rfc3339(WALL + rng.choice([5, 20, 25]))
        elif item["kind"] == "Pod" and rng.random() < 0.1:
            meta |= {"deletionTimestamp": rfc3339(WALL + 12), "deletionGracePeriodSeconds": 30}
    return items, links, random_preemptor(rng)


def measure(way: JSON) -> tuple[str, object]:
    """(the kind, of `smaller` with its resource; how large the change is, as the oracle has it)."""
    spec: dict[str, Any] = way["spec"]
    match way["kind"]:
        case "evict":
            assert spec["proved"]
            return "evict", told(way["cost"])
        case "wait":
            return "wait", way["cost"][0]["value"]
        case "smaller":
            units = {"cpu": 1000, "memory": GIB}.get(spec["resource"], 1)
            assert spec["is"] % units == 0
            return f"smaller {NAMES[spec['resource']]}", spec["is"] // units
        case "add-nodes":
            return "add-nodes", way["cost"][1]["value"]
        case kind:
            return kind, True


def test_ways_are_those_of_brute_force_and_make_the_pod_fit() -> None:
    """No way is missing, none is larger than it has to be, and each one, carried out on a copy, makes the pod fit."""
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        items, links, pod = random_case(random.Random(f"ways-{seed}"))
        shown = explained(items, pod)
        ways = Ways(Brute(items, links, int(WALL)), pod)
        assert shown["verdict"] == ways.verdict(), seed
        seen[shown["verdict"]] += 1
        assert shown["funnel"][0]["nodes"] == len(links)
        counts = [one["nodes"] for one in shown["funnel"]]
        assert counts[0] - counts[-1] == sum(shown["reasons"].values())
        assert counts == sorted(counts, reverse=True), seed
        assert sum(shown["reasons"].values()) == len(links) - counts[-1], seed
        if shown["verdict"] == "fits":
            assert not shown["ways_out"]
            assert counts[-1] > 0
            continue
        assert counts[-1] == 0
        expected = {kind: least for kind, least in ways.least().items() if least is not None}
        assert dict(map(measure, shown["ways_out"])) == expected, seed
        for way in shown["ways_out"]:
            seen[measure(way)[0]] += 1
            (result,) = asked(*applied(way, items, pod))["results"]
            assert result["verdict"] == "fits", (seed, way)
    assert CASES < 200 or (min(seen.values()) > 0 and len(seen) == 11), seen
