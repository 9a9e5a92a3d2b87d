"""Copies of a cluster with GPUs by DRA, what the pages show of it, and what a change of many objects costs."""

from __future__ import annotations

import json

from extender.cluster.cluster import READ_AT_ONCE, Cluster
from extender.cluster.dump import state
from extender.cluster.saved import restore, save
from extender.journal import entries
from extender.objects import decode
from extender.objects.records import Event
from extender.settings import Settings
from extender.sim import claims as dra
from tests.cluster.dra.world import DraWorld
from tests.world import GPU, workload

CLAIMS = 300


def filled() -> DraWorld:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", taints={7: "x"})
    made.dra_node("n2", divisible=True)
    made.claim("c", 2, node="n1", devices=[0, 3], pods=["p"])
    made.claimant("p", "c", node="n1")
    made.claim("waits", 3)
    made.claimant("q", "waits")
    made.claim("planned", 1, node="n2", devices=[4])
    return made


def same(one: Cluster, other: Cluster) -> None:
    shown = [{key: state(it)[key] for key in ("nodes", "pods")} for it in (one, other)]
    assert shown[0] == shown[1]
    assert dict(one.nodes) == dict(other.nodes)
    assert dict(one.pods) == dict(other.pods)
    assert dict(one.gpus.ledgers) == dict(other.gpus.ledgers)


def test_the_snapshot_of_a_record() -> None:
    made = filled()
    saved, objects = save(made.cluster, made.now)()
    again = Cluster(made.settings)
    changes = [entries.change(Event(entries.kind_of(one), "set", one)) for one in objects]
    restore(again, saved, [entries.event(one) for one in changes])
    same(again, made.cluster)
    again.apply([Event("ResourceClaim", "delete", one) for one in list(again.dra.claims.records.values())], made.now)
    assert again.pods["uid-p"].gpus == ()


def test_the_page_of_a_node_states_its_devices() -> None:
    made = filled()
    shown = made.call("/node.json?node=n1", method="GET").json["devices"]
    assert shown == {
        "published": 8, "usable": 7, "tainted": 1, "divided": 0, "allocated": 0, "unmapped": 0, "others": 0,
    }  # fmt: skip
    assert b"Of 8 GPUs that a DRA driver publishes 7 are free" in made.call("/node?node=n1", method="GET").body
    assert made.call("/node.json?node=n2", method="GET").json["devices"]["allocated"] == 1


def test_explain_states_which_gpus_a_pod_with_claims_has() -> None:
    made = filled()
    answer = made.call("/debug/explain?pod=default/p", method="GET").json
    assert (answer["verdict"], answer["node"], answer["gpus"]) == ("runs", "n1", [0, 3])
    answer = made.call("/debug/explain?pod=default/q", method="GET").json
    assert answer["verdict"] == "fits"


def test_a_decision_states_that_dra_serves_the_pod() -> None:
    made = filled()
    made.filter(made.claimant("r", "waits"))
    shown = {node["node"]: node for node in made.decision()["nodes"]}
    assert {node["served_by"] for node in shown.values() if node["fits"]} == {"DRA"}


def test_a_request_that_states_another_version_of_the_pod_asks_for_the_same() -> None:
    made = filled()
    pod = made.claimant("r", "waits")
    pod["metadata"]["resourceVersion"] = "8"
    made.claim("waits", 9)
    assert made.filter(pod)["NodeNames"] == []


def test_many_claims_of_a_class_are_read_a_few_at_a_time() -> None:
    """A class that comes late, with all pods that wait by it."""
    cluster = Cluster(Settings())
    events = []
    for number in range(CLAIMS):
        claim = dra.claim(f"c{number}", "default", 1)
        pod = workload(f"p{number}", 0, spec={"resourceClaims": [{"name": "g", "resourceClaimName": f"c{number}"}]})
        for kind, one in (("ResourceClaim", claim), ("Pod", pod)):
            record = decode.record(kind, json.dumps(one).encode(), cluster.gpu_names)  # type: ignore[arg-type]
            events.append(Event(kind, "set", record))  # type: ignore[arg-type]
    cluster.apply(events, 0.0)
    record = decode.record("DeviceClass", json.dumps(dra.device_class()).encode(), cluster.gpu_names)
    cluster.apply([Event("DeviceClass", "set", record)], 0.0)
    turns = 0
    while (left := sum(not pod.gpus for pod in cluster.pods.values())) and turns < CLAIMS:
        cluster.tick(0.0)
        turns += 1
        assert 0 < left - sum(not pod.gpus for pod in cluster.pods.values()) <= READ_AT_ONCE
    assert {pod.gpus for pod in cluster.pods.values()} == {((GPU, 1),)}
    generation = cluster.generation
    cluster.tick(0.0)
    assert cluster.generation == generation
