"""Makes the recordings that tests/replay/test_replay.py replays.

    python -m tests.replay.record            makes all of them anew, and prints what they cover
    python -m tests.replay.record --accept   replays them, and keeps the answers that differ now

Run it only when answers change on purpose. Prefer --accept: it keeps all requests, so that the change in
recorded/ has only the answers that differ, and each of them is printed. Say in the commit message why they differ.

A recording is the life of one small cluster: pods come, are bound, finish, fail or are evicted. What happens is random,
but the same in each run, and depends on the answers as the acts of kube-scheduler do.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import zlib
from collections import Counter
from typing import Any

import structlog

from tests.replay import clusters, player
from tests.replay.clusters import Fleet
from tests.replay.model import Model
from tests.replay.player import Player
from tests.world import JSON, WALL, rfc3339, workload

OF_EACH = 4  # recordings of each fleet
EVENTS = 18  # things that happen in one recording


class Recorder:
    """Plays kube-scheduler and the cluster against a server, and keeps each step."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.chance = random.Random(zlib.crc32(name.encode()))
        self.fleet = fleet
        self.settings = clusters.SETTINGS | dict(fleet.settings)
        self.steps: list[JSON] = []
        self.model = Model()
        self._player = Player(self.settings)
        self._seconds = 0.0
        self._pods = 0
        self.whole_nodes = len(fleet.kinds) > 1 and self.chance.random() < 0.25  # nodeCacheCapable: false
        self.waiting: list[tuple[JSON, str, list[str]]] = []  # preemptor, node, names of its victims
        self.binds = self.chance.random() < 0.7

    # -- the cluster ----------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self._seconds = round(self._seconds + seconds, 3)

    @property
    def wall(self) -> float:
        """Seconds since 1970."""
        return WALL + self._seconds

    def apply(self, kind: str, wire: JSON) -> None:
        """The watch brings an object."""
        self._change({"at": self._seconds, "set": kind, "object": copy.deepcopy(wire)})
        self.model.apply(kind, wire)

    def delete(self, kind: str, wire: JSON) -> None:
        """The watch brings a deletion."""
        self._change({"at": self._seconds, "delete": kind, "object": copy.deepcopy(wire)})
        self.model.delete(kind, wire)

    def _change(self, step: JSON) -> None:
        self.steps.append(step)
        self._player.change(step)

    def ask(self, verb: str, request: JSON) -> Any:
        """Sends a request, keeps it with its answer, and returns the answer."""
        body = json.dumps(request, separators=(",", ":"))
        step: JSON = {"at": self._seconds, "verb": verb, "body": body}
        step |= self._player.ask(step)
        step |= self._player.why(step)
        if (
            step["status"] == 200 and "internal error" not in step["answer"]
        ):  # an internal error is a defect, and no answer to keep
            self.steps.append(step)
        return json.loads(step["answer"])

    def name(self) -> str:
        """A name that no other pod has."""
        self._pods += 1
        return f"p{self._pods}"

    def pod(self, **facts: Any) -> JSON:
        """A pod that comes now."""
        return clusters.newcomer(self.chance, self.fleet, self.name(), **facts)

    def fill(self) -> None:
        """Nodes, most of whose GPUs are held, by pods that stand alone or in gangs."""
        for kind, wire in clusters.objects(self.chance):
            self.apply(kind, wire)
        many = self.fleet.nodes if self.fleet.nodes > 20 else self.chance.randint(3, self.fleet.nodes)
        for number in range(many):
            self.apply("Node", clusters.node(self.chance, self.fleet, number))
        sources = self.chance.sample(clusters.GANGS, 4)
        gangs = [clusters.gang(source, f"g{i}", 2 + i) for i, source in enumerate(sources)]
        for gang in gangs:
            if gang.stated is not None:
                self.apply("Group", gang.stated)
        tries = self.chance.choice((2, 3, 4, 6, 8))
        priorities = self.chance.choice(((10,), (0, 10), (0, 10, 100, 1000)))
        members = [gang for i, gang in enumerate(gangs) for _ in range(2 + i)]
        for on in self.chance.sample(list(self.model.nodes.values()), many):
            for _ in range(2 if many > 20 else tries):
                pod = clusters.aged(self.chance, self.pod(priority=self.chance.choice(priorities)))
                if members and self.chance.random() < 0.6:
                    pod["metadata"]["namespace"] = "default"
                    clusters.join(pod, members.pop())
                if self.chance.random() < 0.05:
                    self.ends(pod, self.chance.choice((5, 30)))
                if self.model.fits(pod, on["metadata"]["name"]):
                    clusters.holds(self.chance, pod, on, self.model.free_gpus(on["metadata"]["name"]))
                    self.apply("Pod", pod)

    def ends(self, pod: JSON, grace: int) -> None:
        """Marks the pod as terminating."""
        pod["metadata"] |= {"deletionTimestamp": rfc3339(self.wall + grace), "deletionGracePeriodSeconds": grace}

    # -- kube-scheduler -------------------------------------------------------------------------------------------

    def args(self, pod: JSON, names: list[str]) -> JSON:
        """ExtenderArgs, in the form that the cluster's kube-scheduler uses."""
        if not self.whole_nodes:
            return {"Pod": pod, "Nodes": None, "NodeNames": names}
        nodes = [self.model.nodes[name] for name in names if name in self.model.nodes]
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}

    def filter(self, pod: JSON, *, wide: bool = False) -> tuple[list[str], bool]:
        """(the nodes that pass, whether the pod waits only because of an Error). `wide`: all nodes are candidates."""
        names = list(self.model.nodes) if wide else self.model.feasible(pod)
        if not names:
            return [], False
        if self.chance.random() < 0.03 and not self.whole_nodes:
            names.append("joining")
        answer = self.ask("filter", self.args(pod, names))
        passed = answer["NodeNames"] or [
            node["metadata"]["name"] for node in (answer["Nodes"] or {"items": []})["items"]
        ]
        return passed, bool(answer["Error"])

    def schedule(self, pod: JSON, *, wide: bool = False) -> str:
        """One scheduling cycle. Returns "bound", "again", "evicts" or "waits"."""
        if self.chance.random() < 0.95:
            self.apply("Pod", pod)
        passed, error = self.filter(pod, wide=wide)
        if error:
            return "again"
        if passed:
            scores = self.ask("prioritize", self.args(pod, passed))
            best = max(scores, key=lambda entry: entry["Score"])["Host"]
            if not self.model.fits(pod, best):
                return "waits"
            return "bound" if self.bind(pod, best) else "again"
        return "evicts" if self.preempt(pod) else "waits"

    def bind(self, pod: JSON, node: str) -> bool:
        """Binds the pod. The watch brings it at once, later or, where this scheduling cycle is lost, not at all."""
        if self.chance.random() < 0.12:
            return False
        self.apply("Pod", pod)
        if self.chance.random() < 0.12:
            self.is_quicker(pod, node)
        if self.binds:
            meta = pod["metadata"]
            request = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
            if self.ask("bind", request)["Error"]:
                return False
        pod = copy.deepcopy(pod)
        pod["status"] = {"phase": "Running", "startTime": rfc3339(self.wall)}
        written = self.steps[-1].get("written") or [{}]
        pod["metadata"]["annotations"] |= written[0]
        on = self.model.nodes[node]
        if written[0]:
            pod["spec"]["nodeName"] = node
        else:
            clusters.holds(self.chance, pod, on, self.model.free_gpus(node))
        self.wait(self.chance.choice((0.01, 0.2, 2)))
        self.apply("Pod", pod)
        return True

    def is_quicker(self, than: JSON, node: str) -> None:
        """Another pod of the same shape is placed on the node by another scheduler."""
        other, name = copy.deepcopy(than), self.name()
        other["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        other["spec"]["priority"] += 1
        other["status"] = {"phase": "Running", "startTime": rfc3339(self.wall)}
        clusters.holds(self.chance, other, self.model.nodes[node], self.model.free_gpus(node))
        self.apply("Pod", other)

    def victims(self, pod: JSON) -> JSON:
        """ExtenderPreemptionArgs with what kube-scheduler offers."""
        offered = self.model.offer(pod, placeholders="schedulerVersion" in self.settings)
        whole = {node: {"Pods": pods, "NumPDBViolations": broken} for node, (pods, broken) in offered.items()}
        meta = {
            node: {"Pods": [{"UID": one["metadata"]["uid"]} for one in pods], "NumPDBViolations": broken}
            for node, (pods, broken) in offered.items()
        }
        forms = (whole, None) if self.whole_nodes else (None, meta)
        return {"Pod": pod, "NodeNameToVictims": forms[0], "NodeNameToMetaVictims": forms[1]}

    def preempt(self, pod: JSON) -> bool:
        """Asks which pods to evict, and evicts them. Whether any is evicted."""
        request = self.victims(pod)
        offered = request["NodeNameToVictims"] or request["NodeNameToMetaVictims"]
        if not offered and self.chance.random() < 0.7:
            return False
        answer = self.ask("preempt", request).get("NodeNameToMetaVictims", {})
        for node, chosen in answer.items():
            uids = [one["UID"] for one in chosen["Pods"]]
            self.evict(pod, node, [name for name, one in self.model.pods.items() if one["metadata"]["uid"] in uids])
        return bool(answer)

    def evict(self, pod: JSON, node: str, names: list[str]) -> None:
        """The victims terminate, and the pod is nominated."""
        self.wait(0.05)
        pod = copy.deepcopy(pod)
        pod["status"] = {"phase": "Pending", "nominatedNodeName": node}
        self.waiting = [one for one in self.waiting if one[0]["metadata"]["name"] != pod["metadata"]["name"]]
        self.waiting.append((pod, node, names))
        if self.chance.random() < 0.1:
            return  # kube-scheduler drops the answer
        for name in names:
            victim = copy.deepcopy(self.model.pods[name])
            if "deletionTimestamp" not in victim["metadata"]:
                self.ends(victim, victim["spec"]["terminationGracePeriodSeconds"])
                self.apply("Pod", victim)
        self.apply("Pod", pod)

    # -- what happens ---------------------------------------------------------------------------------------------

    def comes(self) -> None:
        """A pod comes, and is tried again at once, later or never."""
        pod = self.pod()
        for _ in range(self.chance.choice((1, 1, 2))):
            if self.schedule(pod, wide=self.chance.random() < 0.35) != "again":
                return
            self.wait(self.chance.choice((0.5, 1.5, 6)))

    def urgent(self) -> None:
        """A pod of a high priority comes."""
        self.schedule(self.pod(priority=self.chance.choice((500, 2_000, 5_000)), never=False))

    def gang_comes(self) -> None:
        """Pods of one gang come one after the other."""
        size = self.chance.choice((2, 3, 4))
        name = self.name()
        gang = clusters.gang(self.chance.choice(clusters.GANGS), f"g-{name}", size)
        if gang.stated is not None:
            self.apply("Group", gang.stated)
        first = self.pod(namespace="default", priority=self.chance.choice((10, 100)))
        for i in range(size):
            one = copy.deepcopy(first)
            one["metadata"] |= {"name": f"{name}-{i}", "uid": f"uid-{name}-{i}"}
            self.schedule(clusters.join(one, gang), wide=self.chance.random() < 0.3)

    def again(self) -> None:
        """A preemptor is tried while its victims terminate."""
        if not self.waiting:
            return self.urgent()
        pod, _, _ = self.chance.choice(self.waiting)
        self.wait(self.chance.choice((0.1, 1, 11)))
        passed, error = self.filter(pod, wide=self.chance.random() < 0.5)
        if not passed and not error:
            self.preempt(pod)
        return None

    def rival(self) -> None:
        """A pod of a lower or a higher priority wants what is reserved for a preemptor."""
        if not self.waiting:
            return self.urgent()
        pod, _, _ = self.chance.choice(self.waiting)
        other = copy.deepcopy(pod)
        name = self.name()
        other["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        other["spec"]["priority"] = max(0, pod["spec"]["priority"] + self.chance.choice((-1, 0, 1, 1_000)))
        other["status"] = {"phase": "Pending"}
        self.schedule(other, wide=self.chance.random() < 0.3)
        return None

    def freed(self) -> None:
        """The victims of a preemptor have terminated, and it is tried."""
        if not self.waiting:
            return self.urgent()
        pod, _, names = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        self.wait(self.chance.choice((1, 5, 20)))
        for name in names:
            if name in self.model.pods:
                self.delete("Pod", self.model.pods[name])
        if self.chance.random() < 0.4:
            self.rival_of(pod)
        self.wait(self.chance.choice((0.1, 3, 3, 70)))
        self.schedule(pod)
        return None

    def rival_of(self, pod: JSON) -> None:
        """Another pod of the same shape is tried before the preemptor."""
        other = self.pod(priority=max(0, pod["spec"]["priority"] + self.chance.choice((-1, 0, 1))))
        other["spec"]["containers"] = copy.deepcopy(pod["spec"]["containers"])
        self.schedule(other)

    def finishes(self) -> None:
        """A running pod finishes."""
        running = [pod for pod in self.model.pods.values() if pod["spec"].get("nodeName")]
        if running:
            self.delete("Pod", self.chance.choice(running))
        self.comes()

    def fails(self) -> None:
        """GPU pods fail on a node, and another one comes."""
        node = self.chance.choice(list(self.model.nodes))
        for _ in range(self.chance.choice((1, 3))):
            pod = self.pod(node=node)
            self.apply("Pod", pod)
            reason = {"reason": "UnexpectedAdmissionError"} if self.chance.random() < 0.7 else {}
            self.apply("Pod", pod | {"status": {"phase": "Failed"} | reason})
        self.schedule(self.pod(), wide=True)

    def node_changes(self) -> None:
        """A node is cordoned, loses GPUs, or has all of them again."""
        node = copy.deepcopy(self.chance.choice(list(self.model.nodes.values())))
        what = self.chance.choice(("cordon", "fewer", "none", "whole"))
        node["spec"] = {key: value for key, value in node["spec"].items() if key != "unschedulable"}
        node["status"]["allocatable"] = dict(node["status"]["capacity"])
        gpus = clusters.offers(node, self.fleet.resource)
        if what == "cordon":
            node["spec"]["unschedulable"] = True
        elif what != "whole" and gpus:
            node["status"]["allocatable"][self.fleet.resource] = str(gpus - 1 if what == "fewer" else 0)
        self.apply("Node", node)
        self.schedule(self.pod(), wide=True)

    def no_gpus(self) -> None:
        """A pod without GPUs comes."""
        pod = workload(self.name(), 0, priority=100)
        passed, _ = self.filter(pod)
        if passed:
            self.ask("prioritize", self.args(pod, passed))
        self.ask("preempt", self.victims(pod))

    def live(self) -> None:
        """Records what happens to the cluster."""
        self.fill()
        events = [
            *[self.comes] * 4, *[self.urgent] * 6, *[self.again] * 5, *[self.freed] * 4, *[self.rival] * 3,
            self.gang_comes, self.finishes, self.fails, self.node_changes, self.no_gpus,
        ]  # fmt: skip
        many = self.fleet.nodes > 100
        for _ in range(EVENTS // 2 if many else EVENTS):
            self.wait(self.chance.choice((0.02, 0.5, 3, 8, 8, 40, 320)))
            self.chance.choice(events)()


def record() -> None:
    """Writes all recordings."""
    for old in player.names():
        (player.RECORDED / f"{old}.json.gz").unlink()
    for kind, fleet in clusters.FLEETS.items():
        for number in range(1 if fleet.nodes > 100 else OF_EACH):
            name = f"{kind}-{number + 1}"
            recorder = Recorder(name, fleet)
            recorder.live()
            player.write(name, recorder.settings, recorder.steps)


def accept() -> None:
    """Keeps the answers that differ now, and prints each."""
    for name in player.names():
        settings, steps = player.read(name)
        changed: list[JSON] = []

        def differs(step: JSON, now: JSON) -> None:
            changed.append(now)  # noqa: B023 -- called before the next turn
            print(f"{name}, at {step['at']} s, {step['verb']}:\n  was {step['answer']}\n  is  {now['answer']}")  # noqa: B023
            step |= now

        player.differences(settings, steps, differs)
        if changed:
            player.write(name, settings, steps)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="keep all requests, and the answers that differ now")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if parser.parse_args().accept:
        accept()
    else:
        record()
    for verb, results in player.table().items():
        print(f"{verb:12}", ", ".join(f"{result} {count}" for result, count in sorted(results.items())))
    reasons = Counter(key for step in player.requests() for key in step["reasons"])
    print("reasons     ", ", ".join(f"{key} {count}" for key, count in sorted(reasons.items())))


if __name__ == "__main__":
    main()
