"""Events on pods and nodes: few, bounded, and never in a request's way.

`tell` only notes what happened. What repeats within six minutes becomes the `series` of the Event that is there,
written at most every half minute; new Events are limited in rate, and what is beyond it is counted and left out.
Without the right to write Events (403) that is logged once, and nothing more is tried.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any, Final

from extender.act.controller import Controller
from extender.ask.text import terms
from extender.cluster.listener import Listener
from extender.cluster.pod_failures import RejectionChange
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import EventsApi, NewEvent, Regarding, shortened
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.objects.records import NodeRecord, PodRecord
from extender.preemption.certificate import how_many, next_best
from extender.reservations.reservations import Reservation

PER_SECOND: Final = 5.0
BURST: Final = 50.0
SERIES_ENDS: Final = 360.0  # seconds without a repetition, as client-go has it
SERIES_EVERY: Final = 30.0  # seconds between two writes of one series
MOST_SERIES: Final = 2_000
IN_NAMESPACE: Final = ("being terminated", "exceeded quota")  # Forbidden in one namespace, and not for all
TENANT_EVERY: Final = 60.0  # seconds between two Events of a namespace that its own pods' failures cause
TENANTS_PER_MINUTE: Final = 10  # such Events of all namespaces: the others' share of the rate is not for them
OF_LOOK: Final = 20
OF_NAMESPACE: Final = 5
MOST_NAMED: Final = 5  # pods in a note, and the characters of their names: what they cost stands behind them
MOST_OF_NAMES: Final = 400
CONFLICT: Final = 409
log = get_log()
_Key = tuple[str, str, str, str, bool]


@dataclass(slots=True)
class Series:
    """One Event and how often it happened."""

    event: NewEvent
    last: float  # seconds since 1970
    count: int = 1
    written: int = 0  # the count that the API server has; 0: it has not been created yet
    written_at: float = 0.0


class EventRecorder(Controller):
    """Writes Events to the API server. Without one (a frozen cluster, or settings that turn Events off) it does
    nothing."""

    name = "events"

    def __init__(
        self,
        metrics: Metrics,
        api: EventsApi | None = None,
        *,
        wall: Callable[[], float] = time.time,
        chance: random.Random | None = None,
        pause: float = 0.2,
    ) -> None:
        """`wall`: seconds since 1970; `pause`: seconds between two rounds of writing."""
        self._metrics, self._api, self._wall, self._pause = metrics, api, wall, pause
        self._chance = chance or random.Random()
        self._series: dict[_Key, Series] = {}
        self._allowance = Allowance(BURST, PER_SECOND)
        self._of_tenants: dict[str, float] = {}  # namespace -> when such an Event was noted

    # -- what others call -----------------------------------------------------------------------------------------

    def tell(
        self,
        regarding: Regarding,
        reason: str,
        action: str,
        note: str,
        *,
        related: Regarding | None = None,
        warning: bool = False,
    ) -> None:
        """Note that something happened; it is written soon. `reason`, `action`: constants in CamelCase."""
        if self._api is None:
            return
        now = self._wall()
        key = (regarding.uid, related.uid if related is not None else "", reason, action, warning)
        before = self._series.get(key)
        if before is not None and now - before.last <= SERIES_ENDS:
            before.count += 1
            before.last = now
            return
        name = f"{regarding.name[:200]}.{self._chance.getrandbits(64):016x}"
        self._new(key, NewEvent(name, regarding, related, reason, action, note, warning, now))

    def once(self, regarding: Regarding, subject: str, reason: str, note: str) -> bool:
        """A warning that is written once for an object and a subject, by whichever instance is the first: the name of
        the Event follows from both. Whether it is noted: else the limits leave it out for now."""
        if self._api is None:
            return False
        digest = blake2s(f"{regarding.uid}/{subject}".encode(), digest_size=8).hexdigest()
        name = f"{regarding.name[:200]}.{digest}"
        event = NewEvent(name, regarding, None, reason, "Reading", note, True, self._wall())
        return self._new((regarding.uid, digest, reason, "Reading", True), event)

    def _new(self, key: _Key, event: NewEvent) -> bool:
        """Whether there is room for a new Event."""
        if len(self._series) >= MOST_SERIES or self._allowance.take(event.at) is None:
            self._metrics.events.labels("left_out").inc()
            return False
        self._series[key] = Series(event._replace(note=shortened(event.note)), event.at)
        return True

    def node(self, name: str, uid: str, reason: str, note: str, *, warning: bool = True) -> None:
        """Something about a node as a whole."""
        self.tell(Regarding("Node", "", name, uid), reason, "Watching", note, warning=warning)

    def tenant(self, namespace: str, pod: str, uid: str, note: str) -> None:
        """A node is rejected for the namespace's pods alone: the Event is on one of them. A tenant causes these at
        will, so there are few: one a minute of a namespace, ten of all; the rest is left out."""
        if self._api is None:
            return
        now = self._wall()
        self._of_tenants = {name: at for name, at in self._of_tenants.items() if 0.0 <= now - at < TENANT_EVERY}
        if namespace in self._of_tenants or len(self._of_tenants) >= TENANTS_PER_MINUTE:
            self._metrics.events.labels("left_out").inc()
            return
        self._of_tenants[namespace] = now
        regarding = Regarding("Pod", namespace, pod, uid)
        self.tell(regarding, "NodeRejectedForNamespace", "Watching", note, warning=True)

    def planned(self, plan: Reservation, detail: Mapping[str, Any]) -> None:
        """A preemption was answered, or an eviction of ours begins. `detail`: of its decision record."""
        preemptor = self._preemptor(plan)
        victims: Sequence[Any] = [victim for victim in detail.get("victims", ()) if isinstance(victim, Mapping)]
        price = price_text(detail)
        evictions = f"{how_many(len(victims))} to leave node {plan.node} for this one: {named(victims)}"
        plan_id, action = plan.id, "Evicting" if plan.own else "Preempting"
        leaves = f"has to leave node {plan.node} for {plan.pod} (priority {plan.priority:,})"
        for victim in victims:
            self.tell(
                Regarding("Pod", victim["namespace"], victim["name"], victim["uid"]),
                "ChosenAsVictim",
                action,
                f"plan {plan_id}: {leaves}; {price}",
                related=preemptor,
            )
        self.tell(
            preemptor,
            "EvictionPlanned" if plan.own else "PreemptionPlanned",
            action,
            f"plan {plan_id}: {evictions}; {price}",
        )

    def about(self, plan: Reservation, reason: str, note: str, *, warning: bool = True) -> None:
        """Something about a plan: the Event is on its preemptor."""
        action = "Evicting" if plan.own else "Preempting"
        self.tell(self._preemptor(plan), reason, action, f"plan {plan.id}: {note}", warning=warning)

    @staticmethod
    def _preemptor(plan: Reservation) -> Regarding:
        namespace, _, name = plan.pod.partition("/")
        return Regarding("Pod", namespace, name, plan.uid)

    # -- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what was noted, round after round."""
        while self._api is not None:
            await asyncio.sleep(self._pause)
            await self.write()

    async def write(self) -> None:
        """One round: what is new, and what repeats and is due. What has ended is forgotten."""
        api, now = self._api, self._wall()
        if api is None:
            return
        for key, series in list(self._series.items()):
            due = series.written < series.count and (not series.written or now - series.written_at >= SERIES_EVERY)
            ended = now - series.last > SERIES_ENDS
            if (due or (ended and series.written < series.count)) and not await self._write(api, series, now):
                del self._series[key]  # it is not tried again: an Event is not worth it
            elif ended:
                self._series.pop(key, None)
            if self._api is None:  # not allowed: see _write
                self._series.clear()
                return

    async def _write(self, api: EventsApi, series: Series, now: float) -> bool:
        count, event = series.count, series.event
        try:
            if series.written:
                await api.repeat(event.name, event.regarding.place, count, series.last)
            else:
                await api.create(event)
                count = 1
        except ApiError as error:
            if error.status == CONFLICT and not series.written:  # another instance wrote it, or this one before
                series.written, series.written_at = count, now
                return True
            if error.status in (401, 403) and not any(words in error.message for words in IN_NAMESPACE):
                self._api = None
                self._metrics.events.labels("forbidden").inc()
                self._metrics.degraded.note("events", f"none are written, it is not allowed: {error}")
                log.warning("no Events are written: it is not allowed (manifests/deployment.yaml)", err=str(error))
            else:
                self._metrics.events.labels("failed").inc()
            return False
        except NoAnswer:
            self._metrics.events.labels("failed").inc()
            return False
        self._metrics.events.labels("ok").inc()
        series.written, series.written_at = count, now
        return True


