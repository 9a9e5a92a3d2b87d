"""Constructs and connects the objects of a server: of a frozen cluster, of a live one, or of any source."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from starlette.routing import Router

from extender.cluster.cluster import Cluster
from extender.cluster.demand.mix import is_newer
from extender.controllers.controller import ClusterSource, Controller, Frozen
from extender.controllers.demand_mix import DemandMixStore
from extender.controllers.events import Events
from extender.controllers.evictions import Evictions, Evictor, View
from extender.controllers.leadership import EVICTIONS, QUEUE, Leadership
from extender.controllers.node_events import NodeEvents
from extender.controllers.parked import ParkedPods
from extender.controllers.queue.acting import Acting
from extender.controllers.queue.autoscaling.growth import Growth
from extender.controllers.queue.autoscaling.provisioning import ProvisioningRequests
from extender.controllers.queue.controller import LEASE_SECONDS, QueueController
from extender.controllers.queue.devices.allocator import ClaimWrites, DeviceAllocator
from extender.controllers.queue.devices.fences import Fences, FenceWrites
from extender.controllers.queue.release import AT_ONCE, Release
from extender.controllers.queue.seats.entry import SeatEntries
from extender.controllers.queue.seats.replicas import SIGNS, Replicas
from extender.controllers.queue.seats.store import SHARDS, SeatStore
from extender.controllers.queue.unled import UnledPods
from extender.controllers.queue.writes import Evicts, Leads, PodWrites, Reads
from extender.controllers.reservations import ReservationStore, released
from extender.controllers.settings.file import SettingsFile
from extender.controllers.settings.gate_removal import GateRemoval
from extender.controllers.supervisor import Supervisor
from extender.controllers.surveys import gauges
from extender.controllers.surveys.partial_gangs import PartialGangEvents
from extender.controllers.surveys.survey import Survey
from extender.controllers.watches import Watches
from extender.errors import BadInput
from extender.kube.client import ApiServer
from extender.kube.clock import Clock
from extender.kube.configmaps import ConfigMap, Requests, TextMap
from extender.kube.events import EventsApi
from extender.kube.in_cluster import own_namespace
from extender.kube.kept import requests_to
from extender.kube.leases import Lease
from extender.kube.pods.bindings import Bindings
from extender.kube.pods.evictions import PodEvictions
from extender.kube.pods.patches import PodPatches
from extender.kube.resource_claims import DeviceTaintRuleWrites, ResourceClaimWrites
from extender.kube.reviews import Reviews
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects import tolerant
from extender.objects.tolerant import Invalid
from extender.offline import frozen
from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlanner
from extender.queue.leader import QueueLeader
from extender.queue.placing.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import Report
from extender.recording.recorder import RecordedCluster, Recorder, header_of
from extender.recording.writer import Writer
from extender.reservations.freshness import Freshness
from extender.server import routes
from extender.server.access.certificates import Certificates
from extender.server.access.gate import Gate
from extender.server.access.reviewer import Asks, Reviewer
from extender.server.calls import Calls, Hears, Readiness, Start, VerbCalls
from extender.server.connections import Connections, lost
from extender.server.endpoint import DecisionLog, Endpoint
from extender.server.outage import Outage
from extender.server.scheduler_probe import SchedulerProbe
from extender.server.settle import Settling
from extender.server.shadow_calls import AlwaysReady, Shadow, ShadowCalls
from extender.server.writes import ApiBinder, Binder, Keeper, Writes
from extender.settings import Server as ServerSettings
from extender.settings import Settings, Tls
from extender.shadow.watch import ShadowWatch
from extender.verbs.verbs import Verbs
from extender.verdict.explain import Explainer, Times
from extender.verdict.partial_gangs import PartialGang
from extender.web.api.openapi import OpenApiPage
from extender.web.cluster_pages import ClusterPages
from extender.web.decisions_page import DecisionsPage
from extender.web.explain_page import ExplainPage
from extender.web.health import Health
from extender.web.invalid_objects import MOST_NAMED, InvalidObjects
from extender.web.map_page import MapPage
from extender.web.metrics_page import Counts, MetricsPage
from extender.web.operations.shadow import ShadowPage
from extender.web.operations.zpages import ZPages
from extender.web.page.live import Live
from extender.web.page.site import Content, Site
from extender.web.pages import Pages
from extender.web.queue_page import QueuePage
from extender.web.slices import Slices
from extender.web.whatif.page import WhatIfPage

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
        recorder = cluster.recorder if isinstance(cluster, RecordedCluster) else None
        verbs = Verbs.of(settings, cluster, freshness=freshness, released=partial(released, metrics), journal=recorder)
        if recorder is not None:
            recorder.attach(cluster, verbs)
        return cls(cluster, source, verbs, events, metrics, clock or Clock())


@dataclass(frozen=True, slots=True)
class Outside:
    """What a server writes to. None: where it does not."""

    binder: Binder | None = None
    keeper: Keeper | None = None
    evictions: Evictions | None = None
    parked: ParkedPods | None = None
    queue: QueueController | None = None
    leader: QueueLeader | None = None
    """Which instance releases pods from the queue."""
    controllers: tuple[Controller, ...] = ()
    """What runs beside the source, in the order in which it begins."""
    reviews: Asks | None = None
    """Whose a token is, and what that user may do."""
    forbidden: Callable[[], str] = str
    """Which writes were not allowed, in words; "" for none."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Called when all controllers have ended."""


