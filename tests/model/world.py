"""The whole as a model: replicas of the server, kube-scheduler, kubelets with device plugins, and tenants, over one API
server, in virtual time. `play` carries out one step and checks what must hold after it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from extender.cluster.statements import PLAN
from extender.objects.queueing import GATE
from extender.queue.gang import WaitingGang
from extender.reservations.seats import Seat
from extender.settings import Settings
from extender.sim.cluster import FINISHED, SimClock, SimCluster
from extender.sim.kubelet import Kubelets
from extender.sim.machines import SimMachine
from extender.sim.scheduler import CallFailed, Extender, Scheduler
from tests.fuzz.engine import Broken, Step
from tests.model import tenants
from tests.model.api import Api, pod_path
from tests.model.loop import VirtualLoop
from tests.model.replica import Replica
from tests.model.rest import at_rest
from tests.model.tenants import HOSTNAME, PRODUCT, Gang, Tenants
from tests.sim.truth import HarnessTruth
from tests.world import GPU, JSON, machine, pairs

START = datetime(2027, 1, 1, tzinfo=UTC)
GPUS = 8
LINKS = tuple(tuple(row) for row in pairs(GPUS))
PLUGIN = SimMachine(links=LINKS).plugin()
TICK = 0.1  # seconds between two looks of kube-scheduler, the kubelets and the owners
BACKOFF = (0.2, 1.0, 2.0, 4.0, 8.0)  # seconds until kube-scheduler tries a pod again
QUIET, STUCK = 9.0, 65.0  # seconds without a write of what is watched; where a gang that lost a seat is tried again
MOST_REST = 900.0  # seconds until nothing is written any more
MOST_GANGS = 9
SEEN_SECONDS = 4.0  # after an event until every report has seen it
CHANGE_SECONDS = 5.0  # for which a queue may hold more than a limit that was lowered


def gpus_of(pod: JSON) -> int:
    return int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0))


def is_open(pod: JSON) -> bool:
    return GATE not in [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


class _Verbs(Extender):
    """kube-scheduler's side of the verbs: one replica is asked until it does not answer. kube-scheduler binds."""

    def __init__(self, model: Model) -> None:
        super().__init__("", 0)
        self._model = model
        self.asked = ""  # identity

    def _exchange(self, method: str, path: str, body: bytes | None) -> Any:
        there = [one for one in self._model.replicas if one.answers]
        if not there:
            raise CallFailed("no replica answers")
        one = next((one for one in there if one.identity == self.asked), there[0])
        self.asked = one.identity
        reply = one.world.call(path, body or b"", method)
        if reply.status != 200:
            raise CallFailed(f"{path}: code {reply.status}")
        return reply.json

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """kube-scheduler's own binding."""
        self._model.bind(uid, node)


@dataclass
class _Tried:
    """When kube-scheduler tries a pod again, and how often it has."""

    due: float = 0.0
    times: int = 0