def price_text(detail: Mapping[str, Any]) -> str:
    """What a decision costs, by its terms in order, and what else was possible."""
    stated, certificate = detail.get("cost") or (), detail.get("certificate")
    cost = (terms(stated) or "nothing") if stated else "unknown"
    if not certificate:
        return f"cost: {cost}"
    return f"cost: {cost}; {next_best(certificate)}"


def named(victims: Sequence[Mapping[str, Any]]) -> str:
    """The victims by name, as many as there is room for."""
    names = [f"{victim['namespace']}/{victim['name']}" for victim in victims[:MOST_NAMED]]
    while len(names) > 1 and sum(map(len, names)) > MOST_OF_NAMES:
        names.pop()
    more = f" and {len(victims) - len(names)} more" if len(victims) > len(names) else ""
    return ", ".join(names) + more


def of_pod(pod: PodRecord) -> Regarding:
    """What an Event on the pod names."""
    return Regarding("Pod", pod.namespace, pod.name, pod.uid)


class FewEvents:
    """Warnings on pods, of one look: OF_LOOK in all and OF_NAMESPACE of one namespace, however many a tenant causes.
    The others follow with the next looks, also after one that the recorder has left out."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._full = False
        self._written: Counter[str] = Counter()  # by namespace

    def once(self, pod: PodRecord, subject: str, reason: str, note: str) -> bool:
        """As `EventRecorder.once`."""
        if self._full or self._written[pod.namespace] >= OF_NAMESPACE:
            return False
        noted = self._events.once(of_pod(pod), subject, reason, note)
        self._written[pod.namespace] += noted
        self._full = not noted or self._written.total() >= OF_LOOK
        return noted


# -- nodes where GPU pods fail


class NodeEvents(Listener):
    """Listens to the cluster's changes of a node's health. `nodes`: by name."""

    def __init__(self, events: EventRecorder, nodes: Mapping[str, NodeRecord]) -> None:
        self._events, self._nodes = events, nodes

    def node_rejected(self, node: str, text: str) -> None:
        """A node is rejected for all pods, with the reason `text`."""
        self._about(node, "GPUPodsFail", text, warning=True)

    def node_accepted(self, node: str, text: str) -> None:
        """A node is no longer rejected."""
        self._about(node, "GPUPodsAllowed", text, warning=False)

    def node_rejected_for(self, change: RejectionChange) -> None:
        """Write an Event on the pod that failed last: the tenant sees its own Events, and not those of nodes."""
        failed = change.latest
        if failed is not None:
            text = f"node {change.node}: {change.text}"
            self._events.tenant(failed.party.namespace, failed.name, failed.uid, text)

    def _about(self, name: str, reason: str, text: str, *, warning: bool) -> None:
        node = self._nodes.get(name)
        if node is not None:
            self._events.node(name, node.uid, reason, text, warning=warning)
