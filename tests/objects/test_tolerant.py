"""What cannot be read counts as the worst, for each kind; and a server over such objects keeps its word."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender import cli
from extender.ask import frozen
from extender.cluster.tables import MOST_AMOUNT, MOST_SUM
from extender.decide.decisions import Written
from extender.errors import BadCluster
from extender.objects import decode, resources, schema
from extender.objects.pods import UNREADABLE
from extender.objects.records import Event, GroupRecord, Kind, NodeRecord, PdbRecord, PodRecord, Record
from extender.objects.resources import UNKNOWN_COUNT
from extender.objects.schema import MOST_ENTRIES, RecordError
from extender.server.calls import Binder
from tests.kube import hostile
from tests.world import GPU, JSON, World, machine, pairs, topology, workload

GPUS = frozenset({GPU})


def reading(kind: Kind, item: JSON, group: tuple[str, str] = ("", "")) -> decode.TolerantReading:
    return decode.read_invalid(kind, json.dumps(item).encode(), GPUS, "wrong", group)


def of_pod(**spec: Any) -> PodRecord:
    item = workload("p", 2, node="n", priority=7)
    item["spec"] |= spec
    record = reading("Pod", item).record
    assert isinstance(record, PodRecord)
    return record


def held(world: World, *records: Record | None) -> None:
    kinds: dict[type, Kind] = {PodRecord: "Pod", NodeRecord: "Node", PdbRecord: "PodDisruptionBudget"}
    world.cluster.apply([Event(kinds[type(one)], "set", one) for one in records if one is not None], world.now)


# -- each kind ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": "x"},
        {"containers": [3, {"resources": {"limits": {GPU: "2"}}}]},
        {"containers": [{"resources": {"limits": {GPU: ["2"]}}}]},
        {"containers": [{"resources": {"limits": {GPU: "two"}}}]},
        {"containers": [{"resources": {"requests": {GPU: "-2"}}}]},
        {"initContainers": [{"restartPolicy": 1, "resources": {"limits": {GPU: "2"}}}]},
        {"containers": [{"resources": {"limits": {GPU: "1e30"}}}]},  # the API server clamps it, and accepts it
        {"initContainers": [{"resources": {"requests": {GPU: "9223372036854775807"}}}]},
        {"overhead": {GPU: "1e30"}},
    ],
)
def test_a_count_that_cannot_be_read_is_more_than_any_node_has(spec: JSON) -> None:
    record = of_pod(**spec)
    assert (record.gpus, record.start, record.priority) == (((GPU, UNKNOWN_COUNT),), None, 7)
    assert record.unread


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"tolerations": [{"operator": "Perhaps"}]}, 2),
        ({"overhead": {"cpu": "x"}}, 2),
        ({"volumes": 3, "hostNetwork": "yes", "nodeSelector": {"a": 1}}, 2),
        ({"containers": [{"ports": "x", "resources": {"limits": {GPU: "3", "memory": "lots"}}}]}, 3),
        ({"containers": [{"resources": {"limits": {GPU: "1500m"}}}]}, 2),  # rounded up
    ],
)
def test_a_count_that_can_be_read_counts(spec: JSON, gpus: int) -> None:
    record = of_pod(**spec)
    assert (record.gpus, record.priority, record.node, bool(record.unread)) == (((GPU, gpus),), 7, "n", True)


def test_a_pod_that_cannot_be_ranked_or_named_is_no_victim() -> None:
    """Its priority may be the highest, and an eviction needs its uid."""
    assert of_pod(priority="high").priority == decode.NEVER_A_VICTIM
    item = workload("p", 2, node="n", priority=7)
    item["metadata"]["uid"] = 5
    record = reading("Pod", item).record
    assert isinstance(record, PodRecord)
    assert (record.uid, record.priority, record.gpus) == ("unknown:default/p", decode.NEVER_A_VICTIM, ((GPU, 2),))


@pytest.mark.parametrize(
    ("gates", "kept"),
    [
        ([{"name": "a"}, {"name": 3}], ("a", UNREADABLE)),
        ([{"name": "a"}, 3], ("a", UNREADABLE)),
        ("closed", (UNREADABLE,)),
        ([{"name": None}], (UNREADABLE,)),
    ],
)
def test_a_gate_that_cannot_be_read_stays_closed(gates: Any, kept: tuple[str, ...]) -> None:
    item = workload("p", 2, spec={"schedulingGates": gates, "tolerations": [{"operator": "Perhaps"}]})
    record = reading("Pod", item).record
    assert isinstance(record, PodRecord)
    assert record.gates == kept
    item["spec"]["nodeName"] = "n"  # a bound pod has no gate
    bound = reading("Pod", item).record
    assert isinstance(bound, PodRecord)
    assert bound.node == "n"


def test_what_is_known_of_gates_stays_where_they_cannot_be_read() -> None:
    before = decode.record("Pod", workload("p", 2, spec={"schedulingGates": [{"name": "a"}, {"name": "b"}]}), GPUS)
    assert isinstance(before, PodRecord)
    for gates, kept in (("closed", ("a", "b")), ([{"name": "b"}], ("b",)), ([], ())):
        now = reading("Pod", workload("p", 2, spec={"schedulingGates": gates, "tolerations": 3})).record
        assert isinstance(now, PodRecord)
        assert decode.merged(before, now).gates == kept


@pytest.mark.parametrize(("said", "kept"), [("soon", 600), (300, 300)])
def test_a_deadline_that_cannot_be_read_is_the_last_one(said: Any, kept: int) -> None:
    before = decode.record("Pod", workload("p", 2, spec={"activeDeadlineSeconds": 600}), GPUS)
    now = reading("Pod", workload("p", 2, spec={"activeDeadlineSeconds": said, "tolerations": 3})).record
    assert isinstance(before, PodRecord)
    assert isinstance(now, PodRecord)
    assert decode.merged(before, now).deadline_seconds == kept


def test_an_object_with_more_wrong_fields_than_are_looked_at_is_reduced_to_its_skeleton() -> None:
    item = workload("p", 2, node="n", priority=7)
    item["spec"]["tolerations"] = [{"operator": "Perhaps"}] * 1000
    item["metadata"]["labels"] = {"a": 1}
    record = reading("Pod", item).record
    assert isinstance(record, PodRecord)
    assert (record.name, record.node, record.priority) == ("p", "n", 7)
    assert record.gpus == ((GPU, UNKNOWN_COUNT),)


def test_a_defect_of_the_reader_gives_no_gpus_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod is where it is, of its priority, and counts as the holder of more GPUs than the node has."""
    convert = msgspec.convert
    calls: list[object] = []

    def fails_once(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise ZeroDivisionError
        return convert(*given, **named)

    monkeypatch.setattr(msgspec, "convert", fails_once)
    found = of_pod()
    assert (found.uid, found.node, found.priority, bool(found.unread)) == ("uid-p", "n", 7, True)
    assert found.gpus == ((GPU, UNKNOWN_COUNT),)


def test_a_node_offers_what_can_be_read() -> None:
    item = machine("n", 8)
    item["status"]["allocatable"] |= {GPU: "many", "memory": "1e30"}
    item["spec"] = {"unschedulable": "no", "taints": [{"key": "a", "effect": "Perhaps"}]}
    record = reading("Node", item).record
    assert isinstance(record, NodeRecord)
    assert (record.gpus, record.memory, record.unschedulable, record.taints) == ({}, 2**63 - 1, True, ())
    item["status"]["allocatable"] = "all"  # not its capacity
    record = reading("Node", item).record
    assert isinstance(record, NodeRecord)
    assert (record.gpus, record.cpu_milli) == ({}, 0)


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        (7, True),
        ({"selector": "x"}, True),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}, True),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}}, True),
        ({"selector": {"matchLabels": {"a": "other"}, "matchExpressions": [{"operator": "In"}]}}, False),
        ({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"operator": "In"}]}}, True),
    ],
)
def test_what_cannot_be_read_of_a_selector_does_not_narrow_it(spec: Any, matches: bool) -> None:
    budget = {"metadata": {"name": "b", "namespace": "x"}, "spec": spec, "status": {"disruptionsAllowed": "3"}}
    record = reading("PodDisruptionBudget", budget).record
    assert isinstance(record, PdbRecord)
    assert (record.namespace, record.disruptions_allowed) == ("x", 0)
    assert record.selector.matches({"a": "b"}) is matches


