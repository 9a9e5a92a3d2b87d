"""Brute force for what-if: every set of pods on every node, from the Kubernetes JSON alone.

Nothing of the server is used. GPU positions are what the annotation held-gpus says, a plan alone says nothing; the
device plugin may hand out any of the GPUs that may be free ("arbitrary"), so a pod that requires links fits where every
set of its size among them is linked.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from itertools import combinations, permutations
from typing import Any

from tests.reference.links import Graph

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
        self.objects = [item for item in items if item["kind"] in ("PodGroup", "Job", "JobSet")]
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
        since = max(started, seconds(saved)) if saved else started
        restart = min(3600, int(notes.get(PREFIX + "restart-seconds", 0)))
        saves = int(notes.get(PREFIX + "saves-on-termination", "99999s").removesuffix("s"))
        in_time = saves <= int(pod["spec"]["terminationGracePeriodSeconds"])
        ran = max(0, self.now - since)
        return self.amounts(pod)[2] * ((min(ran, saves) if in_time else ran) + restart)

    def bounded(self) -> list[str]:
        """The claims that do not count as written: by the pod that makes them, and what they are."""
        found = []
        for pod in self.pods:
            name, notes = pod["metadata"]["name"], pod["metadata"]["annotations"]
            saved, started = notes.get(PREFIX + "last-checkpoint"), seconds(pod["status"]["startTime"])
            if int(notes.get(PREFIX + "protect-for", "0m").removesuffix("m")) > 60:
                found.append(f"{name} protect-for")
            if saved and seconds(saved) < started:
                found.append(f"{name} last-checkpoint")
            gang = self.gang_of(pod)
            running = [one for one in self.pods if self.gang_of(one) == gang and not self.going(one)]
            if PREFIX + "gang-min" in pod["metadata"]["labels"] and len(running) == 1:
                found.append(f"{name} gang-min")
        return found

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
        return seconds(pod["status"]["startTime"]) + min(3600, 60 * int(protect.removesuffix("m"))) <= self.now

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

    def gang_of(self, pod: Object) -> str | None:
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
                jobs = [
                    one for one in self.objects if one["kind"] == "Job" and one["metadata"]["name"] == owner["name"]
                ]
                above = [one for job in jobs for one in job["metadata"].get("ownerReferences", ())]
                return f"jobset {space} {above[0]['name']}" if above else f"job {space} {owner['name']}"
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
            if same and item["kind"] == "JobSet" and source == "jobset":
                return sum(
                    int(one["replicas"]) * int(one["template"]["spec"]["parallelism"])
                    for one in item["spec"]["replicatedJobs"]
                )
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

    def cost(self, gone: tuple[Object, ...], pod: Object) -> tuple[int, ...]:
        """All nine terms, in the order of the settings, of evicting `gone` from one node for `pod`."""
        live = [one for one in gone if not self.going(one)]
        losers = {one["metadata"]["uid"]: one for one in live}
        broken = self.broken(gone)
        for name in broken:
            losers |= {one["metadata"]["uid"]: one for one in self.gangs[name][0]}
        return (
            self.violations(gone),
            max((one["spec"]["priority"] for one in live), default=-(2**31)),
            len(broken),
            sum(self.work(one) for one in losers.values()),
            max((one["spec"]["terminationGracePeriodSeconds"] for one in live), default=0),
            len(live),
            sum(self.amounts(one)[2] for one in live) - self.lacking(gone[0]["spec"]["nodeName"], pod),
            self.leftover(gone, pod) or 0,
            sum(self.stranded(one) for one in live),
        )

    def lacking(self, name: str, pod: Object) -> int:
        """GPUs that the pod asks for and that are not free on the node, nor left by lower pods that are terminating."""
        node = next(node for node in self.nodes if node["metadata"]["name"] == name)
        priority = pod["spec"]["priority"]
        stays = [other for other in self.on(name) if not (self.going(other) and self.may_go(other, priority))]
        free = int(node["status"]["allocatable"].get(GPU, 0)) - sum(self.amounts(other)[2] for other in stays)
        return max(0, self.amounts(pod)[2] - free)

    def broken(self, gone: tuple[Object, ...]) -> list[str]:
        found = []
        for name, (members, minimum) in self.gangs.items():
            lost = [one for one in members if one in gone and not self.going(one)]
            if lost and len(members) > 1 and len(members) - len(lost) < minimum:
                found.append(name)
        return found

    def unknown_gangs(self, gone: tuple[Object, ...]) -> set[str]:
        """The gangs of these victims of which nobody says how many must run."""
        return {
            name
            for name, (members, _) in self.gangs.items()
            if any(one in gone for one in members) and self._minimum(name, members) is None
        }

    def leftover(self, gone: tuple[Object, ...], pod: Object) -> int | None:
        """docs/preemption.md: only where the links are known and not any set of that size is as good; else None, which
        is 0 where all links are alike."""
        node = gone[0]["spec"]["nodeName"]
        links, wanted = self.links[node], self.amounts(pod)[2]
        if links is None:
            return None
        frozen = tuple(map(tuple, links))
        if len({frozen[a][b] for a, b in combinations(range(len(links)), 2)}) == 1:
            return 0
        sets = [*combinations(range(len(links)), wanted)]
        if sets and (wanted < 2 or all(linked(links, some) for some in sets)):
            return None
        there = self.on(node)
        silent = [other for other in there if self.amounts(other)[2] and not self.held(other)]
        rest = set(range(len(links))).difference(*(self.held(other) for other in there))
        deduced = rest if len(silent) == 1 and self.amounts(silent[0])[2] == len(rest) else set()
        required = pod["metadata"]["annotations"].get(PREFIX + "links") == "required"
        if silent and (required or not deduced):
            return None
        stay = [other for other in there if other not in gone]
        free = set(range(len(links))).difference(*(self.held(other) for other in stay))
        if any(other in silent for other in stay):
            free -= deduced  # who holds the last set that is left
        return _leftover(frozen, tuple(sorted(free)), wanted)

    def stranded(self, pod: Object) -> bool:
        """Whether no other node has room for it now."""
        others = [node for node in self.nodes if node["metadata"]["name"] != pod["spec"]["nodeName"]]
        plain = {**pod, "metadata": {**pod["metadata"], "annotations": {}}}  # links are not looked at
        return not any(self.fits(plain, node, ()) for node in others)

    def violations(self, gone: tuple[Object, ...]) -> int:
        """As kube-scheduler counts: the victims by importance, each takes one off every budget that it is in."""
        left = [budget["status"]["disruptionsAllowed"] for budget in self.budgets]
        count = 0
        for pod in sorted(gone, key=lambda pod: (-pod["spec"]["priority"], seconds(pod["status"]["startTime"]))):
            violates = False
            for i, budget in enumerate(self.budgets):
                selector, labels = budget["spec"]["selector"], pod["metadata"]["labels"]
                wanted, unlike = selector.get("matchLabels", {}), selector.get("matchExpressions", [])
                inside = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
                inside = inside and all(labels.get(key) == value for key, value in wanted.items())
                inside = inside and all(labels.get(test["key"]) not in test["values"] for test in unlike)  # NotIn
                if self.going(pod) or pod["metadata"]["name"] in budget["status"].get("disruptedPods", {}):
                    continue
                if inside and labels and (wanted or unlike):
                    left[i] -= 1
                    violates = violates or left[i] < 0
            count += violates
        return count

    # -- the answer ------------------------------------------------------------------------------------------------

    def sets(self, pod: Object, node: Object) -> Iterator[tuple[Object, ...]]:
        there = [other for other in self.on(node["metadata"]["name"]) if self.may_go(other, pod["spec"]["priority"])]
        for size in range(1, len(there) + 1):
            yield from combinations(there, size)

    def verdict(self, pod: Object, most: int | None = None) -> tuple[str, list[tuple[tuple[int, ...], str]]]:
        """("fits" | "evict" | "cannot", the least cost of an eviction on each node where one helps, the best first).
        `most`: GPU-seconds of work that an eviction may lose."""
        if any(self.fits(pod, node, ()) for node in self.nodes):
            return "fits", []
        found = []
        for node in self.nodes if pod["spec"].get("preemptionPolicy") != "Never" else ():
            ending = tuple(other for other in self.on(node["metadata"]["name"]) if self.going(other))
            costs = [
                self.cost(gone, pod)
                for gone in self.sets(pod, node)
                # whoever is ending may go first: more free GPUs are not always as sure to be linked
                if self.fits(pod, node, gone) and self.fits(pod, node, (*gone, *ending))
            ]
            costs = [cost for cost in costs if most is None or cost[3] <= most]
            found += [(min(costs), node["metadata"]["name"])] if costs else []
        return ("evict", sorted(found)) if found else ("cannot", [])

    def waits(self, pod: Object) -> bool:
        """Whether no pod is evicted, as a node has enough by number once the pods that terminate there within a minute
        have terminated: unless the best victims are all terminating already. It is short of GPUs alone that are theirs,
        or has the GPUs and lacks CPU, memory or a pod slot."""
        verdict, found = self.verdict(pod)
        if verdict == "fits" or (found and found[0][0][1] == -(2**31)):
            return False
        notes = {key: value for key, value in pod["metadata"]["annotations"].items() if key != PREFIX + "links"}
        by_number = {**pod, "metadata": {**pod["metadata"], "annotations": notes}}
        (container,) = pod["spec"]["containers"]
        asked = container["resources"]["requests"] | {"cpu": "0", "memory": "0Gi"}
        gpus_alone = {**pod, "spec": {**pod["spec"], "containers": [{"resources": {"requests": asked}}]}}
        for node in self.nodes:
            ending = tuple(other for other in self.on(node["metadata"]["name"]) if self.going(other))
            after = [seconds(other["metadata"]["deletionTimestamp"]) - self.now for other in ending]
            if not ending or not all(-30 <= left <= 60 for left in after) or not self.fits(by_number, node, ending):
                continue
            free = int(node["status"]["allocatable"].get(GPU, 0))
            free -= sum(self.amounts(other)[2] for other in self.on(node["metadata"]["name"]))
            slots = {
                **node,
                "status": {**node["status"], "allocatable": node["status"]["allocatable"] | {"pods": "999"}},
            }
            if self.amounts(pod)[2] > free or (found and self.fits(gpus_alone, slots, ())):
                return True
        return False


_graph = cache(lambda links: Graph(links, False, None, None, "arbitrary"))


@cache
def _leftover(links: tuple[tuple[int, ...], ...], free: tuple[int, ...], wanted: int) -> int:
    """The rings of all sets of the machine, less those of what stays free once the pod has taken the best GPUs."""
    graph = _graph(links)
    taken = graph.ordered(free, wanted)[0] if len(free) >= wanted else ()
    stays = tuple(gpu for gpu in free if gpu not in taken)
    return max(0, graph.ways(tuple(range(len(links)))) - graph.ways(stays))


def linked(links: list[list[int]], gpus: tuple[int, ...]) -> bool:
    """A ring through all of them over links; two: a link."""
    first, *others = gpus
    if len(gpus) == 2:
        return links[gpus[0]][gpus[1]] > 0
    return any(
        all(links[a][b] > 0 for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(others)
    )
