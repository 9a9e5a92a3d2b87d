"""A mixed day on a small cluster, in scenes; sim/evening.py has the others.

Each scene is what people do, then what came of it. What is told is checked first, against the simulated kubelets and
by brute force, never against the server's own words: NotAsTold when anything came out otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from rich.text import Text

from extender.sim import in_tree
from extender.sim.cluster import SimChange, SimClock, SimCluster, full_name, guards
from extender.sim.kubelet import Kubelets
from extender.sim.machines import GPU, PluginPanicked, SimMachine, SimNode, SimPod, TooFewDevices, machine
from extender.sim.scheduler import CycleOutcome, Extender, Scheduler
from extender.topologies.annotation import RELAY
from extender.topologies.gpu_map import FREE, TAKEN, gpu_map, legend

Object = dict[str, Any]
MORNING = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
NODES = {
    "dgx1": "dgx1-v100",
    "hgx": "dgx-h100",
    "pairs-a": "a100-pcie-4",
    "pairs-b": "a100-pcie-4",
    "tray": "gb200-nvl72-tray",
}
RACK = "cloud.provider.com/topology-rack"
RACKS = {"dgx1": "rack-1", "hgx": "rack-1", "pairs-a": "rack-2", "pairs-b": "rack-2", "tray": "rack-3"}
GATE = "gpu-extender.io/queue"
ARM = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
ANY_ARCH = ({"key": "kubernetes.io/arch", "operator": "Exists"},)
V100 = {"nvidia.com/gpu.product": machine("dgx1-v100").product}


UNRELAYED = (
    "A 4-GPU training requires linked GPUs: it gets one fully linked half of the DGX-1V. This node has no relay yet: "
    "its device plugin chooses which half, and need not follow the plan."
)
RELAYED = (
    "The relay (docs/relay.md) is installed there too: from now on the node hands out what is planned. A 2-GPU tuning "
    "gets a pair on the other half."
)


class NotAsTold(Exception):
    """A scene did not come out as the text states."""


@dataclass
class Scene:
    """One moment of the day, as it is shown."""

    title: str
    time: str
    says: str  # what happens
    pod: str  # namespace/name, to look up
    shows: list[Text] = field(default_factory=list)  # pictures
    answers: list[str] = field(default_factory=list)  # what the server answered
    cost: list[Object] = field(default_factory=list)  # of the eviction, by term
    certificate: Object = field(default_factory=dict)  # that the eviction is the cheapest
    view: str = "decisions"  # the view of the pod to look up


class DayServer(Protocol):
    """The server, as far as the day has to wait for it."""

    def settle(self) -> None:
        """Wait until it has seen what was written."""

    def until(self, true: Callable[[], bool], action: str) -> None:
        """Wait until it has acted by itself. The TimeoutError names the `action` that it did not do."""


def build(seed: int) -> tuple[SimClock, SimCluster, Kubelets]:
    """The cluster in the morning: one DGX-1V, one HGX H100, two A100 bridged in pairs, one GB200 tray."""
    clock = SimClock(MORNING)
    cluster = SimCluster(clock)
    kubelets = Kubelets(cluster, seed)
    for name, machine_name in NODES.items():
        # The tray has no agent: what it is follows from its labels and the catalogue.
        rack = {RACK: RACKS[name]}
        arm = {"kubernetes.io/arch": "arm64", **rack}
        tray = SimNode(name, machine(machine_name), annotate=False, labels=arm, taints=[ARM])
        sim_node = tray if name == "tray" else SimNode(name, machine(machine_name), labels=rack)
        cluster.add_node(sim_node.object())
        kubelets.add(name, machine(machine_name))
        if name not in ("dgx1", "tray"):  # a relay needs the GPU ids that the agent states
            kubelets.relay(name)
    return clock, cluster, kubelets


def overview(machines: Mapping[str, SimMachine], holders: Mapping[str, Mapping[int, str]]) -> Iterator[Text]:
    """One line a node: a letter per GPU, `·` where it is free. `holders`: node -> GPU -> the holder's letter."""
    names = max(map(len, machines))
    products = max(len(hardware.product) for hardware in machines.values())
    for name, what in machines.items():
        line = Text(f"{name:<{names}}  {what.product:<{products}}  ")
        for gpu in range(what.gpus):
            letter = holders.get(name, {}).get(gpu)
            line.append(f" {letter}" if letter else " ·", TAKEN if letter else FREE)
        if not holders.get(name):
            line.append("   whole node free", FREE)
        yield line