def test_all_pods_of_a_group_that_cannot_be_read_must_run() -> None:
    job = {"metadata": {"name": "j", "namespace": "x"}, "spec": {"parallelism": "three"}}
    record = reading("Group", job, ("batch", "Job")).record
    assert isinstance(record, GroupRecord)
    assert (record.api, record.kind, record.name, record.minimum) == ("batch", "Job", "j", -1)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob"])
def test_an_owner_with_very_many_entries_is_read_without_them(kind: str, more: int) -> None:
    """Each change of it would take a fifth of a second, on the event loop; 64 kinds of pods can be placed together."""
    entries = [{"name": f"r{number}", "replicas": 1} for number in range(MOST_ENTRIES + more)]
    by_name = {entry["name"]: entry for entry in entries}
    spec, api = {
        "JobSet": ({"replicatedJobs": entries}, "jobset.x-k8s.io"),
        "PyTorchJob": ({"pytorchReplicaSpecs": by_name}, "kubeflow.org"),
    }[kind]
    owner = json.dumps({"metadata": {"name": "o", "namespace": "x"}, "spec": spec}).encode()
    if not more:
        whole = decode.record("Group", owner, frozenset(), (api, kind))
        assert isinstance(whole, GroupRecord)
        assert whole.minimum == MOST_ENTRIES
        return
    with pytest.raises(RecordError, match="more than 1024 entries"):
        decode.record("Group", owner, frozenset(), (api, kind))
    record = reading("Group", {"metadata": {"name": "o", "namespace": "x"}, "spec": spec}, (api, kind)).record
    assert isinstance(record, GroupRecord)
    assert record.minimum == -1


