"""Brute force for what-if: every set of pods on every node, from the Kubernetes JSON alone.

Nothing of the server is used. GPU positions are what the annotation held-gpus says; the device plugin may hand out any
of the free GPUs ("arbitrary"), so a pod that requires links fits where every set of its size is linked.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import combinations, permutations
from typing import Any

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
PREFIX = "gpu-extender.io/"


def seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


class Brute:
    """`items`: a cluster's objects; `links`: node name -> N x N links; `now`: seconds since 1970."""

    def __init__(self, items: list[Object], links: dict[str, list[list[int]] | None], now: int) -> None:
        self.nodes = [item for item in items if item["kind"] == "Node"]
        self.pods = [item for item in items if item["kind"] == "Pod" and item["spec"].get("nodeName")]
        self.budgets = [item for item in items if item["kind"] == "PodDisruptionBudget"]
        self.objects = [item for item in items if item["kind"] in ("PodGroup", "Job")]
        self.links, self.now = links, now
        self.gangs = self._gangs()

    # -- what a pod is ---------------------------------------------------------------------------------------------

    @staticmethod
    def amounts(pod: Object) -> tuple[int, int, int]:
        """(CPU, GiB, GPUs) in whole units."""
        asked = pod["spec"]["containers"][0]["resources"]["requests"]
        return int(asked["cpu"]), int(asked["memory"].removesuffix("Gi")), int(asked.get(GPU, 0))

    @staticmethod
    def held(pod: Object) -> set[int]:
        text = pod["metadata"]["annotations"].get(PREFIX + "held-gpus", "")
        return {int(part) for part in text.split(",") if part}

    @staticmethod
    def going(pod: Object) -> bool:
        return "deletionTimestamp" in pod["metadata"]

    def work(self, pod: Object) -> int:
        notes, started = pod["metadata"]["annotations"], seconds(pod["status"]["startTime"])
        saved = notes.get(PREFIX + "last-checkpoint")
        since = seconds(saved) if saved else started
        return self.amounts(pod)[2] * (self.now - since + int(notes.get(PREFIX + "restart-seconds", 0)))

    def may_go(self, pod: Object, priority: int) -> bool:
        if pod["spec"]["priority"] >= priority:
            return False
        owners = [owner["kind"] for owner in pod["metadata"].get("ownerReferences", ())]
        notes = pod["metadata"]["annotations"]
        if "DaemonSet" in owners or "Node" in owners or "kubernetes.io/config.mirror" in notes:
            return False
        protect = notes.get(PREFIX + "protect-for")
        if protect is None or self.going(pod):
            return True
        return seconds(pod["status"]["startTime"]) + 60 * int(protect.removesuffix("m")) <= self.now

    # -- gangs -----------------------------------------------------------------------------------------------------

    def _gangs(self) -> dict[str, tuple[list[Object], int]]:
        """name of the gang, with who says so -> (running members, how many must stay)."""
        members: dict[str, list[Object]] = {}
        for pod in self.pods:
            name = self.gang_of(pod)
            if name is not None and not self.going(pod):
                members.setdefault(name, []).append(pod)
        found = {}
        for name, pods in members.items():
            minimum = self._minimum(name, pods)
            if minimum == 0 or (name.startswith("job ") and len(pods) == 1 and minimum in (None, 1)):
                continue
            found[name] = (pods, len(pods) if minimum is None else minimum)
        return found

    @staticmethod
    def gang_of(pod: Object) -> str | None:
        labels, notes, space = pod["metadata"]["labels"], pod["metadata"]["annotations"], pod["metadata"]["namespace"]
        if PREFIX + "gang" in labels:
            return f"ours {space} {labels[PREFIX + 'gang']}"
        if "scheduling.x-k8s.io/pod-group" in labels:
            return f"scheduling.x-k8s.io {space} {labels['scheduling.x-k8s.io/pod-group']}"
        if "scheduling.k8s.io/group-name" in notes:
            return f"scheduling.volcano.sh {space} {notes['scheduling.k8s.io/group-name']}"
        if "leaderworkerset.sigs.k8s.io/name" in labels:
            return f"lws {space} {labels['leaderworkerset.sigs.k8s.io/name']}"
        for owner in pod["metadata"].get("ownerReferences", ()):
            if owner["kind"] == "Job":
                return f"job {space} {owner['name']}"
        return None

    def _minimum(self, gang: str, pods: list[Object]) -> int | None:
        source, space, name = gang.split()
        if source == "ours":
            said = {pod["metadata"]["labels"].get(PREFIX + "gang-min") for pod in pods} - {None}
            return int(said.pop() or 0) if len(said) == 1 else None
        if source == "lws":
            return int(pods[0]["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/size"])
        for item in self.objects:
            same = (item["metadata"]["namespace"], item["metadata"]["name"]) == (space, name)
            if same and item["kind"] == "PodGroup" and item["apiVersion"].startswith(source + "/"):
                return int(item["spec"]["minMember"])
            if same and item["kind"] == "Job" and source == "job":
                return int(item["spec"]["parallelism"])
        return None

    # -- whether a pod fits ----------------------------------------------------------------------------------------

    def admitted(self, pod: Object, node: Object) -> bool:
        """Cordon, taints, nodeSelector; required node affinity of one term with one In."""
        if node["spec"].get("unschedulable"):
            return False
        keys = {toleration["key"] for toleration in pod["spec"].get("tolerations", ())}
        if any(taint["key"] not in keys and taint["effect"] != "PreferNoSchedule" for taint in node["spec"]["taints"]):
            return False
        labels = node["metadata"]["labels"]
        if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
            return False
        if "affinity" not in pod["spec"]:
            return True
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (test,) = terms["nodeSelectorTerms"][0]["matchExpressions"]
        return labels.get(test["key"]) in test["values"]

    def fits(self, pod: Object, node: Object, gone: tuple[Object, ...]) -> bool:
        if not self.admitted(pod, node):
            return False
        name = node["metadata"]["name"]
        stay = [other for other in self.on(name) if other not in gone]
        has = node["status"]["allocatable"]
        cpu, memory, gpus = self.amounts(pod)
        used = [sum(column) for column in zip((0, 0, 0), *(self.amounts(other) for other in stay), strict=True)]
        if cpu > int(has["cpu"]) - used[0] or memory > int(has["memory"].removesuffix("Gi")) - used[1]:
            return False
        if len(stay) + 1 > int(has["pods"]) or gpus > int(has.get(GPU, 0)) - used[2]:
            return False
        if pod["metadata"]["annotations"].get(PREFIX + "links") != "required" or gpus < 2:
            return True
        free = set(range(int(has[GPU]))).difference(*(self.held(other) for other in stay))
        links = self.links[name]
        return links is not None and all(linked(links, some) for some in combinations(sorted(free), gpus))

    def on(self, node: str) -> list[Object]:
        return [pod for pod in self.pods if pod["spec"]["nodeName"] == node]

    # -- what it costs ---------------------------------------------------------------------------------------------

    def cost(self, gone: tuple[Object, ...]) -> tuple[int, ...]:
        live = [pod for pod in gone if not self.going(pod)]
        losers = {pod["metadata"]["uid"]: pod for pod in live}
        broken = 0
        for members, minimum in self.gangs.values():
            lost = [pod for pod in members if pod in live]
            if lost and len(members) - len(lost) < minimum:
                broken += 1
                losers |= {pod["metadata"]["uid"]: pod for pod in members}
        return (
            self.violations(gone),
            max((pod["spec"]["priority"] for pod in live), default=-(2**31)),
            broken,
            sum(self.work(pod) for pod in losers.values()),
            max((pod["spec"]["terminationGracePeriodSeconds"] for pod in live), default=0),
            len(live),
        )

    def violations(self, gone: tuple[Object, ...]) -> int:
        """As kube-scheduler counts: the victims by importance, each takes one off every budget that it is in."""
        left = [budget["status"]["disruptionsAllowed"] for budget in self.budgets]
        count = 0
        for pod in sorted(gone, key=lambda pod: (-pod["spec"]["priority"], seconds(pod["status"]["startTime"]))):
            violates = False
            for i, budget in enumerate(self.budgets):
                wanted = budget["spec"]["selector"]["matchLabels"]
                labels = pod["metadata"]["labels"]
                inside = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
                inside = inside and all(labels.get(key) == value for key, value in wanted.items())
                if self.going(pod) or pod["metadata"]["name"] in budget["status"].get("disruptedPods", {}):
                    continue
                if inside and wanted:
                    left[i] -= 1
                    violates = violates or left[i] < 0
            count += violates
        return count

    # -- the answer ------------------------------------------------------------------------------------------------

    def sets(self, pod: Object, node: Object) -> Iterator[tuple[Object, ...]]:
        there = [other for other in self.on(node["metadata"]["name"]) if self.may_go(other, pod["spec"]["priority"])]
        for size in range(1, len(there) + 1):
            yield from combinations(there, size)

    def verdict(self, pod: Object) -> tuple[str, tuple[int, ...] | None]:
        """("fits" | "evict" | "cannot", the least cost of an eviction)."""
        if any(self.fits(pod, node, ()) for node in self.nodes):
            return "fits", None
        costs = [
            self.cost(gone)
            for node in self.nodes
            if pod["spec"].get("preemptionPolicy") != "Never"
            for gone in self.sets(pod, node)
            if self.fits(pod, node, gone)
        ]
        return ("evict", min(costs)) if costs else ("cannot", None)


def linked(links: list[list[int]], gpus: tuple[int, ...]) -> bool:
    """A ring through all of them over links; two: a link."""
    first, *others = gpus
    if len(gpus) == 2:
        return links[gpus[0]][gpus[1]] > 0
    return any(
        all(links[a][b] > 0 for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(others)
    )
