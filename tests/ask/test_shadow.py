"""Shadow mode over a small world: what is answered, what is compared, and that nothing is kept of our own choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from extender.act.watches import Watches
from extender.ask.shadow import MOST_SETS, Effects
from extender.cli.shadow import _lines
from extender.decide import wire
from extender.decide.decisions import Written
from extender.kube.client import ApiServer
from extender.kube.reflector import Feed
from extender.objects import records
from extender.objects.records import Event
from extender.server.calls import Binder
from extender.server.shadow import ShadowWatch
from extender.settings import Settings
from tests.waiting import run_bounded
from tests.world import DGX1V, WALL, World, machine, pairs, workload

SHADOW = Settings(mode="shadow")


class Bound(Binder):
    """Binds nothing, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def pod(self, namespace: str, name: str) -> None:
        return None

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written:
        self.asked.append((binding.node, annotations))
        return Written("bound")


def world(binder: Any = None) -> World:
    return World(SHADOW, binder=binder)


def report(made: World) -> Any:
    return made.call("/debug/shadow", method="GET").json


def place(made: World, name: str, gpus: int, node: str, **facts: Any) -> None:
    """kube-scheduler binds the pod, as the watch brings it, and it starts on the first GPUs that are free."""
    made.pod(name, gpus, **facts)
    made.pod(name, gpus, node, **facts)


def split(made: World, name: str = "split") -> None:
    """A node with two linked pairs, of each of which one GPU is held."""
    made.node(name, 4, links=pairs(4))
    for gpu in (0, 2):
        made.pod(f"single{gpu}", 1, name, held=[gpu])


def test_verbs_answer_what_was_asked_and_record_what_we_would_have() -> None:
    made = world()
    split(made, "pairs")
    two = made.pod("two", 2, links="required")
    assert made.filter(two, ["pairs", "unknown"])["NodeNames"] == ["pairs", "unknown"]
    assert made.decision(pod="default/two")["result"] == "try-again"  # a node is not known
    assert made.prioritize(two) == {"pairs": 0}
    assert made.preempt(two, {"pairs": ["single0", "single2"]}) == {"pairs": ["single0", "single2"]}
    verbs = [one["verb"] for one in made.call("/debug/decisions", method="GET").json["decisions"]]
    assert verbs == ["preempt", "prioritize", "filter"]
    assert not made.verbs.assumed.current(made.now)
    assert not made.verbs.reservations.all()


def test_before_anything_is_known_and_after_a_defect_every_node_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    pod = workload("one", 1)
    monkeypatch.setattr(made.core.source, "missing", lambda: ["pods"])
    assert made.filter(pod, ["a", "b"])["NodeNames"] == ["a", "b"]
    assert made.preempt(pod, {"a": ["x"]}) == {"a": ["x"]}
    monkeypatch.setattr(made.core.source, "missing", list)

    def fails(*args: Any) -> None:
        raise RuntimeError("defect")

    made.node("a")
    monkeypatch.setattr(made.verbs.policy.rules[0].__class__, "fill", fails)
    monkeypatch.setattr(made.verbs.policy.rules[0].__class__, "idle", fails)
    assert made.filter(pod, ["a"])["NodeNames"] == ["a"]
    assert made.metric("decisions_total", verb="filter", reason="not-judged") == 2


