"""Gangs whose claims take all GPUs of a node or one of several numbers, or are shared: no gate opens where not all get
their devices."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.tables import FIRST_GPU
from extender.objects.queueing import GATE
from extender.reservations.advance import Held, seat
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.rig import rig
from tests.ask.whatif.test_claims import node
from tests.waiting import run_bounded
from tests.world import JSON, World, workload

Nodes = dict[str, tuple[int, ...]]
ALL: JSON = {"exactly": {"deviceClassName": dra.DRIVER, "allocationMode": "All"}}


def first_of(*counts: int) -> JSON:
    """A request for the first of these numbers."""
    return {"firstAvailable": [{"name": f"n{one}", "deviceClassName": dra.DRIVER, "count": one} for one in counts]}


def claim(name: str, request: JSON) -> JSON:
    made = dra.claim(name, "default", 1)
    made["spec"]["devices"]["requests"] = [{"name": "r"} | request]
    return made


def pod(name: str, size: int, *claims: str, **spec: Any) -> JSON:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(size)}
    named = [{"name": one, "resourceClaimName": one} for one in claims]
    return workload(
        name, 0, annotations=notes, spec={"schedulingGates": [{"name": GATE}], "resourceClaims": named} | spec
    )


async def started(
    nodes: Nodes, claims: list[JSON], pods: list[JSON], *, planned: bool = False, dated: int = 0
) -> tuple[list[str], list[int], list[str]]:
    """(the node of each pod whose gate is open, the GPUs of each seat, why the gangs wait). `dated`: GPUs of n1
    that are held for a date."""
    queue = {"enabled": True, "plannedAllocation": planned}
    world = World(
        Settings.model_validate(
            {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration", "queue": queue}
        )
    )
    for one in [dra.device_class(), *(item for name, taken in nodes.items() for item in node(name, *taken)), *claims]:
        world.set(one["kind"], one)
    amounts = (*[0] * FIRST_GPU, dated, *[0] * (len(world.cluster.resources) - FIRST_GPU - 1))
    held = Held("date", (seat("date", 0, "n1", amounts, world.now),), world.wall + 600, world.wall + 900)
    world.verbs.claims.advance.take([held] if dated else [], world.wall - world.now)
    async with rig(world) as queued:
        queued.create(*pods)
        await queued.turns(3, 1.1)
        names = [body["metadata"]["name"] for body in pods]
        opened = [queued.pod(name)["status"]["nominatedNodeName"] for name in names if queued.is_open(name)]
        report = queued.controller.report
        waits = [waiting.text for waiting in (report.waiting if report is not None else ())]
        return opened, [seat.amounts[3] for seat in queued.seats], waits


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    ("nodes", "request_", "count", "where", "gpus"),
    [
        ({"n1": ()}, ALL, 2, [], []),
        ({"n1": (), "n2": (0,)}, ALL, 2, [], []),
        ({"n1": (), "n2": ()}, ALL, 2, ["n1", "n2"], [8, 8]),
        ({"n1": (0, 1)}, first_of(4, 2), 3, [], []),  # the first takes 4, the second 2, and the third none
        ({"n1": ()}, first_of(4, 2), 2, ["n1", "n1"], [4, 4]),
        ({"n1": (0, 1, 2, 3)}, first_of(16, 2), 2, ["n1", "n1"], [2, 2]),  # no node has 16
        ({"n1": (0, 1, 2, 3)}, first_of(2, 4), 2, ["n1", "n1"], [2, 2]),  # 4 are never taken
        ({"n1": (0, 1, 2, 3, 4)}, first_of(4, 2), 1, ["n1"], [2]),  # a pod alone takes the first that fits
    ],
)
def test_a_gang_starts_where_all_of_it_get_their_devices(
    nodes: Nodes, request_: JSON, count: int, where: list[str], gpus: list[int], planned: bool
) -> None:
    names = [f"p{number}" for number in range(count)]
    claims = [claim(name, request_) for name in names]
    opened, seats, waits = run_bounded(
        started(nodes, claims, [pod(name, count, name) for name in names], planned=planned)
    )
    assert (opened, seats, bool(waits)) == (where, gpus, not where)
    assert where or "the most GPUs that its claims may take" in waits[0]


@pytest.mark.parametrize("planned", [False, True])
def test_a_claim_that_pods_of_a_gang_share_counts_once(planned: bool) -> None:
    """And both are on its node."""
    eight = dra.claim("shared", "default", 8)
    pods = [pod(name, 2, "shared") for name in "ab"]
    found = run_bounded(started({"n1": (), "n2": ()}, [eight], pods, planned=planned))
    assert (found[0], found[1]) == (["n1", "n1"], [8, 0])
    assert not run_bounded(started({"n1": (0,)}, [eight], pods, planned=planned))[0]


def test_pods_that_share_a_claim_and_may_not_share_a_node_wait() -> None:
    pods = [pod(name, 2, "shared", nodeSelector={"kubernetes.io/hostname": f"n{at}"}) for at, name in enumerate("ab")]
    opened, _, [why] = run_bounded(started({"n0": (), "n1": ()}, [dra.claim("shared", "default", 2)], pods))
    assert not opened
    assert "pods that share a claim of pod default/a differ in where they may run" in why


def test_pods_with_a_claim_of_all_and_pods_with_a_number() -> None:
    claims = [claim("all", ALL), dra.claim("two", "default", 2)]
    pods = [pod("a", 2, "all"), pod("b", 2, "two")]
    assert not run_bounded(started({"n1": ()}, claims, pods))[0]
    assert run_bounded(started({"n1": (), "n2": (0, 1)}, claims, pods))[0] == ["n1", "n2"]


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(("dated", "opened"), [(4, (["n1"], [4])), (5, ([], []))])
def test_a_pod_does_not_start_where_kube_scheduler_would_give_it_reserved_gpus(
    planned: bool, dated: int, opened: tuple[list[str], list[int]]
) -> None:
    """It would take four GPUs, of which it has three."""
    claims, pods = [claim("c", first_of(4, 2))], [pod("p", 1, "c")]
    assert run_bounded(started({"n1": ()}, claims, pods, planned=planned, dated=dated))[:2] == opened
