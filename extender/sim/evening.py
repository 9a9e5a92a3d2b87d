"""The evening of the day: a node whose GPUs come by ResourceClaims, with neither device plugin nor relay; a preemption
that loses seconds; and a pod that waits, with its ways out. It stays as it is, so that people can ask about it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import combinations
from typing import Any, Final

from rich.text import Text

from extender.objects.save_request import SAVE_REQUESTED, SAVED
from extender.sim import claims
from extender.sim.claims import Driver, DynamicResources, allocated
from extender.sim.cluster import SimChange, SimCluster
from extender.sim.day import ANY_ARCH, GATE, NODES, RACK, Day, DayServer, Scene, expect, fleet, ids, node_map
from extender.sim.kubelet import Kubelets
from extender.sim.machines import SimNode, SimPod, machine
from extender.sim.scheduler import Extender, Scheduler

NODE, MACHINE = "dra", "dgx1-v100"
FEW, MANY = 1, 4  # GPUs of an evaluation, and of the training
POD, NAMESPACE = "nightly", "train"
WANTED = 4  # GPUs of the pod that waits
VICTIM, NEEDS = "pretrain", "2m"  # what the training says that it needs to save
PREEMPTOR, PRIORITY_CLASS = "chat", "production"
GPUS = 4
SAVES_SECONDS = 4  # what it really needs
MOST_WAIT_SECONDS = 600  # of pods of that class: preemption.mostWaitSeconds


class Evening(Day):
    """The day with its evening."""

    def evening(self, learned: Callable[[], int]) -> Iterator[Scene]:
        """As `scenes`. `learned`: how many runs the server has learned from, which does that once a second."""
        yield self._claimed()
        yield self._asked()
        yield self._dated(learned)
        yield self._waits()

    def _claimed(self) -> Scene:
        """20:00: two evaluations take what comes first, and a training gets GPUs that are linked."""
        self._at(20)
        cluster, kubelets = self._cluster, self._kubelets
        cluster.add("DeviceClass", claims.device_class())
        cluster.add_node(SimNode(NODE, machine(MACHINE), device_plugin=False).object())
        for resource_slice in claims.resource_slices(NODE, machine(MACHINE)):
            cluster.add("ResourceSlice", resource_slice)
        kubelets.add(NODE, machine(MACHINE), Driver(cluster, NODE))
        asked = sum(self._extender.calls.values())
        for name in ("eval-1", "eval-2"):
            cluster.add("ResourceClaim", claims.claim(name, "research", FEW))
            outcome = self._submit(SimPod(name, "research", 0, claim=name))
            expect((outcome.result, outcome.node) == ("bound", NODE), f"{name} is bound to {NODE}: {outcome}")
        first_fit = frozenset(
            int(name.removeprefix("gpu-")) for name in DynamicResources(cluster).first_fit(NODE, MANY)
        )
        expect(not machine(MACHINE).linked(first_fit), f"GPUs {ids(first_fit)}, which come first, are not linked")

        cluster.add("ResourceClaim", claims.claim("rlhf", "train", MANY))
        pod = SimPod("rlhf", "train", 0, gates=[GATE], claim="rlhf")
        opened: list[bool] = []  # whether the claim was allocated each time that the pod was seen with an open gate

        def note(change: SimChange) -> None:
            item = change.item
            if change.kind == "Pod" and item["metadata"]["name"] == "rlhf" and not item["spec"].get("schedulingGates"):
                opened.append(bool(allocated(cluster.named("train", "rlhf", "ResourceClaim"))))

        cluster.watch(note)
        uid = cluster.create(pod.object())
        self._server.until(lambda: bool(opened), "release the pod")
        expect(all(opened), "the claim is allocated before the gate opens")
        devices = sorted(result["device"] for result in allocated(cluster.named("train", "rlhf", "ResourceClaim")))
        [outcome] = self._scheduler.run([uid])
        expect((outcome.result, outcome.node) == ("bound", NODE), f"rlhf is bound to {NODE}: {outcome}")
        held = kubelets.truth.gpus_of(uid)
        expect({f"gpu-{gpu}" for gpu in held} == set(devices), f"{ids(held)} is what was allocated")
        expect(len(held) == MANY and machine(MACHINE).linked(held), f"the GPUs {ids(held)} are linked")
        expect(not (refusals := kubelets.truth.refusals()), f"every kubelet admits what is bound: {refusals}")
        expect(sum(self._extender.calls.values()) == asked, "pods with claims alone do not reach the extender")
        self._server.settle()
        scene = self._explained(
            "a claim with linked GPUs",
            "A node joins whose GPUs come by ResourceClaims (DRA). Two evaluations get GPUs 0 and 1 from "
            "kube-scheduler, which takes the first free devices: a claim for four would get "
            f"{ids(first_fit)}, which are not linked. The training waits behind our gate: the server allocates its "
            "claim, then opens the gate.",
            "train/rlhf",
        )
        scene.shows = [*node_map(kubelets, NODE, uid), Text(), *fleet(cluster, kubelets)]
        scene.answers.append(f"ResourceClaim train/rlhf: allocated {', '.join(devices)}")
        scene.answers.append(
            f"the node's driver prepared GPUs {ids(held)}: the same, with no relay and no device plugin"
        )
        return scene

    def _asked(self) -> Scene:
        """20:30: a service takes the GPUs of a training, which is asked to save its work first."""
        self._at(20, 30)
        cluster, kubelets = self._cluster, self._kubelets
        victim = cluster.named("train", VICTIM)
        uid, node = str(victim["metadata"]["uid"]), str(victim["spec"]["nodeName"])
        cluster.set_annotation(uid, "gpu-extender.io/saves-on-request", NEEDS)
        began = self._clock.now()
        ran = (began - datetime.fromisoformat(victim["status"]["startTime"])).total_seconds()

        service = SimPod(PREEMPTOR, "serving", GPUS, links="required", priority=1_000, tolerations=ANY_ARCH).object()
        service["spec"]["priorityClassName"] = PRIORITY_CLASS
        preemptor = cluster.create(service)
        [outcome] = self._scheduler.run([preemptor])
        expect((outcome.result, outcome.victims) == ("waits", ()), f"kube-scheduler evicts no pod: {outcome}")

        def request() -> dict[str, Any]:
            text = cluster.named("train", VICTIM)["metadata"]["annotations"].get(SAVE_REQUESTED, "{}")
            return dict(json.loads(text))

        self._server.until(lambda: bool(request()), f"ask train/{VICTIM} to save its work")
        expect(request()["by"] == f"serving/{PREEMPTOR}", f"it is asked for that service: {request()}")
        expect(len(kubelets.truth.gpus_of(uid)) == GPUS, "the training runs on meanwhile")
        held = kubelets.truth.gpus_of(uid)

        self._clock.advance(SAVES_SECONDS)
        cluster.set_annotation(uid, SAVED, request()["id"])
        saved = self._clock.now()

        def evicted() -> bool:
            return "deletionTimestamp" in cluster.named("train", VICTIM)["metadata"]

        self._server.until(evicted, f"evict train/{VICTIM}")
        kubelets.terminate(uid)  # it has nothing left to do: it ends at once on SIGTERM
        [outcome] = self._scheduler.run([preemptor])
        expect((outcome.result, outcome.node) == ("bound", node), f"{PREEMPTOR} is bound to {node}: {outcome}")
        expect(kubelets.truth.gpus_of(preemptor) == held, f"it holds the GPUs {ids(held)}, which were freed for it")
        self._server.settle()

        lost, instead = GPUS * (saved - began).total_seconds(), GPUS * ran / 3600
        scene = self._explained(
            "asked to save first",
            "A service needs four linked GPUs. The cheapest victim is a training that can save within two minutes when "
            "it is asked. So kube-scheduler is answered no victims, the GPUs are reserved, and the training is asked. "
            "It saves, answers, and is evicted.",
            f"serving/{PREEMPTOR}",
            began,
        )
        scene.shows = [*node_map(kubelets, node, preemptor), Text(), *fleet(cluster, kubelets)]
        scene.answers.append(
            f"asked {began:%H:%M:%S}, saved {saved:%H:%M:%S}, {PREEMPTOR} started {self._clock.now():%H:%M:%S}: "
            f"{lost:.0f} GPU-seconds lost instead of {instead:.0f} GPU-hours"
        )
        return scene

    def _dated(self, learned: Callable[[], int]) -> Scene:
        """21:30: frames wait for a small node, and a window in which the last one starts comes true."""
        self._at(21, 30)
        clock = self._clock
        began = clock.now()
        frames = _Frames(self._cluster, self._kubelets, self._extender, self._server)

        def wave(seconds: int) -> None:
            """Those that run end, and the next ones start."""
            clock.advance(seconds)
            known = learned() + FRAMES
            frames.end()
            frames.start(self._scheduler)
            self._server.until(lambda: learned() >= known, "learn how long frames run")

        frames.create(FRAMES)
        frames.start(self._scheduler)
        frames.create(2 * FRAMES)
        for seconds in WAVES:
            frames.stated()
            wave(seconds)
            frames.create(FRAMES)
        start, at = frames.stated(), clock.now()
        [shown] = [window for window in start["windows"] if window["percent"] == PERCENT]
        for seconds in WAVES[:2]:
            wave(seconds)
        after = (clock.now() - at).total_seconds()
        held = not frames.waiting and shown["from_seconds"] <= after <= shown["until_seconds"]
        expect(held, f"{frames.last} starts after {after:.0f} s, in its window: {shown}")
        shows = fleet(self._cluster, self._kubelets)
        frames.end()
        self._server.settle()
        scene = self._explained(
            "a start that was stated before",
            f"Frames are rendered on a small node, {FRAMES} at a time, and each states that it runs up to {DECLARED}. "
            "The server learns how long they run from those that end, and how wrong its windows were from those that "
            f"start. At {at:%H:%M} it states in which window the last frame starts. It starts at "
            f"{clock.now():%H:%M}, as stated.",
            f"studio/{frames.last}",
            began,
        )
        scene.shows = shows
        scene.answers.append(f"{at:%H:%M}, {frames.last}: {start['text']}")
        scene.answers.append(
            f"it started {after / 60:.0f} minutes later; {len(WAVES) * FRAMES} frames had started before"
        )
        return scene

    def _waits(self) -> Scene:
        """22:00: a training finds enough GPUs, but none that are linked."""
        self._at(22)
        outcome = self._submit(SimPod(POD, NAMESPACE, WANTED, links="required"))
        expect(outcome.result == "waits", f"{POD} waits: {outcome}")
        free = {name: self._kubelets.truth.free(name) for name in NODES}
        [node] = [name for name in NODES if len(free[name]) >= WANTED]
        hardware = machine(NODES[node])
        expect(not hardware.linked(free[node]), f"the GPUs {ids(free[node])} of {node} are not linked")

        told = self._extender.explained(f"{NAMESPACE}/{POD}")
        ways = {way["kind"]: way["spec"] for way in told["ways_out"]}
        expect(told["verdict"] == "waits", f"the server states that it waits: {told['sentence']}")
        expect("relax-links" in ways, f"{node} has enough GPUs for links: preferred: {told['sentence']}")
        sizes = range(1, WANTED)
        most = max(size for size in sizes if any(map(hardware.linked, combinations(sorted(free[node]), size))))
        asks = ways.get("smaller", {}).get("is")
        expect(asks == most, f"{most} linked GPUs are free at most: {told['sentence']}")
        scene = self._explained(
            "a pod that waits",
            f"Four GPUs are free on {node}, and no ring joins them: a training that requires links waits. The server "
            "states why, and each change that would let it start. It waits on: ask about it.",
            f"{NAMESPACE}/{POD}",
        )
        scene.shows = [*node_map(self._kubelets, node, ""), Text(), *fleet(self._cluster, self._kubelets)]
        scene.answers.append(told["sentence"])
        for number, way in enumerate(told["ways_out"], start=1):
            scene.answers.append(f"way out {number}: {way['change']}")
        return scene

    def _explained(self, title: str, says: str, name: str, began: datetime | None = None) -> Scene:
        """A scene whose pod is looked up by `explain`. `began`: None: now."""
        return Scene(title, f"{began or self._clock.now():%H:%M}", says, name, view="explain")


# -- when a pod that waits starts, by the runs that have ended


FARM, FRAMES = "farm", 8  # a node of its own, and how many frames run on it at once
WAVES = (110, 130, 100, 120, 140)  # seconds that frames run, those that start together
DECLARED = "30m"
READ_SECONDS = 10  # of the day, until windows are read anew
PERCENT = 80


class _Frames:
    """Pods of one GPU on a node of their own. `running`, `waiting`: their uids, the first ones first."""

    def __init__(self, cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer) -> None:
        self._cluster, self._kubelets, self._extender, self._server = cluster, kubelets, extender, server
        taint = {"key": FARM, "value": "", "effect": "NoSchedule"}
        cluster.add_node(SimNode(FARM, machine("dgx1-v100"), labels={"pool": FARM}, taints=[taint]).object())
        kubelets.add(FARM, machine("dgx1-v100"))
        self.running, self.waiting = list[str](), list[str]()
        self.last = ""  # the name of the latest one
        self._count = 0

    def create(self, number: int) -> None:
        """So many wait behind the gate."""
        for _ in range(number):
            self._count += 1
            self.last = f"frame-{self._count:02}"
            pod = SimPod(
                self.last,
                "studio",
                1,
                annotations={"gpu-extender.io/duration": DECLARED},
                node_selector={"pool": FARM},
                tolerations=({"key": FARM, "operator": "Exists"},),
                gates=[GATE],
            )
            self.waiting.append(self._cluster.create(pod.object()))

    def start(self, scheduler: Scheduler) -> None:
        """The first FRAMES run once the server has released them."""
        self.running, self.waiting = self.waiting[:FRAMES], self.waiting[FRAMES:]
        self._server.until(lambda: not any(map(self._gated, self.running)), "release the frames")
        outcomes = scheduler.run(self.running)
        expect(all((outcome.result, outcome.node) == ("bound", FARM) for outcome in outcomes), f"they run: {outcomes}")

    def _gated(self, uid: str) -> bool:
        pod = self._cluster.pod(uid)
        return pod is not None and bool(pod["spec"].get("schedulingGates"))

    def end(self) -> None:
        """Those that run have ended."""
        for uid in self.running:
            self._kubelets.finish(uid)

    def stated(self) -> dict[str, Any]:
        """When the last one starts, read after all that waits was seen."""
        self._server.until(lambda: bool(self._entry()), "look at the frames")
        self._cluster.clock.advance(READ_SECONDS)
        self._server.until(lambda: bool(self._entry()["start"]), "state when frames start")
        return dict(self._entry()["start"])

    def _entry(self) -> dict[str, Any]:
        own = f"studio/{self.last}"
        return next((dict(entry) for entry in self._extender.queue()["waiting"] if entry["gang"] == own), {})


# -- pods that come and end after the day, on a rack of their own, so that the page of the demo lives


BATCH_NODES: Final = ("batch-1", "batch-2")
BATCH_MACHINE: Final = "dgx-h100"
OWN: Final = {"key": "team", "value": "batch", "effect": "NoSchedule"}
"""Keeps the pods of the day away: what the day has shown stays as it is."""
TOLERATED: Final = ({"key": "team", "operator": "Exists"},)
SIZES: Final = (1, 1, 2, 2, 4, 8)
MOST_WAITING: Final = 2
BATCH: Final = "batch"


class Traffic:
    """The same pods in the same order for a seed. Not for use from several threads."""

    def __init__(
        self, cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer, seed: int
    ) -> None:
        """Adds the nodes."""
        self._cluster, self._kubelets = cluster, kubelets
        self._scheduler = Scheduler(cluster, extender, seed=seed, settle=server.settle, bound=kubelets.sync)
        self._random = random.Random(seed)
        self._number = 0
        self._pods: list[str] = []  # uids, the oldest first
        for name in BATCH_NODES:
            cluster.add_node(SimNode(name, machine(BATCH_MACHINE), labels={RACK: "rack-4"}, taints=[OWN]).object())
            kubelets.add(name, machine(BATCH_MACHINE))
            kubelets.relay(name)

    def step(self) -> None:
        """One pod comes, or one ends; then each pod that waits is tried."""
        running, waiting = list(self._of(placed=True)), list(self._of(placed=False))
        free = sum(len(self._kubelets.truth.free(name)) for name in BATCH_NODES) / (
            len(BATCH_NODES) * machine(BATCH_MACHINE).gpus
        )
        if running and (len(waiting) >= MOST_WAITING or self._random.random() > free + 0.2):
            self._end(self._random.choice(running))
        else:
            waiting.append(self._come())
        self._scheduler.run(waiting)

    def _come(self) -> str:
        self._number += 1
        size = self._random.choice(SIZES)
        pod = SimPod(
            f"job-{self._number}", BATCH, size, links="required" if size > 1 else "", preempts=False,
            tolerations=TOLERATED, node_selector={RACK: "rack-4"},
        )  # fmt: skip
        self._pods.append(self._cluster.create(pod.object()))
        return self._pods[-1]

    def _end(self, uid: str) -> None:
        self._kubelets.finish(uid)
        self._cluster.remove(uid)
        self._pods.remove(uid)

    def _of(self, *, placed: bool) -> Iterator[str]:
        """Its pods that have a node, or that have none."""
        for uid in self._pods:
            pod = self._cluster.pod(uid)
            if pod is not None and bool(pod["spec"].get("nodeName")) == placed:
                yield uid
