"""The third text: beyond the basics, with priority classes, gangs, topology, packing and queues."""

from __future__ import annotations

import json

import pytest

from extender.cli import main
from tests.documents.typed import HOUR, Reader, node, pod, running, victims
from tests.world import DGX1V, JSON, WALL, rfc3339

PREFIX = "gpu-extender.io"
SCATTERED = [[1 if a != b and a // 2 == b // 2 else 0 for b in range(8)] for a in range(8)]
"""Eight GPUs in four bridged pairs."""


def job(name: str, pods: int, gpus: int, **notes: str) -> JSON:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {
                "metadata": {"annotations": {f"{PREFIX}/{key}": value for key, value in notes.items()}},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
            },
        },
    }


def test_39_eight_pods_and_six_gpus(reader: Reader) -> None:
    """ "If you request 8 pods with 1 GPU each, and only 6 GPUs are available, the default scheduler creates 6 pods and
    leaves 2 pending": the gang cannot start, and the answer says six of eight."""
    reader.cluster(node("n1"), running("old", "n1", [0, 1]))
    (group,) = reader.whatif(job("train", 8, 1), code=11)["groups"]
    assert (group["verdict"], group["size"]) == ("cannot", 8)
    assert "6 of 8" in reader.text("whatif", *reader.files(job("train", 8, 1)), code=11)


def test_39_each_of_the_eight_learns_it(reader: Reader) -> None:
    """The same without the queue: one of them fits, and is told that its gang does not."""
    notes = {f"{PREFIX}/gang": "train", f"{PREFIX}/gang-size": "8"}
    reader.cluster(node("n1"), running("old", "n1", [0, 1]), *(pod(f"t-{n}", 1, annotations=notes) for n in range(8)))
    answer = reader.answer("explain", "default/t-0")
    assert answer["verdict"] == "fits"
    assert "cannot run whole: 6 of 8 pods fit now" in answer["sentence"]


def test_39_six_that_sit_idle_are_found(reader: Reader) -> None:
    """ "Those 6 pods sit idle, wasting resources, waiting for siblings that might never arrive"."""
    notes = {f"{PREFIX}/gang": "train", f"{PREFIX}/gang-size": "8"}
    workers = [running(f"train-{n}", "n1", [n], hours=2, annotations=notes) for n in range(6)]
    rest = [pod(f"train-{n}", 1, annotations=notes) for n in (6, 7)]
    for waiting in rest:
        waiting["metadata"]["creationTimestamp"] = rfc3339(WALL - 2 * HOUR)
    reader.cluster(node("n1"), running("old", "n1", [6, 7]), *workers, *rest)
    assert "default/train" in str([finding for code, finding in reader.findings().items() if "gang" in code])


def test_40_all_or_nothing(reader: Reader) -> None:
    """ "Either schedule all pods in the group, or schedule none"."""
    reader.cluster(node("n1"), node("n2"))
    answer = reader.whatif(job("train", 3, 8), code=11)
    assert [result["node"] for result in answer["results"]] == [None, None, None]


@pytest.mark.parametrize("kind", ["volcano", "coscheduling", "jobset"])
def test_41_groups_of_other_projects(reader: Reader, kind: str) -> None:
    """ "Volcano, Coscheduling plugin, and the newer JobSet controller": their groups are read as gangs."""
    reader.cluster(node("n1"), node("n2"))
    if kind == "jobset":
        template = job("w", 2, 8)["spec"]
        manifests = [
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "train"},
                "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": template}}]},
            }
        ]
    else:
        version, label = {
            "volcano": ("scheduling.volcano.sh/v1beta1", ("annotations", "scheduling.k8s.io/group-name")),
            "coscheduling": ("scheduling.x-k8s.io/v1alpha1", ("labels", "scheduling.x-k8s.io/pod-group")),
        }[kind]
        members = [pod(f"train-{n}", 8, **{label[0]: {label[1]: "train"}}) for n in range(2)]  # type: ignore[arg-type]
        group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "train"}, "spec": {"minMember": 2}}
        manifests = [group, *members]
    (group_answer,) = reader.whatif(*manifests, code=0)["groups"]
    assert (group_answer["min"], group_answer["verdict"]) == (2, "fits")


