"""A pod that cannot be read in full: filter answers an Error for it, and each question has that answer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from extender.ask import offline
from extender.ask.pending import FITS
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif.question import Question
from extender.errors import BadInput
from extender.objects.queueing import GATE
from extender.objects.records import Event
from extender.objects.schema import MOST_ENTRIES
from extender.settings import Settings
from tests.ask.asking import events
from tests.objects.test_tolerant import many
from tests.web.page.test_site import data
from tests.world import JSON, WALL, World, machine, workload

SETTINGS = Settings()
MORE = many(MOST_ENTRIES + 1)
TEXT = "pod default/p cannot be read in full, and gets no node until it is created again with this corrected: spec."


def read(pods: Iterable[JSON]) -> list[Event]:
    """The pods beside two empty machines, as a file has them."""
    nodes = [{"kind": "Node", "apiVersion": "v1"} | machine(name, 8) for name in ("m", "n")]
    return events([*nodes, *({"kind": "Pod", "apiVersion": "v1"} | pod for pod in pods)])


def gated(name: str, spec: JSON) -> JSON:
    return workload(name, 2, spec=spec | {"schedulingGates": [{"name": GATE}]})


@pytest.mark.parametrize("field", sorted(MORE.keys() - {"schedulingGates"}))
def test_each_question_has_the_answer_of_filter(field: str) -> None:
    world = World()
    cluster = read([workload("p", 2, spec=MORE[field]), workload("fits", 2)])
    world.cluster.apply(cluster, world.now)
    answer = world.filter(workload("p", 2, spec=MORE[field]))
    assert answer["NodeNames"] is None
    assert answer["Error"].startswith("gpu-extender: Pod.spec.")
    assert answer["Error"].endswith(
        f"it has more than {MOST_ENTRIES:,} entries; the pod gets no node until it is created again with this corrected"
    )
    shown = offline.explain(SETTINGS, cluster, ("default", "p"), WALL)
    assert (shown["verdict"], shown["node"]) == ("never", None)
    assert shown["sentence"].startswith(f"never fits: {TEXT}")
    assert field in shown["sentence"]
    assert (shown["why"]["reason"], shown["reasons"]) == ("not-judged", {"not-judged": 2})
    assert shown["why"]["text"] in shown["sentence"]
    whatif = offline.whatif(SupposedCluster.of(SETTINGS, cluster), Question(named=(("default", "p"),)), WALL)
    assert (whatif["results"][0]["verdict"], whatif["results"][0]["reasons"]) == ("cannot", {"not-judged": 2})
    assert shown["why"]["text"] in [warning["message"] for warning in whatif["warnings"]]
    waiting = offline.explainer(SETTINGS, cluster, WALL).fleet()["waiting"]
    assert {row["reason"]: row["pods"] for row in waiting} == {FITS: 1, "not-judged": 1}
    first = {row["pod"]: row for row in offline.explainer(SETTINGS, cluster, WALL).capacity()["unblock"]}["default/p"]
    assert (first["verdict"], first["sentence"]) == ("never", shown["sentence"])
    on_page = {row["pod"]: (row["reason"], row["text"]) for row in data(world, "/waiting")["pods"]}
    assert on_page["default/p"] == ("not-judged", shown["why"]["text"])


def test_behind_the_gate_the_queue_names_the_field() -> None:
    spec = MORE["tolerations"]
    cluster = read([gated("p", spec), gated("other", {})])
    queue = offline.queue(SETTINGS, cluster, WALL)
    assert [start["gang"] for start in queue["starts"]] == ["default/other"]
    assert [entry["text"] for entry in queue["incomplete"]] == [f"{TEXT}tolerations: it has more than 1,024 entries"]
    shown = offline.explain(SETTINGS, cluster, ("default", "p"), WALL)
    assert (shown["verdict"], shown["node"], shown["ways_out"]) == ("gated", None, [])
    assert shown["sentence"].count(TEXT) == 1
    assert shown["why"]["text"] == queue["incomplete"][0]["text"]
    other_gate = workload("p", 2, spec=spec | {"schedulingGates": [{"name": "a.io/x"}]})
    sentence = offline.explain(SETTINGS, read([other_gate]), ("default", "p"), WALL)["sentence"]
    assert sentence.startswith(
        f"waits behind a gate: another controller opens the gate a.io/x; then it never fits: {TEXT}"
    )


def test_a_pod_whose_gang_waits_for_something_else_first_names_its_field() -> None:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "3"}
    pods = [gated("p", MORE["tolerations"]), gated("launcher", MORE["tolerations"])]
    pods[1]["spec"]["containers"][0]["resources"] = {}
    for pod in pods:
        pod["metadata"]["annotations"] = notes
    for name in ("p", "launcher"):
        shown = offline.explain(SETTINGS, read(pods), ("default", name), WALL)
        assert "(2 of 3 pods exist)" in shown["sentence"]
        assert shown["sentence"].count(f"pod default/{name} cannot be read in full") == 1


@pytest.mark.parametrize("other", ["a", "q"])
def test_a_gang_with_such_a_pod_is_not_placed(other: str) -> None:
    """Whether it is the first one of its gang or not."""
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    pods = [workload(name, 2, annotations=notes, spec=spec) for name, spec in (("p", MORE["tolerations"]), (other, {}))]
    cluster = read(pods)
    asked = Question(named=(("default", "p"), ("default", other)))
    whatif = offline.whatif(SupposedCluster.of(SETTINGS, cluster), asked, WALL)
    (group,) = whatif["groups"]
    assert (group["verdict"], group["ways_out"]) == ("cannot", [])
    assert group["text"].startswith(TEXT)
    shown = offline.explain(SETTINGS, cluster, ("default", other), WALL)
    assert shown["verdict"] == "fits"
    assert f"its gang default/g cannot run whole: {TEXT}" in shown["sentence"]


def test_no_machine_is_advised_for_such_a_pod() -> None:
    cluster = read([workload(f"full-{node}", 8, node=node) for node in ("m", "n")])
    waits = events([{"kind": "Pod"} | workload("p", 2, spec=MORE["tolerations"])])
    assert offline.explainer(SETTINGS, [*cluster, *waits], WALL).advice()["nodes"] == []
    waits = events([{"kind": "Pod"} | workload("p", 2)])
    assert [row["nodes"] for row in offline.explainer(SETTINGS, [*cluster, *waits], WALL).advice()["nodes"]] == [1]


def test_a_pod_whose_gpus_cannot_be_read_is_named_with_the_field() -> None:
    spec = {"containers": [{"name": "c", "resources": "many"}]}
    with pytest.raises(BadInput, match=r"asks for no GPU .*; spec\.containers\[0\]\.resources: expected an object"):
        offline.explain(SETTINGS, read([workload("p", 2, spec=spec)]), ("default", "p"), WALL)
