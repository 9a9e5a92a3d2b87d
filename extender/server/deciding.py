"""What decides: the verbs over one cluster, and how their calls are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from extender.act.controller import ClusterSource, Frozen, Supervisor
from extender.act.events import EventRecorder, NodeEvents
from extender.act.reservations import released
from extender.act.saving import SaveHistory
from extender.ask.fleet import Trend
from extender.cluster.cluster import Cluster
from extender.decide.verbs import Verbs
from extender.journal.files import Writer
from extender.journal.recorder import RecordedCluster, Recorder, header_of
from extender.metrics import Metrics
from extender.queue.runtimes import RunTimes
from extender.queue.windows import StartWindows
from extender.reservations.assumed import Freshness
from extender.server.calls import Calls, Hears, Outage, Readiness, Settling, Writes
from extender.server.endpoint import DecisionLog, Endpoint
from extender.server.shadow import Shadow, ShadowCalls, ShadowWatch, VerbCalls
from extender.settings import Settings
from extender.times import Clock


@dataclass(frozen=True, slots=True)
class Core:
    """What decides, counts and notes, over a source of the cluster's state."""

    cluster: Cluster
    source: ClusterSource
    verbs: Verbs
    events: EventRecorder
    metrics: Metrics
    clock: Clock
    save_history: SaveHistory
    """How pods answer requests to save their work."""
    run_times: RunTimes = field(default_factory=RunTimes)
    """How long gangs run."""
    start_windows: StartWindows = field(default_factory=StartWindows)
    """When gangs start."""
    trend: Trend = field(default_factory=Trend)
    """The fleet over the last hours."""

    @classmethod
    def over(
        cls,
        cluster: Cluster,
        source: ClusterSource | None = None,
        *,
        metrics: Metrics | None = None,
        events: EventRecorder | None = None,
        clock: Clock | None = None,
    ) -> Core:
        """`source`: what fills the cluster; None: it does not change; `events`: None writes none."""
        source, metrics = source or Frozen(), metrics or Metrics()
        events = events or EventRecorder(metrics)
        settings = cluster.settings
        cluster.subscribe(NodeEvents(events, cluster.nodes))
        freshness = Freshness(source.dark, source.known_at, settings.watch.staleness_seconds)
        recorder = cluster.recorder if isinstance(cluster, RecordedCluster) else None
        verbs = Verbs.of(settings, cluster, freshness=freshness, released=partial(released, metrics), journal=recorder)
        if recorder is not None:
            recorder.attach(cluster, verbs)
        clock = clock or Clock()
        return cls(cluster, source, verbs, events, metrics, clock, SaveHistory(cluster, clock))


def cluster_of(settings: Settings, metrics: Metrics, record: Path | None, *, live: bool) -> Cluster:
    """`record`: the directory where all that happens to it is recorded, None: nowhere. BadInput: it cannot be."""
    if record is None:
        cluster = Cluster(settings, live=live)
    else:
        writer = Writer(record, settings.record, metrics)
        cluster = RecordedCluster(settings, Recorder(writer, metrics, header_of(settings, live=live)), live=live)
    cluster.bound_looks()
    return cluster


def answering(
    core: Core, supervisor: Supervisor, writes: Writes, hears: Hears
) -> tuple[VerbCalls, Endpoint, ShadowWatch | None]:
    """(what answers the verbs of a core; the same over HTTP; what watches kube-scheduler's choices in shadow mode).
    Before the first complete lists they answer 503, in shadow mode never."""
    cluster, verbs, source, metrics, clock = core.cluster, core.verbs, core.source, core.metrics, core.clock
    settings = cluster.settings
    missing = Readiness(verbs, source, supervisor, writes).missing
    shadow: ShadowWatch | None = None
    if settings.shadow:
        shadow = ShadowWatch(verbs, metrics, clock.wall, lambda: not source.missing())
        cluster.observer = shadow
        calls: VerbCalls = ShadowCalls(verbs, clock, writes, Shadow(shadow, missing, metrics))
        missing = list  # kube-scheduler must not wait for us
    else:
        outage = Outage(source, settings.watch.staleness_seconds, clock.monotonic)
        settling = Settling(clock.monotonic, lags=source.lags)
        calls = Calls(verbs, clock, outage, settling, writes, hears)
    lines = DecisionLog(metrics, cluster.rows.name_at, settings.log.decisions_per_second)
    return calls, Endpoint(calls, missing, metrics, lines, settings.limits.body_bytes), shadow
