"""extender.kube against a real API server: what is listed, watched, bound and refused there."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from extender.kube.client import ApiError, ApiServer
from extender.kube.lists import NODES, PODS, WATCHED_KINDS, WatchedKind
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.kube.pod_writes import Bindings
from extender.kube.reflector import Reflector
from extender.kube.watching import WatchPace, WatchTiming
from extender.objects.records import Event, Kind, NodeRecord, PodRecord, Record
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.waiting import eventually
from tests.yaml_text import objects_in

GPUS = frozenset({builders.GPU})
MANIFESTS = Path(__file__).parents[2] / "manifests"
PLAN = {"gpu-extender.io/gpus": "0,3"}


class Mirror:
    """A sink: the objects as they are now, by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str], Record] = {}
        self.synced_kinds: list[str] = []
        self.events = 0

    def apply(self, batch: Sequence[Event]) -> None:
        self.events += len(batch)
        for kind, change, record in batch:
            if change == "set":
                self.objects[kind, record.name] = record
            else:
                del self.objects[kind, record.name]

    def synced(self, kind: str) -> None:
        self.synced_kinds.append(kind)

    def absent(self, kind: str) -> None:
        self.synced_kinds.append(kind)

    def returned(self) -> None:
        pass

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for of, name in self.objects if of == kind)


@asynccontextmanager
async def reflecting(
    server: ApiServer, *sources: WatchedKind, pace: WatchPace | None = None
) -> AsyncIterator[tuple[Mirror, list[Reflector]]]:
    """Reflectors of these sources, stopped in the end."""
    mirror = Mirror()
    timing = WatchTiming(chance=random.Random(1))
    reflectors = [Reflector(server, source, mirror, GPUS, pace, timing) for source in sources]
    tasks = [asyncio.create_task(one.run()) for one in reflectors]
    try:
        yield mirror, reflectors
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


async def test_every_kind_is_listed_and_watched(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """Pages of 7 over 40 nodes; then what happens is seen."""
    api.create_many(builders.node(f"n{number:02}", 8) for number in range(40))
    api.create(builders.pod("before", namespace, 2))
    sources = [replace(source, limit=7) for source in WATCHED_KINDS]
    async with (
        await ApiServer.connect(str(control_plane.kubeconfig())) as server,
        reflecting(server, *sources) as (mirror, reflectors),
    ):
        await eventually(lambda: not any(one.missing() for one in reflectors))
        assert mirror.names("Node") == [f"n{number:02}" for number in range(40)]
        assert reflectors[1].state.counters.pages == 6  # 40 / 7
        node = mirror.objects["Node", "n00"]
        assert isinstance(node, NodeRecord)
        assert node.gpus == {builders.GPU: 8}
        assert "system-node-critical" in mirror.names("PriorityClass")
        pod = mirror.objects["Pod", "before"]
        assert isinstance(pod, PodRecord)
        assert (pod.gpus, pod.node, pod.phase) == (((builders.GPU, 2),), "", "Pending")

        await eventually(lambda: all(one.state.watching or one.state.absent for one in reflectors))
        served = {one.watched.name for one in reflectors if one.state.watching}
        assert served >= {source.name for source in WATCHED_KINDS if source.group is None} | {"Job.batch"}
        await asyncio.to_thread(api.create, builders.pod("after", namespace, 1))
        await eventually(lambda: mirror.names("Pod") == ["after", "before"])
        await asyncio.to_thread(api.delete, "Node", "n39")
        await eventually(lambda: len(mirror.names("Node")) == 39)
        finished = {"status": {"phase": "Succeeded"}}
        await asyncio.to_thread(api.patch, "Pod", "before", finished, namespace, subresource="status")
        await eventually(lambda: mirror.names("Pod") == ["after"])  # finished pods leave
        failed = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}
        await asyncio.to_thread(api.patch, "Pod", "after", failed, namespace, subresource="status")
        await eventually(lambda: mirror.names("FailedPod") == ["after"] and not mirror.names("Pod"))
        told = mirror.objects["FailedPod", "after"]
        assert isinstance(told, PodRecord)
        assert told.reason == "UnexpectedAdmissionError"
        assert sorted(mirror.synced_kinds) == sorted(watched.name for watched in WATCHED_KINDS)
        assert [one.state.lost_at for one in reflectors] == [None] * len(WATCHED_KINDS)


