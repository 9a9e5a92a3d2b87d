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