def node_map(kubelets: Kubelets, name: str, uid: str) -> list[Text]:
    """One node's GPUs; `uid`: whose are marked, "" for none."""
    chosen = kubelets.truth.gpus_of(uid) if uid else frozenset()
    taken = kubelets.truth.holders(name).keys() - chosen
    hardware = kubelets.machines[name]
    gpu_total = hardware.scope == "gpu-total"
    drawn = gpu_map(hardware.links, chosen, taken, gpu_total=gpu_total)
    return [Text(f"{name}   {legend(gpu_total=gpu_total)}", "dim"), *drawn]


def fleet(cluster: SimCluster, kubelets: Kubelets) -> list[Text]:
    """All nodes, and whose letter is whose."""
    names = {str(p["metadata"]["uid"]): p["metadata"]["name"] for p in cluster.pods()}
    held = kubelets.truth.holdings()
    holders = {name: {gpu: names[uid][0] for gpu, uid in gpus.items()} for name, gpus in held.items()}
    here = sorted({names[uid].partition("-")[0] for gpus in held.values() for uid in gpus.values()})
    letters = "   ".join(f"{name[0]} {name}" for name in here)
    return [*overview(kubelets.machines, holders), Text(letters, "dim")]


class Day:
    """Not for use from several threads."""

    def __init__(
        self, cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer, seed: int
    ) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._kubelets = kubelets
        self._extender = extender
        self._server = server
        self._scheduler = Scheduler(cluster, extender, seed=seed, settle=server.settle, bound=kubelets.sync)

    def scenes(self) -> Iterator[Scene]:
        """Run the day; each scene is returned as soon as it has ended. Raises NotAsTold."""
        yield self._packing()
        yield from self._fits()
        yield self._refused()
        yield self._preempted()
        yield self._waited()
        yield self._together()
        self._server.settle()

    # ---- 08:00

    def _packing(self) -> Scene:
        outcomes = [self._submit(SimPod("notebook-1", "research", 1))]
        second = self._cluster.create(SimPod("notebook-2", "research", 1).object())
        self._server.settle()
        why = self._extender.preferred("research/notebook-2")
        best, other = outcomes[0].node, "pairs-b"
        free = {name: self._kubelets.truth.free(name) for name in (best, other)}
        pairs = {name: most_pairs(machine(NODES[name]).links, gpus) for name, gpus in free.items()}
        outcomes += self._scheduler.run([second])
        expect(outcomes[1].node == best, f"notebook-2 goes to {best}: {outcomes[1]}")
        kept = most_pairs(machine(NODES[best]).links, self._kubelets.truth.free(best))
        expect((pairs[other], pairs[best] - kept) == (2, 0), f"{best} breaks no linked pair, {other} has two: {pairs}")
        claim = f"{best} beat {other}: it takes no linked set of 2 GPUs from later pods, {other} would take 1."
        expect(why == claim, f"the server gives that reason: {why}")
        outcomes += [self._submit(SimPod(f"notebook-{n}", "research", 1)) for n in (3, 4)]
        where = {outcome.node for outcome in outcomes}
        expect(all(outcome.result == "bound" for outcome in outcomes), "every notebook finds a node")
        expect(len(where) == 1, f"the notebooks share one node, not {sorted(where)}")
        untouched = [name for name in NODES if not self._kubelets.truth.holders(name)]
        expect(len(untouched) == len(NODES) - 1, "all other nodes stay whole")
        scene = self._scene(
            "two good candidates",
            f"Four people open a 1-GPU notebook each. The second fits on every node: it goes to {best} beside the "
            f"first, and {other} keeps its two linked pairs. All four go together; {len(untouched)} nodes stay whole.",
            "research/notebook-2",
        )
        scene.shows = fleet(self._cluster, self._kubelets)
        scene.answers.append(why)
        points = ", ".join(f"{node} {given}" for node, given in outcomes[1].points.items())
        scene.answers.append(f"points that kube-scheduler gets for notebook-2: {points}")
        return scene

    # ---- 09:00

    def _fits(self) -> Iterator[Scene]:
        self._at(9)
        yield self._fit(
            "contiguous fit, 4 GPUs, without the relay",
            SimPod("vision", "train", 4, links="required", node_selector=V100),
            UNRELAYED,
        )
        self._kubelets.relay("dgx1")
        tune = SimPod("tune", "train", 2, links="required", node_selector=V100)
        scene = self._fit("contiguous fit, 2 GPUs, with the relay", tune, RELAYED)
        a, b = sorted(self._gpus("train", "tune"))
        width = machine(NODES["dgx1"]).links[a][b]
        expect(width == 2, f"GPUs {a} and {b} have two links, not {width}")
        scene.says += f" It is one of the pairs with a double link, {a}═{b}."
        yield scene

    def _fit(self, title: str, pod: SimPod, says: str) -> Scene:
        name = f"{pod.namespace}/{pod.name}"
        before = self._kubelets.truth.free("dgx1")
        outcome = self._submit(pod)
        expect((outcome.result, outcome.node) == ("bound", "dgx1"), f"{name} is bound to dgx1: {outcome}")
        held = self._kubelets.truth.gpus_of(outcome.uid)
        expect(machine(NODES["dgx1"]).linked(held), f"the GPUs {sorted(held)} of {name} are linked")
        expect(held <= before, "only free GPUs are handed out")
        scene = self._scene(title, says, name)
        scene.shows = node_map(self._kubelets, "dgx1", outcome.uid)
        plan = self._decision(name, "bind").get("gpus") or []
        scene.answers.append(f"bind: dgx1, planned GPUs {ids(plan)} (written on the pod as gpu-extender.io/gpus)")
        expect(_links_within("dgx1", plan) == _links_within("dgx1", held), f"{held} is as good as the plan, {plan}")
        relayed = self._cluster.node("dgx1")["metadata"]["annotations"].get(RELAY) == "1"
        expect(not relayed or set(plan) == held, f"the relay has the plan handed out: {plan}, not {held}")
        note = "the planned set" if set(plan) == held else "as many links; between equals the plugin draws lots"
        who = "the relay had the device plugin hand out" if relayed else "the node's stock device plugin handed out"
        scene.answers.append(f"{who} GPUs {ids(held)}: {note}")
        return scene

    # ---- 13:00

    def _refused(self) -> Scene:
        self._at(10)
        self._background()
        self._at(12)
        for name in ("vision", "tune"):
            self._finish("train", name)
        sweeps = [self._submit(SimPod(f"sweep-{n}", "train", 1, node_selector=V100)) for n in range(1, 9)]
        expect(not self._kubelets.truth.free("dgx1"), "eight trials fill the DGX-1V")
        self._at(13)
        wanted = frozenset({0, 2, 4, 5})
        for sweep in sweeps:
            if self._kubelets.truth.gpus_of(sweep.uid) <= wanted:
                self._kubelets.finish(sweep.uid)
        expect(self._kubelets.truth.free("dgx1") == wanted, "four trials end: GPUs 0, 2, 4 and 5 are free")
        outcome = self._submit(SimPod("pretrain", "train", 4, links="required", tolerations=ANY_ARCH))
        expect(outcome.result == "waits", f"pretrain waits: {outcome}")
        for name in self._kubelets.machines:
            free = self._kubelets.truth.free(name)
            if len(free) >= 4:
                expect(name in outcome.sent, f"{name} has four free GPUs: the server was asked about it")
                expect(not linked_set(self._kubelets, name, free, 4), f"{name} has no four linked GPUs")
        scene = self._scene(
            "a refused node",
            "Four GPUs are free on the DGX-1V, but they form no ring (2-0-4-5 is a chain): a 4-GPU training that "
            "requires links is refused there, and waits.",
            "train/pretrain",
        )
        scene.shows = [*node_map(self._kubelets, "dgx1", ""), Text(), *fleet(self._cluster, self._kubelets)]
        for entry in self._decision("train/pretrain", "filter")["nodes"]:
            scene.answers.append(f"{entry['node']}: {entry['text'].removeprefix('gpu-extender: ')}")
        scene.answers.append(f"the event that the user reads: FailedScheduling: {outcome.message}")
        return scene

    def _background(self) -> None:
        """Jobs that fill the tray and the HGX; a budget keeps the first from being disturbed."""
        self._cluster.add_budget("render", "media", {"app": "render"}, min_available=1)
        labels = {"app": "render"}
        render = self._submit(SimPod("render", "media", 4, links="required", labels=labels, tolerations=ANY_ARCH))
        expect(render.node == "tray", f"render takes the whole tray: {render}")
        for minutes, name in ((0, "asr"), (5, "llm")):
            self._clock.advance(60 * minutes)
            notes = {"gpu-extender.io/restart-seconds": "120"}
            job = self._submit(SimPod(name, "train", 4, links="required", annotations=notes))
            expect(job.node == "hgx", f"{name} takes half of the HGX: {job}")

    # ---- 15:00

    def _preempted(self) -> Scene:
        self._at(15)
        asr = self._cluster.named("train", "asr")["metadata"]["uid"]
        saved = self._clock.text(-300)
        self._cluster.set_annotation(asr, "gpu-extender.io/last-checkpoint", saved)
        urgent = SimPod("urgent", "serving", 4, links="required", priority=1_000, tolerations=ANY_ARCH).object()
        uid = self._cluster.create(urgent)
        truth = cheapest(self._cluster, self._kubelets, self._cluster.named("serving", "urgent"))
        best = min(truth.values(), key=lambda eviction: (eviction.cost, eviction.node))
        names = {str(p["metadata"]["uid"]): full_name(p) for p in self._cluster.pods()}
        freed = self._kubelets.truth.free(best.node).union(*map(self._kubelets.truth.gpus_of, best.victims))
        asked = self._extender.calls["preempt"]
        (outcome, *others) = self._scheduler.run()
        expect((outcome.uid, outcome.result) == (uid, "nominated"), f"urgent evicts: {outcome}")
        expect(
            (outcome.node, frozenset(outcome.victims)) == (best.node, best.victims),
            f"brute force finds nothing cheaper than {sorted(names[uid] for uid in best.victims)} on {best.node}, "
            f"the answer was {sorted(names[uid] for uid in outcome.victims)} on {outcome.node}",
        )
        expect(best.victims == {asr}, "the cheapest is the job that has just saved its work")
        others += self._scheduler.run()  # before the victims are gone: nothing happens twice
        expect(self._extender.calls["preempt"] == asked + 1, "preempt is asked once for one need")
        self._clock.advance(30)
        self._kubelets.sync()
        after = self._scheduler.run()
        expect(after[0].result == "bound" and after[0].uid == uid, f"urgent is bound: {after[0]}")
        expect(all(other.result != "bound" for other in [*others, *after[1:]]), "no other pod takes the reserved place")
        held = self._kubelets.truth.gpus_of(uid)
        expect(held <= freed, f"urgent holds {sorted(held)}, all of what its victim held or was free")
        expect(self._cluster.pod(asr) is None, "the victim is gone")
        ranking = sorted(truth.values(), key=lambda eviction: (eviction.cost, eviction.node))
        return self._preemption_scene(outcome, names, ranking[1])

    def _preemption_scene(self, outcome: CycleOutcome, names: dict[str, str], second: BruteForceEviction) -> Scene:
        alone = in_tree.pick(outcome.offered)
        instead = ", ".join(full_name(victim) for victim in outcome.offered[alone].pods)
        evicted = ", ".join(names[uid] for uid in outcome.victims)
        scene = self._scene(
            "a preemption",
            f"An urgent service needs four linked GPUs, and no node has them free: {evicted} is evicted, which saved "
            f"its work five minutes ago. kube-scheduler alone would have ended {instead} on {alone}.",
            "serving/urgent",
        )
        scene.shows = [
            *node_map(self._kubelets, outcome.node, outcome.uid),
            Text(),
            *fleet(self._cluster, self._kubelets),
        ]
        told = self._decision("serving/urgent", "preempt")
        certificate = told["certificate"]
        for victim in told["victims"]:
            name = f"{victim['namespace']}/{victim['name']}"
            scene.answers.append(f"evict {name}, priority {victim['priority']:,}, GPUs {ids(victim['gpus'] or [])}")
        proved = "proved" if certificate["proved"] else "not proved"
        scene.answers.append(f"the cheapest: {proved} (searched: {certificate['nodes_examined']} nodes)")
        other = certificate["runner_up"]
        expect(
            other is not None and {victim["uid"] for victim in other["victims"]} <= names.keys(),
            "a runner-up is stated",
        )
        values = {term["term"]: term["value"] for term in other["cost"]}
        expect(
            (other["node"], values["work_lost_gpu_seconds"], values["victims"])
            == (second.node, second.cost[2], second.cost[4]),
            f"the runner-up is what brute force ranks second, {second}: {other}",
        )
        lost = ", ".join(f"{victim['namespace']}/{victim['name']}" for victim in other["victims"])
        scene.answers.append(f"next best: {lost} on {other['node']}")
        scene.cost, scene.certificate = told["cost"], certificate
        return scene

    # ---- 17:00

    def _waited(self) -> Scene:
        self._at(16)
        pretrain = self._cluster.named("train", "pretrain")
        uid = str(pretrain["metadata"]["uid"])
        outcome = self._scheduler.run([uid])[0]
        expect(outcome.result == "waits", f"pretrain still waits: {outcome}")
        self._at(17)
        self._finish("media", "render")
        outcome = self._scheduler.run([uid])[0]
        expect((outcome.result, outcome.node) == ("bound", "tray"), f"pretrain starts on the tray: {outcome}")
        held = self._kubelets.truth.gpus_of(uid)
        expect(len(held) == 4 and machine(NODES["tray"]).linked(held), f"its GPUs {sorted(held)} are linked")
        refusals = self._kubelets.truth.refusals()
        expect(not refusals, f"every kubelet admits what is bound: {refusals}")
        hours = (self._clock.now() - datetime.fromisoformat(pretrain["metadata"]["creationTimestamp"])).seconds // 3600
        scene = self._scene(
            "a wait that ends",
            f"The rendering ends, and the training that has waited for {hours} hours starts on the tray at once: "
            "any four GPUs there are linked.",
            "train/pretrain",
        )
        scene.shows = [*node_map(self._kubelets, "tray", uid), Text(), *fleet(self._cluster, self._kubelets)]
        scene.answers.append(f"filter: {', '.join(outcome.passed)} fits")
        for entry in self._decision("train/pretrain", "filter")["nodes"]:
            if not entry["fits"]:
                scene.answers.append(f"{entry['node']}: {entry['text'].removeprefix('gpu-extender: ')}")
        return scene

    # ---- 18:00 and 19:00

    def _together(self) -> Scene:
        self._at(18)
        notes = {"gpu-extender.io/gang": "distill", "gpu-extender.io/gang-size": "2"}
        notes["gpu-extender.io/domain"] = "required:rack"
        gang = [SimPod(f"distill-{n}", "train", 4, annotations=notes, gates=[GATE]) for n in range(2)]
        writes = _QueueWrites(self._cluster, {pod.name for pod in gang})
        uids = [self._cluster.create(pod.object()) for pod in gang]
        free = {rack: self._free(rack) for rack in sorted(set(RACKS.values()))}
        expect(sum(free.values()) >= 8 > max(free.values()), f"eight GPUs are free, in several racks: {free}")
        self._server.until(lambda: bool(self._extender.queue()["waiting"]), "look at the gang")
        [waits] = self._extender.queue()["waiting"]
        expect(not self._scheduler.run(uids), "kube-scheduler tries no pod behind a gate")
        expect(not writes.seen and not self._cluster.config_maps.texts(), "the gang waits whole and reserves nothing")
        scene = self._scene("a gang that starts whole", "", "train/distill-0")
        scene.shows = [*fleet(self._cluster, self._kubelets), Text()]
        scene.answers.append(f"waiting: {waits['gang']} ({waits['reason']}): {waits['text']}")
        self._at(19)
        for n in range(1, 5):
            self._finish("research", f"notebook-{n}")
        self._server.until(lambda: writes.opened == {pod.name for pod in gang}, "release the gang")
        expect(writes.in_order, f"seats of all are written, then all are nominated, then gates open: {writes.seen}")
        outcomes = self._scheduler.run(uids)
        expect([outcome.result for outcome in outcomes] == ["bound", "bound"], f"both pods are bound: {outcomes}")
        expect(len({RACKS[outcome.node] for outcome in outcomes}) == 1, f"both are in one rack: {outcomes}")
        held = [self._kubelets.truth.gpus_of(uid) for uid in uids]
        expect([len(gpus) for gpus in held] == [4, 4], f"both hold four GPUs: {held}")
        expect(not (refusals := self._kubelets.truth.refusals()), f"every kubelet admits what is bound: {refusals}")
        scene.says = (
            "A gang of two pods with four GPUs each requires one rack. At 18:00 eight GPUs are free, but in two racks: "
            "it waits whole behind its scheduling gates, and holds none of them. At 19:00 the notebooks end: the "
            f"server reserves both seats, opens both gates, and both pods start in {RACKS[outcomes[0].node]}."
        )
        scene.shows += fleet(self._cluster, self._kubelets)
        for pod, outcome in zip(gang, outcomes, strict=True):
            gpus = ids(self._gpus(pod.namespace, pod.name))
            scene.answers.append(
                f"{pod.name}: nominated for {writes.nominated[pod.name]}, bound to {outcome.node}, GPUs {gpus}"
            )
        return scene

    def _free(self, rack: str) -> int:
        """Free GPUs of a rack."""
        return sum(len(self._kubelets.truth.free(name)) for name, home in RACKS.items() if home == rack)

    # ---- what they share

    def _at(self, hour: int, minute: int = 0) -> None:
        self._clock.until(MORNING.replace(hour=hour, minute=minute))

    def _submit(self, pod: SimPod) -> CycleOutcome:
        return self._scheduler.run([self._cluster.create(pod.object())])[0]

    def _finish(self, namespace: str, name: str) -> None:
        self._kubelets.finish(str(self._cluster.named(namespace, name)["metadata"]["uid"]))

    def _gpus(self, namespace: str, name: str) -> frozenset[int]:
        return self._kubelets.truth.gpus_of(str(self._cluster.named(namespace, name)["metadata"]["uid"]))

    def _decision(self, name: str, verb: str) -> Object:
        """The newest decision of a verb about NAMESPACE/NAME."""
        for decision in self._extender.decisions(name):
            if decision["verb"] == verb:
                return decision
        raise NotAsTold(f"the server keeps no {verb} decision about {name}")

    def _scene(self, title: str, says: str, name: str) -> Scene:
        return Scene(title, self._clock.now().strftime("%H:%M"), says, name)


