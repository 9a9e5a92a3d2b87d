"""What-if: pods in order on one copy, gangs whole or not at all, owners, changes of nodes, and what helps."""

from __future__ import annotations

import pytest

from extender.ask import offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import single
from extender.ask.whatif.engine import exit_code
from extender.ask.whatif.question import Added, Changes
from extender.ask.whatif.single import Single
from extender.cli import whatif
from extender.errors import BadInput, ExtenderError, NotFound
from extender.objects.records import PodRecord
from extender.settings import Settings
from tests.ask.asking import events, findings
from tests.ask.checks.test_check import checked
from tests.ask.whatif.asking import ask, kinds, way
from tests.world import JSON, WALL, machine, pairs, workload

PREFIX = "gpu-extender.io/"


def node(name: str, gpus: int = 8, **facts: object) -> JSON:
    return {"kind": "Node"} | machine(name, gpus, links=pairs(gpus), **facts)  # type: ignore[arg-type]


def running(name: str, on: str, held: list[int], **facts: object) -> JSON:
    made = workload(name, len(held), node=on, phase="Running", start=WALL - 100, held=held, **facts)  # type: ignore[arg-type]
    return {"kind": "Pod"} | made


def pod(name: str, gpus: int, **facts: object) -> JSON:
    return {"kind": "Pod"} | workload(name, gpus, **facts)  # type: ignore[arg-type]


def template(gpus: int, **more: object) -> JSON:
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}], **more}}