@pytest.mark.parametrize("kind", ["PriorityClass", "DeviceClass", "FailedPod"])
def test_of_other_kinds_the_last_readable_version_counts(kind: Kind) -> None:
    found = reading(kind, {"metadata": {"name": "c", "uid": "u"}, "value": "x", "spec": 3})
    assert (found.record, found.reason, found.identity.name) == (None, "unreadable", "c")


def test_names_and_messages_are_bounded() -> None:
    item = workload("p" * 10_000, 1, node="n", spec={"preemptionPolicy": 3})
    found = decode.read_invalid("Pod", json.dumps(item).encode(), GPUS, "e" * 10_000)
    assert len(decode.name_of(found.identity)) == decode.LONGEST_NAME
    assert len(found.message) < 500
    told = decode.warnings([decode.Invalid("Pod", "p", "m")] * 50)
    assert len(told) == 21
    assert told[-1]["message"] == "and 30 more"


# -- the server over them -----------------------------------------------------------------------------------------


def test_gpus_of_a_pod_with_a_huge_limit_are_not_given_away(world: World) -> None:
    """The API server accepts `limits.memory: 1e30`; the pod runs, and holds its GPUs."""
    world.node("n", 8)
    for name, more in (("memory", {"memory": "1e30"}), ("cpu", {"cpu": "1e18"})):
        item = workload(name, 4, node="n", phase="Running", start=1.0)
        item["spec"]["containers"][0]["resources"]["limits"] |= more
        world.set("Pod", item)
    assert world.filter(workload("p", 1))["NodeNames"] == []
    assert world.preempt(workload("q", 4, priority=10), {"n": []}) in ({"n": ["memory"]}, {"n": ["cpu"]})


