"""What an eviction costs: ours against kube-scheduler's own rule, others' rules and the optimum by brute force.

    python -m benchmarks.preemption [--fleets 8 8-holes 16 16-close] [--nodes 200] [--clusters 10] [--offsets 4]
                                    [--needs 1 2 4 8 16] [--sizes default|multigpu50] [-o json]

Full clusters (see benchmarks/preemption_rules.py); a pod of high priority needs GPUs. Two lines: *candidates*: the 100
nodes that kube-scheduler offers from a random offset, with its own victims; *free choice*: all nodes, once a cluster.
Ours is the server's own preempt verb, bytes to bytes, with its default settings.

    fleet        GPUs a node: 8 (DGX-1 V100, HGX H100), 8-holes (the same, one GPU free on half of the nodes), 16
                 (DGX-2), 16-close (DGX-2, costs that nearly tie)
    links        what the pod says; *required* on fleets where it matters, and there only the rules that others give a
                 pod with a device plugin: kube-scheduler's, which does not look at links, and vgpu-manager's
    GPU-hours    work lost, mean (median): since the last checkpoint or the start, with restarts, gangs whole
    ratio        mean of in-tree's GPU-hours / this rule's mean, on the same events
    times        this rule's GPU-hours / the optimum's of the same event, median
    victims, gangs, PDB, priority   mean victims, gangs broken, budgets violated, highest victim priority
    stranded     victims who have room nowhere else, mean;  cascade: victims who may evict others in turn, mean
    linked       share of events after which the node has a linked set of that size for the pod
    unallocated  % of the fleet's GPUs that nobody holds when the pod runs
    block        the largest linked set that then stays free on the node, GPUs, mean
    ms           of one call, median; of the rivals as they are written here, in Python
    optimum      events in which the cost, in all nine terms of the default settings and in their order, equals that
                 of the cheapest of all sets of pods of all these nodes
    proved       events in which our answer said within its budget that nothing is cheaper
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import orjson

from benchmarks import preemption_links as links
from benchmarks import preemption_rules as rules
from benchmarks import say
from benchmarks.preemption_exact import Exact
from benchmarks.preemption_rules import FLEETS, NOW, RULES, Choice, Cost, Fleet, State
from extender.cluster.cluster import Cluster
from extender.decide.verbs import Verbs
from extender.objects import decode
from extender.objects.records import Event
from extender.settings import Settings
from extender.sim.machines import machine

OURS = "ours"
LEXICOGRAPHIC, COST_ONLY = "exact lexicographic", "exact cost-only"
# By what the pod says of links. Where only counts decide, vgpu-manager's victims are kube-scheduler's.
BESIDE = {
    "ignore": ("in-tree", "volcano-style", "kueue-style", LEXICOGRAPHIC, COST_ONLY, OURS),
    "required": ("in-tree", "vgpu-manager-style", LEXICOGRAPHIC, OURS),
}
OFFERED = 100


class WrongAnswer(Exception):
    """An answer that cannot be true."""


@dataclass(slots=True)
class Answered:
    """`choice`: None where nobody has to go; `cost`, `proved`: what our certificate says, None of the rivals."""

    choice: Choice | None
    seconds: float
    cost: Cost | None = None
    proved: bool | None = None


class Server:
    """Our preempt verb over one state."""

    def __init__(self, state: State) -> None:
        self.state = state
        settings = Settings.model_validate({"decisions": {"maxBytes": 0}})
        self.cluster = Cluster(settings)
        self.verbs = Verbs.of(settings, self.cluster)
        kinds = list(rules.objects(state))
        self.cluster.apply(
            [Event(kind, "set", decode.record(kind, item, self.cluster.gpu_names)) for kind, item in kinds],  # type: ignore[arg-type]
            0.0,
        )
        self.by_name = {pod.name: pod for pod in state.pods}
        self.asked = 0

    def choose(self, nodes: Sequence[int], need: int, wish: str) -> Answered:
        self.asked += 1
        offered = {}
        for node in nodes:
            found = rules.in_tree_victims(self.state, node, need)
            if found and found[0]:
                uids = [{"UID": pod.name} for pod in found[0]]
                offered[rules.node_name(node)] = {"Pods": uids, "NumPDBViolations": found[1]}
        pod = rules.preemptor(self.asked, need, wish)
        body = orjson.dumps({"Pod": pod, "NodeNameToMetaVictims": offered})
        began = time.perf_counter()
        answer = self.verbs.preempt.answer(body, float(self.asked), NOW)
        seconds = time.perf_counter() - began
        self.verbs.reservations.drop(f"preemptor-{self.asked}")
        chosen = orjson.loads(answer.body).get("NodeNameToMetaVictims") or {}
        if not chosen or answer.decision is None:
            return Answered(None, seconds)
        ((name, victims),) = chosen.items()
        told = answer.decision.detail
        return Answered(
            (int(name.removeprefix("node-")), [self.by_name[pod["UID"]] for pod in victims["Pods"]]),
            seconds,
            tuple(entry["value"] for entry in told["cost"]),
            told["certificate"]["proved"],
        )


@dataclass(slots=True)
class Outcome:
    """One event under one rule. `cost`: all terms of the settings, in their order."""

    cost: Cost
    optimum: Cost
    linked: bool
    spilled: int
    unallocated: float
    block: int
    cascade: int
    seconds: float
    proved: bool | None


@dataclass(slots=True)
class Asked:
    """What is asked: `nodes` are the candidates."""

    line: str
    nodes: list[int]
    need: int
    wish: str


def judge(state: State, asked: Asked, answered: Answered, optimum: Cost) -> Outcome:
    """WrongAnswer where our own certificate is not true."""
    choice = answered.choice
    assert choice is not None
    node, victims = choice
    what, freed = state.machines[node], state.freed(choice)
    cost = state.cost(choice, asked.need)
    if answered.cost is not None and answered.cost != cost:
        raise WrongAnswer(f"our certificate says {answered.cost}, but the answer costs {cost}")
    if answered.proved and cost > optimum:
        raise WrongAnswer(f"our answer is said to be proved and costs {cost}, but {optimum} would do")
    stays = links.stays(what, freed, asked.need)
    free = sum(mask.bit_count() for i, mask in enumerate(state.free_masks) if i != node) + stays.bit_count()
    return Outcome(
        cost,
        optimum,
        links.linked(what, freed, asked.need),
        freed.bit_count() - asked.need,
        free / sum(one.gpus for one in state.machines),
        links.block(what, stays),
        sum(1 for pod in victims if pod.priority > min(rules.PRIORITIES)),
        answered.seconds,
        answered.proved,
    )


Found = dict[tuple[str, str, str, int, str], list[Outcome]]  # fleet, line, links, need, rule


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each fleet, line, links, need and rule."""
    found: Found = {}
    for name in args.fleets:
        fleet = FLEETS[name]
        needs = [need for need in args.needs if fleet.needs(need)]
        for seed in range(args.clusters if needs else 0):
            state = State.make(args.nodes, seed, args.sizes, fleet)
            server, exact = Server(state), Exact(state, needs)
            gc.unfreeze()  # of the cluster before
            gc.collect()
            gc.freeze()  # as the server does: a full collection over it would eat a search's time
            rng = random.Random(seed + 1_000_003)
            offsets = [rng.randrange(args.nodes) for _ in range(args.offsets)]
            lines = [("candidates", min(OFFERED, args.nodes), offset) for offset in offsets]
            lines.append(("free choice", args.nodes, offsets[0]))  # once: these are the same nodes each time
            for line, count, offset in lines:
                nodes = [(offset + i) % args.nodes for i in range(count)]
                for need in needs:
                    for wish in _wishes(fleet, need):
                        _event(server, exact, Asked(line, nodes, need, wish), name, found)
            say(f"fleet {name}, {seed + 1} of {args.clusters} clusters")
    keys = sorted(found, key=lambda key: (args.fleets.index(key[0]), key[3]))  # the rest as it came
    return [_row(key, found[key], found) for key in keys]