class _QueueWrites:
    """What the server writes on the pods of a gang, as the simulated API server has it. `seen`: (pod, its nominated
    node, whether its gate is open, whether seats are written); `nominated`: node by pod; `opened`: pods."""

    def __init__(self, cluster: SimCluster, pods: Collection[str]) -> None:
        self.seen: list[tuple[str, str, bool, bool]] = []
        self.nominated: dict[str, str] = {}
        self.opened: set[str] = set()
        self.in_order = True
        self._pods, self._maps = pods, cluster.config_maps
        cluster.watch(self._note)

    def _note(self, change: SimChange) -> None:
        name, spec, status = change.item["metadata"]["name"], change.item["spec"], change.item.get("status", {})
        node, is_open = status.get("nominatedNodeName", ""), not spec.get("schedulingGates")
        if change.kind != "Pod" or name not in self._pods or not (node or is_open):
            return
        written = bool(self._maps.texts())
        self.seen.append((name, node, is_open, written))
        if node:
            self.nominated[name] = node
            self.in_order &= written
        if is_open:
            self.opened.add(name)
            self.in_order &= self.nominated.keys() == self._pods


def expect(true: bool, claim: str) -> None:
    """Raises NotAsTold with the `claim`, when it is not true."""
    if not true:
        raise NotAsTold(claim)


