"""Carries an attack out: creates the load, kills, stalls and feeds the server, and waits until all is quiet again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from extender.kube.client import ApiError, NoAnswer
from tests import plain
from tests.e2e import attack_load, builders
from tests.e2e.api import Api, Object
from tests.e2e.attack_accounts import Seen
from tests.e2e.attack_load import HONEST, HOSTILE, Arrival
from tests.e2e.chaos import Chaos, kill, stall
from tests.e2e.cluster import ControlPlane
from tests.e2e.scene import Scene
from tests.e2e.trace import Trace
from tests.fuzz.bodies import Bodies
from tests.fuzz.hostile import cut, render
from tests.waiting import wait_for

OUTAGE_SECONDS = 6.0
PATIENCE_SECONDS = 400.0
"""After the last arrival, for the honest pods to have run. A preemptor whose preempt call met a dead server may be
parked by kube-scheduler for 5 minutes."""
IDLE_SECONDS = 6.0
MOST_SECONDS = 1200.0  # for all arrivals
BODY_STATUSES = {200, 400, 413}


@dataclass
class Attack:
    """One run. `pods`: how many the arrivals have together; `spaces`: tenant -> namespace."""

    cluster: Scene
    control_plane: ControlPlane
    seed: int
    pods: int
    kills: int
    spaces: dict[str, str]
    trace: Trace
    seen: Seen
    pace: float = 0.8
    created: list[tuple[Arrival, Object]] = field(default_factory=list)
    deep_gone: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.arrivals = list(attack_load.arrivals(self.rng, self.pods, self.spaces))
        self.lasts = len(self.arrivals) * self.pace

    @property
    def api(self) -> Api:
        return self.cluster.api

    # -- before

    def begin(self) -> None:
        """The load that fills the cluster, and the pod that nobody may overlook."""
        for name, value in attack_load.PRIORITIES.items():
            self.api.create(builders.priority_class(name, value))
        for tenant in (HONEST[0], HOSTILE):
            self.api.create(attack_load.load(tenant, self.spaces))
        self.create(attack_load.pinned(self.spaces))
        huge = self.created[-1][1]["metadata"]["uid"]
        # It is bound without kube-scheduler: nobody can know of it earlier.
        wait_for(lambda: self.cluster.known().get(huge, {}).get("node"), 60, "the server knows the huge pod")
        for arrival in attack_load.failing(self.spaces):
            self.create(arrival)

    def create(self, arrival: Arrival) -> None:
        """Through an outage, as any client would."""
        space = self.spaces[arrival.tenant]
        kind, name = arrival.item["kind"], arrival.item["metadata"]["name"]
        until = time.monotonic() + 60
        while True:
            try:
                made = self.api.create_bytes(kind, space, arrival.body)
                break
            except ApiError as error:
                if error.status != 409:
                    raise
                made = self.api.get(kind, name, space)  # created, and the answer was lost
                break
            except NoAnswer:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        self.created.append((arrival, made))

    # -- meanwhile

    def disturb(self, chaos: Chaos) -> None:
        """Kills, three outages of the API server in turn by a stall and by a kill, fuzzed bodies, and a guard."""
        chaos.at([self.rng.uniform(0.0, self.lasts) for _ in range(self.kills)], lambda n: self._kill())
        outages = 1 if self.pods < 200 else 4
        times = [self.lasts * (n + 0.5) / outages for n in range(outages)]
        chaos.at(times, lambda n: self._outage(n))
        chaos.always(lambda: self._feed(chaos))
        chaos.always(lambda: self._guard(chaos))

    def _kill(self) -> None:
        since = time.time()
        self.seen.down.append((since, since + 60))
        try:
            kill(self.cluster, self.trace)
        except (RuntimeError, TimeoutError) as error:
            self._dead(str(error))
        self.seen.down[-1] = (since, time.time())

    def _outage(self, number: int) -> None:
        if number % 2 == 0:
            stall(self.control_plane.apiserver, self.trace, OUTAGE_SECONDS)
            return
        self.trace.mark("the API server is killed")
        self.control_plane.stop_apiserver()
        time.sleep(OUTAGE_SECONDS)
        self.control_plane.start_apiserver()
        self.trace.mark("the API server is back")

    def _guard(self, chaos: Chaos) -> None:
        """Start a server anew that ended by itself, as its Deployment would."""
        while not chaos.ended.wait(0.5):
            if self.cluster.extender.running or self._down():
                continue
            time.sleep(1.0)  # a kill of ours may have begun just now
            if not self.cluster.extender.running and not self._down():
                self._dead(self.cluster.extender.tail(5))

    def _down(self, at: float | None = None) -> bool:
        """Whether we have the server down, or had it at this time (seconds since 1970)."""
        when = time.time() if at is None else at
        return any(since <= when <= until for since, until in self.seen.down[-1:])

    def _dead(self, why: str) -> None:
        """It ended by itself. Where it cannot even start, the deep pods go, so that the run can show more than that."""
        self.seen.ended += 1
        self.trace.mark(f"the server ended by itself: {why[-300:]}")
        since = time.time()
        self.seen.down.append((since, since + 120))
        for attempt in range(5):
            try:
                self.cluster.extender.restart()
                break
            except (RuntimeError, TimeoutError):
                if attempt == 0:
                    self._remove_deep()
        self.seen.down[-1] = (since, time.time())

    def _remove_deep(self) -> None:
        self.deep_gone = True
        for arrival, made in list(self.created):
            if arrival.kind == "deep":
                with contextlib.suppress(ApiError, NoAnswer):
                    self.api.delete("Pod", made["metadata"]["name"], made["metadata"]["namespace"], grace=0)

    def _feed(self, chaos: Chaos) -> None:
        """Fuzzed bodies to the running server, one after the other with a pause."""
        bodies = Bodies()
        with plain.client(timeout=10) as http:
            while not chaos.ended.is_set():
                for step in bodies.steps(self.rng_of_bodies()):
                    if chaos.ended.wait(0.02):
                        return
                    if step["do"] != "ask":
                        continue
                    raw = cut(render(step["value"]), step.get("cuts", []))
                    asked = time.time()
                    try:
                        answer = http.post(f"{self.cluster.extender.url}/v1/{step['verb']}", content=raw)
                    except httpx.HTTPError as error:
                        # It may be ready again by the time this thread learns of the failure.
                        if self.cluster.extender.running and not (self._down() or self._down(asked)):
                            self.seen.bad_statuses[type(error).__name__] += 1
                        continue
                    self.seen.bodies += 1
                    ready = answer.status_code != 503 or b'"not-ready"' not in answer.content
                    if ready and answer.status_code not in BODY_STATUSES:
                        self.seen.bad_statuses[f"{step['verb']} {answer.status_code}"] += 1

    def rng_of_bodies(self) -> random.Random:
        return random.Random(f"{self.seed}/bodies/{self.seen.bodies}")

    def arrive(self) -> None:
        """One object after the other; the rest is left out where that takes too long."""
        until = time.monotonic() + MOST_SECONDS
        for arrival in self.arrivals:
            if arrival.kind == "deep" and self.deep_gone:
                continue
            if time.monotonic() > until:
                self.trace.mark("the rest of the load is left out")
                return
            self.create(arrival)
            time.sleep(self.pace * self.rng.uniform(0.3, 1.7))

    # -- after

    def settle(self) -> None:
        """Until every honest pod has run; what has not is stuck."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.seen.stuck = self._not_run()
            if not self.seen.stuck or time.monotonic() > until:
                return
            time.sleep(1.0)

    def _not_run(self) -> list[str]:
        left = []
        for tenant in HONEST:
            with contextlib.suppress(ApiError, NoAnswer):
                for pod in self.api.list("Pod", self.spaces[tenant]):
                    if pod["spec"].get("priority") != attack_load.PRIORITIES["low"] and not _over(pod):
                        left.append(f"{tenant}/{pod['metadata']['name']}")
        return left

    def idle(self) -> None:
        """With the load gone and one pod that fits nowhere, nothing happens: nobody asks the server."""
        for tenant in (HONEST[0], HOSTILE):
            self.api.delete("ReplicaSet", f"load-{tenant}", self.spaces[tenant])
        for space in self.spaces.values():
            self.api.delete_all("Job", space)
            self.api.delete_all("Pod", space)
        item = builders.pod("nowhere", self.spaces[HONEST[0]], 9, cpu="100m")
        self.api.create(item)
        self._calm(60)
        before = self.cluster.filter_calls()
        time.sleep(IDLE_SECONDS)
        self.seen.idle_calls = self.cluster.filter_calls() - before

    def _calm(self, timeout: float) -> None:
        """Until no call came for three seconds and no pod waits for its next try; those of a ReplicaSet take a while to
        go."""
        until, calls, since = time.monotonic() + timeout, -1.0, time.monotonic()
        while time.monotonic() < until and time.monotonic() - since < 3.0:
            for space in self.spaces.values():
                for pod in self.api.list("Pod", space):
                    if pod["metadata"]["name"] != "nowhere":
                        with contextlib.suppress(ApiError):
                            self.api.delete("Pod", pod["metadata"]["name"], space, grace=0)
            now = self.cluster.filter_calls()
            if now != calls or self._to_be_tried():
                calls, since = now, time.monotonic()
            time.sleep(0.5)

    def _to_be_tried(self) -> bool:
        """Whether kube-scheduler will try a pod by itself: at once, or after a backoff."""
        series = self.cluster.scheduler.metrics()
        return any(series.get(f'scheduler_pending_pods{{queue="{queue}"}}') for queue in ("active", "backoff"))

    def account(self) -> None:
        """Which uids require links, and which skipped the scheduler."""
        for arrival, made in self.created:
            uid = made["metadata"]["uid"]
            if arrival.kind == "requires links":
                self.seen.required.add(uid)
            if arrival.kind == "huge":
                self.seen.direct.add(uid)


def _over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]


def namespaces(api: Api, tenants: Sequence[str]) -> dict[str, str]:
    """A new namespace for each tenant."""
    made = {tenant: {**builders.namespace(""), "metadata": {"generateName": f"{tenant}-"}} for tenant in tenants}
    return {tenant: str(api.create(item)["metadata"]["name"]) for tenant, item in made.items()}
