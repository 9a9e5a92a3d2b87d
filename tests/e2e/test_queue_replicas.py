"""Two servers: each one that answers knows the seats of a gang when the first gate opens.

No scheduler takes the pods, so that seats stay as they are; a test asks the servers itself.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from extender.act.queue.seat_store import BEAT_SECONDS, KNOWN_SECONDS, WAIT_SECONDS
from tests import plain
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory
from tests.e2e.extender_process import ExtenderProcess
from tests.waiting import wait_for

GATE = "gpu-extender.io/queue"
GANGS, PODS = 12, 4
NODES = [f"n{i}" for i in range(GANGS)]


@pytest.fixture
def servers(
    kubelets: KubeletsFactory, extender_process: ExtenderFactory, settings: Any
) -> tuple[ExtenderProcess, ExtenderProcess]:
    """The holder of the Lease, and another one."""
    simulated = kubelets()
    for name in NODES:
        simulated.add_node(name, topology="dgx-h100")
    first = extender_process(settings)
    wait_for(lambda: leads(first), 60, "it holds the Lease")
    return first, extender_process(settings)


def leads(server: ExtenderProcess) -> bool:
    text = plain.get(f"{server.url}/metrics").text
    return "gpu_extender_queue_leader 1.0" in text


def create(api: Api, namespace: str, gang: str) -> None:
    """Pods with all GPUs of half a node each."""
    notes = {"gpu-extender.io/gang": gang, "gpu-extender.io/gang-size": str(PODS)}
    api.create_many(
        builders.pod(f"{gang}-{i}", namespace, 4, labels={"gang": gang}, annotations=notes, grace=0,
                     scheduler="nobody", schedulingGates=[{"name": GATE}])
        for i in range(PODS)
    )  # fmt: skip


def seats(server: ExtenderProcess) -> dict[str, int]:
    """How many seats each gang has, as the server knows."""
    page = plain.get(f"{server.url}/debug/queue").json()
    return {one["gang"]: len(one["seats"]) for one in page["releasing"]}


def opened(pod: Object) -> bool:
    return not pod["spec"].get("schedulingGates")


def fits(server: ExtenderProcess, namespace: str) -> list[str] | None:
    """Where a pod with all GPUs of a node fits; None: the server does not answer."""
    pod = builders.pod("other", namespace, 8)
    pod["metadata"]["uid"] = "other"
    answer = plain.post(f"{server.url}/v1/filter", json={"Pod": pod, "NodeNames": NODES})
    if answer.status_code != 200:
        return None
    found: dict[str, Any] = answer.json()
    return sorted(found["NodeNames"] or [])


def test_every_server_knows_the_seats_when_the_first_gate_opens(
    api: Api, namespace: str, servers: tuple[ExtenderProcess, ExtenderProcess]
) -> None:
    _, version = api.list_raw("Pod", namespace)
    watch = api.watch("Pod", namespace, version=version, seconds=60)
    began = time.monotonic()
    for n in range(GANGS // 2):
        create(api, namespace, f"g{n}")
    left, took = {f"g{n}" for n in range(GANGS // 2)}, 0.0
    for _, pod in watch:
        gang = pod["metadata"]["labels"]["gang"]
        if gang in left and opened(pod):
            took = time.monotonic() - began
            for server in servers:
                assert seats(server).get(f"{namespace}/{gang}") == PODS
            left.discard(gang)
        if not left:
            break
    watch.close()
    assert left == set(), "gates that are closed after a minute"
    print(f"{GANGS // 2} gangs of {PODS} pods, two servers: the last first gate opened after {took:.2f} s")
    assert fits(servers[0], namespace) == fits(servers[1], namespace) == []


def test_a_server_that_stands_still_delays_a_release_and_answers_nothing_before_it_has_read(
    api: Api, namespace: str, servers: tuple[ExtenderProcess, ExtenderProcess]
) -> None:
    holder, other = servers
    wait_for(lambda: fits(other, namespace) == sorted(NODES), 60, "both answer")
    os.kill(other.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for n in range(GANGS // 2):
            create(api, namespace, f"g{n}")
        created = time.monotonic()
        wait_for(lambda: any(opened(pod) for pod in api.list("Pod", namespace)), 60, "a gate opens", every=0.02)
        took, waited = time.monotonic() - began, time.monotonic() - created
        assert took > KNOWN_SECONDS - BEAT_SECONDS  # all counts from its last sign of life, which may be so old
        assert waited < WAIT_SECONDS + 2.0
        wait_for(lambda: all(opened(pod) for pod in api.list("Pod", namespace)), 60, "all gates are open")
    finally:
        os.kill(other.pid, signal.SIGCONT)
    answers = [fits(other, namespace)]
    while answers[-1] is None:
        answers.append(fits(other, namespace))
    print(f"the first gate opened after {took:.2f} s; then the server gave {len(answers) - 1} times no answer")
    assert answers[-1] == [] == fits(holder, namespace)
