"""Bodies of all verbs, through the ASGI application: mutated values and bytes, over a cluster with hostile pods."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from extender.decide import wire
from extender.decide.decisions import VERBS, Written
from extender.objects import decode, records
from extender.objects.records import Event, PodRecord, RecordError
from extender.server.calls import Binder
from tests.fuzz import objects
from tests.fuzz.asking import ask, check_answer, check_filter, check_prioritize, victims_of
from tests.fuzz.engine import Broken, Step
from tests.fuzz.hostile import cut, cuts, mutated, raw, render
from tests.tables import switch
from tests.world import DGX1V, JSON, World, machine, pairs, workload

NODES = tuple(f"n{i}" for i in range(6))
RUNNING = tuple(f"low{i}" for i in range(10))
MIB = 2**20
# Besides the decisions (1.3 x decisions.maxBytes) and one body: what a Python process moves by.
SLACK = 24 * MIB
BURST = 12  # calls with long names, before the memory is looked at


class Bodies:
    """The part."""

    name = "bodies"

    def steps(self, rng: random.Random) -> list[Step]:
        features = set(rng.sample(objects.FEATURES, 4)) - {"deep"}  # those that cannot be read are for `objects`
        made: list[Step] = [_hostile(rng, i, features) for i in range(rng.choice((0, 5, 20)))]
        for number in range(rng.choice((50, 150))):
            if rng.random() < 0.05:
                made.append({"do": "later", "seconds": rng.choice((0.5, 6.0, 70.0, 1e6))})
            made.append(_request(rng, number, features))
        if rng.random() < 0.1:
            made.append({"do": "burst", "names": 100, "length": 100_000})
        return made

    @contextmanager
    def world(self) -> Iterator[_World]:
        loop = asyncio.new_event_loop()
        try:
            with capture_logs() as lines:
                yield _World(loop, lines)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _hostile(rng: random.Random, number: int, features: set[str]) -> Step:
    item = objects.pod(rng, f"h{number}", "s", rng.choice(("", *NODES)), features)
    return {"do": "put", "kind": "Pod", "object": item}


def _request(rng: random.Random, number: int, features: set[str]) -> Step:
    verb = rng.choice((*VERBS, "filter", "preempt"))
    value: Any = _bind(rng) if verb == "bind" else _offer(rng, number, features) if verb == "preempt" else (
        _candidates(rng, number, features)
    )  # fmt: skip
    clean = rng.random() < 0.4
    step: Step = {"do": "ask", "verb": verb, "value": value if clean else mutated(rng, value, rng.choice((1, 1, 2, 6)))}
    if not clean and rng.random() < 0.4:
        step["cuts"] = cuts(rng)
    if rng.random() < 0.1:
        step["pieces"] = rng.choice((2, 17))
    return step


def _pod(rng: random.Random, number: int, features: set[str]) -> JSON:
    if rng.random() < 0.3:
        made = objects.pod(rng, f"asks{number}", "s", "", features)
        made["spec"]["priority"] = (0, 100, 2**31 - 1)[number % 3]
        return made
    index = rng.randrange(12)
    links, nominated = rng.choice(("", "required", "preferred")), rng.choice(("", "", *NODES, "nowhere"))
    priority = (0, 5, 50, 10**9)[index % 4]  # one for each name: a pod cannot change it
    return workload(f"p{index}", rng.choice((0, 1, 2, 4, 8, 9)), priority=priority, links=links, nominated=nominated)


def _candidates(rng: random.Random, number: int, features: set[str]) -> JSON:
    strange = ["nowhere", "", "x" * 300, "é", "\x00", "\ud800", "n0", raw(b'"n\\u0030"'), raw(b'"\xff"'), None, 1]
    names: list[Any] = [*NODES, *rng.sample(strange, rng.choice((0, 0, 1, 3)))]
    rng.shuffle(names)
    if rng.random() < 0.1:
        names *= 20
    if rng.random() < 0.6:
        return {"Pod": _pod(rng, number, features), "Nodes": None, "NodeNames": names}
    items: list[Any] = [machine(name, 8) if isinstance(name, str) else name for name in names]
    if rng.random() < 0.3:
        items[0] = {"metadata": {"name": "n1", "annotations": {"x": raw(b'"\xff\xfe"')}}}
    nodes = {"metadata": {}, "items": items}
    return {"Pod": _pod(rng, number, features), "Nodes": nodes, "NodeNames": None}


def _offer(rng: random.Random, number: int, features: set[str]) -> JSON:
    uids = [f"uid-{name}" for name in RUNNING] + ["nobody", "", "é"]
    offers: JSON = {
        name: {
            "Pods": [{"UID": uid} for uid in rng.sample(uids, rng.randrange(4))],
            "NumPDBViolations": rng.choice((0, 0, 1, -1, 2**63 - 1)),
        }
        for name in rng.sample([*NODES, "nowhere"], rng.randrange(1, 5))
    }
    if rng.random() < 0.2:
        full = {name: {"Pods": [workload(name, 1) for name in RUNNING[:2]]} for name in NODES[:2]}
        return {"Pod": _pod(rng, number, features), "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
    return {"Pod": _pod(rng, number, features), "NodeNameToVictims": None, "NodeNameToMetaVictims": offers}


def _bind(rng: random.Random) -> JSON:
    name = f"p{rng.randrange(12)}"
    node = rng.choice((*NODES, "nowhere"))
    return {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": node}


class _Binder(Binder):
    """Every second binding is refused."""

    def __init__(self) -> None:
        self.calls = 0

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        if not name.startswith("p"):
            return None
        made = workload(name, 1, namespace=namespace)
        try:
            return records.pod(json.dumps(made).encode(), frozenset({"nvidia.com/gpu"}))
        except (RecordError, UnicodeEncodeError):
            return None

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written:
        self.calls += 1
        return Written("bound") if self.calls % 2 else Written("failed", "refused")


class _World:
    def __init__(self, loop: asyncio.AbstractEventLoop, lines: list[Any]) -> None:
        self.loop, self.lines = loop, lines
        self.world = World(binder=_Binder())
        for i, name in enumerate(NODES):
            self.world.node(name, 8, links=(switch(), DGX1V, pairs())[i % 3])
        for i, name in enumerate(RUNNING):
            node, labels = NODES[i % 5], {"app": "a"}
            self.world.pod(name, (1, 2, 4)[i % 3], node, priority=(0, 10)[i % 2], labels=labels, start=1.7e9)
        self.world.budget("b", 1, {"app": "a"})

    def end(self) -> None:
        return None

    def play(self, step: Step) -> None:
        what = step.get("do")
        if what == "put":
            self._put(step)
        elif what == "later":
            self.world.now += step["seconds"]
            self.world.wall += step["seconds"]
        elif what == "ask":
            self._ask(step)
        elif what == "burst":
            self._burst(step)
        for line in self.lines:
            if line.get("exc_info") or line["event"] == "defect":
                raise Broken("a defect is logged", str(line)[:800], str(line.get("verb", line["event"])))
        self.lines.clear()

    def _put(self, step: Step) -> None:
        cluster = self.world.cluster
        with suppress(RecordError, RecursionError):
            record = decode.record(step["kind"], render(step["object"]), cluster.gpu_names)
            cluster.apply([Event(step["kind"], "set", record)], self.world.now, self.world.wall)

    def _ask(self, step: Step) -> None:
        verb, body = step["verb"], cut(render(step["value"]), step.get("cuts", []))
        status, answered = ask(self.loop, self.world.app, verb, body, step.get("pieces", 1))
        answer = check_answer(verb, status, answered)
        if answer is None:
            return
        asked = _read(body)
        if verb == "filter":
            check_filter(answer, _sent(asked))
        elif verb == "prioritize":
            check_prioritize(answer, _sent(asked))
        elif verb == "bind":
            if list(answer) != ["Error"] or not isinstance(answer["Error"], str):
                raise Broken("the bind answer has another shape", str(answer)[:300])
        else:
            self._check_victims(victims_of(answer), asked)

    def _check_victims(self, victims: dict[str, list[str]], asked: Any) -> None:
        pods = self.world.cluster.pods
        if not self._asks_gpus(asked):  # none of ours: what was offered comes back
            offers = asked and (asked.get("NodeNameToMetaVictims") or asked.get("NodeNameToVictims") or {})
            if asked and (strange := set(victims) - set(offers)):
                raise Broken("preempt names a node that was not offered", str(strange))
            return
        priority = None
        if (
            isinstance(asked, dict)
            and isinstance(asked.get("Pod"), dict)
            and isinstance(asked["Pod"].get("spec"), dict)
        ):
            priority = asked["Pod"]["spec"].get("priority") or 0
        for node, uids in victims.items():
            for uid in uids:
                if uid not in pods or pods[uid].node != node:
                    raise Broken("preempt names a pod that is not on the node", f"{uid} on {node}")
                if priority is not None and pods[uid].priority >= priority:
                    raise Broken("preempt names a pod that is not of lower priority", f"{uid} on {node}: {priority}")
            if len(set(uids)) != len(uids):
                raise Broken("preempt names a pod twice", f"{node}: {uids}")

    def _asks_gpus(self, asked: Any) -> bool:
        """Whether the product takes the pod for a GPU pod; False where the body is not readable with certainty."""
        if not isinstance(asked, dict):
            return False
        with suppress(RecordError, RecursionError):
            return bool(records.pod(json.dumps(asked["Pod"]).encode(), self.world.cluster.gpu_names).gpus)
        return False

    def _burst(self, step: Step) -> None:
        """Filter calls with long unknown names: what is kept of them is bounded by decisions.maxBytes."""
        before, size = _resident(), step["names"] * step["length"]
        for call in range(BURST):
            names = [f"{call}-{number}-".ljust(step["length"], "x") for number in range(step["names"])]
            body = json.dumps({"Pod": workload(f"p{call}", 1), "Nodes": None, "NodeNames": names}).encode()
            check_answer("filter", *ask(self.loop, self.world.app, "filter", body))
            del names, body
            self.lines.clear()
        more = _resident() - before
        most = 1.3 * self.world.settings.decisions.max_bytes + size + SLACK
        if more > most:
            raise Broken("memory grows by what a request names", f"{more // MIB} MiB more, {most // MIB:.0f} expected")


def _read(body: bytes) -> Any:
    """The body as JSON; None where it is not, or where a key stands twice, so that readers may differ."""
    twice = False

    def pairs_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len({key for key, _ in pairs}) != len(pairs)
        return dict(pairs)

    try:
        found = json.loads(body, object_pairs_hook=pairs_of)
    except (ValueError, RecursionError):
        return None
    return None if twice else found


def _sent(asked: Any) -> set[str] | None:
    """The names of the candidates; None where they cannot be read with certainty."""
    if not isinstance(asked, dict):
        return None
    if isinstance(names := asked.get("NodeNames"), list):
        return {name for name in names if isinstance(name, str)}
    items = asked["Nodes"].get("items") if isinstance(asked.get("Nodes"), dict) else None
    if not isinstance(items, list):
        return None
    try:
        return {item["metadata"]["name"] for item in items}
    except (KeyError, TypeError):
        return None


def _resident() -> int:
    """Bytes of this process that are in memory, after what is free was given back."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
