"""Stand-ins for the pods that an owner creates later: which, and what they ask for."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from extender.cluster.slices import finish
from extender.objects import gangs
from extender.objects.gangs.roles import MOST_LATE
from extender.queue import gang as stand_in_lists
from extender.queue.gang import StandIns, WaitingGang, present, waits
from extender.reservations.seats import is_absent
from tests.objects.test_gangs import LWS, obj, owned
from tests.queue.gangs import waiting
from tests.queue.late_owners import (
    EXCLUSIVE,
    IN_ORDER,
    OWNERS,
    RACK,
    STATEFUL_SET,
    LateOwner,
    job_set,
    leader_worker_set,
    template,
)
from tests.world import GPU, JSON, World


def world_of(owner: LateOwner, *names: str, objects: tuple[JSON, ...] = ()) -> World:
    world = World()
    world.node("n", 8)
    for made in (*owner.objects, *objects):
        world.set("Group", made)
    for name in names:
        world.set("Pod", owner.make(name))
    return world


def one_of(world: World) -> WaitingGang:
    (gang,) = waiting(world.cluster)
    return gang


def absent(gang: WaitingGang) -> list[str]:
    return [pod.name for pod in gang.pods if is_absent(pod.uid)]


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_the_gang_is_whole_while_only_its_first_pods_exist(owner: LateOwner) -> None:
    gang = one_of(world_of(owner, *owner.early))
    assert gang.ref.source == owner.source
    assert [pod.name for pod in gang.existing] == list(owner.early)
    assert [name.removeprefix("g-") for name in absent(gang)] == [name.removeprefix("g-") for name in owner.late]
    assert (gang.size, gang.minimum, gang.complete, gang.unread) == (3, 3, True, "")
    late = {pod.name: pod for pod in gang.pods if is_absent(pod.uid)}
    gpus = () if "launcher" in owner.late[0] else ((GPU, 4),)
    assert {pod.gpus for pod in late.values()} == {gpus}  # a limit alone counts as the request
    assert {pod.cpu_milli for pod in late.values()} == {1000}
    assert len(late) == len({pod.uid for pod in late.values()})


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_a_pod_that_exists_needs_no_stand_in(owner: LateOwner) -> None:
    world = world_of(owner, *owner.early, owner.late[-1])
    gang = one_of(world)
    assert len(absent(gang)) == len(owner.late) - 1
    assert (len(gang.pods), gang.complete) == (3, True)
    for name in owner.late:
        world.set("Pod", owner.make(name))
    assert absent(one_of(world)) == []
    assert sorted(one.name for one in one_of(world).pods) == sorted(owner.early + owner.late)


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_the_ranks_are_those_of_the_pods_that_come(owner: LateOwner) -> None:
    """Stand-ins are where their pods are in the order of the gang."""
    before = one_of(world_of(owner, *owner.early))
    after = one_of(world_of(owner, *owner.early, *owner.late))
    assert [is_absent(one.uid) for one in before.pods] == [one.name in owner.late for one in after.pods]


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_a_template_that_cannot_be_read_is_reported_and_nothing_is_reserved_for_it(owner: LateOwner) -> None:
    """As without templates: the gang starts with the pods that can exist at once."""
    broken = copy.deepcopy(owner.objects[0])
    _break(broken["spec"])
    gang = one_of(world_of(LateOwner((broken,), owner.early, owner.late, owner.make), *owner.early))
    assert absent(gang) == []
    assert "its pod templates cannot be read: spec" in gang.unread
    assert (gang.size, gang.minimum, gang.complete) == (3, len(owner.early), True)


def _break(part: Any) -> None:
    if isinstance(part, dict):
        for key, inner in part.items():
            if key == "containers":
                part[key] = "none"
            else:
                _break(inner)
    for inner in part if isinstance(part, list) else ():
        _break(inner)


def test_an_early_pod_that_is_missing_keeps_the_gang_incomplete() -> None:
    two = job_set({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ("driver", 1, 2), ("workers", 1, 1))
    owner = LateOwner((two,), (), (), OWNERS["JobSet, InOrder"].make)
    gang = one_of(world_of(owner, "driver-0-0"))
    assert (absent(gang), gang.minimum, gang.complete) == (["g-workers-0-0"], 3, False)


def test_pods_that_a_job_has_completed_do_not_come_again() -> None:
    owner = OWNERS["JobSet, dependsOn"]
    job = obj("batch/v1", "Job", "g-workers-0", {"parallelism": 2, "completions": 2}, succeeded=1)
    job["metadata"]["ownerReferences"] = owned("JobSet", "jobset.x-k8s.io/v1alpha2")
    gang = one_of(world_of(owner, "driver-0-0", objects=(job,)))
    assert absent(gang) == ["g-workers-0-0"]
    assert absent(one_of(world_of(owner, "driver-0-0", "workers-0-1", objects=(job,)))) == []


def test_jobs_that_have_succeeded_are_not_waited_for() -> None:
    """The first replicated Job has ended before the pods of the next one came."""
    ended = {**IN_ORDER, "status": {"replicatedJobsStatus": [{"name": "driver", "succeeded": 1}]}}
    gang = one_of(world_of(LateOwner((ended,), (), (), OWNERS["JobSet, InOrder"].make), "workers-0-0"))
    assert (gang.size, gang.minimum, gang.complete, absent(gang)) == (2, 2, True, ["g-workers-1-0"])


PROMPT = {
    "JobSet in any order": job_set({"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}, ("a", 1, 1), ("b", 2, 1)),
    "exclusive by labels of the nodes": job_set(
        {}, ("workers", 1, 3), **{EXCLUSIVE: RACK, "alpha.jobset.sigs.k8s.io/node-selector": "true"}
    ),
    "LeaderWorkerSet at once": leader_worker_set("LeaderCreated"),
    "StatefulSet in parallel": obj(
        "apps/v1", "StatefulSet", "g",
        {"replicas": 3, "podManagementPolicy": "Parallel", "template": template()},
    ),
    "MPIJob at once": obj(
        "kubeflow.org/v2beta1", "MPIJob", "g", {"mpiReplicaSpecs": {"Launcher": {"template": template(0)}}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("made", PROMPT.values(), ids=PROMPT)
def test_owners_that_create_all_pods_at_once_have_no_late_pods(made: JSON) -> None:
    record = gangs.group(made)
    assert (record.late, record.late_pods, record.unread) == (0, (), "")


def test_too_many_late_pods_are_not_read() -> None:
    record = gangs.group({**STATEFUL_SET, "spec": {**STATEFUL_SET["spec"], "replicas": MOST_LATE + 2}})
    assert (record.late, record.late_pods) == (MOST_LATE + 1, ())
    assert f"it creates {MOST_LATE + 1} pods later" in record.unread


def test_a_stateful_set_is_a_gang_only_where_its_pods_say_so() -> None:
    owner = OWNERS["StatefulSet, OrderedReady"]
    plain = owner.make("g-0")
    plain["metadata"]["annotations"] = {}
    world = world_of(owner)
    world.set("Pod", plain)
    assert [one.ref for one in waiting(world.cluster)] == [gangs.Ref("pod", "default", "g-0")]


def test_a_pod_without_an_index_counts_as_one_of_its_role() -> None:
    owner = OWNERS["JobSet, dependsOn"]
    world = world_of(owner, *owner.early)
    unnumbered = owner.make("workers-0-0")
    del unnumbered["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
    del unnumbered["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
    world.set("Pod", unnumbered)
    assert len(absent(one_of(world))) == 1


def test_the_exclusive_topology_of_one_job_is_that_of_the_gang_with_its_stand_ins() -> None:
    """Of two Jobs it is not: each has a domain of its own."""
    owner = OWNERS["JobSet, exclusive topology"]
    world = world_of(owner)
    world.set("Pod", owner.make("workers-0-0", annotations={EXCLUSIVE: RACK}))
    domain = one_of(world).domain
    assert domain is not None
    assert (domain.level, domain.required) == (RACK, True)
    both = job_set({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ("a", 1, 1), ("b", 1, 1), **{EXCLUSIVE: RACK})
    world = world_of(LateOwner((both,), (), (), owner.make))
    world.set("Pod", owner.make("a-0-0", annotations={EXCLUSIVE: RACK}))
    assert one_of(world).domain is None


def test_stand_ins_have_the_priority_of_the_pods_that_exist() -> None:
    owner = OWNERS["StatefulSet, OrderedReady"]
    world = world_of(owner)
    world.set("Pod", owner.make("g-0", priority=7))
    named = gangs.Ref("statefulset", "default", "g")
    assert {one.priority for one in StandIns(world.cluster).of(named, present(world.cluster, named))} == {7}
    assert one_of(world).priority == 7


@pytest.mark.parametrize(
    "ref",
    [
        gangs.Ref("job", "d", "g"),
        gangs.Ref("kubernetes", "d", "w", "workers/0"),
        gangs.Ref("gpu-extender", "d", "team/run 1"),
        gangs.Ref("gpu-extender", "d", "a%2Fb/:", "p/q"),
    ],
)
def test_the_name_of_a_gang_is_read_back(ref: gangs.Ref) -> None:
    assert gangs.Ref.of(ref.text) == ref


def test_the_stand_ins_of_many_gangs_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leader of one LeaderWorkerSet is a gang of its own, with workers to come."""
    monkeypatch.setattr(stand_in_lists, "MOST_KEPT", 7)
    world = world_of(OWNERS["LeaderWorkerSet, LeaderReady"])
    for group in range(5):
        made = OWNERS["LeaderWorkerSet, LeaderReady"].make("g-0")
        made["metadata"]["name"], made["metadata"]["uid"] = f"g-{group}", f"uid-g-{group}"
        made["metadata"]["labels"][LWS + "group-index"] = str(group)
        world.set("Pod", made)
    stand_ins = StandIns(world.cluster)
    for _ in range(2):
        assert [len(one.pods) for one in finish(waits(world.cluster, stand_ins))] == [3] * 5
        assert 0 < sum(one.number for one in stand_ins._kept.values()) <= 7


