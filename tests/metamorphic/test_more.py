"""What concerns no GPU, and another cluster in the same file, changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

from tests.metamorphic.answers import asked, difference, known, offline, queued, verbs
from tests.metamorphic.changes import names_of, with_idle, with_strings
from tests.metamorphic.clusters import CASES, Stated, drawn
from tests.world import JSON, PRODUCT

IDLE = ("idle-node", "idle")
COUNTS = ("pods", "nodes_examined", "sets_examined")
BY_REASON = ("reasons", "remedies", "nearest", "funnel", "points", "sentence")
"""Of how many nodes, and of the cordoned node too; the price of slots is relative to the nodes that are asked about."""


def without_idle(answer: Any) -> Any:
    """The answer without what it lists of the objects that are added, and of their number."""
    if isinstance(answer, dict):
        made = {key: without_idle(value) for key, value in answer.items() if key not in IDLE}
        return {
            key: value for key, value in made.items() if key not in BY_REASON and (key not in COUNTS or _listed(value))
        }
    if isinstance(answer, list):
        return [without_idle(one) for one in answer if not any(word in json.dumps(one) for word in IDLE)]
    return answer


def _listed(value: Any) -> bool:
    return not isinstance(value, int)


def test_what_concerns_no_gpu_changes_nothing() -> None:
    """`check` lists the pods of its classes; the verbs reject the cordoned node."""
    for seed in range(CASES):
        stated, before, answers = known(seed, claims=False)
        more = with_idle(stated, Random(seed))
        after = offline(more)
        for command in ("queue", "whatif", "top", "capacity", "map", "explain"):
            assert not difference(without_idle(before[command]), without_idle(after[command])), (seed, command)
        assert not difference(without_idle(answers), without_idle(verbs(more))), seed


def apart(stated: Stated, half: str) -> Stated:
    """Its pods run on its nodes alone; its names, models of machines, queues and namespaces are its own."""
    new = {name: f"{half}-{name}" for name in names_of(stated, ("Node", "Pod", "Namespace"))}
    new |= {f"uid-{name}": f"uid-{half}-{name}" for name in new} | {name: f"{half}-{name}" for name in ("A100", "H100")}

    def change(one: JSON) -> JSON:
        made: JSON = with_strings(one, lambda text: new.get(text, text))
        labels = made["metadata"].setdefault("labels", {})
        if made["kind"] == "Node":
            labels["half"] = half
            labels.setdefault(PRODUCT, f"{half}-any")
        if made["kind"] == "Job":
            made["spec"]["template"]["spec"].setdefault("nodeSelector", {})["half"] = half
        if made["kind"] == "Pod":
            made["spec"].setdefault("nodeSelector", {})["half"] = half
            labels["gpu-extender.io/queue"] = f"{half}-{labels.get('gpu-extender.io/queue', 'plain')}"
        if made["kind"] == "PodDisruptionBudget":
            made["metadata"]["name"] = f"{half}-{made['metadata']['name']}"
        return made

    return replace(stated.changed(change), settings=_settings(stated, half))


def _settings(stated: Stated, half: str) -> Any:
    text = stated.settings.model_dump(by_alias=True, exclude_unset=True, mode="json")
    queues = text.get("queue", {}).get("queues", {})
    for rules in queues.values():
        for limit in ("limitGpus", "guaranteedGpus"):
            if limit in rules:
                rules[limit] = {f"{half}-{model}": gpus for model, gpus in rules[limit].items()}
    if queues:
        text["queue"]["queues"] = {f"{half}-{name}": rules for name, rules in queues.items()}
    return type(stated.settings).model_validate(text)


def endless(stated: Stated) -> Stated:
    """No gang states how long it runs: behind a head of another cluster they are tried in the same order."""

    def change(one: JSON) -> JSON:
        one["metadata"].get("annotations", {}).pop("gpu-extender.io/duration", None)
        return one

    return stated.changed(change)


def together(first: Stated, second: Stated) -> Stated:
    """Both clusters in one file."""
    texts = [one.settings.model_dump(by_alias=True, exclude_unset=True, mode="json") for one in (first, second)]
    texts[0]["queue"]["queues"] = {**texts[0]["queue"].get("queues", {}), **texts[1]["queue"].get("queues", {})}
    items = [dict(one) for one in (*first.items, *second.items)]
    return replace(first, items=tuple(items), settings=type(first.settings).model_validate(texts[0]))


def starts(answer: JSON, half: str) -> list[tuple[str, list[str]]]:
    """The gangs in order, each with its nodes."""
    return [(one["gang"], [pod["node"] for pod in one["pods"]]) for one in answer["starts"] if half in one["queue"]]


def waits(answer: JSON, half: str) -> list[Any]:
    keys = ("gang", "reason", "head", "earliest_start_seconds", "pods", "gpus")
    return [[one[key] for key in keys] for one in answer["waiting"] if half in one["queue"]]


def test_two_clusters_in_one_file_keep_their_answers() -> None:
    """One queue has one head: in the second cluster no gang waits in turn. The clusters share the mix of demand, which
    may choose other nodes: as many, and what comes after it is not compared."""
    compared = 0
    for seed in range(2 * CASES):
        first, second = apart(drawn(seed), "left"), endless(apart(drawn(seed + 100_000), "right"))
        left, right = queued(first), queued(second)
        if any(one["reason"] not in ("never", "quota") for one in right["waiting"]):
            continue
        merged = queued(together(first, second))
        for half, part in (("left", left), ("right", right)):
            before, after = starts(part, half), starts(merged, half)
            at = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
            if at is not None:
                gangs = [(some[at][0], len(set(some[at][1]))) for some in (before, after)]
                assert gangs[0] == gangs[1], (seed, half)
            else:
                assert (before, waits(part, half)) == (after, waits(merged, half)), (seed, half)
                compared += 1
    assert compared
    for seed in range(CASES):
        first, second = apart(drawn(seed), "left"), apart(drawn(seed + 100_000), "right")
        both = together(first, second)
        for alone in first.asking():
            answers = asked(alone, pending=False), asked(replace(both, asked=alone.asked), pending=False)
            verdicts = [[(part["verdict"], len(part["victims"])) for part in answer["results"]] for answer in answers]
            assert verdicts[0] == verdicts[1], seed
