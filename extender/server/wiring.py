"""Constructs and connects the objects of a server: of a frozen cluster, of a live one, or of any source."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from starlette.routing import Router

from extender.cluster.cluster import Cluster
from extender.controllers.controller import ClusterSource, Controller, Frozen
from extender.controllers.document import Document
from extender.controllers.events import Events
from extender.controllers.evictions import Evictions, Evictor, View
from extender.controllers.leadership import Leadership
from extender.controllers.node_events import NodeEvents
from extender.controllers.reservations import ReservationStore, released
from extender.controllers.supervisor import Supervisor
from extender.controllers.watches import Watches
from extender.kube.bindings import Bindings
from extender.kube.client import ApiServer
from extender.kube.clock import Clock
from extender.kube.configmaps import ConfigMap
from extender.kube.events import EventsApi
from extender.kube.in_cluster import own_namespace
from extender.kube.kept import requests_to
from extender.kube.leases import Lease
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects import tolerant
from extender.objects.tolerant import Invalid
from extender.offline import frozen
from extender.reservations.freshness import Freshness
from extender.server import routes
from extender.server.calls import Calls, Start
from extender.server.connections import Connections, lost
from extender.server.endpoint import DecisionLog, Endpoint
from extender.server.outage import Outage
from extender.server.settle import Settling
from extender.server.writes import ApiBinder, Binder, Keeper, Writes
from extender.settings import Settings
from extender.verbs.verbs import Verbs
from extender.web.cluster_pages import ClusterPages
from extender.web.decisions_page import DecisionsPage
from extender.web.health import Health
from extender.web.invalid_objects import MOST_NAMED, InvalidObjects
from extender.web.metrics_page import Counts, MetricsPage
from extender.web.pages import Pages
from extender.web.slices import Slices

MIX: Final = "gpu-extender-mix"  # the ConfigMap of what is learned of the pods that come
log = get_log()


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Core:
    """What decides, counts and notes, over a source of the cluster's state."""

    cluster: Cluster
    source: ClusterSource
    verbs: Verbs
    events: Events
    metrics: Metrics
    clock: Clock

    @classmethod
    def over(
        cls,
        cluster: Cluster,
        source: ClusterSource | None = None,
        *,
        metrics: Metrics | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> Core:
        """`source`: what fills the cluster; None: it does not change; `events`: None writes none."""
        source, metrics = source or Frozen(), metrics or Metrics()
        events = events or Events(metrics)
        settings = cluster.settings
        cluster.subscribe(NodeEvents(events, cluster.nodes))
        freshness = Freshness(source.dark, source.known_at, settings.watch.staleness_seconds)
        verbs = Verbs.of(settings, cluster, freshness=freshness, released=partial(released, metrics))
        return cls(cluster, source, verbs, events, metrics, clock or Clock())


@dataclass(frozen=True, slots=True)
class Outside:
    """What a server writes to. None: where it does not."""

    binder: Binder | None = None
    keeper: Keeper | None = None
    evictions: Evictions | None = None
    controllers: tuple[Controller, ...] = ()
    """What runs beside the source, in the order in which it begins."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Called when all controllers have ended."""


@dataclass(frozen=True, slots=True)
class Server:
    """The connected objects that the process, the demo and the tests use."""

    app: Router
    connections: Connections
    calls: Calls
    supervisor: Supervisor
    source: ClusterSource
    pages: Pages
    metrics_page: MetricsPage


def connect(core: Core, outside: Outside | None = None, slices: Slices | None = None) -> Server:
    """A server over its core. `slices`: the turns of its pages."""
    outside = outside or Outside()
    cluster, verbs, source, metrics, clock = core.cluster, core.verbs, core.source, core.metrics, core.clock
    settings = cluster.settings
    if settings.scheduler_weight is not None and not settings.only_the_best_class_wins:
        log.warning(
            "schedulerWeight has no effect: it is not more than 10 x schedulerScoreWeights, so other nodes can win",
            schedulerWeight=settings.scheduler_weight,
            schedulerScoreWeights=settings.scheduler_score_weights,
        )
    connections = Connections(settings, metrics)
    supervisor = Supervisor([connections, *outside.controllers, source])
    writes = Writes(verbs, metrics, clock.monotonic, core.events, binder=outside.binder, keeper=outside.keeper)
    outage = Outage(source, settings.watch.staleness_seconds, clock.monotonic)
    settling = Settling(clock.monotonic, lags=source.lags)
    calls = Calls(verbs, clock, outage, settling, writes, outside.evictions)
    start = Start(verbs, source, supervisor, writes)
    lines = DecisionLog(metrics, cluster.rows.name_at, settings.log.decisions_per_second)
    endpoint = Endpoint(calls, start, metrics, lines, settings.limits.body_bytes)
    pages = Pages(slices or Slices(), lost)
    invalid = InvalidObjects(cluster, source.faults)
    counts = Counts(cluster, verbs.assumed, verbs.reservations, source, invalid, supervisor.defects, clock.monotonic)
    views = routes.Views(
        Health(cluster, invalid, supervisor.missing, source.dark),
        MetricsPage(metrics, counts, pages),
        DecisionsPage(cluster, verbs.decisions, pages),
        ClusterPages(cluster, invalid, pages),
    )
    app = routes.create(endpoint, views, supervisor, outside.close)
    return Server(app, connections, calls, supervisor, source, pages, views.metrics)


def over_file(settings: Settings, path: Path) -> Server:
    """A server over a cluster file: nothing is written, and evictions are advice. BadCluster."""
    cluster, invalid = Cluster(settings), list[Invalid]()
    cluster.apply(frozen.read(path, cluster.gpu_names, invalid), time.monotonic())
    for warning in tolerant.warnings(invalid, MOST_NAMED):
        log.warning("an object cannot be read in full", err=warning["message"])
    log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(path))
    core = Core.over(cluster, Frozen(invalid))
    evictions = Evictions(core.verbs, core.events, core.metrics)
    return connect(core, Outside(evictions=evictions, controllers=(evictions,)))


