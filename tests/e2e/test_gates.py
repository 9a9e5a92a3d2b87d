"""`gpu-extender gates off` and `gates open` on the real API server, with the rights of manifests/queue and no server of
ours: no gate of ours is left, and every other gate is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from extender.kube.pod_writes import AGE_LIMIT
from extender.objects.queueing import GATE
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import KubeletsFactory, SchedulerFactory
from tests.e2e.queueing import (
    GATED,
    SCHEDULER,
    SYSTEM,
    gates,
    installed,
    objects,
    pod,
    queued_namespace,
    refusal,
    tried,
)
from tests.e2e.scene import SceneFactory, quiet
from tests.kube import hostile
from tests.waiting import wait_for

OTHER = "example.com/quota"


@pytest.fixture
def queue(api: Api) -> Iterator[Api]:
    """The manifests are applied."""
    with installed(api):
        yield api


def age(made: Object) -> float:
    """Seconds since the API server created the object."""
    return time.time() - datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp()


def command(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`gpu-extender gates ...` with this kubeconfig."""
    called = [sys.executable, "-m", "extender", "gates", *words, f"--kubeconfig={kubeconfig}"]
    return subprocess.run(called, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def on_call(queue: Api, control_plane: ControlPlane) -> Iterator[Path]:
    """The kubeconfig of an account with the ClusterRole gpu-extender-queue-off and nothing else."""
    rbac = "rbac.authorization.k8s.io"
    queue.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "on-call", "namespace": SYSTEM}})
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "on-call"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "gpu-extender-queue-off"},
        "subjects": [{"kind": "ServiceAccount", "name": "on-call", "namespace": SYSTEM}],
    }
    queue.create(binding)
    kubeconfig = control_plane.kubeconfig_of_account(SYSTEM, "on-call")
    # A role takes the API server a moment to see.
    wait_for(lambda: command(kubeconfig, "open", "--older-than=9h", "--namespace=default").returncode == 0, 60)
    yield kubeconfig
    queue.delete("ClusterRoleBinding", "on-call")


def of_cron_job() -> list[str]:
    """The words of the CronJob's command after `gpu-extender gates`."""
    [made] = [one for one in objects() if one["kind"] == "CronJob"]
    [container] = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return list(container["command"][2:])


def left(api: Api) -> dict[str, list[str]]:
    """The gates of all pods that have some, by their names."""
    return {one["metadata"]["name"]: found for one in api.list("Pod") if (found := gates(one))}


def nested(api: Api, name: str, namespace: str) -> None:
    """A pod behind our gate that no decoder reads in full."""
    item = pod(name, namespace)
    managed = {"manager": "tenant", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    item["metadata"]["managedFields"] = [{**managed, "time": "2026-01-01T00:00:00Z"}]
    api.create_bytes("Pod", namespace, hostile.dumped(item, "fieldsV1", hostile.nested(1500)))


def test_off_leaves_no_gate_of_ours(queue: Api, on_call: Path) -> None:
    namespaces = [queued_namespace(queue) for _ in range(2)]
    many = [pod(f"p-{number}", namespaces[number % 2]) for number in range(512)]  # more than a page
    assert queue.create_many(many) == 512
    queue.create(pod("both", namespaces[0], schedulingGates=[{"name": OTHER}]))
    queue.create(builders.pod("other", namespaces[0], schedulingGates=[{"name": OTHER}], grace=0))
    queue.create(builders.pod("own", "default", 0, schedulingGates=[{"name": GATE}, {"name": OTHER}], grace=0))
    queue.create(builders.job("job", 3, pod("t", namespaces[1])))
    nested(queue, "deep", namespaces[1])
    wait_for(lambda: len(queue.list("Pod")) == 519, 60, "the Job's pods")
    assert len(left(queue)) == 519

    done = command(on_call, "off")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "deleted MutatingAdmissionPolicyBinding gpu-extender-queue: new pods get no gate",
        f"removed the gate {GATE} from 518 pods; none is left in the cluster",
    ]
    assert left(queue) == {"both": [OTHER], "other": [OTHER], "own": [OTHER]}
    assert queue.find("MutatingAdmissionPolicyBinding", "gpu-extender-queue") is None
    assert gates(tried(queue, pod("new", namespaces[0]))) == []
    again = command(on_call, "off")
    assert (again.returncode, again.stdout.count("none is left in the cluster")) == (0, 1)


def test_off_while_pods_come_and_go(queue: Api, on_call: Path) -> None:
    """A Job whose pods are deleted and made again while the command runs: none is gated in the end."""
    namespace = queued_namespace(queue)
    queue.create(builders.job("job", 40, pod("t", namespace)))
    wait_for(lambda: len(left(queue)) == 40, 60, "the Job's pods")
    called = [sys.executable, "-m", "extender", "gates", "off", f"--kubeconfig={on_call}"]
    with subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            for one in queue.list("Pod", namespace)[:5]:
                refusal(queue.delete, "Pod", one["metadata"]["name"], namespace, grace=0)
            time.sleep(0.05)
        out, error = running.communicate()
    assert running.returncode == 0, error
    assert "none is left in the cluster" in out
    assert left(queue) == {}


