"""Every metric, in one place. Base units (seconds, bytes), names with our own prefix, and labels from closed lists.

Nothing is labelled by pod or node: a label must not grow with the cluster. kube-scheduler has no latency series for
its extenders, so `gpu_extender_request_duration_seconds` is the only one there is. docs/metrics.md
lists them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from time import time
from typing import Any, Final, NamedTuple, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

PREFIX: Final = "gpu_extender"
BUCKETS: Final = tuple(0.0001 * 2**n for n in range(17))
"""Seconds, 0.1 ms to 6.6 s: as kube-scheduler's extension points, but past its default timeout of 5 s."""
BOUNDS: Final = (*map(floatToGoString, BUCKETS), "+Inf")
"""The labels of these buckets, and of what takes longer."""

VICTIMS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
GPU_SECONDS: Final = (0.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0, 30 * 24 * 3600.0)
"""One GPU for a minute, ten minutes, an hour, six hours, a day, a week, a month."""


WAITS: Final = tuple(0.1 * 4**n for n in range(11))
"""Seconds, 0.1 s to 29 hours."""


MOST_SAVE_SERIES: Final = 500
"""Pairs of a PriorityClass and a namespace whose saved work is counted apart: the first ones. They never go, since a
counter may not fall."""


PARTS: Final = ("rights", "settings", "certificates", "reservations", "queue", "evictions", "events")
"""What may be degraded while verbs are answered."""


class Degraded:
    """What does not work although verbs are answered, in words: a right is missing, a file cannot be used. It is no
    reason to be not ready: another replica has the same problem, and without an answer GPU pods would wait."""

    def __init__(self, gauge: Gauge) -> None:
        """`gauge`: 1 for each part with a problem."""
        self._gauge = gauge
        self._problems: dict[str, dict[str, str]] = {part: {} for part in PARTS}
        self._asked: dict[str, Callable[[], str]] = {}
        for part in PARTS:
            gauge.labels(part).set(0)

    def note(self, part: str, problem: str, source: str = "") -> None:
        """What is wrong with a part, "" for nothing. `source`: where a part has several."""
        known = self._problems[part]
        known.pop(source, None)
        if problem:
            known[source] = problem
        self._gauge.labels(part).set(bool(known))

    def ask(self, part: str, problem: Callable[[], str]) -> None:
        """A part whose problem is asked for whenever it is read, "" for none. `note` is not for it then."""
        self._asked[part] = problem
        self._gauge.labels(part).set_function(lambda: float(bool(problem())))

    @property
    def problems(self) -> dict[str, str]:
        """By part, in the order of PARTS; a part without a problem has ""."""
        noted = {part: "; ".join(known.values()) for part, known in self._problems.items()}
        return noted | {part: problem() for part, problem in self._asked.items()}


