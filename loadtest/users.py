"""The users of the load test: what kube-schedulers and people ask. Names on the command line choose among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import gevent
import orjson
from locust import FastHttpUser, between, constant, task
from locust.exception import StopUser

from loadtest.asks import Ask
from loadtest.figures import NULL, OURS, Row
from loadtest.session import Session

WARM_UP = 10  # so that each kind of pod has come, and the null can answer it
PREEMPT_EVERY = 10
GANG = 8
RETRIES = 5
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class Asker(FastHttpUser):
    """One connection in a closed loop: one pod at a time, and no pause between two, as kube-scheduler asks. Each call
    also goes to the null, where there is one: before ours and after it in turns."""

    abstract = True
    wait_time = constant(0)
    connection_timeout = network_timeout = 30.0
    turns: tuple[str, ...] = ()
    """Methods that take a size; one is a turn."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.session: Session = self.environment.loadtest

    def on_start(self) -> None:
        """A few turns of each kind and size that do not count."""
        if self.session.target is None:
            raise StopUser
        self.cold = True
        self.calls: Counter[str] = Counter()
        every = [(getattr(self, name), size) for name in self.turns for size in self.session.target.sizes]
        for _ in range(WARM_UP):
            for turn, size in every:
                turn(size)
        self.cold = False
        self.coming: Iterator[tuple[Callable[[int], None], int]] = cycle(every)

    @task
    def turn(self) -> None:
        """The next kind and size."""
        method, size = next(self.coming)
        method(size)

    def ask(self, ask: Ask, gang: int = 0, number: int = 0) -> Any:
        """What the check makes of our answer; None: it is wrong, or none. `number`: of the pod, if not a new one."""
        body = ask.body.fill(number or self.session.next_pod(), gang)
        self.calls[ask.key] += 1
        if self.session.null_first(self.calls[ask.key], ask.key):
            self._null(ask, body)
            return self._ours(ask, body)
        found = self._ours(ask, body)
        self._null(ask, body)
        return found

    def _ours(self, ask: Ask, body: bytes) -> Any:
        context = self.session.context(ask, OURS, self.cold)
        name = f"{ask.verb} {ask.names}"
        with self.client.post(
            ask.path, data=body, headers=HEADERS, name=name, catch_response=True, context=context
        ) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}: {reply.text or reply.error}"[:300])
                return None
            try:
                found = ask.check(orjson.loads(reply.content))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reply.failure(f"{error!r}: {reply.text}"[:300])
                return None
            self.session.answered(ask.key, reply.content)
            self.session.figures.try_again += found == [] and b'"Error":"gpu-extender: ' in reply.content
            return found

    def done(self, number: int) -> None:
        """A pod of ours is not asked about any more: the GPUs that filter assumes taken are given back to a deployment,
        which would keep them for `hold.seconds`. It is not measured."""
        if not self.session.has_null_beside:
            body = self.session.kept("release").body.fill(number)
            self.client.post(
                "/v1/filter", data=body, headers=HEADERS, name="release", context={"session": self.session}
            )

    def _null(self, ask: Ask, body: bytes) -> None:
        if not self.session.has_null(ask.key):
            return
        assert self.session.target is not None
        url = f"{self.session.target.null}{ask.path}?case={ask.key}"
        context = self.session.context(ask, NULL, self.cold)
        self.client.post(url, data=body, headers=HEADERS, name=f"null: {ask.verb} {ask.names}", context=context)


