"""However a cluster came to be as it is, a server answers as one that has just read it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from extender.ask import offline, place
from extender.ask.judge import over
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import question
from tests.metamorphic.answers import difference
from tests.metamorphic.clusters import CASES, Stated, drawn, with_claims
from tests.metamorphic.histories import fresh, lived
from tests.metamorphic.test_forms import FORMS, owned
from tests.objects.test_gangs import obj
from tests.web.page.scene import with_queue
from tests.world import GPU, JSON, World


def _job_set(pod: JSON, name: str, size: int) -> JSON:
    pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = name
    job = {"spec": {"parallelism": size, "completions": size}}
    return obj("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": [{"name": "w", "template": job}]})


OWNERS = [*FORMS.values(), _job_set]


def cluster(seed: int) -> Stated:
    """With objects of the kinds that `drawn` has none of."""
    chance = Random(f"more {seed}")
    stated = with_claims(drawn(seed)) if seed % 4 == 1 else drawn(seed)
    if seed % 4 != 1 and chance.random() < 0.6:
        stated = owned(stated, chance.choice(OWNERS))
    more: list[JSON] = []
    for name, value in (("high", 100), ("low", -5)):
        meta = {"name": name, "uid": f"uid-{name}"}
        more.append({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value})
    for space in ("default", "research"):
        meta = {"name": "gpus", "namespace": space, "uid": f"uid-quota-{space}"}
        spec = {"hard": {f"requests.{GPU}": str(chance.choice((8, 64)))}}
        more.append({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})
    return replace(stated, items=(*stated.items, *more))


def answers(world: World, stated: Stated) -> JSON:
    """Of all pages, of the verbs about each manifest that is a pod, one after the other, and of a what-if."""
    look = place.look(over(world.verbs), world.now, world.wall)
    starts = [
        [start.gang.ref.text, [[seat.pod, seat.node, seat.gpus] for seat in start.seats]] for start in look.starts
    ]
    found: JSON = {"starts": starts}
    with_queue(world)
    waiting = sorted(
        f"{pod.namespace}/{pod.name}" for pod in world.cluster.pods.values() if not pod.node and not pod.finished
    )
    for page in ("queue", "top", "capacity", "map", *(f"explain?pod={name}&most=0" for name in waiting)):
        found[page] = world.call(f"/debug/{page}", method="GET").json
    for pod in (one for one in stated.asked if one["kind"] == "Pod"):
        name, nodes = pod["metadata"]["name"], sorted(world.cluster.nodes)
        passed = world.filter(pod, nodes)
        found[name] = [passed, world.prioritize(pod, nodes)]
        below = {
            node: sorted(
                one.uid.removeprefix("uid-")
                for one in world.cluster.pods.values()
                if one.node == node and one.priority < pod["spec"]["priority"]
            )
            for node in nodes
        }
        found[name].append(world.preempt(pod, {node: uids for node, uids in below.items() if uids}))
        decided = world.call("/debug/decisions", method="GET").json["decisions"]
        found[name].append([made.get("certificate") for made in decided if made["pod"]["name"] == name])
    documents = [question.Document(one, f"asked[{at}]") for at, one in enumerate(stated.asked)]
    supposed = SupposedCluster(over(world.verbs), world.now)
    asked = question.read(documents, world.cluster.gpu_names)
    found["whatif"] = offline.whatif(supposed, asked, world.wall, stated.items)
    return found


def compared(answer: Any) -> Any:
    """Without the sums of all scores: where another GPU model once was, they are lower by as much for all nodes."""
    if isinstance(answer, dict):
        return {key: compared(value) for key, value in answer.items() if key not in ("points", "score", "terms")}
    return [compared(one) for one in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("part", range(3))
def test_a_history_leaves_nothing_behind(part: int) -> None:
    for seed in range(part, 3 * CASES, 3):
        stated = cluster(seed)
        world = lived(seed, stated)
        expected, found = (compared(answers(one, stated)) for one in (fresh(stated, world), world))
        assert not difference(expected, found), seed