def test_a_huge_request_fills_its_node_and_its_eviction_empties_it(world: World) -> None:
    world.node("n", 8)
    world.set("Pod", workload("huge", 1, node="n", memory="1e30", cpu="1e18", phase="Running", start=1.0))
    assert world.preempt(workload("q", 8, priority=10), {"n": []}) == {"n": ["huge"]}
    world.gone("huge")
    assert world.filter(workload("q", 8))["NodeNames"] == ["n"]


def test_an_unknown_count_blocks_its_node_and_can_be_evicted(world: World) -> None:
    world.node("n", 8)
    world.node("m", 8)
    held(world, of_pod(containers="x"))
    assert world.filter(workload("p", 1))["NodeNames"] == ["m"]
    assert world.preempt(workload("q", 8, priority=10), {"n": []}) == {"n": ["p"]}
    world.gone("p")
    assert world.filter(workload("q", 8, priority=10), ["n"])["NodeNames"] == ["n"]


def test_sums_of_huge_pods_do_not_wrap(world: World) -> None:
    """33,000 pods on a node, each with more of everything than any node has: what is free is never positive, whatever
    is claimed on top, and the node is whole again when they are gone."""
    world.node("n", 8, links=pairs(8))
    item = workload("x", 99_999, node="n", memory="1e30", cpu="1e18", phase="Running", start=1.0)
    one = decode.record("Pod", json.dumps(item).encode(), GPUS)
    records = [msgspec.structs.replace(one, name=f"x{n}", uid=f"uid-x{n}") for n in range(33_000)]
    bare = [msgspec.structs.replace(record, gpus=()) for record in records]
    for state in (bare, records):  # a pod that has a row is not looked up in the ledger, which has 33,000 holdings
        world.cluster.apply([Event("Pod", "set", record) for record in state], world.now)
    assert world.cluster.faults == 0
    nodes = world.cluster.tables.nodes
    node = nodes.node(0)
    assert node.used == (MOST_SUM, MOST_SUM, 33_000, 33_000 * 99_999, *(0,) * (len(world.cluster.resources) - 4))
    assert 33_000 * MOST_AMOUNT > MOST_SUM
    for _ in range(10_000):  # more than int64 holds
        nodes.add_claim(0, (MOST_AMOUNT,) * len(world.cluster.resources), 0, True)
    claimed = nodes.node(0)
    assert all(0 <= amount <= 2**61 for amount in (*claimed.claim, *claimed.tentative))
    assert all(a - b - c >= -(2**63) for a, b, c in zip(claimed.alloc, claimed.used, claimed.claim, strict=True))
    nodes.drop_claims()
    for links in ("none", "required"):
        assert world.filter(workload("p", 2, links=links))["NodeNames"] == []
    world.cluster.apply([Event("Pod", "delete", record) for record in records], world.now)
    assert world.filter(workload("q", 8))["NodeNames"] == ["n"]


def test_bind_does_not_bind_what_it_cannot_read() -> None:
    class Unread(Binder):
        def __init__(self) -> None:
            """It reads from no API server."""

        async def pod(self, namespace: str, name: str) -> PodRecord | None:
            found = reading("Pod", workload("p", spec={"containers": 3})).record
            return found if isinstance(found, PodRecord) else None

        async def bind(self, binding: Any, annotations: dict[str, str]) -> Written:
            raise AssertionError("it binds")

    world = World(binder=Unread())
    world.node("n", 8)
    body = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n"}
    assert "read in full" in world.call("/v1/bind", json.dumps(body).encode()).json["Error"]


