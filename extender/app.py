"""The HTTP shell: Starlette routes and lifespan. It reads bodies, performs intents, counts; it decides nothing.

A verb is answered in one go on the event loop. While a list is missing every verb answers 503: never a guess.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import orjson
import uvicorn
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from extender import compare, decisions, frozen, leave, preempt, wire
from extender.cluster import Cluster
from extender.controllers.document import Document
from extender.controllers.events import Events
from extender.controllers.evictions import Evictions
from extender.controllers.live import Live
from extender.controllers.reservations import Reservations
from extender.decide import Answer, BindIntent, Decider
from extender.errors import BadRequest, BodyTooLarge, ExtenderError
from extender.holds import Plan
from extender.log import get_log
from extender.metrics import Metrics
from extender.records import PodRecord
from extender.rules import REASONS, UNKNOWN_NODE
from extender.settings import Settings

VERBS = ("filter", "prioritize", "preempt", "bind")
DARK_SECONDS = 10.0  # a watch that is down for longer: nobody is evicted by what we remember
NOT_READY_SECONDS = 60.0  # and for this long: not ready
YIELD_SECONDS = 12.0  # kube-scheduler retries a pod that met us dead after at most 10 s
SETTLE_SECONDS = 0.02  # how long a refusal of all nodes waits for a watch that may be a few milliseconds behind
# A decision leaves some 70 objects behind, so that by Python's own threshold one call in a hundred would pay for
# collections of 1 ms: the 99th percentile. They are made once the answer is sent; Python's own is the safety net.
YOUNG, MIDDLE, OLD = 700, 10, 100
SAFETY_NET = 10_000
SETTLES_PER_SECOND = 5.0
MOST_SETTLES = 5  # for a pod that is to land where others were evicted for it
MIX = "gpu-extender-mix"  # the ConfigMap of what is learned of the pods that come
T = TypeVar("T")
log = get_log()


class Binder(Protocol):
    """Performs bind's write. `bind` answers "" or what went wrong; a pod that is bound there already is "" too."""

    async def pod(self, namespace: str, name: str) -> PodRecord | None: ...

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> str: ...


class Keeper(Protocol):
    """Keeps what must outlive us. `reserve` answers "" once the plan is kept, else why it is not; `read_back`: whether
    what a process before us kept is known."""

    @property
    def read_back(self) -> bool: ...

    async def reserve(self, plan: Plan) -> str: ...


class Source(Protocol):
    """Where the cluster's state comes from. `missing`: what is not known yet, for people; empty when ready."""

    def missing(self) -> list[str]: ...

    def ready_at(self) -> float | None:
        """When everything was known for the first time, on the server's clock; None where no scheduler counts too."""
        ...

    def dark(self) -> float:
        """Seconds since when what we know may be out of date, because a watch is down; 0 while all is well."""
        ...

    def ages(self) -> dict[str, float]: ...

    def restarts(self) -> dict[str, int]: ...

    async def run(self) -> None: ...


class Frozen:
    """A cluster that does not change."""

    def __init__(self, beside: Callable[[], Awaitable[None]] | None = None) -> None:
        """`beside`: what runs as long as it is served."""
        self._beside = beside

    def missing(self) -> list[str]:
        return []

    def ready_at(self) -> None:
        return None

    def dark(self) -> float:
        return 0.0

    def ages(self) -> dict[str, float]:
        return {}

    def restarts(self) -> dict[str, int]:
        return {}

    async def run(self) -> None:
        if self._beside is not None:
            await self._beside()


