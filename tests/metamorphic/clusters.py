"""The clusters that the tests state in two ways: those of the tests of quotas and of gangs, with budgets, racks, run
times, GPU models and pods that are not gated; or with their GPUs by claims."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from extender.objects.queueing import GATE
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, topology_annotation
from extender.sim.machines import machine as catalogued
from tests.ask.whatif import test_gangs_random
from tests.queue.test_plan import HEAD
from tests.queue.test_quota_random import case
from tests.world import GPU, JSON, PRODUCT, WALL, World, machine, rfc3339, workload

CASES = int(os.environ.get("GPU_EXTENDER_METAMORPHIC_CASES", "6"))
OURS = "gpu-extender.io/"
RACK = "cloud.provider.com/topology-rack"
DGX = catalogued("dgx1-v100")
API = {"Pod": "v1", "Node": "v1", "PodDisruptionBudget": "policy/v1", "Namespace": "v1"}


@dataclass(frozen=True)
class Stated:
    """A cluster as a file states it, its settings, the time of the question, and the manifests that are asked about."""

    items: tuple[JSON, ...]
    settings: Settings
    asked: tuple[JSON, ...]
    wall: float = WALL

    def changed(self, change: Callable[[JSON], JSON]) -> Stated:
        """Each object changed; they are copies."""
        items, asked = ([change(json.loads(json.dumps(one))) for one in some] for some in (self.items, self.asked))
        return replace(self, items=tuple(items), asked=tuple(asked))

    def asking(self) -> Iterator[Stated]:
        """With each of the manifests alone, and its claim."""
        claims = [one for one in self.asked if one["kind"] == "ResourceClaim"]
        for one in self.asked:
            if one not in claims:
                yield replace(self, asked=(one, *claims))

    def of(self, kind: str) -> list[JSON]:
        """The objects of a kind."""
        return [one for one in self.items if one["kind"] == kind]


class _Kept(World):
    """Keeps the objects that a test makes."""

    items: list[JSON]

    def set(self, kind: Any, wire: JSON) -> JSON:
        """As the world, and kept."""
        self.__dict__.setdefault("items", []).append({"apiVersion": API[kind], "kind": kind} | wire)
        return super().set(kind, wire)


@cache
def drawn(seed: int) -> Stated:
    """Every third cluster has no queues with quotas. No test changes it: each restates a copy."""
    chance = Random(seed)
    stated = _gangs(chance) if seed % 3 == 2 else _quotas(seed)
    items = json.loads(json.dumps(stated.items))
    racks = chance.randint(1, 3)
    for one in items:
        if one["kind"] == "Node" and chance.random() < 0.8 and RACK not in one["metadata"]["labels"]:
            one["metadata"]["labels"][RACK] = f"rack{chance.randrange(racks)}"
    models = Random(f"models {seed}")
    for one in items:
        if one["kind"] == "Node" and PRODUCT not in one["metadata"]["labels"]:
            one["metadata"]["labels"][PRODUCT] = models.choice(("NVIDIA-H100-80GB-HBM3", "Tesla-V100-SXM2-32GB"))
    gangs: dict[str, JSON] = {}
    spaces: dict[str, str] = {}
    for one in items:
        if one["kind"] == "Pod":
            _more(chance, one, gangs)
            group = one["metadata"]["annotations"].get(OURS + "gang", one["metadata"]["name"])
            one["metadata"]["namespace"] = spaces.setdefault(group, chance.choice(("default", "research")))
    items += _around(chance, [one["metadata"]["name"] for one in items if one["kind"] == "Node"])
    return replace(stated, items=tuple(items), asked=tuple(_asked(chance)))


def _quotas(seed: int) -> Stated:
    made = case(seed, _Kept)
    assert isinstance(made.world, _Kept)
    return Stated(tuple(made.world.items), made.world.settings, ())


def _gangs(chance: Random) -> Stated:
    """Two gangs in the queue over up to 20 nodes."""
    nodes, kinds, wanted, rack = test_gangs_random.drawn(chance)
    items = test_gangs_random.objects(nodes)
    for number in range(2):
        for pod in test_gangs_random.members(kinds, wanted, rack=rack):
            meta = pod["metadata"]
            meta["name"] = f"{meta['name']}-of-{number}"
            meta["uid"] = f"uid-{meta['name']}"
            meta["annotations"][OURS + "gang"] = f"big{number}"
            meta["creationTimestamp"] = rfc3339(WALL - 100 - number)
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
            items.append(pod)
    items = [{"apiVersion": API[one["kind"]]} | one for one in items]
    return Stated(tuple(items), Settings.model_validate({**HEAD, "queue": {"enabled": True}}), ())


def _more(chance: Random, pod: JSON, gangs: dict[str, JSON]) -> None:
    """What the other generators do not state. `gangs`: of those that wait, what all of their pods state alike."""
    notes, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
    if pod["spec"].get("nodeName"):
        pod["metadata"]["creationTimestamp"] = rfc3339(WALL - chance.randint(2000, 90_000))
        labels["app"] = chance.choice("ab")
        pod["spec"]["priority"] = chance.choice((-5, pod["spec"]["priority"]))
        if chance.random() < 0.2:
            notes |= {OURS + "gang": f"runs{chance.randrange(2)}", OURS + "gang-min": "2"}
        if chance.random() < 0.2:
            notes[OURS + "protect-for"] = "30m"
        return
    gang = notes.get(OURS + "gang", "")
    if gang not in gangs:
        gangs[gang] = {}
        if chance.random() < 0.3:
            gangs[gang][OURS + "domain"] = chance.choice(("preferred:rack", "required:rack"))
        if chance.random() < 0.4:
            gangs[gang][OURS + "duration"] = f"{chance.randint(1, 6)}h"
        if chance.random() < 0.2:
            gangs[gang][OURS + "links"] = "required"
    notes |= gangs[gang]


def _around(chance: Random, nodes: list[str]) -> list[JSON]:
    """Budgets, pods that are not gated, and some in the queue alone."""
    made: list[JSON] = []
    for app in "ab":
        if chance.random() < 0.5:
            spec = {"selector": {"matchLabels": {"app": app}}}
            status = {"disruptionsAllowed": chance.choice((0, 1, 1))}
            meta = {"name": f"budget-{app}", "namespace": "default", "uid": f"uid-budget-{app}"}
            made.append({"kind": "PodDisruptionBudget", "metadata": meta, "spec": spec, "status": status})
    for number in range(chance.randint(1, 3)):
        gates = {"schedulingGates": [{"name": GATE}]} if chance.random() < 0.6 else {}
        pod = workload(f"single{number}", chance.choice((1, 2, 4, 8)), priority=chance.choice((0, 0, 20)), spec=gates)
        pod["metadata"]["creationTimestamp"] = rfc3339(WALL - chance.randint(1, 2000))
        made.append({"kind": "Pod"} | pod)
    ending = workload("ending", 1, node=chance.choice(nodes), phase="Running", start=WALL - 50, terminating=WALL + 9)
    ending["metadata"]["creationTimestamp"] = rfc3339(WALL - 60)
    return [{"apiVersion": API[one["kind"]]} | one for one in [*made, {"kind": "Pod"} | ending]]


def _asked(chance: Random) -> list[JSON]:
    """The manifests: a pod, an urgent pod, and a Job of two."""
    notes = {OURS + "links": chance.choice(("required", "preferred", "ignore"))}
    pod = workload("asked", chance.choice((1, 2, 4)), annotations=notes)
    urgent = workload("urgent", chance.choice((2, 4, 8)), priority=100)
    template = {"metadata": {}, "spec": workload("t", chance.choice((2, 4, 8)), priority=50)["spec"]}
    spec = {"parallelism": 2, "completions": 2, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "both", "namespace": "default"}, "spec": spec}
    return [*({"apiVersion": "v1", "kind": "Pod"} | one for one in (pod, urgent)), job]


def with_claims(stated: Stated) -> Stated:
    """The same pods with their GPUs by claims, those of running pods allocated, on nodes of a DRA driver: the nodes of
    another size have eight GPUs then."""
    items: list[JSON] = [dra.device_class()]
    free: dict[str, list[int]] = {}
    for node in stated.of("Node"):
        name, meta = node["metadata"]["name"], node["metadata"]
        notes = {OURS + "topology": topology_annotation(DGX, gpu_uuids(name, DGX))}
        changed = machine(name, 0, labels=meta["labels"], annotations=notes)
        items += [{"apiVersion": "v1", "kind": "Node"} | changed, *dra.resource_slices(name, DGX)]
        free[name] = list(range(8))
    for pod in stated.of("Pod"):
        items += _claiming(pod, free)
    rest = [one for one in stated.items if one["kind"] not in ("Node", "Pod")]
    asked = [part for one in stated.asked if one["kind"] == "Pod" for part in _claiming(one, free)]
    return replace(stated, items=(*items, *rest), asked=tuple(asked))


def _claiming(pod: JSON, free: dict[str, list[int]]) -> list[JSON]:
    """The pod with a claim in place of its GPUs, and the claim."""
    made = json.loads(json.dumps(pod))
    resources = made["spec"]["containers"][0]["resources"]
    gpus = int(resources["limits"].pop(GPU, 0))
    if not gpus:
        return [made]
    resources["requests"].pop(GPU)
    name, node = made["metadata"]["name"], made["spec"].get("nodeName", "")
    made["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": f"claim-{name}"}]
    claim = dra.claim(f"claim-{name}", made["metadata"]["namespace"], gpus)
    claim["metadata"]["uid"] = f"uid-claim-{name}"
    if node:
        chosen, free[node] = free[node][:gpus], free[node][gpus:]
        results = [{"request": "gpus", "driver": dra.DRIVER, "pool": node, "device": f"gpu-{gpu}"} for gpu in chosen]
        reserved = [{"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}]
        claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return [made, claim]
