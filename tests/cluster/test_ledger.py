"""The ledger: which pod holds which GPU, and how we know. Nodes of 8 GPUs unless said otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster import ledger, statements
from extender.cluster.statements import HELD, PLAN, NodeGpus, NodeLedger
from extender.objects import records

RESOURCE = "nvidia.com/gpu"
ALL = 0b1111_1111
UUIDS = {f"GPU-{i}": i for i in range(8)}


def pod(uid: str, gpus: int, *, held: str = "", plan: str = "", seen: tuple[str, ...] = ()) -> records.PodRecord:
    """A running pod. `held` and `plan`: the annotations; `seen`: the device ids of allocatedResourcesStatus."""
    annotations = {name: text for name, text in ((HELD, held), (PLAN, plan)) if text}
    container: dict[str, Any] = {"name": "c", "resources": {"limits": {RESOURCE: str(gpus)}} if gpus else {}}
    status: dict[str, Any] = {"phase": "Running"}
    if seen:
        devices = [{"resourceID": identity} for identity in seen]
        status["containerStatuses"] = [
            {"name": "c", "allocatedResourcesStatus": [{"name": RESOURCE, "resources": devices}]}
        ]
    return records.pod(
        {
            "metadata": {"name": uid, "uid": uid, "annotations": annotations},
            "spec": {"nodeName": "n", "containers": [container]},
            "status": status,
        },
        frozenset({RESOURCE}),
    )


def read(
    *pods: records.PodRecord,
    healthy: int = ALL,
    index_of: dict[str, int] | None = None,
    settling: str = "",
    relayed: bool = False,
) -> NodeLedger:
    ids = UUIDS if index_of is None else index_of
    devices = NodeGpus(RESOURCE, ALL if healthy else 0, healthy, ids, relayed)
    return ledger.read(pods, devices, frozenset(settling.split()))


def sums(made: NodeLedger) -> tuple[int, int, int, int, int]:
    return made.sure, made.likely, made.unknown, made.pending, made.doubled


def facts(made: NodeLedger) -> list[tuple[str, tuple[int, ...] | None, str, int, int]]:
    return [(one.uid, one.gpus, one.how, one.mask, one.unsure) for one in made.holdings]


def test_observed_by_uuid() -> None:
    made = read(pod("a", 2, seen=("GPU-3", "GPU-0")))
    assert facts(made) == [("a", (0, 3), "observed", 0b1001, 0)]
    assert sums(made) == (0b1001, 0, 0, 0, 0)


def test_observed_by_the_annotation() -> None:
    made = read(pod("a", 3, held="c1=0,3;c2=5"))
    assert facts(made) == [("a", (0, 3, 5), "observed", 0b101001, 0)]


def test_kubelet_is_believed_before_the_annotations() -> None:
    made = read(pod("a", 1, seen=("GPU-1",), held="2", plan="3"))
    assert facts(made) == [("a", (1,), "observed", 0b10, 0)]


def test_the_agent_is_believed_before_the_plan() -> None:
    assert facts(read(pod("a", 1, held="2", plan="3"))) == [("a", (2,), "observed", 0b100, 0)]


def test_a_device_id_that_nobody_knows_says_nothing() -> None:
    made = read(pod("a", 2, seen=("GPU-0", "GPU-99")))
    assert facts(made) == [("a", None, "unknown", 0, 2)]
    assert sums(made) == (0, 0, 2, 0, 0)


def test_device_ids_without_uuids_of_the_node_say_nothing() -> None:
    assert facts(read(pod("a", 1, seen=("GPU-0",), held="4"), index_of={})) == [("a", (4,), "observed", 0b10000, 0)]


def test_planned() -> None:
    made = read(pod("a", 2, plan="6,1"))
    assert facts(made) == [("a", (1, 6), "planned", 0, 2)]
    assert sums(made) == (0, 0b1000010, 0, 0, 0)


def test_a_plan_that_an_observation_contradicts_is_unknown() -> None:
    made = read(pod("a", 2, held="0,1"), pod("b", 2, plan="1,2"))
    assert facts(made) == [("a", (0, 1), "observed", 0b11, 0), ("b", None, "unknown", 0, 2)]
    assert sums(made) == (0b11, 0, 2, 0, 0)


def test_of_two_plans_for_one_gpu_the_first_uid_has_it() -> None:
    made = read(pod("b", 2, plan="1,2"), pod("a", 2, plan="0,1"))
    assert facts(made) == [("a", (0, 1), "planned", 0, 2), ("b", None, "unknown", 0, 2)]
    assert sums(made) == (0, 0b11, 2, 0, 0)


@pytest.mark.parametrize("plan", ["0", "0,1,2", "0,8", "0,0", "0;", "zero,one", "0 1", "-1,0", "٣,1", "100,1"])
def test_a_plan_that_can_not_be_true_is_unknown(plan: str) -> None:
    assert facts(read(pod("a", 2, plan=plan))) == [("a", None, "unknown", 0, 2)]


def test_predicted_when_one_set_is_left() -> None:
    made = read(pod("a", 5, held="0,1,2,3,4"), pod("b", 3))
    assert facts(made)[1] == ("b", (5, 6, 7), "predicted", 0b11100000, 0)
    assert sums(made) == (ALL, 0, 0, 0, 0)  # all eight are sure


def test_two_silent_pods_are_not_predicted() -> None:
    made = read(pod("a", 6, held="0,1,2,3,4,5"), pod("b", 1), pod("c", 1))
    assert [one.how for one in made.holdings] == ["observed", "unknown", "unknown"]
    assert sums(made) == (0b111111, 0, 2, 0, 0)


def test_not_predicted_while_more_than_its_set_is_free() -> None:
    assert facts(read(pod("a", 4, held="0,1,2,3"), pod("b", 3)))[1] == ("b", None, "unknown", 0, 3)


def test_not_predicted_while_another_holds_some_that_are_not_seen() -> None:
    # a holds 3, of which 2 are seen: the third is one of the six that are left, so b's six cannot be told.
    made = read(pod("a", 3, held="0,1"), pod("b", 6))
    assert facts(made)[1] == ("b", None, "unknown", 0, 6)


def test_unhealthy_gpus_are_not_left_to_predict() -> None:
    made = read(pod("a", 3, held="0,1,2"), pod("b", 4), healthy=0b0111_1111)
    assert facts(made)[1] == ("b", (3, 4, 5, 6), "predicted", 0b1111000, 0)


def test_partial() -> None:
    made = read(pod("a", 3, seen=("GPU-0", "GPU-1")))
    assert facts(made) == [("a", (0, 1), "observed", 0b11, 1)]
    assert sums(made) == (0b11, 0, 1, 0, 0)  # the third is somewhere


def test_doubled() -> None:
    made = read(pod("a", 2, held="0,1"), pod("b", 2, held="1,2"))
    assert [one.how for one in made.holdings] == ["observed", "observed"]
    assert sums(made) == (0b111, 0, 0, 0, 1)  # GPU 1 twice


def test_settling_is_pending() -> None:
    made = read(pod("a", 2), pod("b", 1, plan="7"), pod("c", 4), settling="a b x")
    assert [(one.uid, one.how) for one in made.holdings] == [("a", "unknown"), ("b", "planned"), ("c", "unknown")]
    # a and b will be seen soon: 2 + 1; c (4) has run for long and nobody says.
    assert sums(made) == (0, 0b10000000, 6, 3, 0)


def test_what_is_seen_is_not_pending() -> None:
    assert read(pod("a", 2, held="0,1"), settling="a").pending == 0


def test_what_is_predicted_is_not_pending() -> None:
    made = read(pod("a", 6, held="0,1,2,3,4,5"), pod("b", 2), settling="b")
    assert made.holdings[1].how == "predicted"
    assert made.pending == 0


def test_a_held_gpu_that_fell_ill_stays_observed() -> None:
    assert facts(read(pod("a", 2, held="0,3"), healthy=0b1111_0111)) == [("a", (0, 3), "observed", 0b1001, 0)]


def test_more_gpus_than_asked_can_not_be_true() -> None:
    assert facts(read(pod("a", 2, held="0,1,2"))) == [("a", None, "unknown", 0, 2)]


def test_more_than_16_gpus_have_no_positions_by_uuid_either() -> None:
    made = read(pod("a", 1, seen=("GPU-40",)), healthy=0, index_of={f"GPU-{i}": i for i in range(64)})
    assert sums(made) == (0, 0, 1, 0, 0)


def test_a_plan_for_the_only_set_left_is_sure() -> None:
    assert sums(read(pod("a", 6, held="0,1,2,3,4,5"), pod("b", 2, plan="6,7"))) == (ALL, 0, 0, 0, 0)


def test_more_than_16_gpus_are_counted_and_not_placed() -> None:
    made = read(pod("a", 20), pod("b", 2, plan="0,1"), pod("c", 1, held="5"), healthy=0)
    assert {one.how for one in made.holdings} == {"unknown"}
    assert sums(made) == (0, 0, 23, 0, 0)


def test_pods_without_gpus_are_not_in_it() -> None:
    assert facts(read(pod("a", 0, plan="0"))) == []


def test_another_resource_is_not_counted() -> None:
    made = ledger.read([pod("a", 2)], NodeGpus("amd.com/gpu", ALL, ALL))
    assert made == NodeLedger()


def test_the_order_of_the_pods_does_not_matter() -> None:
    pods = [pod("c", 1), pod("a", 2, held="0,1"), pod("b", 2, plan="2,3"), pod("d", 2, plan="3,4")]
    assert read(*pods) == read(*reversed(pods))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0,3", (0, 3)), ("3,0", (0, 3)), ("c1=0,3;c2=5", (0, 3, 5)), (" 1 , 2 ", (1, 2)), ("", None), ("a=", None),
     ("1,1", None), ("c1=1;c2=1", None), ("1,", None), ("1.0", None), ("+1", None)],
)  # fmt: skip
def test_indices(text: str, expected: tuple[int, ...] | None) -> None:
    assert statements.indices(text) == expected


def test_masks() -> None:
    assert statements.mask_of([0, 3]) == 0b1001
    assert statements.gpus_of(0b1001) == (0, 3)
    assert statements.gpus_of(0) == ()


# ---- a node whose relay hands out what was planned


def test_a_plan_is_sure_where_a_relay_enforces_it() -> None:
    """Nothing of it is pending or likely, though kubelet has not said a word yet."""
    made = read(pod("a", 2, plan="0,3"), pod("b", 1, plan="5"), settling="a b", relayed=True)
    assert facts(made) == [("a", (0, 3), "enforced", 0b1001, 0), ("b", (5,), "enforced", 0b10_0000, 0)]
    assert sums(made) == (0b10_1001, 0, 0, 0, 0)


def test_what_is_seen_comes_before_what_was_enforced() -> None:
    """The pod holds 1, 2 and not its plan; the plan over a GPU that another is seen to hold is not believed."""
    made = read(pod("a", 2, plan="0,3", seen=("GPU-1", "GPU-2")), pod("b", 2, plan="2,5"), relayed=True)
    assert facts(made) == [("a", (1, 2), "observed", 0b110, 0), ("b", None, "unknown", 0, 2)]


def test_enforced_plans_that_contradict_each_other_or_the_health() -> None:
    made = read(pod("a", 2, plan="0,3"), pod("b", 2, plan="3,4"), pod("c", 1, plan="7"), healthy=0x7F, relayed=True)
    assert [(one.uid, one.how) for one in made.holdings] == [("a", "enforced"), ("b", "unknown"), ("c", "unknown")]
    assert made.sure == 0b1001


def test_what_kubelet_said_of_unknown_ids_is_no_plan() -> None:
    """The node came back with other GPUs: what the pod was planned to hold says nothing about these."""
    made = read(pod("a", 2, plan="0,3", seen=("GPU-old", "GPU-older")), relayed=True)
    assert facts(made) == [("a", (0, 3), "planned", 0, 2)]


def test_the_last_set_is_told_when_the_others_are_enforced() -> None:
    made = read(pod("a", 6, plan="0,1,2,3,4,5"), pod("b", 2), relayed=True)
    assert facts(made)[1] == ("b", (6, 7), "predicted", 0b1100_0000, 0)


@pytest.mark.parametrize(
    ("seen", "other", "healthy", "relayed", "outcome"),
    [
        (("GPU-0", "GPU-3"), pod("b", 1), ALL, True, "kept"),
        (("GPU-4", "GPU-7"), pod("b", 2, plan="4,7"), ALL, True, "exchanged"),
        (("GPU-4", "GPU-5"), pod("b", 1), ALL & ~0b1000, True, "unhealthy"),
        (("GPU-4", "GPU-5"), pod("b", 1, seen=("GPU-3",)), ALL, True, "taken"),
        (("GPU-4", "GPU-5"), pod("b", 1), ALL, False, "stock"),
        (("GPU-4", "GPU-5"), pod("b", 1), ALL, True, "other"),
    ],
)
def test_drift_is_told_by_its_cause_and_once(
    seen: tuple[str, ...], other: records.PodRecord, healthy: int, relayed: bool, outcome: str
) -> None:
    waits, runs = pod("a", 2, plan="0,3"), pod("a", 2, plan="0,3", seen=seen)
    before = read(waits, other, healthy=healthy, relayed=relayed)
    after = read(runs, other, healthy=healthy, relayed=relayed)
    pods = [runs, other]
    assert [*ledger.drifts(before, after, pods, healthy, relayed=relayed)] == [outcome]
    assert [*ledger.drifts(after, after, pods, healthy, relayed=relayed)] == []
    assert [*ledger.drifts(NodeLedger(), after, pods, healthy, relayed=relayed)] == []