class Server:
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
        self.decider = Decider.of(settings, cluster)
        cluster.on_node_refused = lambda name, text: self._about_node(name, "GPUPodsFail", text, warning=True)
        cluster.on_node_trusted = lambda name, text: self._about_node(name, "GPUPodsAllowed", text, warning=False)
        self.decider.sampled = self._sampled
        self.decider.leaves = partial(leave.leaves, self.decider)
        self.failure: Exception | None = None
        self.failed: Callable[[Exception], None] = lambda error: None
        self._warned = False
        self._was_ready = False
        self._settles = dict.fromkeys((False, True), SETTLES_PER_SECOND)
        self._settled_at = dict.fromkeys((False, True), clock())
        self._watch_restarts: dict[str, int] = {}
        self._drifts: dict[str, int] = {}
        self._pod_failures: dict[str, int] = {}

    async def watch(self) -> None:
        """Run the source; when it fails for good there is nothing left to serve."""
        try:
            await self.source.run()
        except Exception as error:
            self.failure = error
            log.error("the cluster can not be watched", err=str(error))
            self.failed(error)

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
                    self.decider.live = True
                    if self.keeper is None or not self.keeper.read_back:
                        self.decider.yields_until = began_at + YIELD_SECONDS
                    self.decider.settled_at = began_at + self.settings.hold.seconds
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
            if verb == "filter" and answer.decision.unknown:  # they have no row, and so no code
                self.metrics.refused_nodes.labels(UNKNOWN_NODE.key).inc(len(answer.decision.unknown))
        told = BackgroundTask(self._after, verb, answer, self._node_of(answer))
        response = Response(answer.body, media_type="application/json", background=told)
        return self._done(verb, began, "ok", response)

    async def _answer(self, verb: str, body: bytes) -> Answer:
        if verb == "filter":
            answer = self.decider.filter(body, self.clock(), self.wall())
            owed = self._owed(answer)
            for _ in range(MOST_SETTLES if owed else 1):
                if answer.result not in ("refused", "try-again") or not self._may_settle(owed):
                    break
                generation = self.cluster.generation
                await asyncio.sleep(SETTLE_SECONDS)  # the scheduler may know of an event that is on its way to us
                if self.cluster.generation != generation:
                    answer = self.decider.filter(body, self.clock(), self.wall())
            self._aside(self.evictions, lambda evictions: evictions.filtered(answer, body))
            return answer
        if verb == "prioritize":
            return self.decider.prioritize(body, self.clock(), self.wall())
        if verb == "preempt":
            dark = self.source.dark()
            if dark > DARK_SECONDS:
                log.warning("nobody is evicted: pods or nodes are not watched", seconds=round(dark))
                return Answer(wire.preemption(None), "dark")
            answer = preempt.preempt(self.decider, body, self.clock(), self.wall())
            if answer.decision is not None:
                self.metrics.searched(answer.decision.proved, answer.result, answer.decision.stages_us)
            self._aside(self.evictions, lambda evictions: evictions.preempted(answer))
            return await self._reserved(answer) if answer.result == "evict" else answer
        return await self._bind(body)

    async def _reserved(self, answer: Answer) -> Answer:
        """The eviction, once its plan is kept; where it can not be kept nobody is evicted and nothing is reserved."""
        decision, holds, pods, now = answer.decision, self.decider.holds, self.cluster.pods, self.clock()
        assert decision is not None
        request = decision.request
        plan = holds.planned(request.uid, now)
        assert plan is not None
        plan.pod = f"{request.namespace}/{request.name}"
        plan.grace = max((pods[uid].grace_seconds for uid in plan.victims if uid in pods), default=0)
        decision.detail["plan"] = plan.id
        why = await self.keeper.reserve(plan) if self.keeper is not None else ""
        stands = holds.planned(request.uid, self.clock()) is plan
        if stands and not why:
            self.metrics.planned("kube-scheduler", len(plan.victims), decision.value_of(decisions.WORK_LOST))
            self._aside(self.events, lambda events: events.planned(plan, decision.detail))
            return answer
        if stands:
            holds.drop_plan(request.uid)
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
        answer = self.decider.bind(binding, pod, self.clock(), self.wall())
        if isinstance(answer, BindIntent):
            error = await self.binder.bind(answer.binding, answer.annotations)
            answer = self.decider.bound(answer, error, self.clock())
        return answer

    async def _body(self, request: Request) -> bytes:
        most = self.settings.limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise BodyTooLarge(f"the body has {length} bytes, the limit is {most} (settings: limits.bodyBytes)")
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise BodyTooLarge(f"the body has more than {most} bytes (settings: limits.bodyBytes)")
            parts.append(part)
        return b"".join(parts)

    def _owed(self, answer: Answer) -> bool:
        """Whether the pod has had others evicted, and what they left may be free in the scheduler's view already: an
        Error would keep it back for a second and more, in which a higher priority may take its place."""
        if answer.result != "try-again" or answer.decision is None:
            return False
        return self.decider.holds.planned(answer.decision.request.uid, self.clock()) is not None

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

    def _about_node(self, name: str, reason: str, text: str, *, warning: bool) -> None:
        node = self.cluster.nodes.get(name)
        if self.events is not None and node is not None:
            self.events.node(name, node.uid, reason, text, warning=warning)

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
        if dark > NOT_READY_SECONDS:
            missing = [f"pods or nodes have not been watched for {dark:.0f} s"]
            return JSONResponse({"ready": False, "missing": missing}, status_code=503)
        return JSONResponse({"ready": True, "missing": [], "generation": self.cluster.generation})

    async def metrics_page(self, request: Request) -> Response:
        cluster, metrics = self.cluster, self.metrics
        for kind, count in (
            ("Node", len(cluster.nodes)),
            ("Pod", len(cluster.pods)),
            ("PodDisruptionBudget", len(cluster.budgets)),
            ("PriorityClass", len(cluster.priority_classes)),
            ("DeviceClass", len(cluster.device_classes)),
        ):
            metrics.cache_objects.labels(kind).set(count)
        for kind, age in self.source.ages().items():
            metrics.cache_age.labels(kind).set(age)
        for kind, restarts in self.source.restarts().items():
            metrics.watch_restarts.labels(kind).inc(restarts - self._watch_restarts.get(kind, 0))
            self._watch_restarts[kind] = restarts
        for outcome, count in cluster.drifts.items():
            metrics.plans.labels(outcome).inc(count - self._drifts.get(outcome, 0))
            self._drifts[outcome] = count
        metrics.failing_nodes.set(len(cluster.health.refused()))
        for what, count in cluster.health.counts.items():
            metrics.pod_failures.labels(what).inc(count - self._pod_failures.get(what, 0))
            self._pod_failures[what] = count
        metrics.reservations.set(len(self.decider.holds.all_plans()))
        metrics.holds.set(self.decider.holds.count(self.clock()))
        metrics.topology_disagreements.set(sum(bool(seen.disagreements) for seen in cluster.topologies.values()))
        metrics.double_claimed_gpus.set(sum(ledger.doubled for ledger in cluster.ledgers.values()))
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def debug_topologies(self, request: Request) -> Response:
        """Every node's GPU graph: from which source, with its warnings and what others say. `?node=`: of one."""
        only = request.query_params.get("node")
        found = [
            {"node": name, **topology.as_json()}
            for name, topology in sorted(self.cluster.topologies.items())
            if only in (None, name)
        ]
        said = {"apiVersion": "gpu-extender.io/v1", "kind": "TopologyList", "warnings": [], "topologies": found}
        return Response(orjson.dumps(said), media_type="application/json")

    async def debug_decisions(self, request: Request) -> Response:
        pod = request.query_params.get("pod")
        namespace = name = None
        if pod is not None:
            namespace, slash, name = pod.partition("/")
            if not slash or not namespace or not name:
                return _error(400, "bad-request", "pod is NAMESPACE/NAME", "pod")
        most = _number(request, "most", 20)
        nodes = _number(request, "nodes", 100)
        if most is None or nodes is None:
            return _error(400, "bad-request", "most and nodes are whole numbers", "most")
        weights = {entry.name: entry.weight for entry in self.settings.scorers}
        found = [
            decisions.as_json(decision, self.cluster, weights, nodes)
            for decision in self.decider.decisions.latest(namespace, name, most)
        ]
        kept = {"apiVersion": "gpu-extender.io/v1", "kind": "DecisionList", "warnings": [], "decisions": found}
        return Response(orjson.dumps(kept), media_type="application/json")

    async def debug_state(self, request: Request) -> Response:
        """What `gpu-extender compare` compares: the cache as it is now."""
        return Response(orjson.dumps(compare.state(self.cluster)), media_type="application/json")


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
        task = asyncio.create_task(server.watch())
        try:
            yield
        finally:
            task.cancel()
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
    return app