# -- files --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_far_as_it_can_be() -> None:
    """What tenants write stops nobody, and is named; a node that cannot be read is an error of the file."""
    bad = {"kind": "Pod"} | workload("bad", 8, node="n", spec={"tolerations": [{"operator": "Perhaps"}]})
    deep = {"kind": "Pod"} | workload("deep", 2, node="m")
    nodes = [json.dumps({"kind": "Node"} | machine(name, 8)).encode() for name in "nm"]
    raw = hostile.page(*nodes, json.dumps(bad).encode(), hostile.deep(deep), kind="")
    invalid: list[decode.Invalid] = []
    items: list[JSON] = []
    world = World()
    world.cluster.apply(frozen.parse(raw, GPUS, "file", invalid, items), world.now)
    assert [(one.kind, one.name) for one in invalid] == [("Pod", "default/deep"), ("Pod", "default/bad")]
    assert world.filter(workload("p", 7))["NodeNames"] == []
    assert world.filter(workload("q", 6))["NodeNames"] == ["m"]
    assert len(items) == 4
    with pytest.raises(BadCluster, match="nested too deep"):
        frozen.parse(b"kind: List\nitems: " + b"[" * 700 + b"]" * 700, GPUS)


def test_a_graph_is_read_beside_a_partial_pod() -> None:
    """Links stay sure where the pod says which GPUs it holds, and are not where it does not."""
    for notes, expected in (({"gpu-extender.io/held-gpus": "0,1"}, ["n"]), ({}, [])):
        world = World()
        world.node("n", 8, annotations={"gpu-extender.io/topology": topology(pairs(8))})
        item = workload("p", 2, node="n", phase="Running", annotations=notes)
        item["spec"]["tolerations"] = [{"operator": "Perhaps"}]
        held(world, reading("Pod", item).record)
        assert world.filter(workload("q", 2, links="required"))["NodeNames"] == expected


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [150, 500, 985, 1500, 100_000])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_a_body_of_any_depth_is_answered(world: World, verb: str, depth: int) -> None:
    """In the pod, beside it, and in place of a name: never an internal error, and the next request is answered."""
    world.node("n", 8)
    pod = json.dumps(workload("p", 1)).encode()
    deep = hostile.nested(depth)
    bodies = [
        b'{"Pod":' + hostile.deep(workload("p", 1), depth) + b',"NodeNames":["n"]}',
        b'{"Pod":' + pod + b',"NodeNames":["n"],"More":' + deep + b"}",
        b'{"Pod":' + pod + b',"NodeNames":[' + deep + b"]}",
        b'{"Pod":' + pod + b',"Nodes":{"items":[' + deep + b"]}}",
        b'{"Pod":' + pod + b',"NodeNameToMetaVictims":{"n":' + deep + b"}}",
        b'{"Pod":' + pod + b',"NodeNameToVictims":{"n":{"Pods":[' + deep + b"]}}}",
        b'{"PodName":' + deep + b',"PodNamespace":"d","PodUID":"u","Node":"n"}',
        b"[" * depth + b"]" * depth,
    ]
    for body in bodies:
        reply = world.call(f"/v1/{verb}", body)
        assert reply.status in (200, 400)
        assert b"internal" not in reply.body
    assert world.metric("request_duration_seconds_count", verb=verb, result="error") == 0
    assert world.filter(workload("q", 1))["NodeNames"] == ["n"]


