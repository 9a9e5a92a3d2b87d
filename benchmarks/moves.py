"""GPU-hours moved for each 8-GPU place regained: the search of `plan` against a first-feasible consolidation.

    python -m benchmarks.moves --openb FOLDER --jobs philly.csv [--nodes 1000] [--seeds 3] [--places 5] [--load 0.85]

A state is stationary: what runs is drawn from the trace with its run time as weight, and has run for a uniform part of
it. It is packed (most allocated first) until 97 % of the GPUs are asked for; then random ones end until `load` is held.
openb: a seeded choice of the trace's nodes with their models, CPU and memory; a share of a GPU counts as a whole one.
philly: nodes with 8 GPUs; a job on more has pods of 8 and moves whole. Nothing saves its work: what moves loses all.

8-GPU places that are free are taken first. Then each rule regains one after the other; each is taken at once, and what
has moved starts anew. Rules, beside `ours`:

- `first, by name`: after the description of KAI's consolidation, of which no code runs: victims accumulate in the
  reverse order of jobs (here the youngest first: all have one priority), on one node after the other; the first
  scenario in which the shape fits and every victim has a place again is taken. Its victims are placed together, so no
  order of moves is kept.
- `first, most free`: the same, nodes with the most free GPUs first. Kinder than KAI's own order, which packs.
- `fewest GPUs`: of all nodes the one where the victims hold the fewest GPUs. A cost without the work.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from benchmarks import say
from benchmarks.openb_trace import read_nodes, read_pods, select
from extender.preemption.moves import Movable, MovablePod, MoveSearch, Shape

GPUS = 8
"""Of the shape, and of a node of philly."""
FULL = 0.97
Amounts = tuple[int, int, int]
"""Milli-CPU, MiB, GPUs."""


@dataclass(slots=True)
class Job:
    """One that runs. `nodes`: of its pods; `seconds`: since its start."""

    amounts: Amounts  # of a pod; the last pod of a philly job may take fewer GPUs
    pods: tuple[int, ...]  # GPUs of each
    allowed: frozenset[str]  # models, empty: any
    seconds: float
    nodes: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(self.pods)

    def asks(self, at: int) -> Amounts:
        return (*self.amounts[:2], self.pods[at])


@dataclass(slots=True)
class State:
    """What is left of each node, and what runs."""

    free: list[Amounts]
    models: list[str]
    jobs: list[Job] = field(default_factory=list)

    def copy(self) -> State:
        jobs = [Job(job.amounts, job.pods, job.allowed, job.seconds, job.nodes) for job in self.jobs]
        return State(list(self.free), self.models, jobs)

    def add(self, node: int, amounts: Amounts, sign: int) -> None:
        cpu, memory, gpus = self.free[node]
        self.free[node] = cpu + sign * amounts[0], memory + sign * amounts[1], gpus + sign * amounts[2]

    def leave(self, job: Job, sign: int = 1) -> None:
        """The job's pods leave their nodes, or are on them."""
        for at, node in enumerate(job.nodes):
            self.add(node, job.asks(at), sign)

    def place(self, job: Job) -> bool:
        """Pack the job: the node with the fewest free GPUs that takes each pod. False: one has no node."""
        nodes: list[int] = []
        for at in range(len(job.pods)):
            asked = job.asks(at)
            open_nodes = [(free[2], node) for node, free in enumerate(self.free) if self._takes(node, asked, job)]
            if not open_nodes:
                for done, taken in enumerate(nodes):
                    self.add(taken, job.asks(done), 1)
                return False
            _, node = min(open_nodes)
            self.add(node, asked, -1)
            nodes.append(node)
        job.nodes = tuple(nodes)
        return True

    def _takes(self, node: int, asked: Amounts, job: Job) -> bool:
        fits = all(have >= want for have, want in zip(self.free[node], asked, strict=True))
        return fits and (not job.allowed or self.models[node] in job.allowed)


# -- states