@dataclass(frozen=True, slots=True)
class Server:
    """The connected objects that the process, the demo and the tests use."""

    app: Router
    apart: Mapping[routes.Apart, Router]
    """What has a listener of its own."""
    certificates: Mapping[Tls, Certificates]
    connections: Connections
    metrics_connections: Connections
    """Of the listener that the metrics have of their own: its clients cannot use up the connections of the verbs."""
    scheduler_probe: SchedulerProbe
    calls: VerbCalls
    supervisor: Supervisor
    source: ClusterSource
    pages: Pages
    metrics_page: MetricsPage


def connect(core: Core, outside: Outside | None = None, slices: Slices | None = None) -> Server:
    """A server over its core. `slices`: the turns of its pages."""
    outside = outside or Outside()
    cluster, verbs, source, metrics, clock = core.cluster, core.verbs, core.source, core.metrics, core.clock
    settings = cluster.settings
    _state(settings, metrics)
    metrics.degraded.ask("rights", lambda: "; ".join(filter(None, (source.forbidden(), outside.forbidden()))))
    reached_by = (connections, _, _) = _reached_by(settings, metrics)
    certificates = _certificates(settings.server, metrics)

    def report() -> Report | None:
        return outside.queue.report if outside.queue else None

    times = Times(clock.monotonic, clock.wall)
    explainer = Explainer(verbs, times, report, leader=outside.leader)
    surveys = _surveys(explainer, core, lambda: not source.missing())
    supervisor = Supervisor([*reached_by, *certificates.values(), *outside.controllers, *surveys, source])
    writes = Writes(verbs, metrics, clock.monotonic, core.events, binder=outside.binder, keeper=outside.keeper)
    start: Readiness = Start(verbs, source, supervisor, writes)
    shadow: ShadowWatch | None = None
    if settings.shadow:
        shadow = ShadowWatch(verbs, metrics, clock.wall, lambda: not source.missing())
        cluster.observer = shadow
        calls: VerbCalls = ShadowCalls(verbs, clock, writes, Shadow(shadow, start, metrics))
        start = AlwaysReady()
    else:
        outage = Outage(source, settings.watch.staleness_seconds, clock.monotonic)
        settling = Settling(clock.monotonic, lags=source.lags)
        calls = Calls(verbs, clock, outage, settling, writes, Hears(outside.evictions, outside.parked))
    lines = DecisionLog(metrics, cluster.rows.name_at, settings.log.decisions_per_second)
    endpoint = Endpoint(calls, start, metrics, lines, settings.limits.body_bytes)
    connections.verbs.update((routes.path_of(verb).encode(), app) for verb, app in endpoint.verbs.items())
    slices = slices or Slices()
    pages = Pages(slices, lost)
    invalid = InvalidObjects(cluster, source.faults)
    counts = Counts(cluster, verbs.assumed, verbs.reservations, source, invalid, supervisor.defects, clock.monotonic)
    live = Live(lambda: cluster.generation, connections.stopping)
    views = routes.Views(
        Health(cluster, invalid, supervisor.missing, source.dark, metrics.degraded),
        MetricsPage(metrics, counts, pages),
        DecisionsPage(cluster, verbs.decisions, pages),
        ClusterPages(cluster, invalid, pages),
        QueuePage(report, verbs.claims.seats, cluster, pages, outside.leader),
        ExplainPage(explainer, cluster, verbs.decisions, pages),
        MapPage(cluster, pages),
        OpenApiPage(),
        WhatIfPage(verbs, times, slices, supervisor.missing, lost),
        Site(Content(verbs, explainer, times, report, outside.leader), live, pages),
        ShadowPage(shadow.report if shadow is not None else None, pages),
        ZPages(lambda: cluster.settings, clock.wall(), metrics.degraded),
    )

    async def close() -> None:
        await outside.close()
        if isinstance(cluster, RecordedCluster):
            cluster.recorder.close()

    places = _places(settings.server, outside.reviews, metrics)
    app, apart = routes.create(endpoint, views, supervisor, places, close)
    return Server(app, apart, certificates, *reached_by, calls, supervisor, source, pages, views.metrics)


