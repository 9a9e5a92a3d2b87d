"""Unknown names and values with our prefix, and the nearest valid word."""

from __future__ import annotations

import time

import pytest

from extender.cluster.demand import MODES
from extender.objects import annotations as names
from extender.objects import records
from extender.objects.annotations import NAMES, PREFIX
from extender.objects.queueing import GATE
from extender.queue.levels import SHORT, short_names
from extender.settings import Settings
from tests.world import GPU, JSON, machine, workload

GPUS = frozenset({GPU})


def pod(
    annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, gate: str = ""
) -> list[names.Typo]:
    spec: JSON = {"schedulingGates": [{"name": gate}]} if gate else {}
    made = workload("p", 1, annotations=annotations, labels=labels, spec=spec)
    return names.typos_of_pod(records.pod(made, GPUS), Settings().topology_levels)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("link", "links"), ("Links", "links"), ("linkz", "links"), ("gang_min", "gang-min"), ("gangmin", "gang-min"),
        ("gang-sise", "gang-size"), ("last-checkpont", "last-checkpoint"), ("protectfor", "protect-for"),
        ("placment", "placement"), ("zzz", None), ("x" * 300, None),
    ],
)  # fmt: skip
def test_unknown_annotations_of_a_pod(key: str, suggestion: str | None) -> None:
    [found] = pod({PREFIX + key: "required"})
    assert found.code == "unknown-name"
    assert found.suggestion == (None if suggestion is None else PREFIX + suggestion)
    assert len(found.text) < 300


@pytest.mark.parametrize(
    ("key", "said", "suggestion"),
    [
        ("links", "requird", "required"), ("links", "prefered", "preferred"), ("links", "ignored", "ignore"),
        ("links", "yes", None), ("placement", "packed", "pack"), ("placement", "spred", "spread"),
        ("domain", "requird:rack", "required:rack"), ("domain", "required:rak", "required:rack"),
        ("domain", "preferred:zones", "preferred:zone"), ("domain", "rack", None),
        ("domain", "required:", "required:rack"),
        ("duration", "1 day", None), ("protect-for", "soon", None), ("gang-min", "two", None),
        ("gang-size", "-1", None),
        ("checkpoint-interval", "1h", None), ("checkpoint-interval", "0", None), ("duration", "0s", None),
        ("restart-seconds", "x", None), ("last-checkpoint", "now", None),
    ],
)  # fmt: skip
def test_unknown_values(key: str, said: str, suggestion: str | None) -> None:
    [found] = pod({PREFIX + key: said})
    assert (found.code, found.key, found.suggestion) == ("unknown-value", PREFIX + key, suggestion)
    assert repr(said) in found.text


@pytest.mark.parametrize(
    "notes",
    [
        {"links": "required"}, {"links": " Required "}, {"placement": "Spread"}, {"domain": "required:rack"},
        {"domain": "preferred:topology.kubernetes.io/zone"}, {"domain": "required:example.com/rak"},
        {"duration": "1h30m"}, {"gang": "a", "gang-min": "2", "gang-size": "4"}, {"gpus": "0,1"}, {"held-gpus": "0"},
        {"last-checkpoint": "2026-11-21T15:00:00Z", "checkpoint-interval": "60", "restart-seconds": "0"},
        {"wants-nodes": "2026-11-21T15:00:00Z"}, {"domain": "required:host-group"},
    ],
)  # fmt: skip
def test_what_is_valid(notes: dict[str, str]) -> None:
    assert pod({PREFIX + key: said for key, said in notes.items()} | {"example.com/links": "x"}) == []


def test_the_right_name_in_the_wrong_place() -> None:
    [found] = pod({PREFIX + "queue": "a"})
    assert found.text == "gpu-extender.io/queue is not read as an annotation: write it as a label"
    [found] = pod(labels={PREFIX + "links": "required"})
    assert found.text == "gpu-extender.io/links is not read as a label: write it as an annotation"
    [found] = pod({PREFIX + "topology": "{}"})
    assert found.text == "annotation gpu-extender.io/topology is read on a node only"
    [found] = pod(labels={PREFIX + "gang-min": "all"})
    assert found.code == "unknown-value"


def test_gates() -> None:
    assert pod(gate=GATE) == []
    assert pod(gate="example.com/gate") == []
    [found] = pod(gate=PREFIX + "queu")
    assert (found.code, found.suggestion) == ("unknown-name", GATE)


def test_nodes() -> None:
    node = machine(
        "n", 8, annotations={PREFIX + "toplogy-stated": "{}"}, labels={PREFIX + "device-plugin-version": "1"}
    )
    [found] = names.typos_of_node(records.node(node, GPUS))
    assert found.suggestion == PREFIX + "topology-stated"


def test_a_hostile_object_costs_little() -> None:
    notes = {f"{PREFIX}links{number}": "x" for number in range(5_000)} | {PREFIX + "links": "\x1b[31m" * 10_000}
    made = records.pod(workload("p", 1, annotations=notes), GPUS)
    began = time.process_time()
    found = names.typos_of_pod(made)
    assert time.process_time() - began < 0.1
    assert len(found) == names.MOST
    [shown] = pod({PREFIX + "links": "\x1b[31m" * 10_000})
    assert "\x1b" not in shown.text
    assert len(shown.text) < 300
    [shown] = pod({PREFIX + "domain": "requird:" + "x" * 200_000})
    assert len(shown.text) < 400


def test_the_words_are_those_that_the_code_reads() -> None:
    words = {one.name: one.words for one in NAMES if one.words}
    assert set(words["links"]) == set(MODES)
    assert set(names.LEVELS) == set(SHORT)
    assert {PREFIX + one.name for one in NAMES} >= names.FORMS.keys()


def test_people_read_the_short_name_of_a_label() -> None:
    rack, leaf = "cloud.provider.com/topology-rack", "network.topology.nvidia.com/leaf"
    assert short_names([rack, "kubernetes.io/hostname", "a.b/room"]) == {
        rack: "rack", "kubernetes.io/hostname": "node", "a.b/room": "room"
    }  # fmt: skip
    assert short_names([rack, leaf]) == {rack: "topology-rack", leaf: "leaf"}


@pytest.mark.parametrize(
    ("policy", "suggestion"), [("none", ""), (" Restricted", ""), ("best_effort", "best-effort"), ("static", None)]
)
def test_a_policy_of_the_topology_manager_that_does_not_exist(policy: str, suggestion: str | None) -> None:
    """It counts as one that withholds GPUs, so that nothing is promised by mistake."""
    node = machine("n", 8, annotations={f"{PREFIX}topology-manager": policy})
    found = names.typos_of_node(records.node(node, GPUS))
    wrong = [] if suggestion == "" else [("unknown-value", suggestion)]
    assert [(typo.code, typo.suggestion) for typo in found] == wrong
    on_pod = workload("p", 1, annotations={f"{PREFIX}topology-manager": policy})
    assert [typo.code for typo in names.typos_of_pod(records.pod(on_pod, GPUS))] == ["unknown-name"]
