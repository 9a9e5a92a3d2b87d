"""The same gangs by another owner, the same claims in another version of their API, and one instance or three: the
same gangs start, on the same nodes. Pods and their ages stay, so no tie is decided otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.ask.whatif.test_claims import in_beta
from tests.metamorphic.answers import difference, known, offline, queued
from tests.metamorphic.clusters import CASES, OURS, Stated, drawn
from tests.metamorphic.test_other_names import is_gated
from tests.objects.test_gangs import obj
from tests.world import JSON

Form = Callable[[JSON, str, int], JSON]
"""Turns a pod into one of the gang of this name and size, and returns the object that states the size."""


def _group(api: str, label: str = "", note: str = "") -> Form:
    def make(pod: JSON, name: str, size: int) -> JSON:
        pod["metadata"]["labels" if label else "annotations"][label or note] = name
        return obj(api, "PodGroup", name, {"minMember": size})

    return make


def _job(pod: JSON, name: str, size: int) -> JSON:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-Job-{name}", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    return obj("batch/v1", "Job", name, {"parallelism": size, "completions": size})


def _kueue(pod: JSON, name: str, size: int) -> JSON:
    pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = name
    pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(size)
    return {}


FORMS: dict[str, Form] = {
    "Job": _job,
    "PodGroup": _group("scheduling.x-k8s.io/v1alpha1", label="scheduling.x-k8s.io/pod-group"),
    "PodGroup of Volcano": _group("scheduling.volcano.sh/v1beta1", note="scheduling.k8s.io/group-name"),
    "pod group of Kueue": _kueue,
}


def plain(stated: Stated) -> Stated:
    """Without gangs of another minimum than their size, and of one pod: a Job of one is no gang."""
    return replace(stated, items=tuple(one for one in stated.items if not (is_gated(one) and _odd(one))))


def _odd(pod: JSON) -> bool:
    notes = pod["metadata"]["annotations"]
    return OURS + "gang-min" in notes or notes.get(OURS + "gang-size") == "1"


def owned(stated: Stated, form: Form) -> Stated:
    groups: dict[str, JSON] = {}

    def change(one: JSON) -> JSON:
        notes = one["metadata"].get("annotations", {})
        if is_gated(one) and OURS + "gang" in notes:
            name, size = notes.pop(OURS + "gang"), int(notes.pop(OURS + "gang-size"))
            group = form(one, name, size)
            if group:
                group["metadata"]["namespace"] = one["metadata"]["namespace"]
                groups[name] = group
        return one

    made = stated.changed(change)
    return replace(made, items=(*made.items, *groups.values()))


def of_queue(answer: JSON) -> Any:
    keys = ("gang", "queue", "priority", "pods", "min", "gpus", "reason", "head", "earliest_start_seconds", "reserved")
    parts = [[{key: one[key] for key in keys} for one in answer[part]] for part in ("waiting",)]
    return {
        "starts": answer["starts"],
        "waiting": parts,
        "incomplete": answer["incomplete"],
        "queues": answer["queues"],
    }


@pytest.mark.parametrize("form", FORMS)
def test_the_same_gang_of_another_owner(form: str) -> None:
    for seed in range(2 * CASES):
        stated = plain(drawn(seed))
        before, after = queued(stated), queued(owned(stated, FORMS[form]))
        assert not difference(of_queue(before), of_queue(after)), seed


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_claims_of_another_version(version: str) -> None:
    def change(one: JSON) -> JSON:
        return in_beta(one, version) if one.get("apiVersion", "").startswith("resource.k8s.io/") else one

    for seed in range(CASES):
        stated, commands, _ = known(seed, claims=True)
        assert len(json.dumps(stated.changed(change).items)) > len(json.dumps(stated.items)), "nothing is changed"
        assert not difference(commands, offline(stated.changed(change))), seed
