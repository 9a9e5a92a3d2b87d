"""The queue of all tenants while one of them attacks it. `make attack` runs each scene in its long form."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from extender.sim import claims as dra
from extender.sim.machines import machine
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.attack_accounts import Row, Waits, beside
from tests.e2e.attack_run import namespaces
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory, SchedulerFactory
from tests.e2e.queue_attack import ALL, HONEST, HOSTILE, LONG, POOLS, SCENES, SHORT, Attacker, Honest, remove
from tests.e2e.scene import scheduler_config
from tests.e2e.service import Service
from tests.e2e.test_dra import publish
from tests.waiting import wait_for

IN_FULL = bool(os.environ.get("GPU_EXTENDER_ATTACK"))
SIZES = LONG if IN_FULL else SHORT
HONEST_NODES, CLAIM_NODES = 7, 6
HOSTILE_NODES = 3 + SIZES.unwritable * 3 // 8
"""All pods of the hostile tenant have room in the control run: kube-scheduler tries none again and again."""
HOSTILE_LIMIT = 40  # GPUs
REPLICAS = 2
WARM_SECONDS = 2.0
PRODUCT = "nvidia.com/gpu.product"


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    """The rows of all scenes, which are printed in the end."""
    rows: list[Row] = []
    yield rows
    print("\nhonest gangs: median / longest wait without the attack, and beside it", *rows, sep="\n")


@pytest.fixture
def tenants(api: Api, kubelets: KubeletsFactory) -> Iterator[dict[str, str]]:
    """Nodes with device plugins, for each tenant its own, and nodes with a DRA driver; tenant -> namespace."""
    simulated = kubelets(seed=5)
    simulated.add_nodes([f"n{i}" for i in range(HONEST_NODES)], plugin="plan", labels=POOLS[HONEST])
    # No kubelet: it could not write the status of pods whose annotations are full.
    product = {PRODUCT: machine("dgx-h100").product}
    api.create_many(builders.node(f"m{i}", labels=POOLS[HOSTILE] | product) for i in range(HOSTILE_NODES))
    api.create(dra.device_class())
    publish(api, *(f"d{i}" for i in range(CLAIM_NODES)))
    spaces = namespaces(api, (HONEST, HOSTILE))
    api.create(dra.claim("gpus-1", spaces[HONEST], 1, template=True))
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": HOSTILE, "namespace": spaces[HOSTILE]},
    }
    api.create(account)
    meta: Any = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"namespace": spaces[HOSTILE]}}
    claims = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["*"]}
    api.create({**meta, "metadata": meta["metadata"] | {"name": "claims"}, "kind": "Role", "rules": [claims]})
    subject = {"kind": "ServiceAccount", "name": HOSTILE, "namespace": spaces[HOSTILE]}
    for kind, role in (("ClusterRole", "edit"), ("Role", "claims")):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        named = {**meta, "metadata": meta["metadata"] | {"name": role}}
        api.create({**named, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]})
    yield spaces
    remove(api, spaces.values())


@pytest.fixture
def servers(extender_process: ExtenderFactory, scheduler: SchedulerFactory, tenants: dict[str, str]) -> Iterator[None]:
    """Two replicas and a scheduler."""
    space = tenants[HOSTILE]
    settings = {
        "evictions": {"enabled": True, "lease": f"evictions-{space}"},
        "queue": {
            "enabled": True,
            "plannedAllocation": True,
            "lease": f"queue-{space}",
            "reservations": f"seats-{space}",
            "queues": {space: {"limitGpus": {machine("dgx-h100").product: HOSTILE_LIMIT}}},
        },
    }
    with Service() as service:
        for _ in range(REPLICAS):
            service.add(extender_process(settings))
        scheduler(scheduler_config(service.url, bind=True))
        yield


@pytest.mark.parametrize("scene", [*SCENES, ALL] if IN_FULL else [ALL])
@pytest.mark.usefixtures("servers")
def test_honest_gangs_beside_an_attack(
    control_plane: ControlPlane, tenants: dict[str, str], table: list[Row], scene: str
) -> None:
    """GPU_EXTENDER_ATTACK: any value, the long form of each scene; otherwise all at once in a short form."""
    token = control_plane.account_token(tenants[HOSTILE], HOSTILE)
    waits = [_run(control_plane, token, tenants, scene, gated=gated) for gated in (False, True)]
    row = beside(scene, *waits)
    table.append(row)
    assert not row.broken, str(row)


def _run(control_plane: ControlPlane, token: str, tenants: dict[str, str], scene: str, *, gated: bool) -> Waits:
    """One of the two runs of a scene. Everything of both tenants is gone after it."""
    api, hostile = control_plane.api, tenants[HOSTILE]
    with Api(control_plane.url, token, control_plane.ca) as its_api:
        attacker = Attacker(its_api, hostile, gated, SIZES)
        with Honest(api, tenants[HONEST]) as honest:
            wait_for(partial(_starts, honest), 60, "the first honest gangs start")
            time.sleep(WARM_SECONDS)
            began = time.monotonic()
            threads = attacker.attack(scene)
            try:
                time.sleep(SIZES.seconds)
            finally:
                attacker.ended.set()
                for thread in threads:
                    thread.join()
        waits = honest.waits(began)
        attacker.delete_pods()
    remove(api, tenants.values())
    wait_for(lambda: not any(api.list("Pod", space) for space in tenants.values()), 120, "all pods are gone")
    assert (honest.errors, attacker.errors) == ([], [])
    return Waits.of(waits)


def _starts(honest: Honest) -> bool:
    """Whether a gang of each kind has started."""
    return sum(wait.started for wait in honest.waits(0.0)) >= 2
