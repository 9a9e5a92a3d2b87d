"""What answers note about the GPUs of a place: several models, and shares."""

from __future__ import annotations

from extender.ask import offline
from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.ask.asking import events
from tests.ask.whatif.asking import ask
from tests.world import JSON, PRODUCT, WALL, machine, workload

SHARED = {PRODUCT: "T4-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "4"}


def noted(answer: JSON, code: str) -> list[JSON]:
    """The warnings of one code."""
    return [warning for warning in answer["warnings"] if warning["code"] == code]


def node(name: str, model: str, gpus: int = 4) -> JSON:
    return {"apiVersion": "v1", "kind": "Node"} | machine(name, gpus, labels={PRODUCT: model})


def job(pods: int, gpus: int = 4, models: str = "one") -> JSON:
    limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    template = {
        "metadata": {"annotations": {"gpu-extender.io/gpu-models": models}},
        "spec": {"containers": [{"name": "c"} | limits]},
    }
    worker = {"replicas": pods, "template": template}
    meta = {"name": "t", "namespace": "default"}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec}


def queued() -> list[JSON]:
    """A gang of two behind the gate."""
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    spec = {"schedulingGates": [{"name": GATE}]}
    pods = [workload(f"g-{i}", 4, annotations=notes, spec=spec) for i in range(2)]
    return [{"apiVersion": "v1", "kind": "Pod"} | pod for pod in pods]


def test_whatif_names_the_models_of_a_gang_that_fits_on_no_single_one() -> None:
    nodes = [node("a", "A"), node("b", "B"), node("c", "A")]
    assert not noted(ask(nodes, [job(2)]), "several-gpu-models")
    (note,) = noted(ask(nodes, [job(3)]), "several-gpu-models")
    assert note["message"] == (
        "gang default/t is on 2 GPU models (A: 2 pods, B: 1 pod): no place was found for it on a single one"
    )
    answer = ask(nodes[:2], [job(2, models="any")])
    assert not noted(answer, "several-gpu-models")
    assert answer["groups"][0]["verdict"] == "fits"


def test_the_queue_and_explain_note_it_too() -> None:
    settings = Settings.model_validate({"queue": {"enabled": True}})
    items = [node("a", "A"), node("b", "B"), *queued()]
    queue = offline.queue(settings, events(items), WALL)
    shown = offline.explain(settings, events(items), ("default", "g-1"), WALL)
    assert len(queue["starts"]) == 1
    for answer in (queue, shown):
        (note,) = noted(answer, "several-gpu-models")
        assert note["message"].startswith("gang default/g is on 2 GPU models (A: 1 pod, B: 1 pod)")
    alike = [node("a", "A"), node("b", "A"), *queued()]
    for answer in (offline.queue(settings, events(alike), WALL), ask(alike, pods=[("default", "g-0")])):
        assert not noted(answer, "several-gpu-models")


def test_several_shares_may_be_of_one_gpu() -> None:
    shared = {"apiVersion": "v1", "kind": "Node"} | machine("s", 16, labels=SHARED)
    asked = {"apiVersion": "v1", "kind": "Pod"} | workload("p", 8)
    alone = ask([shared], [asked])
    (note,) = noted(alone, "shared-gpus")
    assert note["message"] == (
        "pod default/p asks for 8 GPUs, and gets as many shares of s (4 GPUs, 4 replicas a GPU): "
        "several of them may be of one GPU"
    )
    beside = ask([shared, node("a", "A", 8)], [asked])
    assert not noted(beside, "shared-gpus")
    assert beside["results"][0]["node"] == "a"
    linked = {"apiVersion": "v1", "kind": "Pod"} | workload("p", 8, links="required")
    refused = ask([shared], [linked])["results"][0]
    assert (refused["verdict"], refused["reasons"]) == ("cannot", {"links-shared": 1})
    one = {"apiVersion": "v1", "kind": "Pod"} | workload("p", 1)
    assert not noted(ask([shared], [one]), "shared-gpus")
    (gang,) = noted(ask([shared], [job(2, 8)]), "shared-gpus")
    assert gang["message"].startswith("pod default/t-0 asks for 8 GPUs")
    explained = offline.explain(Settings(), events([shared, asked]), ("default", "p"), WALL)
    assert noted(explained, "shared-gpus") == [note]
