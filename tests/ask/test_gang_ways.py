"""Ways out of the queue against trying every raise and every level, on random clusters.

A way is carried out on a copy of the settings or of the objects; it helps if the queue starts the gang then.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from extender.ask import offline
from extender.objects.queueing import DOMAIN, GATE
from extender.settings import Settings
from tests.ask.asking import events
from tests.cases import cases
from tests.queue.drawn import BLOCK, RACK
from tests.world import GPU, JSON, WALL, machine, pairs, workload

CASES = cases(150)
LINKS = "gpu-extender.io/links"
MODEL = "nvidia.com/gpu.product"
MOST_RAISED = 12
FIELDS = {"limitGpus": "limit_gpus", "guaranteedGpus": "guaranteed_gpus"}


def settings(queue: JSON) -> Settings:
    return Settings.model_validate(
        {"queue": {"enabled": True, "queues": {"lab": queue}}, "topology_levels": (RACK, BLOCK)}
    )


def explained(items: list[JSON], made: Settings) -> JSON:
    return offline.explain(made, events(items), ("default", "g-0"), WALL)


def starts(items: list[JSON], made: Settings) -> bool:
    """Whether the queue starts the gang at its next look."""
    shown = explained(items, made)
    assert shown["verdict"] == "gated"
    return shown["queue"] is None


def gang(pods: int, gpus: int, domain: str, links: str = "") -> list[JSON]:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(pods)} | ({DOMAIN: domain} if domain else {})
    gates = {"schedulingGates": [{"name": GATE}]}
    return [
        {"apiVersion": "v1", "kind": "Pod"}
        | workload(f"g-{i}", gpus, annotations=notes, spec=gates, links=links, labels={"gpu-extender.io/queue": "lab"})
        for i in range(pods)
    ]


def random_case(rng: random.Random) -> tuple[list[JSON], JSON]:
    """(the objects, what the queue of the gang may hold)."""
    items: list[JSON] = []
    for n in range(rng.randint(2, 5)):
        labels = {RACK: f"r{n // 2}", BLOCK: f"b{n // 4}", MODEL: rng.choice(["A", "A", "B"])}
        gpus = rng.choice([4, 8])
        node = {"apiVersion": "v1", "kind": "Node"} | machine(f"n{n}", gpus, links=pairs(gpus), labels=labels)
        items.append(node)
        free = list(range(gpus))
        for i in range(rng.randint(0, 3)):
            takes = min(len(free), rng.randint(1, 3))
            held = [free.pop() for _ in range(takes)]
            label = {"gpu-extender.io/queue": rng.choice(["lab", "other"])}
            pod = workload(f"n{n}-{i}", takes, node=f"n{n}", phase="Running", start=WALL - 60, held=held, labels=label)
            items += [{"apiVersion": "v1", "kind": "Pod"} | pod] if takes else []
    queue: JSON = {}
    if rng.random() < 0.35:
        queue["limit_gpus"] = {model: rng.randint(0, 8) for model in "AB" if rng.random() < 0.8}
    elif rng.random() < 0.35:
        queue |= {"borrow": False, "guaranteed_gpus": {model: rng.randint(0, 8) for model in "AB"}}
    domain = rng.choice(
        ["", "required:rack", "required:rack", "required:block", "required:node", "required:node", "preferred:rack"]
    )
    items += gang(rng.randint(1, 5), rng.choice([1, 2, 2, 4]), domain, rng.choice(["", "required"]))
    return items, queue


def raised(queue: JSON, changes: list[JSON]) -> JSON:
    found: dict[str, Any] = copy.deepcopy(queue)
    for one in changes:
        found.setdefault(FIELDS[one["field"]], {})[one["model"]] = one["to"]
    return found


def smaller(queue: JSON, changes: list[JSON]) -> Iterator[JSON]:
    """The queue with every raise of its fields by fewer GPUs in all, at most MOST_RAISED."""
    names = [(name, model) for name in FIELDS.values() for model in sorted(queue.get(name, {}))]
    total = sum(one["to"] - one["from"] for one in changes)
    for more in product(range(min(total, MOST_RAISED)), repeat=len(names)):
        if sum(more) == min(total, MOST_RAISED) - 1:  # with less the queue may hold less
            found: dict[str, Any] = copy.deepcopy(queue)
            for (name, model), number in zip(names, more, strict=True):
                found[name][model] += number
            yield found


def redomained(items: list[JSON], domain: str) -> list[JSON]:
    found = copy.deepcopy(items)
    for item in found:
        if item["metadata"]["name"].startswith("g-"):
            item["metadata"]["annotations"][DOMAIN] = domain
    return found


def first_domain(items: list[JSON], made: Settings) -> str | None:
    """The closest wider level that lets the gang start, else that it is only preferred."""
    asked = next(item for item in items if item["metadata"]["name"] == "g-0")["metadata"]["annotations"].get(DOMAIN, "")
    if not asked.startswith("required:"):
        return None
    level = asked.removeprefix("required:")
    wider = {"node": [RACK, BLOCK], "rack": [BLOCK], "block": []}[level]
    tried = [*(f"required:{one}" for one in wider), f"preferred:{level}"]
    return next((one for one in tried if starts(redomained(items, one), made)), None)


def pods_of(items: list[JSON]) -> list[JSON]:
    return [item for item in items if item["metadata"]["name"].startswith("g-")]


def shown_alone(items: list[JSON]) -> bool:
    return len(pods_of(items)) == 1


def linked_by(items: list[JSON]) -> str:
    links: str = pods_of(items)[0]["metadata"]["annotations"].get(LINKS, "")
    return links


def loose(items: list[JSON]) -> list[JSON]:
    found = copy.deepcopy(items)
    for item in pods_of(found):
        item["metadata"]["annotations"][LINKS] = "preferred"
    return found


def asked_by(pod: JSON) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"][GPU])


def first_size(items: list[JSON], queue: JSON) -> int | None:
    """The most GPUs a pod, fewer than it asks for, with which the gang starts."""
    was = asked_by(pods_of(items)[0])
    for size in range(was - 1, 0, -1):
        found = copy.deepcopy(items)
        for item in pods_of(found):
            asked = item["spec"]["containers"][0]["resources"]
            asked["requests"][GPU] = asked["limits"][GPU] = str(size)
        if starts(found, settings(queue)):
            return size
    return None


def test_ways_out_of_the_queue() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        items, queue = random_case(random.Random(f"gang-{seed}"))
        made = settings(queue)
        shown = explained(items, made)
        ways = {way["kind"]: way for way in shown["ways_out"]}
        if shown["queue"] is None:
            seen["starts"] += 1
            continue
        seen[shown["queue"]["reason"]] += 1
        free = starts(items, settings({}))
        assert ("quota" in ways) == free, seed
        if "quota" in ways:
            changes = ways["quota"]["spec"]["changes"]
            assert starts(items, settings(raised(queue, changes))), seed
            assert not any(starts(items, settings(less)) for less in smaller(queue, changes)), seed
        expected = None if free else first_domain(items, made)
        found = ways["relax-domain"]["spec"]["value"] if "relax-domain" in ways else None
        assert found == expected, seed
        if not shown_alone(items):
            relaxes = not free and linked_by(items) == "required"
            assert ("relax-links" in ways) == (relaxes and starts(loose(items), made)), seed
            least = None if free else first_size(items, queue)
            assert (ways["smaller"]["spec"]["is"] if "smaller" in ways else None) == least, seed
        seen.update(list(ways))
    assert (
        CASES < 100
        or min(seen[kind] for kind in ("starts", "quota", "relax-domain", "head", "relax-links", "smaller")) > 4
    ), seen


def test_a_pod_that_fits_nowhere_keeps_no_guarantee() -> None:
    node = {"apiVersion": "v1", "kind": "Node"} | machine("n1", 8, links=pairs(8), labels={MODEL: "A"})
    items = [node, *gang(1, 8, "")]
    other = copy.deepcopy(gang(1, 2, "")[0])
    other["metadata"] |= {"name": "h", "uid": "uid-h", "labels": {"gpu-extender.io/queue": "other"}}
    other["metadata"]["annotations"] = {}
    other["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4k"
    made = Settings.model_validate(
        {"queue": {"enabled": True, "queues": {"other": {"guaranteed_gpus": {"A": 2}}, "lab": {}}}}
    )
    shown = explained([*items, other], made)
    assert shown["sentence"] == "waits behind a gate: the queue starts default/g now, on n1"
    assert shown["ways_out"] == []


@pytest.mark.parametrize("limit", [0, 4])
def test_the_sentence_names_queue_position_and_way(limit: int) -> None:
    node = {"apiVersion": "v1", "kind": "Node"} | machine("n1", 8, links=pairs(8), labels={MODEL: "A"})
    shown = explained([node, *gang(2, 4, "")], settings({"limit_gpus": {"A": limit}}))
    assert shown["sentence"].startswith(
        "waits behind a gate: default/g is at position 1 of 1 in the queue "
        f"(queue lab would hold 8 GPUs of model A, its limit is {limit})"
    )
    assert shown["sentence"].endswith(f"; cheapest way out: raise for queue lab limitGpus of model A from {limit} to 8")
    assert shown["queue"]["gang"] == "default/g"
    assert [way["kind"] for way in shown["ways_out"]] == ["quota"]
