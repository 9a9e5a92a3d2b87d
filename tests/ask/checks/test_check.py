"""check: the table of who evicts whom, and one finding a test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from extender.ask import checks
from extender.ask.checks.work import MOST_JOBS
from extender.cli import main
from extender.kube import client
from extender.kube.lists import CHECKED_KINDS
from extender.settings import ClaimBounds, ClaimSettings, Placement, Settings
from extender.settings.fields import LossCeiling
from extender.sim import claims as dra
from extender.sim.machines import machine as catalogued
from tests.ask.asking import file, findings
from tests.ask.test_whatif import snapshot_of
from tests.world import GPU, JSON, WALL, machine, pairs, workload
from tests.yaml_text import objects_in

PRIORITIES = Path(__file__).parents[3] / "manifests" / "priorities"


def cls(name: str, value: int, **more: Any) -> JSON:
    labels = {"gpu-extender.io/rank": str(more.pop("rank"))} if "rank" in more else {}
    return {"kind": "PriorityClass", "metadata": {"name": name, "labels": labels}, "value": value} | more


def node(name: str = "n") -> JSON:
    return {"kind": "Node"} | machine(name, 8, links=pairs(8))


def pod(name: str, gpus: int = 1, cls: str = "", priority: int = 0, **facts: Any) -> JSON:
    spec = {"priorityClassName": cls} if cls else {}
    facts.setdefault("start", WALL - 7200)
    made = workload(name, gpus, node="n", phase="Running", priority=priority, spec=spec, **facts)
    return {"kind": "Pod"} | made


def quota(hard: JSON, *classes: str, **more: Any) -> JSON:
    tests = [{"scopeName": "PriorityClass", "operator": "In", "values": [name]} for name in classes]
    spec = {"hard": hard} | ({"scopeSelector": {"matchExpressions": tests}} if tests else {})
    return {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}, "spec": spec}


def checked(*items: JSON, settings: Settings | None = None) -> JSON:
    settings = settings or Settings()
    return checks.answer(settings, snapshot_of(list(items), settings).cluster, list(items), WALL)


def preempting(**stated: Any) -> Settings:
    """Settings with these of `preemption`."""
    settings = Settings()
    return settings.model_copy(update={"preemption": settings.preemption.model_copy(update=stated)})


def codes(answer: JSON, severity: str = "") -> list[str]:
    return [one["code"] for one in answer["findings"] if severity in ("", one["severity"])]


def test_who_can_evict_whom() -> None:
    answer = checked(
        node(), cls("high", 100), cls("mid", 50, preemptionPolicy="Never"), cls("low", 1), pod("a", 2, "low", 1)
    )
    table = {level["name"]: (level["evicts"], level["evicted_by"], level["gpus"]) for level in answer["classes"]}
    system = ["system-node-critical", "system-cluster-critical"]  # every cluster has them
    assert [*table][:2] == system
    assert table["system-node-critical"] == (["system-cluster-critical", "high", "mid", "low"], [], 0)
    assert {name: row for name, row in table.items() if name not in system} == {
        "high": (["mid", "low"], system, 0), "mid": ([], [*system, "high"], 0), "low": ([], [*system, "high"], 2),
    }  # fmt: skip


@pytest.mark.parametrize(("upper", "code"), [(10, "rank-inverted"), (20, "rank-equal"), (30, None)])
def test_ranks_against_the_intended_order(upper: int, code: str | None) -> None:
    by_settings = checked(cls("serve", upper), cls("train", 20), settings=preempting(intended_order=("serve", "train")))
    by_label = checked(cls("serve", upper, rank=2), cls("train", 20, rank=1))
    for answer in (by_settings, by_label):
        assert codes(answer, "error") == ([code] if code else [])
        assert checks.exit_code(answer) == (10 if code else 0)


def test_without_an_intended_order_nothing_is_judged() -> None:
    answer = checked(cls("a", 1), cls("b", 2))
    assert codes(answer) == ["no-intended-order"]
    assert checks.exit_code(answer) == 0


@pytest.mark.parametrize(("policy", "found"), [("PreemptLowerPriority", True), ("Never", False)])
def test_a_chain_of_evictions(policy: str, found: bool) -> None:
    answer = checked(cls("a", 3), cls("b", 2, preemptionPolicy=policy), cls("c", 1))
    assert ("eviction-chain" in codes(answer, "warning")) == found


@pytest.mark.parametrize(
    ("ranks", "severity"), [((3, 2, 1), "info"), ((3, 2, 2), "warning"), ((3, 2, None), "warning")]
)
def test_a_chain_that_the_ranks_state_is_intended(ranks: tuple[int | None, ...], severity: str) -> None:
    classes = [
        cls(name, value, **({} if rank is None else {"rank": rank}))
        for name, value, rank in zip("abc", (3, 2, 1), ranks, strict=True)
    ]
    assert "eviction-chain" in codes(checked(*classes), severity)


def test_traps_of_the_global_default() -> None:
    trap = cls("default", 5, globalDefault=True)
    assert "default-evicts" in codes(checked(trap, cls("low", 1)), "error")
    assert "default-evicts" not in codes(checked(trap | {"preemptionPolicy": "Never"}, cls("low", 1)))
    assert "default-evicts" not in codes(checked(trap, cls("high", 10)))
    assert "several-defaults" in codes(checked(trap, cls("other", 7, globalDefault=True)))
    assert "pods-without-class" in codes(checked(node(), cls("low", 1), pod("bare", priority=5)), "warning")
    assert "pods-without-class" in codes(checked(node(), cls("low", 1), pod("bare")), "info")
    assert "stale-priority" in codes(checked(node(), cls("low", 1), pod("old", 1, "low", 7)))


def test_what_the_eviction_of_jobs_without_checkpoints_costs_today() -> None:
    notes = {"gpu-extender.io/last-checkpoint": "2027-01-15T07:59:50Z"}
    labels = {"gpu-extender.io/gang": "train"}
    items = [
        node(), cls("high", 10), cls("low", 1), pod("saved", 1, "low", 1, annotations=notes), pod("top", 1, "high", 10),
        pod("w0", 2, "low", 1, labels=labels), pod("w1", 2, "low", 1, labels=labels),
    ]  # fmt: skip
    (found,) = findings(checked(*items), "no-checkpoint")
    assert found["about"] == "gpu-extender/default/train"
    assert found["facts"] == {"pods": 2, "gpus": 4, "work_lost_gpu_seconds": 4 * 7200}


def test_who_is_protected_or_saves_is_no_finding() -> None:
    """One pod is protected for three hours and started two ago, one by its class, one reports; one cannot be read."""
    prefix = "gpu-extender.io/"
    classes = [cls("high", 10), cls("low", 1), cls("kept", 2)]
    pods = [
        pod("protected", 1, "low", 1, annotations={prefix + "protect-for": "3h"}),
        pod("by-class", 1, "kept", 2),
        pod("saved", 1, "low", 1, annotations={prefix + "last-checkpoint": "2027-01-15T07:59:50Z"}),
        pod("tomorrow", 1, "low", 1, annotations={prefix + "last-checkpoint": "tomorrow"}),
        pod("at-its-end", 1, "low", 1, annotations={prefix + "saves-on-termination": "30s"}),
        pod("no-longer", 1, "low", 1, annotations={prefix + "protect-for": "1h"}),
    ]
    claims = ClaimSettings(by_namespace={"default": ClaimBounds(protect_for_seconds=3 * 3600)})
    settings = preempting(minimum_run_seconds={"kept": 9000.0}).model_copy(update={"claims": claims})
    answer = checked(node(), *classes, *pods, settings=settings)
    found = {one["about"]: one for one in findings(answer, "no-checkpoint")}
    assert sorted(found) == ["Pod/default/no-longer", "Pod/default/tomorrow"]
    assert "1 pod with 1 GPU can be evicted" in found["Pod/default/tomorrow"]["message"]
    [typo] = findings(answer, "unknown-value")
    assert (typo["about"], answer["warnings"]) == ("Pod/default/tomorrow", [])


def test_a_pod_of_a_node_that_is_gone_loses_nothing_by_an_eviction() -> None:
    """In a file without nodes it is not known which are gone."""
    classes, held = [cls("high", 10), cls("low", 1)], pod("p", 1, "low", 1)
    assert "no-checkpoint" not in codes(checked(node() | machine("other", 4), *classes, held))
    assert "no-checkpoint" in codes(checked(*classes, held))


def test_a_grace_period_in_which_no_work_can_be_saved() -> None:
    notes = {"gpu-extender.io/saves-on-termination": "90s"}
    pods = [
        pod("p", 2, "low", 1, annotations=notes, grace=60),
        pod("enough", 2, "low", 1, annotations=notes, grace=90),
        pod("silent", 2, "low", 1, grace=0),
    ]
    answer = checked(node(), cls("high", 10), cls("low", 1), *pods)
    (found,) = findings(answer, "grace-too-short")
    assert found["about"] == "Pod/default/p"
    assert found["facts"] == {"pods": 1, "gpus": 2, "seconds": 90, "grace_seconds": 60}
    assert "needs up to 90 seconds to save work on termination, and is killed after 60 seconds" in found["message"]
    unsaved = {one["about"] for one in findings(answer, "no-checkpoint")}
    assert unsaved == {"Pod/default/p", "Pod/default/silent"}


def test_checkpoints_that_are_not_reported() -> None:
    """Two hours ago: 7,200 s x 2 GPUs count as lost, whatever the pod means to save."""
    notes = {"gpu-extender.io/checkpoint-interval": "1000"}
    items = [node(), cls("high", 10), cls("low", 1), pod("p", 2, "low", 1, annotations=notes)]
    answer = checked(*items)
    assert "no-checkpoint" not in codes(answer)
    (found,) = findings(answer, "checkpoint-not-reported")
    assert (found["severity"], found["facts"]) == ("info", {"pods": 1, "gpus": 2, "work_lost_gpu_seconds": 14_400})


def test_jobs_beyond_fifty_are_summed() -> None:
    pods = [pod(f"p{i:02}", 0 if i > 52 else 1, "low", 1, start=WALL - 100 - i) for i in range(53)]
    answer = checked({"kind": "Node"} | machine("n", 64), cls("high", 10), cls("low", 1), *pods)
    assert codes(answer).count("no-checkpoint") == MOST_JOBS
    (more,) = findings(answer, "no-checkpoint-more")
    assert more["facts"] == {"workloads": 3, "work_lost_gpu_seconds": 100 + 101 + 102}  # the cheapest three
    assert "3 more workloads of that kind are not listed" in more["message"]


def test_the_job_set_is_what_is_lost() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "controller": True}
    jobs: list[JSON] = []
    pods = []
    for i in range(2):
        meta = {"name": f"js-{i}", "namespace": "default", "ownerReferences": [owner]}
        jobs.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": 1}})
        pods.append(pod(f"p{i}", 1, "low", 1, owner="Job"))
        pods[-1]["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "name": f"js-{i}"}
    (found,) = findings(checked(node(), cls("high", 10), cls("low", 1), *jobs, *pods), "no-checkpoint")
    assert (found["about"], found["facts"]["pods"]) == ("jobset/default/js", 2)


def test_ranks_that_can_not_be_read_and_classes_that_are_not_there() -> None:
    answer = checked(cls("serve", 1, rank="first"), cls("train", 2, rank=1))
    (found,) = findings(answer, "rank-unreadable")
    assert (found["severity"], found["about"]) == ("error", "PriorityClass/serve")
    settings = preempting(
        intended_order=("system-node-critical", "gone", "serve"), minimum_run_seconds={"nosuch": 60.0},
        ceilings={"none": LossCeiling(gpu_hours=1.0)}, most_wait_seconds={"servee": 60},
    )  # fmt: skip
    settings = settings.model_copy(
        update={
            "claims": ClaimSettings(by_priority_class={"serv": ClaimBounds(gang_min=0)}),
            "placement": Placement(by_priority_class={"srve": "spread"}),
        }
    )
    answer = checked(cls("serve", 1), settings=settings)
    about = {one["code"]: one["about"] for one in answer["findings"] if one["severity"] == "error"}
    assert about["class-missing"] == "PriorityClass/gone"
    assert about["minimum-run-of-no-class"] == "PriorityClass/nosuch"
    assert about["ceiling-of-no-class"] == "PriorityClass/none"
    assert about["wait-of-no-class"] == "PriorityClass/servee"
    assert about["claims-of-no-class"] == "PriorityClass/serv"
    assert about["placement-of-no-class"] == "PriorityClass/srve"
    assert checks.exit_code(answer) == 10


def test_pods_of_the_system_classes_have_a_class() -> None:
    answer = checked(node(), pod("dcgm", 1, "system-node-critical", 2_000_001_000))
    (level,) = [one for one in answer["classes"] if one["pods"]]
    assert (level["name"], level["evicts"]) == ("system-node-critical", ["system-cluster-critical"])
    assert "pods-without-class" not in codes(answer)


def test_without_priority_classes_in_the_input_what_they_would_tell_is_unknown() -> None:
    """The pods name a class; that it is not listed does not make them pods without one, nor the class one that does
    not exist."""
    settings = preempting(intended_order=("high", "low"), minimum_run_seconds={"high": 60.0})
    items = [node(), pod("a", 2, "high", 100), pod("b", 1, "low", 1), quota({f"requests.{GPU}": "4"}, "high")]
    answer = checked(*items, settings=settings)
    levels = {one["name"]: (one["priority"], one["gpus"], one["evicts"]) for one in answer["classes"] if one["gpus"]}
    assert levels == {"high": (100, 2, ["low"]), "low": (1, 1, [])}
    assert not {"pods-without-class", "class-missing", "minimum-run-of-no-class", "quota-of-no-class"} & {
        *codes(answer)
    }
    (found,) = findings(answer, "classes-not-listed")
    assert (found["severity"], found["facts"]) == ("warning", {"pods": 2})
    assert "pods name high, low" in found["message"]
    assert "is unknown" in found["message"]
    # With classes in the input one that is missing there is missing in the cluster.
    answer = checked(*items, cls("low", 1), settings=settings)
    assert {"class-missing", "minimum-run-of-no-class", "quota-of-no-class"} <= {*codes(answer, "error")}
    (found,) = findings(answer, "class-not-listed")
    assert found["about"] == "PriorityClass/high"
    assert "pods-without-class" not in codes(answer)


def test_a_priority_that_is_neither_in_the_pod_nor_in_its_class_is_unknown() -> None:
    bare = pod("a", 2, "high")
    del bare["spec"]["priority"]
    (found,) = findings(checked(node(), bare), "classes-not-listed")
    assert "The priority of 1 pod is unknown and counts as 0" in found["message"]


def test_claims_that_the_scheduler_does_not_show_us() -> None:
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    both = pod("both", 1)
    both["spec"] |= claims
    only = {"kind": "Pod"} | workload("only", 0, node="n", phase="Running", spec=claims)
    (found,) = findings(checked(node(), both, only), "claims-not-shown")
    assert (found["severity"], found["facts"]) == ("info", {"pods": 1})


@pytest.mark.parametrize(
    ("spec", "allowed", "severity"),
    [({"maxUnavailable": 0}, 0, "error"), ({"minAvailable": 1}, 0, "warning"), ({"minAvailable": 1}, 1, None)],
)
def test_a_budget_that_blocks_everything(spec: JSON, allowed: int, severity: str | None) -> None:
    budget: JSON = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": spec | {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    answer = checked(node(), pod("p", labels={"app": "a"}), budget)
    found = [one["severity"] for one in findings(answer, "budget-blocks-all")]
    assert found == ([severity] if severity else [])
    budget["spec"]["selector"] = {}
    assert "budget-selects-all" in codes(checked(node(), pod("p"), budget))


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (quota({f"requests.{GPU}": "4"}, "low"), None),
        (quota({f"requests.{GPU}": "4"}, "none"), "quota-of-no-class"),
        (quota({f"requests.{GPU}": "4"}, "low", "high"), "quota-of-nobody"),
        (quota({f"limits.{GPU}": "4"}), "quota-not-enforced"),
        (quota({GPU: "4"}), "quota-not-enforced"),
        (quota({f"requests.{GPU}": "1"}), "quota-too-small"),
        (quota({f"requests.{GPU}": "0"}), "quota-too-small"),
        (quota({f"requests.{GPU}": "many"}), "quota-unreadable"),
        (quota({f"requests.{GPU}": "1"}, "high"), None),  # there is no pod of that class yet
        (quota({"requests.cpu": "0"}), "quota-too-small"),
        (quota({"cpu": "999m"}), "quota-too-small"),
        (quota({"cpu": "1"}), None),
        (quota({"requests.memory": "1023Mi"}), "quota-too-small"),
        (quota({"requests.memory": "1Gi"}), None),
        (quota({"limits.cpu": "0"}), "quota-too-small"),
        (quota({"limits.cpu": "1m"}), None),  # no pod there says a limit
        (quota({"pods": "0"}), "quota-too-small"),
        (quota({"requests.example.com/fpga": "0"}), "quota-too-small"),
        (quota({"configmaps": "0", "requests.storage": "0"}), None),  # these count no pods
    ],
)
def test_quotas_that_no_pod_can_meet(made: JSON, code: str | None) -> None:
    answer = checked(node(), cls("low", 1), cls("high", 2), pod("p", 2, "low", 1), made)
    assert [one for one in codes(answer) if one.startswith("quota")] == ([code] if code else [])


@pytest.mark.parametrize(
    ("scopes", "tests", "counted"),
    [
        (["Terminating"], [], False),
        (["NotTerminating"], [], True),
        (["NotBestEffort"], [], True),
        (["BestEffort"], [], False),
        ([], [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["low"]}], False),
        ([], [{"scopeName": "PriorityClass", "operator": "Exists"}], True),
        ([], [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}], False),
    ],
)
def test_whom_a_quota_speaks_of(scopes: list[str], tests: list[JSON], counted: bool) -> None:
    made = quota({f"requests.{GPU}": "1"})
    made["spec"] |= {"scopes": scopes, "scopeSelector": {"matchExpressions": tests}}
    answer = checked(node(), cls("low", 1), pod("p", 2, "low", 1), made)
    assert ("quota-too-small" in codes(answer)) == counted


@pytest.mark.parametrize(
    "spec",
    [
        {"hard": {"pods": 3, 5: 1}},
        {"scopes": 5},
        {"scopes": "Terminating"},
        {"scopeSelector": {"matchExpressions": 3}},
        {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": 5}]}},
    ],
)
def test_quotas_that_are_none_end_nothing(spec: JSON) -> None:
    """No record checks a quota: it stands there as in the file."""
    made = quota({}) | {"spec": spec}
    assert not [one for one in codes(checked(node(), pod("p", 2), made)) if one.startswith("quota-of-no-class")]


def test_resource_names_that_we_are_not_shown() -> None:
    other = pod("mig", 1, resource="nvidia.com/mig-1g.10gb")
    answer = checked({"kind": "Node"} | machine("n", 7, resource="nvidia.com/mig-1g.10gb"), other)
    (found,) = findings(answer, "resource-not-managed")
    assert found["about"] == "resource/nvidia.com/mig-1g.10gb"
    assert found["facts"] == {"pods": 1, "nodes": 1}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, [node(), cls("serve", 1, rank=2), cls("train", 2, rank=1), pod("p", 2, "train", 2)])
    assert main(["check", "--cluster", path, "-o", "json"]) == 10
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["summary"]["error"]) == ("Check", 1)
    assert main(["check", "--cluster", path]) == 10
    said = capsys.readouterr().out
    assert "train can evict serve" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["train", "2", "1", "2", "serve"] in rows
    assert "none" in next(row for row in rows if row[:1] == ["serve"])
    assert said.endswith("\n1 error, 0 warnings, 0 info\n")
    assert main(["check", "--cluster", file(tmp_path, [node(), pod("p", priority=-5, labels={})])]) == 0
    assert main(["check", "--cluster", str(tmp_path / "none")]) == 1


def sets() -> list[Path]:
    return sorted(path.parent for path in PRIORITIES.glob("*/classes.yaml"))


def loaded(path: Path) -> list[JSON]:
    return objects_in(path)


def built(folder: Path) -> list[JSON]:
    """What kustomize makes of resources, namespace and patches that name one object each."""
    (made,) = loaded(folder / "kustomization.yaml")
    items: list[JSON] = []
    for name in made["resources"]:
        items += built(folder / name) if (folder / name).is_dir() else loaded(folder / name)
    for item in items:
        if "namespace" in made:
            item["metadata"]["namespace"] = made["namespace"]
    for one in made.get("patches", ()):
        patch = objects_in(one["patch"])[0]
        (item,) = [item for item in items if item["metadata"]["name"] == patch["metadata"]["name"]]
        item["spec"]["hard"] |= patch["spec"]["hard"]
    return items


def test_the_quotas_of_teams() -> None:
    """Each namespace its own, no set of classes without quotas, and the built-in kustomize agrees where it is there."""
    folder = PRIORITIES / "teams"
    items = built(folder)
    hard = {(one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["hard"] for one in items}
    assert hard["team-a", "gpus-training"] == {f"requests.{GPU}": "32"}
    assert hard["team-b", "gpus-training"] == {f"requests.{GPU}": "0"}
    assert hard["team-b", "gpus-interactive"] == {f"requests.{GPU}": "8"}
    assert len(hard) == len(items) == 8
    if kubectl := shutil.which("kubectl"):
        made = subprocess.run(
            [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert {
            (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["hard"] for one in objects_in(made)
        } == hard


@pytest.mark.parametrize("path", sets(), ids=lambda path: path.name)
def test_the_classes_that_we_ship_are_in_order(path: Path) -> None:
    items = [*built(path), *built(path / "quotas")]
    for item in items:
        kubernetes_validate.validate(item, "1.37", strict=True)
    answer = checked(*json.loads(json.dumps(items)))
    assert codes(answer, "error") == []
    assert "no-intended-order" not in codes(answer)


@pytest.mark.parametrize("path", sets(), ids=lambda path: path.name)
def test_the_classes_that_we_ship_pass_check_strict(path: Path, tmp_path: Path) -> None:
    cluster = file(tmp_path, [node(), *built(path), *built(path / "quotas")])
    assert main(["check", "--strict", "--cluster", cluster]) == 0


OPTIONAL = {watched.path for watched in CHECKED_KINDS if watched.optional}


class FakeServer:
    """An API server that gives one object a page, and knows the kinds of its objects alone. `without`: a path that is
    refused."""

    def __init__(self, items: list[JSON], without: str = "") -> None:
        self.items, self.without = items, without

    async def __aenter__(self) -> FakeServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def get(self, path: str, params: dict[str, str], most: int | None = None) -> bytes:
        if path == self.without:
            raise client.ApiError(403, "forbidden")
        kind = next(watched.object_kind for watched in CHECKED_KINDS if watched.path == path)
        if path in OPTIONAL and not any(item["kind"] == kind for item in self.items):
            raise client.ApiError(404, "not found")
        there = [{k: v for k, v in item.items() if k != "kind"} for item in self.items if item["kind"] == kind]
        at = int(params.get("continue", "0"))
        more = str(at + 1) if at + 1 < len(there) else ""
        page = {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"continue": more}, "items": there[at : at + 1]}
        return json.dumps(page).encode()


@pytest.mark.parametrize(
    ("refused", "code"), [("", 10), ("/apis/jobset.x-k8s.io/v1alpha2/jobsets", 10), ("/api/v1/pods", 1)]
)
def test_a_live_cluster(
    refused: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a file of it: also the devices of DRA drivers, and what states the sizes of gangs."""
    items = [node("n"), node("m"), cls("serve", 1, rank=2), cls("train", 2, rank=1), pod("p", 2, "train", 2)]
    items += [{"kind": "Node"} | machine("d", 0)]
    items += dra.resource_slices("d", catalogued("dgx1-v100"), taints={1: "x"})

    async def connect(where: str | None, context: str | None) -> FakeServer:
        return FakeServer(items, refused)

    monkeypatch.setattr(client.ApiServer, "connect", connect)
    assert main(["check", "-o", "json"]) == code
    said = capsys.readouterr()
    if code == 1:
        assert json.loads(said.err)["error"]["code"] == "unreachable"
    else:
        answer = json.loads(said.out)
        gpus = {level["name"]: level["gpus"] for level in answer["classes"]}
        assert {name: gpus[name] for name in ("serve", "train")} == {"serve": 0, "train": 2}
        assert answer["summary"]["error"] == 1
        assert "devices-tainted" in codes(answer)
