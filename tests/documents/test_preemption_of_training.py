"""The second text: a higher-priority inference pod can terminate a running training pod."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from extender.ask.pending import by_class
from extender.cli import main
from tests.documents.typed import (
    HOUR,
    NVSWITCH,
    Reader,
    cost,
    document,
    node,
    pod,
    running,
    victims,
    without_priority,
)
from tests.world import DGX1V, JSON, WALL, World, rfc3339

LOW = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low-priority-training"}}
CLASSES = [*document("inference-class"), LOW | {"value": 1000}]
INFERENCE = 1_000_000
ALL = list(range(8))


def inference(name: str = "inference", gpus: int = 4) -> JSON:
    return without_priority(pod(name, gpus, cls="high-priority-inference"))


def training(name: str, on: str, gpus: list[int], **facts: object) -> JSON:
    return running(name, on, gpus, cls="low-priority-training", **({"priority": 1000} | facts))  # type: ignore[arg-type]


def test_19_inference_terminates_training(reader: Reader) -> None:
    """ "A higher-priority inference pod can terminate a running training pod if the scheduler finds no other node." """
    reader.cluster(*CLASSES, node("n1"), training("train", "n1", ALL, hours=6))
    (result,) = reader.whatif(inference(), code=10)["results"]
    assert victims(result) == ["train"]


def test_20_another_node_comes_first(reader: Reader) -> None:
    """The same: "if the scheduler finds no other node"."""
    reader.cluster(*CLASSES, node("n1"), node("n2"), training("train", "n1", ALL))
    (result,) = reader.whatif(inference(), code=0)["results"]
    assert (result["verdict"], result["node"]) == ("fits", "n2")


def test_21_integers_not_types(reader: Reader) -> None:
    """ "The mechanism relies on integer values assigned to workloads, not on the workload type itself." """
    upside_down = LOW | {"value": 2 * INFERENCE}
    reader.cluster(*document("inference-class"), upside_down, node("n1"), training("t", "n1", ALL, priority=2_000_000))
    (result,) = reader.whatif(inference(), code=11)["results"]
    assert result["verdict"] == "cannot"


@pytest.mark.parametrize(("ceiling", "victim"), [(None, "dear"), (10, "cheap"), (0.5, None)])
def test_22_a_ceiling_for_the_cost(reader: Reader, tmp_path: Path, ceiling: float | None, victim: str | None) -> None:
    """ "If the cost is acceptable, the eviction proceeds": above the ceiling of the class it does not."""
    dear = training("dear", "n1", ALL, hours=6, priority=10)  # 48 GPU-hours, of the lowest priority
    cheap = training("cheap", "n2", ALL, hours=1, priority=20)  # 8 GPU-hours
    reader.cluster(*CLASSES, node("n1"), node("n2"), dear, cheap)
    ceilings = {} if ceiling is None else {"high-priority-inference": {"gpuHours": ceiling}}
    head = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration"}
    (tmp_path / "settings.yaml").write_text(json.dumps(head | {"preemption": {"ceilings": ceilings}}))
    (result,) = reader.whatif(inference(), words=("--config", str(tmp_path / "settings.yaml")))["results"]
    assert victims(result) == ([] if victim is None else [victim])


def test_23_an_eviction_is_not_silent(world: World) -> None:
    """ "This process is automatic and silent unless events are monitored": explain of the victim names who and why."""
    world.node("n1", 8, links=NVSWITCH)
    world.pod("train", 8, "n1", phase="Running", start=WALL - HOUR, priority=1000, held=ALL)
    serve = world.pod("inference", 4, priority=INFERENCE)
    assert world.preempt(serve, {"n1": ["train"]}) == {"n1": ["train"]}
    world.gone("train")
    answer = world.call("/debug/explain?pod=default/train", method="GET").json
    assert answer["verdict"] == "evicted"
    assert answer["evicted"]["by"] == "default/inference"
    lost = {term["term"]: term["value"] for term in answer["evicted"]["cost"]}
    assert lost["work_lost_gpu_seconds"] >= 8 * HOUR  # the whole run, and the time to restart


def test_24_the_events_are_documented() -> None:
    """ "kubectl get events --field-selector reason=Preempting": the reasons of our Events are in the documents."""
    text = (Path(__file__).parents[2] / "docs" / "preemption.md").read_text()
    assert re.search(r"kubectl get events.*reason=ChosenAsVictim", text)


def test_25_the_yaml_of_class_and_pod(reader: Reader) -> None:
    """The class `high-priority-inference`, and the pod `training-job-1` with 4 GPUs."""
    reader.cluster(*CLASSES, node("n1"))
    (result,) = reader.whatif("training-job-1", code=0)["results"]
    assert result["gpus"] == [0, 1, 2, 3]


def test_25_a_class_that_does_not_exist_is_named(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """The text shows no class `low-priority-training`: the API server would refuse the pod."""
    reader.cluster(*document("inference-class"), node("n1"))
    assert main(["whatif", *reader.files("training-job-1"), "--cluster", str(reader.cluster_file)]) == 1
    assert "no PriorityClass 'low-priority-training'" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["PreemptHigherPriority", "preemptlowerpriority"])
def test_26_a_policy_that_does_not_exist(reader: Reader, policy: str) -> None:
    """The table has a policy `PreemptHigherPriority`: Kubernetes has none."""
    odd = LOW | {"metadata": {"name": "odd"}, "value": 5, "preemptionPolicy": policy}
    reader.cluster(*CLASSES, odd, node("n1"))
    assert policy in str(reader.findings())


def test_27_never_waits(reader: Reader) -> None:
    """ "If set to Never, the pod will remain Pending if resources are unavailable, rather than evicting others." """
    polite = {**document("inference-class")[0], "preemptionPolicy": "Never"}
    reader.cluster(polite, CLASSES[1], node("n1"), training("train", "n1", ALL))
    (result,) = reader.whatif(inference(), code=11)["results"]
    assert (result["verdict"], victims(result)) == ("cannot", [])


def test_28_long_runs_can_be_protected(reader: Reader) -> None:
    """ "A training job running for 6 hours may be terminated by a spike in inference traffic": not one in its minimum
    run."""
    young = training("young", "n1", ALL, hours=0.5, annotations={"gpu-extender.io/protect-for": "1h"})
    old = training("old", "n2", ALL, hours=6)
    reader.cluster(*CLASSES, node("n1"), node("n2"), young, old)
    (result,) = reader.whatif(inference(), code=10)["results"]
    assert victims(result) == ["old"]


@pytest.mark.parametrize(("every", "lost"), [(10, 10), (60, 50)])
def test_30_what_is_lost_depends_on_the_interval(reader: Reader, every: int, lost: int) -> None:
    """ "If the job checkpoints every 10 minutes, a 6-hour job loses 10 minutes of work. If it checkpoints every hour,
    it loses 50 minutes": as long as the last checkpoint is ago."""
    assert lost <= every
    notes = {"gpu-extender.io/last-checkpoint": rfc3339(WALL - lost * 60)}
    reader.cluster(*CLASSES, node("n1"), training("train", "n1", ALL, hours=6, annotations=notes))
    (result,) = reader.whatif(inference(), code=10)["results"]
    assert cost(result)["work_lost_gpu_seconds"] == 8 * lost * 60


