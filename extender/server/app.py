"""The HTTP shell: Starlette routes and lifespan. It reads bodies, performs intents, counts; it decides nothing.

A verb is answered in one go on the event loop. While a list is missing every verb answers 503: never a guess.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import uvicorn
from prometheus_client import Counter, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from extender.cluster.cluster import Cluster
from extender.cluster.dump import BLOCK
from extender.cluster.health.node_health import Change
from extender.cluster.listener import Listener
from extender.controllers.document import Document
from extender.controllers.events import Events
from extender.controllers.evictions import Evictions
from extender.controllers.live import Live
from extender.controllers.reservations import ReservationStore
from extender.controllers.tenants import RESTART_SECONDS
from extender.errors import BadRequest, BodyTooLarge, Busy, ExtenderError
from extender.kube.client import CredentialsError
from extender.log import dropped_lines, get_log
from extender.metrics import Metrics
from extender.objects import tolerant
from extender.objects.records import PodRecord
from extender.objects.tolerant import Faults, Invalid
from extender.offline import frozen
from extender.policy.rules import REASONS, UNKNOWN_NODE
from extender.reservations.freshness import Freshness
from extender.reservations.release import CAUSES
from extender.reservations.reservations import Reservation
from extender.server import connections
from extender.server.connections import Connections
from extender.settings import Settings
from extender.verbs import decisions, wire
from extender.verbs.answer import Answer
from extender.verbs.bind import BindIntent, Written
from extender.verbs.verbs import Verbs
from extender.web import decision_page, pages
from extender.web.pages import Pages
from extender.web.slices import Slices

VERBS = ("filter", "prioritize", "preempt", "bind")
# A preempt call that evicts no pod parks its own in kube-scheduler until something happens. So while no pod may be
# evicted it looks whether the API server is back (once in a while, since kube-scheduler waits with us), and waits if it
# is, for less than the httpTimeout of manifests/kube-scheduler-config.yaml.
LOOK_SECONDS, LOOK_EVERY, RETURN_SECONDS = 0.25, 2.0, 1.6
LONGEST_DOUBT = 30.0  # seconds without such a wait after many in vain: an API server may answer errors for minutes
NOT_READY_SECONDS = 60.0  # without the API server's word for so long: not ready
YIELD_SECONDS = 12.0  # kube-scheduler retries a pod that met us dead after at most 10 s
SETTLE_SECONDS = 0.02  # how long a refusal of all nodes waits for a watch that may be a few milliseconds behind
# A decision leaves some 70 objects behind, so that by Python's own threshold one call in a hundred would pay for
# collections of 1 ms: the 99th percentile. They are made once the answer is sent; Python's own is the safety net.
YOUNG, MIDDLE, OLD = 700, 10, 100
SAFETY_NET = 10_000
SETTLES_PER_SECOND = 5.0
MOST_SETTLES = 5  # for a pod that is to land where others were evicted for it
MOST_INVALID = 20  # invalid objects that are named in one answer
MIX = "gpu-extender-mix"  # the ConfigMap of what is learned of the pods that come
T = TypeVar("T")
log = get_log()


class Binder(Protocol):
    """Performs bind's write; a pod that is bound there already counts as bound."""

    async def pod(self, namespace: str, name: str) -> PodRecord | None: ...

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written: ...


class Keeper(Protocol):
    """Keeps what must outlive us. `reserve` answers "" once the plan is kept, else why it is not; `read_back`: whether
    what a process before us kept is known."""

    @property
    def read_back(self) -> bool: ...

    async def reserve(self, plan: Reservation) -> str: ...


class Source(Protocol):
    """Where the cluster's state comes from. `missing`: what is not known yet, for people; empty when ready."""

    def missing(self) -> list[str]: ...

    def ready_at(self) -> float | None:
        """When everything was known for the first time, on the server's clock; None where no scheduler counts too."""
        ...

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since pods or nodes were watched for the last time (`evicting`: or budgets); 0 while all are."""
        ...

    def hurry(self) -> None:
        """Look at once whether what is dark can be seen again."""
        ...

    def returning(self) -> bool:
        """Whether what is dark will be seen within a moment."""
        ...

    def known_at(self) -> float | None:
        """Until when all that happened to pods is known, on the server's clock; None where that is always now."""
        ...

    def ages(self) -> dict[str, float]: ...

    def restarts(self) -> dict[str, int]: ...

    def faults(self) -> Faults:
        """What could not be read in full, and what went wrong in a watch."""
        ...

    async def run(self) -> None: ...