class Durations:
    """How long the calls of one verb with one result took."""

    __slots__ = ("counts", "created", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(BOUNDS)  # by bucket
        self.created = time()
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """A call took so long."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class CallDurations:
    """The histogram of all calls. Only the event loop counts them, so these are plain numbers until they are collected:
    a histogram of prometheus_client takes two locks and a dozen calls for each observation."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], *, namespace: str, registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labelnames = f"{namespace}_{name}", text, labels
        self._of: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        registry.register(self)

    def labels(self, *values: str) -> Durations:
        """Those with these values of the labels."""
        return self._of[values]

    def collect(self) -> Iterator[Metric]:
        """Of prometheus_client: its samples."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
        for values, durations in self._of.items():
            counts = [float(count) for count in accumulate(durations.counts)]
            family.add_metric(values, list(zip(BOUNDS, counts, strict=True)), durations.seconds)
            family.add_sample(
                f"{self._name}_created", dict(zip(self._labelnames, values, strict=True)), durations.created
            )
        yield family


class _Declared(NamedTuple):
    """A metric that each set of metrics has."""

    kind: Callable[..., Any]
    text: str
    labels: tuple[str, ...]
    name: str  # "" where it is that of the attribute


def _counter(text: str, *labels: str, name: str = "") -> Counter:
    return cast(Counter, _Declared(Counter, text, labels, name))


def _gauge(text: str, *labels: str, name: str = "") -> Gauge:
    return cast(Gauge, _Declared(Gauge, text, labels, name))


def _histogram(text: str, buckets: tuple[float, ...], *labels: str, name: str = "") -> Histogram:
    return cast(Histogram, _Declared(partial(Histogram, buckets=buckets), text, labels, name))


class Metrics:
    """One set of metrics over a registry of its own, so that tests can make as many as they like. Each is declared
    here with its text and labels, and made by the constructor."""

    # -- verbs, connections, the log, the record
    request_duration = cast(
        CallDurations,
        _Declared(
            CallDurations, "From the body read to the reply made.", ("verb", "result"), "request_duration_seconds"
        ),
    )
    decisions = _counter("Decisions, by what they ended in.", "verb", "reason")
    refused_nodes = _counter("Nodes that filter refused.", "code")
    bad_requests = _counter("Requests that could not be used.", "verb", "code")
    connections_closed = _counter("Connections that were closed for a limit.", "limit")
    certificate_reads = _counter("Certificates of listeners that were read again.", "result")
    certificate_not_after = _gauge(
        "When the first certificate of a file expires, seconds since 1970.",
        "file",
        name="certificate_not_after_seconds",
    )
    reviews = _counter("Tokens and rights that the API server was asked about.", "kind", "result")
    handshakes_failed = _counter("TLS handshakes of clients that failed: the log names reasons.")
    log_lines_dropped = _counter("Log lines that could not be written: the log is not read, or its disk is full.")
    log_lines_sampled = _counter("Log lines of decisions that were left out: log.decisionsPerSecond names the rate.")
    sampled_requests = _counter(
        "Requests that leave out nodes where the pod fits too: the scheduler samples (percentageOfNodesToScore). "
        "One request in ten seconds is looked at."
    )
    record_bytes = _counter("Bytes written to the record (serve --record).")
    record_lost = _counter("Entries that the record lacks.", "cause")

    # -- watches
    watch_restarts = _counter("Watches that were opened again after another end than the agreed one.", "kind")
    watch_defects = _counter("Unexpected exceptions, by what failed.", "kind")
    invalid_objects = _counter(
        "Objects (each version counts) that could not be read in full: /readyz names the first of them.",
        "kind",
        "reason",
    )
    cache_objects = _gauge("Kubernetes objects that we know.", "kind")
    cache_age = _gauge("Time since the API server last sent anything.", "kind", name="cache_age_seconds")
    dark = _gauge("Time since pods, nodes and budgets were all watched; 0 while they are.", name="dark_seconds")

    # -- the cluster
    holds = _gauge("Assumed pods.")
    plans = _counter("Planned pods that are seen to hold GPUs.", "outcome")
    failing_nodes = _gauge("Nodes that are rejected for all pods because GPU pods failed there.")
    failing_node_rejections = _gauge(
        "Nodes that are rejected because GPU pods failed there, for all pods or for those of a namespace.", "scope"
    )
    pod_failures = _counter("GPU pods that failed on their node.", "what")
    double_claimed_gpus = _gauge("GPUs that more than one pod holds by what we know; anything but 0 is a fault.")
    topology_disagreements = _gauge("Nodes about whose GPUs two annotations or sources disagree: /debug/topologies.")

    # -- reservations
    reservations = _gauge("Reservations for preemptors.")
    reservations_kept = _gauge("1 while the reservations can be read and written in the API server, else 0.")
    reservation_writes = _counter("Writes before a preempt reply.", "result")
    reservation_write_duration = _histogram(
        "What a write before a preempt reply took, its retries included.",
        BUCKETS,
        name="reservation_write_duration_seconds",
    )
    reservations_released = _counter("Reservations that ended.", "cause")
    reservations_damaged = _counter("Entries that could not be read, or that contradict the cluster.")
    advance_reservations = _counter("Advance reservations whose date has come.", "outcome")
    advance_leader = _gauge("1 while this instance holds the Lease of the advance reservations.")

    # -- preemption and evictions
    preemption_victims = _histogram("Victims of each plan, by what evicts.", VICTIMS, "by")
    save_requests = _counter("Pods that were asked to save, by their answer.", "result")
    save_requests_work = _counter(
        "Work of such pods, GPUs x seconds: what the request saved, and what was lost all the same, with the restarts.",
        "result",
        "priority_class",
        "namespace",
        name="save_requests_gpu_seconds",
    )
    work_lost = _histogram(
        "Work that the victims of each plan lose, with the broken gangs' other pods and the restarts: GPUs x seconds.",
        GPU_SECONDS,
        "by",
        name="preemption_work_lost_gpu_seconds",
    )
    victim_searches = _counter("Searches for victims.", "result", "proved")
    victim_search_duration = _histogram(
        "What a search for victims took.", BUCKETS, name="victim_search_duration_seconds"
    )
    events = _counter("Events that were written, or not.", "result")
    evictions = _counter("Evictions by gpu-extender, by the answer of the API server.", "result")
    evictions_leader = _gauge("1 while this instance holds the Lease to evict.")

    # -- GPUs
    gpus = _gauge("GPUs.", "model", "state")
    whole_nodes = _gauge("Nodes that take pods and of which all GPUs are free.", "model")
    linked_sets = _gauge("Disjoint linked sets of free GPUs.", "model", "gpus")

    # -- what waits
    nodes_wanted = _gauge(
        "How many more nodes of a GPU model would start the pods that wait for room. Models are alternatives: "
        "they do not add up.",
        "model",
    )
    partial_gangs = _gauge(
        "Gangs of which fewer pods have a node than must run together, for 5 minutes, while others wait."
    )
    partial_gang_gpus = _gauge("GPUs that the pods of such gangs hold.")
    pending_pods = _gauge("GPU pods that wait.", "priority_class", "outranks")
    pending_oldest = _gauge(
        "How long the first of these pods has waited.", "priority_class", "outranks", name="pending_oldest_seconds"
    )
    waiting_pods = _gauge(
        "GPU pods that wait, by the GPUs that each asks for. Only the holder of the Lease has the reasons of the "
        "queue.",
        "reason",
        "gpus",
    )

    # -- the queue
    queue_leader = _gauge("1 while this instance holds the Lease of the queue.")
    queue_waiting = _gauge("Gangs and single pods behind our gate.", "reason", "pods")
    queue_share = _gauge("The largest part that each queue holds of any GPU model, divided by its weight.", "queue")
    queue_wanted_gpus = _gauge("GPUs that complete gangs within their quota wait for.", "queue", "model", "place")
    queue_wait = _histogram(
        "From the creation of a gang's first pod to the reservation of its seats.",
        WAITS,
        "pods",
        name="queue_wait_seconds",
    )
    queue_start_windows = _counter(
        "Gangs that started after a wait of 60 s or more, against the window that was stated first.",
        "percent",
        "outcome",
    )
    queue_release_duration = _histogram(
        "From the reservation of a gang's seats to the last of its pods seen on a node.",
        WAITS,
        name="queue_release_duration_seconds",
    )
    queue_seats_ended = _counter("Seats that ended.", "cause")
    queue_failed_pins = _counter("Pods that may run on one node alone (`queue.hardPins`) and do not get it.", "outcome")
    queue_held_gpu_seconds = _counter("GPUs x seconds that seats held before their pods were bound.", "state")
    queue_evictions = _counter("Pods that were evicted for gangs in the queue.", "outcome")
    queue_absent_gpu_seconds = _counter("GPUs x seconds that seats held for pods that do not exist yet.")

    # -- shadow mode alone counts these
    shadow_placements = _counter("Pods that kube-scheduler bound in shadow mode, by our choice.", "outcome")
    shadow_linked_pods = _counter("Pods with two GPUs or more on linked GPUs, as predicted.", "by")
    shadow_ring_gbps = _counter("Ring bandwidth of those pods in GB/s, as predicted.", "by")
    shadow_whole_nodes_broken = _counter("Pods that took a part of a node without GPU pods.", "by")
    shadow_victims = _counter("Victims of preemptions in shadow mode.", "by")
    shadow_gangs_broken = _counter("Gangs broken by preemptions in shadow mode.", "by")
    shadow_work_lost = _counter("Work that preemptions in shadow mode lose.", "by", name="shadow_work_lost_gpu_seconds")

    # -- settings and what is degraded
    degraded_parts = _gauge(
        "1 while a part does not work although verbs are answered: /readyz has why.", "part", name="degraded"
    )
    settings_info = _gauge("1 for the settings that count now, by their hash.", "hash")
    settings_reloads = _counter("Changes of the settings file.", "result")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Registers everything; `registry` is what /metrics prints."""
        self.registry = registry or CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}  # by name, without the prefix
        for attribute, declared in vars(Metrics).items():
            if isinstance(declared, _Declared):
                name = declared.name or attribute
                self.labels[name] = declared.labels
                made = declared.kind(name, declared.text, declared.labels, namespace=PREFIX, registry=self.registry)
                setattr(self, attribute, made)
        self.degraded = Degraded(self.degraded_parts)
        self._save_series: set[tuple[str, str]] = set()

    def searched(self, proved: bool | None, result: str, stages_us: Mapping[str, float]) -> None:
        """A preempt call, or a look of our own, ended. `proved`: None where it did not come to a search."""
        if proved is None:
            return
        outcome = "evict" if result == "evict" else "none"
        self.victim_searches.labels(outcome, str(proved).lower()).inc()
        self.victim_search_duration.observe(stages_us.get("search", 0.0) / 1e6)

    def planned(self, by: str, victims: int, work_lost_gpu_seconds: int | None) -> None:
        """A plan is kept, and its victims have to go."""
        self.preemption_victims.labels(by).observe(victims)
        if work_lost_gpu_seconds is not None:
            self.work_lost.labels(by).observe(work_lost_gpu_seconds)

    def asked_pod_ended(self, priority_class: str, namespace: str, saved: int, lost: int) -> None:
        """A pod that was asked to save its work has ended. `saved`, `lost`: GPU-seconds."""
        series = priority_class or "none", namespace
        if series not in self._save_series and len(self._save_series) >= MOST_SAVE_SERIES:
            series = "(others)", "(others)"
        self._save_series.add(series)
        self.save_requests_work.labels("saved", *series).inc(saved)
        self.save_requests_work.labels("lost", *series).inc(lost)

    def state(self, settings: str) -> None:
        """These settings count now. `settings`: their hash."""
        self.settings_info.clear()
        self.settings_info.labels(settings).set(1)
