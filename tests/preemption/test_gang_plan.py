"""Plans for gangs over many nodes, by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from extender.cluster.slices import Sliced
from extender.policy import pod_request
from extender.policy.policy import Policy
from extender.preemption import certificate, gang_plan
from extender.preemption.gang_plan import (
    DomainCandidates,
    GangSearch,
    GangSearchResult,
    PendingGang,
    Reclaim,
    SearchContext,
)
from extender.settings import Settings
from tests.world import WALL, World, pairs

APART = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "new"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
}


class Place:
    """Two racks of two nodes, a and b, c and d, of 4 GPUs each unless a test says otherwise."""

    def __init__(self, gpus: int = 4, links: Sequence[Sequence[int]] | None = None, nodes: str = "abcd") -> None:
        self.world = World(Settings())
        for name in nodes:
            self.world.node(name, gpus, labels={"rack": "r" if name in "ab" else "s"}, links=links)

    def find(self, pods: int, gpus: int, priority: int = 5, **more: Any) -> GangSearchResult:
        """`more`: facts of the gang's pods, and arguments of the search."""
        searching = {key: more.pop(key) for key in ("reclaim", "joint") if key in more}
        spared, budget = more.pop("spared", ()), more.pop("budget", 200_000)
        cluster = self.world.cluster
        names = [f"new{i}" for i in range(pods)]
        for name in names:
            self.world.pod(name, gpus, priority=priority, labels={"app": "new"}, **more)
        found = [pod for name in names if (pod := cluster.pod("default", name)) is not None]
        gang = PendingGang(
            tuple(found),
            tuple(pod_request.read(pod, cluster) for pod in found),
            self.world.now,
            WALL,
            frozenset(f"uid-{name}" for name in spared),
        )
        racks = {
            rack: array("i", [cluster.row(n) for n, node in cluster.nodes.items() if node.labels["rack"] == rack])
            for rack in sorted({node.labels["rack"] for node in cluster.nodes.values()})
        }
        limits = self.world.settings.preemption.model_copy(update={"search_budget": budget})
        search = GangSearch(cluster, Policy.of(self.world.settings), limits)
        return search.find(
            gang, [DomainCandidates(("rack", rack), rows) for rack, rows in racks.items()], SearchContext(**searching)
        )

    def pod(self, name: str, gpus: int, **facts: Any) -> None:
        """A running pod on the node that its name begins with."""
        self.world.pod(name, gpus, name[0], start=WALL - facts.pop("age", 100), **facts)


def victims(found: GangSearchResult) -> list[str]:
    assert found.best is not None, found.why
    return sorted(pod.name for pod in found.best.pods)


def cost(found: GangSearchResult) -> dict[str, int]:
    assert found.best is not None, found.why
    return {name: value for (name, _), value in zip(found.terms, found.best.cost, strict=True)}


@pytest.fixture
def play() -> Place:
    return Place()


def test_a_gang_on_two_nodes_breaks_once(play: Place) -> None:
    """Rack r has two members of one gang, one on each node; rack s a member each of two gangs."""
    for name, gang in (("a1", "x"), ("b1", "x"), ("c1", "y"), ("d1", "z")):
        play.pod(name, 4, labels={"gpu-extender.io/gang": gang}, annotations={"gpu-extender.io/gang-min": "2"})
    play.world.node("e", 8, labels={"rack": "t"})
    for name, gang in (("e1", "y"), ("e2", "z")):  # the gangs of rack s have a member elsewhere
        play.pod(name, 4, priority=9, labels={"gpu-extender.io/gang": gang}, age=0)
    found = play.find(2, 4)
    assert victims(found) == ["a1", "b1"]
    assert cost(found)["gangs_broken"] == 1
    assert cost(found)["work_lost_gpu_seconds"] == 2 * 4 * 100
    assert found.runner_up is not None
    assert found.runner_up.cost[2] == 2
    assert found.proved


@pytest.mark.parametrize("arrival", [1, -1])
def test_of_equal_plans_the_names_decide_not_which_came_first(arrival: int) -> None:
    play = Place(nodes="abcd"[::arrival])
    for name in ("a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2")[::arrival]:
        play.pod(name, 2)
    found = play.find(3, 2)
    assert victims(found) == ["a1", "b1", "b2"]
    assert found.best is not None
    assert found.best.domain == ("rack", "r")


