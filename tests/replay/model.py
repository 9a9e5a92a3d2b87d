"""What kube-scheduler knows of the recorded cluster: what fits by amounts, and which victims it offers."""

from __future__ import annotations

from collections.abc import Iterable

from tests.replay.clusters import asked
from tests.world import AMD, GPU, JSON

OURS = "gpu-extender.io/"


class Model:
    """Objects by name. Pods that have failed are not kept."""

    def __init__(self) -> None:
        self.nodes: dict[str, JSON] = {}
        self.pods: dict[str, JSON] = {}
        self.budgets: dict[str, JSON] = {}

    def apply(self, kind: str, wire: JSON) -> None:
        """An object is new, or has changed."""
        name = wire["metadata"]["name"]
        if kind == "Node":
            self.nodes[name] = wire
        elif kind == "PodDisruptionBudget":
            self.budgets[name] = wire
        elif kind == "Pod":
            self.pods[name] = wire
            if wire["status"]["phase"] == "Failed":
                del self.pods[name]

    def delete(self, kind: str, wire: JSON) -> None:
        """An object is deleted."""
        if kind == "Pod":
            self.pods.pop(wire["metadata"]["name"], None)

    def on(self, node: str) -> list[JSON]:
        """The pods on a node."""
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == node]

    def free_gpus(self, node: str) -> list[int]:
        """The GPUs that no pod holds. A pod that no source states GPUs of holds the first that are free."""
        capacity = self.nodes[node]["status"]["capacity"]
        free = list(range(int(capacity.get(GPU, 0)) or int(capacity.get(AMD, 0))))
        silent = 0
        for pod in self.on(node):
            notes = pod["metadata"]["annotations"]
            said = notes.get(OURS + "held-gpus") or notes.get(OURS + "gpus")
            if said:
                numbers = (part.rpartition("=")[2] for part in said.split(";"))
                taken = {int(text) for part in numbers for text in part.split(",")}
                free = [gpu for gpu in free if gpu not in taken]
            else:
                wants = asked(pod)
                silent += wants.get(GPU, 0) + wants.get(AMD, 0)
        return free[silent:]

    def admits(self, pod: JSON, node: str) -> bool:
        """Whether cordon, node selector and taints let the pod onto the node."""
        there = self.nodes[node]
        wanted = pod["spec"].get("nodeSelector", {}).items()
        tainted = there["spec"].get("taints") and not pod["spec"].get("tolerations")
        labels = there["metadata"]["labels"]
        return not there["spec"].get("unschedulable") and wanted <= labels.items() and not tainted

    def fits(self, pod: JSON, node: str, without: Iterable[str] = ()) -> bool:
        """Whether the amounts suffice on a node that admits the pod, without the pods of these names."""
        if not self.admits(pod, node):
            return False
        gone = {pod["metadata"]["name"], *without}
        others = [asked(other) for other in self.on(node) if other["metadata"]["name"] not in gone]
        there = self.nodes[node]["status"]["allocatable"]
        return all(
            amount + sum(other.get(key, 0) for other in others) <= int(str(there.get(key, 0)).removesuffix("Gi"))
            for key, amount in asked(pod).items()
        )

    def feasible(self, pod: JSON) -> list[str]:
        """The nodes that pass kube-scheduler's own filters."""
        return [name for name in self.nodes if self.fits(pod, name)]

    def offer(self, pod: JSON, *, placeholders: bool) -> dict[str, tuple[list[JSON], int]]:
        """node -> (victims, the most important first; PDB violations), as kube-scheduler's dry run finds them.

        `placeholders`: nodes that the extender alone rejects are offered without victims (from 1.38 on).
        """
        found: dict[str, tuple[list[JSON], int]] = {}
        for node in self.nodes:
            if self.fits(pod, node):
                if placeholders:
                    found[node] = ([], 0)
                continue
            lower = [one for one in self.on(node) if one["spec"]["priority"] < pod["spec"]["priority"]]
            if not self.fits(pod, node, [one["metadata"]["name"] for one in lower]):
                continue
            found[node] = self._reprieve(pod, node, sorted(lower, key=_importance))
        return found

    def _reprieve(self, pod: JSON, node: str, lower: list[JSON]) -> tuple[list[JSON], int]:
        violating = self._violating(lower)
        gone = [one["metadata"]["name"] for one in lower]
        for one in sorted(lower, key=lambda one: one["metadata"]["name"] not in violating):
            name = one["metadata"]["name"]
            if self.fits(pod, node, [other for other in gone if other != name]):
                gone.remove(name)
        victims = [one for one in lower if one["metadata"]["name"] in gone]
        return victims, len(violating.intersection(gone))

    def _violating(self, pods: list[JSON]) -> set[str]:
        left = {name: budget["status"]["disruptionsAllowed"] for name, budget in self.budgets.items()}
        found = set()
        for pod in pods:
            for name, budget in self.budgets.items():
                meta = pod["metadata"]
                selected = budget["spec"]["selector"]["matchLabels"].items() <= meta["labels"].items()
                if selected and meta["namespace"] == budget["metadata"]["namespace"]:
                    left[name] -= 1
                    if left[name] < 0:
                        found.add(meta["name"])
        return found


def _importance(pod: JSON) -> tuple[int, str, str]:
    """Sorts the most important pod first: the highest priority, then the oldest."""
    return -pod["spec"]["priority"], pod["status"].get("startTime", ""), str(pod["metadata"]["name"])