class _Schedules(Asker):
    """filter, prioritize, and bind where that is allowed; for every tenth pod a preemption, where that is allowed."""

    abstract = True
    turns = ("pod",)

    def on_start(self) -> None:
        """Sizes are warm before the pods that exist are used."""
        self.asked: Counter[int] = Counter()
        self.binds = False
        super().on_start()
        self.binds = bool(self.session.target and self.session.target.bind)

    def pod(self, size: int) -> None:
        """One pod from filter to its node."""
        target = self.session.target
        self.asked[size] += 1
        if target and not target.live and self.asked[size] % PREEMPT_EVERY == 0:
            self.rejected(size)
            return
        pod = self.session.pod_to_bind() if self.binds else None
        asks, number = self.session.asks, self.session.next_pod()
        names = self.ask(asks.filter(pod, size) if pod else self.session.kept("one_gpu", size), number=number)
        node = names[0] if names else None
        if names and len(names) > 1:  # kube-scheduler asks for no points where one node is left
            node = self.ask(asks.prioritize(names, pod=pod), number=number)
        if pod and node:
            self.ask(asks.bind(pod, node))
        elif not pod:
            self.ask(self.session.kept("prioritize_all", size), number=number)
            self.done(number)

    def rejected(self, size: int) -> None:
        """A pod that fits nowhere, and then the nodes where an eviction helps: in a frozen fleet of ours."""
        number = self.session.next_pod()
        if self.ask(self.session.kept("too_many", size), number=number) == []:
            self.ask(self.session.kept("preempt", size), number=number)


class Scheduler(_Schedules):
    """One kube-scheduler: one, however many users there are."""

    fixed_count = 1


class Schedulers(_Schedules):
    """Several kube-schedulers: as many as there are users."""


class Retries(Asker):
    """Pods that fit nowhere, each asked about again and again, as kube-scheduler retries."""

    turns = ("pod",)

    def pod(self, size: int) -> None:
        """One pod, rejected each time."""
        number = self.session.next_pod()
        for _ in range(RETRIES):
            self.ask(self.session.kept("too_many", size), number=number)


class Preemptors(Asker):
    """Pods that preempt, after in-tree filters rejected every node. Against a deployment these are the waiting pods of
    the test namespace, and the victims offered are pods of it."""

    turns = ("pod",)

    def pod(self, size: int) -> None:
        """One preempt call, where there are victims to offer."""
        target = self.session.target
        assert target is not None
        if not target.live:
            self.ask(self.session.kept("preempt", size))
            return
        ask = self.session.asks.preempt(size, self.session.preemptor())
        if ask is not None:
            self.ask(ask)
        else:
            gevent.sleep(0.1)


class Gangs(Asker):
    """Gangs of eight one-GPU pods, one pod after another."""

    turns = ("gang",)

    def gang(self, size: int) -> None:
        """All pods of a new gang."""
        number = self.session.next_pod()
        for _ in range(GANG):
            pod = self.session.next_pod()
            if names := self.ask(self.session.kept("one_gpu", size, GANG), gang=number, number=pod):
                self.ask(self.session.asks.prioritize(names, GANG), gang=number, number=pod)
            self.done(pod)


class WholeNodes(Asker):
    """A kube-scheduler with `nodeCacheCapable: false`: it sends whole Node objects, of at most 1,000 nodes."""

    turns = ("pod",)

    def pod(self, size: int) -> None:
        """One filter call."""
        number = self.session.next_pod()
        self.ask(self.session.kept("with_nodes", size), number=number)
        self.done(number)


class Readers(FastHttpUser):
    """People and their tools beside the schedulers: what `gpu-extender decisions` and `compare` read, and metrics."""

    wait_time = between(0.2, 0.6)
    connection_timeout = network_timeout = 60.0
    pages = ("/readyz", "/metrics", "/debug/decisions?pod={pod}&most=5", "/debug/decisions", "/debug/topologies")

    def on_start(self) -> None:
        """The pages in turn; the largest one less often."""
        self.session: Session = self.environment.loadtest
        if self.session.target is None:
            raise StopUser
        self.coming = cycle([*self.pages * 3, "/debug/state"])

    @task
    def read(self) -> None:
        """One page. 429 says that two others are being read: that is an answer, too."""
        page = next(self.coming)
        name = "page " + page.partition("?")[0] + (" of a pod" if "?" in page else "")
        path = page.format(pod=self.session.latest_pod())
        row = Row(name, 0, self.session.churn)
        context = {"session": self.session, "row": row, "server": OURS, "cold": False}
        with self.client.get(path, name=name, catch_response=True, context=context, headers=HEADERS) as reply:
            if reply.status_code == 429:
                reply.success()
            elif reply.status_code != 200 or not reply.content:
                reply.failure(f"status {reply.status_code}: {reply.text or reply.error}"[:300])