def over_api(settings: Settings, server: ApiServer) -> Server:
    """A server over the cluster of an API server. Nothing is read before its lifespan begins."""
    cluster, metrics, clock = Cluster(settings, live=True), Metrics(), Clock()
    events = Events(metrics, EventsApi(server, socket.gethostname()) if settings.events.enabled else None)
    watches = Watches(server, cluster, staleness=settings.watch.staleness_seconds, clock=clock)
    core = Core.over(cluster, watches, metrics=metrics, events=events, clock=clock)
    namespace = own_namespace(settings.reservations.namespace)
    stored = settings.reservations.store == "configmap"
    connection = requests_to(server)
    kept = ConfigMap(connection, namespace, settings.reservations.name) if stored else None
    reservations = ReservationStore(core.verbs, metrics, kept, ready=watches.listed, clock=clock)
    identity = f"{socket.gethostname()}_{os.getpid()}_{random.SystemRandom().getrandbits(32):08x}"
    lease = Lease(server, namespace, settings.evictions.lease, identity, clock=clock)
    evictions = Evictions(
        core.verbs,
        events,
        metrics,
        Evictor(server, Leadership(lease, metrics, clock.monotonic), reservations),
        view=View(lambda: watches.listed() and not reservations.missing(), lambda: watches.dark(evicting=True)),
        clock=clock,
    )
    controllers: list[Controller] = [reservations, events, evictions]
    if stored:  # it is read before the source begins, whose pods it may have counted
        controllers.append(Document(ConfigMap(server, namespace, MIX), cluster.demand.dump, cluster.demand.load))
    binder = ApiBinder(Bindings(server, cluster.gpu_names))

    async def close() -> None:
        await connection.close()
        await server.close()

    return connect(core, Outside(binder, reservations, evictions, tuple(controllers), close=close))
