"""The lines of decisions: written once the answer is sent, sampled above a rate, and never without what matters."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from extender.decide.decisions import Answer, Decision, Judged
from extender.metrics import Metrics
from extender.policy.contracts import PodRequest
from extender.server.endpoint import MOST_REJECTED, DecisionLog
from extender.settings import Settings
from tests.waiting import run_bounded
from tests.world import World, logged, machine, workload

BUSY, HELD = 14, 15


def sampled(metrics: Metrics) -> float:
    """How many lines were left out."""
    return metrics.registry.get_sample_value("gpu_extender_log_lines_sampled_total") or 0.0


def answer(verb: str, result: str, uid: str = "u", *, reasons: dict[int, int] | None = None, error: str = "") -> Answer:
    request = PodRequest(uid, "default", uid, 0, False, (1, 1, 1, 1), ((3, 1),), 1, "preferred", "", False, True)
    decision = Decision(verb, 0.0, 1, request, Judged(reasons=reasons or {}), result=result, error=error)
    return Answer(b"", result, decision)


def no_name(row: int, generation: int) -> str:
    """No decision here has a node."""
    return ""


def lines(log: DecisionLog, *answers: Answer) -> list[Any]:
    with logged() as found:
        for one in answers:
            assert one.decision is not None
            log.write(one.decision.verb, one)
    return [(line["verb"], line["result"]) for line in found]


def test_above_the_rate_lines_are_left_out_and_counted() -> None:
    now, metrics = [0.0], Metrics()
    log = DecisionLog(metrics, no_name, 0.5, lambda: now[0])
    assert len(lines(log, *[answer("filter", "fits")] * 20)) == 5  # ten seconds' worth
    assert sampled(metrics) == 15
    now[0] += 4.0
    assert len(lines(log, *[answer("prioritize", "scored")] * 20)) == 2
    assert sampled(metrics) == 33


def test_errors_evictions_and_first_rejections_are_always_written() -> None:
    metrics = Metrics()
    log = DecisionLog(metrics, no_name, 0.0, lambda: 0.0)
    lines(log, answer("filter", "fits"))  # what a rate of 0 allows at once
    always = [answer("filter", "try-again", error="why"), answer("preempt", "evict"), answer("evict", "evict")]
    always += [answer("preempt", "none"), answer("bind", "bound"), answer("bind", "refused", error="why")]
    assert len(lines(log, *always * 3)) == 3 * len(always)
    first = answer("filter", "refused", reasons={BUSY: 2})
    assert len(lines(log, first, first, first)) == 1
    other = answer("filter", "refused", reasons={BUSY: 1, HELD: 1})
    assert len(lines(log, other, first, other)) == 1  # one more reason
    assert len(lines(log, answer("filter", "refused", "v", reasons={BUSY: 2}))) == 1
    assert sampled(metrics) == 4


def test_the_pods_that_are_remembered_are_bounded() -> None:
    log = DecisionLog(Metrics(), no_name, 0.0, lambda: 0.0)
    for number in range(MOST_REJECTED + 10):
        log._first(answer("filter", "refused", str(number), reasons={BUSY: 1}))
    assert len(log._rejected) == MOST_REJECTED
    assert "0" not in log._rejected


def test_a_setting_names_the_rate() -> None:
    world = World(Settings.model_validate({"log": {"decisionsPerSecond": 0}}))
    world.set("Node", machine("n", 8))
    body = json.dumps({"Pod": workload("p", 1), "NodeNames": ["n"]}).encode()
    with logged() as found:
        for _ in range(4):
            assert world.call("/v1/filter", body).status == 200
    assert sum(line["event"] == "decided" for line in found) == 1
    assert world.metric("log_lines_sampled_total") == 3


def test_a_rejection_states_its_reasons(world: World) -> None:
    world.set("Node", machine("n", 8))
    body = json.dumps({"Pod": workload("p", 9), "NodeNames": ["n", "unknown"]}).encode()
    with logged() as found:
        assert world.call("/v1/filter", body).status == 200
    (line,) = [line for line in found if line["event"] == "decided"]
    assert line["reasons"] == {"too-few-gpus": 1, "unknown-node": 1}


def test_the_line_names_the_node_that_was_answered(world: World) -> None:
    """A watch event may come between the answer and its line, and give the node's row to another one."""
    node = world.node("answered", 8)
    body = json.dumps(world.args(workload("p", 1))).encode()

    def event() -> None:
        world.drop("Node", node)
        world.node("other", 8)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        """Nobody reads it."""

    async def call() -> None:
        asyncio.get_running_loop().call_soon(event)
        scope = {"type": "http", "method": "POST", "path": "/v1/filter", "root_path": "", "headers": []}
        await world.app(scope, receive, send)
        await asyncio.sleep(0.01)

    with logged() as found:
        run_bounded(call())
    assert [line["node"] for line in found if line["event"] == "decided"] == ["answered"]
