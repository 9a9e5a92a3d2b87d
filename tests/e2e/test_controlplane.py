"""The harness itself: a real control plane, simulated kubelets, and what the product takes for granted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.sim.kubelet import PLAN
from extender.sim.machines import gpu_uuid
from tests.e2e import builders, forked
from tests.e2e.api import Api, Object, decode
from tests.e2e.cluster import ControlPlane, Scheduler
from tests.e2e.kubelet import RUN_SECONDS, SimulatedKubelets
from tests.waiting import wait_for

Schedulers = Callable[..., Scheduler]
Kubelets = Callable[..., SimulatedKubelets]


def in_phase(api: Api, name: str, namespace: str, phase: str, timeout: float = 60) -> Object:
    def look() -> Object | None:
        found = api.get("Pod", name, namespace)
        return found if found["status"].get("phase") == phase else None

    return wait_for(look, timeout, lambda: f"{name} {phase}: {api.get('Pod', name, namespace)['status']}")


def reported(pod: Object) -> list[str]:
    entries = [s.get("allocatedResourcesStatus", []) for s in pod["status"]["containerStatuses"]]
    return [r["resourceID"] for entry in entries for item in entry for r in item["resources"]]


def test_comes_up_within_15_seconds(binaries: Path) -> None:
    begun = time.monotonic()
    with ControlPlane(binaries) as running:
        running.start_scheduler({})
        taken = time.monotonic() - begun
        processes = [component.pid for component in running.components()]
    print(f"up in {taken:.1f} s")
    assert taken < 15
    assert not running.folder.exists()
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nothing_survives_the_death_of_the_test_process(binaries: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.e2e.cluster import ControlPlane\n"
        "running = ControlPlane(Path(sys.argv[1])); running.start()\n"
        "print(running.folder, *(c.pid for c in running.components()), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(binaries)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        folder, *pids = child.stdout.readline().decode().split()
        processes = [int(pid) for pid in pids]
        child.send_signal(signal.SIGKILL)
    assert len(processes) == 3

    def all_gone() -> bool:
        return not any(Path(f"/proc/{pid}/cmdline").exists() and _alive(pid) for pid in processes)

    wait_for(all_gone, 60, "the components end with their parent")
    wait_for(lambda: not Path(folder).exists(), 60, "their files go, too")


def _alive(pid: int) -> bool:
    try:
        # A zombie that init has not collected yet is dead for our purpose.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_scheduler_binds_and_kubelet_runs(api: Api, namespace: str, kubelets: Kubelets, scheduler: Schedulers) -> None:
    nodes = kubelets(termination_seconds=0.5)
    nodes.keeps_terminating = True
    nodes.add_node("gpu-0", topology="dgx1-v100")
    judge = scheduler()
    api.create(builders.pod("first", namespace, gpus=2, grace=30))
    pod = in_phase(api, "first", namespace, "Running")

    # The ids in the status are those that the device plugin gave, and the API server keeps them.
    held = nodes.truth.gpus_of(pod["metadata"]["uid"])
    assert len(held) == 2
    assert reported(pod) == [gpu_uuid("gpu-0", gpu) for gpu in sorted(held)]

    # A deleted pod keeps its GPUs until it has ended.
    api.delete("Pod", "first", namespace)
    assert nodes.truth.holdings()["gpu-0"]
    nodes.keeps_terminating = False
    wait_for(lambda: api.find("Pod", "first", namespace) is None, 60, "the pod is removed")
    assert nodes.truth.holdings() == {}

    key = 'scheduler_scheduling_algorithm_duration_seconds_count{profile="default-scheduler"}'
    series = judge.metrics()
    matching = [name for name in series if name.startswith(key.partition("{")[0])]
    assert sum(series[name] for name in matching) >= 1


def test_pod_ends_and_frees_its_gpus(api: Api, namespace: str, kubelets: Kubelets) -> None:
    nodes = kubelets()
    nodes.add_node("gpu-0", topology=None, count=2)
    pod = builders.pod("short", namespace, gpus=2, node_name="gpu-0", annotations={RUN_SECONDS: "0.3"})
    api.create(pod)
    in_phase(api, "short", namespace, "Succeeded")
    assert nodes.truth.holdings() == {}
    assert [event.what for event in nodes.truth.log()] == ["admitted", "released"]


def test_more_pods_than_gpus_are_refused_at_the_node(api: Api, namespace: str, kubelets: Kubelets) -> None:
    nodes = kubelets()
    nodes.add_node("gpu-0", topology=None, count=2)
    api.create(builders.pod("fits", namespace, gpus=2, node_name="gpu-0"))
    in_phase(api, "fits", namespace, "Running")
    api.create(builders.pod("late", namespace, gpus=1, node_name="gpu-0"))
    refused = in_phase(api, "late", namespace, "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert nodes.truth.reasons() == {"over-promised": 1}
    assert nodes.truth.double_allocations == 1

    api.delete("Pod", "fits", namespace)
    nodes.refuse(node="gpu-0", times=1)
    wait_for(lambda: nodes.truth.holdings() == {}, 60, "the GPUs are free")
    api.create(builders.pod("unlucky", namespace, gpus=1, node_name="gpu-0"))
    in_phase(api, "unlucky", namespace, "Failed")
    api.create(builders.pod("lucky", namespace, gpus=1, node_name="gpu-0"))
    in_phase(api, "lucky", namespace, "Running")


def test_a_plan_is_obeyed_or_refused(api: Api, namespace: str, kubelets: Kubelets) -> None:
    nodes = kubelets(report_seconds=0.2)
    nodes.add_node("gpu-0", topology="dgx1-v100", plugin="plan")
    api.create(builders.pod("planned", namespace, gpus=2, annotations={PLAN: "0,4"}, node_name="gpu-0"))
    pod = in_phase(api, "planned", namespace, "Running")
    assert nodes.truth.gpus_of(pod["metadata"]["uid"]) == {0, 4}
    assert reported(pod) == []
    ids = [gpu_uuid("gpu-0", 0), gpu_uuid("gpu-0", 4)]
    wait_for(lambda: reported(api.get("Pod", "planned", namespace)) == ids, 60, "the ids come later")
    api.create(builders.pod("clash", namespace, gpus=1, annotations={PLAN: "4"}, node_name="gpu-0"))
    in_phase(api, "clash", namespace, "Failed")
    assert nodes.truth.reasons() == {"plan-conflict": 1}
    assert nodes.truth.plans() == {"kept": 1}


def test_binding_annotations_reach_the_pod_in_the_same_write(api: Api, namespace: str) -> None:
    api.create(builders.node("gpu-0"))
    pod = api.create(builders.pod("chosen", namespace, gpus=2, annotations={"own": "stays"}))
    watch = api.watch("Pod", namespace, version=pod["metadata"]["resourceVersion"], seconds=60)
    api.bind(pod, "gpu-0", {PLAN: "0,3"})
    _, seen = next(iter(watch))
    watch.close()
    assert seen["spec"]["nodeName"] == "gpu-0"
    assert seen["metadata"]["annotations"] == {"own": "stays", PLAN: "0,3"}

    with pytest.raises(ApiError) as again:
        api.bind(pod, "gpu-0", {PLAN: "1,2"})
    assert again.value.status == 409
    assert api.get("Pod", "chosen", namespace)["metadata"]["annotations"][PLAN] == "0,3"

    stale: dict[str, Any] = {**pod, "metadata": {**pod["metadata"], "uid": "another"}}
    with pytest.raises(ApiError) as wrong:
        api.bind(stale, "gpu-0")
    assert wrong.value.status == 409


def test_budgets_are_counted_and_kept(api: Api, namespace: str, kubelets: Kubelets) -> None:
    kubelets().add_node("gpu-0")
    job = {"app": "train"}
    for name in ("a", "b"):
        api.create(builders.pod(name, namespace, gpus=1, labels=job, node_name="gpu-0"))
        in_phase(api, name, namespace, "Running")
    api.create(builders.pdb("budget", namespace, job, min_available=1))

    def allowed() -> int:
        found = api.get("PodDisruptionBudget", "budget", namespace)
        return int(found.get("status", {}).get("disruptionsAllowed", 0))

    wait_for(lambda: allowed() == 1, 60, "the controller counts the pods")
    api.evict("a", namespace)
    with pytest.raises(ApiError) as exhausted:
        api.evict("b", namespace)
    assert exhausted.value.status == 429


def test_gpu_failure_shows_on_the_node(api: Api, kubelets: Kubelets) -> None:
    nodes = kubelets()
    nodes.add_node("gpu-0")
    nodes.set_health("gpu-0", 3, healthy=False)
    node = api.get("Node", "gpu-0")
    assert node["status"]["allocatable"][builders.GPU] == "7"
    assert '"health":[true,true,true,false,' in node["metadata"]["annotations"]["gpu-extender.io/topology"]


def test_outage_of_the_api_server(control_plane: ControlPlane, api: Api, namespace: str, kubelets: Kubelets) -> None:
    nodes = kubelets()
    nodes.add_node("gpu-0", topology=None, count=1)
    api.create(builders.pod("before", namespace, node_name="gpu-0"))
    in_phase(api, "before", namespace, "Running")
    control_plane.stop_apiserver()
    time.sleep(1)  # an outage has a length
    control_plane.start_apiserver()
    api.delete("Pod", "before", namespace)
    wait_for(lambda: nodes.truth.holdings() == {}, 60, "kubelets see the deletion after the outage")
    api.create(builders.pod("after", namespace, node_name="gpu-0"))
    in_phase(api, "after", namespace, "Running")


def test_other_users_may_only_what_they_are_granted(control_plane: ControlPlane, api: Api) -> None:
    with control_plane.api_as("somebody", ["some-group"]) as other:
        with pytest.raises(ApiError) as no:
            other.list("Node")
        assert no.value.status == 403
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    api.create({**account, "metadata": {"name": "extender", "namespace": "default"}})
    try:
        assert '"token"' in control_plane.kubeconfig_of_account("default", "extender").read_text()
    finally:
        api.delete("ServiceAccount", "extender", "default")


@pytest.mark.parametrize("count", [int(os.environ.get("GPU_EXTENDER_E2E_NODES", "500"))])
def test_many_nodes_are_made_quickly(api: Api, kubelets: Kubelets, count: int) -> None:
    begun = time.monotonic()
    kubelets().add_nodes((f"gpu-{n:04}" for n in range(count)), topology="dgx-h100")
    taken = time.monotonic() - begun
    print(f"{count} nodes in {taken:.1f} s")
    assert taken < max(5, count / 100)
    assert len(api.list("Node")) == count


# -- servers that are forked: what waits for their ends ----------------------------------------------------------------


def test_several_threads_may_wait_for_one_server(tmp_path: Path) -> None:
    """Only one call of waitpid sees an end: the second one ended the process that forks, and each test after it."""
    server = forked.start(["--version"], tmp_path / "log", os.environ)
    waits = [server, *(forked.Forked(server._origin, server.pid) for _ in range(3))]
    with ThreadPoolExecutor(len(waits)) as threads:
        assert list(threads.map(lambda wait: wait.wait(30.0), waits)) == [0] * len(waits)


# -- the tests' own client: objects that no parser likes are still readable --------------------------------------------


def test_an_object_that_is_nested_too_deeply_is_read_without_its_managed_fields() -> None:
    deep = b'{"f:a":' * 3000 + b"{}" + b"}" * 3000
    one = b'{"metadata":{"name":"a","managedFields":[{"fieldsV1":%s,"manager":"}\\"{"}]},"spec":{"x":1}}'
    listed = b'{"items":[' + one % deep + b"," + one % b'{"k:{\\"name\\":\\"}\\"}":{}}' + b"]}"
    found = decode(listed)["items"]
    assert [item["spec"] for item in found] == [{"x": 1}, {"x": 1}]
    assert found[0]["metadata"]["managedFields"] == [{"fieldsV1": {}, "manager": '}"{'}]


def test_other_objects_are_read_whole() -> None:
    item: Object = {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}}
    assert decode(json.dumps(item).encode()) == item
