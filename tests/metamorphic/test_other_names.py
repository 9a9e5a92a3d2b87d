"""Where the new names are in another order, ties are decided otherwise: the nodes and victims may be others, and what
they are compared by is the same. Each pod and gang is asked about alone: after the first, what is left depends on
which of two equal nodes the first one got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from extender.objects.queueing import GATE
from tests.metamorphic.answers import asked, known, queued, verbs
from tests.metamorphic.changes import renamed
from tests.metamorphic.clusters import CASES, OURS, Stated
from tests.world import JSON

SHUFFLED = partial(renamed, kinds=("Node", "Pod"), ordered=False)


def gang_of(pod: JSON) -> str:
    return str(pod["metadata"]["annotations"].get(OURS + "gang", pod["metadata"]["name"]))


def is_gated(one: JSON) -> bool:
    return GATE in [gate["name"] for gate in one.get("spec", {}).get("schedulingGates", ())]


def alone(stated: Stated) -> Iterator[Stated]:
    """The cluster with each of the waiting gangs alone, by age."""
    waiting = [pod for pod in stated.of("Pod") if is_gated(pod)]
    ages = {gang_of(pod): pod["metadata"]["creationTimestamp"] for pod in waiting}
    for gang in sorted(ages, key=lambda name: (ages[name], sum(gang_of(pod) == name for pod in waiting))):
        others = [id(pod) for pod in waiting if gang_of(pod) != gang]
        yield replace(stated, items=tuple(one for one in stated.items if id(one) not in others))


def of_queue(answer: JSON) -> Any:
    """Starts or waits, why, when, on how many nodes, and how close."""
    starts = [
        (
            start["queue"],
            len(start["pods"]),
            sorted(len(pod["gpus"] or ()) for pod in start["pods"]),
            len({pod["node"] for pod in start["pods"]}),
            (start["domain"] or {}).get("level"),
        )
        for start in answer["starts"]
    ]
    keys = ("queue", "reason", "pods", "gpus", "head", "earliest_start_seconds")
    return starts, [[one[key] for key in keys] for one in answer["waiting"]]


def of_whatif(answer: JSON) -> Any:
    """The verdicts, what they cost, how many are evicted in all, and the kinds of the ways out. Which pod of a gang is
    on which of its nodes is decided by name."""
    return len([victim for one in answer["results"] for victim in one["victims"]]), [
        (
            one["verdict"],
            [(term["term"], term["value"]) for term in one.get("cost") or ()],
            sorted(way["kind"] for way in one.get("ways_out", ())),
            one.get("reasons"),
        )
        for one in answer["results"]
    ]


def of_verbs(answers: JSON) -> Any:
    """What passes, all scores by node, the points that are given, and the cost of what is evicted. Of nodes with one
    score the first by name has most points."""
    return {
        name: (
            sorted(one["filter"].get("NodeNames") or ()),
            sorted(one["filter"].get("FailedNodes") or ()),
            one["scores"],
            sorted(one["prioritize"].values()),
            [len(victims) for victims in one.get("preempt", {}).get("victims", {}).values()],
            [
                (term["term"], term["value"])
                for term in (one.get("preempt", {}).get("certificate") or {}).get("cost", ())
            ],
        )
        for name, one in answers.items()
    }


def test_other_names_decide_ties_alone() -> None:
    for seed in range(CASES):
        stated, _, answers = known(seed, claims=seed % 4 == 1)
        other, read = SHUFFLED(stated, Random(seed))
        assert of_verbs(answers) == of_verbs(read(verbs(other))), seed
        for one, same in zip(alone(stated), alone(other), strict=True):
            assert of_queue(queued(one)) == of_queue(queued(same)), seed
        for one, same in zip(stated.asking(), other.asking(), strict=True):
            assert of_whatif(asked(one, pending=False)) == of_whatif(asked(same, pending=False)), seed
