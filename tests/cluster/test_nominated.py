"""What nominated pods claim is packed; whatever comes and goes, the tables count the pods that are nominated then."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.objects import records
from extender.policy import pod_request
from tests.world import World, workload

NODES = ("a", "b", "c")
pods = st.tuples(st.just("nominate"), st.integers(0, 5), st.sampled_from(NODES), st.integers(0, 2), st.integers(0, 2))
steps = st.one_of(
    pods,
    pods,
    st.tuples(st.just("forget"), st.integers(0, 5)),
    st.tuples(st.just("come"), st.sampled_from(NODES)),
    st.tuples(st.just("go"), st.sampled_from(NODES)),
    st.tuples(st.just("ask"), st.integers(0, 2)),
)


def claimed(world: World, priority: int) -> dict[str, int]:
    """GPUs of each node that nominated pods claim of a request."""
    pod = records.pod(json.dumps(workload("asks", 1, priority=priority)).encode(), world.cluster.gpu_names)
    request = pod_request.read(pod, world.cluster)
    tables, found = world.cluster.tables.nodes, {}
    with world.verbs.claims.of(request, world.now):
        for name in world.cluster.nodes:
            row = world.cluster.row(name)
            found[name] = tables.alloc_of(row)[3] - tables.used_of(row)[3] - tables.free_of(row)[3]
    return {name: count for name, count in found.items() if count}


@settings(max_examples=60)
@given(st.lists(steps, max_size=25))
def test_the_tables_count_the_pods_that_are_nominated(taken: list[tuple[Any, ...]]) -> None:
    world = World()
    there: dict[str, Any] = {}
    nominated: dict[int, tuple[str, int, int]] = {}
    for what, about, *more in [*taken, ("ask", 1)]:
        if what == "nominate":
            node, gpus, priority = more
            world.pod(f"p{about}", gpus, nominated=node, priority=priority)
            nominated[about] = node, gpus, priority
        elif what == "forget" and about in nominated:
            world.gone(f"p{about}")
            del nominated[about]
        elif what == "come":
            there[about] = world.node(about, 8)
        elif what == "go" and about in there:
            world.drop("Node", there.pop(about))
        elif what == "ask":
            wanted: Counter[str] = Counter()
            for node, gpus, priority in nominated.values():
                wanted[node] += gpus if node in there and priority >= about else 0
            assert claimed(world, about) == +wanted