def test_younger_gangs_of_a_namespace_wait_where_too_many_pods_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner of a few lines states 2,000 pods: thousands of owners would make a look of a minute, for all tenants."""
    monkeypatch.setattr(stand_in_lists, "MOST_LATE", 4)
    owner = OWNERS["LeaderWorkerSet, LeaderReady"]
    world = world_of(owner)
    for namespace, group, created in (("default", 0, "3"), ("default", 1, "1"), ("default", 2, "2"), ("other", 0, "4")):
        for wire, kind in ((copy.deepcopy(owner.objects[0]), "Group"), (owner.make("g-0"), "Pod")):
            wire["metadata"]["namespace"] = namespace
            if kind == "Pod":
                wire["metadata"] |= {"name": f"g-{group}", "uid": f"uid-{namespace}-{group}"}
                wire["metadata"]["creationTimestamp"] = f"2026-01-0{created}T00:00:00Z"
                wire["metadata"]["labels"][LWS + "group-index"] = str(group)
            world.set(kind, wire)  # type: ignore[arg-type]
    by_name = {gang.ref.text: gang for gang in waiting(world.cluster)}
    complete = {name: gang.complete for name, gang in by_name.items()}
    young, *older = [name for name in complete if "default" in name]
    assert complete[young] is False
    assert [complete[name] for name in older] == [True, True]
    assert [ok for name, ok in complete.items() if "other" in name] == [True]
    assert by_name[young].minimum == 3
    assert "older gangs come first" in by_name[young].unread