@pytest.mark.parametrize(
    "item",
    [
        {"metadata": {"name": "h"}, "spec": {"containers": [{"resources": {"limits": -1}}]}},
        {"metadata": {"name": "h"}, "spec": 1e30},
        {"metadata": {"name": "h"}, "spec": {"containers": 7, "initContainers": {"a": 1}}},
    ],
    ids=["limits", "spec", "containers"],
)
def test_check_reads_what_it_can_of_a_file(item: JSON, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hard = {"cpu": "1", "limits.cpu": "1"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    file = tmp_path / "cluster.json"
    node = {"kind": "Node", "metadata": {"name": "n"}}  # a file without one is an error
    file.write_text(json.dumps({"kind": "List", "items": [node, {"kind": "Pod"} | item, quota]}))
    cli.main(["check", "--cluster", str(file), "-o", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in answer["warnings"]] == ["invalid-object"]


def test_a_deep_annotation_is_an_error_that_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = b'{"metadata": {"annotations": {"a": ' + b"[" * 2000 + b"]" * 2000 + b"}}}"
    file = tmp_path / "cluster.json"
    file.write_bytes(b'{"kind": "List", "items": [' + item + b"]}")
    assert cli.main(["check", "--cluster", str(file), "-o", "json"]) == 1
    assert "Traceback" not in (said := capsys.readouterr().err)
    assert json.loads(said)["error"]["path"]


def many(number: int) -> dict[str, JSON]:
    """Fields of a specification with so many entries."""
    key = [{"key": f"k{i}", "operator": "Exists"} for i in range(number)]
    terms = [{"topologyKey": "zone", "labelSelector": {"matchExpressions": [test]}} for test in key]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [test]} for test in key]}
    return {
        "tolerations": {"tolerations": key},
        "nodeSelector": {"nodeSelector": {f"k{i}": "v" for i in range(number)}},
        "podAntiAffinity": {"affinity": {"podAntiAffinity": {required: terms}}},
        "podAffinity": {"affinity": {"podAffinity": {required: terms}}},
        "nodeSelectorTerms": {"affinity": {"nodeAffinity": {required: nodes}}},
        "schedulingGates": {"schedulingGates": [{"name": f"g{i}"} for i in range(number)]},
        "resourceClaims": {"resourceClaims": [{"name": f"c{i}", "resourceClaimName": f"c{i}"} for i in range(number)]},
    }


def containers(number: int, **asked: str) -> list[JSON]:
    return [{"name": f"c{n}", "resources": {"limits": {"cpu": f"{n}m", **asked}}} for n in range(number)]


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_of_very_many_containers_the_gpus_alone_are_read(where: str) -> None:
    """10,000 took 95 ms of the event loop for each event, and for each call about a pod that the watch lacks."""
    more = {where: [*containers(10_000), *containers(1, **{GPU: "4"})]}
    if where == "initContainers":
        more["containers"] = containers(1, **{GPU: "2"})
    wire = workload("p", node="n", spec=more)
    pod = decode.record("Pod", json.dumps(wire).encode(), GPUS)
    assert isinstance(pod, PodRecord)
    assert (pod.gpus, pod.cpu_milli, pod.node) == (((GPU, 4),), 0, "n")
    assert pod.unread == "spec.containers: they are more than 1,024, those of initContainers counted"
    world = World()
    world.node("n", 8)
    world.set("Pod", wire)
    assert set(world.filter(workload("fits", 4))["NodeNames"]) == {"n"}
    assert world.filter(workload("large", 5))["NodeNames"] == []
    answer = world.filter(workload("waits", spec=more))
    assert answer["NodeNames"] is None
    assert "spec.containers: they are more than 1,024" in answer["Error"]
    once = decode.record("Pod", json.dumps(workload("p", spec={"containers": containers(1_024)})).encode(), GPUS)
    assert isinstance(once, PodRecord)
    assert (once.unread, once.cpu_milli) == ("", sum(range(1_024)))


@pytest.mark.parametrize("name", ["example.com/r", "deviceclass.resource.kubernetes.io/r"])
@pytest.mark.parametrize("field", ["limits", "requests", "overhead"])
def test_of_very_many_amounts_the_gpus_alone_are_read(name: str, field: str) -> None:
    many_amounts = {f"{name}{n}": str(n) for n in range(4_097)} | {GPU: "2"}
    spec: JSON = {"overhead": many_amounts} if field == "overhead" else {}
    spec |= {"containers": [{"name": "c", "resources": {"limits": {GPU: "2"}} if spec else {field: many_amounts}}]}
    pod = decode.record("Pod", workload("p", node="n", spec=spec), GPUS)
    assert isinstance(pod, PodRecord)
    assert pod.unread == "spec.containers: they state more than 4,096 amounts"
    known = 4 if field == "overhead" else 2
    assert pod.gpus == ((GPU, UNKNOWN_COUNT if "deviceclass" in name else known),)