def test_42_linked_gpus_of_one_node(reader: Reader) -> None:
    """ "Your distributed training job needs 8 GPUs with NVLink": not a node whose GPUs are only bridged in pairs."""
    reader.cluster(node("a-pairs", links=SCATTERED), node("b-nvswitch"))
    (result,) = reader.whatif(pod("train", 8, links="required"), code=0)["results"]
    assert result["node"] == "b-nvswitch"
    (result,) = reader.whatif(pod("small", 4, links="preferred"), code=0)["results"]
    assert result["node"] == "b-nvswitch"


def test_43_links_switches_and_numa_nodes_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """ "The scheduler understands which GPUs are connected via NVLink, which share PCIe switches, and which are on the
    same NUMA node"."""
    assert main(["topo", "catalogue:dgx1-v100", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["links"] == DGX1V
    assert {"NODE", "PIX", "PXB", "PHB", "SYS", "X"} >= {how for row in answer["pcie"] for how in row if how}
    assert len(answer["numa"]) == 8


def test_44_packing_not_spreading(reader: Reader) -> None:
    """ "The default scheduler spreads pods ... For GPUs, this is usually wrong": pods fill the node that is in use."""
    reader.cluster(node("n1"), node("n2"), running("old", "n2", [0, 1, 2, 3]))
    (result,) = reader.whatif(pod("new", 2), code=0)["results"]
    assert result["node"] == "n2"


def test_45_nodes_that_can_be_emptied(reader: Reader) -> None:
    """ "Enables autoscaling down when nodes empty out": what-if of a drain states where its pods go."""
    reader.cluster(node("n1"), node("n2"), running("a", "n1", [0, 1, 2, 3]), running("b", "n2", [0]), pod("whole", 8))
    (result,) = reader.answer("whatif", "--drain", "n2")["results"]
    assert (result["pod"]["name"], result["verdict"], result["node"]) == ("b", "fits", "n1")


def test_46_related_pods_together(reader: Reader) -> None:
    """ "Use pod affinity rules to co-locate related workloads": kube-scheduler checks them, and the answer says so."""
    term = {"labelSelector": {"matchLabels": {"app": "store"}}, "topologyKey": "kubernetes.io/hostname"}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    reader.cluster(node("n1"), node("n2"))
    worker = pod("worker", 1, spec=spec)
    assert "pod affinity" in reader.whatif(worker)["results"][0]["not_checked"]
    assert "kube-scheduler decides it: pod affinity" in reader.text("whatif", *reader.files(worker))


def test_47_replicas_of_serving_are_spread(reader: Reader) -> None:
    """ "For inference, consider anti-affinity to spread replicas for fault tolerance"."""
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {"replicas": 3, "template": job("x", 1, 1, placement="spread")["spec"]["template"]},
    }
    reader.cluster(*(node(f"n{n}") for n in range(3)))
    results = reader.whatif(deployment, code=0)["results"]
    assert len({result["node"] for result in results}) == 3


def test_48_an_order_that_is_not_who_comes_first(reader: Reader) -> None:
    """ "Whoever submits first wins, regardless of priority or fair share": a higher priority comes first."""
    gate = {"schedulingGates": [{"name": f"{PREFIX}/queue"}]}
    low, high = pod("early", 8, priority=1, spec=gate), pod("late", 8, priority=100, spec=gate)
    early, late = ({"creationTimestamp": f"2027-01-15T0{hour}:00:00Z"} for hour in (6, 7))
    low["metadata"] |= early
    high["metadata"] |= late
    reader.cluster(node("n1"), low, high)
    answer = reader.answer("queue")
    assert [start["gang"] for start in answer["starts"]] == ["default/late"]
    assert [waits["gang"] for waits in answer["waiting"]] == ["default/early"]


def test_three_tiers(reader: Reader) -> None:
    """ "Critical (production inference), normal (scheduled training), and scavenger (batch jobs that tolerate
    interruption)": the scavenger is evicted first."""
    reader.cluster(
        node("n1"),
        node("n2"),
        running("normal", "n1", list(range(8)), priority=100),
        running("scavenger", "n2", list(range(8)), priority=-10),
    )
    (result,) = reader.whatif(pod("critical", 1, priority=1000), code=10)["results"]
    assert victims(result) == ["scavenger"]