def _links_within(name: str, gpus: Collection[int]) -> int:
    """How many links join the GPUs of a set with each other."""
    links = machine(NODES[name]).links
    return sum(links[a][b] for a in gpus for b in gpus if a < b)


def ids(gpus: Collection[int]) -> str:
    """As the text shows them: 0,3."""
    return ",".join(map(str, sorted(gpus)))


# -- the cheapest eviction, found by trying every one: what the demonstration checks the server against.
#
# Nothing of the server is used: the pods' own JSON, the simulated kubelets' truth, and the device plugin asked again
# and again. Costs in the order of the default settings; gangs are not modelled.


DRAWS = 40  # times that the plugin is asked for one set of free GPUs: its ties are drawn by lot


class BruteForceEviction(NamedTuple):
    """An eviction that suffices on one node."""

    cost: tuple[int, int, int, int, int]  # violations, highest priority, GPU-seconds lost, longest grace, victims
    node: str
    victims: frozenset[str]


def cheapest(cluster: SimCluster, kubelets: Kubelets, pod: Object) -> dict[str, BruteForceEviction]:
    """The cheapest sufficient eviction on each node that has one, for a pod of one container."""
    cheapest_of: dict[str, BruteForceEviction] = {}
    for node in cluster.nodes():
        name = str(node["metadata"]["name"])
        best = min(
            _evictions(cluster, kubelets, pod, node),
            default=None,
            key=lambda choice: (choice.cost, sorted(choice.victims)),
        )
        if best is not None:
            cheapest_of[name] = best
    return cheapest_of


