"""An invalid object affects only itself: in a list, in a watch, in the sink; and no exception ends a reflector."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from extender.cluster.cluster import Cluster
from extender.kube.lists import (
    BUDGETS,
    DEVICE_CLASSES,
    FAILED_PODS,
    GROUPS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    WatchedKind,
)
from extender.kube.reflector import Reflector, Relist
from extender.objects import decode
from extender.objects.records import Event, PodRecord
from extender.settings import Settings
from tests.kube import hostile
from tests.kube.api_server import listed, watched, whole
from tests.kube.test_reflector import Seen, lists, pod, reflect, watches
from tests.world import GPU, machine, workload

GPUS = frozenset({GPU})


def raw(item: dict[str, Any]) -> bytes:
    return json.dumps(item).encode()


def test_one_deep_object_in_a_list_hides_no_other() -> None:
    """It is read in full but for what is too deep, and named."""
    held = workload("deep", 8, node="n")
    body = hostile.page(raw(pod("a")), hostile.deep(held), raw(pod("b")))
    seen, script, reflector = reflect(whole(200, body), watched())
    assert seen.changes == [("set", "a/1"), ("set", "deep/7"), ("set", "b/1")]
    record = seen.batches[0][1].record
    assert isinstance(record, PodRecord)
    assert (record.node, record.gpus, record.unread) == ("n", ((GPU, 8),), "")
    assert list(reflector.state.rejected) == ["default/deep"]
    assert reflector.state.counters.reasons == {"too-deep": 1}
    assert [one.watches for one in script.requests] == [False, True]
    assert seen.syncs == 1


def test_one_deep_object_in_a_watch_hides_no_other() -> None:
    deep = hostile.line("ADDED", hostile.deep(pod("deep", 12, nodeName="n"), 100_000))
    after = hostile.line("MODIFIED", raw(pod("a", 13)))
    seen, script, _ = reflect(listed(pod("a")), watched(deep + after), watched(), naps=2)
    assert seen.changes == [("set", "a/1"), ("set", "deep/12"), ("set", "a/13")]
    assert watches(script) == ["10", "13"]
    assert lists(script) == 1


@pytest.mark.parametrize("depth", [200, 900, 990, 1000, 1020, 1100, 1500])
def test_every_depth_is_read(depth: int) -> None:
    """Also where one decoder gives up and another does not."""
    seen, _, _ = reflect(whole(200, hostile.page(hostile.deep(pod("deep"), depth))), watched())
    assert seen.changes == [("set", "deep/1")]
    assert seen.syncs == 1


def test_items_that_are_no_objects_lead_to_no_new_list() -> None:
    """They were read again and again, for ever."""
    items = [b"null", b"7", b'"x"', b"[]", b"{}", b'{"metadata":null}', b'{"metadata":{"name":3}}', raw(pod("good"))]
    seen, script, reflector = reflect(whole(200, hostile.page(*items)), watched())
    assert seen.changes == [("set", "good/1")]
    assert [one.watches for one in script.requests] == [False, True]
    assert reflector.state.counters.reasons["unreadable"] == 7
    assert reflector.state.synced


def test_what_can_be_read_of_a_pod_holds_its_gpus() -> None:
    """An operator that we do not know, in a pod that is bound: its node and its GPUs count."""
    term = {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["x"]}]}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term | {"topologyKey": "h"}]}}
    strange = workload("strange", 8, node="n", priority=5, spec={"affinity": affinity})
    seen, _, reflector = reflect(listed(strange), watched())
    record = seen.batches[0][0].record
    assert isinstance(record, PodRecord)
    assert record.unread
    assert (record.node, record.gpus, record.priority) == ("n", ((GPU, 8),), 5)
    assert decode.ANY_POD in record.anti_affinity_terms
    assert "Near" in reflector.state.rejected["default/strange"]


def test_a_new_version_that_is_read_in_part_keeps_what_the_last_one_told() -> None:
    """It is bound now, and its affinity is not known any more."""
    before = pod("p", 11, containers=[{"name": "c", "resources": {"limits": {GPU: "4"}}}])
    bad = pod("p", 12, nodeName="n", containers="none of your business")
    seen, _, _ = reflect(listed(before), watched(hostile.line("MODIFIED", raw(bad))))
    record = seen.batches[-1][-1].record
    assert isinstance(record, PodRecord)
    assert (record.node, record.gpus, record.resource_version) == ("n", ((GPU, 4),), "12")


def test_events_that_tell_of_no_object_lead_to_one_list_only() -> None:
    """One list within five minutes tells what there is."""
    bad = [hostile.line("SHRUNK", raw(pod("a"))), hostile.line("ADDED", b"7"), b"garbage\n"]
    answers = [part for one in bad for part in (watched(one), listed(pod("a")))]
    seen, script, reflector = reflect(listed(), *answers[:2], watched(*bad), watched(*bad), watched(), naps=4)
    assert lists(script) == 2
    assert reflector.state.counters.reasons["unknown-event"] == 1 + 6
    assert seen.now < 300


class Defective(Seen):
    """A sink with a defect: it raises when it is told of a pod of this name, so often."""

    def __init__(self, naps: int, error: Exception, times: int = 1) -> None:
        super().__init__(naps)
        self.error, self.times = error, times

    def apply(self, batch: Sequence[Event]) -> None:
        if self.times and any(event.record.name == "bad" for event in batch):
            self.times -= 1
            raise self.error
        super().apply(batch)


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyError("uid"), RecursionError(), MemoryError()])
def test_an_exception_in_the_sink_ends_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reflector lists again after its backoff, and gives everything again: the sink may have missed it."""
    monkeypatch.setattr("tests.kube.test_reflector.Seen", lambda naps: Defective(naps, error))
    seen, script, reflector = reflect(
        listed(pod("a")),
        watched(hostile.line("ADDED", raw(pod("bad", 11)))),
        listed(pod("a"), pod("bad", 11), version="12"),
        watched(),
        naps=2,
    )
    assert seen.changes == [("set", "a/1"), ("set", "a/1"), ("set", "bad/11")]
    assert reflector.state.counters.defects == 1
    assert lists(script) == 2
    assert seen.delays[0] > 0