def test_the_second_member_of_a_broken_gang_costs_nothing_more() -> None:
    """On b a pod that lost less may be evicted, or the second member of the gang that breaks on a: its work is lost
    anyhow."""
    play = Place(4)
    play.world.drop("Node", play.world.node("c", 4, labels={"rack": "s"}))
    play.world.drop("Node", play.world.node("d", 4, labels={"rack": "s"}))
    notes = {"gpu-extender.io/gang-min": "2"}
    play.pod("a1", 4, labels={"gpu-extender.io/gang": "x"}, annotations=notes)
    play.pod("b1", 2, labels={"gpu-extender.io/gang": "x"}, annotations=notes)
    play.pod("b2", 2, age=1)
    found = play.find(3, 2)
    assert victims(found) == ["a1", "b1"]
    assert cost(found)["work_lost_gpu_seconds"] == (4 + 2) * 100


def test_what_is_paid_for_is_no_reason_to_leave_a_plan_out() -> None:
    """The plan that is found first loses 802 GPU-seconds. With a1 evicted, all work of its gang is paid for: c1 of
    another node costs no more."""
    play = Place(6, nodes="a")
    for name in "bc":
        play.world.node(name, 2, labels={"rack": "r"})
    gang: dict[str, Any] = {"labels": {"gpu-extender.io/gang": "x"}, "annotations": {"gpu-extender.io/gang-min": "3"}}
    play.pod("a1", 4, priority=1, **gang)
    play.pod("a2", 2, priority=1, age=1)
    play.pod("b1", 2, priority=2, **gang)
    play.pod("c1", 2, priority=1, **gang)
    found = play.find(3, 2)
    assert victims(found) == ["a1", "c1"]
    assert cost(found)["work_lost_gpu_seconds"] == (4 + 2 + 2) * 100