def always_linked(machine: SimMachine, free: Sequence[int] | frozenset[int], size: int) -> bool:
    """Whether each set that the node's device plugin was seen to hand out is linked, and none made it crash."""
    plugin = machine.plugin()
    try:
        return all(machine.linked(plugin.choose(free, size, random.Random(seed))) for seed in range(DRAWS))
    except (PluginPanicked, TooFewDevices):
        return False


def linked_set(kubelets: Kubelets, node: str, free: frozenset[int], size: int) -> bool:
    """Whether a pod would get linked GPUs out of `free`: behind a relay where there is a linked set."""
    hardware = kubelets.machines[node]
    if kubelets.is_relayed(node):
        return any(hardware.linked(frozenset(gpus)) for gpus in combinations(sorted(free), size))
    return always_linked(hardware, free, size)


def _evictions(cluster: SimCluster, kubelets: Kubelets, pod: Object, node: Object) -> Iterator[BruteForceEviction]:
    name = str(node["metadata"]["name"])
    pods = cluster.pods(name)
    lower = [other for other in pods if in_tree.priority(other) < in_tree.priority(pod)]
    wanted = in_tree.asked(pod)[GPU]
    required = pod["metadata"]["annotations"].get("gpu-extender.io/links") == "required"
    for count in range(1, len(lower) + 1):
        for gone in combinations(lower, count):
            uids = frozenset(str(victim["metadata"]["uid"]) for victim in gone)
            if in_tree.refusal(pod, node, [p for p in pods if p["metadata"]["uid"] not in uids]) is not None:
                continue
            free = kubelets.truth.free(name).union(*(kubelets.truth.gpus_of(uid) for uid in uids))
            if not required or linked_set(kubelets, name, free, wanted):
                yield BruteForceEviction(_cost(cluster, kubelets, gone), name, uids)