class Model:
    """One episode. `queues`: the rules of the queues, as the settings have them."""

    def __init__(self) -> None:
        self.clock = SimClock(START)
        self.loop = VirtualLoop(self._moved)
        asyncio.set_event_loop(self.loop)
        self.api = Api(self.clock)
        self.chance = random.Random(1)
        self.replicas: list[Replica] = []
        self.queues: dict[str, Any] = {}
        self.evictions = False
        self.tenants = Tenants(self.api, self.clock.wall)
        cluster = cast(SimCluster, self.api)
        self.kubelets = Kubelets(cluster, seed=1)
        self.kubelets.truth = self.truth = HarnessTruth(1, self.clock.monotonic)
        self.verbs = _Verbs(self)
        self.scheduler = Scheduler(cluster, self.verbs, seed=1)
        self.broken: list[Broken] = []
        self.models: dict[str, str] = {}  # of the nodes that exist or existed
        self.ends: dict[str, float] = {}  # uid -> when the pod has done its work
        self.lost: dict[str, float] = {}  # node -> when it failed: its pods are deleted later
        self.stated: dict[str, tuple[float, int, WaitingGang]] = {}  # head -> its stated start, and after which events
        self.events = 0  # after which a start may come later than was stated
        self.changed_at = -1e9  # when the rules of the queues changed
        self._event_at = -1e9
        self._held: Counter[tuple[str, str]] = Counter()
        self._tried: dict[str, _Tried] = {}
        self._number = 0
        self._begun = False
        self._ticking: asyncio.Task[None] | None = None
        self.api.judged = self._judged

    # -- begin and end

    def _moved(self, now: float) -> None:
        self.clock.advance(now + 1000.0 - self.clock.monotonic())
        for one in self.replicas:
            one.tell_time(now)

    def _begin(self, step: Step) -> None:
        self._begun = True
        self.chance = random.Random(step.get("chance", 1))
        self.queues = step.get("queues", {})
        self.evictions = bool(step.get("evictions"))
        for number, model in enumerate(step.get("nodes", ["A100", "A100"])):
            self._add_node(f"n{number}", model)
        for _ in range(max(1, int(step.get("replicas", 1)))):
            self._start_replica()
        self._ticking = self.loop.create_task(self._tick())

    def settings(self) -> Settings:
        return Settings.model_validate(
            {"queue": {"enabled": True, "queues": self.queues}, "evictions": {"enabled": self.evictions}}
        )

    def close(self) -> None:
        """Nothing of it is left."""
        for one in self.replicas:
            one.server.dead = True
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        with suppress(BaseException):
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
        asyncio.set_event_loop(None)

    def end(self) -> None:
        """What must hold once nothing happens any more."""
        if self._begun:
            self.play({"do": "rest"})

    # -- steps

    def play(self, step: Step) -> None:
        """One step, then time passes."""
        self.loop.run_until_complete(self._play(step))

    async def _play(self, step: Step) -> None:
        if not self._begun:
            self._begin(step if step.get("do") == "begin" else {})
        act = getattr(self, f"_do_{step.get('do')}", None)
        if act is not None:
            await act(step)
        await self.wait(float(step.get("seconds", 0.2)))

    async def wait(self, seconds: float) -> None:
        """Time passes."""
        until = self.loop.time() + seconds
        while (left := until - self.loop.time()) > 0:
            await asyncio.sleep(min(left, 1.0))
            self._check()

    def _check(self) -> None:
        if self._ticking is not None and self._ticking.done():
            self._ticking.result()
        for one in self.replicas:
            if one.task.done():
                one.task.result()
        self._always()
        if self.broken:
            raise self.broken[0]

    def _pick(self, step: Step, there: list[Any]) -> Any:
        """One of these, by the step's number from 0 to 1."""
        return there[min(int(float(step.get("pick", 0.0)) * len(there)), len(there) - 1)] if there else None

    def _gangs(self) -> list[Gang]:
        return [gang for gang in self.tenants.gangs.values() if not gang.over]

    async def _do_gang(self, step: Step) -> None:
        if len(self.tenants.gangs) < MOST_GANGS:
            self._number += 1
            gang = tenants.made(step, f"g{self._number}")
            self.tenants.submit(gang)
            self._may_pass_head(gang)

    async def _do_finish(self, step: Step) -> None:
        """All running pods of a gang end, or one of them."""
        gang: Gang | None = self._pick(step, self._gangs())
        if gang is None:
            return
        names = [name for name in gang.uids if self.tenants._runs(gang, name)]
        if step.get("one") and gang.kind not in tenants.LATE:
            names = names[:1]
        elif len(names) < gang.needed:
            return
        for name in names:
            self._finish(gang.uids[name])

    def _finish(self, uid: str) -> None:
        self.ends.pop(uid, None)
        self.kubelets.finish(uid)

    async def _do_lose(self, step: Step) -> None:
        """A pod of a gang is deleted."""
        gang: Gang | None = self._pick(step, self._gangs())
        if gang is not None and gang.uids:
            gang.disturbed = True
            self.events += 1
            name = self._pick({"pick": step.get("which", 0.0)}, sorted(gang.uids))
            self.api.delete(gang.uids[name])

    async def _do_remove(self, step: Step) -> None:
        gang: Gang | None = self._pick(step, self._gangs())
        if gang is not None:
            self.tenants.remove(gang)

    async def _do_cordon(self, step: Step) -> None:
        """A node takes no more pods, or does again."""
        node: JSON | None = self._pick(step, self.api.nodes())
        if node is not None:
            self._disturb()
            spec = {} if node["spec"].get("unschedulable") else {"unschedulable": True}
            self.api.put(f"/api/v1/nodes/{node['metadata']['name']}", {**node, "spec": spec})

    async def _do_fail(self, step: Step) -> None:
        """A node does not exist any more; its pods are deleted after a while."""
        nodes = self.api.nodes()
        node: JSON | None = self._pick(step, nodes)
        if node is not None and len(nodes) > 1:
            self._disturb()
            name = node["metadata"]["name"]
            self.api.drop(f"/api/v1/nodes/{name}")
            self.truth.remove_node(name)
            self.kubelets._devices.pop(name), self.kubelets._machines.pop(name)
            self.lost[name] = self.loop.time() + 0.5

    async def _do_join(self, step: Step) -> None:
        """A node comes, or comes back."""
        there = {node["metadata"]["name"] for node in self.api.nodes()}
        gone = sorted(self.models.keys() - there - self.lost.keys())
        if gone:
            self._add_node(gone[0], self.models[gone[0]])
        elif len(there) < 6:
            self._add_node(f"n{len(self.models)}", step.get("model", "A100"))

    async def _do_rules(self, step: Step) -> None:
        """The settings file changes; each replica loads it within a second."""
        self._disturb()
        self.queues = step.get("queues", {})
        self.changed_at = self.loop.time()
        for one in self.replicas:
            self.loop.call_later(self.chance.uniform(0.0, 1.0), self._take, one)

    def _take(self, one: Replica) -> None:
        one.take(self.settings())

    async def _do_kill(self, step: Step) -> None:
        """A replica is killed, and another one starts at once."""
        one: Replica | None = self._pick(step, self.replicas)
        if one is not None:
            self.events += 1
            self.replicas.remove(one)
            one.kill()
            self._start_replica()

    async def _do_stop(self, step: Step) -> None:
        """A replica is stopped, and another one starts at once."""
        one: Replica | None = self._pick(step, self.replicas)
        if one is not None:
            self.events += 1
            self.replicas.remove(one)
            await one.stop()
            self._start_replica()

    async def _do_lag(self, step: Step) -> None:
        """The watch of a replica is late from now on, by so many seconds."""
        one: Replica | None = self._pick(step, self.replicas)
        if one is not None:
            one.lag = min(1.0, float(step.get("late", 0.3)))

    async def _do_break(self, step: Step) -> None:
        """The next requests of a replica fail."""
        one: Replica | None = self._pick(step, self.replicas)
        if one is not None:
            self.events += 1
            one.server.losing = min(20, int(step.get("requests", 3)))

    async def _do_rest(self, step: Step) -> None:
        """Nothing happens but what must, until nothing changes any more."""
        began, last, writes = self.loop.time(), self.loop.time(), self.api.writes
        least = 75.0 if any(gang.done and gang.left for gang in self._gangs()) else 0.0
        for one in self.replicas:
            one.lag = one.server.losing = 0
        while self.loop.time() - last < (STUCK if self._stuck() else QUIET) or self.loop.time() - began < least:
            await self.wait(1.0)
            if self.api.writes != writes or self.paused():
                last, writes = self.loop.time(), self.api.writes
            if self.loop.time() - began > MOST_REST:
                raise Broken(
                    "it does not come to rest", f"{MOST_REST} s after the last event objects are written still"
                )
        at_rest(self)

    def paused(self) -> bool:
        """Whether a gang backs off after a failure."""
        return any(one.leads and one.queue._repairs.paused() for one in self.replicas)

    def _stuck(self) -> bool:
        """Whether a gang that lost a seat is placed again only after a while."""
        return any(one.leads and one.queue._repairs._states for one in self.replicas)

    def _may_pass_head(self, gang: Gang) -> None:
        """A gang comes or starts: it may do so before the head, which then starts later than was stated. So may one of
        another queue with a guarantee: GPUs are kept for it that the head borrows."""
        kept = bool(self.queues.get(gang.queue, {}).get("guaranteedGpus"))
        for _, _, head in self.stated.values():
            if not _comes_after(gang, head) or (kept and gang.gated and gang.queue != head.queue):
                self.events += 1

    def _disturb(self) -> None:
        """What happens now may cost any gang its place."""
        self.events += 1
        for gang in self._gangs():
            gang.disturbed = True

    # -- what the cluster does

    def _add_node(self, name: str, model: str) -> None:
        self.models[name] = model
        labels = {PRODUCT: model, HOSTNAME: name}
        self.api.put(f"/api/v1/nodes/{name}", machine(name, GPUS, links=LINKS, labels=labels))
        self.kubelets.add(name, SimMachine(links=LINKS))
        self.kubelets._devices[name].plugin = PLUGIN

    def _start_replica(self) -> None:
        self._number += 1
        self.replicas.append(Replica(f"r{self._number}", self.api, self.settings(), self.chance, self.loop.time()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._collect()
            self.tenants.sync()
            self._schedule()
            self.kubelets.sync()
            for pod in self.api.pods():
                meta = pod["metadata"]
                if pod["status"]["phase"] == "Running" and meta["uid"] not in self.ends:
                    text = meta.get("annotations", {}).get(tenants.DURATION)
                    if text:
                        self.ends[meta["uid"]] = self.loop.time() + float(text[:-1])
            for uid, at in [*self.ends.items()]:
                if at <= self.loop.time():
                    self._finish(uid)

    def _collect(self) -> None:
        """Pods of nodes that do not exist are deleted."""
        for node, at in [*self.lost.items()]:
            if at <= self.loop.time():
                del self.lost[node]
                for pod in self.api.pods():
                    if pod["spec"].get("nodeName") == node:
                        self.api.remove(pod["metadata"]["uid"])

    def _schedule(self) -> None:
        """One cycle of kube-scheduler for each pod that is due."""
        now = self.loop.time()
        waiting = [pod for pod in self.api.pods() if not pod["spec"].get("nodeName") and is_open(pod)]
        there = {pod["metadata"]["uid"]: pod for pod in waiting}
        self._tried = {uid: self._tried.get(uid, _Tried()) for uid in there}
        due = [uid for uid, tried in self._tried.items() if tried.due <= now]
        for uid in sorted(due, key=lambda uid: -int(there[uid]["spec"].get("priority", 0))):
            if self.api.pod(uid) is None:  # evicted by an earlier one
                continue
            outcome = self.scheduler.cycle(uid)
            if outcome.result != "bound":
                tried = self._tried[uid]
                tried.due = now + BACKOFF[min(tried.times, len(BACKOFF) - 1)]
                tried.times += 1
                if outcome.victims:
                    self._disturb()

    def bind(self, uid: str, node: str) -> None:
        """kube-scheduler binds a pod. One that did not wait in the queue may have taken the place of others."""
        pod = self.api.pod(uid)
        gang = None if pod is None else self.tenants.gangs.get(pod["metadata"]["namespace"])
        if gang is not None and not gang.gated:
            self._disturb()
        self.api.bind(uid, node, {})

    # -- what must always hold

    def _fail(self, invariant: str, detail: str) -> None:
        self.broken.append(Broken(invariant, f"at {self.loop.time():.2f} s: {detail}"))

    def _judged(self, before: JSON, after: JSON) -> None:
        """A pod is written."""
        name = pod_path(after).removeprefix("/api/v1/namespaces/")
        if not is_open(before) and is_open(after):
            self._opened(name, after)
        plan = after["metadata"].get("annotations", {}).get(PLAN, "")
        if (
            plan
            and plan != before["metadata"].get("annotations", {}).get(PLAN, "")
            and not after["spec"].get("nodeName")
        ):
            self._planned(name, after)

    def _opened(self, name: str, pod: JSON) -> None:
        """A gate opens: every replica that answers knows the seats of the gang."""
        uid, node = pod["metadata"]["uid"], pod["status"].get("nominatedNodeName", "")
        self._may_pass_head(self.tenants.gangs[pod["metadata"]["namespace"]])
        leader = next((one for one in self.replicas if one.leads and one.seats.of(uid) is not None), None)
        own = None if leader is None else leader.seats.of(uid)
        if own is None:
            self._fail("a gate opens without a seat", name)
            return
        assert leader is not None
        wanted = {seat.uid: seat.node for seat in leader.seats.gang(own.gang)}
        for one in self.replicas:
            known = {seat.uid: seat.node for seat in one.seats.gang(own.gang)}
            if one.answers and any(known.get(uid) != node for uid, node in wanted.items() if self._waits(uid)):
                self._fail(
                    "a gate opens before every replica that answers knows the seats",
                    f"{name} on {node}: {one.identity} knows {known}, {leader.identity} has {wanted}",
                )

    def _waits(self, uid: str) -> bool:
        pod = self.api.pod(uid)
        return pod is None or not pod["spec"].get("nodeName")

    def _planned(self, name: str, pod: JSON) -> None:
        """A pod states GPUs: no other pod that waits states one of them."""
        node, own = self._states_on(pod), _stated(pod)
        for other in self.api.pods():
            same = self._states_on(other) == node and not other["spec"].get("nodeName")
            if same and other["metadata"]["uid"] != pod["metadata"]["uid"] and _stated(other) & own:
                self._fail("two pods state one GPU", f"{name} and {pod_path(other)} on {node}: {_stated(other) & own}")

    def _states_on(self, pod: JSON) -> str:
        """The node whose GPUs a pod states: of its seat. kube-scheduler may have nominated it to another one, on which
        pods are evicted for it: it lands there only once the queue has given it a seat there."""
        seat = next((seat for seat in self.seats() if seat.uid == pod["metadata"]["uid"]), None)
        return str(pod["status"].get("nominatedNodeName", "") if seat is None else seat.node)

    def _always(self) -> None:
        if twice := self.truth.double_allocations:
            self._fail("a GPU is given twice", f"{twice} pods: {self.truth.refusals()[-1]}")
        for one in self.replicas:
            if one.leads:
                self._seats(one)
        held = self.held()
        for (queue, model), count in held.items():
            limit = self.queues.get(queue, {}).get("limitGpus", {}).get(model)
            late = self.loop.time() - self.changed_at < CHANGE_SECONDS
            if limit is not None and limit < count > self._held[queue, model] and not late:
                self._fail("a queue holds more than its limit", f"{queue} holds {count} {model}, its limit is {limit}")
        self._held = held
        self._starts()

    def _seats(self, one: Replica) -> None:
        """No GPU is reserved twice, and no seat is against the rules of its pod."""
        masks: Counter[str] = Counter()
        on: dict[str, set[str]] = {}
        for seat in one.seats:
            pod = self.api.pod(seat.uid)
            if pod is None or pod["spec"].get("nodeName"):
                continue
            if masks[seat.node] & seat.gpus:
                self._fail("a GPU is reserved twice", f"{seat.pod} on {seat.node}: {seat.gpus:b}")
            masks[seat.node] |= seat.gpus
            self._own_rules(seat, pod, on)

    def _own_rules(self, seat: Seat, pod: JSON, on: dict[str, set[str]]) -> None:
        selector, labels = pod["spec"].get("nodeSelector", {}), {PRODUCT: self.models.get(seat.node)}
        if any(labels.get(key) != text for key, text in selector.items()):
            self._fail("a seat is against the selector of its pod", f"{seat.pod} on {seat.node}")
        if "affinity" in pod["spec"]:
            there = on.setdefault(seat.node, set())
            if seat.gang in there:
                self._fail(
                    "two seats are on a node against the anti-affinity of their pods", f"{seat.pod}, {seat.node}"
                )
            there.add(seat.gang)

    def held(self, moving: Collection[str] = ()) -> Counter[tuple[str, str]]:
        """GPUs by queue and model: of bound pods, and of seats but those of `moving`, by uid. Pods of a node that does
        not exist hold none."""
        gpus: Counter[tuple[str, str]] = Counter()
        ending: Counter[tuple[str, str]] = Counter()  # GPUs of terminating pods, by namespace and node
        nodes = {node["metadata"]["name"] for node in self.api.nodes()}
        for pod in self.api.pods():
            node, meta = pod["spec"].get("nodeName"), pod["metadata"]
            if node in nodes and pod["status"]["phase"] not in FINISHED:
                gpus[meta["labels"][tenants.QUEUE], self.models[node]] += gpus_of(pod)
                if "deletionTimestamp" in meta:
                    ending[meta["namespace"], node] += gpus_of(pod)
        for seat in self.seats():
            namespace = seat.pod.partition("/")[0]
            gang = self.tenants.gangs.get(namespace)
            if gang is not None and self._waits(seat.uid) and seat.uid not in moving:
                # The seat of a successor is that of the pod that ends.
                same = min(sum(seat.amounts[3:]), ending[namespace, seat.node]) if seat.absent else 0
                ending[namespace, seat.node] -= same
                gpus[gang.queue, self.models[seat.node]] += sum(seat.amounts[3:]) - same
        return gpus

    def seats(self) -> list[Seat]:
        """As the holder of the Lease has them."""
        return [seat for one in self.replicas if one.leads for seat in one.seats]

    def _starts(self) -> None:
        """The head starts no later than was stated, unless an event since then explains it."""
        now = self.clock.wall()
        waiting: dict[str, tuple[float, WaitingGang]] = {}
        for one in self.replicas:
            report = one.queue.report if one.leads else None
            for entry in report.waiting if report is not None else ():
                if entry.code == "head" and entry.start is not None:
                    waiting[entry.gang.ref.text] = entry.start, entry.gang
        self.stated = {name: known for name, known in self.stated.items() if name in waiting}
        for name, (start, gang) in waiting.items():
            known = self.stated.get(name)
            # What it started of itself is no longer part of what it waits for.
            new = known is None or known[1] != self.events or _uids(known[2]) != _uids(gang)
            if new:
                self._event_at = self.loop.time()
            if known is None or new or self.loop.time() - self._event_at < SEEN_SECONDS:
                self.stated[name] = start, self.events, gang
            elif now > known[0] + 12.0:
                self._fail("the head starts later than was stated", f"{name}: {now - known[0]:.0f} s later")


def _comes_after(gang: Gang, head: WaitingGang) -> bool:
    """Whether it comes after the head in any order: by its priority, or as the younger one of the same queue."""
    same = gang.queue == head.queue and gang.priority == head.priority and gang.gated
    return gang.priority < head.priority or same


def _uids(gang: WaitingGang) -> set[str]:
    return {pod.uid for pod in gang.pods}


def _stated(pod: JSON) -> set[str]:
    return set(filter(None, pod["metadata"].get("annotations", {}).get(PLAN, "").split(",")))
