"""Shadow mode on the real control plane: nothing is written, kube-scheduler places as without us, and the report is
right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.kube.client import ApiError
from extender.objects.queueing import GATE
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.cluster import AUDITED, ControlPlane
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory, SchedulerFactory
from tests.e2e.queueing import gates
from tests.e2e.rights import grant
from tests.e2e.scene import PAIRS, Scene, SceneFactory, quiet, scheduler_config
from tests.waiting import wait_for

SHADOW = {"mode": "shadow"}
ACCOUNT = "gpu-extender-observer"


@pytest.fixture
def observer(api: Api, control_plane: ControlPlane) -> Path:
    """The kubeconfig of an account with the rights of manifests/shadow, whose requests are audited."""
    wait_for(lambda: api.find("Namespace", AUDITED) is None, 60, "the namespace is gone")
    api.create(builders.namespace(AUDITED))
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": AUDITED}})
    grant(api, AUDITED, "shadow/observer.yaml", accounts=False)
    kubeconfig = control_plane.kubeconfig_of_account(AUDITED, ACCOUNT)
    control_plane.audit_log.write_text("")
    return kubeconfig


def prefers(node: str) -> dict[str, Any]:
    """Preferred node affinity that decides kube-scheduler's choice."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}}


def report(url: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["shadow", "--server", url, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def judged(url: str, capsys: pytest.CaptureFixture[str], pods: int) -> Any:
    """The report, once so many pods are compared."""

    def look() -> Any:
        found = report(url, capsys)
        return found if found["placements"]["judged"] >= pods else None

    return wait_for(look, 60, lambda: str(report(url, capsys)))


def split(cluster: Scene) -> None:
    """GPUs 0 and 2 of node `split` are held: no pair that is free is linked. 4 pods are compared."""
    names = [f"one{i}" for i in range(4)]
    for name in names:
        cluster.pod(name, 1, grace=1, node_selector={"kubernetes.io/hostname": "split"})
    cluster.running(*names)
    holder = {next(iter(cluster.gpus(name))): name for name in names}
    for gpu in (1, 3):
        cluster.api.delete("Pod", holder[gpu], cluster.namespace)
    cluster.kubelets.settle()
    wait_for(lambda: len(cluster.alive(names)) == 2, 60, "two are gone")


def written(control_plane: ControlPlane) -> list[tuple[str, str, int]]:
    """(verb, path, status) of the observer's requests that are no reads, or were not allowed."""
    account = f"system:serviceaccount:{AUDITED}:{ACCOUNT}"
    asked = wait_for(lambda: control_plane.audited(account), 60)
    found = [(one["verb"], one["requestURI"], one["responseStatus"]["code"]) for one in asked]
    assert {verb for verb, _, _ in found} >= {"list", "watch"}
    return [one for one in found if one[0] not in ("get", "list", "watch") or one[2] in (401, 403)]


def test_a_pure_observer_writes_nothing_and_reports_a_constructed_case(
    observer: Path,
    namespace: str,
    control_plane: ControlPlane,
    kubelets: KubeletsFactory,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api, simulated = control_plane.api, kubelets()
    for name in ("split", "whole"):
        simulated.add_node(name, **PAIRS)
    extender = extender_process(SHADOW, kubeconfig=observer)
    cluster = Scene(api, namespace, simulated, extender, scheduler({}))
    split(cluster)
    cluster.pod("two", 2, affinity=prefers("split"))
    assert cluster.running("two") == ["split"]
    found = judged(extender.url, capsys, 5)
    placed = found["placements"]
    assert (placed["same"], placed["other"], placed["wait"], placed["not_judged"]) == (4, 1, 0, {})
    assert placed["agreement"] == 0.8
    theirs, ours = found["kube_scheduler"], found["gpu_extender"]
    assert (theirs["linked_pods"], ours["linked_pods"]) == (0, 1)
    assert theirs["ring_gbps"] == 0 < ours["ring_gbps"]
    [example] = next(one for one in found["differences"] if one["kind"] == "linked")["examples"]["gained"]
    assert (example["pod"], example["gpu_extender"]["node"]) == (f"{namespace}/two", "whole")
    assert main(["shadow", "--server", extender.url]) == 0
    assert "agreement 80.0%" in capsys.readouterr().out
    assert written(control_plane) == []


def test_with_an_entry_in_the_scheduler_pods_are_placed_as_without_us(
    observer: Path,
    namespace: str,
    control_plane: ControlPlane,
    kubelets: KubeletsFactory,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same pods, first without an extender, then with one in shadow mode. Each prefers a node, so that chance
    decides nothing."""
    api, simulated = control_plane.api, kubelets()
    nodes = [f"n{i}" for i in range(4)]
    for name in nodes:
        simulated.add_node(name, **PAIRS)
    extender = extender_process(SHADOW, kubeconfig=observer)
    cluster = Scene(api, namespace, simulated, extender, scheduler({}))

    def place(prefix: str) -> list[str]:
        """Where six pods go; they are deleted then."""
        names = []
        for i in range(6):
            name = f"{prefix}{i}"
            cluster.pod(name, 2, links="required", grace=1, affinity=prefers(nodes[i * 3 % 4]))
            names += cluster.running(name)
        for i in range(6):
            api.delete("Pod", f"{prefix}{i}", namespace)
        wait_for(lambda: not api.list("Pod", namespace), 60, "all are gone")
        return names

    without = place("plain")
    cluster.scheduler.kill()
    scheduler(scheduler_config(extender.url, bind=False, default_profile=True))
    assert place("shadow") == without
    found = judged(extender.url, capsys, 12)
    assert sum(found["placements"][one] for one in ("same", "equal", "other", "wait")) == 12
    assert cluster.filter_calls() >= 6
    decision = cluster.decisions("shadow0")[0]
    assert decision["verb"] in ("filter", "prioritize")
    assert written(control_plane) == []


def test_preemptions_are_those_of_kube_scheduler_and_are_compared(
    scene: SceneFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-scheduler evicts the pod that started last. It would have to make up 600 s of work, the older one 0."""
    cluster = scene({"n1": PAIRS, "n2": PAIRS}, settings=SHADOW)
    cluster.api.create(builders.priority_class("high", 1000))
    for name, restart in (("older", "0"), ("younger", "600")):
        cluster.pod(name, 4, grace=1, annotations={"gpu-extender.io/restart-seconds": restart})
        cluster.running(name)
        quiet(1.1)  # startTime has whole seconds
    [node] = cluster.running("younger")
    cluster.pod("high", 4, priority_class="high")
    assert cluster.running("high") == [node]
    found = wait_for(lambda: _preempted(report(cluster.extender.url, capsys)), 60)
    theirs, ours = found["kube_scheduler"], found["gpu_extender"]
    assert (theirs["victims"], ours["victims"]) == (1, 1)
    assert theirs["work_lost_gpu_seconds"] - ours["work_lost_gpu_seconds"] > 4 * 500
    assert cluster.alive(["older", "younger"]) == {"older"}


def _preempted(found: Any) -> Any:
    return found if found["preemptions"]["other"] == 1 else None


def test_gates_of_ours_are_removed_and_neither_nomination_nor_gpus_are_written(scene: SceneFactory) -> None:
    cluster = scene({"n1": PAIRS}, settings=SHADOW)
    other = "example.com/wait"
    cluster.pod("gated", 1, schedulingGates=[{"name": GATE}])
    cluster.pod("both", 1, schedulingGates=[{"name": GATE}, {"name": other}])
    assert cluster.running("gated") == ["n1"]
    wait_for(lambda: gates(cluster.get("both")) == [other], 60, "our gate is gone, the other one is not")
    wait_for(lambda: "bind" in [one["verb"] for one in cluster.decisions("gated")], 60, "we bind the pod")
    notes = cluster.get("gated")["metadata"].get("annotations", {})
    assert not [key for key in notes if key.startswith("gpu-extender.io/")]
    assert cluster.get("both")["status"].get("nominatedNodeName") is None
    with pytest.raises(ApiError):
        cluster.api.get("Lease", "gpu-extender-queue", "kube-system")
    assert not [one for one in cluster.api.list("ConfigMap") if one["metadata"]["name"].startswith("gpu-extender")]