def _cost(cluster: SimCluster, kubelets: Kubelets, gone: Sequence[Object]) -> tuple[int, int, int, int, int]:
    now = cluster.clock.wall()
    violations = 0
    for budget in cluster.all("PodDisruptionBudget"):
        members = sum(1 for victim in gone if guards(budget, victim))
        violations += max(0, members - int(budget["status"]["disruptionsAllowed"]))
    lost = 0
    for victim in gone:
        notes = victim["metadata"]["annotations"]
        since = _seconds(victim["status"]["startTime"])
        if checkpoint := notes.get("gpu-extender.io/last-checkpoint"):
            since = max(since, _seconds(checkpoint))
        restart = min(3600, int(notes.get("gpu-extender.io/restart-seconds", "0")))
        lost += len(kubelets.truth.gpus_of(str(victim["metadata"]["uid"]))) * (int(now - since) + restart)
    return (
        violations,
        max(in_tree.priority(victim) for victim in gone),
        lost,
        max(int(victim["spec"]["terminationGracePeriodSeconds"]) for victim in gone),
        len(gone),
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def most_pairs(links: Sequence[Sequence[int]], gpus: Collection[int]) -> int:
    """How many disjoint linked pairs these GPUs have at most, tried in every way."""
    if not gpus:
        return 0
    first, *others = sorted(gpus)
    partners = [gpu for gpu in others if links[first][gpu]]
    with_first = [1 + most_pairs(links, set(others) - {gpu}) for gpu in partners]
    return max([most_pairs(links, others), *with_first])
