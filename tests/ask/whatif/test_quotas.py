"""What-if, explain and check beside ResourceQuotas: pods that the API server would refuse."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from extender.ask import checks, frozen, offline
from extender.cli import main
from extender.objects import limits, records
from extender.objects.quotas import QuotaUse
from extender.objects.resources import LARGEST
from extender.settings import Settings
from tests.ask.whatif.asking import ask, kinds, snapshot
from tests.objects import quota_cases
from tests.oracles import quotas as oracle
from tests.world import GPU, JSON, WALL, World, machine, pairs, workload
from tests.yaml_text import objects_in

DOCUMENT = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: gpu-training
value: 1000
globalDefault: false
preemptionPolicy: PreemptLowerPriority
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: gpu-interactive
value: 200
globalDefault: false
preemptionPolicy: Never
---
apiVersion: v1
kind: ResourceQuota
metadata:
  name: training-gpu-quota
  namespace: tenant-alpha
spec:
  hard:
    requests.nvidia.com/gpu: "6"
  scopeSelector:
    matchExpressions:
    - scopeName: PriorityClass
      operator: In
      values: ["gpu-training"]
---
apiVersion: v1
kind: ResourceQuota
metadata:
  name: interactive-gpu-quota
  namespace: tenant-alpha
spec:
  hard:
    requests.nvidia.com/gpu: "2"
  scopeSelector:
    matchExpressions:
    - scopeName: PriorityClass
      operator: In
      values: ["gpu-interactive"]
"""
"""Scoped quotas by priority, as the first document that this project grew from has them."""
WORK = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: llm-finetune
  namespace: tenant-alpha
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          priorityClassName: gpu-training
          containers:
          - name: trainer
            resources:
              limits:
                nvidia.com/gpu: 8
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: jupyter-notebook
  namespace: tenant-alpha
spec:
  template:
    spec:
      priorityClassName: gpu-interactive
      containers:
      - name: jupyter
        resources:
          limits:
            nvidia.com/gpu: 1
