"""Which devices the real kube-scheduler's allocator takes, beside what the server expects of it.

Each node is a cluster of its own: its GPUs are tainted, allocated or free at random, and pods that may run there alone
come one after the other. Some slices list the GPUs in another order, and some pods ask for more than a number of GPUs,
or for GPUs with and without a claim. Where a selector is not evaluated, the server must not call any set certain.
DRA_CLUSTERS: how many nodes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import orjson

from extender.ask import frozen
from extender.ask.judge import by_claims
from extender.cluster.cluster import Cluster
from extender.objects.cel.library import LONGEST_PATTERN
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuid, gpu_uuids, machine, topology_annotation
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.conftest import SchedulerFactory
from tests.waiting import wait_for

CLUSTERS = int(os.environ.get("DRA_CLUSTERS", "50"))
AT_ONCE = 100
ROUNDS = 3  # pods of a node, one after the other
GPU = "nvidia.com/gpu"
MACHINES = ("dgx1-v100", "dgx-h100")
KNOWN = ("named", "template", "two", "served", "alike", "selected", "either", "mixed")
WAYS = (*KNOWN, *KNOWN, "unread")
"""How a pod gets its GPUs. By the last one, a selector that is not evaluated, the server cannot tell which ones."""
KINDS = ("Node", "ResourceSlice", "DeviceClass", "ResourceClaim", "Pod")


def nodes(rng: random.Random, names: list[str]) -> Iterator[Object]:
    """Nodes with slices, some of their GPUs tainted. One of five lists its GPUs in a random order."""
    for name in names:
        what = machine(rng.choice(MACHINES), rng.choice((4, 8)))
        notes = {"gpu-extender.io/topology": topology_annotation(what, gpu_uuids(name, what))}
        yield builders.node(name, 0, annotations=notes)
        tainted = {gpu: "test/broken" for gpu in range(what.gpus) if rng.random() < 0.1}
        order = rng.sample(range(what.gpus), what.gpus) if rng.random() < 0.2 else ()
        yield from dra.resource_slices(name, what, taints=tainted, divisible=rng.random() < 0.3, order=order)


def pods(rng: random.Random, name: str, node: str, namespace: str) -> Iterator[Object]:
    """A pod for the node, with whatever it claims."""
    options: dict[str, Any] = {"node_selector": {"kubernetes.io/hostname": node}}
    way = rng.choice(WAYS)
    count = rng.choice((1, 1, 2, 2, 3, 4))
    if way == "served":
        yield builders.pod(name, namespace, count, **options)
        return
    claims = []
    for number in range(2 if way == "two" else 1):
        made = dra.claim(f"{name}-{number}", namespace, count, template=way == "template")
        key = "resourceClaimTemplateName" if way == "template" else "resourceClaimName"
        claims.append({"name": f"c{number}", key: f"{name}-{number}"})
        if way == "alike":
            made["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{dra.DRIVER}/productName"}]
        if way == "selected":
            not_the_first = f"device.attributes['{dra.DRIVER}'].uuid != '{gpu_uuid(node, 0)}'"
            exactly = made["spec"]["devices"]["requests"][0]["exactly"]
            exactly["selectors"] = [{"cel": {"expression": not_the_first}}]
        if way == "unread":
            any_gpu = f"device.attributes['{dra.DRIVER}'].uuid.matches('^GPU|{'x' * LONGEST_PATTERN}')"
            made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": any_gpu}}]
        if way == "either":
            exactly = made["spec"]["devices"]["requests"][0].pop("exactly")
            choices = [{**exactly, "name": f"s{more}", "count": count + more} for more in (2, 1, 0)]
            made["spec"]["devices"]["requests"][0]["firstAvailable"] = choices
        yield made
    yield builders.pod(name, namespace, int(way == "mixed"), resourceClaims=claims, **options)


def applied(cluster: Cluster, items: Sequence[Object]) -> None:
    """The cluster reads these objects."""
    raw = orjson.dumps({"kind": "List", "apiVersion": "v1", "items": items})
    cluster.apply(frozen.parse(raw, cluster.gpu_names), 0.0)


def seen(api: Api) -> tuple[Cluster, dict[str, Object]]:
    """The cluster as the server reads it, and the pods by name."""
    items: list[Object] = [{"kind": kind, **one} for kind in KINDS for one in api.list(kind)]
    cluster = Cluster(Settings(), live=True)
    applied(cluster, items)
    return cluster, {one["metadata"]["name"]: one for one in items if one["kind"] == "Pod"}


def expected(cluster: Cluster, node: str, pod: str) -> int | None:
    """The mask that is expected for a pod that waits (its uid); None where it is not certain."""
    return by_claims(cluster, cluster.pods[pod], node)


def settled(api: Api, namespace: str, names: set[str]) -> bool:
    """Whether kube-scheduler has bound each of the pods, or found that it fits nowhere."""
    there = {one["metadata"]["name"]: one for one in api.list("Pod", namespace)}
    return all(
        there[name]["spec"].get("nodeName")
        or any(one.get("reason") == "Unschedulable" for one in there[name]["status"].get("conditions", ()))
        for name in names
    )


def test_the_prediction_is_right_where_it_is_certain(api: Api, namespace: str, scheduler: SchedulerFactory) -> None:
    api.create(dra.device_class(extended_resource=GPU))
    rng = random.Random(17)
    found: Counter[str] = Counter()
    wrong: list[tuple[str, int, tuple[int, ...] | None]] = []
    for start in range(0, CLUSTERS, AT_ONCE):
        names = [f"n{number}" for number in range(start, min(start + AT_ONCE, CLUSTERS))]
        api.create_many(nodes(rng, names))
        judge = scheduler({})  # it knows these nodes from its start on
        for number in range(ROUNDS):
            before, _ = seen(api)
            asking = {f"{name}-p{number}": name for name in names}
            made = [one for pod, node in asking.items() for one in pods(rng, pod, node, namespace)]
            applied(before, made)
            api.create_many([one for one in made if one["kind"] != "Pod"])
            api.create_many([one for one in made if one["kind"] == "Pod"])
            wait_for(partial(settled, api, namespace, {*asking}), 120, "pods to be tried", every=0.5)
            after, there = seen(api)
            for pod, node in asking.items():
                if not there[pod]["spec"].get("nodeName"):
                    found["unfit"] += 1
                    api.delete("Pod", pod, namespace)
                    continue
                holding = next(
                    one for one in after.gpus.ledgers[node].holdings if one.uid == there[pod]["metadata"]["uid"]
                )
                assert holding.how == "observed"
                mask = expected(before, node, f"{namespace}/{pod}")
                found["uncertain" if mask is None else "certain"] += 1
                if mask is not None and mask != holding.mask:
                    wrong.append((pod, mask, holding.gpus))
        judge.kill()
        for name in names:
            api.delete("Node", name)
    print(
        f"{CLUSTERS} clusters: {found['certain']} certain sets, {len(wrong)} of them wrong; {found['uncertain']} not "
        f"certain, {found['unfit']} pods fit nowhere"
    )
    assert wrong == []
    assert found["certain"] >= CLUSTERS
    assert 0 < found["uncertain"] <= 0.1 * (found["certain"] + found["uncertain"])
