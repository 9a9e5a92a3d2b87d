"""Play a day on a simulated cluster, over HTTP, and then serve it until Ctrl-C. Nothing leaves this machine. Exit code
1 when a scene does not come out as it is told.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.text import Text

from extender import log
from extender.ask.forks import Forks
from extender.cli import options as shared
from extender.cli import screen
from extender.cli.decisions import cost_table
from extender.cli.demo_cluster import SimApi, SimSource, evictions, queue
from extender.cluster.cluster import Cluster
from extender.errors import ExtenderError
from extender.kube.pod_writes import Bindings
from extender.server import acting, deciding, wiring
from extender.server.serve import config
from extender.server.writes import ApiBinder
from extender.settings import Settings
from extender.sim.calls import CallFailed, Extender
from extender.sim.cluster import ConfigMaps, SimCluster
from extender.sim.day import Day, NotAsTold, Scene, build
from extender.sim.evening import MOST_WAIT_SECONDS, NAMESPACE, POD, PRIORITY_CLASS, asked, claimed, dated, waits
from extender.sim.kubelet import Kubelets
from extender.sim.traffic import Traffic
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
    "preemption": {"mostWaitSeconds": {PRIORITY_CLASS: MOST_WAIT_SECONDS}},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--once", action="store_true", help="end after the day instead of serving on")
    parser.add_argument("--pace", type=_seconds, default=0.0, metavar="SECONDS", help="wait so long after each scene")
    parser.add_argument("--seed", type=int, default=0, help="decides ties: the scheduler's and the device plugins'")
    parser.add_argument("--port", type=shared.port, help=f"on loopback (default: {PORT}, or one that is free)")
    parser.add_argument("-v", "--verbose", action="store_true", help="the server's log lines, too")


def run(options: argparse.Namespace) -> int:
    """Plays the day; 0 when all went as it is told."""
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
            ApiBinder(Bindings(api, cluster.gpu_names)),
            keeps,
            evicts,
            queue=released,
            controllers=(keeps, evicts, released, *acting.dates_of(core, api, released, None)),
        )
        server = wiring.connect(core, acts, Forks(rest=0.0, nice=0))  # here nobody waits for a verb
        host = uvicorn.Server(config(server.app, server.connections, cluster.settings))
        ended = threading.Event()
        learned = lambda: core.run_times.revision  # noqa: E731

        def play() -> None:
            extender = Extender(HOST, self.port, START_SECONDS)  # a machine that is slow plays the day slowly
            try:
                if not source.wait_until_listed(START_SECONDS):
                    raise NotAsTold("the server starts")
                # The day's clock leaps, and an instance whose queue has not begun knows the seats for seconds only.
                if not _within(START_SECONDS, lambda: released.report is not None):
                    raise NotAsTold("the queue begins")
                if self._show(_scenes(simulated, kubelets, extender, source, self.seed, learned), ended):
                    self.result = 0
                    clock.release()
                    traffic = None if self.once else Traffic(simulated, kubelets, extender, source, self.seed)
                    while traffic and not ended.wait(STEP_SECONDS):
                        traffic.step()
            except NotAsTold as broken:
                self._fail(f"not as told: {broken}")
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
        self.console.print(Text("✓ all scenes came out as told, by what the simulated kubelets handed out", "green"))
        if not self.once:
            self.console.print(
                Text(f"serving on {url} until Ctrl-C: open it in a browser to see the day's cluster", "bold")
            )
            server = "" if self.port == PORT else f" --server {url}"
            self.console.print(Text(f"why a pod waits: {_program()} explain {NAMESPACE}/{POD}{server}"))
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


def _scenes(
    simulated: SimCluster,
    kubelets: Kubelets,
    extender: Extender,
    source: SimSource,
    seed: int,
    learned: Callable[[], int],
) -> Iterator[Scene]:
    yield from Day(simulated, kubelets, extender, source, seed).scenes()
    yield claimed(simulated, kubelets, extender, source, seed)
    yield asked(simulated, kubelets, extender, source, seed)
    yield dated(simulated, kubelets, extender, source, seed, learned)
    yield waits(simulated, kubelets, extender, source, seed)


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
