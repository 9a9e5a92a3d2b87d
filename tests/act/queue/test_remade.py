"""Owners of which some pods have ended and others are remade: no pod that an owner wants waits for pods that never
come."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from extender.queue.gang import SETTLED_SECONDS
from extender.reservations.seats import is_absent
from tests.act.queue.rig import Rig, gated, rig, world_of
from tests.objects.test_gangs import OURS, obj, owned
from tests.queue.late_owners import TRAINING, _job_set_pod, job_set, pod, template
from tests.world import JSON, World

GPUS: Final = 2
MakePod = Callable[[int, str], JSON]


def job(completions: int = 4, parallelism: int = 4, name: str = "g", **status: Any) -> JSON:
    spec = {
        "parallelism": parallelism, "completions": completions, "completionMode": "Indexed", "backoffLimitPerIndex": 0,
        "template": template(GPUS),
    }  # fmt: skip
    return obj("batch/v1", "Job", name, spec, **status)


def child(completions: int, parallelism: int, **status: Any) -> JSON:
    """The Job of a JobSet `g`."""
    made = job(completions, parallelism, "g-workers-0", **status)
    made["metadata"]["ownerReferences"] = owned("JobSet", "jobset.x-k8s.io/v1alpha2")
    return made


def jobset(completions: int, parallelism: int) -> JSON:
    made = job_set({}, ("workers", 1, parallelism))
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = completions
    return made


def renamed(made: JSON, suffix: str) -> JSON:
    made["metadata"]["name"] += suffix
    made["metadata"]["uid"] += suffix
    return made


def of_job(index: int, suffix: str) -> JSON:
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    return pod(f"g-{index}{suffix}", GPUS, owned("Job", "batch/v1"), labels)


def of_jobset(index: int, suffix: str) -> JSON:
    return renamed(_job_set_pod(f"workers-0-{index}"), suffix)


def of_size(index: int, suffix: str) -> JSON:
    return gated(f"g-{index}{suffix}", GPUS, annotations={OURS + "gang": "g", OURS + "gang-size": "4"})


def of_kueue(index: int, suffix: str) -> JSON:
    notes = {"kueue.x-k8s.io/pod-group-total-count": "4"}
    return gated(f"g-{index}{suffix}", GPUS, labels={"kueue.x-k8s.io/pod-group-name": "g"}, annotations=notes)


def of_pod_group(index: int, suffix: str) -> JSON:
    return gated(f"g-{index}{suffix}", GPUS, labels={"scheduling.x-k8s.io/pod-group": "g"})


def of_volcano(index: int, suffix: str) -> JSON:
    return gated(f"g-{index}{suffix}", GPUS, annotations={"scheduling.k8s.io/group-name": "g"})


def of_pytorch(index: int, suffix: str) -> JSON:
    labels = {
        TRAINING + "job-name": "g", TRAINING + "replica-type": "worker", TRAINING + "replica-index": str(index),
    }  # fmt: skip
    return pod(f"g-worker-{index}{suffix}", GPUS, owned("PyTorchJob", "kubeflow.org/v1"), labels)


def pytorch(**status: Any) -> JSON:
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": template(GPUS)}}}
    return obj("kubeflow.org/v1", "PyTorchJob", "g", spec, **status)


def pod_group(api: str, **status: Any) -> JSON:
    return obj(api, "PodGroup", "g", {"minMember": 4}, **status)


COSCHEDULING: Final = "scheduling.x-k8s.io/v1alpha1"
VOLCANO: Final = "scheduling.volcano.sh/v1beta1"
STATED: Final[dict[str, tuple[MakePod, list[JSON], JSON]]] = {
    "Job, failed index": (of_job, [job()], job(failedIndexes="0", failed=1)),
    "Job, succeeded": (of_job, [job()], job(succeeded=1)),
    "JobSet": (of_jobset, [jobset(4, 4), child(4, 4)], child(4, 4, succeeded=1)),
    "JobSet, failed index": (of_jobset, [jobset(4, 4), child(4, 4)], child(4, 4, failedIndexes="0")),
    "PyTorchJob": (of_pytorch, [pytorch()], pytorch(replicaStatuses={"Worker": {"active": 2, "succeeded": 1}})),
    "Coscheduling": (of_pod_group, [pod_group(COSCHEDULING)], pod_group(COSCHEDULING, succeeded=1)),
    "Volcano": (of_volcano, [pod_group(VOLCANO)], pod_group(VOLCANO, succeeded=1)),
}
"""The pods of an owner, its objects while all run, and what states that one of four has ended."""
SILENT: Final[dict[str, tuple[MakePod, list[JSON]]]] = {
    "gang-size": (of_size, []),
    "Kueue": (of_kueue, []),
    "PyTorchJob without status": (of_pytorch, [pytorch()]),
    "PodGroup without status": (of_pod_group, [pod_group(COSCHEDULING)]),
}


@pytest.fixture
def world() -> World:
    return world_of(["n1", "n2", "n3", "n4"])


async def start(one: Rig, world: World, make: MakePod, objects: list[JSON]) -> list[str]:
    """The names of four pods that run."""
    for made in objects:
        world.set("Group", made)
    pods = [make(index, "") for index in range(4)]
    names = [made["metadata"]["name"] for made in pods]
    one.create(*pods)
    await one.turns(2, 1.1)
    for name in names:
        one.bind(name)
    await one.turns(2, 1.1)
    return names


async def remake(one: Rig, names: list[str], make: MakePod) -> str:
    """The last pod is remade; its name."""
    one.delete(names[3])
    remade = make(3, "b")
    one.create(remade)
    return str(remade["metadata"]["name"])


@pytest.mark.parametrize("case", STATED)
async def test_a_remade_pod_starts_at_once_where_a_status_states_that_another_has_ended(
    world: World, case: str
) -> None:
    make, objects, ended = STATED[case]
    async with rig(world) as one:
        names = await start(one, world, make, objects)
        one.finish(names[0])
        world.set("Group", ended)
        name = await remake(one, names, make)
        await one.turns(3, 1.1)
        assert one.is_open(name)


@pytest.mark.parametrize("case", SILENT)
async def test_a_remade_pod_starts_after_a_minute_where_nothing_states_it(world: World, case: str) -> None:
    make, objects = SILENT[case]
    async with rig(world) as one:
        names = await start(one, world, make, objects)
        one.finish(names[0])
        name = await remake(one, names, make)
        await one.turns(3, 1.1)
        assert not one.is_open(name)
        await one.turns(2, SETTLED_SECONDS)
        assert one.is_open(name)


async def test_pods_that_are_lost_together_start_together(world: World, one: Rig) -> None:
    """The second one is remade later, but before a minute has passed; and a gang of which no pod runs never settles."""

    names = await start(one, world, of_size, [])
    one.delete(names[2])
    name = await remake(one, names, of_size)
    await one.turns(2, SETTLED_SECONDS / 4)
    assert not one.is_open(name)
    one.create(of_size(2, "b"))
    await one.turns(2, 1.1)
    assert [one.is_open(name), one.is_open("g-2b")] == [True, True]
    one.create(*(gated(f"h-{i}", GPUS, annotations={OURS + "gang": "h", OURS + "gang-size": "4"}) for i in "01"))
    await one.turns(4, SETTLED_SECONDS)
    assert not one.is_open("h-0")


async def test_it_counts_as_remade_where_the_last_running_pod_ends_before_there_is_room(world: World, one: Rig) -> None:
    names = await start(one, world, of_size, [])
    one.finish(names[0])
    one.delete(names[3])
    for node in ("n1", "n2", "n3", "n4"):  # two GPUs of n1 or more are free: fill them all
        held = sum(GPUS for name in names[1:3] if one.pod(name)["spec"]["nodeName"] == node)
        world.pod(f"filler-{node}", 8 - held, node, priority=5)
    one.create(of_size(3, "b"))
    await one.turns(3, SETTLED_SECONDS)
    assert not one.is_open("g-3b")
    one.finish(names[1])
    one.finish(names[2])
    await one.turns(3, 1.1)
    assert one.is_open("g-3b")


async def test_the_tail_of_a_jobset_with_more_completions_than_parallelism_starts(world: World, one: Rig) -> None:
    names = await start(one, world, of_jobset, [jobset(6, 4), child(6, 4)])
    for name in names[:3]:
        one.finish(name)
    world.set("Group", child(6, 4, succeeded=3))
    one.create(of_jobset(4, ""), of_jobset(5, ""))
    await one.turns(3, 1.1)
    assert [one.is_open("workers-0-4"), one.is_open("workers-0-5")] == [True, True]


@pytest.mark.parametrize("start_at", [0, 5])
async def test_a_remade_pod_of_a_statefulset_has_one_seat_whatever_its_first_ordinal(
    world: World, start_at: int
) -> None:
    def replica(ordinal: int) -> JSON:
        labels = {"apps.kubernetes.io/pod-index": str(ordinal)}
        return pod(f"g-{ordinal}", 4, owned("StatefulSet", "apps/v1"), labels, annotations={OURS + "gang-size": "3"})

    spec = {"replicas": 3, "ordinals": {"start": start_at}, "template": template()}
    async with rig(world) as one:
        world.set("Group", obj("apps/v1", "StatefulSet", "g", spec))
        for ordinal in range(start_at, start_at + 3):
            one.create(replica(ordinal))
            await one.turns(2, 1.1)
            absent = {seat.ordinal for seat in one.seats if is_absent(seat.uid)}
            assert absent <= set(range(ordinal + 1, start_at + 3))
            one.bind(f"g-{ordinal}")
            await one.turns(1, 1.1)
        one.delete(f"g-{start_at + 1}")
        one.create(renamed(replica(start_at + 1), ""))
        await one.turns(3, 1.1)
        assert [seat.pod for seat in one.seats] == [f"default/g-{start_at + 1}"]


class History:
    """A random history of an owner with `completions` pods, of which `parallelism` run at once. `state`: the object
    that states how many have ended, None where none does."""

    def __init__(self, make: MakePod, completions: int, state: Callable[..., JSON] | None) -> None:
        self.make, self.completions, self.state = make, completions, state
        self.running: dict[int, str] = {}  # index -> name of its pod
        self.succeeded, self.failed, self.count = 0, list[int](), 0

    def create(self, one: Rig, *indices: int) -> None:
        """In one go, as controllers do."""
        pods = []
        for index in indices:
            made = self.make(index, f"x{self.count}")
            self.count += 1
            self.running[index] = made["metadata"]["name"]
            pods.append(made)
        one.create(*pods)

    def step(self, one: Rig, world: World, random: Random) -> None:
        """Pods succeed, fail for good or are remade; one of them runs on where no object states what has ended."""
        indices = sorted(self.running)
        if self.state is None:
            indices.remove(random.choice(indices))
        for index in random.sample(indices, random.randint(0, len(indices))):
            event = random.choice(("succeed", "fail", "remake"))
            if event == "remake":
                one.delete(self.running[index])
                self.create(one, index)
                continue
            one.finish(self.running.pop(index))
            self.succeeded += event == "succeed"
            self.failed += [index] if event == "fail" else []
        if self.state is not None:
            failed = {"failedIndexes": ",".join(map(str, sorted(self.failed)))} if self.failed else {}
            world.set("Group", self.state(self.completions, 4, succeeded=self.succeeded, **failed))
        begun = len(self.running) + self.succeeded + len(self.failed)
        self.create(one, *range(begun, min(self.completions, begun + 4 - len(self.running))))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("make", "completions", "objects", "state"),
    [
        (of_job, 9, [job(9)], job),
        (of_jobset, 9, [jobset(9, 4), child(9, 4)], child),
        (of_size, 4, [], None),
        (of_kueue, 4, [], None),
        (of_pod_group, 4, [pod_group(COSCHEDULING)], None),
        (of_pytorch, 4, [pytorch()], None),
    ],
)
async def test_at_rest_no_pod_that_its_owner_wants_waits(
    world: World, make: MakePod, completions: int, objects: list[JSON], state: Any, seed: int
) -> None:
    random = Random(seed)
    async with rig(world) as one:
        for made in objects:
            world.set("Group", made)
        history = History(make, completions, state)
        history.create(one, *range(4))
        for _ in range(5):
            await one.turns(2, 1.1)
            await one.turns(2, 1.1 if state is not None else SETTLED_SECONDS)
            closed = [name for name in history.running.values() if not one.is_open(name)]
            assert not closed, one.controller.report
            for name in history.running.values():
                if not one.pod(name)["spec"].get("nodeName"):
                    one.bind(name)
            await one.turns(1, 1.1)
            if not history.running:
                break
            history.step(one, world, random)
