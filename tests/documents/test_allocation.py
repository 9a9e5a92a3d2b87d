"""The fourth text: AI resource allocation, with Volcano, bin-packing, a priority hierarchy and racks."""

from __future__ import annotations

import pytest

from tests.documents.typed import YAML, Reader, document, node, pod, running, victims, without_priority
from tests.world import JSON

RACK = "topology.kubernetes.io/rack"
VALUES = {"inference-critical": 100000, "training-standard": 10000, "notebook-dev": 1000}
ALL = list(range(8))


def asks(name: str, gpus: int, cls: str) -> JSON:
    return without_priority(pod(name, gpus, cls=cls))


def holds(name: str, on: str, gpus: list[int], cls: str) -> JSON:
    return running(name, on, gpus, cls=cls, priority=VALUES[cls])


def diagram() -> list[JSON]:
    """The drawing of four nodes: two full of training, inference on four GPUs, notebooks on two."""
    return [
        *document("hierarchy"),
        *(node(f"node-{n}") for n in range(1, 5)),
        holds("job-a-0", "node-1", ALL, "training-standard"),
        holds("job-a-1", "node-2", ALL, "training-standard"),
        *(holds(f"inference-{gpu}", "node-3", [gpu], "inference-critical") for gpu in range(4)),
        *(holds(f"notebook-{gpu}", "node-4", [gpu], "notebook-dev") for gpu in range(2)),
    ]


@pytest.mark.parametrize(("nodes", "verdict"), [(4, "fits"), (3, "cannot")])
def test_49_all_four_workers_or_none(reader: Reader, nodes: int, verdict: str) -> None:
    """ "All 4 workers (32 GPUs) must be schedulable simultaneously": with four nodes they are."""
    reader.cluster(*(node(f"n{n}") for n in range(nodes)))
    (group,) = reader.whatif("volcano")["groups"]
    assert (group["size"], group["min"], group["verdict"]) == (4, 4, verdict)


def test_50_a_class_of_the_group_that_does_not_exist(reader: Reader) -> None:
    """The PodGroup names the class `training`, which the text never makes."""
    reader.cluster(*document("hierarchy"), node("n1"), *document("volcano"))
    assert "training" in str([finding for code, finding in reader.findings().items() if "class" in code])


def test_51_the_volcano_job(reader: Reader) -> None:
    """The YAML of `distributed-training`: four workers with eight GPUs each, and a scheduler that does not ask us."""
    reader.cluster(*(node(f"n{n}") for n in range(4)))
    answer = reader.whatif("volcano", code=0)
    assert [len(result["gpus"]) for result in answer["results"]] == [8, 8, 8, 8]
    assert "volcano" in str(answer["warnings"])


def test_52_twenty_four_of_thirty_two(reader: Reader) -> None:
    """ "If only 24 GPUs are available, the job waits rather than partially starting"."""
    reader.cluster(*(node(f"n{n}") for n in range(4)), running("old", "n3", [0]))
    answer = reader.whatif("volcano", code=11)
    assert [result["node"] for result in answer["results"]] == [None] * 4
    assert "3 of 4" in reader.text("whatif", *reader.files("volcano"), code=11)


def test_53_whole_nodes_stay_free(reader: Reader) -> None:
    """ "Packs GPU workloads onto fewer nodes — frees up entire nodes for large multi-GPU jobs"."""
    reader.cluster(node("n1"), node("n2"), node("n3"))
    results = reader.whatif(*(pod(f"p{n}", 2) for n in range(8)), code=0)["results"]
    assert len({result["node"] for result in results}) == 2


