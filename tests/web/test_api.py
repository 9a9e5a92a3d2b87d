"""openapi.yaml: the paths that are served, and real answers of the documented shape that have every documented key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.requests import Request
from starlette.routing import Route

from extender.act.advance_store import Kept, as_json
from extender.ask import forks
from extender.ask.ways import ORDER
from extender.cli import main
from extender.metrics import Metrics
from extender.objects.queueing import GATE, Domain
from extender.objects.records import Event, SaveAnswersRecord
from extender.queue.report import QueueReport
from extender.reservations.seats import Seat, absent_uid
from extender.settings import Settings
from extender.web.debug import document
from extender.web.health import Health, InvalidObjects
from tests.act.queue.devices_rig import world
from tests.act.queue.test_evicting import begun
from tests.cli.test_explain import written
from tests.cluster.test_failing_tenants import fails
from tests.waiting import run_bounded
from tests.web.test_queue_page import Reporting, dated, entry, waits
from tests.world import WALL, Reply, World, pairs, workload

DOCUMENT = document()
PATHS: dict[str, dict[str, Any]] = DOCUMENT["paths"]
VERBS = "/v1/"
RARE = {
    *("sampled", "named", "schedulable_gpu_nodes", "left_out"),  # more than 100 nodes
    "served_by",  # a node without a device plugin
    "left_to",  # a reservation of another pod
    *("eviction_would_help", "flag", "enabled"),  # evictions of our own
}
"""Keys that answers in other circumstances have."""


class Asked(NamedTuple):
    """A scene, and what is asked of it."""

    made: Callable[[], World]
    path: str
    query: dict[str, str]


def mixed() -> World:
    """Pods that run in all ways, decisions of each verb, a node that fails, and links that are not known."""
    world = World(Settings.model_validate({"schedulerWeight": 150}))
    world.node("n1", 4, links=pairs(4), labels={"nvidia.com/gpu.product": "H100", "topology.k8s.aws/rack": "r1"})
    world.node("n2", 8, links=pairs(8), unschedulable=True)
    world.node("n3", 2)
    world.node("n4", 0)
    world.metrics.degraded.note("events", "none are written")
    world.budget("tight", 0, {"app": "low"})
    for name, held in (("old", (0,)), ("older", (2,))):
        world.pod(name, 1, "n1", held=held, labels={"app": "low"}, start=WALL - 600)
    world.pod("unknown", 1, "n3")
    world.pod("full", 8, "n2", priority=99)
    fits = world.pod("fits", 1, annotations={"gpu-extender.io/placement": "spread"})
    world.prioritize(fits, world.filter(fits, [*world.cluster.nodes, "gone"])["NodeNames"])
    assert world.bind(fits, "n1") != ""  # nothing binds here
    wide = world.pod("wide", 2, links="required", priority=9)
    world.filter(wide)
    assert world.preempt(wide, {"n1": ["old", "older"]})
    world.preempt(wide, {"n1": ["old", "older"]})
    for i in range(3):
        fails(world, f"failed{i}", "n3", namespace="lab")
    world.filter(world.pod("huge", 64, namespace="lab"))
    world.filter(world.pod("member", 1, annotations={"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "3"}))
    world.pod("huge", 64, labels={"a": "b"}, annotations={"gpu-extender.io/gpus": "0"})
    answers = SaveAnswersRecord(uid="", name="lab", resource_version="", ignores=90, owners={"Job/train": 400})
    world.cluster.apply([Event("SaveAnswers", "set", answers)], world.now)
    return world


def tight() -> World:
    """A pod that waits, with as many kinds of ways out as fit into one scene."""
    world = World()
    world.node("n1", 4, links=pairs(4))
    world.node("n2", 4, links=pairs(4), unschedulable=True)
    for name, held in (("old", (0,)), ("older", (2,))):
        world.pod(name, 1, "n1", held=held, start=WALL - 600)
    world.pod("train", 2, links="required", priority=5)
    world.pod("polite", 4, priority=5, never=True)
    world.filter(world.pod("claims", 1))
    return world


def claiming() -> World:
    """A pod behind our gate whose claim the queue allocates."""
    made = world()
    made.claim("p", 2)
    claims = [{"name": "p", "resourceClaimName": "p"}]
    made.pod("p", 0, spec={"schedulingGates": [{"name": GATE}], "resourceClaims": claims})
    return made


def queued() -> World:
    """Gangs in the queue, with seats, and a pod behind its gate."""
    world = World()
    world.node("n1", 8, links=pairs(8))
    way = {"kind": "quota", "change": "raise", "spec": {"queue": "default"}, "cost": None, "verified": True}
    listed = (
        waits("first", "head", pods=2, gpus=8, domain=Domain("rack", True), created=WALL - 90, start=WALL + 30),
        waits("second", "delays", pods=1, blocked_by="default/first", queue="lab"),
        waits("part", "incomplete", pods=1, minimum=2, size=None),
    )
    report = dated(QueueReport(WALL, listed, (entry("default", 1), entry("lab", 1)), {listed[0].gang.ref.text: [way]}))
    world.connect(queue=Reporting(report))  # type: ignore[arg-type]
    world.pod("first-0", 1, spec={"schedulingGates": [{"name": GATE}]})
    amounts = (0,) * len(world.cluster.resources)
    world.pod("victim", 1, "n1")
    seat = Seat(
        "uid-third", "default/third", "job:default/third", "n1", amounts, 0, 0, world.now, awaits=("uid-victim",)
    )
    world.verbs.claims.seats.reserve([seat, seat._replace(uid=absent_uid("g", "worker", 1))])
    kept = Kept(1, "big", "x", WALL, WALL + 60, "in-use", "1 x 8 GPUs on n1", namespaces=("ml",))
    world.verbs.claims.advance.report = [as_json(kept)]
    return world


def evicted() -> World:
    """A pod that was preempted."""
    world = World()
    world.node("n1", 2)
    world.pod("old", 2, "n1", held=(0, 1), start=WALL - 600)
    wide = world.pod("wide", 2, priority=9)
    world.filter(wide)
    assert world.preempt(wide, {"n1": ["old"]})
    world.gone("old")
    return world


def partial() -> World:
    """A gang of which one pod runs and one waits."""
    world = World()
    world.node("n1", 1)
    for name, node in (("a", "n1"), ("b", "")):
        world.pod(name, 1, node, annotations={"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"})
    return world


def idle() -> World:
    world = World()
    world.node("n1", 8, links=pairs(8))
    return world


def wasteful() -> World:
    """Two machines that a drain would make one whole machine of, and a request that leaves two GPUs unused."""
    world = World()
    for name in ("n1", "n2"):
        world.node(name, 8, links=[[0 if a == b else 18 for b in range(8)] for a in range(8)])
        world.pod(f"on-{name}", 3, name, held=(0, 1, 2), start=WALL - 600)
    world.pod("wide", 8)
    return world


def crowded() -> World:
    """Two nodes: one is free once a pod moves, on the other a bare pod stays."""
    world = World()
    for name in ("n1", "n2"):
        world.node(name, 8, links=pairs(8), labels={"topology.kubernetes.io/rack": "r1"})
    world.pod("replica", 3, "n1", held=(0, 1, 2), start=WALL - 600, owner="ReplicaSet")
    world.pod("bare", 3, "n2", held=(0, 1, 2), start=WALL - 600)
    return world


def shadowed() -> World:
    """Shadow mode: kube-scheduler breaks a linked pair that we would have kept, and evicts the longer job."""
    world = World(Settings(mode="shadow"))
    world.node("split", 4, links=pairs(4))
    world.node("whole", 4, links=pairs(4))
    for gpu in (0, 2):
        world.pod(f"single{gpu}", 1, "split", held=[gpu])
    world.pod("two", 2)
    world.pod("two", 2, "split")
    world.node("a", 1, labels={"gpu": "old"})
    world.node("b", 1, labels={"gpu": "old"})
    for name, node, seconds in (("old", "a", 3600), ("young", "b", 60)):
        world.pod(name, 1, node, start=WALL - seconds, held=[0])
    facts: dict[str, Any] = {"priority": 10, "spec": {"nodeSelector": {"gpu": "old"}}}
    world.filter(high := world.pod("high", 1, **facts))
    world.preempt(high, {"a": ["old"], "b": ["young"]})
    world.pod("high", 1, nominated="a", **facts)
    return world


def pod(name: str) -> dict[str, str]:
    return {"pod": f"default/{name}"}


ASKED = [
    *(Asked(mixed, "/debug/explain", pod(name)) for name in ("old", "fits", "wide", "huge", "unknown")),
    Asked(tight, "/debug/explain", pod("train")),
    Asked(tight, "/debug/explain", pod("polite")),
    Asked(queued, "/debug/explain", pod("first-0")),
    Asked(claiming, "/debug/explain", pod("p")),
    Asked(evicted, "/debug/explain", pod("old")),
    Asked(idle, "/debug/top", {}),
    Asked(partial, "/debug/top", {}),
    Asked(shadowed, "/debug/shadow", {}),
    *(Asked(made, "/debug/capacity", {}) for made in (wasteful, tight, queued)),
    Asked(crowded, "/debug/plan", {"for": "8", "domain": "rack"}),
    Asked(crowded, "/debug/plan", {"node": "n2"}),
    *(
        Asked(mixed, path, {})
        for path in PATHS
        if path not in ("/debug/explain", "/debug/plan") and "get" in PATHS[path]
    ),
    *(Asked(queued, f"/debug/{page}", {}) for page in ("queue", "top", "decisions", "map")),
    Asked(begun, "/debug/decisions", {}),
    Asked(mixed, "/debug/decisions", pod("wide") | {"most": "1", "nodes": "1"}),
    Asked(mixed, "/debug/map", {"node": "n1"}),
    Asked(mixed, "/debug/topologies", {"node": "n1"}),
    Asked(mixed, "/debug/queue", {"queue": "none"}),
]


def get(asked: Asked) -> Reply:
    query = f"?{urlencode(asked.query)}" if asked.query else ""
    return asked.made().call(f"{asked.path}{query}", method="GET")


def check(path: str, reply: Reply) -> Any:
    """The answer, which is as documented."""
    [operation] = PATHS[path].values()
    documented = operation["responses"]
    assert str(reply.status) in documented, (path, reply.status, reply.body)
    response = resolved(documented[str(reply.status)])
    kind = reply.headers["content-type"].partition(";")[0]
    said: Any = reply.json if kind == "application/json" else reply.body.decode()
    schema = response["content"][kind]["schema"]
    rooted = {"components": DOCUMENT["components"], "allOf": [schema]}
    errors = [f"{error.json_path}: {error.message[:300]}" for error in Draft202012Validator(rooted).iter_errors(said)]
    assert errors == []
    return said


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """What a part of the document stands for."""
    reference = part.get("$ref")
    if reference is None:
        return part
    found: Any = DOCUMENT
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return dict(found)


def test_the_document_is_openapi() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1.")


def test_each_served_path_is_documented_and_no_other() -> None:
    """Of the debug pages and the probes; the views of the page at / are in docs/page.md."""
    routes = [route for route in World().app.routes if isinstance(route, Route) and not route.path.startswith(VERBS)]
    routes = [route for route in routes if route.path.startswith("/debug/") or route.path in PATHS]
    served = {(route.path, method.lower()) for route in routes for method in (route.methods or ()) if method != "HEAD"}
    assert {(path, method) for path, methods in PATHS.items() for method in methods} == served


def test_each_kind_of_way_out_is_documented_in_the_order_of_the_answers() -> None:
    explained = (Path(__file__).parents[2] / "docs" / "explain.md").read_text().partition("## Ways out")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", explained, re.MULTILINE) == list(ORDER)
    assert DOCUMENT["components"]["schemas"]["WayOut"]["properties"]["kind"]["enum"] == list(ORDER)


def test_the_document_is_served() -> None:
    assert World().call("/debug/openapi.json", method="GET").json == DOCUMENT


@pytest.mark.parametrize(
    "asked", ASKED, ids=lambda asked: f"{asked.made.__name__}-{asked.path}?{urlencode(asked.query)}"
)
def test_answers_have_the_documented_shape(asked: Asked) -> None:
    reply = get(asked)
    assert reply.status == 200
    check(asked.path, reply)


def whatif(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `gpu-extender whatif` answers, over a file: the server's worker answers the same."""
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    pods = [workload("train", 2, links="required", priority=5), workload("huge", 64)]
    pods += [workload(f"member-{i}", 1, annotations=gang) for i in range(2)]
    pods.append(workload("refused", 2, namespace="bounded"))
    items: list[Any] = [{"apiVersion": "v1", "kind": "Pod"} | pod for pod in pods]
    meta = {"name": "q", "namespace": "bounded"}
    items.append({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"pods": "0"}}})
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    capsys.readouterr()
    main(["whatif", "--cluster", written(folder, pods[0]), "-f", str(folder / "pods.json"), "-o", "json"])
    body = capsys.readouterr().out.encode()
    return check("/debug/whatif", Reply(200, [(b"content-type", b"application/json")], body))


