"""The first text: PriorityClasses for training, serving, batch and interactive work, and quotas for each."""

from __future__ import annotations

import pytest

from tests.documents.typed import HOUR, Reader, cost, document, node, pod, running, victims, without_priority
from tests.world import JSON, WALL

TIERS = {"gpu-training": 1000, "gpu-serving": 800, "gpu-batch": 400, "gpu-interactive": 200}
GRAPH = {
    "gpu-training": {"gpu-serving", "gpu-batch", "gpu-interactive"},
    "gpu-serving": {"gpu-batch", "gpu-interactive"},
    "gpu-batch": {"gpu-interactive"},
    "gpu-interactive": set(),
}


def tiers_and(*items: JSON) -> list[JSON]:
    return [*document("tiers"), *items]


def asks(name: str, gpus: int, cls: str, namespace: str = "tenant-alpha") -> JSON:
    return without_priority(pod(name, gpus, cls=cls, namespace=namespace))


def test_01_four_classes(reader: Reader) -> None:
    """ "Create four PriorityClasses: P0 Training (1000), P1 Serving (800), P2 Batch (400), P3 Interactive (200)." """
    reader.cluster(*tiers_and(node("n1")))
    classes = {cls["name"]: cls["priority"] for cls in reader.answer("check")["classes"]}
    assert {name: classes[name] for name in TIERS} == TIERS


@pytest.mark.parametrize("upper", TIERS)
@pytest.mark.parametrize("lower", TIERS)
def test_02_who_evicts_whom(reader: Reader, upper: str, lower: str) -> None:
    """The graph: training can preempt serving, batch and interactive; ... interactive cannot preempt anything."""
    reader.cluster(*tiers_and(node("n1"), running("old", "n1", list(range(8)), cls=lower, priority=TIERS[lower])))
    (result,) = reader.whatif(asks("new", 8, upper))["results"]
    assert (result["verdict"] == "evict") == (lower in GRAPH[upper])


def test_03_never_prevents_evictions_by_notebooks(reader: Reader) -> None:
    """ "`Never` for interactive to prevent cascade evictions." """
    lower = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "idle"}, "value": 1}
    reader.cluster(*tiers_and(lower, node("n1"), running("old", "n1", list(range(8)), cls="idle", priority=1)))
    (result,) = reader.whatif(asks("notebook", 1, "gpu-interactive"), code=11)["results"]
    assert result["verdict"] == "cannot"
    assert victims(result) == []


def test_04_a_notebook_does_not_block_training(reader: Reader) -> None:
    """ "A low-priority notebook session can block a critical training job for hours." """
    reader.cluster(*tiers_and(node("n1"), running("notebook", "n1", [3], cls="gpu-interactive", priority=200)))
    (result,) = reader.whatif(asks("train", 8, "gpu-training"), code=10)["results"]
    assert victims(result) == ["notebook"]


def test_05_the_pytorchjob(reader: Reader) -> None:
    """The YAML of `llm-finetune`: one worker with 8 GPUs."""
    reader.cluster(*tiers_and(node("n1")))
    answer = reader.whatif("finetune", code=0)
    assert [(result["node"], result["gpus"]) for result in answer["results"]] == [("n1", list(range(8)))]


def test_06_the_notebook(reader: Reader) -> None:
    """The YAML of `jupyter-notebook`: a Deployment with one GPU."""
    reader.cluster(*tiers_and(node("n1")))
    (result,) = reader.whatif("notebook", code=0)["results"]
    assert len(result["gpus"]) == 1


def test_07_a_quota_of_six_refuses_a_job_of_eight(reader: Reader) -> None:
    """`training-gpu-quota`: "requests.nvidia.com/gpu: 6" for gpu-training, beside the job that asks for 8."""
    reader.cluster(*tiers_and(node("n1"), running("batch", "n1", list(range(8)), cls="gpu-batch", priority=400)))
    (result,) = reader.whatif("quotas", "finetune", code=11)["results"]
    assert result["verdict"] == "cannot"
    assert "quota" in result["reasons"]
    (lack, *_) = result["nearest"]["missing"]
    assert "training-gpu-quota" in str(lack)
    assert "evict" not in [way["kind"] for way in result["ways_out"]]
    assert "quota" in [way["kind"] for way in result["ways_out"]]


def test_07_check_finds_it_in_the_owner(reader: Reader) -> None:
    reader.cluster(*tiers_and(node("n1"), *document("quotas"), *document("finetune")))
    assert "training-gpu-quota" in str(reader.findings())


@pytest.mark.parametrize(("replicas", "fit"), [(2, 2), (3, 2)])
def test_08_the_quota_of_notebooks(reader: Reader, replicas: int, fit: int) -> None:
    """`interactive-gpu-quota`: "requests.nvidia.com/gpu: 2"."""
    reader.cluster(*tiers_and(node("n1"), *document("quotas")))
    (deployment,) = document("notebook")
    deployment["spec"]["replicas"] = replicas
    results = reader.whatif(deployment)["results"]
    assert sum(result["verdict"] == "fits" for result in results) == fit


