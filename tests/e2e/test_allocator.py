"""Our allocator of claims beside that of kube-scheduler, over random cases. ALLOCATOR_CASES: how many."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from extender.ask.judge import by_claims
from extender.cluster.dra.allocator import Allocation
from extender.cluster.dra.claims import ALL
from extender.settings import Settings
from tests.cluster.dra.allocator_cases import GPU as DRIVER
from tests.cluster.dra.allocator_cases import LABELS, NODE, TAINTS, TOLERATIONS, Case, cases, ours
from tests.e2e.allocator import answers
from tests.world import GPU, World, workload

CASES = int(os.environ.get("ALLOCATOR_CASES", "1000"))
RESOURCE = {"name": GPU, "devicePlugin": "nvidia", "draDriver": DRIVER, "draAttribute": "type=gpu"}


def test_the_same_devices_are_taken() -> None:
    outcomes: Counter[str] = Counter()
    for case, allocation, answer in _answered(cases(random.Random(29), CASES), outcomes):
        if answer.get("tooLong"):  # after a second by the clock: it says nothing of the claims
            outcomes["too long for kube-scheduler"] += 1
            continue
        expected = None if answer["allocations"] is None else [
            [
                (
                    result["request"], result["driver"], result["pool"], result["device"],
                    bool(result.get("adminAccess")), "shareID" in result,
                )
                for result in entry["devices"]["results"]
            ]
            for entry in answer["allocations"]
        ]  # fmt: skip
        actual = None if allocation.results is None else [
            [
                (result.request, *_named(result.candidate.id), result.admin, result.amounts is not None)
                for result in results
            ]
            for results in allocation.results
        ]  # fmt: skip
        assert actual == expected, (case.as_json(), answer, allocation.why)
        outcomes["error" if "error" in answer else "unfit" if expected is None else "fits"] += 1
    print(f"{CASES} cases: {dict(sorted(outcomes.items()))}")
    assert max(outcomes["unknown"], outcomes["too long for kube-scheduler"]) <= CASES // 10
    assert min(outcomes["fits"], outcomes["unfit"]) >= CASES // 10


def test_filter_passes_the_node_where_the_claims_are_met() -> None:
    """The node, whose devices are tainted, allocated and divided at random, is passed for pods with these claims where
    the allocator has devices for them, and what is expected there is what it takes. Claims for all devices that some
    selector leaves count as all of the node: such pods may be rejected."""
    rng = random.Random(31)
    asked = (_with_taints(rng, case) for case in cases(rng, CASES) if _is_possible(case))
    outcomes: Counter[str] = Counter()
    for case, _, answer in _answered(asked, outcomes):
        world, pod = _asking(rng, case)
        record, node = world.cluster.pods["uid-p"], world.cluster.nodes[NODE]
        if not record.claimed:
            outcomes["asks for no counted GPU"] += 1
            continue
        passed, is_met = world.filter(pod)["NodeNames"] == [NODE], answer["allocations"] is not None
        if is_met and not passed and ALL in record.claim_numbers:
            outcomes["all of some devices"] += 1
            continue
        assert passed == is_met, case.as_json()
        outcomes["passed" if passed else "rejected"] += 1
        for mask in () if not passed else (by_claims(world.cluster, record, NODE),):
            results = [one for entry in answer["allocations"] for one in entry["devices"]["results"]]
            own = [one for one in results if not one.get("adminAccess")]
            taken = {"/".join((one["driver"], one["pool"], one["device"])) for one in own}
            index_of = world.cluster.gpus.indices(NODE)
            assert mask == sum(1 << index for device, index in index_of.items() if device in taken), case.as_json()
            gpus = node.devices.gpus if node.devices is not None else ()
            outcomes["of them with a tainted GPU"] += any(gpu.taints for gpu in gpus if gpu.id in taken)
    print(f"{CASES} cases: {dict(sorted(outcomes.items()))}")
    assert outcomes["of them with a tainted GPU"] >= CASES // 200
    assert outcomes["all of some devices"] <= CASES // 100


def _answered(asked: Iterable[Case], outcomes: Counter[str]) -> Iterator[tuple[Case, Allocation, Any]]:
    """Each case with our allocation and kube-scheduler's answer. Where ours ended its search, which is counted,
    kube-scheduler is not asked: it would search for a second."""
    both = [(case, ours(case)) for case in asked]
    known = [(case, allocation) for case, allocation in both if not allocation.unknown]
    outcomes["unknown"] = len(both) - len(known)
    for (case, allocation), answer in zip(known, answers(case.as_json() for case, _ in known), strict=True):
        yield case, allocation, answer


def _with_taints(rng: random.Random, case: Case) -> Case:
    """The case with more taints, more tolerations, and more requests for whole GPUs."""
    often = rng.random() < 0.6
    for device in (device for item in case.slices if often for device in item["spec"].get("devices", ())):
        if rng.random() < 0.5:
            device["taints"] = rng.sample(TAINTS, rng.choice((1, 1, 2)))
    requests = (request for claim in case.claims for request in claim["spec"]["devices"]["requests"])
    for exactly in (one for request in requests for one in request.get("firstAvailable", [request.get("exactly")])):
        if rng.random() < 0.6:
            exactly |= {"deviceClassName": "whole", "capacity": {}}
            exactly["selectors"] = exactly.get("selectors", []) if rng.random() < 0.3 else []
        if rng.random() < 0.4:
            exactly["tolerations"] = rng.sample(TOLERATIONS, rng.choice((1, 2, 3)))
    return case


def _is_possible(case: Case) -> bool:
    """Whether no GPU is allocated beside a part of it: then the allocator gives no device of the pool."""
    results = [claim["status"]["allocation"]["devices"]["results"][0] for claim in case.allocated]
    held = {one["device"] for one in results if not one.get("adminAccess")}
    return not any(name.partition("-mig-")[0] in held for name in held if "-mig-" in name)


def _asking(rng: random.Random, case: Case) -> tuple[World, Any]:
    """The case as the server sees it, some of the taints by rules, and a pod that names its claims."""
    world = World(Settings.model_validate({"resources": [RESOURCE]}))
    world.node(NODE, 0, labels=LABELS)
    for item in copy.deepcopy(case.slices):
        where = {"driver": item["spec"]["driver"], "pool": item["spec"]["pool"]["name"]}
        for device in item["spec"].get("devices", ()):
            kept = [taint for taint in device.get("taints", ()) if rng.random() < 0.6]
            for taint in device.get("taints", ()):
                if taint not in kept:
                    spec = {"deviceSelector": where | {"device": device["name"]}, "taint": taint}
                    name = f"{device['name']}-{len(world.cluster.dra.taint_rules.records)}"
                    world.set("DeviceTaintRule", {"metadata": {"name": name}, "spec": spec})
            device["taints"] = kept
        world.set("ResourceSlice", item)
    for item in case.classes:
        world.set("DeviceClass", item)
    for item in (*case.allocated, *case.claims):
        world.set("ResourceClaim", item)
    names = [claim["metadata"]["name"] for claim in case.claims]
    spec = {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in names]}
    return world, world.set("Pod", workload("p", 0, namespace="ns", spec=spec))


def _named(device: str) -> tuple[str, str, str]:
    driver, pool, name = device.split("/")
    return driver, pool, name
