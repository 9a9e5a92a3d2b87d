"""Real processes that save in a known time, evicted on a real control plane: the work that they measure as lost is the
work that we state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.scene import V100, Scene, SceneFactory, quiet
from tests.e2e.test_preemption import classes
from tests.e2e.test_saving import OURS, settings
from tests.e2e.trainers import SAVES, Account, Trainers

STATED = 12.0  # seconds: what the pods say that they need
GPUS = 4


def train(cluster: Scene, name: str, *, saves: float, grace: int, **stated: str) -> None:
    """A pod whose process saves in so many seconds; below 0: never."""
    notes = {OURS + key.replace("_", "-"): text for key, text in stated.items()} | {SAVES: str(saves)}
    cluster.pod(name, GPUS, priority_class="low", grace=grace, annotations=notes)


def stated(cluster: Scene, result: str) -> float:
    """GPU-seconds that the decision about the preemptor states as lost."""
    record = next(record for record in cluster.decisions("urgent") if record["result"] == result)
    return float(next(term["value"] for term in record["cost"] if term["term"] == "work_lost_gpu_seconds"))


def evicted(cluster: Scene, trainers: Trainers, *names: str) -> list[Account]:
    """The accounts of processes that have ended, the preemptor running."""
    assert cluster.running("urgent", timeout=120) == ["n1"]
    for name in cluster.alive(names):
        assert cluster.get(name)["status"]["phase"] == "Failed", "it exited after its save, and nothing evicts it"
    assert cluster.kubelets.truth.double_allocations == 0
    return [trainers.account(cluster.uids[name]) for name in names]


@pytest.mark.parametrize("way", ["asked", "terminated"])
def test_what_the_processes_lose_is_what_we_state(
    way: str, scene: SceneFactory, namespace: str, tmp_path: Path
) -> None:
    """Each needs all of the time that it states. A kubelet's delay is within that time, as the pods state it."""
    delay = 2.0
    asked = way == "asked"
    cluster = scene(
        {"n1": V100}, settings=settings(namespace, 600 if asked else 0), kubelet={"termination_seconds": STATED + 1}
    )
    classes(cluster)
    key = "saves_on_request" if asked else "saves_on_termination"
    with Trainers(cluster.api, cluster.kubelets, namespace, tmp_path, delay=delay) as trainers:
        for name in ("a", "b"):
            saves = STATED - delay if asked else STATED
            train(cluster, name, saves=saves, grace=int(STATED) + 8, **{key: f"{STATED:.0f}s"})
        cluster.running("a", "b")
        quiet(20)  # what they do takes longer than to save it
        cluster.pod("urgent", 8, priority_class="high")
        accounts = evicted(cluster, trainers, "a", "b")
        assert [account.why for account in accounts] == [way] * 2
        lost = sum(GPUS * (account.lost + (delay if asked else 0)) for account in accounts)
        assert lost == pytest.approx(stated(cluster, "asking" if asked else "evict"), rel=0.05)


def test_one_that_hangs_is_evicted_at_its_deadline(scene: SceneFactory, namespace: str, tmp_path: Path) -> None:
    cluster = scene({"n1": V100}, settings=settings(namespace, 600), kubelet={"termination_seconds": 1})
    classes(cluster)
    with Trainers(cluster.api, cluster.kubelets, namespace, tmp_path) as trainers:
        train(cluster, "saves", saves=1, grace=2, saves_on_request="8s")
        train(cluster, "hangs", saves=-1, grace=2, saves_on_request="8s")
        cluster.running("saves", "hangs")
        quiet(12)
        cluster.pod("urgent", 8, priority_class="high")
        saves, hangs = evicted(cluster, trainers, "saves", "hangs")
        assert (saves.why, hangs.why) == ("asked", "killed")
        assert saves.lost < 3 < 12 < hangs.lost
