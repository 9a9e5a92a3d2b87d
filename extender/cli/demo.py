"""Play a day on a simulated cluster, over HTTP, and then serve it until Ctrl-C. Nothing leaves this machine. Exit code
1 when a scene does not come out as it states.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import uvicorn
from rich.console import Console
from rich.text import Text

from extender import log
from extender.act.controller import EVICTIONS, QUEUE, ClusterSource, Leadership
from extender.act.evictions import Evictor, OwnEvictions
from extender.act.queue.controller import QueueController
from extender.act.queue.seat_store import SHARDS, SIGNS
from extender.act.reservations import ReservationStore
from extender.act.saving import SaveRequests
from extender.ask.forks import Forks
from extender.cli import options as shared
from extender.cli import screen
from extender.cli.decisions import cost_table
from extender.cluster.cluster import Cluster
from extender.errors import ExtenderError
from extender.kube.client import ApiError, ApiServer
from extender.kube.own_objects import ConfigMap
from extender.kube.pod_writes import Bindings, PodEvictions, PodPatches, ResourceClaimWrites
from extender.objects import decode
from extender.objects.records import Event, Kind, PodRecord
from extender.server import acting, deciding, wiring
from extender.server.acting import KeptSeats, QueueRequests, queue_over
from extender.server.calls import Binder
from extender.server.deciding import Core
from extender.server.serve import config
from extender.settings import Settings
from extender.sim import cluster, evening
from extender.sim.cluster import FINISHED, ConfigMaps, SimChange, SimCluster
from extender.sim.day import NotAsTold, Scene, build
from extender.sim.scheduler import CallFailed, Extender
from extender.times import Clock

EXAMPLES = (
    "gpu-extender demo",
    "gpu-extender demo --once",
)
HOST = "127.0.0.1"
NAME = "gpu-extender"
PORT = 8888
"""Where all commands ask by default."""
START_SECONDS = 30.0
STEP_SECONDS = 4.0
"""After the day, until the next pod comes or ends."""
SETTINGS = {
    "queue": {"enabled": True, "plannedAllocation": True},
    "evictions": {"enabled": True},
    "preemption": {"mostWaitSeconds": {evening.PRIORITY_CLASS: evening.MOST_WAIT_SECONDS}},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--once", action="store_true", help="end after the day instead of serving on")
    parser.add_argument("--pace", type=_seconds, default=0.0, metavar="SECONDS", help="wait so long after each scene")
    parser.add_argument("--seed", type=int, default=0, help="decides ties: the scheduler's and the device plugins'")
    parser.add_argument("--port", type=shared.port, help=f"on loopback (default: {PORT}, or one that is free)")
    parser.add_argument("-v", "--verbose", action="store_true", help="the server's log lines, too")


def run(options: argparse.Namespace) -> int:
    """Plays the day; 0 when each scene came out as it states."""
    log.configure(level=logging.INFO if options.verbose else logging.ERROR)
    console = screen.console(110)
    with listen_anywhere(PORT) if options.port is None else _listen(options.port) as listening:
        port = int(listening.getsockname()[1])
        demo = Demo(console, options.seed, options.pace, options.once, port)
        try:
            asyncio.run(demo.serve(listening))
        except KeyboardInterrupt:
            if demo.result is None:  # in the middle of the day
                raise
    return 1 if demo.result is None else demo.result


@dataclass
class Demo:
    """The server in this thread's event loop, the scheduler and the day in a thread of their own."""

    console: Console
    seed: int
    pace: float
    once: bool
    port: int
    result: int | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Until the day is over (once), or a signal comes."""
        clock, simulated, kubelets = build(self.seed)
        cluster = Cluster(Settings.model_validate(SETTINGS))
        source = SimSource(simulated, cluster, clock.monotonic, clock.wall)
        # The queue rests by the time of its work. The day's clock stands still in a scene: by it no work takes time.
        core = deciding.Core.over(cluster, source, clock=Clock(clock.monotonic, clock.wall, clock.monotonic))
        api = SimApi(simulated)
        released = queue(core, api, SimApi(simulated, ConfigMaps()))
        evicts, keeps = evictions(core, source, api)
        acts = acting.Outside(
            Binder(Bindings(api, cluster.gpu_names)),
            keeps,
            evicts,
            queue=released,
            controllers=(keeps, evicts, released, *acting.dates_of(core, api, released, None)),
        )
        server = wiring.connect(core, acts, Forks(rest=0.0, nice=0))  # here nobody waits for a verb
        host = uvicorn.Server(config(server.app, server.connections, cluster.settings))
        ended = threading.Event()

        def play() -> None:
            extender = Extender(HOST, self.port, START_SECONDS)  # a machine that is slow plays the day slowly
            try:
                if not source.wait_until_listed(START_SECONDS):
                    raise NotAsTold("the server starts")
                # The day's clock leaps, and an instance whose queue has not begun knows the seats for seconds only.
                if not _within(START_SECONDS, lambda: released.report is not None):
                    raise NotAsTold("the queue begins")
                stage = simulated, kubelets, extender, source, self.seed
                day = evening.Evening(*stage)
                if self._show(chain(day.scenes(), day.evening(lambda: core.run_times.revision)), ended):
                    self.result = 0
                    clock.release()
                    traffic = None if self.once else evening.Traffic(*stage)
                    while traffic and not ended.wait(STEP_SECONDS):
                        traffic.step()
            except NotAsTold as broken:
                self._fail(f"not as stated: {broken}")
            except (CallFailed, TimeoutError, RuntimeError) as error:
                if not ended.is_set():
                    self._fail(f"the server does not answer: {error}")
            finally:
                extender.close()
                if self.once or self.result != 0:
                    host.should_exit = True

        player = threading.Thread(target=play, name="day", daemon=True)
        player.start()
        try:
            await host.serve(sockets=[listening])
        finally:
            ended.set()
        player.join(timeout=5)

    def _fail(self, problem: str) -> None:
        self.result = 1
        self.console.print(Text(f"✗ {problem}", "bold red"))

    def _show(self, scenes: Iterator[Scene], ended: threading.Event) -> bool:
        """Whether the day was shown to its end."""
        url = f"http://{HOST}:{self.port}"
        self.console.print(
            Text(f"gpu-extender on {url}, over a simulated cluster; a scheduler asks it over HTTP", "bold")
        )
        for number, scene in enumerate(scenes, start=1):
            self._print(number, scene, url)
            if ended.wait(self.pace):
                return False
        self.console.print()
        self.console.print(
            Text("✓ all scenes came out as they state, by what the simulated kubelets handed out", "green")
        )
        if not self.once:
            self.console.print(
                Text(f"serving on {url} until Ctrl-C: open it in a browser to see the day's cluster", "bold")
            )
            server = "" if self.port == PORT else f" --server {url}"
            self.console.print(Text(f"why a pod waits: {_program()} explain {evening.NAMESPACE}/{evening.POD}{server}"))
        return True

    def _print(self, number: int, scene: Scene, url: str) -> None:
        def put(text: Text, indent: int = 2) -> None:
            for line in text.wrap(self.console, self.console.width - indent):
                line.rstrip()
                self.console.print(Text.assemble(" " * indent if line else "", line))

        self.console.print()
        self.console.print(Text(f"{number}  {scene.time}  {scene.title}", "bold"))
        put(Text(scene.says))
        self.console.print()
        for line in scene.shows:
            put(line, 4)
        self.console.print()
        for answer in scene.answers:
            put(Text(answer))
        for row in cost_table(scene.cost, scene.certificate, "") if scene.cost else ():
            put(Text(row, "bold" if isinstance(row, screen.HeaderLine) else ""), 4)
        put(Text(f"curl '{url}/debug/{scene.view}?pod={scene.pod}'", "dim"))


def listen_anywhere(port: int) -> socket.socket:
    """At this port of loopback, or where it is taken at any that is free."""
    try:
        return _listen(port)
    except ExtenderError:
        return _listen(0)


def _listen(port: int) -> socket.socket:
    # With the protocol named, asyncio sends answers without delay; else each waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)  # from here on a caller waits instead of being refused
    except OSError as error:
        listening.close()
        raise ExtenderError(f"{error.strerror}", path=f"{HOST}:{port}", code="address-in-use") from error
    return listening


def _program() -> str:
    """The command that people typed, as far as it is one."""
    return sys.argv[0] if Path(sys.argv[0]).name == NAME else NAME


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 to 3600")
    return seconds


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it holds by then."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# -- the simulated API server of the demo as the server sees it: its watch, and what it answers to reads and writes
#
# The simulation runs in a thread of its own; every write is handed to the event loop, where alone the cluster's state
# may be changed.


LOOK_SECONDS = 0.02
ACTS_SECONDS = 20.0  # within which the server acts by itself
NAMESPACE = "gpu-extender"


class SimSource(ClusterSource):
    """A source, as the HTTP server wants it. Not ready until all that is there has been applied."""

    def __init__(
        self, simulated: SimCluster, cluster: Cluster, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._simulated = simulated
        self._cluster = cluster
        self._clock, self._wall = clock, wall
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listed = threading.Event()
        self._failure: Exception | None = None

    # ---- ClusterSource

    def missing(self) -> list[str]:
        """The lists, until all that is there has been applied."""
        return [] if self._listed.is_set() else ["the simulated cluster's lists"]

    async def run(self) -> None:
        """Feeds the cluster until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._simulated.watch(self._hand_over)
        self._loop.call_soon(self._listed.set)  # behind all that the watch has reported
        await asyncio.Event().wait()

    # ---- for the thread that simulates

    def wait_until_listed(self, seconds: float) -> bool:
        """Whether all that is there was handed over to the event loop within `seconds`."""
        return self._listed.wait(seconds)

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until all that has been written is applied; TimeoutError when the server does not come to it,
        RuntimeError when it could not apply something."""
        assert self._loop is not None
        applied = threading.Event()
        self._loop.call_soon_threadsafe(applied.set)  # behind everything that was handed over before
        if not applied.wait(seconds):
            raise TimeoutError("the server has not applied the simulation's writes")
        if self._failure is not None:
            raise RuntimeError(f"the server could not apply a write: {self._failure!r}") from self._failure

    def until(self, true: Callable[[], bool], action: str) -> None:
        """Wait until the server has acted by itself; TimeoutError names the `action` that it did not do."""
        ends = time.monotonic() + ACTS_SECONDS
        while True:
            self.settle()
            if true():
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"the server did not {action}")
            time.sleep(LOOK_SECONDS)

    # ---- how

    def _hand_over(self, change: SimChange) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, change)

    def _apply(self, change: SimChange) -> None:
        try:
            record = decode.record(change.kind, change.item, self._cluster.gpu_names)
            # as in a watch that selects pods that have not finished
            ended = isinstance(record, PodRecord) and record.phase in FINISHED
            what = "delete" if ended else change.change
            self._cluster.apply([Event(change.kind, what, record)], self._clock(), self._wall())
            if self._cluster.faults:
                raise ValueError("an object could not be held; see the log")
        except Exception as error:  # in a callback it would only be logged: settle() raises it
            self._failure = error


# -- the simulation as an API server, and what acts by itself in the demo: the queue and the evictions


Object = dict[str, Any]
_PATH: Final = re.compile(
    r"(?:/namespaces/([^/]+))?/(configmaps|deviceclasses|pods|resourceclaims)(?:/([^/]+))?(?:/(\w+))?$"
)
_KINDS: Final[Mapping[str, Kind]] = {"deviceclasses": "DeviceClass", "pods": "Pod", "resourceclaims": "ResourceClaim"}


class SimApi(ApiServer):
    """Answers from the simulation what the server asks an API server: reads, merge patches, bindings and evictions. No
    budget of the simulation guards a pod that is evicted."""

    def __init__(self, simulated: SimCluster, maps: ConfigMaps | None = None) -> None:
        """`maps`: its ConfigMaps, None: those of the simulation."""
        super().__init__("http://simulated", headers=_no_headers)
        self._simulated, self._maps = simulated, maps or simulated.config_maps

    async def _whole(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        params: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> bytes:
        stated: Object = json.loads(body or b"{}")
        match = _PATH.search(path)
        assert match is not None, path
        namespace, resource, name, subresource = match.groups(default="")
        try:
            if resource == "configmaps":
                answer = self._config_map(method, name, stated)
            elif subresource == "binding":
                meta = stated["metadata"]
                self._simulated.bind(meta["uid"], stated["target"]["name"], meta["annotations"])
                answer = {}
            elif subresource == "eviction":
                if "dryRun" not in stated["deleteOptions"]:
                    self._simulated.delete(stated["deleteOptions"]["preconditions"]["uid"])
                answer = {}
            elif method == "PATCH":
                answer = self._patched(namespace, name, _KINDS[resource], stated)
            else:
                answer = self._simulated.named(namespace, name, _KINDS[resource])
        except cluster.WriteConflict as conflict:
            raise ApiError(409, str(conflict)) from conflict
        except KeyError as gone:
            raise ApiError(404, str(gone)) from gone
        return json.dumps(answer).encode()

    def _config_map(self, method: str, name: str, stated: Object) -> Object:
        if method == "POST":
            return _versioned(self._maps.change(stated["metadata"]["name"], stated["data"], ""))
        data, version = self._maps.read(name)
        if not version:
            raise KeyError(name)
        if method == "PATCH":
            version = self._maps.change(name, stated["data"], stated["metadata"].get("resourceVersion", version))
            data = self._maps.read(name)[0]
        return {**_versioned(version), "data": data}

    def _patched(self, namespace: str, name: str, kind: Kind, stated: Object) -> Object:
        version = stated["metadata"].pop("resourceVersion")
        change = partial(_merge, changes=stated)
        return _versioned(self._simulated.patch(namespace, name, version, change, kind))


async def _no_headers() -> Mapping[str, str]:
    return {}


def _versioned(version: str) -> Object:
    return {"metadata": {"resourceVersion": version}}


def _merge(item: Object, changes: Object) -> None:
    """As a merge patch; the conditions of a status are merged by their type."""
    for key, value in changes.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            _merge(item.setdefault(key, {}), value)
        elif key == "conditions":
            types = {condition["type"] for condition in value}
            item[key] = [*(other for other in item.get(key, ()) if other["type"] not in types), *value]
        else:
            item[key] = value


def queue(core: Core, api: SimApi, signs: SimApi) -> QueueController:
    """What releases pods of the simulation from behind our gate. `signs`: where the one instance that there is gives
    its signs of life."""
    settings, metrics, monotonic = core.cluster.settings.queue, core.metrics, core.clock.monotonic
    maps = [ConfigMap(api, NAMESPACE, f"{settings.reservations}-{shard}") for shard in range(SHARDS)]
    stored = KeptSeats(maps, ConfigMap(signs, NAMESPACE, f"{settings.reservations}-{SIGNS}"))
    read = Bindings(api, core.cluster.gpu_names).get_pod
    requests = QueueRequests(PodPatches(api), read, claims=ResourceClaimWrites(api))
    alone = Leadership(None, QUEUE, metrics.queue_leader, metrics.degraded, monotonic)
    return queue_over(core, alone, stored, requests, "demo")


def evictions(core: Core, source: SimSource, api: SimApi) -> tuple[OwnEvictions, ReservationStore]:
    """What evicts pods of the simulation, once they have saved their work; and what keeps its plans, in memory."""
    metrics, clock = core.metrics, core.clock
    reservations = ReservationStore(core.verbs, metrics, None, ready=lambda: not source.missing(), clock=clock)
    alone = Leadership(None, EVICTIONS, metrics.evictions_leader, metrics.degraded, clock.monotonic)
    saves = SaveRequests(core.cluster, PodPatches(api), core.events, metrics, core.save_history)
    evictor = Evictor(PodEvictions(api, metrics), alone, reservations, saves)
    return OwnEvictions(core.verbs, core.events, metrics, evictor, clock=clock), reservations
