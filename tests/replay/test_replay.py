"""Every recorded request gets the recorded answer. Only texts of reasons and errors may differ."""

from __future__ import annotations

import pytest

from tests.replay import player
from tests.world import JSON


@pytest.mark.parametrize("name", player.names())
def test_a_replay_gives_the_same_bytes(name: str) -> None:
    found: list[str] = []

    def differs(step: JSON, now: JSON) -> None:
        found.append(
            f"at {step['at']} s, {step['verb']} (recorded as {step['result']}, {step['reasons']})\n"
            f"  was {step['status']} {step['written']} {step['answer'][:2000]}\n"
            f"  is  {now['status']} {now['written']} {now['answer'][:2000]}\n  body {step['body'][:1000]}"
        )

    player.differences(*player.read(name), differs)
    assert not found, f"{len(found)} answers differ; the first:\n{found[0]}"


def test_the_recordings_cover_all_verbs_and_results() -> None:
    table = player.table()
    assert sum(sum(results.values()) for results in table.values()) >= 500
    assert sum(table["prioritize"].values()) >= 100
    assert table["preempt"]["evict"] >= 60
    assert table["preempt"]["standing-plan"] >= 20
    assert {"fits", "refused", "try-again", "untouched"} <= table["filter"].keys()
    assert {"bound", "refused"} <= table["bind"].keys()
    assert {"evict", "none", "standing-plan", "untouched"} <= table["preempt"].keys()


def test_the_recordings_are_small() -> None:
    assert sum(path.stat().st_size for path in player.RECORDED.iterdir()) < 1_500_000


HEAD, TAIL = b'{"Nodes":null,"NodeNames":["busy"],"FailedNodes":{', b'"Error":""}'


@pytest.mark.parametrize(
    ("answer", "masked"),
    [
        (
            HEAD + rb'"a":"busy","b":"a \"b\": {"},"FailedAndUnresolvableNodes":{"c":"busy"},' + TAIL,
            HEAD + b'"a":"text 1","b":"text 2"},"FailedAndUnresolvableNodes":{"c":"text 1"},' + TAIL,
        ),
        (b'{"NodeNames":[],"Error":"why"}', b'{"NodeNames":[],"Error":"text 1"}'),
        (b'{"Nodes":{"items":[{"Error":"x"}]},"Error":""}', b'{"Nodes":{"items":[{"Error":"x"}]},"Error":""}'),
        (b'[{"Host":"Error","Score":10}]', b'[{"Host":"Error","Score":10}]'),
        (b'{"NodeNameToMetaVictims":{"FailedNodes":{"Pods":[{"UID":"u"}]}}}',) * 2,
    ],
)
def test_only_texts_are_masked(answer: bytes, masked: bytes) -> None:
    assert player.mask(answer) == masked
