"""The openb benchmark: its files, its arrivals, its rivals beside slow and obvious versions, its report."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import openb, openb_floor
from benchmarks.openb_rivals import RIVALS, typical_pods
from benchmarks.openb_state import State, Ties, Walk
from benchmarks.openb_trace import MODES, BadTrace, Node, Pod, arrivals, read_nodes, read_pods, select

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def machines() -> list[Node]:
    """40 nodes of four kinds."""
    kinds = [
        (96_000, 393_216, 8, "G2"),
        (104_000, 524_288, 2, "T4"),
        (16_000, 122_880, 2, "P100"),
        (32_000, 65_536, 4, "V"),
    ]
    return [Node(f"n-{i:02d}", *kinds[i % 4]) for i in range(40)]


def pods(count: int = 260) -> list[Pod]:
    drawn = random.Random(7)
    kinds = [
        (3_152, 5_600, 1, 810, ()), (11_300, 49_152, 1, 1000, ()), (11_908, 47_104, 1, 470, ()),
        (12_500, 57_344, 0, 0, ()), (8_000, 30_517, 1, 320, ("P100", "T4")), (64_000, 262_144, 8, 1000, ()),
        (16_000, 65_536, 2, 1000, ("G2",)), (4_000, 8_192, 1, 1000, ()), (24_000, 65_536, 4, 1000, ()),
    ]  # fmt: skip
    weights = [8, 9, 4, 5, 3, 1, 1, 4, 1]
    return [Pod(f"p-{i:04d}", *drawn.choices(kinds, weights)[0]) for i in range(count)]


# ---- the rivals, one node after the other, in plain Python


class Plain:
    """A node as a reader would write it down."""

    def __init__(self, node: Node) -> None:
        self.node, self.cpu, self.memory = node, node.cpu, node.memory
        self.free = [1000] * node.gpus
        self.tags: set[str] = set()

    def fits(self, pod: Pod) -> bool:
        enough = sum(1 for free in self.free if free >= pod.milli) >= pod.gpus
        return self.cpu >= pod.cpu and self.memory >= pod.memory and enough and (
            not pod.models or self.node.model in pod.models
        )  # fmt: skip

    def fullest(self, pod: Pod) -> list[int]:
        order = sorted((free, g) for g, free in enumerate(self.free) if free >= pod.milli)
        return [g for _, g in order[: pod.gpus]]

    def lowest(self, pod: Pod) -> list[int]:
        return [g for g, free in enumerate(self.free) if free >= pod.milli][: pod.gpus]


Choice = tuple[float, list[int]]  # a node's score, and the GPUs there


def dotprod(node: Plain, pod: Pod) -> Choice:
    dot = node.cpu / 128_000 * (pod.cpu / 128_000) + sum(node.free) / 8_000 * (pod.demand / 8_000)
    return int(100 * (1 - 0.5 * dot)), node.fullest(pod)


def tag(pod: Pod) -> str:
    return "share-gpu" if pod.shares else f"{pod.gpus}-gpu"


def clustering(node: Plain, pod: Pod) -> Choice:
    if not pod.gpus:
        return 0, []
    own = tag(pod)
    bonus = 75 if node.tags == {own} else 50 if own in node.tags else 25 if not node.tags else 0
    return bonus + int(25 * (8_000 - sum(node.free)) / 8_000), node.fullest(pod)


def packing(node: Plain, pod: Pod) -> Choice:
    if not pod.gpus:
        return 0, []
    chosen = node.fullest(pod)
    if sum(node.free) == 1000 * node.node.gpus:
        return max(33 - node.node.gpus, node.node.gpus), chosen
    opened = sum(1 for g in chosen if node.free[g] == 1000)
    if opened:
        return max(50 - opened, 33), chosen
    return max(100 - sum(node.free[g] // 10 for g in chosen) // 10, 50), chosen


def bestfit(node: Plain, pod: Pod) -> Choice:
    cpu, gpu = (node.cpu - pod.cpu) / 128_000, (sum(node.free) - pod.demand) / 8_000
    return int(100 * (1 - 0.5 * cpu - 0.5 * gpu)), node.fullest(pod)


def least_allocated(node: Plain, pod: Pod) -> Choice:
    cpu = (node.cpu - pod.cpu) * 100 // node.node.cpu
    memory = (node.memory - pod.memory) * 100 // node.node.memory
    return (cpu + memory) // 2, node.lowest(pod)


def most_allocated(node: Plain, pod: Pod) -> Choice:
    cpu = (node.node.cpu - node.cpu + pod.cpu) * 100 // node.node.cpu
    memory = (node.node.memory - node.memory + pod.memory) * 100 // node.node.memory
    return (cpu + memory) // 2, node.lowest(pod)


def fgd_of(trace: Sequence[Pod], *, then_bestfit: bool) -> Callable[[Plain, Pod], Choice]:
    typical = typical_pods(trace)

    def useless(cpu: int, free: list[int], model: str) -> float:
        total = 0.0
        for (need, milli, gpus, models), part in typical:
            fits = (
                gpus > 0 and cpu >= need and sum(f >= milli for f in free) >= gpus and (not models or model in models)
            )
            total += part * sum(f for f in free if not fits or f < milli)
        return total

    def score(node: Plain, pod: Pod) -> Choice:
        sets = [[g] for g, free in enumerate(node.free) if free >= pod.milli] if pod.shares else [node.lowest(pod)]
        before = useless(node.cpu, node.free, node.node.model)
        best: Choice = (-1, [])
        for chosen in sets:
            free = [left - pod.milli if g in chosen else left for g, left in enumerate(node.free)]
            fall = before - useless(node.cpu - pod.cpu, free, node.node.model)
            points = int(100 / (1 + math.exp(-fall / 1000)))
            if points > best[0]:
                best = points, chosen
        if not then_bestfit:
            return best
        cpu, gpu = (node.cpu - pod.cpu) / 128_000, (sum(node.free) - pod.demand) / 8_000
        return best[0] * 1000 + 100 * (1 - 0.5 * cpu - 0.5 * gpu), best[1]

    return score


PLAIN: dict[str, Callable[[Sequence[Pod]], Callable[[Plain, Pod], Choice]]] = {
    "dotprod": lambda trace: dotprod,
    "clustering": lambda trace: clustering,
    "packing": lambda trace: packing,
    "bestfit": lambda trace: bestfit,
    "fgd": lambda trace: fgd_of(trace, then_bestfit=False),
    "fgd+bestfit": lambda trace: fgd_of(trace, then_bestfit=True),
    "least-allocated": lambda trace: least_allocated,
    "most-allocated": lambda trace: most_allocated,
}


@pytest.mark.parametrize("policy", PLAIN)
def test_rival_places_as_its_slow_version(policy: str) -> None:
    nodes, trace = machines(), pods()
    state, plain = State(nodes), [Plain(node) for node in nodes]
    fast, slow = RIVALS[policy](state, trace), PLAIN[policy](trace)
    ties = Ties(random.Random(0), by_name=True)
    placed, some = 0, random.Random(1)
    for pod in arrivals(trace, state.capacity, 3):
        fitting = [i for i, node in enumerate(plain) if node.fits(pod)]
        rows = Walk(len(nodes), everything=True).rows(state.fits(pod))
        assert rows.tolist() == fitting
        if not fitting:
            continue
        fitting = sorted(some.sample(fitting, min(len(fitting), 3)))  # else the best kind of node is always there
        rows = np.array(fitting)
        choices = {i: slow(plain[i], pod) for i in fitting}
        raw = {i: choice[0] for i, choice in choices.items()}
        low, high = min(raw.values()), max(raw.values())
        if policy == "bestfit":  # stretched over the candidates, cut to integers: what stood below may come level
            raw = {i: 100 if low == high else (score - low) * 100 // (high - low) for i, score in raw.items()}
        best = max(sorted(raw), key=lambda i: raw[i])
        row, gpus = fast.choose(state, pod, rows, ties)
        assert (row, sorted(gpus)) == (best, sorted(choices[best][1])), pod
        state.place(pod, row, gpus)
        chosen = plain[best]
        chosen.cpu, chosen.memory = chosen.cpu - pod.cpu, chosen.memory - pod.memory
        for g in gpus:
            chosen.free[g] -= pod.milli
        if pod.gpus:
            chosen.tags.add(tag(pod))
        placed += 1
    assert placed > 100


def test_random_is_any_node_and_repeats_with_its_seed() -> None:
    runs = [openb.replay(machines(), pods(), openb.Run("x", "full", "all", "random", "random", 5)) for _ in range(2)]
    assert runs[0] == runs[1]


# ---- ours


@pytest.mark.parametrize("mode", MODES)
def test_ours_places_every_kind_of_pod(mode: str) -> None:
    """The state refuses a placement that does not fit, and the policy one that the trace allows."""
    run = openb.Run("x", mode, "default", "random", "ours", 42)
    ours = openb.replay(machines(), select(pods(), mode), run)
    anywhere = openb.replay(machines(), select(pods(), mode), openb.Run("x", mode, "default", "random", "random", 42))
    assert 0 <= ours < anywhere


def test_the_floor_is_below_every_policy() -> None:
    if not openb_floor.available():
        pytest.skip("scipy is not installed")
    nodes, trace = machines(), pods()
    least = openb_floor.floor(nodes, trace, 42)
    for policy in ("ours", "fgd+bestfit", "bestfit"):
        assert least <= openb.replay(nodes, trace, openb.Run("x", "full", "all", "random", policy, 42)) + 1e-6


def test_the_floor_of_two_sizes_by_hand() -> None:
    """One GPU; four pods of 600 are asked for before as much is asked for as there is: one fits, 400 stay idle."""
    if not openb_floor.available():
        pytest.skip("scipy is not installed")
    assert openb_floor.floor([Node("n", 64_000, 1, 1, "A")], [Pod("a", 0, 0, 1, 600)], 1) == pytest.approx(40.0)


# ---- arrivals, sampling


def test_arrivals_stop_at_130_percent_and_copies_come_last() -> None:
    trace = pods()
    made = arrivals(trace, 400_000, 1)
    asked = sum(pod.demand for pod in made)
    assert sorted(made[: len(trace)]) == sorted(trace)
    assert 1.3 * 400_000 - 8_000 < asked <= 1.3 * 400_000
    assert arrivals(list(reversed(trace)), 400_000, 1) == made, "the file's order does not matter"
    assert arrivals(trace, 400_000, 2) != made


def test_arrivals_of_too_long_a_trace_are_cut() -> None:
    trace = pods()
    made = arrivals(trace, 50_000, 1)
    assert sum(pod.demand for pod in made) <= 65_000
    assert set(made) < set(trace)


def test_the_walk_goes_on_where_it_ended() -> None:
    walk = Walk(1213)
    assert walk.enough == 497  # 50 - 1213 // 125 = 41 %
    every = np.ones(1213, dtype=bool)
    assert walk.rows(every).tolist() == list(range(497))
    assert walk.rows(every)[[0, -1]].tolist() == [497, 993]
    assert walk.rows(every)[[0, -1]].tolist() == [994, 277]
    few = np.zeros(1213, dtype=bool)
    few[[5, 300]] = True
    assert walk.rows(few).tolist() == [300, 5], "all were looked at: the next walk starts at the same node"
    assert walk.rows(every)[0] == 278


def test_modes() -> None:
    trace = pods()
    assert {pod.milli for pod in select(trace, "roundup")} == {1000}
    assert not any(pod.shares for pod in select(trace, "wholeall"))
    assert any(pod.gpus == 0 for pod in select(trace, "wholeall"))
    assert all(pod.gpus for pod in select(trace, "whole"))


# ---- files


def test_files_with_and_without_models(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(PODS + "p,4000,8192,1,470,T4|P100,LS\nq,1,2,0,0,,BE\n")
    (tmp_path / "b.csv").write_text(SHORT + "p,4000,8192,1,470\n")
    assert read_pods(tmp_path / "a.csv") == [Pod("p", 4000, 8192, 1, 470, ("P100", "T4")), Pod("q", 1, 2, 0, 0)]
    assert read_pods(tmp_path / "b.csv") == [Pod("p", 4000, 8192, 1, 470)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column"),
        ("name,cpu_milli\n", "no column memory_mib, num_gpu, gpu_milli"),
        (SHORT, "no pod asks for a GPU"),
        (SHORT + "p,4000,8192,1\n", ":2: 5 columns are named"),
        (SHORT + "p,4000,8192,1,470,9\n", ":2: 5 columns are named"),
        (SHORT + "p,4000,8192,1,1470\n", ":2: gpu_milli 1470"),
        (SHORT + "p,4000,8192,2,470\n", ":2: 2 GPUs of 470 milli"),
        (SHORT + "p,-1,8192,1,470\n", ":2: cpu_milli '-1'"),
        (SHORT + "p,4e3,8192,1,470\n", ":2: cpu_milli '4e3'"),
        (SHORT + "p,1,1,9,1000\n", ":2: num_gpu 9"),
        (SHORT + ",1,1,1,1000\n", ":2: name is empty"),
        (SHORT + "p,1,1,1,1000\np,1,1,1,1000\n", "p stands there twice"),
        (PODS + "p,1,1,1,1000,A||B,LS\n", ":2: gpu_spec"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "pods.csv").write_text(text)
    with pytest.raises(BadTrace, match=r"pods\.csv") as refused:
        read_pods(tmp_path / "pods.csv")
    assert says in str(refused.value)


def test_nodes_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(NODES + "n,1,1,16,A\n")
    with pytest.raises(BadTrace, match="16 GPUs"):
        read_nodes(tmp_path / "n.csv")
    with pytest.raises(BadTrace, match=r"absent\.csv"):
        read_nodes(tmp_path / "absent.csv")


# ---- the command


def files(tmp_path: Path) -> list[str]:
    rows = (f"{n.name},{n.cpu},{n.memory},{n.gpus},{n.model}" for n in machines())
    (tmp_path / "nodes.csv").write_text(NODES + "\n".join(rows) + "\n")
    rows = (f"{p.name},{p.cpu},{p.memory},{p.gpus},{p.milli},{'|'.join(p.models)},LS" for p in pods())
    (tmp_path / "pods.csv").write_text(PODS + "\n".join(rows) + "\n")
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def test_json_has_a_row_for_each_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--policies", "ours,fgd", "--seeds", "2", "--workers", "1", "--no-floor", "-o", "json"]
    assert openb.main([*files(tmp_path), *asked]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["apiVersion"], told["kind"]) == ("gpu-extender.io/v1", "OpenbBenchmark")
    assert [row["policy"] for row in told["rows"]] == ["ours", "fgd"]
    keys = ["pods", "mode", "sampling", "policy", "seeds", "unallocated_percent_at_100", "sd"]
    assert all(list(row) == keys and row["pods"] == "pods.csv" and row["seeds"] == 2 for row in told["rows"])
    assert "future-knowledge" in {warning["code"] for warning in told["warnings"]}
    assert "4/4" in err


def test_a_loss_is_told() -> None:
    row = {"pods": "a", "mode": "full", "sampling": "all", "seeds": 1, "sd": None}
    rows = [
        row | {"policy": "ours", "unallocated_percent_at_100": 2.0},
        row | {"policy": "fgd", "unallocated_percent_at_100": 1.5},
        row | {"policy": "lp-floor", "unallocated_percent_at_100": 1.0},
    ]
    assert openb.losses(rows) == ["a, full: fgd 1.50 %, ours 2.00 %: behind by 0.50"]
    assert "1.50" in openb.table(rows)
    assert openb.plot(rows).splitlines()[1].count("#") == 60


def test_bad_input_and_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = files(tmp_path)
    (tmp_path / "pods.csv").write_text(SHORT + "p,1,1,1,0\n")
    assert openb.main([*good, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "bad-trace"
    with pytest.raises(SystemExit) as left:
        openb.main([*good, "--policies", "ours,best"])
    assert left.value.code == 2
    assert "no such policy: best" in capsys.readouterr().err
