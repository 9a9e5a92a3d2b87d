"""Every metric, in one place. Base units (seconds, bytes), names with our own prefix, and labels from closed lists.

Nothing is labelled by pod or node: a label must not grow with the cluster. kube-scheduler has no latency series for
its extenders, so `gpu_extender_request_duration_seconds` is the only one there is. docs/metrics.md
lists them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from time import time
from typing import Final

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

    def __init__(self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labelnames = f"{PREFIX}_{name}", text, labels
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


class Metrics:
    """One set of metrics over a registry of its own, so that tests can make as many as they like."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Registers everything; `registry` is what /metrics prints."""
        self.registry = registry or CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}  # by name, without the prefix
        self._requests()
        self._watches()
        self._cluster()
        self._reservations()
        self._preemptions()
        self._fleet()
        self._waiting()
        self._queue()
        self._shadow()
        self._settings()

    def _requests(self) -> None:
        self.labels["request_duration_seconds"] = ("verb", "result")
        self.request_duration = CallDurations(
            "request_duration_seconds",
            "From the body read to the reply made.",
            ("verb", "result"),
            self.registry,
        )
        self.decisions = self._counter("decisions", "Decisions, by what they ended in.", "verb", "reason")
        self.refused_nodes = self._counter("refused_nodes", "Nodes that filter refused.", "code")
        self.bad_requests = self._counter("bad_requests", "Requests that could not be used.", "verb", "code")
        self.connections_closed = self._counter(
            "connections_closed", "Connections that were closed for a limit.", "limit"
        )
        self.certificate_reads = self._counter(
            "certificate_reads", "Certificates of listeners that were read again.", "result"
        )
        self.certificate_not_after = self._gauge(
            "certificate_not_after_seconds",
            "When the first certificate of a file expires, seconds since 1970.",
            "file",
        )
        self.reviews = self._counter(
            "reviews", "Tokens and rights that the API server was asked about.", "kind", "result"
        )
        self.handshakes_failed = self._counter(
            "handshakes_failed", "TLS handshakes of clients that failed: the log names reasons."
        )
        self.log_lines_dropped = self._counter(
            "log_lines_dropped", "Log lines that could not be written: the log is not read, or its disk is full."
        )
        self.log_lines_sampled = self._counter(
            "log_lines_sampled", "Log lines of decisions that were left out: log.decisionsPerSecond names the rate."
        )
        self.sampled_requests = self._counter(
            "sampled_requests",
            "Requests that leave out nodes where the pod fits too: the scheduler samples (percentageOfNodesToScore). "
            "One request a second is looked at.",
        )

        self.record_bytes = self._counter("record_bytes", "Bytes written to the record (serve --record).")
        self.record_lost = self._counter(
            "record_lost",
            "Entries that the record lacks.",
            "cause",
        )

    def _watches(self) -> None:
        self.watch_restarts = self._counter(
            "watch_restarts",
            "Watches that were opened again after another end than the agreed one.",
            "kind",
        )
        self.watch_defects = self._counter(
            "watch_defects",
            "Unexpected exceptions, by what failed.",
            "kind",
        )
        self.invalid_objects = self._counter(
            "invalid_objects",
            "Objects (each version counts) that could not be read in full: /readyz names the first of them.",
            "kind",
            "reason",
        )
        self.cache_objects = self._gauge("cache_objects", "Kubernetes objects that we know.", "kind")
        self.cache_age = self._gauge("cache_age_seconds", "Time since the API server last sent anything.", "kind")
        self.dark = self._gauge(
            "dark_seconds",
            "Time since pods, nodes and budgets were all watched; 0 while they are.",
        )

    def _cluster(self) -> None:
        self.holds = self._gauge("holds", "Assumed pods.")
        self.plans = self._counter(
            "plans",
            "Planned pods that are seen to hold GPUs.",
            "outcome",
        )
        self.failing_nodes = self._gauge(
            "failing_nodes",
            "Nodes that are rejected for all pods because GPU pods failed there.",
        )
        self.failing_node_rejections = self._gauge(
            "failing_node_rejections",
            "Nodes that are rejected because GPU pods failed there, for all pods or for those of a namespace.",
            "scope",
        )
        self.pod_failures = self._counter(
            "pod_failures",
            "GPU pods that failed on their node.",
            "what",
        )
        self.double_claimed_gpus = self._gauge(
            "double_claimed_gpus", "GPUs that more than one pod holds by what we know; anything but 0 is a fault."
        )
        self.topology_disagreements = self._gauge(
            "topology_disagreements",
            "Nodes about whose GPUs two annotations or sources disagree: /debug/topologies.",
        )

    def _reservations(self) -> None:
        self.reservations = self._gauge("reservations", "Reservations for preemptors.")
        self.reservations_kept = self._gauge(
            "reservations_kept", "1 while the reservations can be read and written in the API server, else 0."
        )
        self.reservation_writes = self._counter("reservation_writes", "Writes before a preempt reply.", "result")
        self.reservation_write_duration = self._histogram(
            "reservation_write_duration_seconds",
            "What a write before a preempt reply took, its retries included.",
            BUCKETS,
        )
        self.reservations_released = self._counter("reservations_released", "Reservations that ended.", "cause")
        self.reservations_damaged = self._counter(
            "reservations_damaged", "Entries that could not be read, or that contradict the cluster."
        )
        self.advance_reservations = self._counter(
            "advance_reservations",
            "Advance reservations whose date has come.",
            "outcome",
        )
        self.advance_leader = self._gauge(
            "advance_leader", "1 while this instance holds the Lease of the advance reservations."
        )

    def _preemptions(self) -> None:
        self.preemption_victims = self._histogram(
            "preemption_victims",
            "Victims of each plan, by what evicts.",
            VICTIMS,
            "by",
        )
        self.save_requests = self._counter(
            "save_requests",
            "Pods that were asked to save, by their answer.",
            "result",
        )
        self.save_requests_work = self._counter(
            "save_requests_gpu_seconds",
            "Work of such pods, GPUs x seconds: what the request saved, and what was lost all the same, with the "
            "restarts.",
            "result",
            "priority_class",
            "namespace",
        )
        self._save_series: set[tuple[str, str]] = set()
        self.work_lost = self._histogram(
            "preemption_work_lost_gpu_seconds",
            "Work that the victims of each plan lose, with the broken gangs' other pods and the restarts: GPUs x "
            "seconds.",
            GPU_SECONDS,
            "by",
        )
        self.victim_searches = self._counter(
            "victim_searches",
            "Searches for victims.",
            "result",
            "proved",
        )
        self.victim_search_duration = self._histogram(
            "victim_search_duration_seconds", "What a search for victims took.", BUCKETS
        )
        self.events = self._counter("events", "Events that were written, or not.", "result")
        self.evictions = self._counter(
            "evictions", "Evictions by gpu-extender, by the answer of the API server.", "result"
        )
        self.evictions_leader = self._gauge("evictions_leader", "1 while this instance holds the Lease to evict.")

    def _fleet(self) -> None:
        self.gpus = self._gauge("gpus", "GPUs.", "model", "state")
        self.whole_nodes = self._gauge("whole_nodes", "Nodes that take pods and on which no pod holds a GPU.", "model")
        self.linked_sets = self._gauge(
            "linked_sets",
            "Disjoint linked sets of free GPUs.",
            "model",
            "gpus",
        )

    def _waiting(self) -> None:
        self.nodes_wanted = self._gauge(
            "nodes_wanted",
            "How many more nodes of a GPU model would start the pods that wait for room. Models are alternatives: "
            "they do not add up.",
            "model",
        )
        self.partial_gangs = self._gauge(
            "partial_gangs",
            "Gangs of which fewer pods have a node than must run together, for 5 minutes, while others wait.",
        )
        self.partial_gang_gpus = self._gauge("partial_gang_gpus", "GPUs that the pods of such gangs hold.")
        self.pending_pods = self._gauge("pending_pods", "GPU pods that wait.", "priority_class", "outranks")
        self.pending_oldest = self._gauge(
            "pending_oldest_seconds",
            "How long the first of these pods has waited.",
            "priority_class",
            "outranks",
        )
        self.waiting_pods = self._gauge(
            "waiting_pods",
            "GPU pods that wait, by the GPUs that each asks for. Only the holder of the Lease has the reasons of the "
            "queue.",
            "reason",
            "gpus",
        )

    def _queue(self) -> None:
        self.queue_leader = self._gauge("queue_leader", "1 while this instance holds the Lease of the queue.")
        self.queue_waiting = self._gauge(
            "queue_waiting",
            "Gangs and single pods behind our gate.",
            "reason",
            "pods",
        )
        self.queue_share = self._gauge(
            "queue_share",
            "The largest part that each queue holds of any GPU model, divided by its weight.",
            "queue",
        )
        self.queue_wanted_gpus = self._gauge(
            "queue_wanted_gpus",
            "GPUs that complete gangs within their quota wait for.",
            "queue",
            "model",
            "place",
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds",
            "From the creation of a gang's first pod to the reservation of its seats.",
            WAITS,
            "pods",
        )
        self.queue_start_windows = self._counter(
            "queue_start_windows",
            "Gangs that started after a wait of 60 s or more, against the window that was stated first.",
            "percent",
            "outcome",
        )
        self.queue_release_duration = self._histogram(
            "queue_release_duration_seconds",
            "From the reservation of a gang's seats to the last of its pods seen on a node.",
            WAITS,
        )
        self._seats()

    def _seats(self) -> None:
        self.queue_seats_ended = self._counter("queue_seats_ended", "Seats that ended.", "cause")
        self.queue_failed_pins = self._counter(
            "queue_failed_pins",
            "Pods that may run on one node alone (`queue.hardPins`) and do not get it.",
            "outcome",
        )
        self.queue_held_gpu_seconds = self._counter(
            "queue_held_gpu_seconds",
            "GPUs x seconds that seats held before their pods were bound.",
            "state",
        )
        self.queue_evictions = self._counter(
            "queue_evictions",
            "Pods that were evicted for gangs in the queue.",
            "outcome",
        )
        self.queue_absent_gpu_seconds = self._counter(
            "queue_absent_gpu_seconds",
            "GPUs x seconds that seats held for pods that do not exist yet.",
        )

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

    def _settings(self) -> None:
        self.degraded_parts = self._gauge(
            "degraded", "1 while a part does not work although verbs are answered: /readyz has why.", "part"
        )
        self.degraded = Degraded(self.degraded_parts)
        self.settings_info = self._gauge("settings_info", "1 for the settings that count now, by their hash.", "hash")
        self.settings_reloads = self._counter("settings_reloads", "Changes of the settings file.", "result")

    def state(self, settings: str) -> None:
        """These settings count now. `settings`: their hash."""
        self.settings_info.clear()
        self.settings_info.labels(settings).set(1)

    def _shadow(self) -> None:
        """Only shadow mode counts these."""
        self.shadow_placements = self._counter(
            "shadow_placements", "Pods that kube-scheduler bound in shadow mode, by our choice.", "outcome"
        )
        self.shadow_linked_pods = self._counter(
            "shadow_linked_pods", "Pods with two GPUs or more on linked GPUs, as predicted.", "by"
        )
        self.shadow_ring_gbps = self._counter(
            "shadow_ring_gbps", "Ring bandwidth of those pods in GB/s, as predicted.", "by"
        )
        self.shadow_whole_nodes_broken = self._counter(
            "shadow_whole_nodes_broken", "Pods that took a part of a node without GPU pods.", "by"
        )
        self.shadow_victims = self._counter("shadow_victims", "Victims of preemptions in shadow mode.", "by")
        self.shadow_gangs_broken = self._counter(
            "shadow_gangs_broken", "Gangs broken by preemptions in shadow mode.", "by"
        )
        self.shadow_work_lost = self._counter(
            "shadow_work_lost_gpu_seconds", "Work that preemptions in shadow mode lose.", "by"
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        self.labels[name] = labels
        return Histogram(name, text, labels, namespace=PREFIX, registry=self.registry, buckets=buckets)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self.labels[name] = labels
        return Counter(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self.labels[name] = labels
        return Gauge(name, text, labels, namespace=PREFIX, registry=self.registry)
