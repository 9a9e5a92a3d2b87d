"""What an eviction costs: ours against kube-scheduler's own rule, others' rules and the proven optimum.

    python -m benchmarks.preemption [--nodes 200] [--clusters 10] [--offsets 4] [--needs 1 2 4 8]
                                    [--sizes default|multigpu50] [-o json]

Full clusters (see benchmarks/preemption_rules.py); a pod of high priority needs 1, 2, 4 or 8 GPUs. Two lines:
*candidates*: the 100 nodes that kube-scheduler offers from a random offset, with its own victims; *free choice*: all.
Ours is the server's own preempt verb, bytes to bytes.

    GPU-hours  work lost, mean (median): since the last checkpoint or the start, with restarts, gangs whole
    ratio      mean of in-tree's GPU-hours / this rule's mean, on the same events
    victims, gangs, PDB, priority   mean victims, gangs broken, budgets violated, highest victim priority
    linked     share of events after which the node has a linked set of that size for the pod
    spilled    GPUs freed beyond the need, mean;  cascade: victims who may evict others in turn, mean
    optimum    share of events in which the cost, in the settings' order, equals brute force over the same nodes
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import orjson

from benchmarks import preemption_rules as rules
from benchmarks.cluster_run import intern
from benchmarks.preemption_rules import NOW, RULES, Choice, State
from ext_core.links import LinkShapes
from extender import preempt, records
from extender.cluster import Cluster
from extender.decide import Decider
from extender.events import Event
from extender.settings import Settings

OURS = ("ours", "ours, links required")
OFFERED = 100


class Server:
    """Our preempt verb over one state."""

    def __init__(self, state: State) -> None:
        self.state = state
        settings = Settings.model_validate({"decisions": {"maxBytes": 0}})
        self.cluster = Cluster(settings)
        self.decider = Decider.of(settings, self.cluster)
        kinds = list(rules.objects(state))
        self.cluster.apply(
            [Event(kind, "set", records.record(kind, item, self.cluster.gpu_names)) for kind, item in kinds],  # type: ignore[arg-type]
            0.0,
        )
        self.by_name = {pod.name: pod for pod in state.pods}
        self.asked = 0

    def choose(self, nodes: Sequence[int], need: int, links: str) -> Choice | None:
        self.asked += 1
        offered = {}
        for node in nodes:
            found = rules.in_tree_victims(self.state, node, need)
            if found and found[0]:
                uids = [{"UID": pod.name} for pod in found[0]]
                offered[rules.node_name(node)] = {"Pods": uids, "NumPDBViolations": found[1]}
        body = {"Pod": rules.preemptor(self.asked, need, links), "NodeNameToMetaVictims": offered}
        answer = preempt.preempt(self.decider, orjson.dumps(body), float(self.asked), NOW)
        self.decider.holds.drop_plan(f"preemptor-{self.asked}")
        chosen = orjson.loads(answer.body).get("NodeNameToMetaVictims") or {}
        if not chosen:
            return None
        ((name, victims),) = chosen.items()
        return int(name.removeprefix("node-")), [self.by_name[pod["UID"]] for pod in victims["Pods"]]


@dataclass(slots=True)
class Outcome:
    """One event under one rule. `cost`: in the settings' order."""

    cost: tuple[int, ...]
    victims: int
    linked: bool
    spilled: int
    cascade: int
    seconds: float


