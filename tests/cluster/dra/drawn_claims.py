"""Random nodes whose devices many claims compete for, and what pods on them get in each order, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations

from extender.cluster.dra.store import DraStore
from extender.objects.decode import record
from extender.objects.records import NodeRecord, PodRecord
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import machine
from tests.world import JSON, workload
from tests.world import machine as node_object

GPUS = frozenset({"nvidia.com/gpu"})
MACHINE = machine("dgx1-v100", 4)
PARTS = "mig"


def requests(rng: random.Random) -> list[JSON]:
    """Of one claim."""
    first = {"deviceClassName": rng.choice((dra.DRIVER, dra.DRIVER, PARTS)), "count": rng.choice((1, 1, 2))}
    way = rng.random()
    if way < 0.25:
        digits = f"[{rng.choice(('0-3', '0-7', '4-9', '8-f'))}]$"
        text = f"device.attributes['{dra.DRIVER}'].uuid.matches('{digits}')"
        return [{"name": "r", "exactly": first | {"selectors": [{"cel": {"expression": text}}]}}]
    if way < 0.4:
        other = {"deviceClassName": dra.DRIVER, "count": 2}
        choices = [{"name": "a", **first}, {"name": "b", **other}]
        return [{"name": "r", "firstAvailable": rng.sample(choices, 2)}]
    if way < 0.45:
        return [{"name": "r", "exactly": {"deviceClassName": first["deviceClassName"], "allocationMode": "All"}}]
    if way < 0.6:
        return [{"name": "r", "exactly": first | {"tolerations": [{"operator": "Exists"}]}}]
    return [{"name": "r", "exactly": first}]


def template(rng: random.Random, name: str) -> JSON:
    made = dra.claim(name, "default", 1, template=True)
    made["spec"]["spec"]["devices"]["requests"] = requests(rng)
    return made


def selecting(name: str, gpus: int, digits: str) -> JSON:
    """A template for GPUs whose UUIDs end so."""
    made = dra.claim(name, "default", gpus, template=True)
    text = f"device.attributes['{dra.DRIVER}'].uuid.matches('{digits}')"
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": text}}]
    return made


def nodes(rng: random.Random, names: Sequence[str]) -> Iterator[JSON]:
    """Nodes, their slices, and what is allocated."""
    yield dra.device_class()
    yield dra.device_class(PARTS, kind="mig")
    for name in names:
        taints = {gpu: "t" for gpu in range(4) if rng.random() < 0.15}
        order = rng.sample(range(4), 4) if rng.random() < 0.3 else ()
        yield {"kind": "Node"} | node_object(name, 0)
        yield from dra.resource_slices(name, MACHINE, taints=taints, divisible=rng.random() < 0.7, order=order)
        for gpu in range(4):
            if rng.random() < 0.15:
                yield held(name, gpu)


def held(node: str, gpu: int) -> JSON:
    """A claim to which a GPU of the node is allocated."""
    results = [{"request": "r", "driver": dra.DRIVER, "pool": node, "device": f"gpu-{gpu}"}]
    made = dra.claim(f"held-{node}-{gpu}", "default", 1)
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def store(objects: Sequence[JSON]) -> tuple[DraStore, dict[str, NodeRecord]]:
    """The objects of DRA, and the nodes by name."""
    made = DraStore(Settings().resources, lambda uid: None)
    known: dict[str, NodeRecord] = {}
    for item in objects:
        if item["kind"] == "Node":
            known[item["metadata"]["name"]] = record("Node", item, GPUS)  # type: ignore[assignment]
        elif item["kind"] != "Pod":
            made.set(record(item["kind"], item, GPUS), "set")  # type: ignore[arg-type]
    return made, {name: made.node(node) for name, node in known.items()}


def pod(name: str, template: str) -> JSON:
    spec = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": template}]}
    return {"kind": "Pod", "apiVersion": "v1"} | workload(name, 0, spec=spec)


def one_after_the_other(objects: Sequence[JSON], name: str, pods: Sequence[PodRecord]) -> bool:
    """Whether each of the pods gets its devices on the node, beside those before it."""
    made, known = store(objects)
    for wanted in pods:
        placed = made.as_placed(wanted, known[name])
        if placed is None:
            return False
        for claim in placed[1]:
            made.set(claim, "set")
    return True


def orders(objects: Sequence[JSON], name: str, pods: Sequence[PodRecord], roles: Sequence[int]) -> tuple[bool, bool]:
    """(whether the node takes the pods in any order, in one). `roles`: of each pod; pods of one are equal."""
    answers = []
    for order in {tuple(roles[at] for at in order): order for order in permutations(range(len(pods)))}.values():
        answers.append(one_after_the_other(objects, name, [pods[at] for at in order]))
    return all(answers), any(answers)