"""


def read(text: str) -> list[JSON]:
    return json.loads(json.dumps(objects_in(text)))  # type: ignore[no-any-return]


def node(name: str = "n1", gpus: int = 8) -> JSON:
    return {"apiVersion": "v1", "kind": "Node"} | machine(name, gpus, links=pairs(gpus))


def pod(name: str, gpus: int, namespace: str = "a", **facts: Any) -> JSON:
    return {"apiVersion": "v1", "kind": "Pod"} | workload(name, gpus, namespace=namespace, **facts)


def quota(hard: JSON, name: str = "q", namespace: str = "a", **more: Any) -> JSON:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}} | more


def job(name: str, pods: int, gpus: int, namespace: str = "a") -> JSON:
    spec = {"parallelism": pods, "completions": pods, "template": {"spec": workload("t", gpus)["spec"]}}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


# ---- what-if


def test_the_scoped_quota_of_the_document_refuses_its_job() -> None:
    """6 GPUs are allowed for the class, the job asks for 8. A pod of lower priority could be evicted: it never is."""
    victim = pod("low", 8, "default", node="n1", phase="Running", start=WALL - 60)
    job, notebook = read(WORK)
    answer = ask([node(), *read(DOCUMENT), victim], [job])
    (result,), (group,) = answer["results"], answer["groups"]
    assert (result["verdict"], result["reasons"], result["victims"]) == ("cannot", {"quota": 1}, [])
    assert result["nearest"] == {
        "node": None,
        "missing": [
            {
                "what": "requests.nvidia.com/gpu of ResourceQuota tenant-alpha/training-gpu-quota",
                "have": 6, "need": 8, "unit": "GPUs", "quota": "tenant-alpha/training-gpu-quota",
                "resource": "requests.nvidia.com/gpu", "used": 0, "hard": 6, "asked": 8,
            }
        ],
    }  # fmt: skip
    assert set(kinds(result)) == set(kinds(group)) == {"quota"}
    assert [one["spec"]["action"] for one in result["ways_out"]] == ["raise", "smaller"]
    assert [one["spec"]["fits"] for one in result["ways_out"]] == [False, False]  # the node is full
    assert result["ways_out"][0]["spec"]["changes"] == [
        {"quota": "tenant-alpha/training-gpu-quota", "resource": "requests.nvidia.com/gpu", "from": 6, "to": 8}
    ]
    # The notebook is within the other quota, whatever the training uses.
    fits = ask([node(), *read(DOCUMENT)], [job, notebook])
    assert [one["verdict"] for one in fits["results"]] == ["cannot", "fits"]


def test_each_way_out_passes_where_it_is_applied() -> None:
    """Of a class that no quota counts the job may be, and of none whose quota refuses it too."""
    (job, _), objects = read(WORK), read(DOCUMENT)
    batch = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch"}, "value": 1}
    objects.append(batch)
    (result,) = ask([node(), *objects], [job])["results"]
    assert [one["spec"]["action"] for one in result["ways_out"]] == ["raise", "smaller", "class"]
    assert all(one["spec"]["fits"] for one in result["ways_out"])
    for way in result["ways_out"]:
        again, quotas = json.loads(json.dumps(job)), json.loads(json.dumps(objects))
        changed = again["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        match way["spec"]["action"]:
            case "raise":
                quotas[2]["spec"]["hard"][f"requests.{GPU}"] = str(way["spec"]["changes"][0]["to"])
            case "smaller":
                changed["containers"][0]["resources"]["limits"][GPU] = way["spec"]["is"]
            case "class":
                changed["priorityClassName"] = way["spec"]["priority_class"]
        (after,) = ask([node(), *quotas], [again])["results"]
        assert after["verdict"] == "fits", way


def test_pods_of_one_question_add_up() -> None:
    """Of eight pods of a Deployment six pass; the others are refused, and what helps names the six."""
    template = {"spec": workload("t", 1)["spec"]}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "a"}}
    owner["spec"] = {"replicas": 8, "template": template}
    answer = ask([node(), quota({f"requests.{GPU}": "6"})], [owner])
    assert [one["verdict"] for one in answer["results"]] == ["fits"] * 6 + ["cannot"] * 2
    last = answer["results"][-1]
    assert (last["nearest"]["missing"][0]["used"], last["nearest"]["missing"][0]["asked"]) == (6, 1)
    fewer = next(one["spec"] for one in last["ways_out"] if one["spec"]["action"] == "fewer-pods")
    assert (fewer["pods"], fewer["was"]) == (6, 8)


def test_a_gang_needs_all_of_its_pods() -> None:
    answer = ask([node(), quota({f"requests.{GPU}": "6"})], [job("j", 8, 1)])
    (group,) = answer["groups"]
    assert (group["verdict"], group["victims"]) == ("cannot", [])
    assert group["text"] == f"ResourceQuota a/q allows 6 of requests.{GPU} (0 used, 8 more asked for)"
    assert all(one["reasons"] == {"quota": 1} for one in answer["results"])
    assert [(one["spec"]["action"], one["spec"]["fits"]) for one in group["ways_out"]] == [
        ("raise", True), ("fewer-pods", True)
    ]  # fmt: skip
    assert group["ways_out"][1]["spec"] == {"action": "fewer-pods", "pods": 6, "was": 8, "fits": True}
    # The six that the API server creates use the quota: a pod after them is refused.
    both = ask([node(), quota({f"requests.{GPU}": "6"})], [job("j", 8, 1), pod("p", 1)])
    assert [one["verdict"] for one in both["results"]][-1] == "cannot"


def test_a_pod_that_exists_has_passed_admission() -> None:
    there = pod("p", 4)
    items = [node(), there, quota({f"requests.{GPU}": "2"})]
    assert ask(items, pods=[("a", "p")])["results"][0]["verdict"] == "fits"
    assert ask(items, [there])["results"][0]["verdict"] == "fits"
    (other,) = ask(items, [pod("q", 1)])["results"]
    assert (other["verdict"], other["nearest"]["missing"][0]["used"]) == ("cannot", 4)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({}, "cannot"),  # a waiting pod counts
        ({"node": "n1", "phase": "Running"}, "cannot"),
        ({"spec": {"schedulingGates": [{"name": "x"}]}}, "cannot"),
        ({"node": "n1", "phase": "Succeeded"}, "fits"),
        ({"node": "n1", "phase": "Failed"}, "fits"),
        ({"namespace": "b"}, "fits"),
    ],
)
def test_which_pods_use_a_quota(facts: JSON, verdict: str) -> None:
    items = [node(), pod("other", 2, **facts), quota({f"requests.{GPU}": "3"})]
    assert ask(items, [pod("p", 2)])["results"][0]["verdict"] == verdict


def test_the_status_counts_where_the_input_lacks_the_pods() -> None:
    used = quota({f"requests.{GPU}": "6"}, status={"used": {f"requests.{GPU}": "5"}})
    (result,) = ask([node(), used], [pod("p", 2)])["results"]
    assert (result["verdict"], result["nearest"]["missing"][0]["used"]) == ("cannot", 5)


def test_a_quota_of_the_question_counts_too() -> None:
    bound = quota({f"requests.{GPU}": "1"})
    answer = ask([node()], [bound, pod("p", 2)])
    assert [one["verdict"] for one in answer["results"]] == ["cannot"]
    assert not any(one["code"] == "ignored" for one in answer["warnings"])
    listed = {"apiVersion": "v1", "kind": "List", "items": [bound, pod("p", 2)]}
    assert ask([node()], [listed])["results"][0]["reasons"] == {"quota": 1}


def test_what_a_quota_wants_stated_is_a_warning() -> None:
    """A LimitRange may set the defaults, and none is read."""
    answer = ask([node(), quota({"limits.cpu": "10"})], [pod("p", 2)])
    assert answer["results"][0]["verdict"] == "fits"
    (warning,) = [one for one in answer["warnings"] if one["code"] == "quota-unstated"]
    assert "ResourceQuota a/q wants limits.cpu stated by every container of pod a/p" in warning["message"]


def test_cpu_memory_and_pods_refuse_as_gpus_do() -> None:
    for hard, unit in (
        ({"requests.cpu": "1500m"}, "millicores"),
        ({"memory": "1Gi"}, "bytes"),
        ({"pods": "1"}, "pods"),
    ):
        (first, second) = ask([node(), quota(hard)], [pod("p", 1), pod("r", 1)])["results"]
        assert (first["verdict"], second["verdict"]) == ("fits", "cannot")
        assert second["nearest"]["missing"][0]["unit"] == unit
        assert [one["spec"]["action"] for one in second["ways_out"]] == ["raise"]


@pytest.mark.parametrize("seed", range(25))
def test_random_questions_are_refused_as_one_after_the_other(seed: int) -> None:
    """Machines that hold everything: what does not fit is refused, and by the quotas that the plain form names."""
    chance = random.Random(seed)
    quotas = [quota_cases.quota(chance, f"q{at}", "a") for at in range(chance.randint(1, 3))]
    classes = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        for value, name in enumerate(quota_cases.CLASSES, 1)
    ]
    there = [quota_cases.pod(chance, f"t{at}", "a") for at in range(chance.randint(0, 3))]
    asked = [one for at in range(8) if _gpus(one := quota_cases.pod(chance, f"p{at}", "a"))]
    for one in (*there, *asked):  # what other rules judge is no question here
        one["spec"].pop("affinity", None)
        one["spec"].pop("schedulingGates", None)
    nodes = [node(f"n{at}", 8) for at in range(12)]
    for one in nodes:
        one["status"]["allocatable"] |= {"example.com/fpga": "100", "ephemeral-storage": "1Ti"}
    answer = ask([*nodes, *classes, *quotas, *there], asked)
    counted = list(there)
    for one in asked:
        name = one["metadata"]["name"]
        result = next(found for found in answer["results"] if found["pod"]["name"] == name)
        exceeded = oracle.exceeded(quotas, counted, one)
        assert (result["verdict"] == "cannot") == bool(exceeded), name
        if exceeded:
            assert {(row["quota"], row["resource"]) for row in result["nearest"]["missing"]} == {
                (f"a/{quota}", resource) for quota, resource in exceeded
            }
            assert set(kinds(result)) == {"quota"}
        else:
            counted.append(one)


def _gpus(item: JSON) -> bool:
    return any(GPU in one["resources"]["limits"] for one in item["spec"]["containers"])


def test_a_quota_comes_and_is_gone(world: World) -> None:
    world.set("ResourceQuota", quota({"pods": "1"}))
    assert list(world.cluster.quotas) == [("a", "q")]
    world.drop("ResourceQuota", quota({"pods": "1"}))
    assert not world.cluster.quotas


def test_the_text_names_the_quota(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, work = tmp_path / "cluster.json", tmp_path / "work.yaml"
    cluster.write_text(json.dumps({"kind": "List", "items": [node(), *read(DOCUMENT)]}))
    work.write_text(WORK)
    assert main(["whatif", "--cluster", str(cluster), "-f", str(work)]) == 11
    out = " ".join(capsys.readouterr().out.split())
    assert "ResourceQuota tenant-alpha/training-gpu-quota allows 6 of requests.nvidia.com/gpu" in out
    assert (
        "way out 1: raise requests.nvidia.com/gpu of ResourceQuota tenant-alpha/training-gpu-quota from 6 to 8" in out
    )
    assert "eviction" not in out
    single = tmp_path / "pod.json"
    single.write_text(json.dumps(pod("p", 8, "tenant-alpha", spec={"priorityClassName": "gpu-training"})))
    assert main(["whatif", "--cluster", str(cluster), "-f", str(single)]) == 11
    assert "cannot be created: ResourceQuota tenant-alpha/training-gpu-quota allows 6" in capsys.readouterr().out


# ---- explain


def of_job(name: str, gpus: int, **facts: Any) -> JSON:
    made = pod(name, gpus, **facts)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made


@pytest.mark.parametrize("gated", [True, False])
def test_explain_names_the_quota_that_keeps_pods_of_the_gang_away(gated: bool) -> None:
    """Two of four pods exist. The victim on the node would make room for one: it is not proposed."""
    spec = {"schedulingGates": [{"name": "gpu-extender.io/queue"}]} if gated else {}
    there = [of_job(f"j-{at}", 2, spec=spec, priority=5) for at in range(2)]
    victim = pod("low", 8, "default", node="n1", phase="Running", start=WALL - 60)
    items = [node(), victim, job("j", 4, 2), *there]
    before = _explained(items)
    assert "ResourceQuota" not in before["sentence"]
    shown = _explained([*items, quota({f"requests.{GPU}": "5"})])
    wanted = f"2 pods of its gang do not exist and cannot all be created: ResourceQuota a/q allows 5 of requests.{GPU}"
    assert wanted in shown["sentence"]
    assert [one["code"] for one in shown["warnings"]] == ["quota"]
    assert "evict" not in [one["kind"] for one in shown["ways_out"]]
    assert "evict" not in shown["sentence"]
    way = next(one for one in shown["ways_out"] if one["kind"] == "quota")
    assert way["spec"]["changes"] == [{"quota": "a/q", "resource": f"requests.{GPU}", "from": 5, "to": 8}]
    # Where the quota has room for the rest, nothing is said of it.
    assert _explained([*items, quota({f"requests.{GPU}": "8"})]) == before


def test_a_quota_is_no_reason_of_a_pod_that_exists() -> None:
    items = [node(), pod("j-0", 2), quota({f"requests.{GPU}": "1"})]
    assert _explained(items)["verdict"] == "fits"
    assert not _explained(items)["warnings"]


def _explained(items: list[JSON]) -> JSON:
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()
    return offline.explain(Settings(), frozen.parse(raw, frozenset({GPU})), ("a", "j-0"), WALL)


# ---- check


def test_check_finds_the_owner_before_a_pod_exists() -> None:
    items = [node(), *read(DOCUMENT), *read(WORK)]
    (found,) = _owners(items)
    assert (found["severity"], found["code"]) == ("error", "owner-exceeds-quota")
    assert found["about"] == "PyTorchJob/tenant-alpha/llm-finetune"
    assert found["facts"] == {"asked": 8, "used": 0, "hard": 6, "pods": 1}


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([job("j", 4, 2)], "owner-exceeds-quota"),
        ([job("j", 3, 2)], None),
        ([job("j", 3, 2), pod("other", 2)], "owner-waits-for-quota"),
        ([job("j", 3, 2), *(of_job(f"j-{at}", 2) for at in range(3))], None),  # all of them exist
        ([job("j", 3, 2), of_job("j-0", 2), pod("other", 2)], "owner-waits-for-quota"),
        ([job("j", 3, 2) | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}], None),
        ([job("j", 4, 2) | {"status": {"succeeded": 1}}], None),
        ([job("j", 4, 2, "b")], None),
    ],
)
def test_owners_beside_a_quota(items: list[JSON], code: str | None) -> None:
    found = _owners([node(), quota({f"requests.{GPU}": "6"}), *items])
    assert [one["code"] for one in found] == ([code] if code else [])


def test_a_deployment_is_judged_with_the_pods_of_its_replica_set() -> None:
    def owned(item: JSON, kind: str, name: str) -> JSON:
        references = [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": True}]
        return item | {"metadata": item["metadata"] | {"ownerReferences": references}}

    def replicas(kind: str, name: str) -> JSON:
        spec = {"replicas": 3, "template": {"spec": workload("t", 2)["spec"]}}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "a"}, "spec": spec}

    below = owned(replicas("ReplicaSet", "d-1"), "Deployment", "d")
    pods = [owned(pod(f"d-1-{at}", 2), "ReplicaSet", "d-1") for at in range(3)]
    items = [node(), quota({f"requests.{GPU}": "6"}), replicas("Deployment", "d"), below]
    assert _owners([*items, *pods]) == []
    (found,) = _owners([*items, *pods[:2], pod("other", 1)])
    assert (found["code"], found["about"]) == ("owner-waits-for-quota", "Deployment/a/d")


def test_pods_beyond_a_quota_are_a_finding() -> None:
    items = [node(), quota({f"requests.{GPU}": "3"}), pod("p", 2), pod("r", 2)]
    answer = checks.answer(Settings(), snapshot(items).cluster, items, WALL)
    (found,) = [one for one in answer["findings"] if one["code"] == "quota-exceeded"]
    assert (found["severity"], found["facts"]) == ("warning", {"used": 4, "hard": 3})


def test_sums_beyond_every_json_integer_are_answered() -> None:
    """Each amount is legal, and the API server accepts it; three of them exceed 64 bits."""
    huge = [pod(name, 0) for name in "prs"]
    for one in huge:
        one["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8E", "memory": "8E"}}
    items = [node(), quota({"cpu": str(LARGEST), "memory": "1"}), *huge]
    answer = checks.answer(Settings(), snapshot(items).cluster, items, WALL)
    assert orjson.loads(orjson.dumps(answer))["summary"] == answer["summary"]
    assert {one["code"] for one in answer["findings"]} == {"quota-too-small"}
    use = QuotaUse(map(limits.resource_quota, items[1:2]))
    ours = [records.pod(one, frozenset({GPU})) for one in huge]
    use.add(ours[0])
    (excess, *_) = use.excess(ours)
    assert excess.asked == excess.needed == LARGEST


def _owners(items: list[JSON]) -> list[JSON]:
    answer = checks.answer(Settings(), snapshot(items).cluster, items, WALL)
    return [one for one in answer["findings"] if one["code"].startswith("owner-")]