def _reached_by(settings: Settings, metrics: Metrics) -> tuple[Connections, Connections, SchedulerProbe]:
    """The connections of verbs and pages, those of the metrics, and the probe with its own."""
    return Connections(settings, metrics), Connections(settings, metrics), SchedulerProbe(settings, metrics)


def _places(at: ServerSettings, reviews: Asks | None, metrics: Metrics) -> routes.Places:
    """Where the listeners are, and who may ask them."""
    reviewer = _reviewer(at, reviews, metrics)
    gates = [Gate(reviewer if one.authorize else None) for one in (at.metrics, at.debug)]
    hosts = tuple(filter(None, (at.host, at.debug.host, *at.hosts)))  # "": all addresses
    return routes.Places(hosts, at.apart, *gates)


def _reviewer(server: ServerSettings, asks: Asks | None, metrics: Metrics) -> Reviewer | None:
    """BadInput: tokens are asked for, and there is no API server that could review them."""
    if not (server.metrics.authorize or server.debug.authorize):
        return None
    if asks is None:
        raise BadInput("tokens are reviewed by an API server, and there is none", path="authorize")
    return Reviewer(asks, metrics)


def _surveys(explainer: Explainer, core: Core, known: Callable[[], bool]) -> list[Controller]:
    """What is counted over the whole cluster. `known`: whether it has been read."""
    metrics, reports = core.metrics, PartialGangEvents(core.events)
    wanted, waiting = metrics.nodes_wanted, metrics.waiting_pods

    def partial_gangs(found: list[PartialGang]) -> None:
        gauges.partial_gangs(metrics.partial_gangs, metrics.partial_gang_gpus, found)
        reports.report(found)

    return [
        Survey(
            "pending-pods",
            explainer.pending,
            partial(gauges.pending, metrics.pending_pods, metrics.pending_oldest),
            known,
        ),
        Survey("partial-gangs", explainer.partial_gangs, partial_gangs, known),
        Survey("nodes-wanted", explainer.nodes_wanted, partial(gauges.nodes_wanted, wanted), known),
        Survey("waiting-pods", explainer.waiting_by_size, partial(gauges.waiting_pods, waiting), known),
    ]


def _certificates(server: ServerSettings, metrics: Metrics) -> dict[Tls, Certificates]:
    """Of all listeners with TLS; some may share theirs. BadInput: a file cannot be used."""
    used = (server.tls, *(server.listener(name).tls for name in server.apart))
    return {tls: Certificates(tls, metrics) for tls in dict.fromkeys(used) if tls.encrypts}


def _state(settings: Settings, metrics: Metrics) -> None:
    """In the metrics: by which settings the server begins. A warning where one has no effect."""
    if settings.scheduler_weight is not None and not settings.only_the_best_class_wins:
        log.warning(
            "schedulerWeight has no effect: it is not more than 10 x schedulerScoreWeights, so other nodes can win",
            schedulerWeight=settings.scheduler_weight,
            schedulerScoreWeights=settings.scheduler_score_weights,
        )
    metrics.state(settings.hash)


