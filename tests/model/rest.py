"""What must hold once nothing changes any more, by a brute force that knows nothing of the product: it tries every node
for every pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from extender.queue.report import Waiting
from extender.queue.usage import FoundPlace
from extender.reservations.seats import Seat
from extender.sim.cluster import FINISHED
from tests.fuzz.engine import Broken
from tests.model.tenants import LATE, Gang
from tests.world import GPU, JSON

if TYPE_CHECKING:
    from tests.model.replica import Replica
    from tests.model.world import Model

GPUS = 8
Held = Counter[tuple[str, str]]
"""GPUs by queue and model."""


def gpus_of(pod: JSON) -> int:
    return int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0))


def at_rest(model: Model) -> None:
    """Broken: one of them does not hold."""
    leaders = [one for one in model.replicas if one.leads]
    if len(leaders) != 1:
        raise Broken("not one replica leads", f"{[one.identity for one in leaders]}")
    if late := [one.identity for one in model.replicas if not one.answers]:
        raise Broken("a replica does not answer", f"{late}")
    _Rest(model, leaders[0]).check()


class _Rest:
    """`free`: GPUs by node; `waits`: what the leader reports, by the name of our gang."""

    def __init__(self, model: Model, leader: Replica) -> None:
        self.model, self.leader = model, leader
        report = leader.queue.report
        assert report is not None
        self.waits: dict[str, Waiting] = {entry.gang.ref.namespace: entry for entry in report.waiting}
        self.pods = {pod["metadata"]["uid"]: pod for pod in model.api.pods() if pod["status"]["phase"] not in FINISHED}
        self.free: dict[str, int] = {}
        for node in model.api.nodes():
            if not node["spec"].get("unschedulable"):
                self.free[node["metadata"]["name"]] = GPUS
        for pod in self.pods.values():
            if (name := pod["spec"].get("nodeName")) in self.free:
                self.free[name] -= gpus_of(pod)
        for seat in leader.seats:
            sitter = self.pods.get(seat.uid)
            if seat.node in self.free and (sitter is None or not sitter["spec"].get("nodeName")):
                self.free[seat.node] -= sum(seat.amounts[3:])

    def check(self) -> None:
        moved = {seat.node for seat in self.leader.seats if self._disturbed(seat)}
        for node, free in self.free.items():
            if free < 0 and node not in moved:
                raise Broken("more is reserved than there is", f"{node}: {free} GPUs")
        for gang in self.model.tenants.gangs.values():
            if not gang.over and gang.gated:
                self._gang(gang)

    def _disturbed(self, seat: Seat) -> bool:
        """Whether its gang lost a pod, a node, or its place to a higher priority, and keeps its other seats."""
        gang = self.model.tenants.gangs.get(seat.pod.partition("/")[0])
        return gang is not None and gang.disturbed

    # -- one gang

    def _gang(self, gang: Gang) -> None:
        there = {name: self.pods[uid] for name, uid in gang.uids.items() if uid in self.pods}
        gated = [name for name, pod in there.items() if pod["spec"].get("schedulingGates")]
        released = [name for name, pod in there.items() if name not in gated and not pod["spec"].get("nodeName")]
        bound = [name for name, pod in there.items() if pod["spec"].get("nodeName")]
        if released:
            self._released(gang, released, bound)
            return
        if not gated:
            return
        if bound and len(bound) < gang.needed and not gang.disturbed and not gang.done:
            raise Broken("a gang has started in half", f"{gang.name}: {bound} run, {gated} wait")
        entry = self.waits.get(gang.name)
        if entry is None:
            raise Broken("a gang that waits is not reported", f"{gang.name}: {gated}")
        missing = [name for name in gang.left if name not in there]
        if len(there) + len([name for name in missing if name in gang.late]) < gang.needed:
            return  # its owner does not create them
        if gang.done and (gang.kind in LATE or (not bound and gang.kind in ("label", "kueue"))):
            return  # nothing states that the others have ended, and no pod of it runs
        lacking = max(1, gang.needed - len(bound))
        late = [name for name in missing if name in gang.late]
        names = [*gated, *late] if gang.kind in LATE else [*gated][:lacking]
        self._has_no_place(gang, entry, names, bound)

    def _released(self, gang: Gang, released: list[str], bound: list[str]) -> None:
        """Pods that are released and not bound."""
        if not gang.disturbed:
            raise Broken("a gang has started in half", f"{gang.name}: {released} are released, {bound} run")
        uids = {gang.uids[name] for name in released}
        ways, held = self._places(gang, released, self._with_seats(uids)), self.model.held(uids)
        if not gang.links and any(self._within(gang, gpus, held, True) for gpus in ways):
            raise Broken("released pods have a place and do not get it", f"{gang.name}: {released}, {self.free}")

    def _with_seats(self, uids: set[str]) -> dict[str, int]:
        """What is free, with what the seats of these pods reserve."""
        free = dict(self.free)
        for seat in self.leader.seats:
            if seat.uid in uids and seat.node in free:
                free[seat.node] += sum(seat.amounts[3:])
        return free

    def _has_no_place(self, gang: Gang, entry: Waiting, names: list[str], bound: list[str]) -> None:
        repairs = self.leader.queue._repairs
        if entry.gang.ref.text in repairs.paused() or entry.gang.ref.namespace in repairs.paused_namespaces():
            return
        held = self.model.held()
        head = self.leader.queue.planner.report.head
        free = dict(self.free)
        behind = head is not None and head.gang.ref != entry.gang.ref
        borrower = "" if head is None else head.gang.queue
        if head is not None and behind:
            assert isinstance(head.seats, FoundPlace)
            for pod, node in zip(head.seats.pods, head.seats.placed.nodes, strict=True):
                if node in free:
                    free[node] -= pod.gpu_count
            if head.gang.queue == gang.queue and gang.queue in self.model.queues:
                return  # their common quota is kept for the head
            other = self.model.tenants.gangs.get(head.gang.ref.namespace)
            if other is not None and other.links:
                return  # which GPUs of a node are free counts for it
        if gang.links:
            return
        for gpus in self._places(gang, names, free):
            if entry.code == "delays" and any(self._is_lent(borrower, model) for model in gpus):
                continue
            if self._within(gang, gpus, held, False):
                where = f"behind {head.gang.ref}" if behind and head is not None else "first"
                raise Broken(
                    "a gang waits that has a place",
                    f"{gang.name} ({gang.kind}, {entry.code}: {entry.text}; {where}): {names} of {gang.sizes} take "
                    f"{gpus} of {free}; {bound} run; {dict(held)} are held; rules {self.model.queues}",
                    entry.code,
                )

    # -- by trying everything

    def _places(self, gang: Gang, names: list[str], free: dict[str, int]) -> Iterator[Counter[str]]:
        """GPUs by model of each way to put the pods on nodes."""
        nodes = [name for name in sorted(free) if not gang.models or self.model.models[name] in gang.models]
        taken = {
            pod["spec"].get("nodeName")
            for name, uid in gang.uids.items()
            if gang.apart and name not in names and (pod := self.pods.get(uid)) is not None
        }
        sizes = sorted((gang.sizes[name] for name in names), reverse=True)
        seen: set[tuple[Any, ...]] = set()
        for used in self._fill(sizes, [name for name in nodes if name not in taken], dict(free), gang.apart):
            gpus = Counter[str]()
            for name, count in used.items():
                gpus[self.model.models[name]] += count
            key = tuple(sorted(gpus.items()))
            if key not in seen:
                seen.add(key)
                yield gpus

    def _fill(self, sizes: list[int], nodes: list[str], free: dict[str, int], apart: bool) -> Iterator[Counter[str]]:
        if not sizes:
            yield Counter()
            return
        tried: set[tuple[str, int]] = set()
        for name in nodes:
            like = self.model.models[name], free[name]
            if free[name] < sizes[0] or like in tried:
                continue
            tried.add(like)  # nodes that are alike have the same ways
            left = [other for other in nodes if other != name] if apart else nodes
            for used in self._fill(sizes[1:], left, {**free, name: free[name] - sizes[0]}, apart):
                yield used + Counter({name: sizes[0]})

    def _within(self, gang: Gang, gpus: Counter[str], held: Held, again: bool) -> bool:
        """Whether its queue may hold these as well. `again`: of pods that are released already: what others wait for
        does not count."""
        rules = self.model.queues.get(gang.queue, {})
        for model, count in gpus.items():
            after = held[gang.queue, model] + count
            limit = rules.get("limitGpus", {}).get(model)
            if limit is not None and after > limit:
                return False
            guaranteed = rules.get("guaranteedGpus", {}).get(model, 0)
            if after <= guaranteed or again:
                continue
            if not rules.get("borrow", True) or self._kept(gang.queue, model, held):
                return False
        return True

    def _is_lent(self, queue: str, model: str) -> bool:
        """Whether a gang of another queue with a guarantee of the model waits: what is kept for it once pods of its
        queue end leaves less to a borrowing head."""
        lends = {other for other, rules in self.model.queues.items() if rules.get("guaranteedGpus", {}).get(model)}
        return any(entry.gang.queue in lends - {queue} for entry in self.waits.values())

    def _kept(self, queue: str, model: str, held: Held) -> bool:
        """Whether another queue waits for GPUs of its guarantee."""
        for other, rules in self.model.queues.items():
            unmet = rules.get("guaranteedGpus", {}).get(model, 0) > held[other, model]
            if other != queue and unmet and any(entry.gang.queue == other for entry in self.waits.values()):
                return True
        return False