def job(name: str, pods: int, gpus: int, **more: object) -> JSON:
    spec = {"parallelism": pods, "template": template(gpus, **more)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def gang(name: str, size: int, gpus: int, **facts: object) -> list[JSON]:
    notes = {f"{PREFIX}gang": name, f"{PREFIX}gang-size": str(size)}
    return [pod(f"{name}-{i}", gpus, annotations=notes, **facts) for i in range(size)]


def places(answer: JSON) -> list[tuple[str, str | None, list[int] | None]]:
    return [(one["pod"]["name"], one["node"], one["gpus"]) for one in answer["results"]]


def verdicts(answer: JSON) -> list[str]:
    return [one["verdict"] for one in answer["results"]]


def test_each_pod_has_what_the_pods_before_it_leave() -> None:
    answer = ask([node("n", 8)], [pod("a", 4), pod("b", 4), pod("c", 4)])
    assert places(answer) == [("a", "n", [0, 1, 2, 3]), ("b", "n", [4, 5, 6, 7]), ("c", None, None)]
    assert kinds(answer["results"][2]) == ["add-nodes"]
    assert answer["results"][2]["nearest"]["missing"][0]["have"] == 0


@pytest.mark.parametrize("exists", [False, True])
def test_what_no_gate_holds_together_is_named(exists: bool) -> None:
    """The pods start one by one, and the domain is not kept, whatever the answer about all of them states."""
    pods = gang("g", 2, 8)
    for made in pods:
        made["metadata"]["annotations"][f"{PREFIX}domain"] = "required:rack"
    rack = [node(f"n{i}", labels={"cloud.provider.com/topology-rack": "r"}) for i in range(2)]
    if exists:
        answer = ask([*rack, *pods], pods=[("default", f"g-{i}") for i in range(2)])
        (finding,) = findings(checked(*rack, *pods), "domain-without-gate")
        assert (finding["about"], finding["others"]) == ("Pod/default/g-0", ["Pod/default/g-1"])
        assert "gpu-extender.io/queueing=enabled" in finding["remedy"]
        shown = offline.explain(Settings(), events([*rack, *pods]), ("default", "g-0"), WALL)
        assert "no-gate" in [warning["code"] for warning in shown["warnings"]]
    else:
        answer = ask(rack, pods)
    (text,) = [warning["message"] for warning in answer["warnings"] if warning["code"] == "no-gate"]
    assert "start one by one, and the domain required:" in text
    assert f"gpu-extender.io/queueing{'=' if exists else ': '}enabled" in text
    gated = [one | {"spec": one["spec"] | {"schedulingGates": [{"name": f"{PREFIX}queue"}]}} for one in pods]
    assert "no-gate" not in [warning["code"] for warning in ask(rack, gated)["warnings"]]


@pytest.mark.parametrize("label", ["enabled", "Enabled", None])
def test_pods_of_a_namespace_that_the_question_labels_are_gated(label: str | None) -> None:
    """As the policy gates them once the file is applied: the domain holds, and nothing of the file is ignored."""
    pods = gang("g", 2, 8)
    for made in pods:
        made["metadata"]["annotations"][f"{PREFIX}domain"] = "required:rack"
    rack = [node(f"n{i}", labels={"cloud.provider.com/topology-rack": "r"}) for i in range(2)]
    labels = {} if label is None else {f"{PREFIX}queueing": label}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    answer = ask(rack, [*pods, space])
    assert [result["verdict"] for result in answer["results"]] == ["fits", "fits"]
    assert [warning["code"] for warning in answer["warnings"]] == ([] if label == "enabled" else ["no-gate"])


def test_a_victim_is_taken_once_and_its_gpus_are_free_for_the_next() -> None:
    items = [node("n", 8), running("low", "n", [0, 1, 2, 3, 4, 5, 6, 7], priority=1)]
    answer = ask(items, [pod("a", 2, priority=5), pod("b", 2, priority=5), pod("c", 8, priority=9)])
    assert verdicts(answer) == ["evict", "fits", "cannot"]  # no pod of the question is a victim of a later one


def test_a_budget_pays_for_each_victim() -> None:
    budget = {"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {"name": "b"}}
    budget |= {"spec": {"selector": {"matchLabels": {"app": "x"}}}, "status": {"disruptionsAllowed": 1}}
    items = [node("n", 8), budget]
    items += [running(f"low{i}", "n", [4 * i + k for k in range(4)], priority=1, labels={"app": "x"}) for i in (0, 1)]
    answer = ask(items, [pod("a", 4, priority=5), pod("b", 4, priority=5)])
    assert [one["cost"][0]["value"] for one in answer["results"]] == [0, 1]


def test_two_members_of_a_gang_get_different_gpus() -> None:
    answer = ask([node("n1", 8), node("n2", 8)], gang("g", 2, 8))
    assert places(answer) == [("g-0", "n1", list(range(8))), ("g-1", "n2", list(range(8)))]
    (group,) = answer["groups"]
    assert (group["gang"], group["min"], group["size"], group["verdict"]) == ("default/g", 2, 2, "fits")


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    answer = ask([node("n1", 8)], [*gang("g", 2, 8), pod("later", 8)])
    assert verdicts(answer) == ["cannot", "cannot", "fits"]
    (group,) = answer["groups"]
    assert group["text"] == "1 of 2 pods fit now in the cluster"
    assert kinds(group) == ["smaller", "add-nodes"]
    assert way(group, "add-nodes")["spec"] == {"count": 1, "like": "n1"}
    assert group["nearest"] == {
        "node": "n1",
        "missing": [{"what": "nvidia.com/gpu", "have": 0, "need": 8, "unit": "GPUs"}],
    }


def test_a_gang_is_evicted_for_as_a_whole() -> None:
    items = [node("n1", 8), node("n2", 8), running("low", "n2", [0, 1], priority=1)]
    answer = ask(items, [*gang("g", 2, 8, priority=5), pod("later", 1)])
    assert verdicts(answer) == ["evict", "evict", "cannot"]
    (group,) = answer["groups"]
    assert [one["name"] for one in group["victims"]] == ["low"]
    assert [[one["name"] for one in result["victims"]] for result in answer["results"][:2]] == [[], ["low"]]
    assert {"evict", "add-nodes"} <= set(kinds(group))


def test_a_gang_whose_pods_are_not_all_there_cannot_start() -> None:
    answer = ask([node("n1", 8)], gang("g", 3, 1)[:2])
    (group,) = answer["groups"]
    assert (group["verdict"], group["ways_out"], group["nearest"]) == ("cannot", [], None)
    assert group["text"] == "2 of the 3 pods that it needs to start are there"


def test_the_pods_of_the_gang_that_wait_in_the_cluster_belong_to_it() -> None:
    there = gang("g", 3, 4)
    answer = ask([node("n1", 8), node("n2", 4), *there[:2]], [there[2]])
    assert sorted(one[0] for one in places(answer)) == ["g-0", "g-1", "g-2"]
    assert answer["groups"][0]["verdict"] == "fits"
    by_name = ask([node("n1", 8), node("n2", 4), *there], pods=[("default", "g-1")])
    assert by_name["groups"][0]["pods"] == answer["groups"][0]["pods"]


def test_members_that_run_count() -> None:
    there = gang("g", 3, 4)
    bound = [one | {"spec": one["spec"] | {"nodeName": "n1"}, "status": {"phase": "Running"}} for one in there[:2]]
    answer = ask([node("n1", 8), node("n2", 4), *bound], [there[2]])
    assert places(answer) == [("g-2", "n2", [0, 1, 2, 3])]
    assert (answer["groups"][0]["min"], answer["groups"][0]["size"]) == (3, 3)


def test_fewer_pods_are_a_way_out_where_the_minimum_allows_it() -> None:
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "pg"}}
    pods = [pod(f"p{i}", 4, labels={"scheduling.x-k8s.io/pod-group": "pg"}) for i in range(4)]
    answer = ask([node("n1", 8)], [group | {"spec": {"minMember": 2}}, *pods])
    (found,) = answer["groups"]
    assert (found["min"], found["size"], found["verdict"]) == (2, None, "cannot")
    fewer = [one["spec"] for one in found["ways_out"] if one["spec"].get("resource") == "pods"]
    assert fewer == [{"resource": "pods", "was": 4, "is": 2, "unit": "pods"}]


