"""Claims that are counted beside claims that are allocated, and what changes the answers that are kept."""

from __future__ import annotations

import random

from extender.cluster.dra.allocator import MOST_STEPS
from extender.cluster.dra.claim_fits import FEW_STEPS, MOST_SPENT, UNMET
from extender.cluster.dra.store import DraStore
from extender.objects.decode import record
from extender.objects.records import NodeRecord, PodRecord
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import machine
from tests.world import JSON, workload
from tests.world import machine as node_object

MACHINE = machine("dgx1-v100", 4)
GPUS = frozenset({"nvidia.com/gpu"})


def store(*objects: JSON) -> DraStore:
    made = DraStore(Settings().resources, lambda uid: None)
    for one in objects:
        put(made, one)
    return made


def put(into: DraStore, one: JSON, change: str = "set") -> None:
    into.set(record(one["kind"], one, GPUS), change)  # type: ignore[arg-type]


def node(name: str = "n1") -> NodeRecord:
    made: NodeRecord = record("Node", node_object(name, 0), GPUS)  # type: ignore[assignment]
    return made


def pod(claim: str) -> PodRecord:
    spec = {"resourceClaims": [{"name": "g", "resourceClaimName": claim}]}
    made: PodRecord = record("Pod", workload("p", 0, spec=spec), GPUS)  # type: ignore[assignment]
    return made


def held(name: str, *devices: str) -> JSON:
    made = dra.claim(name, "default", len(devices))
    results = [{"request": "gpus", "driver": dra.DRIVER, "pool": "n1", "device": device} for device in devices]
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def test_a_number_of_any_whole_gpus_is_met_where_as_many_count_as_free() -> None:
    rng = random.Random(7)
    for _ in range(300):
        divisible = rng.random() < 0.5
        taints = {gpu: "t" for gpu in range(4) if rng.random() < 0.2}
        order = rng.sample(range(4), 4)
        made = store(
            dra.device_class(), *dra.resource_slices("n1", MACHINE, taints=taints, divisible=divisible, order=order)
        )
        devices = [device for one in made.slices.values() for device in one.devices]
        of_gpu = {device.counters or device.name: device.name for device in rng.sample(devices, len(devices))}
        taken = [name for name in of_gpu.values() if rng.random() < 0.3]
        for at, device in enumerate(taken):
            put(made, held(f"held-{at}", device))
        asked = rng.choice((1, 2, 3, 4, 5))
        put(made, dra.claim("wanted", "default", asked))
        published = made.node(node()).devices
        assert published is not None
        free = [gpu.id for gpu in published.gpus if gpu.state == "usable"]
        assert made.fits.of(pod("wanted")) is None
        allocation = made.fits.on(node(), made.fits.all_of(pod("wanted")))
        got = None if allocation.results is None else [result.candidate.id for result in allocation.results[0]]
        assert got == (free[:asked] if asked <= len(free) else None)


def test_answers_follow_what_is_published_and_allocated() -> None:
    wanted = dra.claim("wanted", "default", 3)
    wanted["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{dra.DRIVER}/productName"}]
    slices = dra.resource_slices("n1", MACHINE)
    made = store(dra.device_class(), wanted, *slices)
    claims = made.fits.of(pod("wanted"))
    assert claims is not None
    here = node()

    def rejects() -> str:
        return made.fits.rejects(here, claims)

    assert rejects() == ""
    put(made, held("other", "gpu-0", "gpu-1"))
    assert rejects() == UNMET
    put(made, held("other", "gpu-0"))
    assert rejects() == ""
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {}, "taint": {"key": "k", "effect": "NoSchedule"}}}
    put(made, {"kind": "DeviceTaintRule"} | rule)
    assert rejects() == UNMET
    put(made, {"kind": "DeviceTaintRule"} | rule, "delete")
    assert rejects() == ""
    for one in slices:
        put(made, one, "delete")
    assert rejects() == UNMET
    for one in slices:
        put(made, one)
    put(made, dra.device_class(kind="mig"))
    assert rejects() == UNMET
    assert made.fits.on(here, claims).request == "gpus"
    put(made, dra.device_class(), "delete")
    assert made.fits.on(here, claims).why == "its selectors: DeviceClass gpu.nvidia.com does not exist"


def test_costly_claims_are_given_up_and_cheap_ones_never() -> None:
    names = [f"n{number}" for number in range(60)]
    eight = machine("dgx1-v100", 8)
    made = store(dra.device_class(), *(one for name in names for one in dra.resource_slices(name, eight)))
    costly = dra.claim("wanted", "default", 1)
    exactly = {"deviceClassName": dra.DRIVER, "count": 1}
    costly["spec"]["devices"] = {
        "requests": [{"name": f"r{at}", "exactly": exactly} for at in range(9)],
        "constraints": [{"distinctAttribute": f"{dra.DRIVER}/uuid"}],
    }
    put(made, costly)
    nodes = [node(name) for name in names]

    def steps() -> int:
        claims = made.fits.of(pod("wanted"))
        assert claims is not None
        answers = [made.fits.on(one, claims) for one in nodes]
        assert len({answer.unknown for answer in answers}) == 1
        return sum(answer.steps for answer in answers)

    assert 0 < steps() < MOST_SPENT + MOST_STEPS
    cheap = dra.claim("wanted", "default", 2)
    cheap["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{dra.DRIVER}/productName"}]
    put(made, cheap)
    assert 0 < steps() <= FEW_STEPS * len(nodes)
    for _ in range(20):
        made.fits.changed(names)
        assert steps() == 0  # nodes that are as they were are not looked at again