def test_54_the_scheduler_configuration(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """The YAML with `MostAllocated`: what it lacks to ask us is named."""
    from extender.cli import main

    ended = main(["check", "--scheduler-config", str(YAML / "scheduler.yaml")])
    printed = capsys.readouterr().out
    assert ended in (0, 10), printed
    assert "extenders" in printed


def test_55_the_hierarchy(reader: Reader) -> None:
    """ "Inference > training > notebooks"."""
    reader.cluster(*document("hierarchy"), node("n1"))
    classes = {cls["name"]: cls for cls in reader.answer("check")["classes"]}
    assert {name: classes[name]["priority"] for name in VALUES} == VALUES
    assert classes["inference-critical"]["evicts"] == ["training-standard", "notebook-dev"]
    assert classes["training-standard"]["evicts"] == classes["notebook-dev"]["evicts"] == []


def test_56_training_queues_without_preempting(reader: Reader) -> None:
    """ "`preemptionPolicy: Never` for training — queue instead of disrupting other jobs"."""
    reader.cluster(*document("hierarchy"), node("n1"), holds("notebook", "n1", ALL, "notebook-dev"))
    (result,) = reader.whatif(asks("train", 8, "training-standard"), code=11)["results"]
    assert victims(result) == []


def test_57_the_drawing(reader: Reader) -> None:
    """Inference goes to node 3, where inference is; eight GPUs take the notebooks of node 4."""
    reader.cluster(*diagram())
    (result,) = reader.whatif(asks("more", 2, "inference-critical"), code=0)["results"]
    assert result["node"] == "node-3"
    (result,) = reader.whatif(asks("large", 8, "inference-critical"), code=10)["results"]
    assert (result["node"], victims(result)) == ("node-4", ["notebook-0", "notebook-1"])


def test_58_a_gang_that_is_stuck(reader: Reader) -> None:
    """ "Not enough GPUs available simultaneously ... Consider preempting lower-priority workloads or adding nodes"."""
    reader.cluster(*diagram())
    manifests = document("volcano")
    manifests[1]["spec"]["tasks"][0]["template"]["spec"]["priorityClassName"] = "inference-critical"
    manifests[0]["spec"]["priorityClassName"] = "inference-critical"
    (group,) = reader.whatif(*manifests)["groups"]
    assert {way["kind"] for way in group["ways_out"]} & {"evict", "add-nodes"}


def test_59_the_label_of_racks(reader: Reader) -> None:
    """ "Label nodes with topology.kubernetes.io/rack": a gang of two stays in one rack, where one has room."""
    racks = ["r1", "r2", "r2"]
    nodes = [node(f"n{n}", labels={RACK: rack}) for n, rack in enumerate(racks)]
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2", "gpu-extender.io/domain": "required:rack"}
    reader.cluster(*nodes)
    (group,) = reader.whatif(*(pod(f"g-{n}", 8, annotations=notes) for n in range(2)), code=0)["groups"]
    assert group["domain"] == {"level": RACK, "value": "r2"}


def test_60_spread_constraints(reader: Reader) -> None:
    """ "Use topology spread constraints to co-locate training pods": where they are not checked, the text says so."""
    constraint = {"maxSkew": 1, "topologyKey": RACK, "whenUnsatisfiable": "DoNotSchedule"}
    constraint["labelSelector"] = {"matchLabels": {"app": "train"}}
    reader.cluster(node("n1", labels={RACK: "r1"}))
    asked = pod("train", 1, labels={"app": "train"}, spec={"topologySpreadConstraints": [constraint]})
    assert "spread constraints" in reader.text("whatif", *reader.files(asked))


def test_61_right_size(reader: Reader) -> None:
    """ "Right-size GPU requests": capacity advises where requests strand GPUs."""
    held = [running(f"p{n}", f"n{n}", [0], cpu="60") for n in range(3)]
    reader.cluster(*(node(f"n{n}") for n in range(3)), *held, pod("waits", 4, cpu="16"))
    answer = reader.answer("explain", "default/waits")
    assert answer["verdict"] == "waits"
    assert "cpu" in str(answer).lower()


def test_62_inference_always_gets_gpus(reader: Reader) -> None:
    """ "Inference always gets GPUs, training queues"."""
    full = [holds(f"train-{n}", f"n{n}", ALL, "training-standard") for n in range(2)]
    reader.cluster(*document("hierarchy"), node("n0"), node("n1"), *full)
    (result,) = reader.whatif(asks("serve", 4, "inference-critical"), code=10)["results"]
    assert len(victims(result)) == 1


def test_63_training_is_not_scattered(reader: Reader) -> None:
    """ "Training pods scattered across racks — slow NCCL": a preferred rack is kept where it has room."""
    nodes = [node(f"n{n}", labels={RACK: f"r{n % 2}"}) for n in range(4)]
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2", "gpu-extender.io/domain": "preferred:rack"}
    reader.cluster(*nodes)
    answer = reader.whatif(*(pod(f"g-{n}", 8, annotations=notes) for n in range(2)), code=0)
    assert len({int(result["node"][1:]) % 2 for result in answer["results"]}) == 1