def test_a_terminating_pod_is_waited_for() -> None:
    items = [node("n1", 8), node("n2", 8), running("old", "n2", [0, 1], priority=9, terminating=WALL + 20)]
    (group,) = ask(items, gang("g", 2, 8, never=True))["groups"]
    assert group["verdict"] == "cannot"
    assert way(group, "wait")["cost"] == [{"term": "seconds", "value": 20, "unit": "seconds"}]
    assert way(group, "wait")["spec"]["for"] == [{"what": "terminating", "pod": "default/old", "uid": "uid-old"}]


def test_the_quota_of_the_queue() -> None:
    settings = Settings.model_validate({"queue": {"enabled": True, "queues": {"default": {"limit_gpus": {"A": 8}}}}})
    nodes = [node(f"n{i}", 8, labels={"nvidia.com/gpu.product": "A"}) for i in (1, 2)]
    gates = {"schedulingGates": [{"name": f"{PREFIX}queue"}]}
    (group,) = ask(nodes, gang("g", 2, 8, spec=gates), settings=settings)["groups"]
    assert group["verdict"] == "cannot"
    changes = [{"field": "limitGpus", "model": "A", "from": 8, "to": 16}]
    assert way(group, "quota")["spec"] == {"queue": "default", "changes": changes}
    assert ask(nodes, gang("g", 2, 8), settings=settings)["groups"][0]["verdict"] == "fits"  # no gate, no quota


def test_a_single_pod_behind_our_gate_needs_its_quota_too() -> None:
    settings = Settings.model_validate({"queue": {"enabled": True, "queues": {"default": {"limit_gpus": {"A": 2}}}}})
    nodes = [node("n1", 8, labels={"nvidia.com/gpu.product": "A"})]
    gates = {"schedulingGates": [{"name": f"{PREFIX}queue"}]}
    answer = ask(nodes, [pod("a", 2, spec=gates), pod("b", 1, spec=gates), pod("c", 1)], settings=settings)
    assert (verdicts(answer), answer["groups"]) == (["fits", "cannot", "fits"], [])
    assert "quota" in kinds(answer["results"][1])


def test_a_gang_of_one_needs_its_domain() -> None:
    notes = {f"{PREFIX}gang": "g", f"{PREFIX}gang-size": "1", f"{PREFIX}domain": "required:rack"}
    answer = ask([node("n1", 8)], [pod("a", 1, annotations=notes)])
    assert verdicts(answer) == ["cannot"]
    assert kinds(answer["groups"][0]) == ["relax-domain"]


def test_pods_of_an_owner() -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    deployment["spec"] = {"replicas": 3, "template": template(4)}
    answer = ask([node("n1", 8)], [job("train", 1, 2), deployment])
    assert [one[0] for one in places(answer)] == ["train-0", "web-0", "web-1", "web-2"]
    assert verdicts(answer) == ["fits", "fits", "cannot", "cannot"]
    assert answer["groups"] == []  # a Deployment's pods do not depend on each other, nor a Job's only pod