def config(app: Starlette, settings: Settings) -> uvicorn.Config:
    """uvicorn, for one process: connections outlive the scheduler's 90 s, a stop waits 5 s for what is under way."""
    return uvicorn.Config(
        app,
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
    cluster = Cluster(settings)
    if cluster_file is not None:
        cluster.apply(frozen.read(cluster_file, cluster.gpu_names), time.monotonic())
        gc.collect()
        gc.freeze()  # as Live does
        server = Server(settings, cluster)
        server.evictions = Evictions(
            server.decider, None, Events(server.metrics, enabled=False), server.metrics, clock=server.clock
        )
        server.source = Frozen(server.evictions.advise)
        log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(cluster_file))
    else:
        live = Live(cluster, kubeconfig)
        server = Server(settings, cluster, source=live, binder=live)
        reservations = Reservations(server.decider, server.metrics, ready=live.listed)
        server.keeper = reservations
        server.events = Events(server.metrics, enabled=settings.events.enabled)
        server.evictions = Evictions(server.decider, reservations, server.events, server.metrics, ready=live.ready)
        if settings.reservations.store == "configmap":
            live.documents.append(
                Document(MIX, cluster.dump_mix, cluster.load_mix, namespace=settings.reservations.namespace)
            )
        live.tenants += [reservations, server.events, server.evictions]
    host = uvicorn.Server(config(create(server), settings))
    server.failed = lambda error: setattr(host, "should_exit", True)
    host.run()
    return 0 if host.started and server.failure is None else 1