def test_30_without_checkpoints_the_cost_is_the_entire_runtime(reader: Reader) -> None:
    """ "If the job does not checkpoint, the cost is the entire runtime." """
    reader.cluster(*CLASSES, node("n1"), training("train", "n1", ALL, hours=6))
    (result,) = reader.whatif(inference(), code=10)["results"]
    assert cost(result)["work_lost_gpu_seconds"] == 8 * 6 * HOUR


def test_31_priority_inversion_is_found(reader: Reader) -> None:
    """ "If all inference pods are assigned a lower priority than training pods, the inference pods may never
    schedule." """
    ranks = {"high-priority-inference": "2", "low-priority-training": "1"}  # as intended: higher is more important
    values = {"high-priority-inference": 10, "low-priority-training": 1000}
    classes = [
        LOW | {"metadata": {"name": name, "labels": {"gpu-extender.io/rank": rank}}, "value": values[name]}
        for name, rank in ranks.items()
    ]
    reader.cluster(*classes, node("n1"))
    found = [finding for findings in reader.findings().values() for finding in findings]
    assert any(finding["severity"] == "error" and "inference" in str(finding) for finding in found)


def test_32_a_pod_of_four_is_not_evicted_for_one(reader: Reader) -> None:
    """ "If the scheduler evicts a 4-GPU pod to fit a 1-GPU pod, the remaining 3 GPUs on that node may be unusable"."""
    four = [training(f"four-{half}", "n1", [4 * half + at for at in range(4)], hours=1) for half in range(2)]
    ones = [training(f"one-{gpu}", "n2", [gpu], hours=4) for gpu in range(8)]
    reader.cluster(*CLASSES, node("n1"), node("n2"), *four, *ones)
    (result,) = reader.whatif(inference(gpus=1), code=10)["results"]
    assert result["node"] == "n2"
    assert cost(result)["freed_beyond_gpus"] == 0
    assert result["certificate"]["lost_on"] == "freed_beyond_gpus"


