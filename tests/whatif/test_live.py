"""The copy of a running server's state: it is like the state, and writing it down holds up no verb.

GPU_EXTENDER_SLICE_NODES=5000 measures a cluster of so many nodes; the default is a thousand."""

from __future__ import annotations

import io
import json
import pickle
import time
from typing import Any

import pytest

from extender.cluster.dump import state
from extender.errors import BadInput
from extender.preemption.candidates import Preemptor
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from extender.verdict import judge
from extender.whatif import live, worker
from extender.whatif.snapshot import Snapshot
from tests.cluster.test_failing_tenants import ADMISSION, fails
from tests.verdict.test_slices import MOST_SECONDS, NODES, RUNS, filled
from tests.world import WALL, World, pairs

PODS = ("fits", "links", "many", "cpu")


def copied(world: World) -> Snapshot:
    return live.read(io.BytesIO(b"".join(live.written(world.verbs, world.now))), lambda: False)


def test_slices_are_short() -> None:
    world = filled(NODES)
    runs = [spans(world) for _ in range(RUNS)]
    least = [min(run[at] for run in runs) for at in range(min(map(len, runs)))]
    assert max(least) < MOST_SECONDS, (least.index(max(least)), max(least), sum(least))


def spans(world: World) -> list[float]:
    """CPU seconds of each slice."""
    steps, found = live.written(world.verbs, world.now), list[float]()
    while True:
        began = time.process_time()
        done = next(steps, None) is None
        found.append(time.process_time() - began)
        if done:
            return found


def test_the_copy_is_like_the_state() -> None:
    world = filled(40)
    world.filter(world.pod("assumed", 2, priority=9))
    amounts = world.cluster.amounts(next(pod for pod in world.cluster.pods.values() if pod.name == "fits"))
    seat = Seat("uid-many", "default/many", "ours:default/g", "n3", amounts, 3, 5, world.now)
    world.verbs.claims.seats.reserve([seat])
    world.verbs.reservations.add(Reservation("uid-links", "n4", (), amounts, 5, world.now, pod="default/links"))
    for number in range(4):  # a bound pod that is being admitted
        world.pod(f"new{number}", 1, "n5", phase="Pending")
    before = state(world.cluster)
    copy = copied(world)
    assert state(world.cluster) == before
    same = ("nodes", "pods")
    assert {key: state(copy.cluster)[key] for key in same} == {key: before[key] for key in same}
    names = sorted(world.cluster.nodes)
    of_live, of_copy = world.cluster.tables.nodes, copy.cluster.tables.nodes
    for name in names:
        there, here = of_live.node(world.cluster.row(name)), of_copy.node(copy.cluster.row(name))
        fields = ("alloc", "used", "gpu", "healthy", "sure", "likely", "unknown", "pending", "flags", "units", "parts")
        assert [getattr(there, one) for one in fields] == [getattr(here, one) for one in fields], name
    assert copy.claims.assumed.current(copy.now) == world.verbs.assumed.current(world.now)
    assert list(copy.claims.seats) == list(world.verbs.claims.seats)
    assert copy.claims.reservations.all() == world.verbs.reservations.all()


def test_the_copy_judges_and_scores_as_the_server() -> None:
    world = filled(40)
    world.filter(world.pod("assumed", 2, priority=9))
    copy = copied(world)
    there, here = judge.over(world.verbs, live=True), copy.judge
    for name in PODS:
        shown = []
        for one, cluster in ((there, world.cluster), (here, copy.cluster)):
            pod = cluster.pod("default", name)
            assert pod is not None
            asked = Preemptor(one.claims.request(pod, world.now), pod, world.now, WALL)
            names = sorted(cluster.nodes)
            shown.append((one.passed(asked, names), one.best(asked, names, 5)))
        assert shown[0] == shown[1], name


def test_the_health_of_nodes_is_copied() -> None:
    world = World()
    for name in ("good", "bad"):
        world.node(name, 8, links=pairs(8))
    for number in range(3):
        fails(world, f"f{number}", "bad", ADMISSION, namespace=f"t{number}")
    assert world.cluster.health.refused() == ["bad"]
    copy = copied(world)
    for name in ("good", "bad"):
        there = world.cluster.tables.places.place(world.cluster.row(name))
        assert copy.cluster.tables.places.place(copy.cluster.row(name)) == there


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"objects":{}}', b'{"pods":"a/b"}', b'{"pods":["a"]}', b'{"pods":["a/b/c"]}',
        b'{"pods":[1]}',
        b'{"add":[{}]}', b'{"add":[{"count":true,"like":"n"}]}', b'{"add":[{"count":0,"like":"n"}]}', b'{"other":1}',
        b'{"cordon":[1]}', b'{"objects":[1]}', b'{"objects":[{"kind":"Pod","spec":1}]}', b"{}",
        b'{"objects":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"x"}}}]}}]}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_question(body: bytes) -> None:
    with pytest.raises(BadInput):
        worker.question(body, frozenset({"nvidia.com/gpu"}))


def test_the_worker_answers_what_the_file_answers() -> None:
    world = filled(20)
    body = json.dumps({"pods": ["default/many"], "cordon": ["n1"]}).encode()
    raw = b"".join(live.written(world.verbs, world.now)) + pickle.dumps((body, WALL))
    status, _, text = b"".join(worker._answer(io.BytesIO(raw))).partition(b"\n")
    assert status == b"200"
    answer: dict[str, Any] = json.loads(text)
    (result,) = answer["results"]
    assert (result["verdict"], result["reasons"]["cordoned"]) == ("evict", 1)
    assert len(answer["holdings"]) == sum(len(one.holdings) for one in world.cluster.gpus.ledgers.values())
    missing = b"".join(worker._answer(io.BytesIO(raw.replace(b"default/many", b"default/nope"))))
    assert missing.startswith(b"404\n")