@pytest.mark.parametrize("seed", range(50))
def test_the_gpus_of_containers_alone_are_those_of_all_that_they_state(seed: int) -> None:
    chance, gpus = random.Random(seed), frozenset({GPU, "amd.com/gpu"})

    def part(prefix: str) -> list[JSON]:
        names = [*gpus, "memory", "foo.com/x", "deviceclass.resource.kubernetes.io/c"]
        return [
            {
                "name": f"{prefix}{n}",
                "restartPolicy": chance.choice(["Always", None]),
                "resources": {
                    kind: {name: chance.choice(["0", 0, "1", "2", "3", None]) for name in chance.sample(names, 3)}
                    for kind in ("limits", "requests")
                    if chance.random() < 0.7
                },
            }
            for n in range(chance.randint(0, 5))
        ]

    wire = {"spec": {"containers": part("c"), "initContainers": part("i"), "overhead": {GPU: "1", "cpu": "1"}}}
    spec, status = msgspec.convert(wire, schema.Pod).spec, schema.PodStatus()
    assert spec is not None
    alone = resources.gpus_alone(spec, gpus)
    assert resources.pod_requests(alone, status, gpus)[2] == resources.pod_requests(spec, status, gpus)[2]
    assert resources.gpu_containers(alone, gpus) == resources.gpu_containers(spec, gpus)
    assert resources.class_requests(alone, status) == resources.class_requests(spec, status)


def test_gpus_of_very_many_containers_are_more_than_any_node_has() -> None:
    each = [{"name": f"c{n}", "resources": {"limits": {GPU: "1"}}} for n in range(1_025)]
    none = [{"name": f"z{n}", "resources": {"limits": {GPU: "0"}}} for n in range(1_025)]
    for listed, gpus in ((each, ((GPU, UNKNOWN_COUNT),)), (none, ()), ([*none, each[0]], ((GPU, 1),))):
        pod = decode.record("Pod", workload("p", node="n", spec={"containers": listed}), GPUS)
        assert isinstance(pod, PodRecord)
        assert pod.gpus == gpus


@pytest.mark.parametrize("field", many(0))
def test_a_field_with_very_many_entries_costs_its_pod_alone(field: str) -> None:
    """Each entry took up to 20 times its text: a hundred pods of a tenant were more than the memory of the server."""
    few, more = (many(number)[field] for number in (MOST_ENTRIES, MOST_ENTRIES + 1))
    assert not decode.record("Pod", json.dumps(workload("p", 2, spec=few)).encode(), GPUS).unread  # type: ignore[union-attr]
    world = World()
    world.node("n", 8)
    world.node("m", 2)
    for number in range(3):
        held(world, reading("Pod", workload(f"p{number}", 2, node="n", spec=more)).record)
    pod = world.cluster.pods["uid-p0"]
    assert pod.unread
    assert (pod.node, pod.gpus) == ("n", ((GPU, 2),))
    entries = pod.tolerations, pod.node_selector, pod.affinity_terms, pod.node_terms or (), pod.claim_refs
    assert not any(entries)
    assert (len(pod.anti_affinity_terms), len(pod.gates)) == ("ffinity" in field or "Terms" in field, 0)
    answer = world.filter(workload("waits", 2, spec=more))
    assert answer["NodeNames"] is None
    assert field in answer["Error"]
    assert set(world.filter(workload("honest", 2))["NodeNames"]) == {"m", "n"}
    assert world.filter(workload("large", 3))["NodeNames"] == []
    waits = reading("Pod", workload("waits", 2, spec=more)).record
    assert isinstance(waits, PodRecord)
    assert waits.gates == ((UNREADABLE,) if field == "schedulingGates" else ())  # one that nobody opens
