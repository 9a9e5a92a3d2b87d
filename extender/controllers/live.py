"""A live cluster: one reflector a kind feeds the tables on the event loop; bindings go to the API server."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from extender.cluster.cluster import Cluster
from extender.controllers.document import Document
from extender.controllers.tenants import Tenant, begun, keep
from extender.kube.bindings import Bindings
from extender.kube.client import ApiError, ApiServer, Unreachable
from extender.kube.reflector import SOURCES, Pace, Reflector, Source, State
from extender.log import get_log
from extender.objects.event import Event
from extender.objects.records import PodRecord, RecordError
from extender.objects.tolerant import LONGEST_NAME, Faults, Invalid
from extender.verbs.bind import Written
from extender.verbs.wire import Binding

VITAL = ("Pod", "Node")
JUDGED = (*VITAL, "PodDisruptionBudget")  # what evictions are decided by; what else counts, as gangs, may be older
RETURN_SECONDS = 3.0  # from the server's answer to its last word on what happened meanwhile
log = get_log()


def default_kubeconfig() -> str | None:
    """None in a pod (its service account is used), else where kubectl looks."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


class Live:
    """Source and Binder over one API server. Connects when it runs, so that a server that is away is waited for."""

    def __init__(
        self,
        cluster: Cluster,
        kubeconfig: str | None,
        *,
        staleness: float = 10.0,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`staleness`: seconds without the API server's word from which what we know is too old."""
        self._staleness = staleness
        self._cluster = cluster
        self._kubeconfig = kubeconfig
        self._random = random.Random(seed)
        self._clock = clock
        self._reflectors: list[Reflector] = []
        self._states: dict[str, State] = {}  # of what must be watched at any time
        self._ready_at: float | None = None
        self._bindings: Bindings | None = None
        self._server: ApiServer | None = None
        self.tenants: list[Tenant] = []
        self.documents: list[Document] = []

    # -- Source ---------------------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        if not self._reflectors:
            return ["the API server's lists"]
        tenants = [text for tenant in self.tenants if (text := tenant.missing())]
        return self._unlisted() + tenants

    def listed(self) -> bool:
        """Whether every list is in."""
        return bool(self._reflectors) and not self._unlisted()

    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing()

    def _unlisted(self) -> list[str]:
        return [text for reflector in self._reflectors if (text := reflector.missing())]

    def ready_at(self) -> float | None:
        return self._ready_at

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since the loss of the watch of pods or nodes (`evicting`: or budgets), or since the server's last
        word where that is too long ago; 0 while all are watched."""
        now, longest = self._clock(), 0.0
        for kind in JUDGED if evicting else VITAL:
            state = self._states.get(kind)
            if state is None:
                continue
            if state.lost_at is not None:
                longest = max(longest, now - state.lost_at)
            elif state.last_event is not None and now - state.last_event >= self._staleness:
                longest = max(longest, now - state.last_event)
        return longest

    def hurry(self) -> None:
        """Look at once whether the API server is back."""
        for reflector in self._reflectors:
            if reflector.state.lost_at is not None:
                reflector.hurry()

    def returning(self) -> bool:
        """Whether the API server has just answered about all that was lost, and only what happened meanwhile is to
        come."""
        since = self._clock() - RETURN_SECONDS
        lost = [state for state in self._states.values() if state.lost_at is not None]
        return bool(lost) and all(state.reached_at is not None and state.reached_at >= since for state in lost)

    def known_at(self) -> float | None:
        state = self._states.get("Pod")
        if state is None:
            return None
        return state.lost_at if state.lost_at is not None else state.last_event

    def ages(self) -> dict[str, float]:
        now = self._clock()
        return {
            reflector.source.name: now - reflector.state.last_event
            for reflector in self._reflectors
            if reflector.state.last_event is not None
        }

    def restarts(self) -> dict[str, int]:
        """Watches that were opened again, other than those that ended as agreed."""
        counted = ((one.source.name, one.state.counters) for one in self._reflectors)
        return {name: max(0, counters.watches - counters.turns - 1) for name, counters in counted}

    def faults(self) -> Faults:
        watched = [(reflector.source.name, reflector.state) for reflector in self._reflectors]
        return Faults(
            [
                Invalid(kind, name.strip("/")[:LONGEST_NAME] or "(without a name)", why)
                for kind, state in watched
                for name, why in sorted(state.rejected.items())
            ],
            {(kind, reason): count for kind, state in watched for reason, count in state.counters.reasons.items()},
            {kind: state.counters.defects for kind, state in watched},
        )

    async def run(self) -> None:
        async with await ApiServer.connect(self._kubeconfig or default_kubeconfig()) as server:
            self._server = server
            self._bindings = Bindings(server, self._cluster.gpu_names)
            for document in self.documents:  # before the pods come that it may have counted
                await begun(document, server)
            for reflector in self._reflectors:  # of a connection before this one
                reflector.reconnect(server)
            self._reflectors = self._reflectors or [self._reflector(server, source) for source in SOURCES]
            self._states = {one.source.kind: one.state for one in self._reflectors if one.source.prompt}
            async with asyncio.TaskGroup() as group:
                for reflector in self._reflectors:
                    group.create_task(reflector.run())
                for tenant in (*self.tenants, *self.documents):
                    group.create_task(keep(tenant, server))

    def _reflector(self, server: ApiServer, source: Source) -> Reflector:
        return Reflector(
            server,
            source,
            self,
            self._cluster.gpu_names,
            random_source=self._random,
            pace=Pace.prompt(self._staleness) if source.prompt else Pace(),
            clock=self._clock,
            returned=self._renew,
        )

    def _renew(self) -> None:
        """The API server is heard again: what may be silent for minutes gets a new connection, too."""
        for reflector in self._reflectors:
            if not reflector.source.prompt:
                reflector.renew()

    # -- the reflectors' sink -------------------------------------------------------------------------------------

    def apply(self, batch: Sequence[Event]) -> None:
        self._cluster.apply(batch, self._clock(), time.time())

    def synced(self, kind: str) -> None:
        log.info("listed", kind=kind)
        if self.listed():
            self._ready_at = self._ready_at if self._ready_at is not None else self._clock()
            # What was listed stays: a full collection over it would stop every request for tens of milliseconds.
            gc.collect()
            gc.freeze()

    # -- Binder ---------------------------------------------------------------------------------------------------

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        if self._bindings is None:
            return None
        try:
            return await self._bindings.get_pod(namespace, name)
        except (ApiError, Unreachable, RecordError) as error:
            log.warning("the pod to bind can not be read", pod=f"{namespace}/{name}", err=str(error))
            return None

    async def bind(self, binding: Binding, annotations: dict[str, str]) -> Written:
        """Write the Binding. A pod that is bound to the node already counts as bound."""
        if self._bindings is None:
            return Written("failed", "not connected to the API server")
        result = await self._bindings.bind(binding.namespace, binding.name, binding.uid, binding.node, annotations)
        if result.outcome == "bound":
            return Written("bound")
        if result.outcome in ("conflict", "unknown"):  # it may be our own binding, answered before or lost on the way
            pod = await self.pod(binding.namespace, binding.name)
            if pod is not None and pod.uid == binding.uid and pod.node == binding.node:
                return Written("bound")
        return Written("unknown" if result.outcome == "unknown" else "failed", f"{result.outcome}: {result.message}")
