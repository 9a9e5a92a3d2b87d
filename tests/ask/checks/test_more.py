"""check: nodes, typos, advice, and what an input lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.settings import Settings
from tests.ask.asking import file, findings
from tests.ask.checks.test_check import checked, cls, codes, node, pod, quota
from tests.world import JSON, WALL, machine, pairs, rfc3339, workload


def gpu_node(name: str, gpus: int = 8, ready: str | None = "True", **facts: Any) -> JSON:
    made: JSON = {"kind": "Node", "apiVersion": "v1"} | machine(name, gpus, links=pairs(gpus), **facts)
    if ready is not None:
        made["status"]["conditions"] = [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": ready, "reason": "KubeletNotReady"},
        ]
    return made


def test_nodes_that_lost_gpus_are_grouped() -> None:
    label = {"nvidia.com/gpu.count": "8"}
    answer = checked(
        gpu_node("a", 7, capacity=8), gpu_node("b", 7, capacity=8), gpu_node("c", 6, labels=label), gpu_node("d"),
        {"kind": "Node"} | machine("cpu", 0), {"kind": "Node"} | machine("none", 0, capacity=8),
        {"kind": "Node"} | machine("dra", 0, labels=label),
    )  # fmt: skip
    none, six, seven = sorted(findings(answer, "gpus-lost"), key=lambda one: one["message"])
    assert seven["message"] == "7 of 8 GPUs are allocatable"
    assert (seven["about"], seven["others"]) == ("Node/a", ["Node/b"])
    assert seven["facts"] == {"allocatable_gpus": 14, "gpus": 16}
    assert (six["about"], six["message"]) == ("Node/c", "6 of 8 GPUs are allocatable")
    assert (none["about"], none["message"]) == ("Node/none", "0 of 8 GPUs are allocatable")


def test_pods_that_hold_more_gpus_than_their_node_offers() -> None:
    def running(name: str, gpus: int, on: str, phase: str = "Running") -> JSON:
        return {"kind": "Pod"} | workload(name, gpus, node=on, phase=phase, start=WALL - 60)

    answer = checked(
        gpu_node("a", 7, capacity=8), gpu_node("b", 7, capacity=8), gpu_node("full"), gpu_node("ended"),
        {"kind": "Node"} | machine("none", 0),
        running("p0", 5, "a"), running("p1", 3, "a"), running("p2", 8, "b"), running("p3", 8, "full"),
        running("p4", 8, "ended"), running("p5", 8, "ended", "Succeeded"), running("p6", 2, "none"),
    )  # fmt: skip
    seven, none = sorted(findings(answer, "pods-hold-lost-gpus"), key=lambda one: one["about"])
    assert (seven["about"], seven["others"], seven["severity"]) == ("Node/a", ["Node/b"], "warning")
    text = "its pods hold 8 GPUs (nvidia.com/gpu), and 7 are allocatable: 1 GPU of these pods is lost"
    assert seven["message"] == text
    assert seven["facts"] == {"held_gpus": 16, "allocatable_gpus": 14}
    assert (none["about"], none["facts"]) == ("Node/none", {"held_gpus": 2, "allocatable_gpus": 0})


def test_a_node_with_gpus_of_several_resources() -> None:
    both = gpu_node("both", 4)
    both["status"]["allocatable"]["amd.com/gpu"] = both["status"]["capacity"]["amd.com/gpu"] = "2"
    lost = gpu_node("lost", 4)
    lost["status"]["capacity"]["amd.com/gpu"] = "2"
    (found,) = findings(checked(both, lost, gpu_node("one", 4)), "several-gpu-resources")
    assert (found["about"], found["severity"]) == ("Node/both", "info")
    assert found["message"] == (
        "it offers GPUs of several resources (nvidia.com/gpu, amd.com/gpu): links, capacity and which pod holds which "
        "GPU are known for nvidia.com/gpu alone"
    )


def test_gpus_that_are_handed_out_in_parts_are_not_lost() -> None:
    labels = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "T4-SHARED"}
    mixed = {"nvidia.com/gpu.count": "8", "nvidia.com/mig.strategy": "mixed"}
    shared, mig = machine("shared", 32, labels=labels), machine("mig", 6, links=pairs(6), labels=mixed)
    answer = checked({"kind": "Node"} | shared, {"kind": "Node"} | mig)
    assert not {"gpus-lost", "links-unknown"} & set(codes(answer))


def test_nodes_that_are_not_ready() -> None:
    tainted = gpu_node("e", ready="False")
    tainted["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    answer = checked(
        gpu_node("a"), gpu_node("b", ready="False"), gpu_node("c", ready="Unknown"), gpu_node("d", ready=None), tainted
    )
    found = findings(answer, "node-not-ready")
    assert [(one["about"], one["others"], one["message"]) for one in found] == [
        ("Node/b", ["Node/c"], "it is not ready (KubeletNotReady): no taint keeps pods off it"),
        ("Node/e", [], "it is not ready (KubeletNotReady): its GPUs take no new pod"),
    ]


@pytest.mark.parametrize(("cordoned", "enabled", "severity", "when"), [
    (True, True, "info", "now, after saving"),
    (False, True, "warning", "not before the node is cordoned (kubectl cordon a)"),
    (True, False, "warning", "only where evictions.enabled is true"),
])  # fmt: skip
def test_a_node_that_is_emptied(cordoned: bool, enabled: bool, severity: str, when: str) -> None:
    drained = gpu_node("a")
    drained["metadata"].setdefault("annotations", {})["gpu-extender.io/drain"] = ""
    drained["spec"] = {"unschedulable": cordoned}
    held = {"kind": "Pod"} | workload("p", 4, node="a", phase="Running", start=WALL - 60)
    settings = Settings.model_validate({"evictions": {"enabled": enabled}})
    [one] = findings(checked(drained, held, settings=settings), "node-drains")
    assert (one["severity"], one["about"]) == (severity, "Node/a")
    assert one["message"] == f"gpu-extender.io/drain: 1 GPU pod leaves {when}"


def test_a_drain_that_is_not_meant_is_a_warning_and_empties_nothing() -> None:
    drained = gpu_node("a")
    drained["metadata"].setdefault("annotations", {})["gpu-extender.io/drain"] = "soon"
    assert not findings(checked(drained), "node-drains")
    answer = checked(drained)
    assert [warning["code"] for warning in answer["warnings"]] == ["bad-drain"]
    assert answer["summary"]["warning"] == 1 + len([one for one in answer["findings"] if one["severity"] == "warning"])


def test_a_file_of_pods_alone_says_nothing_of_their_nodes() -> None:
    assert checked(pod("a"))["warnings"] == []


def test_links_that_are_not_known() -> None:
    answer = checked(gpu_node("a"), {"kind": "Node"} | machine("b", 8), {"kind": "Node"} | machine("c", 1))
    [one] = findings(answer, "links-unknown")
    assert (one["about"], one["others"]) == ("Node/b", [])


def test_what_a_node_states_otherwise_about_its_gpus() -> None:
    """Its links are not those of its product; a label counts other GPUs than it offers."""
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    linked = {"kind": "Node"} | machine("a", 8, links=pairs(8), labels=product)
    counted = {"kind": "Node"} | machine("b", 6, labels=product | {"nvidia.com/gpu.count": "8"})
    found = {one["about"]: one for one in findings(checked(linked, counted), "gpus-stated-otherwise")}
    assert {about: one["severity"] for about, one in found.items()} == {"Node/a": "warning", "Node/b": "info"}
    assert found["Node/b"]["message"].startswith("label nvidia.com/gpu.count is 8, the node has 6; what counts of")


def test_typos_are_findings() -> None:
    typed = {"gpu-extender.io/link": "required"}
    answer = checked(node(), pod("a", annotations=typed), pod("b", annotations=typed), pod("c", links="yes"))
    [name] = findings(answer, "unknown-name")
    assert (name["about"], name["others"]) == ("Pod/default/a", ["Pod/default/b"])
    assert name["remedy"] == "Write gpu-extender.io/links."
    [value] = findings(answer, "unknown-value")
    assert value["about"] == "Pod/default/c"


def test_what_the_input_lacks_is_said_and_not_judged() -> None:
    owned = pod("p")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    answer = checked(node(), owned)
    kinds, said = zip(*((one["kind"], one["message"]) for one in answer["lacks"]), strict=True)
    assert kinds == ("PriorityClass", "PodDisruptionBudget", "ResourceQuota", "Job")
    assert said[0].startswith("the input has no PriorityClasses: ")
    assert said[3].startswith("the input has no Jobs: ")
    assert not {"no-intended-order", "pods-without-class"} & set(codes(answer))
    whole = checked(node(), pod("p"), cls("low", 1), quota({"pods": "9"}), budget())
    assert whole["lacks"] == []


def budget() -> JSON:
    meta = {"name": "b", "namespace": "default"}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": {"selector": {"x": 1}}}


@pytest.mark.parametrize(
    "text",
    ["", "---\n", '{"kind": "List", "apiVersion": "v1", "items": []}'],
)
def test_a_file_without_nodes_and_pods_is_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "cluster.json"
    empty.write_text(text)
    assert main(["check", "--cluster", str(empty), "-o", "json"]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert json.loads(said.err)["error"]["code"] == "bad-cluster"


def test_pods_alone_are_judged_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What someone who may read one namespace can ask about."""
    items = [pod("a", gpus=99, annotations={"gpu-extender.io/link": "required"}), pod("b", gpus=99)]
    cluster = file(tmp_path, items)
    assert main(["check", "--cluster", cluster, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert codes(answer) == ["unknown-name"]
    assert answer["lacks"][0]["message"] == "the input has no Nodes: nothing is judged that needs nodes"
    assert main(["check", "--cluster", cluster, "--strict"]) == 10


def test_advice_is_in_the_answer_and_in_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [gpu_node(f"n{n}") for n in range(3)]
    for n in range(3):
        held = workload(f"p{n}", 3, node=f"n{n}", phase="Running", start=WALL - 100 * (n + 1))
        items.append({"kind": "Pod", "apiVersion": "v1"} | held)
    items.append({"kind": "Pod", "apiVersion": "v1"} | workload("w", 8))
    cluster = file(tmp_path, items)
    ask = ["check", "--cluster", cluster, "--now", rfc3339(WALL)]
    assert main([*ask, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "nodes-would-start-pods" in codes(answer, "info")
    assert answer["advice"]["nodes"][0]["pods"] == 1
    assert main(ask) == 0
    text = capsys.readouterr().out
    assert "1 more node like n0" in text


def test_many_findings_of_one_kind_are_cut_in_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [node()] + [pod(f"p{n:02}", 0, annotations={f"gpu-extender.io/zzz{n:02}": "x"}) for n in range(30)]
    items += [pod(f"q{n:02}", 0, annotations={"gpu-extender.io/link": "x"}) for n in range(5)]
    cluster = file(tmp_path, items)
    assert main(["check", "--cluster", cluster]) == 0
    text = capsys.readouterr().out
    assert text.count("is unknown") == 10
    assert "and 21 more findings unknown-name (-o json has all)" in text


def test_a_scheduler_none_of_whose_pods_has_planned_gpus_while_those_of_another_have() -> None:
    planned, other = pod("a", annotations={"gpu-extender.io/gpus": "0"}), pod("b")
    for made, scheduler in ((planned, "gpu-scheduler"), (other, "default-scheduler")):
        made["spec"] = made["spec"] | {"schedulerName": scheduler}
    [silent] = findings(checked(node(), planned, other), "scheduler-silent")
    assert "pod default/b: its scheduler default-scheduler seems not to ask" in silent["message"]
    assert not findings(checked(node(), other), "scheduler-silent")  # no other one is heard


# -- what `check` finds of advance reservations ------------------------------------------------------------------------


DATES = f"from: {rfc3339(WALL + 60)}\nuntil: {rfc3339(WALL + 600)}\n"


def reserved(**data: str) -> JSON:
    meta = {"name": "gpu-extender-advance-reservations", "namespace": "gpu-extender-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def of_dates(*items: JSON) -> list[JSON]:
    return [one for one in checked(*items)["findings"] if one["code"].startswith("advance")]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("for: 8", "advance-invalid", "from: not a time"),
        (f"for: 2x8\nnamespaces: [ml]\n{DATES}", "", ""),
        (f"for: 3x8\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "2 of 3 pods"),
        (f"for: 9\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "0 of 1 pods"),
        (f"for: 8\nmodel: H9\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "the model H9"),
        (f"node: n1\n{DATES}", "", ""),
        (f"node: n7\n{DATES}", "advance-never-fits", "no node n7"),
        ("node: n7\nfrom: 2020-01-01T00:00:00Z\nuntil: 2020-01-02T00:00:00Z", "advance-over", "has ended"),
    ],
)
def test_an_entry(text: str, code: str, why: str) -> None:
    items = [{"kind": "Node"} | machine(f"n{at}", 8) for at in range(2)]
    found = of_dates(*items, reserved(big=text))
    assert [one["code"] for one in found] == ([code] if code else [])
    assert not code or why in found[0]["message"]


def test_other_config_maps_and_strange_ones_are_left() -> None:
    strange = reserved() | {"data": ["for: 8"]}
    other = reserved(big="for") | {"metadata": {"name": "other"}}
    assert of_dates(strange, other) == []
