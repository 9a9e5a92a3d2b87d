"""Questions to a cluster made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from extender.ask import frozen, offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import question
from extender.ask.whatif.question import Changes, Document
from extender.settings import Settings
from tests.world import JSON, WALL


def snapshot(items: Iterable[JSON], settings: Settings | None = None) -> SupposedCluster:
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": list(items)}).encode()
    settings = settings or Settings()
    return SupposedCluster.of(settings, frozen.parse(raw, frozenset(one.name for one in settings.resources)))


def ask(
    items: Iterable[JSON],
    objects: Sequence[JSON] = (),
    *,
    pods: Sequence[tuple[str, str]] = (),
    changes: Changes | None = None,
    settings: Settings | None = None,
) -> JSON:
    made = snapshot(items, settings)
    documents = [Document(one, f"objects[{at}]") for at, one in enumerate(objects)]
    asked = question.read(documents, made.cluster.gpu_names, pods, changes)
    answer: JSON = offline.whatif(made, asked, WALL)
    check(list(items), answer)
    return answer


def check(items: list[JSON], answer: JSON) -> None:
    """What holds of every answer: no GPU is given twice, a victim is taken once, a gang is placed whole or not at all,
    and what does not fit has its ways out."""
    results, groups = answer["results"], answer["groups"]
    victims = [one["uid"] for result in results for one in result["victims"]]
    assert len(victims) == len(set(victims))
    held = {
        (one["node"], gpu): one["uid"]
        for one in answer["holdings"]
        if one["uid"] not in victims
        for gpu in one["gpus"] or ()
    }
    for result in results:
        for gpu in result["gpus"] or ():
            assert (result["node"], gpu) not in held
            held[result["node"], gpu] = result["pod"]["uid"]
        assert (result["verdict"] == "cannot") == (result["node"] is None)
        assert ("ways_out" in result) == ("nearest" in result) == (result["verdict"] != "fits")
        assert all(way["verified"] for way in result.get("ways_out", ()))
    by_name = {(one["pod"]["namespace"], one["pod"]["name"]): one for one in results}
    for group in groups:
        members = [by_name[pod["namespace"], pod["name"]] for pod in group["pods"]]
        assert [(one["node"], one["gpus"]) for one in members] == [(one["node"], one["gpus"]) for one in group["pods"]]
        assert {one["verdict"] for one in members} == {group["verdict"]} or (group["running"] and not members)
        assert sorted(v["uid"] for one in members for v in one["victims"]) == sorted(v["uid"] for v in group["victims"])
        assert ("ways_out" in group) == (group["verdict"] != "fits")


def kinds(shown: JSON) -> list[str]:
    """The kinds of the ways out."""
    return [one["kind"] for one in shown["ways_out"]]


def way(shown: JSON, kind: str) -> Any:
    """The way out of that kind."""
    return next(one for one in shown["ways_out"] if one["kind"] == kind)
