"""What a pod states for the queue: domain, duration, queue and rank."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.objects import records
from extender.objects.queueing import GATE, INNER, Domain, domain_of, duration_of, queue_of, rank_of
from extender.objects.records import PodRecord
from tests.world import GPU, workload

OURS = "gpu-extender.io/"
TRAINING = "training.kubeflow.org/"
JOBSET = "jobset.sigs.k8s.io/"
INDEX = "batch.kubernetes.io/job-completion-index"


def pod(**facts: Any) -> PodRecord:
    return records.pod(json.dumps(workload("p", 1, **facts)).encode(), frozenset({GPU}))


@pytest.mark.parametrize(
    ("notes", "domain"),
    [
        ({}, None),
        ({OURS + "domain": "required:rack"}, Domain("rack", True)),
        ({OURS + "domain": " preferred: topology.kubernetes.io/zone "}, Domain("topology.kubernetes.io/zone", False)),
        ({OURS + "domain": "rack"}, None),
        ({OURS + "domain": "required:"}, None),
        ({OURS + "domain": "Required:rack"}, None),
        ({"kueue.x-k8s.io/podset-required-topology": "a/rack"}, Domain("a/rack", True)),
        ({"kueue.x-k8s.io/podset-preferred-topology": "a/block"}, Domain("a/block", False)),
        ({"volcano.sh/network-topology-mode": "hard"}, Domain("rack", True)),
        ({"volcano.sh/network-topology-mode": "hard", "volcano.sh/network-topology-highest-tier": "2"},
         Domain("block", True)),
        ({"volcano.sh/network-topology-mode": "soft", "volcano.sh/network-topology-highest-tier": "2"},
         Domain("rack", False)),
        ({"volcano.sh/network-topology-mode": "hard", "volcano.sh/network-topology-highest-tier": "7"}, None),
        ({"volcano.sh/network-topology-mode": "firm"}, None),
        ({"volcano.sh/network-topology-highest-tier": "1"}, None),
        ({"volcano.sh/network-topology-mode": "hard", "gpu-extender.io/domain": "preferred:zone"},
         Domain("zone", False)),
        ({"alpha.jobset.sigs.k8s.io/exclusive-topology": "a/rack"}, Domain("a/rack", True)),
        ({"leaderworkerset.sigs.k8s.io/exclusive-topology": "a/rack"}, Domain("a/rack", True)),
        ({OURS + "domain": "preferred:block", "kueue.x-k8s.io/podset-required-topology": "a/rack"},
         Domain("block", False)),  # ours counts before all others
        ({OURS + "domain": "wrong", "kueue.x-k8s.io/podset-required-topology": "a/rack"}, Domain("a/rack", True)),
        ({"kueue.x-k8s.io/podset-required-topology": "a/rack", "kueue.x-k8s.io/podset-preferred-topology": "a/block"},
         Domain("a/rack", True)),
    ],
)  # fmt: skip
def test_domain(notes: dict[str, str], domain: Domain | None) -> None:
    assert domain_of(pod(annotations=notes)) == domain


@pytest.mark.parametrize(
    ("stated", "deadline", "seconds"),
    [
        (None, None, None), ("45m", None, 2700.0), ("1h30m", None, 5400.0), ("90", None, 90.0), ("soon", None, None),
        ("0s", None, None), (None, 600, 600.0), ("45m", 600, 600.0), ("5m", 600, 300.0), ("soon", 600, 600.0),
        ("672.8273304739416s", None, 673.0), (".00000000001h", None, 1.0), ("1" * 10 + "s", None, None),
    ],
)  # fmt: skip
def test_duration(stated: str | None, deadline: int | None, seconds: float | None) -> None:
    notes = {OURS + "duration": stated} if stated else {}
    spec = {"activeDeadlineSeconds": deadline} if deadline else {}
    assert duration_of(pod(annotations=notes, spec=spec)) == seconds


def test_the_queue_is_the_label_or_the_namespace() -> None:
    assert queue_of(pod(namespace="team-a")) == "team-a"
    assert queue_of(pod(namespace="team-a", labels={OURS + "queue": "research"})) == "research"


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({}, ("", -1)),
        ({INDEX: "7"}, ("", 7)),
        ({INDEX: "x"}, ("", -1)),
        ({INDEX: "-1"}, ("", -1)),
        ({"apps.kubernetes.io/pod-index": "3"}, ("", 3)),
        # an LWS group is a StatefulSet too, whose index begins at 1
        ({"leaderworkerset.sigs.k8s.io/worker-index": "0", "apps.kubernetes.io/pod-index": "4"}, ("", 0)),
        ({"kueue.x-k8s.io/pod-group-pod-index": "2"}, ("", 2)),
        ({TRAINING + "replica-type": "worker", TRAINING + "replica-index": "5"}, ("worker", 5)),
        ({TRAINING + "job-role": "launcher"}, ("launcher", -1)),
        ({JOBSET + "replicatedjob-name": "driver", JOBSET + "job-index": "0", INDEX: "0"}, ("driver", 0)),
        ({JOBSET + "replicatedjob-name": "workers", JOBSET + "job-index": "2", INDEX: "3"},
         ("workers", 2 * INNER + 3)),
        ({JOBSET + "replicatedjob-name": "workers", JOBSET + "job-index": "2"}, ("workers", 2 * INNER)),
        ({"ray.io/node-type": "head", "ray.io/group": "headgroup"}, ("head/headgroup", -1)),
        ({"ray.io/node-type": "worker", "ray.io/group": "g", "ray.io/worker-group-replica-index": "1",
          "ray.io/replica-host-index": "3"}, ("worker/g", INNER + 3)),
    ],
)  # fmt: skip
def test_rank(labels: dict[str, str], rank: tuple[str, int]) -> None:
    assert rank_of(pod(labels=labels)) == rank


def test_gates_keep_their_names_and_are_shared() -> None:
    gates = [{"name": "other.io/gate"}, {"name": GATE}]
    first, second = (pod(spec={"schedulingGates": gates}) for _ in range(2))
    assert first.gates == ("other.io/gate", GATE)
    assert first.gates is second.gates
    assert first.gated
    assert (pod().gates, pod().gated) == ((), False)
    assert pod(spec={"schedulingGates": []}).gates == ()


@pytest.mark.parametrize(("said", "kept"), [(600, 600), (10**12, 2**31 - 1), (-5, 0), (None, None)])
def test_deadline(said: int | None, kept: int | None) -> None:
    assert pod(spec={"activeDeadlineSeconds": said}).deadline_seconds == kept
