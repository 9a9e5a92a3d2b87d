"""Records of pods that share what their specification decodes to equal those of pods that are read alone."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from extender.objects import decode, pods, records
from extender.objects.records import Kind, PodRecord, Record, RecordError
from tests.kube import hostile
from tests.objects.test_records import GPU, GPUS, container
from tests.world import JSON, machine, workload

AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
        ]
    }
}
SPECS: dict[str, list[Any]] = {
    "containers": [
        [container(cpu="1")], [container(gpu="1")], [container(cpu=1)], [container(cpu=1.0)],  # type: ignore[arg-type]
        [container(cpu="1", gpu="2"), container("b", mig="1")], [container(gpu="0")],
        [container(cpu="1") | {"image": "i:1"}], [container(gpu="1") | {"image": "i:2"}],
    ],
    "initContainers": [None, [container("i", cpu="3")], [container("s", always=True, gpu="1")]],
    "priority": [None, 0, 5], "priorityClassName": [None, "", "high"], "preemptionPolicy": [None, "Never"],
    "terminationGracePeriodSeconds": [None, 0, 30, -1, 10**12], "schedulingGates": [None, [], [{"name": "g"}]],
    "nodeSelector": [None, {}, {"a": "b"}, {"a": None}], "affinity": [None, {}, AFFINITY],
    "tolerations": [None, [{"key": "k"}], [{"operator": "Exists"}]], "overhead": [None, {"cpu": "1"}],
    "volumes": [None, [{"emptyDir": {}}], [{"persistentVolumeClaim": {"claimName": "c"}}]],
    "resources": [None, {"requests": {"cpu": "7"}}], "serviceAccountName": [None, "s"], "hostNetwork": [None, True],
    "schedulingGroup": [None, {"podGroupName": "g"}],
}  # fmt: skip
STATUSES: dict[str, list[Any]] = {
    "phase": [None, "Pending", "Running", "Failed"], "startTime": [None, "2026-01-01T00:00:00Z"],
    "resources": [None, None, {"requests": {"cpu": "9"}}], "nominatedNodeName": [None, "n"],
    "allocatedResources": [None, {"cpu": "8"}],
    "containerStatuses": [
        None, [], [{"name": "main", "restartCount": 2}],
        [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],  # as asked, for some
        [{"name": "main", "allocatedResources": {"cpu": "4", GPU: "3"}}],
        [{"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": [{"resourceID": "GPU-1"}]}]}],
    ],
    "conditions": [None, [{"type": "PodResizePending", "reason": "Infeasible", "status": "True"}]],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "_known_specs", pods._KnownSpecs())


def drawn(chance: random.Random, parts: dict[str, list[Any]], changes: int) -> JSON:
    """The first value of each part, but for some of them."""
    made = {part: values[0] for part, values in parts.items()}
    for part in chance.sample(sorted(parts), changes):
        made[part] = chance.choice(parts[part])
    return made


def a_pod(chance: random.Random) -> JSON:
    """Few names and few specifications, so that versions of one pod and pods of one template are frequent."""
    spec = drawn(chance, SPECS, chance.choice([0, 0, 1, 1, 2, 5]))
    spec["nodeName"] = chance.choice([None, "", "n", "m"])
    meta = {"name": f"p{chance.randrange(4)}", "uid": "u", "resourceVersion": str(chance.randrange(100)),
            "namespace": chance.choice([None, "a", "b"]), "labels": chance.choice([None, {"app": "a"}]),
            "deletionTimestamp": chance.choice([None, None, "2026-01-01T00:00:09Z"]),
            "deletionGracePeriodSeconds": chance.choice([None, 5])}  # fmt: skip
    return {"metadata": meta, "spec": spec, "status": drawn(chance, STATUSES, chance.choice([0, 1, 2, 4]))}


def alone(kind: Kind, item: bytes, gpus: frozenset[str]) -> Record | None:
    """The record of an object that is read for itself, when nothing is shared; None where it cannot be read."""
    with pytest.MonkeyPatch.context() as nothing_shared:
        nothing_shared.setattr(pods, "_known_specs", pods._KnownSpecs())
        try:
            return decode.record(kind, item, gpus)
        except (RecordError, ValueError):
            return None


@pytest.mark.parametrize("short", [pods.SHORT_SPEC, 0])
@pytest.mark.parametrize("seed", range(4))
def test_any_stream_of_pods_gives_what_each_pod_gives_alone(
    seed: int, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "SHORT_SPEC", short)  # 0: all are known by their digests
    chance, read = random.Random(seed), 0
    for _ in range(1500):
        item = json.dumps(a_pod(chance)).encode()
        gpus = GPUS if chance.random() < 0.9 else frozenset({GPU})
        type_ = chance.choice(["ADDED", "MODIFIED", "DELETED"])
        expected = alone("Pod", item, gpus)
        change = decode.change("Pod", hostile.line(type_, item), gpus)
        assert change == (None if expected is None else (type_, expected))
        read += change is not None
    assert read > 1000
    assert 20 < len(pods._known_specs.records) < 1200


def test_objects_that_make_no_sense_give_what_they_give_alone() -> None:
    """Null, wrong types, huge numbers, members that stand twice, bytes that are no UTF-8: in one pass or alone."""
    chance = random.Random(5)
    bases: list[tuple[Kind, JSON]] = [("Pod", workload("p", 2, node="n")), ("FailedPod", workload("q", 0)),
                                      ("Node", machine("n", 8))]  # fmt: skip
    read = 0
    for number in range(6000):
        kind, base = bases[number % len(bases)]
        item = hostile.mutated(base, chance)
        expected = alone(kind, item, GPUS)
        change = decode.change(kind, hostile.line("MODIFIED", item), GPUS)
        assert change == (None if expected is None else ("MODIFIED", expected))
        read += change is not None
    assert 500 < read < 5500


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"BOOKMARK","object":{"metadata":{"name":"p","resourceVersion":"1"}}}',
        b'{"type":"ERROR","object":{"metadata":{"name":"p"},"code":410}}',
        b'{"type":"RENAMED","object":{"metadata":{"name":"p"}}}',
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":null}',
        b'{"type":"ADDED","object":{"metadata":{}}}',
        b"",
        b" ",
    ],
)
def test_other_lines_are_left_to_the_two_steps(line: bytes) -> None:
    assert decode.change("Pod", line, GPUS) is None


def test_kinds_that_are_rare_are_left_to_the_two_steps() -> None:
    item = b'{"metadata":{"name":"c"},"value":1}'
    assert decode.record("PriorityClass", item, GPUS).name == "c"
    assert decode.change("PriorityClass", hostile.line("ADDED", item), GPUS) is None


class Text(str):
    """A text as another YAML parser may make it."""

    __slots__ = ()


@pytest.mark.parametrize("amount", [2**70, float("inf"), Text("2"), 1.0, 1, True])
def test_values_that_no_json_has_are_not_taken_for_others(amount: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be YAML. What they give alone they give beside a pod whose amount is absent, or equal to them."""

    def read(cpu: Any) -> PodRecord | str:
        spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        try:
            return records.pod({"metadata": {"name": "p"}, "spec": spec}, GPUS)
        except (RecordError, msgspec.MsgspecError) as error:
            return str(error)

    expected = read(amount)
    monkeypatch.setattr(pods, "_known_specs", pods._KnownSpecs())
    for other in (None, 1, 1.0, "2", 2):
        read(other)
    assert read(amount) == expected