def test_33_free_gpus_that_are_not_contiguous(reader: Reader) -> None:
    """ "The cluster has free GPUs but no pod can be scheduled because they are not contiguous enough"."""
    held = [training(f"t{gpu}", "n1", [gpu], priority=INFERENCE) for gpu in (0, 1, 2, 4, 5, 7)]
    asks = pod("linked", 2, cls="high-priority-inference", priority=INFERENCE, links="required")
    reader.cluster(*CLASSES, node("n1", links=DGX1V), *held, asks)
    answer = reader.answer("explain", "default/linked")
    assert answer["verdict"] == "waits"
    assert "linked" in answer["sentence"]
    assert {way["kind"] for way in answer["ways_out"]} >= {"relax-links"}


@pytest.mark.parametrize(("never", "priority"), [(True, INFERENCE), (False, 1000)])
def test_34_did_the_class_allow_it(reader: Reader, never: bool, priority: int) -> None:
    """ "Did the priority class for the inference pod allow it to evict the training pod": explain answers."""
    waiting = pod("inference", 4, cls="high-priority-inference", priority=priority, never=never)
    reader.cluster(*CLASSES, node("n1"), training("train", "n1", ALL), waiting)
    answer = reader.answer("explain", "default/inference")
    assert answer["preemption"]["allowed"] is False
    assert ("preemptionPolicy" if never else "priority") in answer["sentence"]


def test_35_an_alert_by_class(world: World) -> None:
    """ "The cluster appears healthy, but the SLA for inference latency is violated": pods of the class wait below
    everything that runs, and a metric with an alert names the class."""
    world.set("PriorityClass", {"metadata": {"name": "inference", "uid": "i"}, "value": 10})
    world.node("n1", 8, links=NVSWITCH)
    world.pod("train", 8, "n1", phase="Running", start=WALL - HOUR, priority=1000, held=ALL)
    world.pod("waits", 1, priority=10, spec={"priorityClassName": "inference"})
    counted = by_class(world.cluster, WALL)
    assert (counted["inference"].pods, counted["inference"].outranks) == (1, False)
    rules = (Path(__file__).parents[2] / "manifests" / "monitoring").rglob("*.yaml")
    assert any("alert: GpuExtenderClassWaits" in path.read_text() for path in rules)


def test_36_gpus_are_free_after_the_exit(reader: Reader) -> None:
    """ "The GPU is released only after the container exits": those of a terminating pod are not free."""
    reader.cluster(*CLASSES, node("n1"), training("ending", "n1", ALL, terminating=WALL + 20))
    (result,) = reader.whatif(inference())["results"]
    assert result["verdict"] != "fits"


def test_37_the_lowest_priority_goes_first(reader: Reader) -> None:
    """ "The scheduler prioritizes evicting pods with the lowest priority value"."""
    cheap_but_high = training("high", "n1", ALL, priority=5000, hours=0.1)
    dear_but_low = training("low", "n2", ALL, priority=10, hours=100)
    reader.cluster(*CLASSES, node("n1"), node("n2"), cheap_but_high, dear_but_low)
    (result,) = reader.whatif(inference(), code=10)["results"]
    assert victims(result) == ["low"]


def test_38_the_policy_is_that_of_the_class(reader: Reader) -> None:
    """ "This tradeoff is static per PriorityClass and cannot be overridden at the pod level": a pod that states Never
    beside its class evicts no pod, and the answer says why."""
    own = inference()
    own["spec"]["preemptionPolicy"] = "Never"
    reader.cluster(*CLASSES, node("n1"), training("train", "n1", ALL))
    answer = reader.whatif(own, code=11)
    assert "never-preempts" in [warning["code"] for warning in answer["warnings"]]
