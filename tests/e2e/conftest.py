"""Fixtures around the real control plane; one control plane serves all tests of a worker."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from tests.e2e import builders, cleaning
from tests.e2e.api import Api
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane, Scheduler
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.scene import Scene, SceneFactory, make
from tests.needs import lacking

HERE = Path(__file__).parent
USERS = {"somebody": ("some-group",), "system:node:mine": ("system:nodes", "system:masters")}
"""Those of tests, beside the components': one that the API server does not know at its start costs a restart of it."""
LONG = (
    "test_sidecar", "test_install", "test_outage", "test_saving_processes", "test_advance",
    "test_attack", "test_queue_soak", "test_queue_dates", "test_dist", "test_advance_queue",
)  # fmt: skip
"""The files whose tests take a minute or more each, most of it waiting."""
CONTROL_PLANES = 8
"""At most so many workers of pytest-xdist begin with tests of this folder: a control plane takes 0.6 GB of memory."""
UNAVAILABLE = pytest.StashKey[str]()
CONTROL_PLANE = pytest.StashKey[ControlPlane]()
EXTENDERS = pytest.StashKey[list[ExtenderProcess]]()

SchedulerFactory = Callable[..., Scheduler]
ExtenderFactory = Callable[..., ExtenderProcess]
KubeletsFactory = Callable[..., SimulatedKubelets]
Ask = Callable[..., tuple[int, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the mark e2e."""
    here, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (here if str(item.path).startswith(f"{HERE}/") else others).append(item)
    for item in here:
        item.add_marker(pytest.mark.e2e)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = others + here if workers == 1 else _waiting_first(here, others, workers)


def _waiting_first(here: list[pytest.Item], others: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """pytest-xdist cuts the tests into parts of the same length, one for each worker. A worker that has ended its part
    takes the end of another's. So each part begins with tests of this folder, of these with the long ones: most of
    their time is waiting, and the processors are free for unit tests meanwhile. What is left at the end is short."""
    parts = min(workers, CONTROL_PLANES)
    short = [item for item in here if item.path.stem not in LONG]
    ordered: list[pytest.Item] = []
    here_left, left = len(here), len(here) + len(others)
    for number in range(workers):
        part: list[pytest.Item] = []
        if number < parts:
            part += [item for name in LONG[number::parts] for item in here if item.path.stem == name]
            added = max(0, here_left // (parts - number) - len(part))
            part += short[:added]
            del short[:added]
            here_left -= len(part)
        added = max(0, left // (workers - number) - len(part))
        part += others[:added]
        del others[:added]
        left -= len(part)
        ordered += part
    return ordered


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A fixture needs a program that cannot be had: the test is skipped, but fails when ``CI`` is set."""
    try:
        return (yield)
    except ControlPlaneUnavailable as reason:
        item.config.stash[UNAVAILABLE] = str(reason)
        lacking(str(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows the end of each log, and the logs are kept."""
    report: Any = yield
    control_plane = item.config.stash.get(CONTROL_PLANE, None)
    if report.failed and control_plane is not None and HERE in item.path.parents:
        control_plane.keep_logs = True
        report.sections.append(("control plane", f"logs: {control_plane.logs}"))
        for component in control_plane.components()[2:]:
            report.sections.append((component.name, component.tail(15)))
        for process in item.stash.get(EXTENDERS, []):
            report.sections.append((process.log.name, process.tail(15)))
    return report  # type: ignore[no-any-return]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist reports to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["unavailable"] = session.config.stash.get(UNAVAILABLE, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended."""
    if reason := getattr(node, "workeroutput", {}).get("unavailable"):
        node.config.stash[UNAVAILABLE] = reason


def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's own last line: a green run without these tests must not look like one with them."""
    if reason := config.stash.get(UNAVAILABLE, None):
        print(f"\ne2e tests were SKIPPED: {reason}")


@pytest.fixture(scope="session")
def binaries(request: pytest.FixtureRequest) -> Path:
    """The control plane's programs."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(f"\n{line}", end="", flush=True)

    return build(say)


@pytest.fixture(scope="package")
def control_plane(binaries: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """etcd, API server and controller manager; schedulers come from ``scheduler``. It ends with the last test of this
    folder: six that nobody asks would take a twelfth of a processor beside the unit tests."""
    running = ControlPlane(binaries)
    running.add_users(USERS)
    with running:
        request.config.stash[CONTROL_PLANE] = running
        yield running
        if running.keep_logs:
            print(f"logs of the control plane: {running.logs}")
    del request.config.stash[CONTROL_PLANE]


@pytest.fixture
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """The administrator's client, on a cluster that is empty before and after the test.

    Request it (or a fixture below) before anything else that writes: what was started later is ended
    earlier, so that nobody answers to the cleaning.
    """
    yield control_plane.api
    if not control_plane.apiserver.running:
        control_plane.start_apiserver()
    cleaning.clean(control_plane.api)


@pytest.fixture
def namespace(api: Api) -> str:
    """A namespace that no test before has used."""
    made = api.create({**builders.namespace(""), "metadata": {"generateName": "e2e-"}})
    return str(made["metadata"]["name"])


@pytest.fixture
def settings(namespace: str) -> dict[str, Any]:
    """Of a server with the queue. It has a Lease of its own: after a kill the Lease of a server lasts for 4 s more."""
    return {"queue": {"enabled": True, "lease": f"queue-{namespace}", "reservations": f"seats-{namespace}"}}


@pytest.fixture
def planning(settings: dict[str, Any]) -> dict[str, Any]:
    """Of a server whose queue allocates the devices of claims."""
    return {"queue": settings["queue"] | {"plannedAllocation": True}}


@pytest.fixture
def kubelets(api: Api) -> Iterator[KubeletsFactory]:
    """``kubelets(**options)`` starts simulated kubelets; usually once in a test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(SimulatedKubelets(api, **options))


@pytest.fixture
def scheduler(control_plane: ControlPlane, api: Api) -> Iterator[SchedulerFactory]:
    """``scheduler(config, verbosity=2)`` starts a kube-scheduler; all are killed after the test."""
    started: list[Scheduler] = []

    def start(config: Mapping[str, Any] | None = None, **options: Any) -> Scheduler:
        started.append(control_plane.start_scheduler(config or {}, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        control_plane.forget_scheduler(process)


@pytest.fixture
def extender_process(
    control_plane: ControlPlane, api: Api, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ExtenderFactory]:
    """``extender_process(config, kubeconfig=None, arguments=(), env=None)`` starts the product, ready to be asked."""
    started = request.node.stash.setdefault(EXTENDERS, [])

    def start(
        config: Mapping[str, Any] | str = "",
        *,
        kubeconfig: Path | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        probe_port: int | None = None,
    ) -> ExtenderProcess:
        process = ExtenderProcess(
            tmp_path,
            control_plane.logs,
            kubeconfig or control_plane.kubeconfig(),
            control_plane.reaper,
            config=config,
            arguments=arguments,
            number=len(list(control_plane.logs.glob("extender-*.log"))),
            env=env,
            probe_port=probe_port,
        )
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def scene(
    api: Api,
    namespace: str,
    kubelets: KubeletsFactory,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
) -> SceneFactory:
    """``scene({"n1": {"topology": "dgx1-v100"}}, bind=True, kubelet={...})``: a whole cluster that asks the product."""

    def start(
        nodes: Mapping[str, Mapping[str, Any]], *, kubelet: Mapping[str, Any] | None = None, **more: Any
    ) -> Scene:
        return make(api, namespace, kubelets(**(kubelet or {})), extender_process, scheduler, nodes, **more)

    return start


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """``ask(scene, objects, *more)`` asks what-if by the command: the server of a scene, or another source. (exit code,
    answer)"""

    def asked(cluster: Scene, objects: list[Any], *more: str, source: tuple[str, ...] = ()) -> tuple[int, Any]:
        file = tmp_path / "pods.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        manifests = ("-f", str(file)) if objects else ()
        where = source or ("--server", cluster.extender.url)
        code = main(["whatif", *where, *manifests, *more, "-o", "json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if code != 1 else json.loads(printed.err)

    return asked