def _wishes(fleet: Fleet, need: int) -> list[str]:
    """Where any GPUs of any machine are linked, `required` asks nothing more."""
    alike = all(links.uniform(machine(kind), need) for kind in fleet.kinds)
    return ["ignore"] if alike else ["ignore", "required"]


def _event(server: Server, exact: Exact, asked: Asked, fleet: str, found: Found) -> None:
    state, required = server.state, asked.wish == "required"
    optimum = exact.best(asked.nodes, asked.need, required=required)
    if optimum is None:
        raise WrongAnswer("no eviction helps, though pods of lower priority fill every node")
    for rule in BESIDE[asked.wish]:
        began = time.perf_counter()
        if rule == OURS:
            answered = server.choose(asked.nodes, asked.need, asked.wish)
        elif rule in RULES:
            choice = rules.choose(rule, state, asked.nodes, asked.need, required=required)
            answered = Answered(choice, time.perf_counter() - began)
        else:
            best = exact.best(asked.nodes, asked.need, by_work=True) if rule == COST_ONLY else optimum
            answered = Answered(best.choice if best else None, 0.0)
        if answered.choice is None:
            raise WrongAnswer(f"{rule} evicts nobody, though pods of lower priority fill every node")
        key = (fleet, asked.line, asked.wish, asked.need, rule)
        found.setdefault(key, []).append(judge(state, asked, answered, optimum.cost))


