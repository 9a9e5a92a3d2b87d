"""Gangs whose owner creates part of the pods later, where manifests/claims-rewrite rewrites the pods to claims: the pod
template of the owner still asks for the extended resource."""

from __future__ import annotations

import pytest

from tests.act.queue.devices_rig import SETTINGS, DevicesRig, devices
from tests.act.queue.test_absent import absent, own
from tests.cluster.dra.world import DraWorld
from tests.queue.late_owners import OWNERS, LateOwner
from tests.world import GPU, JSON


def world(served: str) -> DraWorld:
    """Two nodes of a driver whose DeviceClass serves this resource."""
    made = DraWorld(SETTINGS)
    made.dra_class(extended_resource=served)
    for name in ("n1", "n2"):
        made.dra_node(name)
    return made


def rewritten(it: DevicesRig, owner: LateOwner, name: str) -> JSON:
    """A pod of the owner with its four GPUs by a claim."""
    it.claim(name, 4)
    pod = owner.make(name)
    pod["spec"]["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]
    pod["spec"]["resourceClaims"] = [{"name": "gpus-0", "resourceClaimName": name}]
    return pod


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
async def test_late_pods_take_their_seats_with_planned_devices(owner: LateOwner) -> None:
    async with devices(world(GPU)) as it:
        own(it.one, owner)
        it.one.create(*(rewritten(it, owner, name) for name in owner.early))
        await it.turn(3)
        assert len(absent(it.one)) == len(owner.late)
        for name in (*owner.early, *owner.late):
            if name in owner.late:
                it.one.create(rewritten(it, owner, name))
                await it.turn(3)
            assert it.one.is_open(name)
            assert it.allocated(name) == it.planned(name)
            it.one.bind(name)
            await it.turn()


async def test_without_a_class_that_serves_the_resource_no_seat_is_found_for_late_pods() -> None:
    """What docs/dra.md asks for: by their template the pods that are still to come get no GPUs of these nodes."""

    owner = OWNERS["StatefulSet, OrderedReady"]
    async with devices(world("")) as it:
        own(it.one, owner)
        it.one.create(*(rewritten(it, owner, name) for name in owner.early))
        await it.turn(3)
        assert not any(it.one.is_open(name) for name in owner.early)
        report = it.one.controller.report
        assert report is not None
        text = "1 of 3 pods fit in the cluster, whatever ends there"
        assert [(one.code, one.text) for one in report.waiting] == [("never", text)]