class Frozen:
    """A cluster that does not change."""

    def __init__(self, beside: Callable[[], Awaitable[None]] | None = None, invalid: Sequence[Invalid] = ()) -> None:
        """`beside`: what runs as long as it is served; `invalid`: the objects that were not read in full."""
        self._beside, self._invalid = beside, list(invalid)

    def missing(self) -> list[str]:
        return []

    def ready_at(self) -> None:
        return None

    def dark(self, *, evicting: bool = False) -> float:
        return 0.0

    def hurry(self) -> None:
        return

    def returning(self) -> bool:
        return False

    def known_at(self) -> None:
        return None

    def ages(self) -> dict[str, float]:
        return {}

    def restarts(self) -> dict[str, int]:
        return {}

    def faults(self) -> Faults:
        return Faults(self._invalid)

    async def run(self) -> None:
        if self._beside is not None:
            await self._beside()


class Server(Listener):
    """The verbs of one process. `source` fills `cluster`; `binder` is None where the bind verb can not write."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        source: Source | None = None,
        binder: Binder | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        slices: Slices | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.source: Source = source or Frozen()
        self.binder = binder
        self.keeper: Keeper | None = None
        self.events: Events | None = None
        self.evictions: Evictions | None = None
        self.metrics = metrics or Metrics()
        self.clock, self.wall = clock, wall
        freshness = Freshness(
            lambda: self.source.dark(), lambda: self.source.known_at(), settings.watch.staleness_seconds
        )
        self.verbs = Verbs.of(settings, cluster, freshness=freshness, released=self._released)
        cluster.subscribe(self)
        self.failure: Exception | None = None
        self.failed: Callable[[Exception], None] = lambda error: None
        self._warned = False
        self._looked_at = self._trusted_from = float("-inf")
        self._vain_waits = 0
        self._was_ready = False
        self._settles = dict.fromkeys((False, True), SETTLES_PER_SECOND)
        self._settled_at = dict.fromkeys((False, True), clock())
        self._counted: dict[Counter, int] = {}
        self.pages = Pages(slices or Slices())
        self.connections = Connections(settings, self.metrics)
        self.source_defects = 0

    async def watch(self) -> None:
        """Run the source. Without credentials there is nothing to serve; any other failure is a defect: it is logged,
        and the source is run again, while the verbs are answered by what is known and how old that is."""
        while True:
            try:
                await self.source.run()
                return
            except CredentialsError as error:
                self.failure = error
                log.error("the cluster cannot be watched", err=str(error))
                self.failed(error)
                return
            except Exception:
                self.source_defects += 1
                log.exception("defect", controller="source")
                await asyncio.sleep(RESTART_SECONDS)

    # -- the verbs ------------------------------------------------------------------------------------------------

    async def verb(self, request: Request) -> Response:
        verb = request.path_params["verb"] if "verb" in request.path_params else request.url.path.rsplit("/", 1)[-1]
        began = time.perf_counter()
        try:
            body = await self._body(request)
            missing = self.source.missing()
            if missing:
                return self._done(
                    verb, began, "not_ready", _error(503, "not-ready", "not known yet: " + ", ".join(missing))
                )
            if not self._was_ready:
                self._was_ready = True
                began_at = self.source.ready_at()
                if began_at is not None:
                    guess = self.keeper is None or not self.keeper.read_back
                    self.verbs.freshness.started(
                        began_at,
                        yield_seconds=YIELD_SECONDS if guess else 0.0,
                        settle_seconds=self.settings.hold.seconds,
                    )
            answer = await self._answer(verb, body)
        except BadRequest as error:
            self.metrics.bad_requests.labels(verb, error.code).inc()
            log.warning("bad request", verb=verb, code=error.code, path=error.path, err=error.message[:300])
            return self._done(verb, began, "bad_request", _refusal(verb, error))
        except ClientDisconnect:
            return self._done(verb, began, "gone", Response(status_code=400))
        except Exception as error:
            log.exception("defect", verb=verb)
            return self._done(verb, began, "error", _refusal(verb, ExtenderError(f"internal error: {error!r}"[:300])))
        self.metrics.decisions.labels(verb, answer.result).inc()
        if answer.decision is not None:
            for code, count in answer.decision.reasons.items():
                self.metrics.refused_nodes.labels(REASONS[code].key).inc(count)
            if "sampled" in answer.decision.detail:
                sampled = answer.decision.detail["sampled"]
                self._sampled(sampled["named"], sampled["schedulable_gpu_nodes"])
            if verb == "filter" and answer.decision.unknown_count:  # they have no row, and so no code
                self.metrics.refused_nodes.labels(UNKNOWN_NODE.key).inc(answer.decision.unknown_count)
        told = BackgroundTask(self._after, verb, answer, self._node_of(answer))
        response = Response(answer.body, media_type="application/json", background=told)
        return self._done(verb, began, "ok", response)

    async def _answer(self, verb: str, body: bytes) -> Answer:
        if verb == "filter":
            answer = self.verbs.filter.answer(body, self.clock(), self.wall())
            owed = self._owed(answer)
            for _ in range(MOST_SETTLES if owed else 1):
                if answer.result not in ("refused", "try-again") or not self._may_settle(owed):
                    break
                generation = self.cluster.generation
                await asyncio.sleep(SETTLE_SECONDS)  # the scheduler may know of an event that is on its way to us
                if self.cluster.generation != generation:
                    answer = self.verbs.filter.answer(body, self.clock(), self.wall())
            self._aside(self.evictions, lambda evictions: evictions.filtered(answer, body))
            return answer
        if verb == "prioritize":
            return self.verbs.prioritize.answer(body, self.clock(), self.wall())
        if verb == "preempt":
            dark = await self._dark()
            if dark >= self.settings.watch.staleness_seconds:
                log.warning("no pod is evicted: pods, nodes or budgets are not watched", seconds=round(dark))
                return Answer(wire.preemption(None), "dark")
            answer = self.verbs.preempt.answer(body, self.clock(), self.wall())
            if answer.decision is not None:
                self.metrics.searched(answer.decision.proved, answer.result, answer.decision.stages_us)
            self._aside(self.evictions, lambda evictions: evictions.preempted(answer))
            return await self._reserved(answer) if answer.result == "evict" else answer
        return await self._bind(body)

    async def _dark(self) -> float:
        """As `Source.dark` for evictions; of an API server that is just back after a moment."""
        most, began, wait = self.settings.watch.staleness_seconds, self.clock(), 0.0
        dark = self.source.dark(evicting=True)
        if dark >= most and began - self._looked_at >= LOOK_EVERY:
            self._looked_at, wait = began, LOOK_SECONDS
            self.source.hurry()
        trusted = began >= self._trusted_from
        while dark >= most and self.clock() - began < (RETURN_SECONDS if trusted and self.source.returning() else wait):
            await asyncio.sleep(SETTLE_SECONDS)
            dark = self.source.dark(evicting=True)
        if dark < most:
            self._vain_waits = 0
        elif (now := self.clock()) - began >= RETURN_SECONDS:  # kube-scheduler schedules no pod at all meanwhile
            self._trusted_from = now + min(RETURN_SECONDS * 2.0 ** min(self._vain_waits, 32), LONGEST_DOUBT)
            self._vain_waits += 1
        return dark

    async def _reserved(self, answer: Answer) -> Answer:
        """The eviction, once its plan is kept; where it can not be kept nobody is evicted and nothing is reserved."""
        decision, reservations = answer.decision, self.verbs.reservations
        assert decision is not None
        request = decision.request
        plan = reservations.of(request.uid, self.clock())
        assert plan is not None
        why = await self.keeper.reserve(plan) if self.keeper is not None else ""
        stands = reservations.of(request.uid, self.clock()) is plan
        if stands and not why:
            self.metrics.planned("kube-scheduler", len(plan.victims), decision.value_of(decisions.WORK_LOST))
            self._aside(self.events, lambda events: events.planned(plan, decision.detail))
            return answer
        if stands:
            reservations.drop(request.uid)
            text = f"nobody is evicted: the plan is not kept: {why}"
            self._aside(self.events, lambda events: events.about(plan, "PreemptionNotReserved", text))
        decision.result = "not-reserved"
        decision.error = f"the reservation is not kept: {why or 'its pod is gone, or has a node'}"
        return Answer(wire.preemption(None), decision.result, decision)

    @staticmethod
    def _aside(controller: T | None, tell: Callable[[T], None]) -> None:
        """Tell a controller what happened; a defect in it is logged, and does not spoil the answer."""
        if controller is None:
            return
        try:
            tell(controller)
        except Exception:
            log.exception("defect", controller=type(controller).__name__)

    async def _bind(self, body: bytes) -> Answer:
        binding = wire.read_binding(body)
        if self.binder is None:
            return Answer(wire.binding("this server can not bind: it serves a frozen cluster"), "refused")
        pod = self.cluster.pods.get(binding.uid) or await self.binder.pod(binding.namespace, binding.name)
        if pod is None or pod.uid != binding.uid:
            return Answer(wire.binding("the pod is gone, or another one has its name now"), "refused")
        if pod.partial:
            return Answer(wire.binding("the pod cannot be read in full: /readyz names the field"), "refused")
        answer = self.verbs.bind.answer(binding, pod, self.clock(), self.wall())
        if isinstance(answer, BindIntent):
            outcome = await self.binder.bind(answer.binding, answer.annotations)
            answer = self.verbs.bind.written(answer, outcome, self.clock())
        return answer

    async def _body(self, request: Request) -> bytes:
        most = self.settings.limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise BodyTooLarge(f"the body has {length} bytes, the limit is {most} (settings: limits.bodyBytes)")
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            refused = connections.refusal(request.scope)
            if refused is not None:
                parts.clear()  # the connection keeps the error, which keeps this frame
                raise refused
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > most:
                raise BodyTooLarge(f"the body has more than {most} bytes (settings: limits.bodyBytes)")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _owed(self, answer: Answer) -> bool:
        """Whether the pod has had others evicted, and what they left may be free in the scheduler's view already: an
        Error would keep it back for a second and more, in which a higher priority may take its place."""
        if answer.result != "try-again" or answer.decision is None:
            return False
        return self.verbs.reservations.of(answer.decision.request.uid, self.clock()) is not None

    def _may_settle(self, owed: bool) -> bool:
        """A live cluster's refusals wait a moment, a few times a second at most: the scheduler waits with us. Pods that
        others were evicted for do not share that with all the others, which may be refused at any event."""
        if isinstance(self.source, Frozen):
            return False
        now = self.clock()
        earned = (now - self._settled_at[owed]) * SETTLES_PER_SECOND
        self._settles[owed] = min(SETTLES_PER_SECOND, self._settles[owed] + earned)
        self._settled_at[owed] = now
        if self._settles[owed] < 1.0:
            return False
        self._settles[owed] -= 1.0
        return True

    def _done(self, verb: str, began: float, result: str, response: Response) -> Response:
        self.metrics.request_duration.labels(verb, result).observe(time.perf_counter() - began)
        return response

    def node_rejected(self, node: str, text: str) -> None:
        """Write an Event on the node."""
        self._about_node(node, "GPUPodsFail", text, warning=True)

    def node_accepted(self, node: str, text: str) -> None:
        """Write an Event on the node."""
        self._about_node(node, "GPUPodsAllowed", text, warning=False)

    def _about_node(self, name: str, reason: str, text: str, *, warning: bool) -> None:
        node = self.cluster.nodes.get(name)
        if self.events is not None and node is not None:
            self.events.node(name, node.uid, reason, text, warning=warning)

    def node_rejected_for(self, change: Change) -> None:
        """Write an Event on the pod that failed last: the tenant sees its own Events, and not those of nodes."""
        failed = change.latest
        if self.events is not None and failed is not None:
            self.events.tenant(failed.party.namespace, failed.name, failed.uid, f"node {change.node}: {change.text}")

    def _released(self, reservation: Reservation, cause: str) -> None:
        """Count a reservation that ends."""
        self.metrics.reservations_released.labels(cause).inc()
        log.info(
            "reservation released",
            pod=reservation.pod or reservation.uid,
            node=reservation.node,
            plan=reservation.id,
            why=CAUSES[cause],
        )

    def _sampled(self, given: int, known: int) -> None:
        self.metrics.sampled_requests.inc()
        if not self._warned:
            self._warned = True
            log.warning(
                "kube-scheduler names fewer nodes than there are schedulable GPU nodes: the others are full, tainted "
                "or not selected, or it samples (then set percentageOfNodesToScore: 100); said once, counted in "
                "gpu_extender_sampled_requests_total",
                given=given,
                known=known,
            )

    def _node_of(self, answer: Answer) -> str | None:
        """The node that the answer is about, by the names of this moment."""
        decision = answer.decision
        if decision is None:
            return None
        return self.cluster.names[decision.ranked[0]] if decision.ranked else decision.detail.get("node")

    async def _after(self, verb: str, answer: Answer, node: str | None) -> None:
        """Once the answer is sent: nobody has to wait for it. A coroutine, or Starlette would use a thread."""
        self._log(verb, answer, node)
        young, middle, old = gc.get_count()
        if young > YOUNG:
            gc.collect(2 if old > OLD else 1 if middle > MIDDLE else 0)

    def _log(self, verb: str, answer: Answer, node: str | None) -> None:
        decision = answer.decision
        if decision is None:
            return
        request = decision.request
        log.info(
            "decided",
            verb=verb,
            pod=f"{request.namespace}/{request.name}",
            result=answer.result,
            candidates=decision.candidates,
            feasible=len(decision.fits),
            node=node,
            plan=decision.detail.get("plan"),
            why=decision.detail.get("why"),
            err=decision.error or None,
            us=round(sum(decision.stages_us.values())),
            **decision.logged(),
        )

    # -- what people and Prometheus read --------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        return Response("ok", media_type="text/plain")

    async def readyz(self, request: Request) -> Response:
        missing = self.source.missing()
        if missing:
            return JSONResponse({"ready": False, "missing": missing}, status_code=503)
        dark = self.source.dark()
        if dark >= NOT_READY_SECONDS:
            missing = [f"pods or nodes have not been watched for {dark:.0f} s: the API server is silent or away"]
            return JSONResponse({"ready": False, "missing": missing}, status_code=503)
        said = {"ready": True, "missing": [], "generation": self.cluster.generation, "warnings": self._invalid()}
        return JSONResponse(said)

    def _invalid(self) -> list[dict[str, str]]:
        """The objects that could not be read in full, MOST_INVALID at most: they do not make the server unready."""
        return tolerant.warnings(self.source.faults().invalid, MOST_INVALID)

    async def metrics_page(self, request: Request) -> Response:
        text = await self.pages.whole(self._metrics())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _metrics(self) -> Iterator[bytes]:
        """The page in small pieces; what is counted here is, too."""
        cluster, metrics = self.cluster, self.metrics
        for kind, count in (
            ("Node", len(cluster.nodes)),
            ("Pod", len(cluster.pods)),
            ("PodDisruptionBudget", len(cluster.budgets.records)),
            ("PriorityClass", len(cluster.priority_classes)),
            ("DeviceClass", len(cluster.device_classes)),
        ):
            metrics.cache_objects.labels(kind).set(count)
        metrics.dark.set(self.source.dark(evicting=True))
        for kind, age in self.source.ages().items():
            metrics.cache_age.labels(kind).set(age)
        yield b""
        for kind, restarts in self.source.restarts().items():
            self._count(metrics.watch_restarts.labels(kind), restarts)
        for outcome, count in cluster.gpus.drifts.items():
            self._count(metrics.plans.labels(outcome), count)
        faults = self.source.faults()
        rejected = {**faults.rejected} | {(kind, "not-held"): count for kind, count in cluster.faulted.items()}
        for key, count in rejected.items():
            self._count(metrics.invalid_objects.labels(*key), count)
        for kind, count in ({**faults.defects} | {"source": self.source_defects}).items():
            self._count(metrics.watch_defects.labels(kind), count)
        for what, count in cluster.health.counts.items():
            self._count(metrics.pod_failures.labels(what), count)
        self._count(metrics.log_lines_dropped, dropped_lines())
        yield b""
        metrics.failing_nodes.set(len(cluster.health.refused()))
        metrics.failing_node_rejections.labels("all").set(len(cluster.health.refused()))
        metrics.failing_node_rejections.labels("namespace").set(cluster.health.tenant_rejections())
        metrics.reservations.set(len(self.verbs.reservations.all()))
        metrics.holds.set(self.verbs.assumed.count(self.clock()))
        yield b""
        disagreements = yield from _total(cluster.gpus.topologies, lambda seen: bool(seen.disagreements))
        metrics.topology_disagreements.set(disagreements)
        doubled = yield from _total(cluster.gpus.ledgers, lambda ledger: ledger.doubled)
        metrics.double_claimed_gpus.set(doubled)
        for family in metrics.registry.collect():
            yield generate_latest(_Family(family))

    def _count(self, counter: Counter, now: int) -> None:
        """Let a counter follow a number that something else counts."""
        counter.inc(now - self._counted.get(counter, 0))
        self._counted[counter] = now

    async def debug_topologies(self, request: Request) -> Response:
        """`?node=`: of one."""
        return self._page(pages.topologies(self.cluster, request.query_params.get("node")))

    async def debug_decisions(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`: of this pod alone; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        text = request.query_params.get("pod")
        pod = None
        if text is not None:
            namespace, slash, name = text.partition("/")
            if not slash or not namespace or not name:
                return _error(400, "bad-request", "pod is NAMESPACE/NAME", "pod")
            pod = namespace, name
        most = _number(request, "most", 20)
        nodes = _number(request, "nodes", 100)
        if most is None or nodes is None:
            return _error(400, "bad-request", "most and nodes are whole numbers", "most")
        weights = {entry.name: entry.weight for entry in self.settings.scorers}
        shown = min(nodes, pages.MOST_NODES)
        kept = list(self.verbs.decisions.latest())
        return self._page(
            pages.decision_list(
                kept,
                pod,
                max(1, min(most, pages.MOST_DECISIONS)),
                lambda decision: decision_page.pieces(decision, self.cluster, weights, shown),
            )
        )

    async def debug_state(self, request: Request) -> Response:
        """What `gpu-extender compare` compares: the cache as it is now."""
        return self._page(pages.state(self.cluster, self._invalid()))

    def _page(self, pieces: Iterator[bytes]) -> Response:
        try:
            return self.pages.page(pieces)
        except Busy as error:
            response = _error(error.status, error.code, error.message)
            response.headers["retry-after"] = str(pages.RETRY_SECONDS)
            return response


class _Family:
    """One metric as a registry of its own."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def _total(of: Mapping[str, T], value: Callable[[T], int]) -> Generator[bytes, None, int]:
    """The sum of a value over all nodes, in blocks, while the mapping may change."""
    names, total = list(of), 0
    for at in range(0, len(names), 4 * BLOCK):
        total += sum(value(of[name]) for name in names[at : at + 4 * BLOCK] if name in of)
        yield b""
    return total


