"""What-if: against trying everything on a thousand random clusters (LONG_WHATIF: so many), and by the command line."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extender import frozen, whatif
from extender.cli import main
from extender.settings import Resource, Settings
from tests.oracles.whatif import Brute
from tests.world import DGX1V, GPU, JSON, WALL, machine, pairs, rfc3339, workload

ARBITRARY = Settings(resources=(Resource(name=GPU, device_plugin="arbitrary"),))
CASES = int(os.environ.get("LONG_WHATIF", "1000"))
FULL = [[2 if a != b else 0 for b in range(4)] for a in range(4)]


def random_cluster(rng: random.Random) -> tuple[list[JSON], dict[str, list[list[int]] | None]]:
    items: list[JSON] = []
    links: dict[str, list[list[int]] | None] = {}
    starts = rng.sample(range(1, 20_000), 60)
    for n in range(rng.randint(1, 4)):
        name = f"n{n}"
        gpus, graph = rng.choice([(4, pairs(4)), (8, DGX1V), (4, None), (6, pairs(6)), (4, FULL)])
        links[name] = graph
        node = machine(
            name, gpus, links=graph, cpu="16", memory="64Gi", pods=str(rng.choice([5, 110])),
            labels={"zone": rng.choice("ab")}, unschedulable=rng.random() < 0.06,
        )  # fmt: skip
        node["spec"]["taints"] = [{"key": "team", "effect": "NoSchedule"}] if rng.random() < 0.15 else []
        items.append({"apiVersion": "v1", "kind": "Node"} | node)
        free = list(range(gpus))
        rng.shuffle(free)
        cpu, memory = 16, 64
        for i in range(rng.randint(2, 5)):
            takes = min(len(free), rng.choice([0, 1, 1, 2, 2, 3]))
            eats, fills = min(cpu, rng.randint(0, 5)), min(memory, rng.randint(0, 20))
            cpu, memory = cpu - eats, memory - fills
            held = [free.pop() for _ in range(takes)]
            pod = random_pod(rng, f"{name}-{i}", takes, eats, fills, name, held, WALL - starts.pop())
            items.append({"apiVersion": "v1", "kind": "Pod"} | pod)
    for app in "ab":
        if rng.random() < 0.6:
            status: JSON = {"disruptionsAllowed": rng.randint(0, 2)}
            if rng.random() < 0.3:
                status["disruptedPods"] = {"n0-1": rfc3339(WALL - 5)}
            selector: JSON = {"matchLabels": {"app": app}}
            if rng.random() < 0.3:
                selector = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]}
            meta = {"name": f"budget-{app}", "namespace": "default"}
            budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta}
            items.append(budget | {"spec": {"selector": selector}, "status": status})
    for api in ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"):
        if rng.random() < 0.7:
            meta = {"name": "pg", "namespace": "default"}
            items.append(
                {"apiVersion": api, "kind": "PodGroup", "metadata": meta, "spec": {"minMember": rng.randint(1, 3)}}
            )
    if rng.random() < 0.7:
        meta = {"name": "job", "namespace": "default"}
        job: JSON = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": 2}}
        job["spec"]["parallelism"] = rng.randint(1, 3)
        if rng.random() < 0.4:  # one Job of a JobSet
            owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "controller": True}
            meta["ownerReferences"] = [owner]
            if rng.random() < 0.7:
                parts = [{"replicas": rng.randint(1, 2), "template": {"spec": {"parallelism": rng.randint(1, 2)}}}]
                js = {"apiVersion": owner["apiVersion"], "kind": "JobSet", "metadata": {"name": "js"}}
                items.append(js | {"spec": {"replicatedJobs": parts}})
                js["metadata"] |= {"namespace": "default"}  # type: ignore[operator]
        items.append(job)
    rng.shuffle(items)
    return items, links


def random_pod(
    rng: random.Random, name: str, gpus: int, cpu: int, memory: int, node: str, held: list[int], start: float
) -> JSON:
    labels: dict[str, str] = {}
    notes: dict[str, str] = {}
    owner = ""
    if rng.random() < 0.5:
        labels["app"] = rng.choice("ab")
    match rng.randint(0, 12):
        case 0 | 1:
            labels["gpu-extender.io/gang"] = rng.choice("gh")
            if labels["gpu-extender.io/gang"] == "g":
                labels["gpu-extender.io/gang-min"] = "2"
        case 2:
            labels["scheduling.x-k8s.io/pod-group"] = "pg"
        case 3:
            notes["scheduling.k8s.io/group-name"] = "pg"
        case 4 | 5:
            owner = "Job"
        case 6:
            labels["leaderworkerset.sigs.k8s.io/name"] = "lws"
            notes["leaderworkerset.sigs.k8s.io/size"] = "3"
        case 7:
            owner = rng.choice(["DaemonSet", "Node", "ReplicaSet"])
    if rng.random() < 0.3:
        notes["gpu-extender.io/last-checkpoint"] = rfc3339(WALL - rng.randint(1, 25_000))
    if rng.random() < 0.2:
        notes["gpu-extender.io/checkpoint-interval"] = str(rng.randint(1, 9_000))
    if rng.random() < 0.3:
        notes["gpu-extender.io/restart-seconds"] = str(rng.randint(0, 3000))
    if rng.random() < 0.1:
        notes["gpu-extender.io/protect-for"] = f"{rng.randint(1, 300)}m"
    if held and rng.random() < 0.2:
        notes["gpu-extender.io/gpus"], held = ",".join(map(str, sorted(held))), []
    pod = workload(
        name, gpus, cpu=str(cpu), memory=f"{memory}Gi", node=node, phase="Running", start=start, held=held,
        labels=labels, annotations=notes, owner=owner, grace=rng.choice([0, 30, 60]),
        priority=rng.choice([0, 1, 1, 1, 4, 7]), terminating=WALL + 20 if rng.random() < 0.08 else None,
    )  # fmt: skip
    if rng.random() < 0.2:
        pod["spec"]["nodeSelector"] = {"zone": rng.choice("ab")}
    if owner == "Job":
        pod["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "name": "job"}
    return pod


def random_preemptor(rng: random.Random) -> JSON:
    spec: JSON = {}
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": "a"}
    elif rng.random() < 0.15:
        tests = [{"key": "zone", "operator": "In", "values": ["b", "c"]}]
        terms = {"nodeSelectorTerms": [{"matchExpressions": tests}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if rng.random() < 0.3:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    return workload(
        "p", rng.choice([1, 2, 2, 3, 4, 4, 6]), cpu=str(rng.randint(1, 9)), memory=f"{rng.randint(1, 40)}Gi",
        priority=rng.choice([2, 5, 5, 5]), links=rng.choice(["required", "required", "preferred", "ignore"]),
        never=rng.random() < 0.05, spec=spec,
    )  # fmt: skip


def decider_of(items: list[JSON], settings: Settings = ARBITRARY) -> Any:
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()
    return whatif.frozen(settings, frozen.parse(raw, frozenset(one.name for one in settings.resources)))


def asked(items: list[JSON], pod: JSON, settings: Settings = ARBITRARY) -> JSON:
    decider = decider_of(items, settings)
    pods = frozen.pods(json.dumps({"kind": "Pod"} | pod).encode(), decider.cluster.gpu_names, "test")
    answer: JSON = whatif.answer(decider, pods, WALL)
    return answer


def told(cost: list[JSON]) -> tuple[int, ...]:
    """All terms. No highest priority, where all victims go anyway, is the lowest; what was not priced counts as 0."""
    unknown = {"highest_victim_priority": -(2**31), "leftover_fragmentation": 0}
    return tuple(unknown[term["term"]] if term["value"] is None else term["value"] for term in cost)


def test_against_trying_everything() -> None:
    """Verdict, victims, all eight terms, runner-up and warnings are those of brute force, on random clusters."""
    rng = random.Random(11)
    seen: Counter[str] = Counter()
    for _ in range(CASES):
        items, links = random_cluster(rng)
        pod = random_preemptor(rng)
        answer = asked(items, pod)
        (result,) = answer["results"]
        brute = Brute(items, links, int(WALL))
        verdict, found = brute.verdict(pod)
        assert result["verdict"] == verdict
        seen[verdict] += 1
        assert whatif.exit_code(answer) == {"fits": 0, "evict": 10, "cannot": 11}[verdict]
        codes = Counter(warning["code"] for warning in answer["warnings"])
        assert codes.keys() <= {
            "never-preempts",
            "links-only",
            "terminating",
            "gang-minimum-unknown",
            "not-all-checked",
        }
        assert codes["never-preempts"] == (verdict != "fits" and pod["spec"]["preemptionPolicy"] == "Never")
        nodes = {node["metadata"]["name"]: node for node in brute.nodes}
        if verdict == "cannot":
            assert result["node"] is None
            assert sum(result["reasons"].values()) == len(nodes)
            assert codes["gang-minimum-unknown"] == 0
            continue
        victims = tuple(
            one for one in brute.pods if one["metadata"]["uid"] in {victim["uid"] for victim in result["victims"]}
        )
        assert len(victims) == len(result["victims"])
        assert all(victim["spec"]["nodeName"] == result["node"] for victim in victims)
        assert brute.fits(pod, nodes[result["node"]], victims)
        free = set(range(8)).difference(*(brute.held(one) for one in brute.on(result["node"]) if one not in victims))
        if result["gpus"] is None:  # somebody stays there who holds GPUs, and nobody says which
            assert any(not brute.held(one) for one in brute.on(result["node"]) if one not in victims)
        else:
            assert free.issuperset(result["gpus"])
            assert len(result["gpus"]) == brute.amounts(pod)[2]
        assert codes["gang-minimum-unknown"] == len(brute.unknown_gangs(victims))
        if verdict == "fits":
            assert not victims
            continue
        least, node = found[0]
        certificate = result["certificate"]
        assert certificate["proved"]
        assert (told(result["cost"]), brute.cost(victims, pod), result["node"]) == (least, least, node)
        assert (result["cost"][6]["value"] is None) == (brute.leftover(victims, pod) is None)
        other = certificate["runner_up"]
        assert (other is not None) == (len(found) > 1)
        if other is not None:
            assert (told(other["cost"]), other["node"]) == found[1]
            differ = [i for i, (a, b) in enumerate(zip(least, found[1][0], strict=True)) if a != b]
            assert certificate["lost_on"] == (result["cost"][differ[0]]["term"] if differ else "node name")
            seen[f"lost on {certificate['lost_on']}"] += 1
        required = pod["metadata"]["annotations"].get("gpu-extender.io/links") == "required"
        seen.update({
            "gangs": least[2] > 0, "budgets": least[0] > 0, "many": len(victims) > 1, "torn": required,
            "stranded": least[7] > 0, "broken up": least[6] > 0, "unknown minimum": codes["gang-minimum-unknown"] > 0,
            "intervals": any("gpu-extender.io/checkpoint-interval" in one["metadata"]["annotations"] for one in victims),
            "job sets": any(one["gang_source"] == "jobset" for one in result["victims"]),
        })  # fmt: skip
    assert min(seen[verdict] for verdict in ("fits", "evict", "cannot")) > CASES // 30, seen
    assert CASES < 1000 or (min(seen.values()) > 0 and len(seen) > 15), seen


# -- the command line --------------------------------------------------------------------------------------------------


def files(tmp_path: Path, items: list[JSON], pods: list[JSON]) -> list[str]:
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [{"kind": "Pod"} | pod for pod in pods]}))
    return ["--cluster", str(tmp_path / "cluster.json"), "-f", str(tmp_path / "pods.json"), "--now", rfc3339(WALL)]


def one_node(**facts: Any) -> list[JSON]:
    low = workload("low", 2, node="n", phase="Running", start=WALL - 100, held=[0, 1], priority=1, **facts)
    return [{"kind": "Node"} | machine("n", 4, links=pairs(4)), {"kind": "Pod"} | low]


@pytest.mark.parametrize(("gpus", "priority", "code"), [(2, 5, 0), (4, 5, 10), (4, 1, 11), (5, 5, 11)])
def test_exit_codes(gpus: int, priority: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = files(tmp_path, one_node(), [workload("p", gpus, priority=priority)])
    assert main(["whatif", *arguments, "-o", "json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "WhatIf"
    assert answer["holdings"] == [{"uid": "uid-low", "node": "n", "gpus": [0, 1], "how": "observed"}]
    (result,) = answer["results"]
    assert result["verdict"] == {0: "fits", 10: "evict", 11: "cannot"}[code]
    assert main(["whatif", *arguments]) == code
    assert "default/p" in capsys.readouterr().out


def test_of_several_pods_the_worst_result_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [workload("a", 1, priority=5), workload("b", 4, priority=5)]
    assert main(["whatif", *files(tmp_path, one_node(), pods), "-o", "json"]) == 10
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["verdict"] for result in results] == ["fits", "evict"]
    assert [victim["name"] for victim in results[1]["victims"]] == ["low"]
    assert results[1]["victims"][0]["gpus"] == [0, 1]


def test_the_priority_comes_from_the_class() -> None:
    items = [*one_node(), {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}]
    pod = workload("p", 4)
    del pod["spec"]["priority"]
    assert asked(items, pod)["results"][0]["verdict"] == "cannot"
    pod["spec"]["priorityClassName"] = "high"
    assert asked(items, pod)["results"][0]["verdict"] == "evict"
    del pod["spec"]["priorityClassName"]
    items[-1]["globalDefault"] = True
    assert asked(items, pod)["results"][0]["pod"]["priority"] == 9
    items[-1]["preemptionPolicy"] = "Never"
    answer = asked(items, pod)
    assert answer["results"][0]["verdict"] == "cannot"
    assert [warning["code"] for warning in answer["warnings"]] == ["never-preempts"]


def test_files_written_by_hand_name_the_class_alone() -> None:
    items = [
        *one_node(spec={"priorityClassName": "low"}),
        {"kind": "PriorityClass", "metadata": {"name": "low"}, "value": 4},
    ]
    del items[1]["spec"]["priority"]
    (result,) = asked(items, workload("p", 4, priority=5))["results"]
    assert [victim["priority"] for victim in result["victims"]] == [4]
    assert asked(items, workload("p", 4, priority=4))["results"][0]["verdict"] == "cannot"


def told_work(result: JSON) -> int:
    return next(int(one["value"]) for one in result["cost"] if one["term"] == "work_lost_gpu_seconds")


def test_a_checkpoint_from_before_the_start_counts_as_it_is_told() -> None:
    items = one_node(annotations={"gpu-extender.io/last-checkpoint": rfc3339(WALL - 500)})
    assert told_work(asked(items, workload("p", 4, priority=5))["results"][0]) == 2 * 500
    items = one_node(annotations={"gpu-extender.io/last-checkpoint": rfc3339(WALL + 500)})
    assert told_work(asked(items, workload("p", 4, priority=5))["results"][0]) == 0


def test_a_checkpoint_counts_to_the_millisecond() -> None:
    said = rfc3339(WALL - 11).replace("Z", ".500z")
    items = one_node(annotations={"gpu-extender.io/last-checkpoint": said})
    assert told_work(asked(items, workload("p", 4, priority=5))["results"][0]) == 21


def test_what_can_not_be_read_is_said() -> None:
    notes = {"protect-for": "soon", "last-checkpoint": "yesterday", "restart-seconds": "5m"}
    items = one_node(annotations={f"gpu-extender.io/{key}": text for key, text in notes.items()})
    answer = asked(items, workload("p", 4, priority=5))
    assert [one["code"] for one in answer["warnings"]] == [
        "bad-protect-for", "bad-last-checkpoint", "bad-restart-seconds",
    ]  # fmt: skip
    assert told_work(answer["results"][0]) == 2 * 100


def test_pods_without_uid_are_told_apart_by_name() -> None:
    items = [*one_node(), {"kind": "Pod"} | workload("high", 2, node="n", phase="Running", start=WALL, priority=9)]
    for pod in items[1:]:
        del pod["metadata"]["uid"]
    (result,) = asked(items, workload("p", 2, priority=5))["results"]
    assert [victim["uid"] for victim in result["victims"]] == ["default/low"]


def test_no_budget_matches_a_pod_without_labels() -> None:
    """So does kube-scheduler, whatever the selector says."""
    budget: JSON = {"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"}}
    budget["spec"] = {"selector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}
    items = [*one_node(), budget | {"status": {"disruptionsAllowed": 0}}]
    assert asked(items, workload("p", 4, priority=5))["results"][0]["cost"][0]["value"] == 0
    items[1]["metadata"]["labels"] = {"other": "label"}
    assert asked(items, workload("p", 4, priority=5))["results"][0]["cost"][0]["value"] == 1


def on_dgx1(*pods: tuple[str, int, str, str]) -> list[JSON]:
    """A DGX-1V with pods of (name, priority, held-gpus, gpus), the first of them the youngest."""
    items: list[JSON] = [{"kind": "Node"} | machine("n", 8, links=DGX1V)]
    for age, (name, priority, held, plan) in enumerate(pods, 1):
        notes = {"gpu-extender.io/gpus": plan} if plan else {}
        seen = [int(gpu) for gpu in held.split(",") if gpu]
        count = len(seen) or len(plan.split(","))
        pod = workload(
            name,
            count,
            node="n",
            phase="Running",
            start=WALL - 100 * age,
            held=seen,
            priority=priority,
            annotations=notes,
        )
        items.append({"kind": "Pod"} | pod)
    return items


def victims_of(items: list[JSON], pod: JSON) -> list[str]:
    (result,) = asked(items, pod)["results"]
    return [str(victim["name"]) for victim in result["victims"]]


def test_what_is_deduced_from_a_victim_is_not_known_without_it() -> None:
    """Only 6 and 7 are left for "plan", until "seen" is gone: then our filter would not know whose 0, 1, 6, 7 are."""
    items = on_dgx1(("seen", 1, "0,1", ""), ("plan", 1, "", "6,7"), ("high", 9, "2,3,4,5", ""))
    assert victims_of(items, workload("p", 2, priority=5, links="required")) == ["plan"]


def test_who_is_where_does_not_matter_where_all_are_linked() -> None:
    """Any three of 0-3 make a ring, so "plan" may stay, wherever it is among them."""
    items = on_dgx1(("seen", 1, "0,1", ""), ("plan", 1, "", "2"), ("high", 9, "4,5,6,7", ""))
    assert victims_of(items, workload("p", 3, priority=5, links="required")) == ["seen"]


@pytest.mark.parametrize(
    ("annotation", "verdict"),
    [
        ("99s", "evict"),
        ("101", "cannot"),
        ("1h", "cannot"),
        ("1.7m", "cannot"),
        ("0.5m", "evict"),
        ("1m40s1ms", "cannot"),
    ],
)
def test_who_is_protected_is_no_victim(annotation: str, verdict: str) -> None:
    items = one_node(annotations={"gpu-extender.io/protect-for": annotation})
    assert asked(items, workload("p", 4, priority=5))["results"][0]["verdict"] == verdict


def test_the_settings_protect_a_priority_class() -> None:
    items = one_node(spec={"priorityClassName": "train"})
    for seconds, verdict in ((100, "evict"), (101, "cannot")):
        preemption = Settings().preemption.model_copy(update={"minimum_run_seconds": {"train": float(seconds)}})
        settings = Settings(preemption=preemption)
        assert asked(items, workload("p", 4, priority=5), settings)["results"][0]["verdict"] == verdict


def test_whom_the_preemptors_affinity_needs_stays() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = workload("p", 4, priority=5, spec={"affinity": near})
    assert asked(one_node(), pod)["results"][0]["verdict"] == "evict"
    assert asked(one_node(labels={"app": "cache"}), pod)["results"][0]["verdict"] == "cannot"


def test_a_minimum_that_is_unknown_is_said() -> None:
    answer = asked(one_node(labels={"gpu-extender.io/gang": "g"}), workload("p", 4, priority=5))
    assert [warning["code"] for warning in answer["warnings"]] == ["gang-minimum-unknown"]
    assert answer["results"][0]["victims"][0]["gang"] == "default/g"


WRONG: dict[str, tuple[list[JSON], JSON, str]] = {
    "no GPU": (one_node(), workload("p", 0), "asks for no GPU"),
    "no such class": (
        one_node(),
        {"metadata": {"name": "p"}, "spec": {"priorityClassName": "none", "containers": []}},
        "no PriorityClass",
    ),
    "bound": (one_node(), workload("p", 1, node="n"), "already"),
}


@pytest.mark.parametrize(("items", "pod", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(
    items: list[JSON], pod: JSON, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", *files(tmp_path, items, [pod]), "-o", "json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert said in error["message"]


def test_a_time_without_a_zone_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*files(tmp_path, one_node(), [workload("p", 1)])[:-1], "2026-11-21T15:00:00"]
    assert main(["whatif", *arguments]) == 1
    assert "--now" in capsys.readouterr().err
