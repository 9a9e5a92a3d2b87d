"""GPUs by queue and model, read from a cluster."""

from __future__ import annotations

from extender.cluster.slices import finish
from extender.objects.queueing import GATE, QUEUE
from extender.queue.placement import GpuAllowance
from extender.queue.usage import MOST_QUEUES, DecayedUse, Models, OverQuota, QueueHoldings
from extender.settings import QueueLimits
from tests.queue.gangs import waiting
from tests.queue.test_gang import pod
from tests.world import AMD, PRODUCT, World


def world() -> World:
    made = World()
    made.node("h1", 8, labels={PRODUCT: "H100"})
    made.node("h2", 8, labels={PRODUCT: "H100"})
    made.node("a1", 4, labels={"node.kubernetes.io/instance-type": "p4d"})
    made.node("m1", 8, resource=AMD)
    made.node("cpu", 0, labels={PRODUCT: "H100"})
    return made


def test_the_model_is_the_first_label_or_the_resource() -> None:
    assert finish(Models.read(world().cluster)).capacity == {"H100": 16, "p4d": 4, AMD: 8}


def test_what_queues_hold() -> None:
    one = world()
    one.pod("a", 4, "h1", namespace="x")
    one.pod("b", 2, "h2", namespace="x", labels={QUEUE: "lab"})
    one.pod("c", 1, "a1", namespace="x")
    one.pod("no-gpus", 0, "h1", namespace="x")
    one.pod("lost", 8, "unknown", namespace="x")
    one.pod("released", 2, namespace="x", nominated="h2")
    one.pod("pending", 2, namespace="x")
    one.set("Pod", pod("gated", gpus=2, namespace="x", nominated="h2"))  # its gate is not open yet
    one.pod("over", 8, "h2", namespace="x", phase="Succeeded")
    assert finish(finish(Models.read(one.cluster)).held()) == {"x": {"H100": 6, "p4d": 1}, "lab": {"H100": 2}}


def test_what_complete_gangs_wait_for() -> None:
    one = world()
    one.set("Pod", pod("any", gpus=2, namespace="x"))
    one.set("Pod", pod("h", gpus=3, namespace="x", spec={"nodeSelector": {PRODUCT: "H100"}}))
    one.node("a1", 4, labels={"node.kubernetes.io/instance-type": "p4d", "disk": "ssd"})
    one.set("Pod", pod("other", gpus=1, namespace="y", spec={"nodeSelector": {"disk": "ssd"}}))
    one.set("Pod", pod("held-back", gpus=8, namespace="y", gates=(GATE, "other.io/gate")))
    one.set("Pod", pod("unknown", gpus=8, namespace="y", spec={"nodeSelector": {PRODUCT: "B200"}}))
    models = finish(Models.read(one.cluster))
    assert finish(models.wanted(waiting(one.cluster))) == {
        "x": {"H100": 5, "p4d": 2, AMD: 2},
        "y": {"p4d": 1},
    }


def test_what_a_placed_gang_asks_for() -> None:
    models = finish(Models.read(world().cluster))
    assert models.of({"h1": 8, "h2": 4, "a1": 1, "gone": 2}) == {"H100": 12, "p4d": 1, "": 2}


def test_what_the_rules_of_a_queue_leave_a_gang() -> None:
    one = world()
    one.set("Pod", pod("any", gpus=2, namespace="x"))
    one.set("Pod", pod("b200", gpus=2, namespace="x", spec={"nodeSelector": {PRODUCT: "B200"}}))
    one.set("Pod", pod("h", gpus=2, namespace="x", spec={"nodeSelector": {PRODUCT: "H100"}}))
    models = finish(Models.read(one.cluster))
    gangs = {gang.ref.name: gang for gang in waiting(one.cluster)}
    queues = QueueHoldings(one.cluster, models, {"x": QueueLimits(limit_gpus={"H100": 1, "p4d": 2})}, {})
    assert queues.over(gangs["any"]) is None
    assert queues.over(gangs["b200"]) is None  # there is no such node
    assert queues.over(gangs["h"]) == OverQuota("x", "limit", "H100", 2, 0, 1)
    rows = {one.cluster.row(name) for name in ("h1", "h2")}
    assert GpuAllowance(rows, 1) in queues.allowances(queues.quota.more("x"))
    assert queues.quota.more("y") == {}


def test_use_decays() -> None:
    # x holds 8 GPUs for two half-lives: 8 * (1 - 1/4) = 6. Then it holds nothing for one more: half of it.
    use, held = DecayedUse(), {"y": {"H100": 4}}
    assert use.of(held, 1_000.0, 100.0) == {"y": {"H100": 4.0}}
    held["x"] = {"H100": 8}
    assert use.of(held, 1_000.0, 100.0) == {"y": {"H100": 4.0}}
    assert use.of({}, 1_200.0, 100.0) == {"y": {"H100": 4.0}, "x": {"H100": 6.0}}
    assert use.of({}, 1_300.0, 100.0) == {"y": {"H100": 2.0}, "x": {"H100": 3.0}}
    assert use.of({}, 1_250.0, 100.0) == {"y": {"H100": 2.0}, "x": {"H100": 3.0}}, "a clock that steps back"
    assert use.of({}, 9_000.0, 100.0) == {}, "what is next to nothing is forgotten"


def test_the_time_in_which_another_instance_acted_does_not_count() -> None:
    use, held = DecayedUse(), {"x": {"H100": 8}}
    use.of(held, 0.0, 100.0)
    assert use.of({}, 100.0, 100.0) == {"x": {"H100": 8.0}}
    use.pause()
    assert use.of({"y": {"H100": 8}}, 900.0, 100.0) == {"x": {"H100": 8.0}}
    assert use.of({}, 1_000.0, 100.0) == {"x": {"H100": 4.0}, "y": {"H100": 4.0}}


def test_names_of_queues_without_end_are_forgotten() -> None:
    """Those of the least use first; what a queue holds now counts."""
    use, large = DecayedUse(), {"large": {"H100": 8}}
    for at in range(3 * MOST_QUEUES // 10):
        found = use.of(large if not at else {f"q{at}-{i}": {"H100": 1} for i in range(10)}, float(at), 1e5)
        assert len(found) <= MOST_QUEUES + 10
    assert len(found) >= MOST_QUEUES
    assert "large" in found


def test_what_is_added_to_the_use_of_a_look_counts_from_the_next_one_on() -> None:
    use, held = DecayedUse(), {"x": {"H100": 8}}
    use.of(held, 0.0, 100.0)
    held["x"]["H100"] = 16
    assert use.of(held, 100.0, 100.0) == {"x": {"H100": 8.0}}
    assert use.of(held, 200.0, 100.0) == {"x": {"H100": 12.0}}


def test_without_a_half_life_what_is_held_now_counts() -> None:
    use = DecayedUse()
    use.of({"x": {"H100": 8}}, 0.0, 100.0)
    assert use.of({"y": {"H100": 1}}, 10.0, 0.0) == {"y": {"H100": 1}}
    assert use.of({"z": {"H100": 2}}, 20.0, 100.0) == {"z": {"H100": 2.0}}, "it begins anew"
