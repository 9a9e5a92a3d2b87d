"""What-if: against trying everything on a thousand random clusters, and by the command line."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extender.ask import frozen, offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import engine, question
from extender.cli import main
from extender.settings import ResourceSettings, Settings
from tests.ask.asking import events, file
from tests.cases import cases
from tests.oracles.whatif import Brute
from tests.world import DGX1V, GPU, JSON, WALL, machine, pairs, rfc3339, workload

ARBITRARY = Settings(resources=(ResourceSettings(name=GPU, device_plugin="arbitrary"),))
CASES = cases(1000)
PREFIX = "gpu-extender.io/"
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
        about: JSON = {"name": "job", "namespace": "default"}
        spec = {"parallelism": rng.randint(1, 3)}
        items.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec})
        if rng.random() < 0.4:  # one Job of a JobSet
            api = "jobset.x-k8s.io/v1alpha2"
            about["ownerReferences"] = [{"apiVersion": api, "kind": "JobSet", "name": "js", "controller": True}]
            if rng.random() < 0.7:
                template = {"spec": {"parallelism": rng.randint(1, 2)}}
                parts = {"replicatedJobs": [{"replicas": rng.randint(1, 2), "template": template}]}
                js = {"name": "js", "namespace": "default"}
                items.append({"apiVersion": api, "kind": "JobSet", "metadata": js, "spec": parts})
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
    if rng.random() < 0.3:
        notes["gpu-extender.io/saves-on-termination"] = f"{rng.randint(0, 70)}s"
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


def snapshot_of(items: list[JSON], settings: Settings = ARBITRARY) -> SupposedCluster:
    return SupposedCluster.of(settings, events(items, frozenset(one.name for one in settings.resources)))


def asked(items: list[JSON], pod: JSON, settings: Settings = ARBITRARY) -> JSON:
    snapshot = snapshot_of(items, settings)
    raw = json.dumps({"kind": "Pod"} | pod).encode()
    answer: JSON = offline.whatif(
        snapshot, question.read(frozen.documents(raw, "test"), snapshot.cluster.gpu_names), WALL
    )
    return answer


def told(cost: list[JSON]) -> tuple[int, ...]:
    """All terms. No highest priority, where all victims go anyway, is the lowest; what was not priced counts as 0."""
    unknown = {"highest_victim_priority": -(2**31), "leftover_fragmentation": 0}
    return tuple(unknown[term["term"]] if term["value"] is None else term["value"] for term in cost)


def test_against_trying_everything() -> None:
    """Verdict, victims, all nine terms, runner-up and warnings are those of brute force, on random clusters."""
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
        assert engine.exit_code(answer) == {"fits": 0, "evict": 10, "cannot": 11}[verdict]
        codes = Counter(warning["code"] for warning in answer["warnings"])
        shown = [one["path"] for one in answer["warnings"] if "path" in one]
        assert len(set(shown)) == len(shown)
        assert codes["claim-bounded"] in (len(brute.bounded()), len(shown) + 1)  # beyond 20 they are counted
        assert codes.keys() <= {
            "claim-bounded",
            "never-preempts",
            "links-only",
            "terminating",
            "gang-minimum-unknown",
            "not-all-checked",
            "enough-to-wait",
        }
        assert codes["terminating"] == (verdict == "evict" and brute.waits(pod))
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
        assert (result["cost"][7]["value"] is None) == (brute.leftover(victims, pod) is None)
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
            "stranded": least[8] > 0, "broken up": least[7] > 0, "unknown minimum": codes["gang-minimum-unknown"] > 0,
            "job sets": any(one["gang_source"] == "jobset" for one in result["victims"]),
        })  # fmt: skip
    assert min(seen[verdict] for verdict in ("fits", "evict", "cannot")) > CASES // 30, seen
    assert CASES < 1000 or (min(seen.values()) > 0 and len(seen) > 15), seen


# -- the command line --------------------------------------------------------------------------------------------------


def files(tmp_path: Path, items: list[JSON], pods: list[JSON]) -> list[str]:
    wanted = file(tmp_path, [{"kind": "Pod"} | pod for pod in pods], "pods.json")
    return ["--cluster", file(tmp_path, items), "-f", wanted, "--now", rfc3339(WALL)]


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
    """The second has what the first leaves."""
    pods = [workload("a", 1, priority=5), workload("b", 3, priority=5)]
    assert main(["whatif", *files(tmp_path, one_node(), pods), "-o", "json"]) == 10
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["verdict"] for result in results] == ["fits", "evict"]
    assert [result["gpus"] for result in results] == [[2], [0, 1, 3]]
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


def test_a_checkpoint_from_before_the_start_counts_as_the_start() -> None:
    items = one_node(annotations={"gpu-extender.io/last-checkpoint": rfc3339(WALL - 500)})
    assert told_work(asked(items, workload("p", 4, priority=5))["results"][0]) == 2 * 100
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


def test_a_protection_of_ages_is_one_of_a_century() -> None:
    """As many parts as an annotation holds are more milliseconds than 64 bits: what the node holds would be left out,
    and its GPUs promised twice."""
    for annotation, start in (("999999999h" * 6, WALL - 100), ("99999999h", WALL - 100), ("1h", 253_402_300_000)):
        items = one_node(annotations={"gpu-extender.io/protect-for": annotation})
        items[1]["status"]["startTime"] = rfc3339(start)
        snapshot = snapshot_of(items, Settings())
        assert not snapshot.cluster.faults
        assert snapshot.cluster.tables.nodes.used_of(0)[3] == 2
        (result,) = asked(items, workload("p", 4, priority=5))["results"]
        assert result["verdict"] == "cannot"
        assert (result["spared"][0]["until"] is None) == (start > WALL), annotation[:20]


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
        {"metadata": {"name": "p"}, "spec": {"priorityClassName": "none", "containers": [{"name": "c"}]}},
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


# -- what cannot be known, and what is not heeded ---------------------------------------------------------------------


def warned(answer: JSON) -> list[str]:
    return sorted(warning["code"] for warning in answer["warnings"])


def test_gpus_are_named_only_where_no_position_is_unknown() -> None:
    quiet = workload("quiet", 1, node="n", phase="Running", start=WALL - 100, priority=9)
    low = workload("low", 2, node="n", phase="Running", start=WALL - 100, held=[0, 1], priority=1)
    node = {"kind": "Node"} | machine("n", 8, links=DGX1V)
    pods = [{"kind": "Pod"} | one for one in (quiet, low)]
    for gpus, verdict in ((3, "fits"), (6, "evict")):
        (result,) = asked([node, *pods], workload("p", gpus, priority=5))["results"]
        assert (result["verdict"], result["node"], result["gpus"]) == (verdict, "n", None)
    quiet["metadata"]["annotations"]["gpu-extender.io/held-gpus"] = "7"
    (result,) = asked([node, *pods], workload("p", 6, priority=5))["results"]
    assert result["gpus"] == [0, 1, 2, 3, 4, 5] or 7 not in result["gpus"]
    assert len(result["gpus"]) == 6


def value_of(result: JSON, name: str) -> Any:
    return next(term["value"] for term in result["cost"] if term["term"] == name)


def test_fragmentation_that_was_not_priced_is_unknown_and_not_0() -> None:
    low = workload("low", 3, node="n", phase="Running", start=WALL - 100, held=[0, 1, 2], priority=1)
    pod = workload("p", 2, priority=5)
    for links, left in ((pairs(4), 8000), (FULL, 0), (None, None)):  # one pair is taken, one stays: 8000 - 4000
        node = {"kind": "Node"} | machine("n", 4, links=links)
        (result,) = asked([node, {"kind": "Pod"} | low], pod)["results"]
        assert value_of(result, "leftover_fragmentation") == (4000 if left == 8000 else left)
        assert value_of(result, "victims_stranded") == 1


def test_a_checkpoint_interval_says_nothing_of_what_was_saved() -> None:
    """Started 100 s ago, means to save every 30 s: 100 s x 2 GPUs are lost all the same."""
    notes = {"gpu-extender.io/checkpoint-interval": "30"}
    for more, lost in (
        ({}, 200),
        ({"last-checkpoint": rfc3339(WALL - 25)}, 50),
        ({"last-checkpoint": "tomorrow"}, 200),
    ):
        said = notes | {f"gpu-extender.io/{key}": text for key, text in more.items()}
        (result,) = asked(one_node(annotations=said), workload("p", 4, priority=5))["results"]
        assert value_of(result, "work_lost_gpu_seconds") == lost
    for text in ("0", "x", "-5"):
        answer = asked(
            one_node(annotations={"gpu-extender.io/checkpoint-interval": text}), workload("p", 4, priority=5)
        )
        assert value_of(answer["results"][0], "work_lost_gpu_seconds") == 200
        assert warned(answer) == ["bad-checkpoint-interval"]


NOT_HEEDED: dict[str, tuple[JSON, str]] = {
    "protect-for": ({"annotations": {PREFIX + "protect-for": "for ever"}}, "bad-protect-for"),
    "last-checkpoint": ({"annotations": {PREFIX + "last-checkpoint": "tomorrow"}}, "bad-last-checkpoint"),
    "a checkpoint without a zone": (
        {"annotations": {PREFIX + "last-checkpoint": "2027-01-15T07:00:00"}}, "bad-last-checkpoint",
    ),
    "a checkpoint to come": (
        {"annotations": {PREFIX + "last-checkpoint": rfc3339(WALL + 60)}}, "checkpoint-in-future",
    ),
    "restart-seconds": ({"annotations": {PREFIX + "restart-seconds": "-1"}}, "bad-restart-seconds"),
    "saves-on-termination": (
        {"annotations": {PREFIX + "saves-on-termination": "at once"}}, "bad-saves-on-termination",
    ),
    "saves-on-request": ({"annotations": {PREFIX + "saves-on-request": "1d"}}, "bad-saves-on-request"),
    "gang-min": ({"labels": {PREFIX + "gang-min": "-5"}}, "bad-gang-min"),
    "gang-size": ({"annotations": {PREFIX + "gang-size": "all"}}, "bad-gang-size"),
    "duration": ({"annotations": {PREFIX + "duration": "soon"}}, "bad-duration"),
    "domain": ({"annotations": {PREFIX + "domain": "rack"}}, "bad-domain"),
    "links": ({"annotations": {PREFIX + "links": "requierd"}}, "bad-links"),
    "nics": ({"annotations": {PREFIX + "nics": "requierd"}}, "bad-nics"),
    "a name": ({"annotations": {PREFIX + "link": "required"}}, "unknown-name"),
    "held-gpus": ({"annotations": {PREFIX + "held-gpus": "9,9,-1"}}, "bad-held-gpus"),
    "gpus": ({"annotations": {PREFIX + "gpus": "2,7"}}, "bad-gpus"),
    "another node": ({"node": "gone"}, "node-missing"),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "code"), NOT_HEEDED.values(), ids=NOT_HEEDED)
def test_what_is_not_heeded_is_said(facts: JSON, code: str) -> None:
    bad = workload("bad", 2, phase="Running", start=WALL - 100, priority=1, **{"node": "n", **facts})
    node = {"kind": "Node"} | machine("n", 4, links=pairs(4))
    answer = asked([node, {"kind": "Pod"} | bad], workload("p", 1, priority=5))
    assert warned(answer) == [code]
    assert "bad" in answer["warnings"][0]["message"]


@pytest.mark.parametrize(("uid", "counts"), [("uid-q", "the last one counts"), ("uid-2", "each of its 2 uids counts")])
def test_of_pods_with_one_name_each_uid_counts(
    uid: str, counts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"kind": "Node"} | machine("n", 4, links=pairs(4))
    first = workload("q", 1, node="n", phase="Running", start=WALL - 100)
    second = first | {"metadata": first["metadata"] | {"uid": uid}}
    items = [node, *({"kind": "Pod"} | one for one in (first, second))]
    assert main(["whatif", *files(tmp_path, items, [workload("p", 1)]), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert f"pod default/q is in the file 2 times: {counts}" in [one["message"] for one in answer["warnings"]]
    assert len(answer["holdings"]) == len({"uid-q", uid})


def test_what_stands_twice_in_a_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = one_node()
    same = json.loads(json.dumps(items[1])) | {"kind": "Pod"}
    same["metadata"]["name"] = "other"
    negative = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "pg", "namespace": "default"}, "spec": {"minMember": -3},
    }  # fmt: skip
    unreadable = negative | {"metadata": {"name": "pg2", "namespace": "default"}, "spec": {"minMember": "many"}}
    assert main(["whatif", *files(tmp_path, [*items, same, items[0], negative, unreadable], [workload("p", 2)])]) == 0
    said = capsys.readouterr().err
    assert "pods default/low and default/other have the same uid uid-low: only the last one counts" in said
    assert "node n is in the file 2 times" in said
    assert "PodGroup default/pg: " in said
    assert "PodGroup default/pg2: " in said
    assert said.count("\n") == 4


def test_very_many_of_one_kind_are_counted() -> None:
    pods = [
        {"kind": "Pod"} | workload(f"p{i:03}", 1, node="gone", phase="Running", start=WALL - 100) for i in range(100)
    ]
    answer = asked([one_node()[0], *pods], workload("p", 1, priority=5))
    assert warned(answer) == ["node-missing"] * 21
    assert answer["warnings"][-1]["message"] == "and 80 more like that"


WRONG_FILES: dict[str, tuple[JSON, str]] = {
    "not whole": (
        {"kind": "PriorityClass", "metadata": {"name": "x"}, "value": 1.5},
        "PriorityClass x: value: expected a whole number, not a number that is not whole, or too large: left out",
    ),
    "no such word": (
        {
            "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "d"},
            "spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Bogus"}]}},
        },
        "PodDisruptionBudget d/b: spec.selector.matchExpressions[0].operator: 'Bogus' is not one of In, NotIn, Exists,",
    ),
    "no such effect": (
        {"kind": "Node", "metadata": {"name": "m"}, "spec": {"taints": [{"key": "a", "effect": "Never"}]}},
        "Node m: spec.taints[0].effect: 'Never' is not one of NoSchedule, PreferNoSchedule, NoExecute; ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_an_object_that_can_not_be_read_is_named(
    wrong: JSON, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", *files(tmp_path, [one_node()[0], wrong], [workload("p", 1)])]) == 0
    assert said in capsys.readouterr().err


# -- why not -----------------------------------------------------------------------------------------------------------


def test_who_is_never_a_victim_is_counted_by_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def there(name: str, gpu: int, **facts: Any) -> JSON:
        return {"kind": "Pod"} | workload(
            name, 1, node="n", phase="Running", held=[gpu], **({"start": WALL - 100, "priority": 1} | facts)
        )

    protect = {PREFIX + "protect-for": "1h"}
    items = [
        {"kind": "Node"} | machine("n", 6),
        there("high", 0, priority=5), there("daemon", 1, owner="DaemonSet"), there("static", 2, owner="Node"),
        there("young", 3, annotations=protect), there("younger", 4, annotations=protect, start=WALL - 10),
        there("cache", 5, labels={"app": "cache"}),
    ]  # fmt: skip
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = workload("p", 1, priority=5, spec={"affinity": near})
    (result,) = asked(items, pod)["results"]
    assert result["verdict"] == "cannot"
    assert {one["cause"]: (one["pods"], one["gpus"], one["until"]) for one in result["spared"]} == {
        "priority": (1, 1, None), "daemonset": (1, 1, None), "static": (1, 1, None),
        "protected": (2, 2, rfc3339(WALL + 3500)), "affinity": (1, 1, None),
    }  # fmt: skip
    assert "never victims" in result["remedies"]["gpus-busy"]
    assert main(["whatif", *files(tmp_path, items, [pod])]) == 11
    said = capsys.readouterr().out
    assert "cannot be placed, an eviction does not help" in said
    assert f"never victims: 2 pods with 2 GPUs, protected, the first until {rfc3339(WALL + 3500)}" in said
    assert "never victims: 1 pod with 1 GPU, of equal or higher priority" in said


def test_what_never_forbids_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = workload("p", 4, priority=5, never=True)
    answer = asked(one_node(), pod)
    (result,) = answer["results"]
    assert (result["verdict"], result["victims"], warned(answer)) == ("cannot", [], ["never-preempts"])
    assert [victim["name"] for victim in result["forbidden"]["victims"]] == ["low"]
    assert "preemptionPolicy" in result["remedies"]["gpus-busy"]
    assert main(["whatif", *files(tmp_path, one_node(), [pod])]) == 11
    assert "may not preempt (preemptionPolicy: Never); the eviction of 1 pod on n would make room" in (
        capsys.readouterr().out
    )
    held = asked(one_node(spec={"priority": 9}), workload("p", 4, priority=5, never=True))["results"][0]
    assert held["forbidden"] is None


def test_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The map, who goes, what it costs beside the next best; a name of a hundred thousand letters is cut."""
    items = one_node(labels={PREFIX + "gang": "g" * 100_000, PREFIX + "gang-min": "1"})
    other = workload("dearer", 4, node="m", phase="Running", start=WALL - 7200, held=[0, 1, 2, 3], priority=2)
    items += [{"kind": "Node"} | machine("m", 4, links=pairs(4)), {"kind": "Pod"} | other]
    assert main(["whatif", *files(tmp_path, items, [workload("p", 4, priority=5)])]) == 10
    said = capsys.readouterr().out
    assert "default/p (priority 5): fits on n after the eviction of 1 pod, GPUs 0-3" in said
    assert "[ 0 ]" in said
    assert "gpu-extender gang default/ggg" in said
    rows = {line.strip().split("  ")[0]: line.split() for line in said.splitlines() if line.startswith("  ")}
    assert rows["default/low"][:3] == ["default/low", "1", "2"]
    assert rows["highest priority of a victim"][-3:] == ["1", "2", "decides"]
    assert "0.06 GPU-hours" in said
    assert "next best: m with 1 victim, loses by: highest priority of a victim" in said
    assert max(map(len, said.splitlines())) < 450


def test_the_help_tells_how_to_get_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    from extender.kube.lists import GROUPS

    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for source in GROUPS:  # whatever is watched is asked for
        api, plural = source.path.split("/")[2], source.path.rpartition("/")[2]
        assert f"{plural}.{api}" in said