def test_pods_of_an_owner_that_run_already_are_not_placed_again() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}}
    owner["spec"] = {"replicas": 2, "template": template(4)}
    answer = ask([node("n1", 8), running("s-0", "n1", [0, 1, 2, 3])], [owner])
    assert places(answer) == [("s-1", "n1", [4, 5, 6, 7])]
    assert "runs-already" in [one["code"] for one in answer["warnings"]]


def test_equal_pods_without_a_place_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    judge = single.judge

    def counted(snapshot: SupposedCluster, pod: PodRecord, wall: float) -> Single:
        judged.append(pod.name)
        return judge(snapshot, pod, wall)

    monkeypatch.setattr(single, "judge", counted)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}}
    owner["spec"] = {"replicas": 300, "template": template(4)}
    waits = pod("waits", 4, nominated="n1")
    answer = ask([node("n1", 8), waits], [owner, pod("other", 2)], pods=[("default", "waits")])
    assert judged == ["s-0", "s-1", "other", "waits"]  # four GPUs are kept for the nominated pod
    assert verdicts(answer)[:3] == ["fits", "cannot", "cannot"]
    assert len({one["pod"]["uid"] for one in answer["results"]}) == 302


def test_nodes_are_added() -> None:
    answer = ask([node("n1", 8)], [pod("a", 8)], changes=Changes(add=(Added(1, "catalogue:dgx-h100"),)))
    assert answer["results"][0]["verdict"] == "fits"
    assert "added-by-topology" in [one["code"] for one in answer["warnings"]]
    two = ask([node("n1", 8)], gang("g", 3, 8), changes=Changes(add=(Added(2, "n1"),)))
    assert {one["node"] for one in two["results"]} == {"n1", "n1-copy-1", "n1-copy-2"}


def test_nodes_are_cordoned_and_drained() -> None:
    items = [node("n1", 8), node("n2", 8), running("low", "n2", [0], priority=9)]
    assert ask(items, [pod("a", 8)])["results"][0]["node"] == "n1"
    cordoned = ask(items, [pod("a", 8)], changes=Changes(cordon=("n1",)))["results"][0]
    assert (cordoned["verdict"], cordoned["reasons"]["cordoned"]) == ("cannot", 1)
    assert way(cordoned, "uncordon")["spec"] == {"node": "n1"}
    drained = ask(items, [pod("a", 1)], changes=Changes(cordon=("n1",), drain=("n2",)))
    assert [one["uid"] for one in drained["holdings"]] == []
    assert drained["results"][0]["verdict"] == "cannot"


@pytest.mark.parametrize(
    ("objects", "changes", "error"),
    [
        ([pod("a", 1)], Changes(cordon=("no",)), NotFound),
        ([pod("a", 1)], Changes(add=(Added(1, "no"),)), NotFound),
        ([pod("a", 1)], Changes(add=(Added(1, "catalogue:no"),)), BadInput),
        ([pod("a", 1)], Changes(add=(Added(1, '{"v":1}'),)), BadInput),
        ([pod("a", 1)], Changes(add=(Added(10**9, "n"),)), BadInput),
        ([pod("a", 0)], None, BadInput),
        (gang("g", 2, 0), None, BadInput),
        ([pod("a", 1), pod("a", 1)], None, BadInput),
        ([job("j", 10**6, 1)], None, BadInput),
        ([job("j", -1, 1)], None, BadInput),
        ([{"kind": "Service"}], None, BadInput),
        ([{"kind": 1}], None, BadInput),
        (["x"], None, BadInput),
        ([], None, BadInput),
        ([{"kind": "List", "items": {}}], None, BadInput),
        ([{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}}], None, BadInput),
    ],
)
def test_what_cannot_be_asked(objects: list[JSON], changes: Changes | None, error: type[ExtenderError]) -> None:
    with pytest.raises(error):
        ask([node("n", 8)], objects, changes=changes)


def test_a_gang_whose_victims_all_terminate_is_told_that_it_is_enough_to_wait() -> None:
    """As a single pod is."""
    items = [node(name, 8) for name in ("n1", "n2")]
    items += [running(f"old-{at}", f"n{at}", list(range(8)), priority=1, terminating=WALL + 20) for at in (1, 2)]
    answer = ask(items, gang("g", 2, 8, priority=9))
    (group,) = answer["groups"]
    assert group["verdict"] == "evict"
    text = "all victims on n1, n2 are terminating already: it is enough to wait for them"
    assert {"code": "enough-to-wait", "message": text} in answer["warnings"]
    items[2] = running("old-1", "n1", list(range(8)), priority=1)
    assert "enough-to-wait" not in {one["code"] for one in ask(items, gang("g", 2, 8, priority=9))["warnings"]}