async def test_an_outage_is_bridged(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """The API server is killed and comes back: the watch goes on, and what came meanwhile is seen."""
    async with (
        await ApiServer.connect(str(control_plane.kubeconfig())) as server,
        reflecting(server, PODS) as (mirror, (reflector,)),
    ):
        await eventually(lambda: reflector.state.watching)
        await asyncio.to_thread(control_plane.stop_apiserver)
        await eventually(lambda: not reflector.state.watching)
        assert reflector.state.synced
        assert reflector.state.problem
        await asyncio.sleep(2)  # the window whose tries are counted: few, as the delays grow
        tries = reflector.state.counters.watches
        await asyncio.to_thread(control_plane.start_apiserver)
        await asyncio.to_thread(api.create, builders.pod("meanwhile", namespace, 1))
        await eventually(lambda: mirror.names("Pod") == ["meanwhile"])
        assert tries < 8
        await eventually(lambda: not reflector.state.problem)


async def test_no_event_is_lost_between_the_turns_of_a_prompt_watch(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    """Turns of one second while pods come and go: the server ends each on time, and none needs a list or is a loss."""
    pace = replace(WatchPace.prompt(5.0), inactivity=30.0)  # a busy machine may be silent for longer than half of 5 s
    async with (
        await ApiServer.connect(str(control_plane.kubeconfig())) as server,
        reflecting(server, PODS, pace=pace) as (mirror, (reflector,)),
    ):
        await eventually(lambda: reflector.state.watching)
        wanted: set[str] = set()
        number = 0
        while reflector.state.counters.turns < 6:
            name = f"p{number:03}"
            await asyncio.to_thread(api.create, builders.pod(name, namespace, 1, grace=0))
            wanted.add(name)
            if number % 3 == 2:
                await asyncio.to_thread(api.delete, "Pod", f"p{number - 1:03}", namespace)
                wanted.remove(f"p{number - 1:03}")
            number += 1
            assert reflector.state.lost_at is None
        await eventually(lambda: mirror.names("Pod") == sorted(wanted))
        counters = reflector.state.counters
        await eventually(lambda: counters.watches == counters.turns + 1)  # one is under way
        print(f"{number} pods made in {counters.turns} turns of 1 s")
        assert mirror.synced_kinds == ["Pod"]
        deleted = number - len(wanted)
        assert mirror.events == number + 2 * deleted  # a deletion first sets deletionTimestamp


def test_a_version_of_long_ago_leads_to_a_new_list(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """The real 410: version 1 is older than anything the API server kept since its start."""
    control_plane.stop_apiserver()
    control_plane.start_apiserver()
    api.create(builders.pod("one", namespace, 1))

    async def run() -> None:
        async with (
            await ApiServer.connect(str(control_plane.kubeconfig())) as server,
            reflecting(server, PODS, pace=WatchPace(watch_for=1)) as (mirror, (reflector,)),
        ):
            await eventually(lambda: reflector.state.watching)

            def relisted() -> bool:
                if mirror.synced_kinds == ["Pod"] and reflector._version:
                    reflector._version = "1"  # again after a bookmark, which has a newer one
                return mirror.synced_kinds == ["Pod"] * 2 and reflector.state.watching

            await eventually(relisted)
            await eventually(lambda: reflector.state.lost_at is None)
            assert mirror.names("Pod") == ["one"]

    asyncio.run(run())


async def test_an_etcd_that_is_restored_from_a_backup_leads_to_a_new_list(
    control_plane: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    """The real API server accepts a watch from a version that it has not reached, and says nothing for long."""
    data, backup = control_plane.folder / "etcd", tmp_path / "backup"

    def from_backup() -> None:
        control_plane.stop_apiserver()
        control_plane.etcd.kill()
        if backup.exists():
            shutil.rmtree(data)
        shutil.copytree(*((backup, data) if backup.exists() else (data, backup)))
        control_plane.start_etcd()
        control_plane.start_apiserver()

    for name in ("kept", "deleted"):
        api.create(builders.pod(name, namespace, 1))
    from_backup()
    api.delete("Pod", "deleted", namespace, grace=0)
    for name in ("later0", "later1"):
        api.create(builders.pod(name, namespace, 1))
    for number in range(500):  # an API server that starts writes itself
        api.patch("Pod", "later0", {"metadata": {"labels": {"number": str(number)}}}, namespace)
    async with (
        await ApiServer.connect(str(control_plane.kubeconfig())) as server,
        reflecting(server, PODS, pace=WatchPace.prompt(10.0)) as (mirror, (reflector,)),
    ):
        await eventually(lambda: mirror.names("Pod") == ["kept", "later0", "later1"] and reflector.state.watching)
        await asyncio.to_thread(from_backup)
        await eventually(lambda: mirror.names("Pod") == ["deleted", "kept"])
        await asyncio.to_thread(api.create, builders.pod("new", namespace, 1))
        await eventually(lambda: mirror.names("Pod") == ["deleted", "kept", "new"])


async def test_what_is_forbidden_is_said(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": namespace}})
    kubeconfig = str(control_plane.kubeconfig_of_account(namespace, "nobody"))
    async with await ApiServer.connect(kubeconfig) as server, reflecting(server, NODES) as (_, (reflector,)):
        await eventually(lambda: "forbidden" in reflector.missing())
        assert 'nodes is forbidden: User "system:serviceaccount' in reflector.missing()


async def test_a_pod_reaches_it_by_its_service_account(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment and the files of a pod, and a proxy that must not be used."""
    from kubernetes.aio.config import incluster_config

    (tmp_path / "token").write_text(control_plane.token("admin"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(control_plane.ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", control_plane.url.rpartition(":")[2])
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with await ApiServer.connect() as server:
        assert await server.get("/readyz") == b"ok"


async def test_binding(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """The plan gets onto the pod in the same write; a second binding, a wrong uid and a missing pod are refused."""
    api.create(builders.node("n1", 8))
    uid = api.create(builders.pod("p", namespace, 2))["metadata"]["uid"]
    api.create(builders.pod("q", namespace, 2))
    async with await ApiServer.connect(str(control_plane.kubeconfig())) as server:
        bindings = Bindings(server, GPUS)
        assert (await bindings.bind(namespace, "q", uid, "n1", PLAN)).outcome == "conflict"
        assert (await bindings.bind(namespace, "none", uid, "n1", PLAN)).outcome == "not-found"
        assert (await bindings.bind(namespace, "p", uid, "n1", PLAN)) == ("bound", "")
        again = await bindings.bind(namespace, "p", uid, "n1", PLAN)
        assert again.outcome == "conflict"
        assert "already assigned to node" in again.message
        pod = await bindings.get_pod(namespace, "p")
        assert pod is not None
        assert (pod.uid, pod.node, pod.annotations) == (uid, "n1", PLAN)
        assert await bindings.get_pod(namespace, "none") is None


def test_a_change_of_a_configmap_loses_no_update(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """The kept connection, TLS and server's event loop included; the rights are those of manifests/deployment.yaml."""
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "keeper", "namespace": namespace}})
    documents = objects_in(MANIFESTS / "deployment.yaml")
    [rules] = [one["rules"] for one in documents if one["kind"] == "Role" and one["metadata"]["name"] == "gpu-extender"]
    meta = {"name": "keeper", "namespace": namespace}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    api.create({**rbac, "kind": "Role", "rules": rules})
    subject = {"kind": "ServiceAccount", **meta}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "keeper"}
    api.create({**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})
    kubeconfig = str(control_plane.kubeconfig_of_account(namespace, "keeper"))
    name = "gpu-extender-reservations"

    async def run() -> None:
        async with await ApiServer.connect(kubeconfig) as server:
            connections = [server.apart(1) for _ in range(2)]
            one, other = (ConfigMap(connection, namespace, name) for connection in connections)
            assert await one.read() == StoredTexts({}, "")
            made = await one.change({"a": "1", "b": "2"}, "")
            with pytest.raises(VersionConflict):
                await other.change({"c": "3"}, "")  # it exists
            second = await other.change({"c": "3"}, made)
            with pytest.raises(VersionConflict):
                await one.change({"a": None}, made)
            third = await one.change({"a": None, "d": "4"}, second)
            uid = api.get("ConfigMap", name, namespace)["metadata"]["uid"]
            assert await other.read() == StoredTexts({"b": "2", "c": "3", "d": "4"}, third, uid)
            assert "managedFields" not in api.get("ConfigMap", name, namespace)["metadata"]
            api.delete("ConfigMap", name, namespace)
            with pytest.raises(VersionConflict):
                await one.change({"e": "5"}, third)
            with pytest.raises(ApiError, match="forbidden"):
                await ConfigMap(connections[0], namespace, "other").read()
            for connection in connections:
                await connection.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
