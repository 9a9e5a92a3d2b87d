"""Hostile objects through lists and watches, against a live cluster: the product's Live over a stub API server.

After each step an honest pod still finds its node, and nodes have left what the objects say, no more and no less. At
the end of a round the tables equal those of a fresh cluster that lists the same objects; and after all objects are
deleted, a second round with other names leaves nothing more behind than the first.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from extender.act.watches import Watches
from extender.cluster import dump
from extender.cluster.cluster import Cluster
from extender.kube.client import ApiServer
from extender.kube.lists import WATCHED_KINDS
from extender.kube.pod_writes import Bindings
from extender.server import acting, deciding, wiring
from extender.server.calls import Binder
from extender.server.wiring import Server
from extender.settings import Hold, Settings
from extender.times import Clock
from tests.fuzz import accounts, objects
from tests.fuzz.asking import ask, check_answer, check_filter
from tests.fuzz.engine import Broken, Step
from tests.fuzz.sizes import grown, sizes
from tests.fuzz.stub import Stub, key_of, served
from tests.kube.test_client import kubeconfig
from tests.tables import switch
from tests.world import GPU, WALL, machine, workload

PATHS = {source.name: source.path for source in WATCHED_KINDS if source.name != "FailedPod"}
GROUPS = {
    "Job.batch": ("Job", "batch/v1"),
    "JobSet.jobset.x-k8s.io": ("JobSet", "jobset.x-k8s.io/v1alpha2"),
    "PodGroup.scheduling.x-k8s.io": ("PodGroup", "scheduling.x-k8s.io/v1alpha1"),
}
KINDS = (
    "Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim", *GROUPS,
)  # fmt: skip
SHARED = ("shared-0", "shared-1", "shared-2")  # honest nodes, to which pods of the tenant are bound
FAILS_ON = "shared-3"  # an honest node where nothing but failing pods is
SYNC_SECONDS = 15.0
SALTS = ("r1", "r2")  # in all names of the two rounds
LATER = 7200.0  # seconds after which nothing is remembered for a time only
PROBE_PRIORITY = 2_000_000_000


class Watched:
    """The part."""

    name = "objects"

    def steps(self, rng: random.Random) -> list[Step]:
        features = set(rng.sample(objects.FEATURES, rng.choice((2, 3, 4, 8))))
        seed = rng.getrandbits(32)
        made: list[Step] = []
        for number in range(rng.choice((4, 8, 12))):
            made += _round(rng, seed, number, features)
        return [*made, {"do": "compare"}, {"do": "forget"}, {"do": "again"}, {"do": "forget"}]

    @contextmanager
    def world(self) -> Iterator[_World]:
        with tempfile.TemporaryDirectory() as folder, capture_logs() as lines:
            world = _World(Path(folder), lines)
            try:
                world.start()
                yield world
            finally:
                world.close()
                gc.unfreeze()  # a server freezes what it has listed, once a process; here one comes after the other


def _round(rng: random.Random, seed: int, number: int, features: set[str]) -> list[Step]:
    """The next step, or with the two steps of a pod that fails."""
    salt = SALTS[0]
    acts: list[Step] = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        name = f"p-{salt}-{rng.randrange(8)}"
        choice = rng.random()
        if choice < 0.55:
            acts.append({"do": "put", "kind": "Pod", "object": _pod(rng, seed, name, features)})
        elif choice < 0.65:
            acts.append({"do": "remove", "kind": "Pod", "key": [objects.TENANT, name]})
        elif choice < 0.7:
            item = objects.pod(rng, f"unknown-{salt}", salt, SHARED[0], features)
            acts.append({"do": "say", "kind": "Pod", "change": "DELETED", "object": item})
        elif choice < 0.73:
            acts.append({"do": "again", "kind": "Pod"})
        elif choice < 0.76:
            acts.append({"do": "say", "kind": "Node", "change": "BOOKMARK", "object": {"metadata": {}}})
        else:
            acts.append(_other(rng, salt, features))
    if rng.random() < 0.03:
        acts.append({"do": "cut", "kind": rng.choice(("Pod", "Node")), "expire": rng.random() < 0.5})
    steps: list[Step] = [{"do": "acts", "acts": acts}]
    if "fails" in features:
        steps += [
            {"do": "acts", "acts": [{"do": "put", "kind": "Pod", "object": one}]} for one in _failing(rng, number)
        ]
    return steps


def _pod(rng: random.Random, seed: int, name: str, features: set[str]) -> Step:
    """A pod's specification never changes, and neither does its node once it has one: both follow from name and uid.
    Its annotations and its status do."""
    salt = SALTS[0]
    uid = f"{name}-uid-{rng.randrange(3) if 'reuse' in features else 0}"
    fixed = random.Random(f"{seed}/{uid}")
    node = fixed.choice(("", *SHARED, *SHARED, f"odd-{salt}-0", f"nowhere-{salt}"))
    made = objects.pod(fixed, name, salt, node, features)
    made["metadata"]["uid"] = uid
    if node:
        made["status"]["phase"] = rng.choice(("Pending", "Running", "Running", "Succeeded"))
    if "notes" in features:
        objects.annotate(rng, made)
    return made


def _failing(rng: random.Random, number: int) -> tuple[Step, Step]:
    """A bare pod that is bound, and then fails by its own fault."""
    salt = SALTS[0]
    made = objects.pod(rng, f"fails-{salt}-{number}", salt, FAILS_ON, ())
    made["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    made["status"] = {"phase": "Pending"}
    ended = copy.deepcopy(made)
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    ended["status"] = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}
    return made, ended


def _other(rng: random.Random, salt: str, features: set[str]) -> Step:
    number = rng.randrange(4)
    others = ("Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim")
    kind = rng.choice((*others, *GROUPS, *GROUPS))
    if kind in GROUPS:
        item = objects.group(rng, *GROUPS[kind], f"group-{salt}-{number}", salt, features)
    else:
        make = {
            "Node": objects.node,
            "PodDisruptionBudget": objects.budget,
            "PriorityClass": objects.priority_class,
            "DeviceClass": objects.device_class,
            "ResourceSlice": objects.resource_slice,
            "ResourceClaim": objects.resource_claim,
        }[kind]
        item = make(rng, f"odd-{salt}-{number}", salt, features)
    if rng.random() < 0.25:
        return {"do": "remove", "kind": kind, "key": list(key_of(item))}
    return {"do": "put", "kind": kind, "object": item}


class _World:
    def __init__(self, folder: Path, lines: list[Any]) -> None:
        self.folder, self.lines = folder, lines
        self.loop = asyncio.new_event_loop()
        self.stub = Stub(frozenset(PATHS[kind] for kind in KINDS))
        self.offset = 0.0
        self.settings = Settings(hold=Hold(seconds=0.0))
        self.numbers = itertools.count(1)
        self.stack = AsyncExitStack()
        self.keep: dict[str, set[tuple[str, str]]] = {}
        self.before: dict[str, int] | None = None
        self.task: asyncio.Task[None] | None = None
        self.faults = 0
        self.acts: list[Step] = []

    # -- begin and end

    def start(self) -> None:
        for name in ("honest-0", *SHARED, FAILS_ON):
            self.stub.put(PATHS["Node"], machine(name, 8, links=switch()))
        for kind in KINDS:
            self._mark(kind)
        self.keep = {path: set(there) for path, there in self.stub.stored.items()}
        self.url = self.loop.run_until_complete(self.stack.enter_async_context(served(self.stub)))
        self.config = kubeconfig(self.folder, self.url, {})
        self.core, self.server, self.task = self._live()
        self.cluster = self.core.cluster
        self.app = self.server.app
        self.loop.run_until_complete(self._until(lambda: not self.server.source.missing(), "the first list"))
        self._sync(set(KINDS))

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with suppress(BaseException):
                self.loop.run_until_complete(self.task)
            self.server.asks.close()
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def end(self) -> None:
        return None

    def _live(self) -> tuple[deciding.Core, Server, asyncio.Task[None]]:
        cluster, clock = Cluster(self.settings), Clock(self._clock, lambda: WALL + self._clock())
        api = self.loop.run_until_complete(ApiServer.connect(self.config))
        self.stack.push_async_callback(api.close)
        watches = Watches(api, cluster, chance=random.Random(1), clock=clock)
        core = deciding.Core.over(cluster, watches, clock=clock)
        server = wiring.connect(core, acting.Outside(Binder(Bindings(api, core.cluster.gpu_names))))
        return core, server, self.loop.create_task(server.supervisor.run())

    def _clock(self) -> float:
        return time.monotonic() + self.offset

    # -- steps

    def play(self, step: Step) -> None:
        what = step.get("do")
        if what == "compare":
            self._compare()
        elif what == "forget":
            self._forget()
        elif what == "again":
            self._do(json.loads(json.dumps(self.acts).replace(*SALTS)))
        else:
            self.acts += step.get("acts", ())
            self._do(step.get("acts", ()))

    def _do(self, acts: Sequence[Step]) -> None:
        self._sync({self._act(act) for act in acts} - {""})
        self._look()

    def _act(self, act: Step) -> str:
        """Carry it out; the kind that it is about."""
        kind = act.get("kind", "")
        path, what = PATHS.get(kind), act.get("do")
        if path is None:
            return ""
        if what == "put":
            self.stub.put(path, act["object"])
        elif what == "remove":
            self.stub.remove(path, (act["key"][0], act["key"][1]))
        elif what == "say":
            self.stub.say(path, act["change"], act["object"])
        elif what == "again":
            for _, item in list(self.stub.stored.get(path, {}).values())[-3:]:
                self.stub.put(path, item)
        elif what == "cut":
            self.stub.cut(path, expire=act["expire"])
        return str(kind)

    def _look(self) -> None:
        """What must hold after each step."""
        self._alive()
        for line in self.lines:
            if line.get("exc_info") or line["event"] == "defect":
                raise Broken("a defect is logged", str(line)[:500], str(line.get("err", line["event"]))[:80])
        self.lines.clear()
        # While the server has not been heard, pods that require links wait, and no others.
        links = "preferred" if self.server.source.dark() else "required"
        if not self._fits("honest-0", 8, links=links, among=list(self.cluster.nodes)):
            raise Broken("an honest pod finds no place on an untouched node", self.said)
        pods = [item for _, item in self.stub.stored.get(PATHS["Pod"], {}).values()]
        for name in (*SHARED, FAILS_ON):
            node = self.stub.stored[PATHS["Node"]]["", name][1]
            left = accounts.left(node, pods)
            free = max(0, math.floor(left.gpus))  # CPU and memory are kube-scheduler's own
            if free < 8 and self._fits(name, free + 1):
                raise Broken("a node passes that has not so much left", f"{name}: {free} GPUs left, {free + 1} pass")
            if free and left.room and not self._fits(name, free):
                raise Broken("a node is rejected that has enough left", f"{name}: {free} GPUs left; {self.said}")

    def _fits(self, node: str, gpus: int, *, links: str = "", among: list[str] | None = None) -> bool:
        number = next(self.numbers)
        pod = workload(
            f"probe-{number}", gpus, cpu="1m", memory="1", namespace="honest", links=links, priority=PROBE_PRIORITY
        )
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": among or [node]}).encode()
        answer = check_answer("filter", *ask(self.loop, self.app, "filter", body))
        self.said = str(answer)[:600]
        check_filter(answer, among or [node])
        return node in (answer["NodeNames"] or ())

    # -- the two rounds

    def _compare(self) -> None:
        """The tables equal those of a fresh cluster that lists the same objects."""
        core, server, task = self._live()
        try:
            self.loop.run_until_complete(self._until(lambda: not server.source.missing(), "a fresh list"))
        finally:
            task.cancel()
            with suppress(BaseException):
                self.loop.run_until_complete(task)
            server.asks.close()
        ours, fresh = _told(self.cluster), _told(core.cluster)
        for table in fresh:
            if ours[table] != fresh[table]:
                raise Broken("the tables differ from a fresh cluster's", _difference(ours[table], fresh[table]), table)

    def _forget(self) -> None:
        """Delete all that came; a second time nothing more is left behind than the first."""
        for path, there in self.stub.stored.items():
            for key in list(there):
                if key not in self.keep.get(path, set()):
                    self.stub.remove(path, key)
        self._sync(set(KINDS))
        self.offset += LATER
        self._sync(set(KINDS))
        self._look()
        now = sizes(self.core) | {f"source.{path}": size for path, size in sizes(self.server.source).items()}
        if self.before is not None and (more := grown(self.before, now)):
            raise Broken("a table keeps what has been deleted", str(more)[:600], min(more))
        self.before = now

    # -- waiting

    def _mark(self, kind: str) -> None:
        """Write the sentinel of a kind with the next number: when it is seen, all before it has been."""
        number = self.number = next(self.numbers)
        item: Step = {"metadata": {"name": "sentinel", "uid": f"sentinel-{kind}", "labels": {"n": str(number)}}}
        if kind == "Pod":
            item |= {"spec": {"containers": []}, "status": {"phase": "Pending"}}
        elif kind == "Node":
            item |= {"spec": {}, "status": {"allocatable": {}, "capacity": {}}}
        elif kind == "PodDisruptionBudget":
            item |= {"spec": {"selector": None}, "status": {"disruptionsAllowed": number}}
        elif kind == "PriorityClass":
            item |= {"value": number}
        elif kind == "DeviceClass":
            item |= {"spec": {"extendedResourceName": f"s/{number}"}}
        elif kind == "ResourceSlice":
            item |= {"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "sentinel", "generation": number}}}
        elif kind == "ResourceClaim":
            item |= {"status": {"allocation": {"devices": {"results": [{"driver": "s", "device": str(number)}]}}}}
        else:
            name, api = GROUPS[kind]
            spec = {"minMember": number, "parallelism": number, "replicatedJobs": [{"name": "a", "replicas": number}]}
            item |= {"apiVersion": api, "kind": name, "spec": spec}
        if kind not in ("Node", "PriorityClass", "DeviceClass", "ResourceSlice"):
            item["metadata"]["namespace"] = "sentinel"
        self.stub.put(PATHS[kind], item)

    def _seen(self, kind: str, number: int) -> bool:
        cluster = self.cluster
        if kind == "Pod":
            pod = cluster.pods.get("sentinel-Pod")
            return pod is not None and pod.labels.get("n") == str(number)
        if kind == "Node":
            node = cluster.nodes.get("sentinel")
            return node is not None and node.labels.get("n") == str(number)
        if kind == "PodDisruptionBudget":
            budget = cluster.budgets.records.get(("sentinel", "sentinel"))
            return budget is not None and budget.disruptions_allowed == number
        if kind == "PriorityClass":
            priority = cluster.priority_classes.get("sentinel")
            return priority is not None and priority.value == number
        if kind == "DeviceClass":
            device = cluster.device_classes.get("sentinel")
            return device is not None and device.extended_resource_name == f"s/{number}"
        if kind == "ResourceSlice":
            published = cluster.dra.slices.get("sentinel")
            return published is not None and published.generation == number
        if kind == "ResourceClaim":
            claim = cluster.dra.claims.records.get(("sentinel", "sentinel"))
            return claim is not None and [one.device for one in claim.allocated or ()] == [str(number)]
        name, api = GROUPS[kind]
        group = cluster.gangs.objects.get((api.partition("/")[0], name, "sentinel", "sentinel"))
        return group is not None and group.minimum == number

    def _sync(self, kinds: set[str]) -> None:
        wanted = {}
        for kind in sorted(kinds | {"Pod", "Node"}):
            self._mark(kind)
            wanted[kind] = self.number
        for kind, number in wanted.items():
            seen = self._until(lambda k=kind, n=number: self._seen(k, n), f"the watch of {kind}")
            self.loop.run_until_complete(seen)

    async def _until(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + SYNC_SECONDS
        while not true():
            self._alive()
            if time.monotonic() > deadline:
                raise Broken("objects are not seen", f"{what}: nothing for {SYNC_SECONDS:.0f} s", what)
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0)

    def _alive(self) -> None:
        """No exception has ended the watches, and none was caught as a last resort."""
        failure: BaseException | None = None
        if self.task is not None and self.task.done():
            failure = RuntimeError("the watches have ended")
        if failure is not None:
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            raise Broken("an object ends the server", f"{type(failure).__name__}: {failure}", type(failure).__name__)
        faults = self.cluster.faults
        if faults != self.faults:
            self.faults = faults
            found = [line for line in self.lines if line["log_level"] == "error"]
            text = str(found[-1] if found else "")
            key = str(found[-1].get("err", ""))[:40].partition("(")[0] if found else ""
            raise Broken("an object cannot be held", text[:600], key)


def _told(cluster: Cluster) -> dict[str, Any]:
    """What of the tables does not depend on the order and the times of what came."""
    state = dump.state(cluster)
    rows = {}
    for name in cluster.nodes:
        row = cluster.tables.nodes.node(cluster.row(name))
        rows[name] = (row.alloc, row.used, row.sure, row.likely, row.unknown, row.healthy, row.parts, row.gpu)
    uids = [uid for uid, pod in cluster.pods.items() if pod.node and not pod.finished]
    running = {uid: sorted(one.uid for one in cluster.gangs.running(cluster.pods[uid])) for uid in uids}
    gangs = {uid: (found.name, found.minimum, found.running, running[uid]) for uid in uids
             if (found := cluster.gangs.of(cluster.pods[uid])) is not None}  # fmt: skip
    return {
        "pods": state["pods"],
        "nodes": state["nodes"],
        "rows": rows,
        "gangs": gangs,
        "budgets": {uid: sorted(cluster.budgets.of(cluster.pods[uid])) for uid in uids},
        "grouped": {repr(ref): sorted(there.items()) for ref, there in cluster.workloads.gang_pods.items() if there},
        "siblings": {str(key): sorted(there.items()) for key, there in cluster.workloads.siblings.items() if there},
        "bound": {name: sorted(there) for name, there in cluster.placements.bound.items() if there},
        "waiting": dict(sorted(cluster.placements.waiting.items())),
        "groups": {str(key): (one.minimum, one.parts, one.owner) for key, one in sorted(cluster.gangs.objects.items())},
    }


def _difference(ours: Any, fresh: Any) -> str:
    if isinstance(ours, dict) and isinstance(fresh, dict):
        for key in sorted({*ours, *fresh}):
            if ours.get(key) != fresh.get(key):
                return f"{key}: ours {ours.get(key)!r}, fresh {fresh.get(key)!r}"[:800]
    return f"ours {ours!r}, fresh {fresh!r}"[:800]