def _cluster(settings: Settings, metrics: Metrics, record: Path | None, *, live: bool) -> Cluster:
    """`record`: the directory where all that happens to it is recorded, None: nowhere. BadInput: it cannot be."""
    if record is None:
        return Cluster(settings, live=live)
    writer = Writer(record, settings.record, metrics)
    return RecordedCluster(settings, Recorder(writer, metrics, header_of(settings, live=live)), live=live)


def over_file(settings: Settings, path: Path, record: Path | None = None) -> Server:
    """A server over a cluster file: nothing is written to it, and evictions are advice. `record`: the directory of a
    record. BadCluster, BadInput."""
    metrics, invalid = Metrics(), list[Invalid]()
    cluster = _cluster(settings, metrics, record, live=False)
    cluster.apply(frozen.read(path, cluster.gpu_names, invalid), time.monotonic())
    for warning in tolerant.warnings(invalid, MOST_NAMED):
        log.warning("an object cannot be read in full", err=warning["message"])
    log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(path))
    core = Core.over(cluster, Frozen(invalid), metrics=metrics)
    evictions = Evictions(core.verbs, core.events, core.metrics)
    return connect(core, Outside(evictions=evictions, controllers=(evictions,)))


def _queue(core: Core, server: ApiServer, writes: Requests, namespace: str, identity: str) -> QueueController:
    """The queue over an API server. `writes`: for the pods and its ConfigMaps; `namespace`: of these and its Lease."""
    settings, clock = core.cluster.settings.queue, core.clock
    lease = Lease(server, namespace, settings.lease, identity, clock=clock, duration=LEASE_SECONDS)
    maps = [ConfigMap(writes, namespace, f"{settings.reservations}-{shard}") for shard in range(SHARDS)]
    # No sign of life waits for the writes of a release.
    signs = ConfigMap(server, namespace, f"{settings.reservations}-{SIGNS}")
    leadership = Leadership(lease, QUEUE, core.metrics.queue_leader, clock.monotonic, core.metrics.degraded)
    wired = QueueRequests(
        PodPatches(writes),
        Bindings(server, core.cluster.gpu_names).get_pod,
        PodEvictions(server, core.metrics),
        ProvisioningRequests(server),
        ResourceClaimWrites(writes),
        DeviceTaintRuleWrites(server),
    )
    return queue_over(core, leadership, KeptSeats(maps, signs), wired, identity)


class KeptSeats(NamedTuple):
    """Where seats are kept (`maps`), and the signs of life of the instances that know them."""

    maps: Sequence[TextMap]
    signs: TextMap


class QueueRequests(NamedTuple):
    """What the queue asks the API server with. `evicts`: None where no pod can be evicted; `nodes`: asks for nodes;
    `claims`: allocates the devices of ResourceClaims; `fences`: keeps devices for that."""

    pods: PodWrites
    read: Reads
    evicts: Evicts | None = None
    nodes: ProvisioningRequests | None = None
    claims: ClaimWrites | None = None
    fences: FenceWrites | None = None


def queue_over(core: Core, leads: Leads, kept: KeptSeats, requests: QueueRequests, identity: str) -> QueueController:
    """What releases pods from behind our gate. `identity`: of this process alone."""
    verbs, metrics, clock = core.verbs, core.metrics, core.clock
    entries = SeatEntries(core.cluster.resources, clock.wall() - clock.monotonic())
    seats = verbs.claims.seats
    store = SeatStore(seats, entries, kept.maps, metrics, clock.monotonic)
    replicas = Replicas(identity, core.cluster, seats, store, kept.signs, clock.monotonic)
    planned = core.cluster.settings.queue.planned_allocation
    claims, fences = (requests.claims, requests.fences) if planned else (None, None)
    devices = DeviceAllocator(core.cluster, seats, claims, clock)
    placement = JointPlacement(core.cluster, verbs.policy)
    planner = Planner(core.cluster, verbs.claims, placement, clock.monotonic, clock.wall)
    search = GangSearch(core.cluster, verbs.policy, verbs.settings.preemption)
    acting = Acting(
        leads,
        store,
        replicas,
        Release(core.cluster, requests.pods, devices, clock.monotonic, replicas.known),
        Growth(core.cluster, verbs.claims.seats, requests.pods, metrics, requests.nodes),
        lambda: not core.source.missing(),
        core.source.dark,
        EvictionPlanner(core.cluster, verbs.claims, placement, search, clock.monotonic, clock.wall),
        requests.read,
        Fences(core.cluster, seats, fences),
        requests.evicts,
    )
    return QueueController(verbs, planner, acting, metrics, core.events, clock=clock)


