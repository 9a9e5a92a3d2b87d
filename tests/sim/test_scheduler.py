"""The small scheduler against a server that answers what it is told to: what goes over the wire, and what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from extender.sim.cluster import SimClock, SimCluster
from extender.sim.machines import SimNode, SimPod, machine
from extender.sim.scheduler import ATTEMPTS, CallFailed, Extender, Scheduler
from tests.sim.test_cluster import START
from tests.waiting import in_thread

Object = dict[str, Any]


class Scripted:
    """An extender that passes all, has no opinion and binds; `answers` by verb replace that, one after another."""

    def __init__(self, cluster: SimCluster) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, list[Any]] = {}
        self._cluster = cluster
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                raw = json.dumps(outer.answer(self.path.removeprefix("/v1/"), body)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def answer(self, verb: str, body: Any) -> Any:
        self.asked.append((verb, body))
        if self.answers.get(verb):
            return self.answers[verb].pop(0)
        if verb == "filter":
            return {"NodeNames": body["NodeNames"]}
        if verb == "prioritize":
            return [{"Host": name, "Score": 0} for name in body["NodeNames"]]
        if verb == "preempt":
            return {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
        self._cluster.bind(body["PodUID"], body["Node"], {})
        return {"Error": ""}

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


@pytest.fixture
def cluster() -> SimCluster:
    made = SimCluster(SimClock(START))
    for name in ("n1", "n2", "n3"):
        made.add_node(SimNode(name, machine("a100-pcie-4")).object())
    return made


@pytest.fixture
def server(cluster: SimCluster) -> Iterator[Scripted]:
    made = Scripted(cluster)
    with made.server, in_thread(lambda: made.server.serve_forever(0.01), made.server.shutdown):
        yield made


@pytest.fixture
def extender(server: Scripted) -> Iterator[Extender]:
    made = Extender("127.0.0.1", server.port)
    yield made
    made.close()


@pytest.fixture
def scheduler(cluster: SimCluster, extender: Extender) -> Scheduler:
    return Scheduler(cluster, extender, seed=1)


def busy(cluster: SimCluster, name: str, where: str, gpus: int, priority: int = 0) -> str:
    uid = cluster.create(SimPod(name, "a", gpus, priority=priority).object())
    cluster.bind(uid, where, {})
    cluster.set_status(uid, phase="Running", startTime="2026-01-05T08:00:00Z")
    return uid


def test_one_cycle_on_the_wire(cluster: SimCluster, server: Scripted, extender: Extender, scheduler: Scheduler) -> None:
    server.answers["prioritize"] = [[{"Host": "n2", "Score": 10}, {"Host": "n1", "Score": 3}]]
    uid = cluster.create(SimPod("p", "a", 1).object())
    (outcome,) = scheduler.run()
    assert (outcome.result, outcome.node) == ("bound", "n2")
    assert server.verbs() == ["filter", "prioritize", "bind"]
    asked = server.asked[0][1]
    assert set(asked) == {"Pod", "Nodes", "NodeNames"}
    assert asked["Nodes"] is None
    assert asked["NodeNames"] == ["n1", "n2", "n3"]
    assert set(asked["Pod"]) == {"metadata", "spec", "status"}  # from the informer's cache: no kind, no apiVersion
    assert server.asked[2][1] == {"PodName": "p", "PodNamespace": "a", "PodUID": uid, "Node": "n2"}
    assert extender.connections == 1


def test_prioritize_is_not_asked_about_one_node(cluster: SimCluster, server: Scripted, scheduler: Scheduler) -> None:
    for name in ("n1", "n3"):
        busy(cluster, f"on-{name}", name, 4)
    cluster.create(SimPod("p", "a", 1).object())
    (outcome,) = scheduler.run()
    assert outcome.sent == ("n2",)
    assert server.verbs() == ["filter", "bind"]


def test_ties_are_drawn_by_lot_and_the_lot_is_seeded(cluster: SimCluster, extender: Extender) -> None:
    def day(seed: int) -> list[str]:
        scheduler = Scheduler(cluster, extender, seed=seed)
        nodes = []
        for n in range(6):
            uid = cluster.create(SimPod(f"p{n}", "a", 0).object())
            nodes.append(scheduler.run([uid])[0].node)
            cluster.remove(uid)
        return nodes

    assert day(1) == day(1)
    assert len(set(day(1))) > 1


def test_a_gated_pod_is_not_tried(cluster: SimCluster, server: Scripted, scheduler: Scheduler) -> None:
    uid = cluster.create(SimPod("p", "a", 1, gates=["g"]).object())
    assert scheduler.run() == scheduler.run([uid]) == []
    assert server.verbs() == []


def test_an_error_is_tried_again(cluster: SimCluster, server: Scripted, scheduler: Scheduler) -> None:
    server.answers["filter"] = [{"Error": "not yet"}, {"Error": "not yet"}]
    uid = cluster.create(SimPod("p", "a", 1).object())
    cluster.set_status(uid, nominatedNodeName="n9")
    (outcome,) = scheduler.run()
    assert outcome.result == "bound"
    assert server.verbs().count("filter") == 3
    server.answers["filter"] = [{"Error": "no"}] * 20
    uid = cluster.create(SimPod("q", "a", 1, priority=5).object())
    (outcome,) = scheduler.run()
    assert (outcome.result, outcome.message) == ("again", "no")
    assert len(server.answers["filter"]) == 20 - ATTEMPTS
    assert "preempt" not in server.verbs()


def test_a_name_that_was_not_sent_fails_the_call(extender: Extender, server: Scripted) -> None:
    server.answers["filter"] = [{"NodeNames": ["n1", "n9"]}]
    with pytest.raises(CallFailed, match="n9"):
        extender.filter(SimPod("p", "a", 1).object(), ["n1", "n2"])
    server.answers["filter"] = [{"nodenames": ["n1"], "FAILEDNODES": {"n2": "why"}}]  # as Go matches fields
    answer = extender.filter(SimPod("p", "a", 1).object(), ["n1", "n2"])
    assert (answer.passed, answer.failed) == (("n1",), {"n2": "why"})


def test_points_are_integers(extender: Extender, server: Scripted) -> None:
    server.answers["prioritize"] = [[{"Host": "n1", "Score": 5.0}]]
    with pytest.raises(CallFailed, match="not an integer"):
        extender.prioritize(SimPod("p", "a", 1).object(), ["n1"])


def test_who_waits_is_told_why(cluster: SimCluster, server: Scripted, scheduler: Scheduler) -> None:
    busy(cluster, "q", "n1", 4)
    server.answers["filter"] = [{"NodeNames": [], "FailedAndUnresolvableNodes": {"n2": "no links", "n3": "no links"}}]
    uid = cluster.create(SimPod("p", "a", 1, priority=0).object())
    (outcome,) = scheduler.run()
    assert outcome.result == "waits"
    assert outcome.message == "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 no links"
    item = cluster.pod(uid)
    assert item is not None
    assert item["status"]["conditions"][0]["message"] == outcome.message


def test_victims_are_offered_evicted_and_waited_for(
    cluster: SimCluster, server: Scripted, scheduler: Scheduler
) -> None:
    low = {name: busy(cluster, f"low-{name}", name, 4, priority=n) for n, name in enumerate(("n1", "n2", "n3"))}
    uid = cluster.create(SimPod("p", "a", 2, priority=9).object())
    (outcome,) = scheduler.run()
    assert server.verbs() == ["preempt"]  # no node had room: filter had nothing to be asked
    offered = server.asked[0][1]
    assert offered["NodeNameToVictims"] is None
    assert offered["NodeNameToMetaVictims"]["n2"] == {"Pods": [{"UID": low["n2"]}], "NumPDBViolations": 0}
    assert (outcome.result, outcome.node, outcome.victims) == ("nominated", "n1", (low["n1"],))
    item = cluster.pod(uid)
    assert item is not None
    assert item["status"]["nominatedNodeName"] == "n1"
    assert [one.result for one in scheduler.run()] == ["waits"]
    assert server.verbs() == ["preempt"]  # while its victim terminates it evicts nobody else
    cluster.remove(low["n1"])
    lesser = cluster.create(SimPod("lesser", "a", 4, priority=5, preempts=False).object())
    (first, second) = scheduler.run([lesser, uid])
    assert (first.uid, first.result, first.node) == (uid, "bound", "n1")
    assert second.result == "waits"


def test_a_nominated_place_is_not_given_away(cluster: SimCluster, scheduler: Scheduler) -> None:
    for name in ("n2", "n3"):
        busy(cluster, f"on-{name}", name, 4, priority=9)
    uid = cluster.create(SimPod("p", "a", 4, priority=9).object())
    cluster.set_status(uid, nominatedNodeName="n1")
    lesser = cluster.create(SimPod("lesser", "a", 1, priority=5).object())
    assert [one.result for one in scheduler.run([lesser])] == ["waits"]
    assert [(one.result, one.node) for one in scheduler.run([uid])] == [("bound", "n1")]


@pytest.mark.parametrize("answer", [{}, {"NodeNameToMetaVictims": {}}, {"NodeNameToMetaVictims": None}])
def test_no_node_in_the_answer_evicts_nobody(
    cluster: SimCluster, server: Scripted, scheduler: Scheduler, answer: Object
) -> None:
    for name in ("n1", "n2", "n3"):
        busy(cluster, f"on-{name}", name, 4)
    server.answers["preempt"] = [answer]
    cluster.create(SimPod("p", "a", 1, priority=9).object())
    assert [one.result for one in scheduler.run()] == ["waits"]
    assert not [one for one in cluster.pods() if "deletionTimestamp" in one["metadata"]]


@pytest.mark.parametrize("victims", [[], [{"UID": "stranger"}]])
def test_victims_that_are_none_fail_the_call(
    cluster: SimCluster, server: Scripted, scheduler: Scheduler, victims: list[Object]
) -> None:
    for name in ("n1", "n2", "n3"):
        busy(cluster, f"on-{name}", name, 4)
    server.answers["preempt"] = [{"NodeNameToMetaVictims": {"n1": {"Pods": victims, "NumPDBViolations": 0}}}]
    uid = cluster.create(SimPod("p", "a", 1, priority=9).object())
    assert scheduler.cycle(uid).result == "again"


def test_never_evicts_nobody(cluster: SimCluster, server: Scripted, scheduler: Scheduler) -> None:
    for name in ("n1", "n2", "n3"):
        busy(cluster, f"on-{name}", name, 4)
    cluster.create(SimPod("p", "a", 1, priority=9, preempts=False).object())
    assert [one.result for one in scheduler.run()] == ["waits"]
    assert server.asked == []
