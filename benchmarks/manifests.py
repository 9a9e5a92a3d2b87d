"""How long what-if of each manifest takes over a large cluster.

    python -m benchmarks.manifests [--nodes 5000] [--cluster FILE | --claims] [--config FILE] [MANIFEST...]

Without names: each case of tests/manifests; with `--claims` gangs whose ResourceClaims a node meets one by one and not
together, over nodes with eight divisible GPUs of a DRA driver. The cluster is that of the file, or one of five
machines; its nodes, with their slices and pods, are repeated under other names until there are enough. Each question is
answered by a fork, as a server does. Seconds of CPU: of all questions the median and the 99th percentile, and the
slowest by name.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.spread import Line, targets_table
from extender.ask import frozen, offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import question
from extender.errors import ExtenderError
from extender.policy.policy import known
from extender.settings import Settings
from extender.settings.reading import read_settings
from extender.sim import claims as dra
from tests.ask.whatif.test_claims import chosen, claimant, divided, parts, whole
from tests.ask.whatif.test_manifests import cases
from tests.world import WALL, machine, pairs, workload

Item = dict[str, Any]
TARGET: Final = 2.0
"""Seconds of CPU, the 99th percentile."""
SHOWN: Final = 8
"""The slowest that are named."""


def machines() -> list[Item]:
    """Five kinds of machines, some of them in use."""
    joined = [[18 * (i != j) for i in range(8)] for j in range(8)]
    kinds = [
        machine("nvswitch", 8, links=joined), machine("pairs", 8, links=pairs(8)), machine("four", 4, links=pairs(4)),
        machine("amd", 8, resource="amd.com/gpu"), machine("cpu", 0),
    ]  # fmt: skip
    pods = [workload(f"on-{name}", 2, node=name, phase="Running", start=WALL - 100) for name in ("nvswitch", "four")]
    return [*({"kind": "Node"} | node for node in kinds), *({"kind": "Pod"} | pod for pod in pods)]


def claim_machines() -> list[Item]:
    """Two nodes with GPUs that claims may divide, and the classes."""
    return [dra.device_class(), dra.device_class("mig", kind="mig"), *divided("n0"), *divided("n1")]


def claim_gangs() -> Iterator[tuple[str, bytes]]:
    """(name, manifest)."""
    for name, templates, pods in (
        ("9 pods with 2 chosen GPUs", [chosen(2)], ["chosen"] * 9),
        ("64 pods with 2 chosen GPUs", [chosen(2)], ["chosen"] * 64),
        ("9 pods with 7 parts", [parts(7)], ["parts"] * 9),
        ("64 pods with 7 parts", [parts(7)], ["parts"] * 64),
        ("4 pods with all GPUs, 1 with a part", [whole(8), parts(1)], ["whole"] * 4 + ["parts"]),
        ("64 pods with all GPUs, 16 with a part", [whole(8), parts(1)], ["whole"] * 64 + ["parts"] * 16),
    ):
        items = [{"apiVersion": "resource.k8s.io/v1"} | template for template in templates]
        for at, template in enumerate(pods):
            pod = claimant(f"q{at}", "resourceClaimTemplateName", template)
            notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(len(pods))}
            items.append(pod | {"metadata": pod["metadata"] | {"annotations": notes}})
        yield name, b"\n---\n".join(map(orjson.dumps, items))


def repeated(items: list[Item], nodes: int) -> Iterator[Item]:
    """The items, with as many nodes."""
    of_node: dict[str, list[Item]] = {item["metadata"]["name"]: [item] for item in items if item["kind"] == "Node"}
    for item in items:
        on = item.get("spec", {}).get("nodeName")
        if item["kind"] != "Node" and on in of_node:
            of_node[on].append(item)
        elif item["kind"] != "Node":
            yield item
    for number in range(nodes):
        copy, (name, group) = divmod(number, len(of_node))[0], list(of_node.items())[number % len(of_node)]
        for item in deepcopy(group):
            meta, spec = item["metadata"], item.get("spec") or {}
            meta |= {"name": f"{meta['name']}-{copy}", "uid": f"{meta.get('uid', meta['name'])}-{copy}"}
            if item["kind"] == "Node":
                meta["labels"] = (meta.get("labels") or {}) | {"kubernetes.io/hostname": meta["name"]}
            else:
                spec["nodeName"] = f"{name}-{copy}"
            if item["kind"] == "ResourceSlice":
                spec["pool"]["name"] += f"-{copy}"
            yield item


def seconds(snapshot: SupposedCluster, manifest: bytes) -> tuple[float, str]:
    """(CPU seconds of the answer, its verdicts or the error), in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        gc.freeze()  # as `ask.forks` does
        begin = time.process_time()
        try:
            asked = question.read(frozen.documents(manifest, "manifest", []), snapshot.cluster.gpu_names)
            answer = offline.whatif(snapshot, asked, WALL)
            text = ", ".join(sorted({result["verdict"] for result in answer["results"]}))
            orjson.dumps(answer)
        except ExtenderError as error:
            text = f"error {error.code}"
        with os.fdopen(writing, "w") as pipe:
            json.dump([time.process_time() - begin, text], pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        taken, text = json.loads(pipe.read() or '[0, "it has died"]')
    os.waitpid(child, 0)
    return float(taken), str(text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.manifests")
    parser.add_argument("manifests", nargs="*", type=Path)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--cluster", type=Path)
    parser.add_argument("--claims", action="store_true")
    parser.add_argument("--config", type=Path)
    asked = parser.parse_args(arguments)
    settings = Settings()
    if asked.config:
        settings = read_settings(asked.config, known())
    small = claim_machines() if asked.claims else machines()
    items = (
        small
        if asked.cluster is None
        else [document.item for document in frozen.documents(asked.cluster.read_bytes(), str(asked.cluster))]
    )
    raw = orjson.dumps({"kind": "List", "items": list(repeated(items, asked.nodes))})
    snapshot = SupposedCluster.of(
        settings, frozen.parse(raw, frozenset(one.name for one in settings.resources), "", [])
    )
    texts = [(path.name, path.read_bytes()) for path in asked.manifests] or [
        *(claim_gangs() if asked.claims else ((case.name, case.text.encode()) for case in cases()))
    ]
    taken = sorted([(*seconds(snapshot, text), name) for name, text in texts], reverse=True)
    for cpu, verdicts, name in taken[:SHOWN]:
        print(f"{cpu:7.3f} s  {name}: {verdicts}")
    times = [cpu for cpu, _, _ in reversed(taken)]
    highest = times[min(len(times) - 1, len(times) * 99 // 100)]
    got = f"{highest:.2f} s (median {times[len(times) // 2]:.2f} s)"
    name = f"what-if of {len(times)} manifests over {len(snapshot.cluster.nodes):,} nodes, p99 of CPU"
    print("\n" + targets_table([Line(name, f"<= {TARGET:g} s", got, highest <= TARGET)]))
    return 0 if highest <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