def test_deletions_that_a_failing_sink_missed_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No list tells of an object that is gone, nor of one whose name another object has: else its GPUs stay held."""
    monkeypatch.setattr("tests.kube.test_reflector.Seen", lambda naps: Defective(naps, RuntimeError("x")))
    lines = (("DELETED", pod("a", 11)), ("ADDED", pod("b", 12, uid="other")), ("ADDED", pod("bad", 13)))
    seen, _, reflector = reflect(
        listed(pod("a"), pod("b")),
        watched(b"".join(hostile.line(change, raw(item)) for change, item in lines)),
        listed(pod("b", 12, uid="other"), pod("bad", 13), version="14"),
        watched(),
        naps=2,
    )
    there: set[str] = set()
    for event in (event for batch in seen.batches for event in batch):
        (there.add if event.change == "set" else there.discard)(event.record.uid)
    assert there == {"other", "bad"}
    assert reflector.state.counters.defects == 1


def test_the_log_is_bounded() -> None:
    """1,000 versions of one object that cannot be read, and 1,000 such objects: 20 lines, and the rest is counted."""
    lines = [hostile.deep(pod("same", 11 + n)) for n in range(1000)]
    others = [hostile.deep(pod(f"o{n}", 2000 + n)) for n in range(1000)]
    with capture_logs() as logs:
        events = b"".join(hostile.line("MODIFIED", one) for one in (*lines, *others))
        seen, _, reflector = reflect(listed(), watched(events))
    assert len(seen.changes) == 2000
    assert reflector.state.counters.reasons == {"too-deep": 2000}
    said = [entry for entry in logs if entry["event"] == "an object cannot be read in full"]
    assert len(said) == 20
    assert [entry["object"] for entry in said[:2]] == ["ns/same", "ns/o0"]
    assert len(reflector.state.rejected) == 100


# ---- by chance

SEED = 11

JOBS = next(source for source in GROUPS if source.group == ("batch", "Job"))
LABELS = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}
TERM = {"labelSelector": LABELS, "topologyKey": "zone"}
BASES: list[tuple[WatchedKind, dict[str, Any]]] = [
    (
        PODS,
        workload(
            "x", 2, node="n", labels={"a": "b"}, annotations={"gpu-extender.io/gang": "g"}, start=1.0, owner="Job",
            spec={
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": LABELS["matchExpressions"]}]
                        }
                    },
                },
                "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
                "overhead": {"cpu": "1m"},
                "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}],
            },
        ),
    ),
    (FAILED_PODS, workload("f", 1, node="n", phase="Failed", start=1.0)),
    (NODES, machine("m", 8, labels={"a": "b"}) | {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    (
        BUDGETS,
        {
            "metadata": {"name": "b", "namespace": "default", "uid": "b"},
            "spec": {"selector": LABELS},
            "status": {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}},
        },
    ),
    (PRIORITY_CLASSES, {"metadata": {"name": "c", "uid": "c"}, "value": 5}),
    (DEVICE_CLASSES, {"metadata": {"name": "d", "uid": "d"}, "spec": {"extendedResourceName": GPU}}),
    (JOBS, {"metadata": {"name": "j", "namespace": "default", "uid": "j"}, "spec": {"parallelism": 3}}),
]  # fmt: skip


def test_20_000_mutated_objects_end_nothing() -> None:
    """Each through the decoder of a watch and into a cluster, with every other object of it still right afterwards."""
    chance = random.Random(SEED)
    cluster = Cluster(Settings())

    class Sink:
        def apply(self, batch: Sequence[Event]) -> None:
            cluster.apply(batch, 1000.0, 1_800_000_000.0)

        def synced(self, kind: str) -> None:
            raise AssertionError("nothing is listed")

        def absent(self, kind: str) -> None:
            raise AssertionError("all is served")

        def returned(self) -> None:
            raise AssertionError("it was not away")

    server: Any = None
    made = [(item, Reflector(server, source, Sink(), GPUS)) for source, item in BASES]
    witness = Reflector(server, PODS, Sink(), GPUS)

    def give(reflector: Reflector, item: bytes, change: str = "MODIFIED") -> None:
        try:
            events = [event for event in reflector._changes([hostile.line(change, item)]) if event is not None]
        except Relist:  # it tells of no object
            return
        cluster.apply(events, 1000.0, 1_800_000_000.0)

    give(made[2][1], raw(machine("n", 8)))
    give(witness, raw(workload("witness", 3, node="n")))
    with capture_logs():
        for number in range(20_000):
            item, reflector = made[number % len(made)]
            item["metadata"]["resourceVersion"] = str(number)
            give(reflector, hostile.mutated(item, chance), chance.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED")))
            if number % 500 == 0:
                for source_item, one in made:
                    give(one, raw(source_item), "DELETED")
                give(made[2][1], raw(machine("n", 8)))
    assert cluster.faults == 0
    assert sum(one.state.counters.reasons.total() for _, one in made) > 2000
    row = cluster.row("n")
    assert row >= 0
    used = cluster.tables.nodes.used_of(row)
    assert all(amount >= 0 for amount in used)
    assert used[3] >= 3
