"""`gpu-extender queue`: what waits is told in order, with why and for what; what cannot be asked is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cli import main
from tests.cli.canned import Canned, Cli, answer

Captured = pytest.CaptureFixture[str]
GANG = {
    "gang": "ml/train",
    "source": "job",
    "queue": "ml",
    "priority": 5,
    "age_seconds": 95.2,
    "pods": 8,
    "min": 6,
    "gpus": 64,
    "position": 1,
    "reason": "head",
    "text": "3 of 8 pods fit in rack r1",
    "blocked_by": None,
    "earliest_start_seconds": 3720.4,
    "start": {
        "text": "expected 14:30 UTC; 80 % window 14:10 to 14:50; latest 20:30 if declared durations are used up",
        "windows": [],
        "moved": None,
    },
    "domain": {"level": "rack", "required": True},
    "not_modelled": [],
    "ways_out": [],
}
SINGLE = {
    "gang": "lab/notebook",
    "source": "pod",
    "queue": "lab",
    "priority": 0,
    "age_seconds": 3.0,
    "pods": 1,
    "min": 1,
    "gpus": 1,
    "position": 2,
    "reason": "delays",
    "text": "it would delay gang ml/train, which is before it",
    "blocked_by": "ml/train",
    "earliest_start_seconds": None,
    "start": None,
    "domain": None,
    "not_modelled": ["spread constraints", "volumes"],
    "ways_out": [],
}
PART = SINGLE | {"gang": "lab/part", "reason": "incomplete", "text": "1 of 2 pods exist", "blocked_by": None}
PART |= {"not_modelled": []}
QUEUE: dict[str, Any] = {
    "apiVersion": "gpu-extender.io/v1",
    "kind": "Queue",
    "warnings": [],
    "queues": [
        {
            "name": "ml",
            "weight": 2.0,
            "share": 0.25,
            "guaranteed_gpus": {"H100": 16},
            "limit_gpus": {},
            "used_gpus": {"H100": 8, "A100": 4},
            "waiting": 1,
        },
        {
            "name": "lab",
            "weight": 1.0,
            "share": 0.0,
            "guaranteed_gpus": {},
            "limit_gpus": {"A100": 4},
            "used_gpus": {},
            "waiting": 2,
        },
    ],
    "waiting": [GANG, SINGLE],
    "incomplete": [PART | {"position": 3, "pods": 2, "min": 2}],
    "releasing": [
        {
            "gang": "ml/old",
            "source": "job",
            "seats": [
                {"pod": f"ml/old-{i}", "node": f"n{i // 2:02}"} | ({"absent": True} if i > 20 else {})
                for i in range(24)
            ],
        }
    ],
}
EMPTY: dict[str, Any] = QUEUE | {"queues": [], "waiting": [], "incomplete": [], "releasing": []}


def test_the_queue_is_told_to_people(server: str, capsys: Captured) -> None:
    answer(QUEUE)
    assert main(["queue", "--server", server]) == 0
    assert Canned.asked == ["/debug/queue"]
    nodes = ", ".join(f"n{i:02} (2)" for i in range(10))
    assert capsys.readouterr().out.splitlines() == [
        "queue  waiting  share  weight  holds               guaranteed  limit",
        "ml           1  0.250       2  8 x H100, 4 x A100  16 x H100",
        "lab          2  0.000       1  no GPU                          4 x A100",
        "  holds: all GPU pods of the queue, also those without its gate, on all nodes, also on cordoned ones",
        "",
        "waiting, in order:",
        "  1  ml/train (job)  queue ml, priority 5, for 1m35s",
        "     needs: 8 pods, 6 start together, 64 GPUs for those that wait, one rack required",
        "     3 of 8 pods fit in rack r1 (head)",
        "     expected 14:30 UTC; 80 % window 14:10 to 14:50; latest 20:30 if declared durations are used up",
        "  2  lab/notebook (pod)  queue lab, priority 0, for 3s",
        "     needs: 1 pod, 1 GPU for those that wait",
        "     it would delay gang ml/train, which is before it (delays)",
        "     only kube-scheduler checks: spread constraints, volumes",
        "     waits for: ml/train",
        "not complete yet:",
        "  3  lab/part (pod)  queue lab, priority 0, for 3s",
        "     needs: 2 pods, 2 start together, 1 GPU for those that wait",
        "     1 of 2 pods exist (incomplete)",
        "being released:",
        f"  ml/old: 24 seats on {nodes} and 2 more nodes, 3 of them for pods that do not exist yet",
    ]


def test_of_a_long_queue_a_person_gets_the_first_of_each_list(server: str, capsys: Captured) -> None:
    """20,000 gated pods were 78,006 lines."""
    waiting = [SINGLE | {"position": at + 1} for at in range(20_000)]
    starts = [
        {"gang": f"ml/p{at}", "queue": "ml", "pods": [{"name": "p", "node": "n", "gpus": [0]}]} for at in range(22)
    ]
    lists = {"waiting": waiting, "starts": starts, "incomplete": 21 * [PART | {"position": 1}]}
    lists |= {"queues": 21 * QUEUE["queues"][:1], "releasing": 30 * QUEUE["releasing"]}
    answer(QUEUE | lists | {"warnings": 25 * [{"code": "shared-gpus", "message": "parts"}]})
    assert main(["queue", "--server", server]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 350
    entries = ("warning: parts", "ml ", "  ml/p", "lab/notebook", "lab/part (pod)", "  ml/old")
    assert {entry: sum(entry in line for line in lines) for entry in entries} == dict.fromkeys(entries, 20)
    assert [line for line in lines if "more" in line and "seats" not in line] == [
        "and 5 more warnings (-o json has all)",
        "  and 1 more queue (-o json has all)",
        "  and 2 more gangs (-o json has all)",
        "  and 19,980 more gangs (-o json has all)",
        "  and 1 more gang (-o json has all)",
        "  and 10 more gangs (-o json has all)",
    ]
    assert main(["queue", "--server", server, "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["waiting"]) == len(waiting)


def test_what_would_start_a_gang_now_is_told_with_its_cost(server: str, cli: Cli) -> None:
    way = {
        "kind": "evict",
        "change": "evict 2 pods on 1 node: a/b, a/c",
        "spec": {"domain": {"level": "example.com/rack", "value": "r1"}},
        "cost": [
            {"term": "victims", "value": 2, "unit": "pods"},
            {"term": "grace_seconds", "value": None, "unit": "s"},
        ],
        "verified": True,
    }
    releasing = {"gang": "ml/old", "source": "job", "awaits": ["a/d"], "seats": [{"pod": "ml/old-0", "node": "n1"}]}
    why = "a PodDisruptionBudget does not allow the eviction of 1 pod"
    answer(EMPTY | {"waiting": [GANG | {"ways_out": [way], "not_evicted": why}], "releasing": [releasing]})
    assert cli.out(["queue", "--server", server]).splitlines()[-6:] == [
        "     to start it now: evict 2 pods on 1 node: a/b, a/c in example.com/rack=r1",
        "     cost: 2 victims, longest termination grace unknown",
        f"     no pod is evicted: {why}",
        "being released:",
        "  ml/old: 1 seat on n1",
        "     waits for what is evicted: a/d",
    ]


def test_one_queue_is_asked_for_by_its_name(server: str, capsys: Captured) -> None:
    answer(EMPTY | {"queues": QUEUE["queues"][:1]})
    assert main(["queue", "a b/c", "--server", server]) == 0
    assert Canned.asked == ["/debug/queue?queue=a%20b%2Fc"]
    assert capsys.readouterr().out.splitlines()[-1] == "no gang or pod waits behind the queue's gate"


def test_a_server_that_does_not_lead_is_no_empty_queue(server: str, cli: Cli) -> None:
    answer(EMPTY | {"warnings": [{"code": "not-the-leader", "message": "another instance holds the Lease"}]})
    assert cli.out(["queue", "ml", "--server", server]) == "warning: another instance holds the Lease\n"


def test_the_servers_json_is_passed_on(server: str, cli: Cli) -> None:
    answer(QUEUE)
    assert cli.json(["queue", "--server", server, "-o", "json"]) == QUEUE


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, EMPTY, "not-found"),
        (200, b"<html>", "unreachable"),
        (404, b"no such page", "unreachable"),
        (400, {"error": {"code": "bad-request", "path": "queue", "message": "no"}}, "bad-request"),
    ],
)
def test_what_went_wrong_is_an_error(server: str, status: int, body: Any, code: str, capsys: Captured) -> None:
    answer(body, status)
    assert main(["queue", "ml", "--server", server, "-o", "json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["error"]["code"] == code


def test_without_a_server(cli: Cli) -> None:
    assert "gpu-extender: http://127.0.0.1:1: " in cli.err(["queue", "--server", "http://127.0.0.1:1"], 1)
