"""check: what the classes of the field's documents are found to lack."""

from __future__ import annotations

import pytest

from extender.settings import Settings
from tests.ask.asking import findings
from tests.ask.checks.test_check import checked, cls, codes, node, pod
from tests.world import JSON, workload


def test_a_policy_that_does_not_exist() -> None:
    """001: the table of policies has a row PreemptHigherPriority."""
    answer = checked(node(), cls("rare", 10, preemptionPolicy="PreemptHigherPriority"), cls("fine", 5))
    [one] = findings(answer, "preemption-policy-unknown")
    assert (one["severity"], one["about"]) == ("error", "PriorityClass/rare")
    assert "'PreemptHigherPriority' does not exist" in one["message"]
    assert "PreemptLowerPriority" in one["remedy"]
    assert "Never" in one["remedy"]


def test_a_pod_with_such_a_policy() -> None:
    wire = pod("p")
    wire["spec"]["preemptionPolicy"] = "preemptlowerpriority"
    [one] = findings(checked(node(), cls("fine", 5), wire), "preemption-policy-unknown")
    assert one["about"] == "Pod/default/p"


def tiers() -> list[JSON]:
    """000: four tiers, in the words of their descriptions."""
    return [
        cls("gpu-training", 1000, description="GPU training jobs - can preempt batch and interactive"),
        cls("gpu-serving", 800, description="GPU inference serving - can preempt batch and interactive"),
        cls("gpu-batch", 400, description="GPU batch jobs - can preempt interactive only"),
        cls("gpu-interactive", 200, preemptionPolicy="Never", description="Notebooks - cannot preempt anything"),
    ]


def test_a_description_that_omits_a_class_which_it_can_evict() -> None:
    [one] = findings(checked(node(), *tiers()), "description-omits-class")
    assert one["about"] == "PriorityClass/gpu-training"
    assert "but not gpu-serving, which it can evict too" in one["message"]


@pytest.mark.parametrize("text", ["preempts everything", "sensitive", "queues without preempting", "", "evicts"])
def test_a_description_that_names_no_class_is_not_judged(text: str) -> None:
    answer = checked(node(), cls("high", 30, description=text), cls("mid", 20), cls("low", 10))
    assert findings(answer, "description-omits-class") == []


def inverted() -> list[JSON]:
    """001: inference waits below training, and the cluster looks healthy."""
    waits = {"kind": "Pod"} | workload("inference", 1, priority=10, spec={"priorityClassName": "inference"})
    return [node(), cls("training", 100), cls("inference", 10), pod("trainer", 8, "training", 100), waits]


def test_a_class_that_waits_below_all_that_runs_is_reported_without_ranks() -> None:
    [one] = findings(checked(*inverted()), "class-outranked")
    assert (one["severity"], one["about"], one["facts"]) == (
        "warning", "PriorityClass/inference", {"pods": 1, "priority": 10},
    )  # fmt: skip
    ranked = Settings.model_validate({"preemption": {"intendedOrder": ["inference", "training"]}})
    answer = checked(*inverted(), settings=ranked)
    assert "class-outranked" not in codes(answer)
    assert "rank-inverted" in codes(answer, "error")


def test_a_class_that_can_evict_some_pod_is_not_outranked() -> None:
    answer = checked(*inverted(), cls("batch", 1), pod("batch", 1, "batch", 1))
    assert "class-outranked" not in codes(answer)


@pytest.mark.parametrize(
    ("kind", "api"),
    [
        ("PodGroup", "scheduling.volcano.sh/v1beta1"),
        ("PodGroup", "scheduling.x-k8s.io/v1alpha1"),
        ("Job", "batch.volcano.sh/v1alpha1"),
    ],
)
def test_a_group_that_names_no_class(kind: str, api: str) -> None:
    """003: a PodGroup of the class `training`, beside inference-critical, training-standard and notebook-dev."""
    spec = {"minMember": 4, "queue": "gpu-queue", "priorityClassName": "training"}
    group = {"apiVersion": api, "kind": kind, "metadata": {"name": "training-job"}, "spec": spec}
    [one] = findings(checked(node(), cls("training-standard", 10_000), group), "class-of-group-missing")
    assert (one["severity"], one["about"]) == ("warning", f"{kind}/default/training-job")
    assert "'training' is not among the PriorityClasses" in one["message"]
    assert "class-of-group-missing" not in codes(checked(node(), cls("training", 1), group))
    assert "class-of-group-missing" not in codes(checked(node(), group))