def test_released_pods_start_without_us(
    queue: Api, on_call: Path, kubelets: KubeletsFactory, scheduler: SchedulerFactory
) -> None:
    """A kube-scheduler that does not ask us: while gated nothing starts, after `off` everything does."""
    kubelets().add_node("n1")
    namespace = queued_namespace(queue)
    queue.create(builders.job("job", 4, pod("t", namespace)))
    wait_for(lambda: len(left(queue)) == 4, 60, "the Job's pods")
    scheduler({"profiles": [{"schedulerName": SCHEDULER}]})
    queue.create(pod("plain", "default"))
    wait_for(lambda: queue.get("Pod", "plain", "default")["spec"].get("nodeName"), 60, "the scheduler works")
    assert len(left(queue)) == 4
    assert not any(one["spec"].get("nodeName") for one in queue.list("Pod", namespace))
    assert command(on_call, "off").returncode == 0
    wait_for(lambda: [one["status"]["phase"] for one in queue.list("Pod", namespace)] == ["Running"] * 4, 60, "all run")


def test_released_pods_start_once_the_server_is_back(scene: SceneFactory, control_plane: ControlPlane) -> None:
    """The scheduler asks us, as in the manifests, and the server is gone. The gate is in the template."""
    cluster = scene({"n1": {"topology": "dgx-h100"}}, bind=False)
    cluster.extender.kill()
    template = builders.pod("t", cluster.namespace, grace=0, schedulingGates=[{"name": GATE}])
    cluster.api.create(builders.job("job", 4, template))
    wait_for(lambda: len(left(cluster.api)) == 4, 60, "the Job's pods")
    assert command(control_plane.kubeconfig(), "off").returncode == 0
    assert left(cluster.api) == {}
    quiet(3)
    assert not any(one["spec"].get("nodeName") for one in cluster.api.list("Pod", cluster.namespace))
    cluster.extender.start()
    wait_for(
        lambda: [one["status"]["phase"] for one in cluster.api.list("Pod", cluster.namespace)] == ["Running"] * 4,
        60,
        "all run",
    )


def test_open_releases_what_is_too_old(queue: Api, control_plane: ControlPlane) -> None:
    """The CronJob's command with its account; no server runs, none comes back."""
    usual, never, strict, invalid = (
        queued_namespace(queue, {AGE_LIMIT: limit} if limit else {}) for limit in ("", "never", "1s", "soon")
    )
    queue.create(pod("old-both", usual, schedulingGates=[{"name": OTHER}]))
    queue.create(pod("old-other", usual, scheduler="", schedulingGates=[{"name": OTHER}]))
    old = [queue.create(pod(f"old-{namespace}", namespace)) for namespace in (usual, never, strict, invalid)][-1]
    wait_for(lambda: age(old) > 10, 60, "the pods are old")
    new = [queue.create(pod(f"new-{namespace}", namespace)) for namespace in (usual, never, invalid, strict)][-1]
    wait_for(lambda: age(new) > 2, 60, "all pods are beyond the limit of the strict namespace")
    limit = int(age(old)) - 1  # by it the command may begin some seconds later, and new pods are new to it

    words = [f"--older-than={limit}s" if word.startswith("--older-than") else word for word in of_cron_job()]
    done = command(control_plane.kubeconfig_of_account(SYSTEM, "gpu-extender-queue-open"), *words)
    assert done.returncode == 0, done.stderr
    assert f"namespace {invalid}: {AGE_LIMIT}: 'soon' is no duration" in done.stderr
    assert f"removed the gate {GATE} from 2 pods of namespace {usual}: older than {limit}s" in done.stdout
    assert left(queue) == {
        "old-both": [OTHER],
        "old-other": [OTHER],
        f"new-{usual}": GATED,
        f"old-{never}": GATED,
        f"new-{never}": GATED,
        f"new-{invalid}": GATED,
    }
    policy: Any = queue.find("MutatingAdmissionPolicyBinding", "gpu-extender-queue")
    assert policy is not None  # the queue stays on

    forbidden = command(control_plane.kubeconfig_of_account(SYSTEM, "gpu-extender-queue-open"), "off")
    assert forbidden.returncode == 1
    assert "403" in forbidden.stderr


def test_a_new_pod_of_the_same_name_keeps_its_gate(queue: Api) -> None:
    """The patch names the uid: what was listed as old is not the pod that has its name now."""
    namespace = queued_namespace(queue)
    old = queue.create(pod("set-0", namespace))
    queue.delete("Pod", "set-0", namespace, grace=0, uid=old["metadata"]["uid"])
    new = queue.create(pod("set-0", namespace))
    patch: Object = {
        "metadata": {"uid": old["metadata"]["uid"]},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]},
    }
    said = refusal(queue.patch, "Pod", "set-0", patch, namespace, how="strategic")
    assert said.startswith("422")
    assert "metadata.uid" in said
    assert gates(queue.get("Pod", "set-0", namespace)) == GATED
    patch["metadata"]["uid"] = new["metadata"]["uid"]
    for _ in range(2):  # it may be sent twice
        queue.patch("Pod", "set-0", patch, namespace, how="strategic")
        assert gates(queue.get("Pod", "set-0", namespace)) == []
