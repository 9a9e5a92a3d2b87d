"""Advice for pods that are equal but for who allocates the devices of their claims."""

from __future__ import annotations

import pytest

from extender.ask import judge, machines
from extender.ask.capacity import growth
from extender.ask.machines import takes, usual
from extender.ask.pending import alike
from extender.objects.queueing import GATE
from tests.act.queue.devices_rig import world
from tests.ask.capacity.clusters import MODEL
from tests.cluster.dra.world import DraWorld
from tests.world import JSON, workload


def waits(made: DraWorld, name: str) -> JSON:
    made.claim(name, 4)
    gates = [{"name": GATE}]
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": name}], "schedulingGates": gates}
    return made.set("Pod", workload(name, 0, phase="Pending", spec=spec, links="required"))


@pytest.mark.parametrize("names", [("left", "planned"), ("planned", "left")])
def test_a_machine_takes_the_pods_whose_devices_the_queue_allocates(names: tuple[str, str]) -> None:
    """Its slices list the GPUs in another order: kube-scheduler may take four that are not linked."""
    made = world(nodes=1)
    note = dict(made.cluster.nodes["n1"].annotations)
    made.node("n1", 0, annotations=note, labels={MODEL: "A"})
    made.publish("n1", order=(7, 2, 1, 0, 3, 4, 5, 6))
    for name in names:
        waits(made, name)
    made.claimant("other", "left")
    left, planned = made.cluster.pods["uid-left"], made.cluster.pods["uid-planned"]
    assert (left.planned, planned.planned) == (False, True)
    over = judge.over(made.verbs)
    [machine] = usual(over, machines.read(over))
    [found] = growth(over, [(made.cluster.pods[f"uid-{name}"],) for name in names], None)
    assert (found["nodes"], found["pods"]) == (1, 1)
    taken = {name: takes(over, machine, over.claims.alone(made.cluster.pods[f"uid-{name}"])) for name in names}
    assert taken == {"left": False, "planned": True}
    assert alike(left) != alike(planned)