def judge(state: State, shapes: LinkShapes, ids: Sequence[int], need: int, choice: Choice, seconds: float) -> Outcome:
    node, victims = choice
    freed = 0
    for pod in victims:
        freed |= pod.gpus
    top = shapes.top(ids[node], freed, need) if need > 1 else 1
    return Outcome(
        state.cost(victims),
        len(victims),
        bool(top),
        sum(pod.size for pod in victims) - need,
        sum(1 for pod in victims if pod.priority > min(rules.PRIORITIES)),
        seconds,
    )


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each line, need and rule."""
    found: dict[tuple[str, int, str], list[Outcome]] = {}
    best: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for seed in range(args.clusters):
        state = State.make(args.nodes, seed, args.sizes)
        server, shapes = Server(state), LinkShapes()
        ids = [intern(shapes, what) for what in state.machines]
        rng = random.Random(seed + 1_000_003)
        for _ in range(args.offsets):
            offset = rng.randrange(args.nodes)
            for need in args.needs:
                for line, count in (("candidates", min(OFFERED, args.nodes)), ("free choice", args.nodes)):
                    nodes = [(offset + i) % args.nodes for i in range(count)]
                    _event(server, shapes, ids, line, nodes, need, found, best)
        print(f"{seed + 1} of {args.clusters} clusters", file=sys.stderr, flush=True)
    rows = []
    for (line, need, rule), outcomes in found.items():
        hours = [outcome.cost[3] / 3600 for outcome in outcomes]
        reference = mean(outcome.cost[3] / 3600 for outcome in found[line, need, "in-tree"])
        optimal = sum(a.cost == b for a, b in zip(outcomes, best[line, need], strict=True))
        rows.append(
            {
                "line": line,
                "need_gpus": need,
                "rule": rule,
                "events": len(outcomes),
                "lost_gpu_hours_mean": mean(hours),
                "lost_gpu_hours_median": median(hours),
                "in_tree_ratio": reference / mean(hours) if mean(hours) else None,
                "victims_mean": mean(outcome.victims for outcome in outcomes),
                "gangs_broken_mean": mean(outcome.cost[2] for outcome in outcomes),
                "pdb_violations_mean": mean(outcome.cost[0] for outcome in outcomes),
                "highest_priority_mean": mean(outcome.cost[1] for outcome in outcomes),
                "linked_share": mean(outcome.linked for outcome in outcomes),
                "spilled_gpus_mean": mean(outcome.spilled for outcome in outcomes),
                "cascade_victims_mean": mean(outcome.cascade for outcome in outcomes),
                "optimum_share": None if rule == OURS[1] else optimal / len(outcomes),
                "milliseconds_median": 1000 * median(outcome.seconds for outcome in outcomes),
            }
        )
    return rows


def _event(
    server: Server,
    shapes: LinkShapes,
    ids: Sequence[int],
    line: str,
    nodes: Sequence[int],
    need: int,
    found: dict[tuple[str, int, str], list[Outcome]],
    best: dict[tuple[str, int], list[tuple[int, ...]]],
) -> None:
    for rule in (*RULES, *OURS):
        began = time.perf_counter()
        if rule in OURS:
            choice = server.choose(nodes, need, "required" if rule == OURS[1] else "ignore")
        else:
            choice = rules.choose(rule, server.state, nodes, need)
        spent = time.perf_counter() - began
        if choice is None:
            raise SystemExit(f"{rule} evicts nobody, though pods of lower priority fill every node")
        found.setdefault((line, need, rule), []).append(judge(server.state, shapes, ids, need, choice, spent))
        if rule == "exact lexicographic":
            best.setdefault((line, need), []).append(server.state.cost(choice[1]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    titles = ["GPU-hours", "ratio", "victims", "gangs", "PDB", "priority", "linked", "spilled", "cascade", "optimum"]
    lines = ["| " + " | ".join(["line", "need", "rule", *titles]) + " |", "|---|--:|---|" + "--:|" * len(titles)]
    for row in rows:
        ratio = "-" if row["in_tree_ratio"] is None else f"{row['in_tree_ratio']:.1f}"
        optimum = "-" if row["optimum_share"] is None else f"{100 * row['optimum_share']:.0f} %"
        lines.append(
            f"| {row['line']} | {row['need_gpus']} | {row['rule']} | {row['lost_gpu_hours_mean']:.3f} "
            f"({row['lost_gpu_hours_median']:.3f}) | {ratio} | {row['victims_mean']:.2f} | "
            f"{row['gangs_broken_mean']:.2f} | {row['pdb_violations_mean']:.2f} | {row['highest_priority_mean']:.0f} | "
            f"{100 * row['linked_share']:.0f} % | {row['spilled_gpus_mean']:.2f} | {row['cascade_victims_mean']:.2f} | "
            f"{optimum} |"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--nodes", type=int, default=200)
    made.add_argument("--clusters", type=int, default=10)
    made.add_argument("--offsets", type=int, default=4)
    made.add_argument("--needs", type=int, nargs="+", choices=(1, 2, 4, 8), default=[1, 2, 4, 8])
    made.add_argument("--sizes", choices=list(rules.SIZES), default="default", help="of which variant of the trace")
    made.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    rows = measure(args)
    if args.output == "json":
        head = {"apiVersion": "gpu-extender.io/v1", "kind": "PreemptionBenchmark", "warnings": []}
        print(json.dumps({**head, "nodes": args.nodes, "sizes": args.sizes, "rows": rows}, indent=1))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
