"""What an attack creates: pods of three honest tenants and of one that cheats, in an order that a seed decides.

Nothing here is invalid: a real API server takes every object. The honest pods ask for what the cluster can give and end
by themselves, so each of them has to run in the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.e2e import builders
from tests.e2e.kubelet import FAIL_SECONDS, RUN_SECONDS

Object = dict[str, Any]
HONEST = ("alice", "bob", "carol")
HOSTILE = "mallory"
PRIORITIES = {"low": 10, "normal": 100, "high": 1000, "higher": 2000}
NODES: dict[str, dict[str, Any]] = {
    **{f"h{i:02d}": {"topology": "dgx-h100", "labels": {"pool": "shared", "rack": str(i % 3)}} for i in range(6)},
    **{f"v{i:02d}": {"topology": "dgx1-v100", "labels": {"pool": "shared", "rack": str(i % 3)}} for i in range(3)},
}
PINNED = {"pinned": {"topology": "dgx-h100", "labels": {"pool": "pinned"}}}
SHARED = {"pool": "shared"}
LOAD = 14  # pods of four GPUs that the honest load has, and the cheating one: together more than there is room for
DEEP, LEVELS = "@deep", 1500  # the mark, and how many levels stand in its place
CHEATS = {
    "gpu-extender.io/restart-seconds": "604800",
    "gpu-extender.io/last-checkpoint": "1970-01-01T00:00:00Z",
    "gpu-extender.io/gang-min": "1",
}


@dataclass(frozen=True)
class Arrival:
    """One object to create: a Pod or a Job. `kind`: what it is there for; `pods`: how many it makes."""

    kind: str
    tenant: str
    item: Object
    pods: int = 1

    @property
    def body(self) -> bytes:
        """The JSON text, with the mark written out."""
        deep = b'{"f:a":' * LEVELS + b"{}" + b"}" * LEVELS
        return json.dumps(self.item).encode().replace(b'"%s"' % DEEP.encode(), deep)


def load(tenant: str, spaces: dict[str, str]) -> Object:
    """A ReplicaSet that fills the cluster anew each time; of the hostile tenant with annotations that cheat."""
    notes = dict(CHEATS) if tenant == HOSTILE else {}
    template = builders.pod(
        "-", spaces[tenant], 4, priority_class="low", grace=5, cpu="100m", node_selector=SHARED, annotations=notes
    )
    if tenant == HOSTILE:  # each a gang of its own
        template["metadata"]["labels"]["gpu-extender.io/gang"] = "me"
    return builders.replica_set(f"load-{tenant}", LOAD, template)


def pinned(spaces: dict[str, str]) -> Arrival:
    """A pod that skips the scheduler, holds a whole node, and asks for an impossible amount of memory."""
    item = builders.pod("huge", spaces[HOSTILE], 8, node_name="pinned", priority_class="low", grace=1, memory="1e30")
    return Arrival("huge", HOSTILE, item)


def failing(spaces: dict[str, str]) -> Iterator[Arrival]:
    """Six bare pods that fail within a second, three on each of two nodes."""
    for number in range(6):
        where = {"kubernetes.io/hostname": f"h{number % 2:02d}"}
        notes = {FAIL_SECONDS: "0.2"}
        name = f"{HOSTILE}-fails-{number}"
        item = builders.pod(name, spaces[HOSTILE], 1, priority_class="normal", annotations=notes, node_selector=where)
        yield Arrival("fails", HOSTILE, item)


def arrivals(rng: random.Random, pods: int, spaces: dict[str, str]) -> Iterator[Arrival]:
    """Objects whose pods are `pods` together."""
    left, number = pods, 0
    while left > 0:
        number += 1
        made = _hostile(rng, number, spaces) if rng.random() < 0.3 else _honest(rng, number, min(left, 4), spaces)
        left -= made.pods
        yield made


def _honest(rng: random.Random, number: int, most: int, spaces: dict[str, str]) -> Arrival:
    tenant = rng.choice(HONEST)
    notes = {RUN_SECONDS: str(rng.choice((0.5, 1, 2)))}
    options: dict[str, Any] = {"cpu": "100m", "grace": 2, "node_selector": SHARED}
    choice, name = rng.random(), f"{tenant}-{number:04d}"
    if choice < 0.12 and most > 1:
        size = rng.randrange(2, most + 1)
        template = builders.pod("-", spaces[tenant], 1, priority_class="normal", annotations=notes, **options)
        return Arrival("job", tenant, builders.job(name, size, template), size)
    if choice < 0.2:  # where the tenant with the huge pod sits
        options["node_selector"] = {"pool": "pinned"}
        item = builders.pod(
            name, spaces[tenant], rng.choice((2, 8)), priority_class="high", annotations=notes, **options
        )
        return Arrival("evicts the huge pod", tenant, item)
    if choice < 0.5:
        size = rng.choice((2, 2, 4))
        notes["gpu-extender.io/links"] = "required"
        item = builders.pod(name, spaces[tenant], size, priority_class="normal", annotations=notes, **options)
        return Arrival("requires links", tenant, item)
    rank = "higher" if rng.random() < 0.12 else "high"
    item = builders.pod(
        name, spaces[tenant], rng.choice((2, 4, 4, 8)), priority_class=rank, annotations=notes, **options
    )
    return Arrival(rank, tenant, item)


def _hostile(rng: random.Random, number: int, spaces: dict[str, str]) -> Arrival:
    kind = rng.choice(("fails", "fails", "fails", "deep", "quantity", "forged", "distinct", "distinct", "never"))
    name, space = f"{HOSTILE}-{number:04d}", spaces[HOSTILE]
    options: dict[str, Any] = {"cpu": "100m", "grace": 2, "node_selector": SHARED, "priority_class": "normal"}
    ends = {RUN_SECONDS: "1"}
    if kind == "fails":
        item = builders.pod(name, space, 1, annotations={FAIL_SECONDS: "0.2"}, **options)
    elif kind == "deep":
        item = builders.pod(name, space, 0, scheduler="nobody", cpu="100m")
        item["metadata"]["managedFields"] = [
            {
                "manager": "x",
                "operation": "Update",
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": DEEP,
            }
        ]
    elif kind == "quantity":
        amount = rng.choice(({"memory": "1e30"}, {"cpu": "1e18"}, {"memory": "1n"}))
        item = builders.pod(name, space, 1, annotations=ends, **{**options, **amount})
    elif kind == "forged":
        notes = {"gpu-extender.io/held-gpus": "0,1,2,3", "gpu-extender.io/gpus": "7", **CHEATS}
        item = builders.pod(name, space, 1, annotations=notes | ends, **options)
    elif kind == "distinct":
        tolerations = [{"key": f"k{number}", "operator": "Exists"}, {"key": "x", "value": str(number)}]
        item = builders.pod(name, space, 1, annotations=ends, tolerations=tolerations, **options)
    else:
        item = builders.pod(name, space, 9, **options)
    return Arrival(kind, HOSTILE, item)
