"""The annotation held-gpus: a tenant can write it, so it counts only where an admission policy guards it, and never
against what kubelet reports."""

from __future__ import annotations

import pytest

from extender.ask import warn
from extender.cluster import ledger
from extender.cluster.cluster import Cluster
from extender.cluster.statements import NodeGpus
from extender.objects.records import PodRecord
from extender.settings import ClaimSettings, Settings
from tests.cluster.test_ledger import ALL, RESOURCE, UUIDS, pod
from tests.world import WALL, World, pairs

Facts = dict[str, tuple[str, tuple[int, ...] | None]]


def read(*pods: PodRecord, stated: bool, uuids: bool = True, units: int = 1) -> Facts:
    devices = NodeGpus(RESOURCE, ALL, ALL, UUIDS if uuids else {}, units=units)
    made = ledger.read(pods, devices, held_counts=stated)
    return {one.uid: (one.how, one.gpus) for one in made.holdings}


UNKNOWN = ("unknown", None)


def test_without_a_guard_it_does_not_count() -> None:
    forged = pod("a", 2, held="0,1")
    assert read(forged, stated=False) == {"a": UNKNOWN}
    assert read(forged, stated=True) == {"a": ("observed", (0, 1))}
    # kubelet's own report does, whatever the annotation says.
    seen = pod("a", 2, held="0,1", seen=("GPU-4", "GPU-5"))
    for stated in (True, False):
        assert read(seen, stated=stated) == {"a": ("observed", (4, 5))}
    # Without ids of the GPUs nobody knows which they are: least of all by the pod's own word.
    assert read(pod("a", 2, held="0,1", seen=("x", "y")), stated=False, uuids=False) == {"a": UNKNOWN}


def test_it_never_takes_what_kubelet_reports_of_another() -> None:
    for uid in ("a", "z"):  # before and after the other in the order of uids
        forged, honest = pod(uid, 2, held="4,5"), pod("m", 2, seen=("GPU-4", "GPU-5"))
        assert read(forged, honest, stated=True) == {uid: UNKNOWN, "m": ("observed", (4, 5))}
        shared = pod("m", 2, seen=("GPU-4::0", "GPU-4::1"))
        assert read(pod(uid, 2, held="4,4"), shared, stated=True, units=2)[uid] == UNKNOWN
        assert read(pod(uid, 2, held="5,5"), shared, stated=True, units=2)[uid] == ("observed", (5,))


def test_it_never_states_more_gpus_than_the_pod_has() -> None:
    assert read(pod("a", 1, held="0,1,2,3,4,5,6,7"), stated=True) == {"a": UNKNOWN}
    assert read(pod("a", 4, held="0,1,2,3", seen=("x", "y")), stated=True, uuids=False) == {"a": UNKNOWN}
    assert read(pod("a", 2, held="0,1", seen=("x", "y")), stated=True, uuids=False) == {"a": ("observed", (0, 1))}


@pytest.mark.parametrize(
    ("wanted", "live", "counts"),
    [
        ("auto", True, False), ("auto", False, True), ("kubelet", False, False), ("kubelet", True, False),
        ("policy", True, True), ("policy", False, True),
    ],
)  # fmt: skip
def test_when_it_counts(wanted: str, live: bool, counts: bool) -> None:
    settings = Settings(claims=ClaimSettings.model_validate({"held_gpus": wanted}))
    assert Cluster(settings, live=live).gpus.held_counts is counts


def test_a_forged_one_does_not_make_a_torn_set_look_linked() -> None:
    """The pod runs on 0 and 2, and says 0 and 1. By its word 2 and 3 are free and linked; a pod that requires links
    would get 1 and 3."""
    for wanted, passes in (("kubelet", []), ("policy", ["n"])):
        world = World(Settings(claims=ClaimSettings.model_validate({"held_gpus": wanted})))
        world.node("n", 4, links=pairs(4))
        world.pod("forger", 2, "n", priority=1, held=(0, 1))
        asks = world.pod("p", 2, priority=1, links="required")
        assert world.filter(asks)["NodeNames"] == passes
        said = [one["code"] for one in warn.invalid_objects(world.cluster, [], WALL)]
        assert said == ([] if passes else ["held-gpus-not-trusted"])
