"""The cluster of a long run: an API server on loopback in a thread of its own, and a kube-scheduler that never rests.

Pods come, are placed by the server's answers, and end; a tenth of the new ones may evict. Watches break and expire,
nodes are cordoned, pages are read.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, time
from typing import Any, Final

from tests.fuzz.stub import Stub
from tests.kube.api_server import Request, Script, Writer, serving
from tests.kube.objects import Objects
from tests.world import JSON, machine, pairs, workload

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
LISTS: Final = (PODS, NODES, "/apis/policy/v1/poddisruptionbudgets", "/apis/scheduling.k8s.io/v1/priorityclasses")
GPUS: Final = 8
FULL: Final = 0.85
"""The part of the GPUs that pods hold."""
KEPT: Final = 5_000
"""Changes that a watch may be behind."""
PAGES: Final = ("/metrics", "/debug/state", "/debug/decisions", "/readyz")


class Api:
    """The API server. What it stores is changed on its own thread."""

    def __init__(self) -> None:
        self.stub, self.objects = Stub(frozenset(LISTS), timed=True), Objects()
        self._loop = asyncio.new_event_loop()

    async def _answer(self, request: Request, writer: Writer) -> None:
        await (self.stub.answer if request.path in LISTS else self.objects.answer)(request, writer)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its URL."""
        ready, stop, url = threading.Event(), asyncio.Event(), list[str]()

        async def serve() -> None:
            script = Script([self._answer])
            async with serving(script) as address:
                url.append(address)
                ready.set()
                while not stop.is_set():  # what was asked is not kept: a long run asks a million times
                    for kept in (script.requests, self.objects.said, self.objects.posted, self.objects.patched):
                        del kept[:-100]
                    self.stub.compact(KEPT)
                    await asyncio.sleep(1.0)

        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        ready.wait(30)
        try:
            yield url[0]
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(30)
            self._loop.close()

    def do(self, act: Callable[..., Any], *given: Any, **named: Any) -> None:
        """Change what is stored."""
        self._loop.call_soon_threadsafe(lambda: act(*given, **named))


class Scheduler:
    """Asks the server about one pod after the other. `calls`: gets the seconds of each call of a verb."""

    def __init__(self, api: Api, nodes: int, seed: int) -> None:
        self._api, self._rng, self._numbers = api, random.Random(seed), itertools.count()
        self._nodes = {f"n{number}": machine(f"n{number}", GPUS, links=pairs(GPUS)) for number in range(nodes)}
        self._pods: dict[str, tuple[str, int, int]] = {}  # name -> node, GPUs, priority
        self.calls: list[float] = []
        for node in self._nodes.values():
            api.do(api.stub.put, NODES, node)

    def step(self, client: http.client.HTTPConnection) -> None:
        """One pod comes and is placed if it can be; others end."""
        number = next(self._numbers)
        gpus, urgent = self._rng.choice((1, 1, 2, 2, 4, 8)), self._rng.random() < 0.1
        name, priority = f"p{number}", 9 if urgent else 1
        links = self._rng.choice(("required", "preferred"))
        asks = {"priority": priority, "links": links}
        pod = workload(name, gpus, **asks)  # type: ignore[arg-type]
        self._api.do(self._api.stub.put, PODS, pod)
        found = self._ask(client, "filter", {"Pod": pod, "NodeNames": list(self._nodes)})["NodeNames"] or []
        if found:
            scores = self._ask(client, "prioritize", {"Pod": pod, "NodeNames": found})
            self._bind(client, name, gpus, max(scores, key=lambda one: one["Score"])["Host"], asks)
        elif urgent:
            self._preempt(client, pod)
        if name not in self._pods:
            self._api.do(self._api.stub.remove, PODS, ("default", name))
        held = sum(count for _, count, _ in self._pods.values())
        while held > FULL * GPUS * len(self._nodes):
            gone = self._rng.choice(list(self._pods))
            held -= self._pods[gone][1]
            self._end(gone)
        self._disturb(number, client)

    def _bind(self, client: http.client.HTTPConnection, name: str, gpus: int, node: str, asks: JSON) -> None:
        body = {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": node}
        if self._ask(client, "bind", body)["Error"]:
            return
        self._pods[name] = node, gpus, asks["priority"]
        bound = workload(name, gpus, node=node, phase="Running", start=time(), **asks)
        self._api.do(self._api.stub.put, PODS, bound)

    def _preempt(self, client: http.client.HTTPConnection, pod: JSON) -> None:
        offer = {}
        for node in self._rng.sample(list(self._nodes), min(20, len(self._nodes))):
            names = [name for name, (there, _, priority) in self._pods.items() if there == node and priority < 9]
            if names:
                offer[node] = {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": 0}
        body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": offer}
        for victims in (self._ask(client, "preempt", body)["NodeNameToMetaVictims"] or {}).values():
            for victim in victims["Pods"]:
                self._end(victim["UID"].removeprefix("uid-"))

    def _end(self, name: str) -> None:
        del self._pods[name]
        self._api.do(self._api.stub.remove, PODS, ("default", name))

    def _disturb(self, number: int, client: http.client.HTTPConnection) -> None:
        """A watch that breaks, or has expired; a cordon, which the next one ends; a page."""
        if number % 500 == 499:
            self._api.do(self._api.stub.cut, self._rng.choice((PODS, NODES)), expire=number % 1000 == 999)
        if number % 100 == 99:
            node = self._nodes[self._rng.choice(list(self._nodes))]
            node["spec"] = {} if node["spec"] else {"unschedulable": True}
            self._api.do(self._api.stub.put, NODES, dict(node))
        if number % 50 == 49:
            client.request("GET", self._rng.choice(PAGES))
            client.getresponse().read()

    def _ask(self, client: http.client.HTTPConnection, verb: str, body: JSON) -> Any:
        text = json.dumps(body)
        begin = perf_counter()
        client.request("POST", f"/v1/{verb}", text)
        reply = client.getresponse()
        raw = reply.read()
        self.calls.append(perf_counter() - begin)
        assert reply.status == 200, (verb, reply.status, raw[:300])
        return json.loads(raw)