def _number(request: Request, key: str, default: int) -> int | None:
    text = request.query_params.get(key, str(default))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _error(status: int, code: str, message: str, path: str = "") -> Response:
    return JSONResponse({"error": {"code": code, "path": path, "message": message}}, status_code=status)


async def _no_page(request: Request, error: Exception) -> Response:
    """A scheduler whose urlPrefix is wrong asks here, and shows its users the status alone: our log has to tell."""
    path = request.url.path[:200]
    if request.method == "POST":
        log.warning("nothing is served here: is urlPrefix in the scheduler's configuration right?", path=path)
    there = ", ".join(route.path for route in request.app.routes)
    return _error(404, "not-found", f"nothing is served here; there are {there}", path)


def _refusal(verb: str, error: ExtenderError) -> Response:
    """An error in the form that the verb understands: `Error` where it has one, else a status that is not 200."""
    text = f"gpu-extender: {error}"
    if verb == "filter":
        return Response(wire.filter_error(text), media_type="application/json")
    if verb == "bind":
        return Response(wire.binding(text), media_type="application/json")
    return _error(error.status if error.status != 500 else 503, error.code, error.message, error.path)


def create(server: Server) -> Starlette:
    """The application. Its lifespan runs the source: the watches begin when the server does, and end with it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(server.watch()), asyncio.create_task(server.connections.watch())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    endpoint: Callable[[Request], Awaitable[Response]]
    routes = [Route(f"/v1/{verb}", server.verb, methods=["POST"]) for verb in VERBS]
    for path, endpoint in (
        ("/healthz", server.healthz),
        ("/livez", server.healthz),
        ("/readyz", server.readyz),
        ("/metrics", server.metrics_page),
        ("/debug/decisions", server.debug_decisions),
        ("/debug/topologies", server.debug_topologies),
        ("/debug/state", server.debug_state),
    ):
        routes.append(Route(path, endpoint, methods=["GET"]))
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _no_page})
    app.router.redirect_slashes = False  # a redirect would cost the scheduler a trip
    app.state.connections = server.connections
    return app


def config(app: Starlette, settings: Settings) -> uvicorn.Config:
    """uvicorn, for one process: connections outlive the scheduler's 90 s, a stop waits 5 s for what is under way.

    `app`: of `create`. Its connections have limits of their own (extender.server.connections)."""
    return uvicorn.Config(
        app,
        http=app.state.connections.protocol(),
        ws="none",
        host=settings.server.host,
        port=settings.server.port,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=5,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
    )


def run(settings: Settings, *, kubeconfig: str | None = None, cluster_file: Path | None = None) -> int:
    """Serve until a signal ends it; 0, or 1 when the source failed for good.

    `cluster_file`: a frozen cluster; else the API server of `kubeconfig`, else the one whose pod this is.
    """
    gc.set_threshold(SAFETY_NET)
    cluster = Cluster(settings, live=cluster_file is None)
    if cluster_file is not None:
        invalid: list[Invalid] = []
        cluster.apply(frozen.read(cluster_file, cluster.gpu_names, invalid), time.monotonic())
        for warning in tolerant.warnings(invalid, MOST_INVALID):
            log.warning("an object cannot be read in full", err=warning["message"])
        gc.collect()
        gc.freeze()  # as Live does
        server = Server(settings, cluster)
        server.evictions = Evictions(
            server.verbs, None, Events(server.metrics, enabled=False), server.metrics, clock=server.clock
        )
        server.source = Frozen(server.evictions.advise, invalid)
        log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(cluster_file))
    else:
        live = Live(cluster, kubeconfig, staleness=settings.watch.staleness_seconds)
        server = Server(settings, cluster, source=live, binder=live)
        reservations = ReservationStore(server.verbs, server.metrics, ready=live.listed)
        server.keeper = reservations
        server.events = Events(server.metrics, enabled=settings.events.enabled)
        server.evictions = Evictions(
            server.verbs,
            reservations,
            server.events,
            server.metrics,
            ready=live.ready,
            dark=lambda: live.dark(evicting=True),
        )
        if settings.reservations.store == "configmap":
            live.documents.append(
                Document(MIX, cluster.demand.dump, cluster.demand.load, namespace=settings.reservations.namespace)
            )
        live.tenants += [reservations, server.events, server.evictions]
    # uvicorn stops gracefully and then raises the signal again, which would end the process before its last log lines.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    host = uvicorn.Server(config(create(server), settings))
    server.failed = lambda error: setattr(host, "should_exit", True)
    host.run()
    return 0 if host.started and server.failure is None else 1
