"""No single pod waits that has a place: what-if and the queue agree on it. filter passes the node that they name, also
once the victims are gone; it may pass others, which kube-scheduler itself rejects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from extender.settings import Settings
from tests.metamorphic.answers import asked, events, queued
from tests.metamorphic.clusters import CASES, Stated, drawn
from tests.metamorphic.test_other_names import alone, is_gated
from tests.world import JSON, World


def singles(stated: Stated) -> Iterator[tuple[Stated, JSON]]:
    """The cluster with one single in the queue alone, and without quotas; and that pod, as it is asked about."""
    settings = stated.settings.model_dump(by_alias=True, exclude_unset=True, mode="json")
    settings["queue"].pop("queues", None)
    made = replace(stated, settings=Settings.model_validate(settings))
    for one in alone(made):
        waiting = [pod for pod in one.of("Pod") if is_gated(pod)]
        if len(waiting) == 1 and "gpu-extender.io/domain" not in waiting[0]["metadata"]["annotations"]:
            (pod,) = waiting
            spec = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
            yield one, {**pod, "spec": spec}


def test_no_single_waits_that_has_a_place() -> None:
    seen = {"starts": 0, "waits": 0}
    for seed in range(2 * CASES):
        for stated, pod in singles(drawn(seed)):
            name = pod["metadata"]["name"]
            starts = bool(queued(stated)["starts"])
            seen["starts" if starts else "waits"] += 1
            rest = replace(stated, items=tuple(one for one in stated.items if not is_gated(one)), asked=(pod,))
            (result,) = asked(rest, pending=False)["results"]
            assert (result["verdict"] == "fits") == starts, (seed, name, result["verdict"])
            if starts:
                assert result["node"] in passed(rest, pod), (seed, name)
            elif result["verdict"] == "evict":
                victims = {victim["uid"] for victim in result["victims"]}
                left = [one for one in rest.items if one["metadata"].get("uid") not in victims]
                assert result["node"] in passed(replace(rest, items=tuple(left)), pod), (seed, name)
    assert min(seen.values()), seen


def passed(stated: Stated, pod: JSON) -> list[str]:
    """The nodes that filter passes."""
    world = World(stated.settings)
    world.wall = stated.wall
    world.cluster.apply(events(stated), world.now)
    return list(world.filter(pod, sorted(world.cluster.nodes)).get("NodeNames") or ())
