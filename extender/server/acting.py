"""What acts by itself over an API server: watches, reservations, evictions, Events and the queue, with their writes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from extender.act.advance import SPREAD_SECONDS, AdvanceController, DatedGangs, Keeping
from extender.act.advance_store import STATE, AdvanceStore
from extender.act.controller import ADVANCE, ADVANCE_OFF, EVICTIONS, QUEUE, QUEUE_OFF, Controller, Leadership
from extender.act.document import LearnedStore
from extender.act.events import EventRecorder
from extender.act.evictions import LEASE_SECONDS, ClusterReadiness, Evictor, OwnEvictions
from extender.act.gated import GateRemoval, UnledPods
from extender.act.moves import Moves
from extender.act.parked import ParkedPods
from extender.act.queue.allocator import DeviceAllocator, Fences
from extender.act.queue.controller import LEASE_SECONDS as QUEUE_LEASE_SECONDS
from extender.act.queue.controller import QueueController
from extender.act.queue.evicting import Acting, LeftOfQueue
from extender.act.queue.growth import Growth, ProvisioningRequests
from extender.act.queue.release import AT_ONCE, Reads, Release
from extender.act.queue.seat_store import SHARDS, SIGNS, Replicas, SeatEntries, SeatStore
from extender.act.queue.start_dates import DatesTask, EndedRuns, LiveDates, RunTimesStore, WindowStore
from extender.act.reservations import ReservationStore
from extender.act.saving import EvictionRequests, LeftRequests, SaveHistoryStore, SaveRequests
from extender.act.settings_file import SettingsFile
from extender.act.watches import Watches
from extender.ask.judge import over
from extender.kube.client import ApiServer, own_namespace
from extender.kube.own_objects import ConfigMap, EventsApi, Lease
from extender.kube.pod_writes import Bindings, DeviceTaintRuleWrites, PodEvictions, PodPatches, ResourceClaimWrites
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.advance import CONFIG_MAP
from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlanner
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import QueueLeader
from extender.server.calls import Binder
from extender.server.deciding import Core, cluster_of
from extender.server.gate import Reviews
from extender.settings import Settings
from extender.times import Clock, Epoch

ADVANCE_LEASE: Final = "gpu-extender-advance"
MIX: Final = "gpu-extender-mix"  # the ConfigMap of what is learned of the pods that come
log = get_log()


@dataclass(frozen=True, slots=True)
class Outside:
    """What a server writes to. None: where it does not."""

    binder: Binder | None = None
    keeper: ReservationStore | None = None
    evictions: OwnEvictions | None = None
    parked: ParkedPods | None = None
    queue: QueueController | None = None
    leader: QueueLeader | None = None
    """Which instance releases pods from the queue."""
    controllers: tuple[Controller, ...] = ()
    """What runs beside the source, in the order in which it begins."""
    reviews: Reviews | None = None
    """Whose a token is, and what that user may do."""
    advance: AdvanceController | None = None
    forbidden: Callable[[], str] = str
    """Which writes were not allowed, in words; "" for none."""
    close: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    """Called when all controllers have ended."""


def live(
    settings: Settings, server: ApiServer, *, file: Path | None = None, record: Path | None = None
) -> tuple[Core, Outside]:
    """A core over the cluster of an API server, and what it writes there. Nothing is read before the source runs.
    `file`: where the settings come from, to be loaded again when it changes; `record`: the directory of a record.
    BadInput."""
    metrics, clock = Metrics(), Clock()
    cluster = cluster_of(settings, metrics, record, live=True)
    watches = Watches(server, cluster, staleness=settings.watch.staleness_seconds, clock=clock)
    if settings.shadow:
        core = Core.over(cluster, watches, metrics=metrics, clock=clock)
        return core, _in_shadow(core, server, file)
    events = EventRecorder(metrics, EventsApi(server, socket.gethostname()) if settings.events.enabled else None)
    core = Core.over(cluster, watches, metrics=metrics, events=events, clock=clock)
    return core, _outside(core, watches, server, file)


def _outside(core: Core, watches: Watches, server: ApiServer, file: Path | None) -> Outside:
    """All that acts by itself."""
    cluster, metrics, events, clock = core.cluster, core.metrics, core.events, core.clock
    settings = cluster.settings
    namespace = own_namespace(settings.reservations.namespace)
    stored = settings.reservations.store == "configmap"
    connection = server.apart(1)
    config_map = ConfigMap(connection, namespace, settings.reservations.name) if stored else None
    reservations = ReservationStore(core.verbs, metrics, config_map, ready=watches.listed, clock=clock)
    identity = f"{socket.gethostname()}_{os.getpid()}_{random.SystemRandom().getrandbits(32):08x}"
    lease = Lease(server, namespace, settings.evictions.lease, identity, clock=clock, duration=LEASE_SECONDS)
    writes = server.apart(AT_ONCE)
    parked = ParkedPods(core.verbs, PodPatches(writes).nominate, _can_evict(watches, reservations), clock)
    saves = _saves_of(core, PodPatches(server), _requests_evictions(core, server, "evictions"), "p-")
    evictions = OwnEvictions(
        core.verbs,
        events,
        metrics,
        Evictor(
            PodEvictions(server, metrics),
            Leadership(lease, EVICTIONS, metrics.evictions_leader, metrics.degraded, clock.monotonic),
            reservations,
            saves,
            parked.wake,
        ),
        view=ClusterReadiness(
            lambda: watches.listed() and not reservations.missing(), lambda: watches.is_stale(evicting=True)
        ),
        clock=clock,
    )
    controllers: list[Controller] = [reservations, events, evictions, parked, *_reloading(core, file)]
    queue = _queue(core, server, writes, namespace, identity) if settings.queue.enabled else None
    advance = _advance(core, watches, server, (namespace, identity), queue) if stored else None
    controllers.append(advance or _left_of_moves(core, server, namespace, identity))
    controllers.append(queue or _left_of_queue(core, server, namespace, identity))
    leader = QueueLeader(settings.queue.enabled, settings.queue.lease)
    watched = Lease(server, namespace, settings.queue.lease, identity, clock=clock)
    controllers.append(UnledPods(cluster, events, watched.look, leader, metrics.degraded, clock))
    if stored:  # it is read before the source begins, whose pods it may have counted
        demand, learned = cluster.demand, ConfigMap(server, namespace, MIX)
        controllers.append(LearnedStore(learned, demand.dump, demand.load))
        controllers.append(SaveHistoryStore(learned, core.save_history))
    if queue is not None:
        controllers += dates_of(core, server, queue, namespace if stored else None)
    binder = Binder(Bindings(server, cluster.gpu_names))

    async def close() -> None:
        await connection.close()
        await writes.close()
        await server.close()

    acts = Outside(binder, reservations, evictions, parked, queue, leader, tuple(controllers), Reviews(server))
    return replace(acts, advance=advance, forbidden=server.forbidden.problem, close=close)


def _advance(
    core: Core, watches: Watches, server: ApiServer, here: tuple[str, str], queue: QueueController | None
) -> AdvanceController:
    """What keeps advance reservations. `here`: the namespace of its ConfigMaps and its Lease, and our identity."""
    namespace, identity = here
    cluster, metrics, clock = core.cluster, core.metrics, core.clock
    lease = Lease(server, namespace, ADVANCE_LEASE, identity, clock=clock)
    store = AdvanceStore(ConfigMap(server, namespace, STATE), cluster.resources, metrics, clock.monotonic)
    saves = _saves_of(core, PodPatches(server), _requests_evictions(core, server, "moves"), "a-")
    evictions, enabled = PodEvictions(server, metrics), cluster.settings.evictions.enabled
    moves = Moves(over(core.verbs), store, evictions, saves, core.verbs.evicted, clock, SPREAD_SECONDS, enabled)
    leadership = Leadership(lease, ADVANCE, metrics.advance_leader, metrics.degraded, clock.monotonic)
    keeping = Keeping(ConfigMap(server, namespace, CONFIG_MAP), store, leadership, moves)
    if queue is not None:
        dated = DatedGangs(queue.planner, core.verbs.claims.seats, store, core.events, metrics, clock)
        dated.head_known = lambda: queue.head_known
        keeping = keeping._replace(dated=dated, may_lead=lambda: queue.may_lead)
    ready = lambda: watches.listed() and not watches.is_stale()  # noqa: E731
    return AdvanceController(core.verbs, keeping, ready, core.events, metrics, clock=clock)


def _can_evict(watches: Watches, reservations: ReservationStore) -> Callable[[], bool]:
    return lambda: (
        watches.listed()
        and not reservations.missing()
        and reservations.is_writable
        and not watches.is_stale(evicting=True)
    )


def dates_of(core: Core, server: ApiServer, queue: QueueController, namespace: str | None) -> list[Controller]:
    """What learns how long gangs run, states when those that wait start, and keeps what was learned. `namespace`:
    where, None: nowhere."""
    runs = EndedRuns(core.cluster, Bindings(server, core.cluster.gpu_names).get_pod, core.run_times)
    core.cluster.subscribe(runs)
    controllers: list[Controller] = [runs]
    if queue.dates is not None:
        controllers.append(DatesTask(queue.dates, lambda: queue.report))
    if namespace is not None:
        maps = [ConfigMap(server, namespace, MIX) for _ in range(2)]
        controllers.append(RunTimesStore(maps[0], core.run_times, runs))
        controllers.append(WindowStore(maps[1], core.start_windows, lambda: queue.report is not None))
    return controllers


def _reloading(core: Core, file: Path | None) -> list[Controller]:
    return [] if file is None else [SettingsFile(file, core.verbs, core.metrics)]


def _in_shadow(core: Core, server: ApiServer, file: Path | None) -> Outside:
    """What writes nothing of its own: it binds where kube-scheduler asks it to, and removes our gates."""
    binder = Binder(Bindings(server, core.cluster.gpu_names))
    removal = GateRemoval(server, core.cluster)
    log.info("the mode is shadow: everything is decided and recorded, and nothing is answered or written")
    controllers = (removal, *_reloading(core, file))
    return Outside(
        binder,
        controllers=controllers,
        reviews=Reviews(server),
        forbidden=server.forbidden.problem,
        close=server.close,
    )


def _queue(core: Core, server: ApiServer, writes: ApiServer, namespace: str, identity: str) -> QueueController:
    """The queue over an API server. `writes`: for the pods and its ConfigMaps; `namespace`: of these and its Lease."""
    settings, clock = core.cluster.settings.queue, core.clock
    lease = Lease(server, namespace, settings.lease, identity, clock=clock, duration=QUEUE_LEASE_SECONDS)
    maps = [ConfigMap(writes, namespace, f"{settings.reservations}-{shard}") for shard in range(SHARDS)]
    # No sign of life waits for the writes of a release.
    signs = ConfigMap(server, namespace, f"{settings.reservations}-{SIGNS}")
    leadership = Leadership(lease, QUEUE, core.metrics.queue_leader, core.metrics.degraded, clock.monotonic)
    wired = QueueRequests(
        PodPatches(writes),
        Bindings(server, core.cluster.gpu_names).get_pod,
        PodEvictions(server, core.metrics),
        ProvisioningRequests(server),
        ResourceClaimWrites(writes),
        DeviceTaintRuleWrites(server),
        _requests_evictions(core, server),
    )
    return queue_over(core, leadership, KeptSeats(maps, signs), wired, identity)


def _left_of_queue(core: Core, server: ApiServer, namespace: str, identity: str) -> LeftOfQueue:
    """Withdraws what the queue has asked of pods before it was turned off."""
    name, clock, metrics = core.cluster.settings.queue.lease, core.clock, core.metrics
    lease = Lease(server, namespace, name, identity, clock=clock, duration=QUEUE_LEASE_SECONDS)
    leadership = Leadership(lease, QUEUE_OFF, metrics.queue_leader, metrics.degraded, clock.monotonic)
    saves = _saves_of(core, PodPatches(server), _requests_evictions(core, server))
    fences = Fences(core.cluster, core.verbs.claims.seats, DeviceTaintRuleWrites(server))
    return LeftOfQueue(saves, leadership, lambda: _is_current(core), fences)


def _left_of_moves(core: Core, server: ApiServer, namespace: str, identity: str) -> LeftRequests:
    """Withdraws what was asked of pods for their moves, where no advance reservation is kept any more."""
    clock, metrics = core.clock, core.metrics
    lease = Lease(server, namespace, ADVANCE_LEASE, identity, clock=clock)
    leadership = Leadership(lease, ADVANCE_OFF, metrics.advance_leader, metrics.degraded, clock.monotonic)
    saves = _saves_of(core, PodPatches(server), _requests_evictions(core, server, "moves"), "a-")
    return LeftRequests(saves, leadership, lambda: _is_current(core))


def _is_current(core: Core) -> bool:
    return not core.source.missing() and not core.source.is_stale()


def _saves_of(
    core: Core, patches: PodPatches, eviction_requests: EvictionRequests | None, prefix: str = "q-"
) -> SaveRequests:
    saves = SaveRequests(core.cluster, patches, core.events, core.metrics, core.save_history, prefix)
    saves.eviction_requests = eviction_requests
    return saves


def _requests_evictions(core: Core, server: ApiServer, by: str = "queue") -> EvictionRequests | None:
    return EvictionRequests(server, by) if core.cluster.settings.preemption.eviction_requests else None


class KeptSeats(NamedTuple):
    """Where seats are kept (`maps`), and the signs of life of the instances that know them."""

    maps: Sequence[ConfigMap]
    signs: ConfigMap


class QueueRequests(NamedTuple):
    """How the queue calls the API server."""

    pods: PodPatches
    read: Reads
    evicts: PodEvictions | None = None  # None where no pod can be evicted
    nodes: ProvisioningRequests | None = None  # asks for nodes
    claims: ResourceClaimWrites | None = None  # allocates the devices of ResourceClaims
    fences: DeviceTaintRuleWrites | None = None  # keeps devices for that
    eviction_requests: EvictionRequests | None = None  # for pods that are asked to save


def queue_over(
    core: Core, leads: Leadership, stored: KeptSeats, requests: QueueRequests, identity: str
) -> QueueController:
    """What releases pods from behind our gate. `identity`: of this process alone."""
    verbs, metrics, clock = core.verbs, core.metrics, core.clock
    entries = SeatEntries(core.cluster.resources, Epoch(clock))
    seats = verbs.claims.seats
    store = SeatStore(seats, entries, stored.maps, metrics, clock.monotonic)
    replicas = Replicas(identity, core.cluster, seats, store, stored.signs, clock.monotonic)
    planned = core.cluster.settings.queue.planned_allocation
    claims = requests.claims if planned else None
    devices = DeviceAllocator(core.cluster, seats, claims, clock)
    placement = JointPlacement(core.cluster, verbs.policy)
    planner = Planner(core.cluster, verbs.claims, placement, clock.monotonic, clock.wall, core.run_times)
    search = GangSearch(core.cluster, verbs.policy, verbs.settings.preemption)
    saves = _saves_of(core, requests.pods, requests.eviction_requests)
    acting = Acting(
        leads,
        store,
        replicas,
        Release(core.cluster, requests.pods, devices, clock.monotonic, replicas.known, planner.hold),
        Growth(core.cluster, verbs.claims.seats, requests.pods, metrics, requests.nodes),
        lambda: not core.source.missing(),
        core.source.is_stale,
        EvictionPlanner(core.cluster, verbs.claims, placement, search, clock.monotonic, clock.wall),
        requests.read,
        Fences(core.cluster, seats, requests.fences, makes=planned),
        requests.evicts,
        saves,
        LiveDates(core.cluster, verbs.claims, core.run_times, core.start_windows, metrics, clock),
    )
    return QueueController(verbs, planner, acting, metrics, core.events, clock=clock)
