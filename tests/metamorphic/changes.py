"""Ways to state the same cluster, or one with more in it that concerns no GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final, NamedTuple

from extender.times import time_of_day
from tests.metamorphic.clusters import Stated
from tests.world import JSON, machine, rfc3339, workload

TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
MOMENT: Final = re.compile(r"(?<![\dT:])(?:(\d\d [A-Z][a-z]{2})(?: (\d{4}))? )?(\d\d:\d\d)(:\d\d)?(?![\d:])")
"""As sentences state it: without the day where it is that of the question, or without the year."""
SHIFT: Final = 86_400 * 400 + 3_720
"""Seconds: more than a year, and no whole hour; whole minutes, since most sentences state no seconds."""


class Restated(NamedTuple):
    """`read`: turns an answer about `stated` into the words of the cluster as it was before."""

    stated: Stated
    read: Callable[[Any], Any]


def same(answer: Any) -> Any:
    """An answer that has the same words."""
    return answer


def with_strings(one: Any, change: Callable[[str], str]) -> Any:
    """Every string of a value changed; the keys of objects stay."""
    if isinstance(one, dict):
        return {key: with_strings(value, change) for key, value in one.items()}
    if isinstance(one, list):
        return [with_strings(value, change) for value in one]
    return change(one) if isinstance(one, str) else one


def names_of(stated: Stated, kinds: Iterable[str]) -> set[str]:
    """The names of these kinds; with the pods those of their gangs, with "Namespace" the namespaces."""
    found: set[str] = set()
    for one in stated.items:
        meta = one["metadata"]
        if one["kind"] in kinds:
            found.add(meta["name"])
        if one["kind"] == "Pod" and "Pod" in kinds:
            found |= {value for key, value in meta.get("annotations", {}).items() if key.endswith("/gang")}
        if "Namespace" in kinds and meta.get("namespace"):
            found.add(meta["namespace"])
    return found


def renamed(stated: Stated, chance: Random, kinds: Sequence[str], *, ordered: bool = True) -> Restated:
    """Other names; `ordered`: what came first by name still does."""
    names = sorted(names_of(stated, kinds))
    numbers = list(range(len(names)))
    if not ordered:
        chance.shuffle(numbers)
    new = {
        name: f"w{kinds[0].lower()}{number:03}{''.join(chance.choices('abc', k=chance.randint(0, 9)))}w"
        for name, number in zip(names, numbers, strict=True)
    }
    made = stated.changed(lambda one: with_strings(one, lambda text: new.get(text, text)))
    return Restated(made, _reader({other: name for name, other in new.items()}))


def _reader(names: Mapping[str, str]) -> Callable[[Any], Any]:
    pattern = re.compile(r"w[a-z]+\d{3}[abc]*w")

    def read(answer: Any) -> Any:
        text = pattern.sub(lambda found: names.get(found[0], found[0]), json.dumps(answer))
        return json.loads(text)

    return read


def shuffled(stated: Stated, chance: Random) -> Restated:
    """The objects of the file in another order."""
    items = list(stated.items)
    chance.shuffle(items)
    return Restated(replace(stated, items=tuple(items)), same)


def labelled(stated: Stated, chance: Random) -> Restated:
    """Labels that nothing selects, of another value on every node and pod, and on the namespaces."""
    number = iter(range(10**6))

    def more(one: JSON) -> JSON:
        if one["kind"] in ("Node", "Pod"):
            labels = one["metadata"].setdefault("labels", {})
            labels["example.com/unused"] = f"v{next(number)}"
            if chance.random() < 0.5:
                labels["another.example.com/unused"] = chance.choice("xy")
        return one

    made = stated.changed(more)
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"example.com/unused": "x"}}}
        for name in sorted(names_of(stated, ["Namespace"]))
    ]
    return Restated(replace(made, items=(*made.items, *spaces)), same)


def shifted(stated: Stated, chance: Random) -> Restated:
    """All times later, that of the question too."""

    def by(seconds: int) -> Callable[[str], str]:
        return lambda text: TIME.sub(
            lambda found: rfc3339(datetime.fromisoformat(found[0]).timestamp() + seconds), text
        )

    now = stated.wall + SHIFT

    def earlier(found: re.Match[str]) -> str:
        day, year, minute, second = found.groups()
        today = datetime.fromtimestamp(now, UTC)
        stated_at = f"{day or today.strftime('%d %b')} {year or today.year} {minute}{second or ':00'} +0000"
        at = datetime.strptime(stated_at, "%d %b %Y %H:%M:%S %z").timestamp()
        return time_of_day(at - SHIFT, stated.wall, "%H:%M:%S" if second else "%H:%M")

    made = stated.changed(lambda one: with_strings(one, by(SHIFT)))
    back = by(-SHIFT)
    return Restated(
        replace(made, wall=now), lambda answer: with_strings(answer, lambda text: MOMENT.sub(earlier, back(text)))
    )


def restated(stated: Stated, chance: Random, changes: Sequence[Callable[[Stated, Random], Restated]]) -> Restated:
    """Several changes, one after the other."""
    readers = []
    for change in changes:
        made = change(stated, chance)
        readers.append(made.read)
        stated = made.stated

    def read(answer: Any) -> Any:
        for one in reversed(readers):
            answer = one(answer)
        return answer

    return Restated(stated, read)


def with_idle(stated: Stated, chance: Random) -> Stated:
    """With pods that have ended, a cordoned node without GPUs, and a pod on it. The ended pods are old: a young one
    counts for the demand that is expected."""
    nodes = [one["metadata"]["name"] for one in stated.of("Node")]
    cpu = machine("idle-node", 0, unschedulable=True)
    more = [
        workload("idle-pod", 0, node="idle-node", phase="Running", namespace="idle"),
        workload("idle-done", 8, node=chance.choice(nodes), phase="Succeeded", namespace="idle"),
        workload("idle-failed", 8, node=chance.choice(nodes), phase="Failed", namespace="idle", held=(0, 1)),
    ]
    for one in more:
        one["metadata"]["creationTimestamp"] = rfc3339(stated.wall - 3 * SHIFT)
    pods = [{"apiVersion": "v1", "kind": "Pod"} | one for one in more]
    return replace(stated, items=(*stated.items, {"apiVersion": "v1", "kind": "Node"} | cpu, *pods))