def test_what_is_shared_is_bounded() -> None:
    def read(name: str) -> None:
        records.pod({"metadata": {"name": "p"}, "spec": {"schedulerName": name}}, GPUS)

    known = pods._known_specs
    for number in range(pods.MOST_SPECS + 10):
        read(f"s{number}")
        read("s0")
    assert len(known.records) == pods.MOST_SPECS
    assert known.get(next(iter(known.records))) is not None
    for number in range(5):
        read("x" * (pods.MOST_OF_SPECS // 4 - 100) + str(number))
    assert len(known.records) == 4
    assert known.size == sum(size for size, _ in known.records.values()) <= pods.MOST_OF_SPECS
    read("x" * pods.MOST_OF_SPECS)
    assert (known.size, known.records) == (0, {})


@pytest.mark.parametrize("resizing", [False, True])
def test_a_long_specification_is_read_once(resizing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event about a pod with hundreds of containers took 10 ms on the event loop."""
    read: list[str] = []
    of_spec = pods._of_spec

    def reading(spec: Any, status: Any, namespace: str, gpus: frozenset[str]) -> PodRecord:
        read.append(namespace)
        return of_spec(spec, status, namespace, gpus)

    monkeypatch.setattr(pods, "_of_spec", reading)
    pod = workload("p", 2)
    pod["spec"]["containers"] += [container(f"c{number}", cpu="1m", gpu="1") for number in range(900)]
    if resizing:  # one that never ends
        pod["status"]["containerStatuses"] = [{"name": "c7", "allocatedResources": {"cpu": "2m", GPU: "1"}}]
        pod["status"]["conditions"] = [{"type": "PodResizePending", "reason": "Deferred", "status": "True"}]
    for version in range(20):
        pod["metadata"] |= {"resourceVersion": str(version), "annotations": {"gpu-extender.io/gang": str(version)}}
        pod["spec"]["nodeName"] = "n" if version > 10 else ""
        pod["status"] |= {"phase": "Running" if version > 10 else "Pending", "reason": str(version)}
        change = decode.change("Pod", hostile.line("MODIFIED", json.dumps(pod).encode()), GPUS)
        assert change is not None
        assert change.record == alone("Pod", json.dumps(pod).encode(), GPUS)
        assert isinstance(change.record, PodRecord)
        assert change.record.gpu_count == 902
    assert len(read) == 20 + 1  # 20 of them alone
