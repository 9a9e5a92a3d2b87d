"""From 0.2.0 to this version and back, under load: what one has promised, the other keeps.

Each change comes while a preemptor waits for its victims to end and a gang has seats that no pod is bound to: one
version after the other, and as in a rolling update both side by side, with the same Leases and ConfigMaps. The GPUs of
the nodes are handed out by plan, so a GPU that is promised twice fails its pod. 0.2.0 is built from its commit, which
a clone without history does not have.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest

from tests import plain
from tests.e2e import builders, commits
from tests.e2e.api import Api
from tests.e2e.cluster import Scheduler
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory, SchedulerFactory
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.promises import PLAN, Load, Promises, kept, reservations, seats, standing, stated
from tests.e2e.scene import Scene, SceneFactory, scheduler_config
from tests.waiting import wait_for

GATE = "gpu-extender.io/queue"
SETTINGS: dict[str, Any] = {
    "queue": {"enabled": True},
}
VICTIMS = [f"w{i}" for i in range(8)]
ELECTION = {
    "leaderElect": True, "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "0.5s",
    "resourceNamespace": "kube-system", "resourceName": "kube-scheduler",
}  # fmt: skip
"""Of kube-schedulers: the next one leads within seconds."""


def node(pool: str) -> dict[str, Any]:
    return {"topology": "dgx-h100", "plugin": "plan", "labels": {"pool": pool}}


NODES = {
    "full0": node("full"),
    "full1": node("full"),
    "gang": node("gang"),
    "load0": node("load"),
    "load1": node("load"),
}


@pytest.fixture(scope="session")  # so that it comes before the control plane
def earlier(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of 0.2.0. A clone without its commit cannot run this test."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(f"\n{line}", end="", flush=True)

    try:
        return commits.environment(commits.tree(commits.RELEASES["0.2.0"], say))
    except commits.CommitUnavailable as reason:
        pytest.skip(str(reason))


def is_earlier(server: ExtenderProcess) -> bool:
    """Whether 0.2.0 answers, which has no /debug/plan."""
    return plain.get(f"{server.url}/debug/plan").status_code == 404


def ended(cluster: Scene, names: list[str]) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in cluster.api.list("Pod", cluster.namespace)}
    return all(pods[name]["status"].get("phase") in ("Succeeded", "Failed") for name in names)


def workload(cluster: Scene) -> None:
    """Victims on all GPUs of the nodes for preemptors."""
    for name, value, preempts in (("low", 10, True), ("high", 1000, True), ("polite", 1000, False)):
        cluster.api.create(builders.priority_class(name, value, preempts=preempts))
    for name in VICTIMS:
        cluster.pod(name, 2, priority_class="low", node_selector={"pool": "full"})
    cluster.running(*VICTIMS)


def preemptor(cluster: Scene, name: str) -> dict[str, Any]:
    """A preemptor whose victims are all evicted, and do not end for some seconds; its reservation."""
    cluster.pod(name, 4, priority_class="high", node_selector={"pool": "full"})
    uid = cluster.uids[name]
    entry: dict[str, Any] = wait_for(lambda: reservations(cluster).get(uid), 60, "the reservation is written")
    # kube-scheduler evicts in the background: killed too early, it has evicted a part, and loses its Events.
    wait_for(lambda: len(cluster.evictions().get(uid, ())) == len(entry["victims"]), 60, "all victims are evicted")
    return entry


def landed(cluster: Scene, name: str, entry: dict[str, Any]) -> None:
    """Wait until the preemptor runs where its reservation is; no other pod was evicted for it."""
    assert cluster.running(name, timeout=60) == [entry["node"]]
    victims = {cluster.uids[one] for one in cluster.evictions()[cluster.uids[name]]}
    assert victims == set(entry["victims"]), "those that were reserved for are evicted, and no other"


def thief(cluster: Scene, name: str) -> None:
    """A pod that would take the GPUs of victims, with the priority of the preemptor."""
    cluster.pod(name, 4, priority_class="polite", node_selector={"pool": "full"})


def create_gang(cluster: Scene, name: str) -> None:
    """A Job of two pods with all GPUs of a node, behind the gate of the queue."""
    member = builders.pod(
        "-", cluster.namespace, 4, schedulingGates=[{"name": GATE}], grace=1, node_selector={"pool": "gang"},
        annotations={RUN_SECONDS: "1"},
    )  # fmt: skip
    cluster.api.create(builders.job(name, 2, member))


def members(cluster: Scene, gang: str) -> list[Any]:
    """The pods of the gang once all its gates are open."""
    found = cluster.api.list("Pod", cluster.namespace, labels=f"app={gang}")
    return found if len(found) == 2 and not any(pod["spec"].get("schedulingGates") for pod in found) else []


def promised(cluster: Scene, gang: str) -> dict[str, tuple[str, str]]:
    """Wait until the gates of the gang are open; the seats that its pods state."""
    found = stated(wait_for(lambda: members(cluster, gang), 60, "the gates of the gang are open"))
    assert sorted(found.values()) == [("gang", "0,1,2,3"), ("gang", "4,5,6,7")]
    return found


def seated(cluster: Scene, gang: str, seats: dict[str, tuple[str, str]]) -> None:
    """Wait until the pods of the gang have run on these seats."""

    def in_phase(*phases: str) -> bool:
        return all(pod["status"].get("phase") in phases for pod in members(cluster, gang))

    wait_for(lambda: in_phase("Running", "Succeeded"), 60, "the gang runs on its seats")
    plans = {
        pod["metadata"]["uid"]: (pod["spec"]["nodeName"], pod["metadata"]["annotations"][PLAN])
        for pod in members(cluster, gang)
    }
    assert plans == seats
    wait_for(lambda: in_phase("Succeeded"), 60, "the gang has ended")


def nothing_twice(cluster: Scene, load: Load, preemptors: int) -> None:
    """The load has run, no GPU was handed out twice, and each victim was evicted once."""
    wait_for(lambda: ended(cluster, load.names), 60, "the load has run")
    assert load.faults == []
    cluster.kubelets.settle()
    truth = cluster.kubelets.truth
    assert truth.double_allocations == 0
    assert truth.refusals() == []
    assert truth.plans().keys() == {"kept"}
    evicted = cluster.evictions()
    assert len(evicted) == preemptors
    assert sum(map(len, evicted.values())) == len(set().union(*evicted.values())) == 2 * preemptors


def change(cluster: Scene, number: int, env: dict[str, str]) -> None:
    """Another version takes over while a preemptor waits for its victims, and a gang has seats. The scheduler stands
    still meanwhile, so that what is kept can be compared; both then land where the version before has promised."""
    urgent, gang = f"urgent{number}", f"gang{number}"
    entry = preemptor(cluster, urgent)
    uid = cluster.uids[urgent]
    cluster.scheduler.kill()
    thief(cluster, f"thief{number}")
    create_gang(cluster, gang)
    stand = promised(cluster, gang)
    before = seats(cluster)
    assert len(before) == 1

    cluster.extender.become(env)
    assert is_earlier(cluster.extender) == bool(env)
    assert standing(reservations(cluster)[uid]) == standing(entry)
    assert seats(cluster) == before
    assert stated(members(cluster, gang)) == stand
    cluster.scheduler.start()
    landed(cluster, urgent, entry)
    seated(cluster, gang, stand)
    wait_for(lambda: uid not in reservations(cluster) and not seats(cluster), 60, "what is over is not kept")
    assert not cluster.get(f"thief{number}")["spec"].get("nodeName"), "the GPUs were kept for the preemptor"


def test_to_this_version_and_back(earlier: dict[str, str], scene: SceneFactory) -> None:
    cluster = scene(NODES, settings=SETTINGS, kubelet={"termination_seconds": 6})
    cluster.extender.become(earlier)
    assert is_earlier(cluster.extender)
    workload(cluster)
    with Load(cluster).running() as load:
        change(cluster, 1, {})
        change(cluster, 2, earlier)
    nothing_twice(cluster, load, preemptors=2)
    assert "what was learned is read" in cluster.extender.log.read_text()

    cluster.extender.stop()
    learned = kept(cluster, "gpu-extender-mix")["document"]
    pods = cluster.api.list("Pod", cluster.namespace)
    created = len(pods) + 4  # and the victims, which do not exist any more
    counted = sum(kind[7] for kind in learned["kinds"])
    assert abs(counted - created) < 0.5, "each pod is counted once, whichever version has seen it"


@dataclass(frozen=True)
class Replica:
    """A kube-scheduler that asks its own server, as in a pod of manifests/deployment.yaml."""

    server: ExtenderProcess
    scheduler: Scheduler

    def ready(self) -> bool:
        """Whether the server would answer."""
        return plain.get(f"{self.server.url}/readyz").status_code == 200

    def answered(self) -> float:
        """How many filter calls its server has answered."""
        return self._sum("gpu_extender_request_duration_seconds_count", 'verb="filter"')

    def releases(self) -> bool:
        """Whether its server holds the Lease of the queue."""
        return self._sum("gpu_extender_queue_leader") == 1

    def _sum(self, name: str, label: str = "") -> float:
        lines = plain.get(f"{self.server.url}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)


def handover(cluster: Scene, number: int, ending: Replica, coming: Replica) -> None:
    """One replica takes over from another one, and for a time both run. First the leading kube-scheduler ends while a
    preemptor waits for its victims: verbs are answered by the replica that comes, seats are given by the one that
    ends. Then its server ends too, while another preemptor waits and a gang has seats; the scheduler stands still
    meanwhile."""
    first, gang = f"urgent{number}a", f"gang{number}a"
    entry = preemptor(cluster, first)
    assert (ending.releases(), coming.releases()) == (True, False)
    before = coming.answered()
    ending.scheduler.kill()
    create_gang(cluster, gang)
    seated(cluster, gang, promised(cluster, gang))
    landed(cluster, first, entry)
    assert (ending.releases(), coming.releases()) == (True, False)
    assert ending.ready()
    assert coming.answered() > before

    second, gang = f"urgent{number}b", f"gang{number}b"
    entry = preemptor(cluster, second)
    coming.scheduler.kill()
    create_gang(cluster, gang)
    stand = promised(cluster, gang)
    ending.server.stop()
    wait_for(coming.releases, 60, "the other replica holds the Lease of the queue")
    assert stated(members(cluster, gang)) == stand
    coming.scheduler.start()
    seated(cluster, gang, stand)
    landed(cluster, second, entry)


def test_one_of_each_side_by_side(
    earlier: dict[str, str],
    api: Api,
    namespace: str,
    kubelets: KubeletsFactory,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
) -> None:
    """A rolling update to this version and the way back."""
    simulated = kubelets(termination_seconds=6)
    for name, options in NODES.items():
        simulated.add_node(name, **options)

    def replica(env: dict[str, str]) -> Replica:
        server = extender_process(SETTINGS, env=env)
        assert is_earlier(server) == bool(env)
        return Replica(server, scheduler(scheduler_config(server.url, bind=True) | {"leaderElection": ELECTION}))

    before = replica(earlier)
    cluster = Scene(api, namespace, simulated, before.server, before.scheduler)
    workload(cluster)
    with Load(cluster).running() as load, Promises(cluster).followed() as promises:
        update = replica({})
        thief(cluster, "thief")
        handover(cluster, 1, before, update)
        handover(cluster, 2, update, replica(earlier))
    assert promises.faults == []
    urgent = {cluster.uids[f"urgent{n}{part}"] for n in (1, 2) for part in "ab"}
    assert urgent < promises.seen
    assert len(promises.seen) == len(urgent) + 4 * 2, "and the pods of four gangs"
    assert not cluster.get("thief")["spec"].get("nodeName"), "the GPUs were kept for the preemptors"
    nothing_twice(cluster, load, preemptors=4)
    api.delete("Lease", "kube-scheduler", "kube-system")
