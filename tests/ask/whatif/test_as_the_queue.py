"""What-if says of a gang what the queue does: JobSets with an exclusive topology, and evictions within a quota."""

from __future__ import annotations

import json

import pytest

from extender.ask import frozen, offline
from extender.errors import BadInput
from extender.objects.queueing import GATE
from extender.queue.placement import whatever_ends
from extender.settings import Settings
from tests.ask.test_queue import asked as queue_of
from tests.ask.test_queue import gated
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node, running, template
from tests.ask.whatif.test_owners import owner
from tests.queue.late_owners import EXCLUSIVE, RACK
from tests.world import JSON, PRODUCT, WALL, rfc3339, workload

QUEUE = Settings.model_validate({"queue": {"enabled": True}, "topologyLevels": [RACK]})
TEXT = f"each of its 2 Jobs needs a domain of {RACK} of its own, 1 have one"


def job_set(priority_class: str = "") -> JSON:
    """Two Jobs of one pod with all GPUs of a node."""
    pod = template(8, **({"priorityClassName": priority_class} if priority_class else {}))
    jobs = [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 1, "template": pod}}}]
    spec = {"replicatedJobs": jobs}
    return owner("jobset.x-k8s.io/v1alpha2", "JobSet", spec, name="js", annotations={EXCLUSIVE: RACK})


def nodes(*racks: str) -> list[JSON]:
    return [node(f"n{number}", 8, labels={RACK: rack}) for number, rack in enumerate(racks)]


def group(items: list[JSON], made: JSON) -> JSON:
    (found,) = ask(items, [made], settings=QUEUE)["groups"]
    result: JSON = found
    return result


def test_two_jobs_do_not_share_a_rack() -> None:
    found = group(nodes("r0", "r0"), job_set())
    assert (found["verdict"], [pod["node"] for pod in found["pods"]]) == ("cannot", [None, None])
    assert found["text"].startswith(TEXT)


def test_each_job_has_a_rack() -> None:
    found = group(nodes("r0", "r0", "r1"), job_set())
    assert found["verdict"] == "fits"
    assert "n2" in {pod["node"] for pod in found["pods"]}


def test_no_pod_is_evicted_for_them() -> None:
    """The eviction search knows no Jobs: its seats could be in one rack."""
    meta = {"metadata": {"name": "high"}, "value": 1000}
    classes: JSON = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta}
    items = [*nodes("r0", "r1"), running("low", "n1", list(range(8))), classes]
    found = group(items, job_set("high"))
    assert (found["verdict"], found["victims"]) == ("cannot", [])
    assert not [way for way in found["ways_out"] if way["kind"] == "evict"]


@pytest.mark.parametrize(("racks", "starts"), [(("r0", "r0"), False), (("r0", "r1"), True)])
def test_queue_explain_and_what_if_say_the_same(racks: tuple[str, ...], starts: bool) -> None:
    items = [*nodes(*racks), job_set(), *gated_pods()]
    queue = queue_of(items, enabled=True)
    assert bool(queue["starts"]) == starts
    answer = ask(items, pods=[("team", "js-w-0-0")], settings=QUEUE)
    (found,) = answer["groups"]
    assert found["verdict"] == ("fits" if starts else "cannot")
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()
    shown = offline.explain(QUEUE, frozen.parse(raw, frozenset({"nvidia.com/gpu"})), ("team", "js-w-0-0"), WALL)
    if starts:
        assert shown["sentence"].startswith("waits behind a gate: the queue starts team/js now")
        return
    (waits,) = queue["waiting"]
    assert (waits["reason"], waits["text"]) == ("never", whatever_ends(found["text"]))
    assert f"({waits['text']})" in shown["sentence"]
    assert shown["ways_out"] == found["ways_out"]


@pytest.mark.parametrize("free", [1, 2])
def test_a_leader_without_gpus_waits_as_its_gang_does(free: int) -> None:
    """The head of a RayCluster, of which a user asks first."""
    roles = {"head": 0, "w-0": 8, "w-1": 8}
    gang = [gated(name, gpus, gang="g", size=3, namespace="team") for name, gpus in roles.items()]
    alone = gated("alone", 0, namespace="team")
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": [*nodes(*["r0"] * free), *gang, alone]}).encode()
    cluster = frozen.parse(raw, frozenset({"nvidia.com/gpu"}))
    shown, worker = (offline.explain(QUEUE, cluster, ("team", name), WALL) for name in ("head", "w-0"))
    assert (shown["pod"]["name"], shown["verdict"], shown["sentence"]) == ("head", "gated", worker["sentence"])
    assert (shown["ways_out"], shown["why"], shown["queue"]) == (worker["ways_out"], worker["why"], worker["queue"])
    assert (shown["node"], shown["funnel"], shown["nearest"]) == (None, [], None)
    text = "waits behind a gate: the queue starts team/g now" if free == 2 else "it starts with its gang"
    assert text in shown["sentence"]
    with pytest.raises(BadInput, match="asks for no GPU"):
        offline.explain(QUEUE, cluster, ("team", "alone"), WALL)


def gated_pods() -> list[JSON]:
    """The pods of the JobSet, behind our gate."""
    made = []
    for job in range(2):
        pod = workload(
            f"js-w-{job}-0", 8, namespace="team", annotations={EXCLUSIVE: RACK},
            labels={
                "jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "w",
                "jobset.sigs.k8s.io/job-index": str(job), "batch.kubernetes.io/job-completion-index": "0",
            },
            spec={"schedulingGates": [{"name": GATE}]},
        )  # fmt: skip
        made.append({"kind": "Pod", "apiVersion": "v1"} | pod)
    return made


def test_pods_are_evicted_where_the_queue_may_hold_more() -> None:
    """By cost alone the pod on the A100 node would go: it has run for a shorter time."""
    rules = {"team": {"limitGpus": {"A100": 0}}}
    made = Settings.model_validate({"queue": {"enabled": True, "queues": rules}})
    machines = [node(f"n-{model}", 8, labels={PRODUCT: model}) for model in ("A100", "H100")]
    victims = [running(f"low-{model}", f"n-{model}", list(range(8))) for model in ("A100", "H100")]
    victims[0]["status"]["startTime"] = rfc3339(WALL - 10)
    gang = [gated(f"g-{n}", 4, gang="g", size=2, namespace="team", priority=100) for n in range(2)]
    answer = ask([*machines, *victims, *gang], pods=[("team", "g-0")], settings=made)
    (found,) = answer["groups"]
    assert (found["verdict"], [victim["name"] for victim in found["victims"]]) == ("evict", ["low-H100"])
