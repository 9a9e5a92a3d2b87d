"""What preempt costs: the whole round trip on loopback, beside servers that decide nothing, in the same run.

    python -m benchmarks.preempt_speed [--candidates 100 500 1500] [--calls 300] [--seconds 120] [-o json]

Three fleets in which nothing fits without an eviction:

- `4 of 8 GPUs`: eight one-GPU pods a node, two priorities, ages that differ;
- `gangs, budgets`: the same, three of ten pods in gangs that span nodes, one of ten under a spent budget;
- `16 GPUs, adversarial`: sixteen one-GPU pods a node of one priority, whose work, grace and budgets are drawn so that
  many sets cost nearly the same; eight must go.

Every answer is checked to free enough. `proved`: of the answers that the server still remembers, how many carried a
proof. The figures are those of benchmarks.verbs, where the servers and the order of the calls are described.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

from benchmarks import fleet, verbs
from benchmarks.serving import Servers
from extender.cli.asking import ask
from tests.e2e import builders

GANGED = 0.3
GUARDED = 0.1
LAPSE = 5.5  # seconds after which the plans of the case before, for pods that nobody has seen, are dropped
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
            print(f"preempt_speed: starting the servers for {what}", file=sys.stderr, flush=True)
            ours = servers.ours(cluster, verbs.SETTINGS)
            run = verbs.Run({"ours": ours, **{kind: servers.null(kind) for kind in verbs.SERVERS[1:]}})
            try:
                for count in sizes:
                    made = case(what, count, size, wanted)
                    time.sleep(LAPSE)
                    run.measure(made, calls, max(1.0, (end - time.monotonic()) / left))
                    left -= 1
                    found.append(verbs.figures(made) | proofs(run, len(made.times["ours"])))
                    print(f"preempt_speed: {what} {count}: {found[-1]['ours_p50_ms']} ms", file=sys.stderr, flush=True)
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
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 500, 1500], help="nodes offered")
    parser.add_argument("--calls", type=int, default=300, help="calls of each server and case, at most")
    parser.add_argument("--seconds", type=float, default=120.0, help="for all calls together, about")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        found = measure(asked.candidates, asked.calls, asked.seconds)
    except verbs.WrongAnswer as error:
        print(f"preempt_speed: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    print(json.dumps({"preempt_speed": found}, indent=1) if asked.output == "json" else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