def test_09_pending_despite_lower_priority_pods(reader: Reader) -> None:
    """ "Training job stuck pending despite lower-priority pods running" where none of them may be evicted."""
    blocked = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "polite"},
        "value": 5000, "preemptionPolicy": "Never",
    }  # fmt: skip
    waiting = pod("train", 8, cls="polite", priority=5000, never=True)
    reader.cluster(*tiers_and(blocked, node("n1"), running("old", "n1", [0], cls="gpu-batch", priority=400), waiting))
    answer = reader.answer("explain", "default/train")
    assert answer["verdict"] == "waits"
    assert answer["preemption"]["allowed"] is False
    assert "preemptionPolicy" in answer["sentence"]


def test_10_preemption_takes_time(reader: Reader) -> None:
    """ "Preemption takes time": victims that are terminating are waited for, said once, and no other pod is evicted."""
    ending = [
        running(f"ending-{gpu}", "n1", [gpu], cls="gpu-batch", priority=400, terminating=WALL + 10) for gpu in range(8)
    ]
    other = running("other", "n2", list(range(8)), cls="gpu-batch", priority=400)
    waiting = pod("train", 8, cls="gpu-training", priority=1000, nominated="n1")
    reader.cluster(*tiers_and(node("n1"), node("n2"), *ending, other, waiting))
    answer = reader.answer("explain", "default/train")
    assert answer["verdict"] == "waits"
    assert answer["sentence"].count("of grace left") == 1
    assert "8 pods that are terminating on n1 (10 s of grace left)" in answer["sentence"]
    assert [way["kind"] for way in answer["ways_out"]] == ["wait", "add-nodes"]


def test_11_pods_without_a_class_get_the_default(reader: Reader) -> None:
    """ "Pods without `priorityClassName` get cluster default." """
    default = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "usual"},
        "value": 500, "globalDefault": True,
    }  # fmt: skip
    reader.cluster(*tiers_and(default, node("n1"), running("batch", "n1", [0], cls="gpu-batch", priority=400)))
    (result,) = reader.whatif(without_priority(pod("plain", 8)), code=10)["results"]
    assert victims(result) == ["batch"]


def test_12_no_global_default(reader: Reader) -> None:
    """ "Set no globalDefault to force explicit priority selection": GPU pods without a class are found."""
    reader.cluster(*tiers_and(node("n1"), running("plain", "n1", [0])))
    assert "default/plain" in str(reader.findings())


def test_13_notebooks_are_evicted_by_training(reader: Reader) -> None:
    """ "Accept they'll be evicted by training": before any batch job."""
    notebook = running("notebook", "n1", list(range(8)), cls="gpu-interactive", priority=200)
    batch = running("batch", "n2", list(range(8)), cls="gpu-batch", priority=400)
    reader.cluster(*tiers_and(node("n1"), node("n2"), notebook, batch))
    (result,) = reader.whatif(asks("train", 8, "gpu-training"), code=10)["results"]
    assert victims(result) == ["notebook"]


def test_14_four_tiers_are_no_finding_of_order(reader: Reader) -> None:
    """ "Four tiers is sufficient: training > serving > batch > interactive." """
    reader.cluster(*tiers_and(node("n1")))
    assert [code for code in reader.findings() if "rank" in code or "inversion" in code] == []


def test_15_the_posture_can_be_printed(reader: Reader) -> None:
    """ "Document the preemption posture: who can evict whom." """
    reader.cluster(*tiers_and(node("n1")))
    printed = [line.split(maxsplit=4) for line in reader.text("check").splitlines()]
    evicts = {words[0]: words[4] for words in printed if words and words[0] in TIERS and len(words) == 5}
    assert {upper: {lower for lower in TIERS if lower in lowers} for upper, lowers in evicts.items()} == GRAPH


def test_16_checkpoints_are_critical(reader: Reader) -> None:
    """ "Preempted training jobs must be able to resume from checkpoint": a job that never reported any is a warning, a
    Deployment that serves is none."""
    job = running("job", "n1", [0], hours=6, cls="gpu-batch", priority=400, owner="Job")
    serve = running("serve", "n1", [1], hours=6, cls="gpu-serving", priority=800, owner="ReplicaSet")
    reader.cluster(*tiers_and(node("n1"), job, serve))
    found = {finding["about"]: finding["severity"] for finding in reader.findings()["no-checkpoint"]}
    assert found == {"Job/default/owner": "warning", "ReplicaSet/default/owner": "info"}


def test_17_no_random_wins(reader: Reader) -> None:
    """ "PriorityClasses make GPU contention deterministic": in any order of the objects."""
    items = [running(f"batch-{n}", f"n{n}", list(range(8)), cls="gpu-batch", priority=400) for n in range(3)]
    items += [node(f"n{n}") for n in range(3)]
    answers = []
    for ordered in (items, items[::-1]):
        reader.cluster(*tiers_and(*ordered))
        (result,) = reader.whatif(asks("train", 8, "gpu-training"), code=10)["results"]
        answers.append((result["node"], victims(result), cost(result)))
    assert answers[0] == answers[1]
    assert answers[0][2]["work_lost_gpu_seconds"] == 8 * HOUR


def test_18_quotas_are_per_tier_and_tenant(reader: Reader) -> None:
    """ "Scoped quotas limit GPU allocation per priority tier per tenant": not other tiers, nor other tenants."""
    reader.cluster(*tiers_and(node("n1"), node("n2"), *document("quotas")))
    results = reader.whatif(asks("batch", 8, "gpu-batch"), asks("other", 8, "gpu-training", "tenant-beta"), code=0)[
        "results"
    ]
    assert [result["verdict"] for result in results] == ["fits", "fits"]
