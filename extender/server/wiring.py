"""Connects what decides, what acts and what answers people to one server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.routing import Router

from extender.act.controller import ClusterSource, Frozen, Supervisor
from extender.act.evictions import OwnEvictions
from extender.ask import frozen
from extender.ask.forks import Forks
from extender.errors import BadInput
from extender.journal.recorder import RecordedCluster
from extender.kube.client import ApiServer
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects import tolerant
from extender.objects.tolerant import Invalid
from extender.server import acting, asking, deciding, routes
from extender.server.acting import Outside
from extender.server.calls import Hears, VerbCalls
from extender.server.certificates import Certificates
from extender.server.connections import Connections
from extender.server.deciding import Core, cluster_of
from extender.server.gate import Asks, Gate, Reviewer
from extender.server.scheduler_probe import SchedulerProbe
from extender.server.writes import Writes
from extender.settings import ServerSettings, Settings, Tls
from extender.web.health import MOST_NAMED
from extender.web.metrics_page import MetricsPage

log = get_log()


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
    asks: Forks
    metrics_page: MetricsPage


def connect(core: Core, outside: Outside | None = None, asks: Forks | None = None) -> Server:
    """A server over its core. `asks`: where its questions are answered."""
    outside = outside or Outside()
    cluster, source, metrics = core.cluster, core.source, core.metrics
    settings = cluster.settings
    _state(settings, metrics)
    metrics.degraded.ask("rights", lambda: "; ".join(filter(None, (source.forbidden(), outside.forbidden()))))
    reached_by = (connections, _, _) = _reached_by(settings, metrics)
    certificates = _certificates(settings.server, metrics)
    asked = asking.explaining(core, outside.queue, outside.leader, asks or Forks())
    supervisor = Supervisor([*reached_by, *certificates.values(), *outside.controllers, *asked.surveys, source])
    writes = Writes(
        core.verbs, metrics, core.clock.monotonic, core.events, binder=outside.binder, keeper=outside.keeper
    )
    calls, endpoint, shadow = deciding.answering(core, supervisor, writes, Hears(outside.evictions, outside.parked))
    connections.verbs.update((routes.path_of(verb).encode(), app) for verb, app in endpoint.verbs.items())
    views = asking.views(core, asked, supervisor, shadow, connections.stopping)

    async def close() -> None:
        asked.asks.close()
        await outside.close()
        if isinstance(cluster, RecordedCluster):
            cluster.recorder.close()

    places = _places(settings.server, outside.reviews, metrics)
    app, apart = routes.create(endpoint, views, supervisor, places, close)
    return Server(app, apart, certificates, *reached_by, calls, supervisor, source, asked.asks, views.metrics)


def _reached_by(settings: Settings, metrics: Metrics) -> tuple[Connections, Connections, SchedulerProbe]:
    """The connections of verbs and pages, those of the metrics, and the probe with its own."""
    return Connections(settings, metrics), Connections(settings, metrics), SchedulerProbe(settings, metrics)


def _places(at: ServerSettings, reviews: Asks | None, metrics: Metrics) -> routes.Exposure:
    """Where the listeners are, and which clients may ask them."""
    reviewer = _reviewer(at, reviews, metrics)
    gates = [Gate(reviewer if listener.authorize else None) for listener in (at.metrics, at.debug)]
    hosts = tuple(filter(None, (at.host, at.debug.host, *at.hosts)))  # "": all addresses
    return routes.Exposure(hosts, at.apart, *gates)


def _reviewer(server: ServerSettings, asks: Asks | None, metrics: Metrics) -> Reviewer | None:
    """BadInput: tokens are asked for, and there is no API server that could review them."""
    if not (server.metrics.authorize or server.debug.authorize):
        return None
    if asks is None:
        raise BadInput("tokens are reviewed by an API server, and there is none", path="authorize")
    return Reviewer(asks, metrics)


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


def over_file(settings: Settings, path: Path, record: Path | None = None) -> Server:
    """A server over a cluster file: nothing is written to it, and evictions are advice. `record`: the directory of a
    record. BadCluster, BadInput."""
    metrics, invalid = Metrics(), list[Invalid]()
    cluster = cluster_of(settings, metrics, record, live=False)
    cluster.apply(frozen.read(path, cluster.gpu_names, invalid), time.monotonic())
    for warning in tolerant.warnings(invalid, MOST_NAMED):
        log.warning("an object cannot be read in full", err=warning["message"])
    log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(path))
    core = Core.over(cluster, Frozen(invalid), metrics=metrics)
    evictions = OwnEvictions(core.verbs, core.events, core.metrics)
    return connect(core, Outside(evictions=evictions, controllers=(evictions,)))


def over_api(settings: Settings, server: ApiServer, *, file: Path | None = None, record: Path | None = None) -> Server:
    """A server over the cluster of an API server; see `acting.live`."""
    return connect(*acting.live(settings, server, file=file, record=record))