def test_a_gang_breaks_with_its_head_and_not_with_workers_beyond_their_minimum() -> None:
    """A RayCluster may lose two of five pods: in rack r the head and a worker, in rack s two workers, which lose
    more."""
    play = Place(nodes="abcde")
    workers = {"groupName": "w", "replicas": 4, "minReplicas": 2, "maxReplicas": 4}
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": {}, "workerGroupSpecs": [workers]}
    named = {"name": "x", "namespace": "default"}
    play.world.set("Group", {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": named, "spec": spec})
    worker = {"ray.io/cluster": "x", "ray.io/node-type": "worker", "ray.io/group": "w"}
    play.pod("a1", 4, labels=worker | {"ray.io/node-type": "head", "ray.io/group": "headgroup"}, age=1)
    for name, age in (("b1", 1), ("c1", 500), ("d1", 500)):
        play.pod(name, 4, labels=worker, age=age)
    play.pod("e1", 4, labels=worker, age=1, priority=9)
    found = play.find(2, 4)
    assert victims(found) == ["c1", "d1"]
    assert (cost(found)["gangs_broken"], cost(found)["work_lost_gpu_seconds"]) == (0, 2 * 4 * 500)
    other = found.runner_up
    assert other is not None
    assert other.cost[2:4] == (1, 4 * (1 + 1 + 500 + 500 + 1))
    assert certificate.breaks(play.world.cluster, other.pods) == (
        "; it breaks gang default/x: role head/headgroup has 1 running pod and needs 1"
    )


def test_a_budget_counts_over_all_nodes(play: Place) -> None:
    """One disruption is allowed. Rack r needs two pods of the budget, rack s one."""
    for name, labels in (("a1", {"app": "x"}), ("b1", {"app": "x"}), ("c1", {"app": "x"}), ("d1", {})):
        play.pod(name, 4, labels=labels)
    play.world.budget("x", 1, {"app": "x"})
    found = play.find(2, 4)
    assert victims(found) == ["c1", "d1"]
    assert cost(found)["pdb_violations"] == 0
    assert found.runner_up is not None
    assert found.runner_up.cost[0] == 1


def test_the_whole_gang_or_nothing(play: Place) -> None:
    """Each rack holds two pods of 4 GPUs; a pod of equal priority stays."""
    for name in ("a1", "b1", "c1"):
        play.pod(name, 4)
    play.pod("d1", 4, priority=5)
    assert play.find(3, 4).best is None
    assert victims(play.find(2, 4)) == ["a1", "b1"]


@pytest.mark.parametrize(
    "facts",
    [
        {"priority": 5},
        {"owner": "DaemonSet"},
        {"annotations": {"gpu-extender.io/protect-for": "1h"}},
        {"terminating": WALL - 300},
    ],
)
def test_pods_that_are_never_victims(play: Place, facts: dict[str, Any]) -> None:
    for node in "abcd":
        play.pod(f"{node}1", 3, **facts)
        play.pod(f"{node}2", 1)
    found = play.find(2, 4)
    assert found.best is None
    assert found.proved
    assert found.why == "in no domain do the free GPUs and those of possible victims suffice for the whole gang"


def test_a_gang_that_never_preempts_has_no_plan(play: Place) -> None:
    found = play.find(2, 4, never=True)
    assert found.best is None
    assert "preemptionPolicy" in found.why


def test_spared_pods_stay(play: Place) -> None:
    for node in "abcd":
        play.pod(f"{node}1", 4)
    assert victims(play.find(2, 4, spared=["a1"])) == ["c1", "d1"]


def test_a_gang_that_fits_evicts_no_pod(play: Place) -> None:
    play.pod("a1", 4)
    found = play.find(2, 4)
    assert victims(found) == []
    assert found.best is not None
    assert found.best.domain == ("rack", "s")
    assert {play.world.cluster.names[row] for row in found.best.rows} == {"c", "d"}


def test_pods_that_are_terminating_count_as_gone(play: Place) -> None:
    play.pod("a1", 4, priority=9, terminating=WALL + 10)
    for node in "bcd":
        play.pod(f"{node}1", 4)
    found = play.find(2, 4)
    assert victims(found) == ["a1", "b1"]
    assert cost(found)["victims"] == 1
    for node in "bcd":
        play.pod(f"{node}1", 4, terminating=WALL + 10)
    found = play.find(2, 4)
    assert found.best is not None
    shown = {one["term"]: one["value"] for one in gang_plan.cost_of(found, found.best)}
    assert (shown["highest_victim_priority"], shown["victims"]) == (None, 0)


def test_the_position_of_freed_gpus_counts() -> None:
    """Links between 0 and 1, 2 and 3. Two GPUs are free on each node, one of each pair."""
    play = Place(links=pairs(4))
    for node in "abcd":
        play.pod(f"{node}1", 1, held=[1], priority=2)
        play.pod(f"{node}2", 1, held=[3], age=200 if node in "ab" else 50)
    found = play.find(2, 2, links="required")
    assert victims(found) == ["c2", "d2"]
    assert cost(found)["work_lost_gpu_seconds"] == 100


def test_a_launcher_without_gpus_needs_room_too(play: Place) -> None:
    """Two workers fill the GPUs of a rack; the launcher needs the CPUs of a pod without GPUs."""
    for node in "abcd":
        play.pod(f"{node}1", 0, cpu="62", priority=1 if node == "c" else 2)
    cluster = play.world.cluster
    pods = [
        play.world.pod(name, gpus, priority=5, cpu=cpu)["metadata"]["name"]
        for name, gpus, cpu in (("worker0", 4, "1"), ("worker1", 4, "1"), ("launcher", 0, "4"))
    ]
    found = [pod for name in pods if (pod := cluster.pod("default", name)) is not None]
    gang = PendingGang(tuple(found), tuple(pod_request.read(pod, cluster) for pod in found), play.world.now, WALL)
    rows = array("i", [cluster.row(name) for name in "abcd"])
    search = GangSearch(cluster, Policy.of(play.world.settings), play.world.settings.preemption)
    assert victims(search.find(gang, [DomainCandidates(None, rows)])) == ["c1"]
    only = PendingGang(gang.pods[2:], gang.requests[2:], play.world.now, WALL)
    assert search.find(only, [DomainCandidates(None, rows)]).why == "no pod of the gang asks for GPUs"


def test_pods_that_have_to_be_apart_take_a_node_each(play: Place) -> None:
    for node in "abcd":
        play.pod(f"{node}1", 2, age=1 if node == "a" else 100)
        play.pod(f"{node}2", 2)
    found = play.find(2, 2, spec=APART)
    assert len(set(found.best.rows if found.best else ())) == 2
    assert victims(found)[0] == "a1"


def test_a_plan_that_the_joint_placement_rejects_is_none(play: Place) -> None:
    for node in "abcd":
        play.pod(f"{node}1", 4)
    asked: list[tuple[int, ...]] = []

    def joint(rows: array[int]) -> Sliced[None]:
        nodes = play.world.cluster.tables.nodes
        asked.append(tuple(nodes.free_of(row)[3] for row in rows))
        return nowhere()

    def nowhere() -> Sliced[None]:
        return
        yield

    found = play.find(2, 4, joint=joint)
    assert found.best is None
    assert not found.proved
    assert (4, 4) in asked, "it is asked about the tables without the victims"


def test_reclaim_takes_pods_of_borrowers_first(play: Place) -> None:
    for node, priority in (("a", 1), ("b", 1), ("c", 4), ("d", 4)):
        play.pod(f"{node}1", 4, priority=priority, labels={"team": "lent" if node in "cd" else "own"})
    lent = Reclaim(lambda pod: pod.labels.get("team") == "lent")
    assert victims(play.find(2, 4)) == ["a1", "b1"]
    found = play.find(2, 4, reclaim=lent)
    assert victims(found) == ["c1", "d1"]
    assert cost(found)["victims_beside_borrowers"] == 0


def test_reclaim_disregards_the_priority_of_borrowers_only_where_it_is_told_to(play: Place) -> None:
    for node in "abcd":
        play.pod(f"{node}1", 4, priority=9, labels={"team": "lent" if node in "cd" else "own"})

    def borrower(pod: Any) -> bool:
        return bool(pod.labels.get("team") == "lent")

    assert play.find(2, 4, reclaim=Reclaim(borrower)).best is None
    assert victims(play.find(2, 4, reclaim=Reclaim(borrower, regardless_of_priority=True))) == ["c1", "d1"]


def test_the_certificate_states_the_runner_up_and_what_it_lost_on(play: Place) -> None:
    for node, age in (("a", 100), ("b", 100), ("c", 200), ("d", 100)):
        play.pod(f"{node}1", 4, age=age)
    found = play.find(2, 4)
    told = gang_plan.gang_certificate(play.world.cluster, found)
    assert told["proved"] is True
    assert told["lost_on"] == "work_lost_gpu_seconds"
    assert told["runner_up"]["domain"] == {"level": "rack", "value": "s"}
    assert [pod["name"] for pod in told["runner_up"]["victims"]] == ["c1", "d1"]
    assert (told["nodes_examined"], told["domains_examined"], told["gap"]) == (4, 2, None)
    assert found.best is not None
    shown = {one["term"]: one["value"] for one in gang_plan.cost_of(found, found.best)}
    assert shown["work_lost_gpu_seconds"] == 2 * 4 * 100
    assert shown["leftover_fragmentation"] is None


def test_a_search_that_ends_early_states_a_bound() -> None:
    """A small budget leaves plans out; the bound is not above the cost of the best one."""
    play = Place(8)
    for node in "abcd":
        for i in range(8):
            gang = {"gpu-extender.io/gang": f"g{i % 3}"} if i % 2 else {"app": f"b{i % 4}"}
            play.pod(f"{node}{i}", 1, age=50 + 7 * i * ord(node) % 90, labels=gang, priority=i % 2)
    for app in ("b0", "b2"):
        play.world.budget(app, 2, {"app": app})
    whole = play.find(7, 2)
    short = play.find(7, 2, budget=1)
    assert whole.proved
    assert whole.best is not None
    assert short.best is not None
    assert short.bound is not None
    assert short.bound <= whole.best.cost <= short.best.cost
    told = gang_plan.gang_certificate(play.world.cluster, short)
    assert short.proved == (told["gap"] is None)


def test_a_node_with_too_many_sets_is_searched_by_the_search_for_one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Place(8)
    for node in "abcd":
        for i in range(8):
            play.pod(f"{node}{i}", 1, age=50 + i, priority=i % 2, grace=10 + i)
    whole = play.find(4, 2)
    monkeypatch.setattr("extender.preemption.gang_options.MOST_SETS", 8)
    found = play.find(4, 2)
    assert found.best is not None
    assert whole.best is not None
    assert found.best.cost == whole.best.cost
    assert whole.proved
    assert found.bound is not None
    assert found.bound <= found.best.cost
    assert cost(found)["highest_victim_priority"] == 0


def test_the_tables_stay_as_they_were() -> None:
    play = Place(links=pairs(4))
    for node in "abcd":
        play.pod(f"{node}1", 1, held=[1])
        play.pod(f"{node}2", 1, held=[3])
    for name in ("new0", "new1"):
        play.world.pod(name, 2, priority=5, links="required", labels={"app": "new"})
    nodes = play.world.cluster.tables.nodes
    before = [nodes.node(row) for row in range(4)]
    assert len(victims(play.find(2, 2, links="required"))) == 2
    assert [nodes.node(row) for row in range(4)] == before
