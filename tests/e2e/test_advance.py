"""A reservation for a date on a real control plane: pods save, move to places held for them, and it is kept on time."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.objects.advance import CONFIG_MAP
from extender.times import rfc3339
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import SETTINGS_HEAD
from tests.e2e.rights import grant
from tests.e2e.scene import V100, Scene, SceneFactory
from tests.e2e.test_saving import OURS, settings
from tests.waiting import wait_for

SECONDS = 100
"""Until the reservation begins: three moves of about 15 s each, and a restart."""


def stateful_set(name: str, template: Object) -> Object:
    made = builders.replica_set(name, 1, template)
    return made | {"kind": "StatefulSet", "spec": made["spec"] | {"serviceName": name}}


def tenant_of(api: Api) -> str:
    """Another namespace."""
    return str(api.create({**builders.namespace(""), "metadata": {"generateName": "e2e-"}})["metadata"]["name"])


def held_by(cluster: Scene, name: str) -> dict[str, str]:
    """The nodes of the pods of an owner that do not terminate, by uid, "" without one."""
    return {
        pod["metadata"]["uid"]: pod["spec"].get("nodeName", "")
        for pod in cluster.api.list("Pod", cluster.namespace)
        if pod["metadata"].get("ownerReferences", [{}])[0].get("name") == name
        and "deletionTimestamp" not in pod["metadata"]
    }


def on(cluster: Scene, name: str, node: str) -> bool:
    """Whether the one pod of an owner is on the node."""
    return list(held_by(cluster, name).values()) == [node]


def placed(cluster: Scene) -> dict[str, dict[str, str]]:
    """A Job on n1, a ReplicaSet on n2, a StatefulSet on n3, a bare pod on n4: 2 GPUs each."""
    api, namespace = cluster.api, cluster.namespace
    template = builders.pod("", namespace, 2, grace=1, annotations={OURS + "saves-on-request": "10s"})
    owners = [builders.job("train", 1, template), builders.replica_set("web", 1, template)]
    owners.append(stateful_set("db", template))
    for at in (2, 3, 4):
        cluster.pod(f"full-{at}", 8, node_name=f"n{at}", grace=0)
    for at, owner in enumerate(owners, 1):
        api.create(owner)
        name = owner["metadata"]["name"]
        wait_for(partial(on, cluster, name, f"n{at}"), 60, f"{name} runs")
        cluster.pod(f"rest-{at}", 6, node_name=f"n{at}", grace=0)
        api.delete("Pod", f"full-{at + 1}", namespace)
    for at in (1, 2, 3):
        api.delete("Pod", f"rest-{at}", namespace)
    cluster.pod("anchor", 2, node_name="n4", grace=0)
    cluster.running("anchor")
    return {owner["metadata"]["name"]: held_by(cluster, owner["metadata"]["name"]) for owner in owners}


def save(cluster: Scene) -> None:
    """Pods that are asked answer that they have saved."""
    for pod in cluster.api.list("Pod", cluster.namespace):
        notes = pod["metadata"].get("annotations") or {}
        if (asked := notes.get(OURS + "save-requested")) and OURS + "saved" not in notes:
            answer = {"metadata": {"annotations": {OURS + "saved": json.loads(asked)["id"]}}}
            cluster.api.patch("Pod", pod["metadata"]["name"], answer, cluster.namespace)


def shown(cluster: Scene) -> Object:
    """The reservation as /debug/queue has it."""
    found = cluster._page("/debug/queue").json()["advance_reservations"]
    return found[0] if found else {"phase": "", "text": ""}


def test_a_reservation_is_kept_by_moves(
    scene: SceneFactory, control_plane: ControlPlane, api: Api, namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With no more rights than the manifests give. The server is killed in the middle; pods of another tenant with the
    name of an owner that moves want its GPUs all the time."""
    grant(api, namespace, "deployment.yaml", "evictions/rights.yaml")
    account = control_plane.kubeconfig_of_account(namespace, "gpu-scheduler")
    chosen = settings(namespace, 600)
    cluster = scene(
        {f"n{at}": V100 for at in (1, 2, 3, 4)}, settings=chosen, kubeconfig=account, kubelet={"termination_seconds": 1}
    )
    before = placed(cluster)
    tenant, other = tenant_of(api), tenant_of(api)
    wait_for(lambda: len(cluster.known()) == 4, 60, "the server knows the pods")
    since = time.time() + SECONDS
    config = tmp_path / "settings.json"
    config.write_text(json.dumps(SETTINGS_HEAD | chosen))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig()))
    words = ["plan", "--server", cluster.extender.url, "--config", str(config), "--for", "3x8", "--at", rfc3339(since)]
    assert main([*words, "--until", rfc3339(since + 3600), "--namespace", tenant, "--apply"]) == 10
    assert len(api.get("ConfigMap", CONFIG_MAP, namespace)["data"]) == 1
    wait_for(lambda: shown(cluster)["phase"] not in ("", "no-place"), 60, lambda: str(shown(cluster)))
    api.create(builders.replica_set("web", 4, builders.pod("", other, 2, grace=1)))

    def moved() -> dict[str, dict[str, str]]:
        save(cluster)
        now = {name: held_by(cluster, name) for name in before}
        return {name: pods for name, pods in now.items() if pods and not pods.keys() & before[name].keys()}

    wait_for(moved, 90, lambda: f"the first one moves: {shown(cluster)}")
    cluster.extender.restart()
    wait_for(lambda: len(moved()) == 3, 120, lambda: f"all have moved: {shown(cluster)}")

    def at_their_places() -> bool:
        return all(on(cluster, name, "n4") for name in before)

    wait_for(at_their_places, 60, lambda: str({name: held_by(cluster, name) for name in before}))
    wait_for(lambda: shown(cluster)["phase"] in ("ready", "in-use"), 60, lambda: str(shown(cluster)))
    assert time.time() < since, "it was free on time"
    assert all(not pod["spec"].get("nodeName") for pod in api.list("Pod", other))
    wait_for(lambda: time.time() >= since, SECONDS, "its date")
    for at in range(3):
        api.create(builders.pod(f"ml-{at}", tenant, 8))

    def used() -> bool:
        nodes: list[Any] = [pod["spec"].get("nodeName") for pod in api.list("Pod", tenant)]
        return sorted(filter(None, nodes)) == ["n1", "n2", "n3"]

    wait_for(used, 60, lambda: f"its pods: {shown(cluster)}")
    assert all(not pod["spec"].get("nodeName") for pod in api.list("Pod", other))
    wait_for(  # the pods may be there before the next look counts it
        lambda: cluster.metric("gpu_extender_advance_reservations_total", 'outcome="on-time"') == 1, 30, "it is counted"
    )
