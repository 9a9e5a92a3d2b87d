"""Random clusters of several models and racks, and their capacity by trying everything on the objects."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from extender.ask import offline
from tests.ask.asking import events
from tests.ask.test_whatif import ARBITRARY, random_cluster
from tests.oracles.whatif import Brute
from tests.world import GPU, JSON, WALL, workload

MODEL, RACK, ZONE, HOST = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.clique",
    "topology.kubernetes.io/zone",
    "kubernetes.io/hostname",
)
SIZES = (1, 2, 4, 8, 16)
Links = dict[str, list[list[int]] | None]


def drawn(rng: random.Random) -> tuple[list[JSON], Links]:
    """Objects, and the links of each node."""
    items, links = random_cluster(rng)
    for item in items:
        if item["kind"] != "Node":
            continue
        labels = item["metadata"]["labels"]
        labels[MODEL] = rng.choice(["A", "B"])
        labels[ZONE] = "z"
        if rng.random() < 0.8:
            labels[RACK] = rng.choice(["r1", "r2"])
        if rng.random() < 0.1:
            item["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    return items, links


def answered(items: list[JSON]) -> JSON:
    """`kind: Capacity` of the objects."""
    return offline.explainer(ARBITRARY, events(items), WALL).capacity()


class Counted:
    """The capacity of some objects by trying everything."""

    def __init__(self, items: list[JSON], links: Links) -> None:
        self.brute = Brute(items, links, int(WALL))

    def models(self) -> dict[str, list[JSON]]:
        """The nodes of each model that take pods."""
        found: dict[str, list[JSON]] = defaultdict(list)
        for node in self.brute.nodes:
            there = found[node["metadata"]["labels"][MODEL]]
            passing = any(one["key"].startswith("node.kubernetes.io/") for one in node["spec"]["taints"])
            if not passing and not node["spec"].get("unschedulable"):
                there.append(node)
        return found

    def fits(self, node: JSON, gpus: int, links: str = "") -> bool:
        """Whether a pod that asks for GPUs alone fits on the node."""
        pod = workload("probe", gpus, cpu="0", memory="0Gi", links=links)
        pod["spec"]["tolerations"] = [{"key": "team"}]
        return self.brute.fits(pod, node, ())

    def largest(self) -> list[JSON]:
        """As the contract has it."""
        return [
            {"model": model, "links": links, **self._largest(nodes, "required" if links == "required" else "")}
            for model, nodes in sorted(self.models().items())
            for links in ("any", "required")
        ]

    def _largest(self, nodes: list[JSON], links: str) -> JSON:
        for gpus in range(16, 0, -1):
            count = sum(self.fits(node, gpus, links) for node in nodes)
            if count:
                return {"gpus": gpus, "nodes": count}
        return {"gpus": 0, "nodes": 0}

    def whole(self) -> dict[str, int]:
        """Nodes that no pod holds a GPU of, and that have a pod slot left."""
        return {
            model: sum(self.fits(node, int(node["status"]["allocatable"][GPU])) for node in nodes)
            for model, nodes in sorted(self.models().items())
        }

    def gangs(self, models: dict[str, list[JSON]]) -> dict[tuple[int, str], int]:
        """Pods of each size in the domain of each level that takes most, on the nodes of these models."""
        most = max(int(node["status"]["allocatable"][GPU]) for node in self.brute.nodes)
        nodes = [node for of_model in models.values() for node in of_model]
        found: dict[tuple[int, str], int] = {}
        for size in sorted({one for one in SIZES if one <= most} | {most}):
            for level in self._levels():
                sums: dict[str, int] = defaultdict(int)
                for node in nodes:
                    labels = node["metadata"]["labels"]
                    value = node["metadata"]["name"] if level == HOST else labels.get(level, "")
                    sums[value] += self._on(node, size) if value else 0
                found[size, level] = max(sums.values(), default=0)
        return found

    def _levels(self) -> Iterator[str]:
        yield HOST
        for level in (RACK, ZONE):
            if any(level in node["metadata"]["labels"] for node in self.brute.nodes):
                yield level

    def _on(self, node: JSON, size: int) -> int:
        there = self.brute.on(node["metadata"]["name"])
        has = node["status"]["allocatable"]
        free = int(has[GPU]) - sum(self.brute.amounts(pod)[2] for pod in there)
        return min(free // size, int(has["pods"]) - len(there))