def test_a_pod_that_we_cannot_read_is_answered_too() -> None:
    """A later Kubernetes may have operators that we do not know: that is no reason to reject the pod."""
    made = world()
    made.node("a")
    term = {"matchExpressions": [{"key": "k", "operator": "Later", "values": ["1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    pod = workload("later", 1, spec={"affinity": affinity})
    assert made.filter(pod, ["a", "b"])["NodeNames"] == ["a", "b"]
    assert made.prioritize(pod) == {"a": 0}
    assert made.preempt(pod, {"a": ["x"]}) == {"a": ["x"]}
    assert made.metric("decisions_total", verb="filter", reason="not-judged") == 1


def test_bind_writes_no_gpus_and_binds_what_we_would_reject() -> None:
    binder = Bound()
    made = world(binder)
    made.node("small", 1)
    made.node("large", 8, links=DGX1V)
    for name, node in (("fits", "large"), ("too-large", "small")):
        pod = made.pod(name, 2)
        reply: list[Any] = []

        async def call(pod: Any = pod, node: str = node, reply: list[Any] = reply) -> None:
            meta = pod["metadata"]
            body = f'{{"PodName":"{meta["name"]}","PodNamespace":"default","PodUID":"{meta["uid"]}","Node":"{node}"}}'
            reply.append(await made.answered("bind", body.encode()))

        run_bounded(call())
        assert reply[0].result == "bound"
    assert binder.asked == [("large", {}), ("small", {})]
    assumed = {pod.uid: (pod.node, pod.gpus) for pod in made.verbs.assumed.current(made.now)}
    assert assumed == {"uid-fits": ("large", 0), "uid-too-large": ("small", 0)}
    assert not made.cluster.tables.shapes.planned


def test_the_report_of_a_constructed_case() -> None:
    """Two nodes of two linked pairs each. On `split` GPUs 0 and 2 are held, so that no free pair is linked."""
    made = world()
    split(made)
    made.node("whole", 4, links=pairs(4))
    place(made, "two", 2, "split")  # we: `whole`, linked by 4 NVLinks of 25 GB/s
    found = report(made)
    assert found["placements"] | {"not_judged": 0, "rejected": 0} == {
        "judged": 1, "same": 0, "equal": 0, "other": 1, "wait": 0, "agreement": 0.0, "not_judged": 0, "rejected": 0,
    }  # fmt: skip
    assert found["compared"] == {"placements": 1, "with_positions": 1, "with_several_gpus": 1, "preemptions": 0}
    theirs, ours = found["kube_scheduler"], found["gpu_extender"]
    assert (theirs["linked_pods"], ours["linked_pods"]) == (0, 1)
    assert (theirs["ring_gbps"], ours["ring_gbps"]) == (0, 100)
    assert (theirs["whole_nodes_broken"], ours["whole_nodes_broken"]) == (0, 1)
    # `whole` loses one of its two pairs; `split` had none.
    assert theirs["linked_sets_taken"][0] == {"gpus": 2, "sets": 0}
    assert ours["linked_sets_taken"][0] == {"gpus": 2, "sets": 1}
    ways = {one["kind"]: (one["gained"], one["lost"]) for one in found["differences"]}
    assert ways["linked"] == ways["ring_gbps"] == (1, 0)
    assert ways["whole_nodes"] == ways["linked_sets"] == (0, 1)
    [example] = found["differences"][0]["examples"]["gained"]
    assert (example["pod"], example["kube_scheduler"]["node"]) == ("default/two", "split")
    assert example["gpu_extender"]["node"] == "whole"
    assert made.metric("shadow_placements_total", outcome="other") == 1
    assert made.metric("shadow_ring_gbps_total", by="gpu-extender") == 100


def test_without_the_agent_what_needs_no_positions_is_counted() -> None:
    """kube-scheduler spreads 16 pods over 13 nodes without a topology. Each of the first 13 breaks a whole node; by us
    only the first would: then a node is begun, and 16 pods fit on it and on those that kube-scheduler has begun."""
    made = world()
    for node in range(13):
        made.node(f"n{node:02}", 8)
    for pod in range(16):
        place(made, f"p{pod:02}", 1, f"n{pod % 13:02}")
    found = report(made)
    assert found["placements"]["judged"] == 16
    assert found["compared"] == {"placements": 16, "with_positions": 0, "with_several_gpus": 0, "preemptions": 0}
    assert found["kube_scheduler"]["whole_nodes_broken"] == 13
    assert found["gpu_extender"]["whole_nodes_broken"] == 1
    lines = list(_lines(found))
    assert "rows about links leave 16 pods out: positions of GPUs are not known on both nodes" in lines
    [row] = [line for line in lines if line.startswith("whole nodes broken")]
    assert row.split() == ["whole", "nodes", "broken", "13", "1", "of", "16", "pods"]


def test_what_we_would_reject_everywhere_would_wait() -> None:
    made = world()
    split(made)
    place(made, "two", 2, "split", links="required")
    placed = report(made)["placements"]
    assert (placed["wait"], sum(placed["rejected"].values())) == (1, 1)


def test_each_pod_is_judged_in_the_state_before_it_also_in_one_batch() -> None:
    """The second pod of the batch sees the first one, and neither sees itself."""
    made = world()
    made.node("a", 2, links=pairs(2))
    made.node("b", 2, links=pairs(2))
    records = []
    for name, node in (("first", "a"), ("second", "b")):
        made.pod(name, 2)
        bound = World()
        bound.pod(name, 2, node)
        records.append(bound.cluster.pods[f"uid-{name}"])
    made.cluster.apply([Event("Pod", "set", record) for record in records], made.now)
    placed = report(made)["placements"]
    # `a` and `b` are equal for the first; `b` is the only one left for the second.
    assert (placed["judged"], placed["same"], placed["other"], placed["wait"]) == (2, 2, 0, 0)


def test_the_candidates_are_those_that_filter_was_asked_about() -> None:
    made = world()
    split(made)
    made.node("whole", 4, links=pairs(4))
    pod = made.pod("two", 2)
    made.filter(pod, ["split"])
    made.pod("two", 2, "split")
    assert report(made)["placements"]["same"] == 1


def test_what_is_not_compared() -> None:
    made = world()
    made.node("a", 8, links=DGX1V)
    made.pod("at-once", 1, "a")  # it was bound when we saw it first
    place(made, "cpu", 0, "a")
    volume = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    place(made, "volume", 1, "a", spec=volume)
    place(made, "elsewhere", 1, "new-node")
    placed = report(made)["placements"]
    assert (placed["judged"], placed["not_judged"]) == (0, {"not-modelled": 1, "unknown-node": 1})
    assert placed["agreement"] is None


def test_preemptions_are_compared_by_what_they_lose() -> None:
    """kube-scheduler takes the pod that has run for an hour, we the one that has just begun."""
    made = world()
    made.node("a", 1)
    made.node("b", 1)
    made.pod("old", 1, "a", start=WALL - 3600, held=[0])
    made.pod("young", 1, "b", start=WALL - 60, held=[0])
    high = made.pod("high", 1, priority=10)
    made.filter(high)
    offered = {"a": ["old"], "b": ["young"]}
    assert made.preempt(high, offered) == offered
    made.pod("high", 1, priority=10, nominated="a")
    found = report(made)
    assert found["preemptions"] == {"same": 0, "equal": 0, "other": 1, "none": 0}
    assert found["kube_scheduler"]["work_lost_gpu_seconds"] == 3600
    assert found["gpu_extender"]["work_lost_gpu_seconds"] == 60
    [example] = next(one for one in found["differences"] if one["kind"] == "work_lost")["examples"]["gained"]
    assert (example["kube_scheduler"]["node"], example["gpu_extender"]["node"]) == ("a", "b")
    assert not made.verbs.reservations.all()


def test_gangs_broken_count_all_their_members() -> None:
    made = world()
    made.node("a", 2)
    made.node("b", 1)
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    for gpu in (0, 1):
        made.pod(f"member{gpu}", 1, "a", start=WALL - 100, held=[gpu], annotations=gang)
    made.pod("single", 1, "b", start=WALL - 1000, held=[0])
    high = made.pod("high", 1, priority=10)
    made.filter(high)
    made.preempt(high, {"a": ["member0"], "b": ["single"]})
    made.pod("high", 1, priority=10, nominated="a")
    found = report(made)
    theirs, ours = found["kube_scheduler"], found["gpu_extender"]
    assert (theirs["gangs_broken"], theirs["victims"], theirs["work_lost_gpu_seconds"]) == (1, 1, 200)
    assert (ours["gangs_broken"], ours["victims"], ours["work_lost_gpu_seconds"]) == (0, 1, 1000)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    made.node("a", 8, links=DGX1V)
    monkeypatch.setattr("extender.server.shadow.MOST_PODS", 3)
    watch = made.cluster.observer
    assert isinstance(watch, ShadowWatch)
    for number in range(10):
        made.filter(made.pod(f"pod{number}", 1))
    assert len(watch._asked) == 3
    for number in range(10):
        made.pod(f"pod{number}", 1, "a" if number < 8 else "", held=[number] if number < 8 else ())
    assert (len(watch._asked), watch._rows) == (2, 2)
    assert all(len(kept) <= 5 for kept in watch.report._examples.values())


def test_in_a_burst_not_all_pods_are_compared() -> None:
    made = world()
    made.node("a", 8, links=DGX1V)
    for number in range(103):
        place(made, f"pod{number}", 1, "a", held=[number % 8])
        made.gone(f"pod{number}")
    placed = report(made)["placements"]
    assert (placed["judged"], placed["not_judged"]) == (100, {"busy": 3})
    made.now += 1.0
    place(made, "later", 1, "a", held=[0])
    assert report(made)["placements"]["judged"] == 101


def test_a_defect_of_ours_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    made.node("a", 8, links=DGX1V)

    def fails(*args: Any, **more: Any) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr("extender.server.shadow.compare", fails)
    place(made, "one", 1, "a")
    assert made.cluster.pods["uid-one"].node == "a"
    assert report(made)["placements"]["not_judged"] == {"defect": 1}


def test_in_active_mode_there_is_no_report() -> None:
    made = World()
    made.set("Node", machine("a"))
    place(made, "one", 1, "a")
    assert [one["code"] for one in report(made)["warnings"]] == ["not-in-shadow-mode"]


def test_of_a_large_node_few_of_the_sets_that_may_be_handed_out_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 equal GPUs any 4 may be handed out: to look at all 1,820 sets holds the verbs up for seconds."""
    looked: list[int] = []
    count = Effects._left

    def left(effects: Effects, shape: int, free: int) -> list[int]:
        looked.append(free)
        return count(effects, shape, free)

    monkeypatch.setattr(Effects, "_left", left)
    made = world()
    made.node("large", 16, links=[[12 if a != b else 0 for b in range(16)] for a in range(16)])
    place(made, "four", 4, "large")
    assert len(looked) <= MOST_SETS + 1
    # Whichever 4 it gets: of 8 pairs 2 are gone, of 4 fours 1, of 2 eights 1, of 1 sixteen 1.
    taken = report(made)["kube_scheduler"]["linked_sets_taken"]
    assert [one["sets"] for one in taken] == [2, 1, 1, 1]


class Sink:
    """Gives a cluster the slices, and notes how many events each has."""

    def __init__(self, made: World) -> None:
        self.slices: list[int] = []
        self._made = made

    def apply(self, batch: Sequence[Event]) -> None:
        self.slices.append(len(batch))
        self._made.cluster.apply(batch, self._made.now)

    def synced(self, kind: str) -> None:
        pass

    absent = synced

    def returned(self) -> None:
        pass


def test_each_pod_that_is_compared_ends_its_slice() -> None:
    made = world()
    made.node("pairs", 8, links=pairs(8))
    for n in range(4):
        made.pod(f"one{n}", 1)
    watches = Watches(cast(ApiServer, None), made.cluster)
    (pace,) = [one._pace for one in watches._reflectors if one.watched.kind == "Pod"]
    assert all(one._pace.costly is None for one in watches._reflectors if one.watched.kind != "Pod")
    sink = Sink(made)
    feed = Feed("Pod", sink, pace, lambda: 0.0, lambda error: None)
    read = [records.pod(workload(name, 1), made.cluster.gpu_names) for name in ("new0", "new1")]
    bound = [records.pod(workload(f"one{n}", 1, node="pairs"), made.cluster.gpu_names) for n in range(4)]
    run_bounded(feed.give(event for one in (*read, *bound) for event in feed.changed(one)))
    assert sink.slices == [3, 1, 1, 1]
    assert report(made)["placements"]["judged"] == 4


def test_outside_of_shadow_mode_no_event_ends_a_slice() -> None:
    watches = Watches(cast(ApiServer, None), World().cluster)
    assert all(one._pace.costly is None for one in watches._reflectors)