def _row(key: tuple[str, str, str, int, str], outcomes: Sequence[Outcome], found: Found) -> dict[str, Any]:
    fleet, line, wish, need, rule = key
    hours = [outcome.cost[3] / 3600 for outcome in outcomes]
    reference = mean(outcome.cost[3] / 3600 for outcome in found[fleet, line, wish, need, "in-tree"])
    times = [outcome.cost[3] / outcome.optimum[3] for outcome in outcomes if outcome.optimum[3]]
    return {
        "fleet": fleet,
        "line": line,
        "links": wish,
        "need_gpus": need,
        "rule": rule,
        "events": len(outcomes),
        "lost_gpu_hours_mean": mean(hours),
        "lost_gpu_hours_median": median(hours),
        "in_tree_ratio": reference / mean(hours) if mean(hours) else None,
        "times_optimum_median": median(times) if times else None,
        "victims_mean": mean(outcome.cost[5] for outcome in outcomes),
        "gangs_broken_mean": mean(outcome.cost[2] for outcome in outcomes),
        "pdb_violations_mean": mean(outcome.cost[0] for outcome in outcomes),
        "highest_priority_mean": mean(outcome.cost[1] for outcome in outcomes),
        "stranded_mean": mean(outcome.cost[8] for outcome in outcomes),
        "cascade_victims_mean": mean(outcome.cascade for outcome in outcomes),
        "linked_share": mean(outcome.linked for outcome in outcomes),
        "spilled_gpus_mean": mean(outcome.spilled for outcome in outcomes),
        "unallocated_share": mean(outcome.unallocated for outcome in outcomes),
        "largest_linked_block_gpus_mean": mean(outcome.block for outcome in outcomes),
        "leftover_fragmentation_mean": mean(outcome.cost[7] for outcome in outcomes),
        "milliseconds_median": None
        if rule in (LEXICOGRAPHIC, COST_ONLY)
        else 1000 * median(outcome.seconds for outcome in outcomes),
        "optimum_events": sum(outcome.cost == outcome.optimum for outcome in outcomes),
        "proved_events": sum(bool(outcome.proved) for outcome in outcomes) if rule == OURS else None,
    }


TITLES = ("GPU-hours", "ratio", "times", "victims", "gangs", "PDB", "priority", "stranded", "cascade", "linked",
          "unallocated", "block", "ms", "optimum", "proved")  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    titles = ["fleet", "line", "links", "need", "rule", *TITLES]
    lines = ["| " + " | ".join(titles) + " |", "|--:|---|---|--:|---|" + "--:|" * len(TITLES)]
    for row in rows:
        count = row["events"]
        ratio, spent, proved = row["in_tree_ratio"], row["milliseconds_median"], row["proved_events"]
        times = row["times_optimum_median"]
        cells = [
            row["fleet"],
            row["line"],
            row["links"],
            row["need_gpus"],
            row["rule"],
            f"{row['lost_gpu_hours_mean']:.3f} ({row['lost_gpu_hours_median']:.3f})",
            "-" if ratio is None else f"{ratio:.1f}",
            "-" if times is None else f"{times:.1f}",
            *(f"{row[name]:.2f}" for name in ("victims_mean", "gangs_broken_mean", "pdb_violations_mean")),
            f"{row['highest_priority_mean']:.0f}",
            *(f"{row[name]:.2f}" for name in ("stranded_mean", "cascade_victims_mean")),
            f"{100 * row['linked_share']:.0f} %",
            f"{100 * row['unallocated_share']:.3f} %",
            f"{row['largest_linked_block_gpus_mean']:.2f}",
            "-" if spent is None else f"{spent:.1f}",
            f"{row['optimum_events']} of {count}",
            "-" if proved is None else f"{proved} of {count}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def reached(rows: Sequence[dict[str, Any]]) -> str:
    """One line a fleet: in how many events ours is at the optimum, and said so within its budget."""
    lines = []
    for fleet in dict.fromkeys(row["fleet"] for row in rows):
        ours = [row for row in rows if row["fleet"] == fleet and row["rule"] == OURS]
        optimal, proved, events = (
            sum(row[name] for row in ours) for name in ("optimum_events", "proved_events", "events")
        )
        lines.append(f"fleet {fleet}: optimum {optimal} of {events}, proved within budget {proved} of {events}")
    return "\n".join(lines)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is needed, not {number}")
    return number


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.preemption",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--fleets", nargs="+", choices=list(FLEETS), default=list(FLEETS), help="which machines (all)")
    made.add_argument("--nodes", type=_count, default=200, help="nodes of each cluster (200)")
    made.add_argument("--clusters", type=_count, default=10, help="clusters of each fleet, seeds 0, 1, … (10)")
    made.add_argument(
        "--offsets", type=_count, default=4, help="where kube-scheduler starts, so many times a cluster (4)"
    )
    made.add_argument(
        "--needs",
        type=int,
        nargs="+",
        choices=(1, 2, 4, 8, 16),
        default=[1, 2, 4, 8, 16],
        help="GPUs that the pod asks for (all; left out where no eviction would help, or none is needed)",
    )
    made.add_argument("--sizes", choices=list(rules.SIZES), default="default", help="of which variant of the trace")
    made.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs")
    return made


def main(argv: list[str] | None = None) -> int:
    arguments = parser()
    args = arguments.parse_args(argv)
    if not any(FLEETS[name].needs(need) for name in args.fleets for need in args.needs):
        arguments.error("on these fleets no pod of so many GPUs has to evict")
    try:
        rows = measure(args)
    except WrongAnswer as error:
        say(str(error))
        return 1
    if args.output == "json":
        head = {"apiVersion": "gpu-extender.io/v1", "kind": "PreemptionBenchmark", "warnings": []}
        print(json.dumps({**head, "nodes": args.nodes, "sizes": args.sizes, "rows": rows}, indent=1))
    else:
        print(table(rows))
        print()
        print(reached(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
