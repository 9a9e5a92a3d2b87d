"""What preempt costs: the whole round trip on loopback, beside servers that decide nothing, in the same run.

    python -m benchmarks.preempt_speed [--candidates 100 500 1500] [--calls 300] [--seconds 120] [-o json]

Three fleets in which nothing fits without an eviction:

- `4 of 8 GPUs`: eight one-GPU pods a node, two priorities, ages that differ;
- `gangs, budgets`: the same, three of ten pods in gangs that span nodes, one of ten under a spent budget;
- `16 GPUs, adversarial`: sixteen one-GPU pods a node of one priority, whose work, grace and budgets are drawn so that
  many sets cost nearly the same; eight must go.

Beside them the first fleet with one pod, and with one pod on each node, that has required anti-affinity: three servers
answer in turns, and the figure is CPU time a call, as a ratio to the fleet without such pods in the same round.

Every answer is checked to free enough. `proved`: of the answers that the server still remembers, how many carried a
proof. The figures are those of benchmarks.verbs, where the servers and the order of the calls are described.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from typing import Any

from benchmarks import fleet, say, spread, verbs
from benchmarks.serving import Connection, Servers, request
from benchmarks.spread import Spread, ratios
from extender.cli.sources import ask
from tests.e2e import builders

GANGED = 0.3
GUARDED = 0.1
LAPSE = 5.5  # seconds after which the plans of the case before, for pods that nobody has seen, are dropped
REPELLING = ("no pod", "one pod", "one pod on each node")
BLOCK = 5
MOST_16 = 500  # nodes of the adversarial fleet


def fleet_with_gangs(count: int) -> bytes:
    rng = random.Random(5)
    whole = json.loads(fleet.full(count))
    pods = [item for item in whole["items"] if item["kind"] == "Pod"]
    for pod in pods:
        labels = pod["metadata"].setdefault("labels", {})
        if rng.random() < GANGED:
            labels["gpu-extender.io/gang"] = f"gang-{rng.randrange(max(1, count // 3))}"
            labels["gpu-extender.io/gang-min"] = str(rng.choice([4, 6, 8]))
        if rng.random() < GUARDED:
            labels["guarded"] = "yes"
    whole["items"].append(budget("guarded", {"guarded": "yes"}))
    return json.dumps(whole).encode()


def budget(name: str, labels: dict[str, str], allowed: int = 0) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "work"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


def adversarial(count: int) -> bytes:
    rng = random.Random(6)
    items: list[dict[str, Any]] = [builders.node(fleet.name(i), 16) for i in range(count)]
    for i in range(count):
        for j in range(16):
            pod = fleet.running(i, j)
            pod["spec"]["priority"] = 0
            pod["spec"]["terminationGracePeriodSeconds"] = rng.choice([30, 31, 32, 33])
            pod["metadata"].setdefault("labels", {})["part"] = str(rng.randrange(4))
            pod["metadata"].setdefault("annotations", {})["gpu-extender.io/restart-seconds"] = str(rng.randrange(50))
            pod["status"]["startTime"] = f"2026-01-01T00:00:{rng.randrange(60):02d}Z"
            items.append(pod)
    items += [budget(f"part-{part}", {"part": str(part)}, part) for part in range(4)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


def repelling(count: int, pods: int) -> bytes:
    """Full nodes, and on each of the first `pods` a small pod that has required anti-affinity to its like."""
    whole = json.loads(fleet.full(count))
    alike = {"matchLabels": {"app": "db"}}
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": alike}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    for i in range(pods):
        made = builders.pod(f"db-{i}", "work", 0, node_name=fleet.name(i), labels={"app": "db"}, affinity=affinity)
        made["metadata"]["uid"] = f"20000000-0000-4000-8000-{i:012x}"
        made["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        whole["items"].append(made)
    return json.dumps(whole).encode()


def with_anti_affinity(candidates: int, rounds: int, calls: int) -> dict[str, list[float]]:
    """Milliseconds of CPU a call, by how many pods have required anti-affinity, one entry a round."""
    asked = case("4 of 8 GPUs", candidates, fleet.SIZE, 4)
    found: dict[str, list[float]] = {kind: [] for kind in REPELLING}
    numbers = itertools.count()
    with Servers() as servers:
        say(f"starting the servers for required anti-affinity, {candidates} candidates")
        counts = dict(zip(REPELLING, (0, 1, candidates), strict=True))
        served = {kind: servers.ours(repelling(candidates, count), verbs.SETTINGS) for kind, count in counts.items()}
        connections = {kind: Connection(one.port) for kind, one in served.items()}
        try:
            for number in range(-1, rounds):  # one round to warm up
                spent = dict.fromkeys(REPELLING, 0.0)
                for turn in range(max(1, calls // BLOCK)):
                    for kind in REPELLING if turn % 2 == 0 else REPELLING[::-1]:
                        requests = [request("POST", asked.path, asked.body.fill(next(numbers))) for _ in range(BLOCK)]
                        began = served[kind].cpu()
                        replies = [connections[kind].send(one) for one in requests]
                        spent[kind] += served[kind].cpu() - began
                        for reply in replies:
                            if reply.status != 200 or not asked.check(json.loads(reply.body)):
                                raise verbs.WrongAnswer(f"{kind}: {reply.status} {reply.body[:300]!r}")
                if number >= 0:
                    for kind, seconds in spent.items():
                        found[kind].append(seconds / (max(1, calls // BLOCK) * BLOCK) * 1e3)
        finally:
            for connection in connections.values():
                connection.close()
    return found


def anti_affinity_table(found: dict[str, list[float]], candidates: int) -> str:
    rows = []
    for kind in REPELLING:
        spent, ratio = Spread.of(found[kind]), ratios(found[kind], found[REPELLING[0]])
        rows.append([f"{kind} with required anti-affinity", str(candidates), spent.text(), ratio.text()])
    return spread.table(["pods", "candidates", "CPU of preempt, ms", "ratio to none"], rows, words=1)


def anti_affinity_target(found: dict[str, list[float]]) -> spread.Line:
    worst = max((ratios(found[kind], found[REPELLING[0]]) for kind in REPELLING[1:]), key=lambda one: one.median)
    return spread.at_most("preempt with pods that have required anti-affinity", "<= 1.3 x without", worst, 1.3)


def case(what: str, candidates: int, size: int, wanted: int) -> verbs.Case:
    """`wanted` GPUs, on `candidates` nodes full of `size` one-GPU pods."""

    def check(answer: Any) -> bool:
        ((node, victims),) = answer["NodeNameToMetaVictims"].items()
        i = int(node.rpartition("-")[2])
        there = {fleet.pod_uid(i, j) for j in range(size)}
        uids = [pod["UID"] for pod in victims["Pods"]]
        return i < candidates and len(set(uids)) == len(uids) == wanted and there.issuperset(uids)

    return verbs.Case("preempt", what, candidates, fleet.preemption(wanted, [size] * candidates), check)


def measure(candidates: list[int], calls: int, seconds: float) -> list[dict[str, Any]]:
    most = max(candidates)
    small = sorted({min(count, MOST_16) for count in candidates})
    plan = [
        ("4 of 8 GPUs", fleet.full(most), candidates, fleet.SIZE, 4),
        ("gangs, budgets", fleet_with_gangs(most), candidates, fleet.SIZE, 4),
        ("16 GPUs, adversarial", adversarial(max(small)), small, 16, 8),
    ]
    left = 2 * len(candidates) + len(small)
    end = time.monotonic() + seconds
    found = []
    for what, cluster, sizes, size, wanted in plan:
        with Servers() as servers:
            say(f"starting the servers for {what}")
            ours = servers.ours(cluster, verbs.SETTINGS)
            run = verbs.Run({"ours": ours, **{kind: servers.null(kind) for kind in verbs.SERVERS[1:]}}, range(1))
            try:
                for count in sizes:
                    made = case(what, count, size, wanted)
                    time.sleep(LAPSE)
                    run.measure(made, calls, max(1.0, (end - time.monotonic()) / left))
                    left -= 1
                    found.append(verbs.figures(made) | proofs(run, len(made.times["ours"])))
                    say(f"{what} {count}: {found[-1]['ours_p50_ms']} ms")
            except (ConnectionError, TimeoutError, verbs.WrongAnswer) as error:
                error.add_note(servers.tail())
                raise
            finally:
                run.close()
    return found


def proofs(run: verbs.Run, most: int) -> dict[str, int]:
    """Of the latest answers, how many were proved, and how many sets were examined at most."""
    port = run.open["ours"].socket.getpeername()[1]
    page = ask(f"http://127.0.0.1:{port}", f"/debug/decisions?most={min(most, 100)}")
    kept = [one["certificate"] for one in page["decisions"] if "certificate" in one]
    return {
        "remembered": len(kept),
        "proved": sum(one["proved"] for one in kept),
        "most_sets": max((one["sets_examined"] for one in kept), default=0),
    }


def table(found: list[dict[str, Any]]) -> str:
    lines = verbs.table(found).split("\n")
    return "\n".join(
        [lines[0] + " proved | most sets |", lines[1] + "--:|--:|"]
        + [
            f"{line} {row['proved']} of {row['remembered']} | {row['most_sets']} |"
            for line, row in zip(lines[2:], found, strict=True)
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preempt_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, nargs="*", default=[100, 500, 1500], help="nodes offered")
    parser.add_argument("--calls", type=int, default=300, help="calls of each server and case, at most")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the calls of --candidates together, about")
    parser.add_argument("--anti-affinity", type=int, default=500, help="nodes offered with it; 0: not measured")
    parser.add_argument("--rounds", type=int, default=5, help="of --anti-affinity")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    repelled: dict[str, list[float]] = {}
    try:
        found = measure(asked.candidates, asked.calls, asked.seconds) if asked.candidates else []
        if asked.anti_affinity:
            repelled = with_anti_affinity(asked.anti_affinity, asked.rounds, max(BLOCK, asked.calls // 5))
    except verbs.WrongAnswer as error:
        say("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return 1
    lines = [anti_affinity_target(repelled)] if repelled else []
    if asked.output == "json":
        targets = [line._asdict() for line in lines]
        print(json.dumps({"preempt_speed": found, "anti_affinity": repelled, "targets": targets}, indent=1))
        return 0
    texts = [table(found)] if found else []
    if repelled:
        texts += [anti_affinity_table(repelled, asked.anti_affinity), spread.targets_table(lines)]
    print("\n\n".join(texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