def test_a_what_if_has_the_documented_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = whatif(tmp_path, capsys)
    assert [one["verdict"] for one in said["results"]][:2] == ["evict", "cannot"]
    assert len(said["groups"]) == 1


def test_every_documented_key_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No key of a schema is left over from an answer of the past."""
    answers = [check(one.path, get(one)) for one in ASKED if one.path != "/debug/openapi.json"]
    asked = {"count": 1, "objects": [], "manifest": "", "add": [{"like": "n1"}], "cordon": [], "drain": []}
    answers.append(whatif(tmp_path, capsys) | asked)
    seen = set().union(*map(keys, answers), keys(busy()))
    documented = set(properties(DOCUMENT["components"]["schemas"]))
    assert documented - seen - RARE == set()
    assert documented >= RARE


def keys(value: Any) -> set[str]:
    """Of all objects in an answer."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def properties(schema: Any) -> Iterator[str]:
    """The keys that a schema names, at any depth."""
    if isinstance(schema, dict):
        for key, part in schema.items():
            if key == "properties":
                yield from part
            yield from properties(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from properties(part)


def busy() -> Any:
    world = World()
    world.server.asks._asked = forks.MOST_ASKED
    reply = world.call("/debug/state", method="GET")
    assert (reply.status, reply.headers["retry-after"].isdecimal()) == (429, True)
    return check("/debug/state", reply)


def test_a_server_that_is_not_ready() -> None:
    world = World()
    invalid = InvalidObjects(world.cluster, world.core.source.faults)
    health = Health(world.cluster, invalid, lambda: ["pods are not listed yet"], lambda: 0.0, Metrics().degraded)
    said = run_bounded(health.ready(Request({"type": "http", "query_string": b""})))
    reply = Reply(said.status_code, said.raw_headers, bytes(said.body))
    assert (reply.status, check("/readyz", reply)["ready"]) == (503, False)


QUERY = st.dictionaries(
    st.sampled_from(["pod", "most", "nodes", "node", "rack", "queue", "other"]),
    st.one_of(
        st.text(max_size=12), st.sampled_from(["default/wide", "default/none", "a/b/c", "0", "7", "n1", "-1", "٣"])
    ),
    max_size=3,
)
one_world = cache(mixed)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([path for path in PATHS if path.startswith("/debug/") and "get" in PATHS[path]]), QUERY)
def test_any_query_is_answered_as_documented(path: str, query: dict[str, str]) -> None:
    words = urlencode(query, errors="replace")
    said = check(path, one_world().call(f"{path}?{words}", method="GET"))
    json.dumps(said)