def over_api(settings: Settings, server: ApiServer, *, file: Path | None = None, record: Path | None = None) -> Server:
    """A server over the cluster of an API server. Nothing is read before its lifespan begins. `file`: where the
    settings come from, to be loaded again when it changes; `record`: the directory of a record. BadInput."""
    metrics, clock = Metrics(), Clock()
    cluster = _cluster(settings, metrics, record, live=True)
    watches = Watches(server, cluster, staleness=settings.watch.staleness_seconds, clock=clock)
    if settings.shadow:
        return _in_shadow(Core.over(cluster, watches, metrics=metrics, clock=clock), server, file)
    events = Events(metrics, EventsApi(server, socket.gethostname()) if settings.events.enabled else None)
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
        Evictor(
            PodEvictions(server, metrics),
            Leadership(lease, EVICTIONS, metrics.evictions_leader, clock.monotonic, metrics.degraded),
            reservations,
        ),
        view=View(lambda: watches.listed() and not reservations.missing(), lambda: watches.dark(evicting=True)),
        clock=clock,
    )
    writes = requests_to(server, AT_ONCE)
    parked = ParkedPods(core.verbs, PodPatches(writes), _can_evict(settings, watches, reservations), clock)
    controllers: list[Controller] = [reservations, events, evictions, parked, *_reloading(core, file)]
    queue = _queue(core, server, writes, namespace, identity) if settings.queue.enabled else None
    if queue is not None:
        controllers.append(queue)
    leader = QueueLeader(settings.queue.enabled, settings.queue.lease)
    watched = Lease(server, namespace, settings.queue.lease, identity, clock=clock)
    controllers.append(UnledPods(cluster, events, watched, leader, metrics.degraded, clock))
    if stored:  # it is read before the source begins, whose pods it may have counted
        demand = cluster.demand
        controllers.append(DemandMixStore(ConfigMap(server, namespace, MIX), demand.dump, demand.load, newer=is_newer))
    binder = ApiBinder(Bindings(server, cluster.gpu_names))

    async def close() -> None:
        await connection.close()
        await writes.close()
        await server.close()

    acts = Outside(binder, reservations, evictions, parked, queue, leader, tuple(controllers), Reviews(server))
    return connect(core, replace(acts, forbidden=server.forbidden.problem, close=close))


def _can_evict(settings: Settings, watches: Watches, reservations: ReservationStore) -> Callable[[], bool]:
    staleness = settings.watch.staleness_seconds
    return lambda: (
        watches.listed()
        and not reservations.missing()
        and reservations.is_writable
        and watches.dark(evicting=True) < staleness
    )


def _reloading(core: Core, file: Path | None) -> list[Controller]:
    return [] if file is None else [SettingsFile(file, core.verbs, core.metrics)]


def _in_shadow(core: Core, server: ApiServer, file: Path | None) -> Server:
    """A server that writes nothing of its own: it binds where kube-scheduler asks it to, and removes our gates."""
    binder = ApiBinder(Bindings(server, core.cluster.gpu_names))
    removal = GateRemoval(server, core.cluster)
    log.info("the mode is shadow: everything is decided and recorded, and nothing is answered or written")
    controllers = (removal, *_reloading(core, file))
    return connect(
        core,
        Outside(
            binder,
            controllers=controllers,
            reviews=Reviews(server),
            forbidden=server.forbidden.problem,
            close=server.close,
        ),
    )