def of_job(name: str, suffix: str, on: str, held: list[int], index: str = "") -> JSON:
    """A pod of a Job under its generated name. `on`: "" where it waits."""
    made = running(f"{name}-{suffix}", on, held) if on else pod(f"{name}-{suffix}", 2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-{name}", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    if index:
        made["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": index}
    return made


def test_a_gang_that_runs_is_not_placed_again() -> None:
    places = [("n0", [0, 1]), ("n0", [2, 3]), ("n1", [0, 1]), ("n1", [2, 3])]
    there = [of_job("train", f"{index}-x{index}", on, held) for index, (on, held) in enumerate(places)]
    answer = ask([node("n0", 4), node("n1", 4), *there], [job("train", 4, 2)])
    assert (answer["results"], exit_code(answer)) == ([], 0)
    [group] = answer["groups"]
    assert (group["gang"], group["verdict"], group["pods"]) == ("default/train", "fits", [])
    assert (group["min"], group["size"], group["victims"], group["cost"]) == (4, 4, [], [])
    assert [(one["name"], one["node"], one["gpus"]) for one in group["running"]] == [
        ("train-0-x0", "n0", [0, 1]), ("train-1-x1", "n0", [2, 3]),
        ("train-2-x2", "n1", [0, 1]), ("train-3-x3", "n1", [2, 3]),
    ]  # fmt: skip
    [said] = [one["message"] for one in answer["warnings"] if one["code"] == "runs-already"]
    assert said.endswith("are not placed again: train-0-x0, train-1-x1, train-2-x2, train-3-x3")
    shown = text(answer)
    assert "gang default/train: runs already, as a gang of 4: 4 pods run on 2 nodes. No pod is placed" in shown
    assert "  train-2-x2  n1  GPUs 0-1  runs already" in shown


def test_of_a_gang_that_runs_in_part_the_rest_is_placed() -> None:
    there = [of_job("train", "2-a", "n", [0, 1], "2"), of_job("train", "1-b", "", [], "1")]
    wanted = job("train", 4, 2)
    wanted["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    answer = ask([node("n", 8), *there], [wanted])
    assert [one[0] for one in places(answer)] == ["train-0", "train-1", "train-3"]  # train-1 exists, and waits
    [group] = answer["groups"]
    assert [one["name"] for one in group["running"]] == ["train-2-a"]
    assert "gang default/train: 1 pod runs on 1 node; the other 3 pods fit on 1 node" in text(answer)
    full = ask([node("n", 4), *there], [wanted])
    assert "1 pod runs on 1 node; the other 3 pods have no place" in text(full)


def test_pods_of_another_owner_or_namespace_are_other_pods() -> None:
    there = [of_job("other", "a", "n", [0, 1]), of_job("train", "b", "n", [2, 3])]
    there[1]["metadata"]["namespace"] = "team"
    answer = ask([node("n", 8), *there], [job("train", 2, 2)])
    assert [one[0] for one in places(answer)] == ["train-0", "train-1"]
    assert "running" not in answer["groups"][0]


def text(answer: JSON) -> str:
    """The groups as people read them."""
    return "\n".join(map(str, whatif.group_lines(answer["groups"])))


def test_a_pod_that_cannot_be_written_does_not_end_the_question() -> None:
    """One that has a node, and one of a PriorityClass that does not exist."""
    kept, placed, classless = (pod(name, 1) for name in ("kept", "placed", "classless"))
    placed["spec"]["nodeName"] = "n"
    classless["spec"]["priorityClassName"] = "none"
    del classless["spec"]["priority"]
    nodes = [{"kind": "Node"} | machine("n", 4)]
    answer = ask(nodes, [placed, kept, classless])
    assert [(result["pod"]["name"], result["verdict"]) for result in answer["results"]] == [("kept", "fits")]
    assert [one["message"] for one in answer["warnings"] if one["code"] == "pod-left-out"] == [
        "pod default/placed is left out: it is on node n already",
        "pod default/classless is left out: there is no PriorityClass 'none' in the cluster",
    ]
    with pytest.raises(BadInput, match="it is on node n already"):
        ask(nodes, [placed])