def openb(folder: Path, nodes: int, rng: random.Random) -> tuple[State, list[tuple[float, Job]]]:
    """(an empty cluster, (run time in seconds, job) of the trace)."""
    machines = sorted(rng.sample(read_nodes(folder / "openb_node_list_gpu_node.csv"), nodes))
    pods = {pod.name: pod for pod in select(read_pods(folder / "openb_pod_list_default.csv"), "roundup")}
    drawn: list[tuple[float, Job]] = []
    with (folder / "openb_pod_list_default.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            pod = pods.get(row["name"])
            if pod is not None and pod.gpus and row["scheduled_time"] and row["deletion_time"]:
                seconds = float(row["deletion_time"]) - float(row["scheduled_time"])
                drawn.append((seconds, Job((pod.cpu, pod.memory, 0), (pod.gpus,), frozenset(pod.models), 0.0)))
    free = [(machine.cpu, machine.memory, machine.gpus) for machine in machines]
    return State(free, [machine.model for machine in machines]), drawn


def philly(file: Path, nodes: int, rng: random.Random) -> tuple[State, list[tuple[float, Job]]]:
    """As `openb`."""
    drawn: list[tuple[float, Job]] = []
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            gpus = int(row["gpu_num"])
            if gpus:
                pods = (*[GPUS] * (gpus // GPUS), *([gpus % GPUS] if gpus % GPUS else []))
                drawn.append((float(row["run_time"]), Job((0, 0, 0), pods, frozenset(), 0.0)))
    return State([(0, 0, GPUS)] * nodes, [""] * nodes), drawn


def filled(empty: State, drawn: Sequence[tuple[float, Job]], load: float, rng: random.Random) -> State:
    """A stationary state that holds `load` of the GPUs; free places of the shape are taken."""
    state, all_gpus = empty.copy(), sum(free[2] for free in empty.free)
    weights = list(accumulate(seconds for seconds, _ in drawn))
    held = asked = 0
    while asked < FULL * all_gpus:
        seconds, job = rng.choices(drawn, cum_weights=weights)[0]
        job = Job(job.amounts, job.pods, job.allowed, rng.random() * seconds)
        asked += job.gpus
        if state.place(job):
            state.jobs.append(job)
            held += job.gpus
    while held > load * all_gpus:
        job = state.jobs.pop(rng.randrange(len(state.jobs)))
        state.leave(job)
        held -= job.gpus
    for node, free in enumerate(state.free):
        if free[2] >= GPUS:
            state.add(node, (0, 0, GPUS), -1)
    return state


# -- rules: each gives the jobs that move, on whose nodes they are then, or None where it finds no place


@dataclass(slots=True)
class Found:
    """What a rule does for one place."""

    node: int
    moved: list[Job]
    proved: bool = False


Rule = Callable[[State], Found | None]


def ours(state: State) -> Found | None:
    """The search of `plan`. Cost: GPU-seconds of work, then GPUs, then pods, as in `ask.making_room`."""
    every = (1 << len(state.free)) - 1
    bits: dict[frozenset[str], int] = {}
    units = []
    for job in state.jobs:
        if job.allowed not in bits:
            bits[job.allowed] = every if not job.allowed else sum(
                1 << n for n, model in enumerate(state.models) if model in job.allowed)  # fmt: skip
        pods = [MovablePod(node, job.asks(at), bits[job.allowed]) for at, node in enumerate(job.nodes)]
        cost = (int(job.seconds * job.gpus) << 48) + (job.gpus << 24) + len(pods)
        units.append(Movable(tuple(pods), cost))
    result = MoveSearch(state.free, units).fits(Shape((0, 0, GPUS), 1, (every,)))
    if result.moves is None:
        return None
    moved = []
    for move in result.moves:
        job = state.jobs[move.unit]
        state.leave(job)
        job.nodes = move.nodes
        state.leave(job, -1)
        moved.append(job)
    return Found(result.places[0][0], moved, result.proved)


def first_by_name(state: State) -> Found | None:
    """The first node in the order of names."""
    return next(_scenarios(state, range(len(state.free))), None)


def first_most_free(state: State) -> Found | None:
    """The first node, those with the most free GPUs first."""
    return next(_scenarios(state, sorted(range(len(state.free)), key=lambda node: -state.free[node][2])), None)


def fewest_gpus(state: State) -> Found | None:
    """The node whose victims hold the fewest GPUs."""
    on = _on(state)
    best: tuple[int, int] | None = None
    for node in range(len(state.free)):
        victims = _victims(state, node, on[node])
        if victims is not None and (best is None or sum(job.gpus for job in victims) < best[0]):
            trial = state.copy()
            if next(_scenarios(trial, [node]), None) is not None:
                best = sum(job.gpus for job in victims), node
    return None if best is None else next(_scenarios(state, [best[1]]), None)


def _on(state: State) -> dict[int, list[Job]]:
    on: dict[int, list[Job]] = defaultdict(list)
    for job in state.jobs:
        for node in set(job.nodes):
            on[node].append(job)
    return on


def _victims(state: State, node: int, jobs: Sequence[Job]) -> list[Job] | None:
    """The youngest jobs of the node, until the shape fits there; None: it never does."""
    free, victims = state.free[node][2], []
    for job in sorted(jobs, key=lambda job: job.seconds):
        if free >= GPUS:
            break
        free += sum(gpus for at, gpus in enumerate(job.pods) if job.nodes[at] == node)
        victims.append(job)
    return victims if free >= GPUS else None


def _scenarios(state: State, nodes: Sequence[int]) -> Iterator[Found]:
    """The feasible scenarios, one for each node at most. The state is changed by one that is taken."""
    on = _on(state)
    for node in nodes:
        victims = _victims(state, node, on[node])
        if victims is None:
            continue
        before = [job.nodes for job in victims]
        for job in victims:
            state.leave(job)
        state.add(node, (0, 0, GPUS), -1)
        placed = []
        for job in sorted(victims, key=lambda job: -job.seconds):
            if not state.place(job):
                break
            placed.append(job)
        if len(placed) == len(victims):
            state.add(node, (0, 0, GPUS), 1)
            moved = [job for job, nodes_before in zip(victims, before, strict=True) if job.nodes != nodes_before]
            yield Found(node, moved)
            return
        for job in placed:
            state.leave(job)
        state.add(node, (0, 0, GPUS), 1)
        for job, nodes_before in zip(victims, before, strict=True):
            job.nodes = nodes_before
            state.leave(job, -1)


RULES: dict[str, Rule] = {
    "ours": ours, "first, by name": first_by_name, "first, most free": first_most_free, "fewest GPUs": fewest_gpus,
}  # fmt: skip


# -- the measurement

HEAD = (
    "state", "rule", "places", "GPU-hours a place", "of first, by name", "GPUs a place", "jobs a place", "proved",
    "CPU s, mean", "CPU s, most",
)  # fmt: skip


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


@dataclass(slots=True)
class Row:
    """One rule over all seeds."""

    hours: list[float] = field(default_factory=list)  # GPU-hours of work, of each place
    gpus: int = 0
    jobs: int = 0
    proved: int = 0
    seconds: list[float] = field(default_factory=list)  # of CPU, of each search
    short: int = 0  # seeds in which no more place was found


def regain(state: State, rule: Rule, places: int, row: Row) -> None:
    """Regain so many places, one after the other."""
    for _ in range(places):
        begun = time.process_time()
        found = rule(state)
        row.seconds.append(time.process_time() - begun)
        if found is None:
            row.short += 1
            return
        assert state.free[found.node][2] >= GPUS
        assert all(min(free) >= 0 for free in state.free)
        row.hours.append(sum(job.seconds * job.gpus for job in found.moved) / 3600)
        row.gpus += sum(job.gpus for job in found.moved)
        row.jobs += len(found.moved)
        row.proved += found.proved
        for job in found.moved:
            job.seconds = 0.0
        state.add(found.node, (0, 0, GPUS), -1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--openb", type=Path)
    parser.add_argument("--jobs", type=Path, help="philly.csv")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--places", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.85)
    asked = parser.parse_args(arguments)
    made = {"openb": (openb, asked.openb), "philly": (philly, asked.jobs)}
    print(f"| {' | '.join(HEAD)} |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, (read, path) in made.items():
        if path is None:
            continue
        rows = {rule: Row() for rule in RULES}
        for seed in range(asked.seeds):
            rng = random.Random(seed)
            state = filled(*read(path, asked.nodes, rng), asked.load, rng)
            for rule, row in rows.items():
                regain(state.copy(), RULES[rule], asked.places, row)
                say(f"{name} seed {seed} {rule}: {len(row.hours)} places")
        first = mean(rows["first, by name"].hours)
        for rule, row in rows.items():
            number = max(1, len(row.hours))
            cells = (
                name, rule, f"{len(row.hours)}", f"{mean(row.hours):,.1f}",
                f"{mean(row.hours) / first:.3f}" if first else "",
                f"{row.gpus / number:.2f}", f"{row.jobs / number:.2f}",
                f"{row.proved}/{len(row.hours)}" if rule == "ours" else "",
                f"{mean(row.seconds):.3f}", f"{max(row.seconds):.3f}",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
