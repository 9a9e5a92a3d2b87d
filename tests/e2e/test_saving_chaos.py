"""Preemptors ask victims of every kind to save while servers are killed, their Lease is stolen, and the API server is
away: none is stuck, no pod is evicted or asked in vain, and none is asked twice.

Two servers answer kube-scheduler, as in `manifests/`. The victims save in time, by annotation, checkpoint, exit or
restart; on SIGTERM only; not at all; too late; with a wrong id or that of another pod; or one saves for its gang.
`saving_accounts` judges by the watch of the API server alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extender.act.evictions import LEASE_SECONDS
from extender.kube.client import ApiError, NoAnswer
from tests.e2e import builders
from tests.e2e.api import Object
from tests.e2e.chaos import Act, Chaos
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import ExtenderFactory
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.queue_causes import AWAY, UNSCHEDULED, Causes, takeover_seconds
from tests.e2e.savers import BEHAVES, KINDS, OURS, Savers, SavingTrace
from tests.e2e.saving_accounts import Account, Judge
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.e2e.service import Service
from tests.e2e.soak_accounts import AT_ONCE, Preemptor, passed, unexplained
from tests.e2e.test_queue_soak import Soak
from tests.waiting import wait_for

NODES, GPUS_OF_VICTIM, OF_A_KIND, PAIRS = 10, 4, 2, 2
LOW = 10
PRIORITIES = {"never": 1000, "high": 2000, "top": 3000}
WAITS = {1000: 0, 2000: 6, 3000: 3}  # seconds, by priority
TRIES = 20  # of a request of the test itself, which may get no answer
GRACE_SECONDS = 0.5  # in which a pod that is deleted ends
PACE = 1.0  # seconds between two preemptors
STATED = os.environ.get("GPU_EXTENDER_SAVING_CHAOS", "")
QUIET_SECONDS = 90.0  # after the last preemptor, at most
WITHDRAWN_SECONDS = 25.0  # after the last one has ended: the Lease may be on its way


def load(cluster: Scene) -> None:
    """Pods that train, of each kind, more than fit: ReplicaSets bring them back."""

    def train(name: str, count: int, kind: str, **notes: str) -> None:
        stated = {BEHAVES: kind, **KINDS[kind].stated, **{OURS + key.replace("_", "-"): v for key, v in notes.items()}}
        template = builders.pod(
            "-", cluster.namespace, GPUS_OF_VICTIM, priority_class="low", grace=5, cpu="100m", annotations=stated
        )
        cluster.api.create(builders.replica_set(name, count, template))

    for kind in KINDS:
        train(kind, OF_A_KIND, kind)
    for i in range(PAIRS):
        gang = {"gang": f"pair{i}", "gang_min": "2"}
        train(f"pair{i}-first", 1, "saves", **gang, saves_for_gang="true")
        train(f"pair{i}-second", 1, "hangs", **gang)
    wait_for(lambda: _runs(cluster) >= 2 * NODES, 60, "the cluster is full")


def _runs(cluster: Scene) -> int:
    pods = cluster.api.list("Pod", cluster.namespace, fields="status.phase=Running")
    return len(pods)


def arrivals(rounds: int, rng: random.Random) -> Iterator[tuple[Preemptor, dict[str, str], float]]:
    """Each preemptor, its node selector, and the seconds until the next one. Every fifth comes with one of another
    priority for the same node."""
    for i in range(rounds):
        node = f"n{i % NODES}"
        one = Preemptor(f"urgent{i:03d}", rng.choice((2, 4, 8)), rng.choice((1000, 2000, 2000, 2000, 3000)), node)
        selector = {"rack": str(i % NODES // 2)} if rng.random() < 0.3 else {"kubernetes.io/hostname": node}
        yield one, selector, 0.2 if rng.random() < 0.2 else PACE


class Preemptors:
    """Comes and goes."""

    def __init__(self, soak: Soak, rng: random.Random) -> None:
        self.soak, self.rng = soak, rng
        self.ones: dict[str, Preemptor] = {}
        self._doomed: list[tuple[float, str]] = []
        self._classes = {value: name for name, value in PRIORITIES.items()}

    def create(self, one: Preemptor, selector: dict[str, str]) -> None:
        runs = {RUN_SECONDS: str(self.rng.choice((0.5, 1)))}
        with self.soak.calls:
            one.created = time.time()
            pod = builders.pod(
                one.name, self.soak.cluster.namespace, one.size, priority_class=self._classes[one.priority], cpu="100m",
                annotations=runs, node_selector=selector,
            )  # fmt: skip
            one.uid = self._created(pod)["metadata"]["uid"]
        self.ones[one.name] = one
        if self.rng.random() < 0.15:
            self._doomed.append((time.time() + self.rng.uniform(0.5, 4), one.name))

    def _created(self, pod: Object) -> Object:
        """A connection may end with the API server that was killed: the answer, or the request, is lost with it."""
        cluster, name = self.soak.cluster, pod["metadata"]["name"]
        for _ in range(TRIES):
            try:
                return cluster.api.create(pod)
            except ApiError as error:
                if error.status != 409:
                    raise
                return cluster.get(name)
            except NoAnswer:
                time.sleep(0.2)
        return cluster.api.create(pod)

    def delete_due(self, until: float) -> None:
        """Delete those whose users have lost patience."""
        while time.time() < until or (until == 0 and self._doomed):
            for at, name in list(self._doomed):
                if at <= time.time():
                    self._doomed.remove((at, name))
                    self.ones[name].deleted = time.time()
                    try:
                        with self.soak.calls:
                            self.soak.cluster.api.delete("Pod", name, self.soak.cluster.namespace, grace=0)
                    except ApiError as error:
                        if error.status != 404:  # evicted meanwhile, for one of higher priority
                            raise
                    except NoAnswer:  # as in `_created`
                        self._doomed.append((at, name))
            time.sleep(0.05)

    def each(self, numbers: Sequence[int], act: Act, chaos: Chaos) -> None:
        """`act(n)` after the n-th of these numbers of preemptors have come, however long that takes."""
        for n, number in enumerate(numbers):
            while len(self.ones) <= number:
                if chaos.ended.wait(0.05):
                    return
            act(n)

    def left(self) -> set[str]:
        """Those that are not deleted, and have not ended."""
        pods = {pod["metadata"]["name"]: pod for pod in self.soak.cluster.api.list("Pod", self.soak.cluster.namespace)}
        waiting = {name for name in self.ones.keys() & pods.keys() if pods[name]["status"].get("phase") != "Succeeded"}
        return {name for name in waiting if self.ones[name].deleted == float("inf")}


@pytest.mark.skipif(not STATED, reason="GPU_EXTENDER_SAVING_CHAOS does not state how many preemptors come")
def test_asked_again_and_again_while_everything_is_disturbed(
    control_plane: ControlPlane, scene: SceneFactory, namespace: str, extender_process: ExtenderFactory, tmp_path: Path
) -> None:
    """A kill for every eighth of so many preemptors, and so on, by _SEED (31). A machine with other work is too slow
    for the bound: it runs in `make soak` alone."""
    rounds = int(STATED)
    seed = int(os.environ.get("GPU_EXTENDER_SAVING_CHAOS_SEED", "") or 31)
    rng = random.Random(seed)
    lease = f"evictions-{namespace}"
    wait = {name: WAITS[value] for name, value in PRIORITIES.items() if WAITS[value]}
    settings: dict[str, Any] = {
        "evictions": {"enabled": True, "lease": lease},
        "preemption": {"mostWaitSeconds": wait},
    }
    service = Service()
    nodes = {f"n{i}": {**H100, "labels": {"rack": str(i // 2)}} for i in range(NODES)}
    kubelet = {"termination_seconds": GRACE_SECONDS, "start_seconds": 0.2}
    cluster = scene(nodes, kubelet=kubelet, settings=settings, urlPrefix=f"{service.url}/v1", verbosity=4)
    soak = Soak(cluster, control_plane, lease, rng)
    soak.servers.append(extender_process(settings))
    for server in soak.servers:
        service.add(server)
    cluster.priorities(low=LOW, **PRIORITIES)
    trace = SavingTrace(cluster.api, namespace, service.url, builders.GPU, lease)
    savers = Savers(cluster.api, cluster.kubelets, soak.calls)
    trace.asks = savers.asked
    preemptors, chaos = Preemptors(soak, rng), Chaos()
    for every, least, act in ((8, 2, soak.kill), (12, 2, soak.steal), (25, 1, soak.outage)):
        numbers = [rng.randrange(rounds) for _ in range(max(least, rounds // every))]
        chaos.always(partial(preemptors.each, sorted(numbers), act, chaos))
    with service, trace:
        load(cluster)
        time.sleep(4)  # what they do takes longer than to save it
        with chaos:
            for one, selector, pause in arrivals(rounds, rng):
                preemptors.create(one, selector)
                preemptors.delete_due(time.time() + pause)
            preemptors.delete_due(0)
            chaos.wait()
        deadline = time.time() + QUIET_SECONDS
        while preemptors.left() and time.time() < deadline:
            time.sleep(0.5)
        ended = time.time()
        while trace.stand() and time.time() < ended + WITHDRAWN_SECONDS:
            time.sleep(0.5)
        cluster.kubelets.settle()
        events = cluster.api.list("Event", namespace, fields="reason=Preempted")
    savers.end()
    spans = [span for kind in (AWAY, UNSCHEDULED) for span in soak.done.spans(kind)]
    trace.passed = passed(server.log for server in soak.servers)
    takeovers = Causes(soak.done, trace.holders).takeovers(takeover_seconds(LEASE_SECONDS))
    led = [span for spans_of_cause in takeovers.values() for span in spans_of_cause]
    judge = Judge(trace, preemptors.ones, WAITS, GRACE_SECONDS, spans, led)
    account = judge.account(events, ended)
    report(soak, seed, preemptors.ones, account, trace, tmp_path)
    truth = cluster.kubelets.truth
    assert chaos.errors == []
    assert sum(account.asked.values()) > rounds / 4  # it was about requests
    assert account.stuck == []
    assert (account.needless, account.early) == ([], [])
    assert (account.vain, account.twice) == ([], [])
    assert account.again["unexplained"] == 0
    assert account.again[AT_ONCE] <= sum(account.evictions.values()) / 100  # as docs/reliability.md states
    assert (truth.double_allocations, dict(truth.reasons())) == (0, {})


def report(
    soak: Soak, seed: int, preemptors: dict[str, Preemptor], account: Account, trace: SavingTrace, folder: Path
) -> None:
    """Print the account; what must not be, with a file that has all that happened."""
    cluster = soak.cluster
    print()
    rows: list[tuple[str, object]] = [
        ("seed", seed),
        ("preemptors", len(preemptors)),
        ("  deleted while they waited", sum(one.deleted < float("inf") for one in preemptors.values())),
        ("  that evicted", sum(bool(one.rounds) for one in preemptors.values())),
        *sorted(soak.done.counts().items()),
        *account.rows(),
        ("GPUs given twice", cluster.kubelets.truth.double_allocations),
    ]
    for name, value in rows:
        print(f"{name:58}{value!s:>12}")
    again = [line for one in preemptors.values() for line in unexplained(trace, one)]
    wrong = [*account.stuck, *account.needless, *account.early, *account.vain, *account.twice, *again]
    print(*(f"  {line}" for line in wrong), sep="\n")
    if wrong:
        file = folder / "story.txt"
        logs = (*(server.log for server in soak.servers), cluster.scheduler.log)
        for kind, what, since, until in soak.done.done:
            trace.marks.append((since, f"{kind} {what}, {until - since:.1f} s"))
        first = min(one.created for one in preemptors.values())
        names = {pod.name for pod in trace.pods.values()}
        file.write_text(f"times since {first - 5:.1f}\n" + trace.story(names, first - 5, time.time(), *logs))
        print(f"  all that happened: {file}")
