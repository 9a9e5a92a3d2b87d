"""The recorded watch stream, filled anew."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet
from loadtest import recording
from loadtest.recording import NODES, PODS, Recording


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return recording.read()


def test_the_stream_ends_where_it_began(recorded: Recording) -> None:
    there: set[str] = set()
    changes: Counter[str] = Counter()
    for line in recorded.stream:
        event = json.loads(line.fill(0, 0, 7, recorded.size))
        changes[event["type"]] += 1
        if line.path == PODS:
            change = there.discard if event["type"] == "DELETED" else there.add
            change(event["object"]["metadata"]["uid"])
    assert not there
    assert changes["ADDED"] == changes["DELETED"] > 0
    assert changes["MODIFIED"] > changes["ADDED"]


def test_a_copy_is_about_nodes_of_its_own(recorded: Recording) -> None:
    names, uids = set(), set()
    for copy in range(3):
        for line in recorded.lists:
            made: dict[str, Any] = json.loads(line.fill(copy, 0, 1, recorded.size))
            uids.add(made["metadata"]["uid"])
            if line.path == NODES:
                names.add(made["metadata"]["name"])
                assert made["metadata"]["labels"]["kubernetes.io/hostname"] == made["metadata"]["name"]
            else:
                node = made["spec"]["nodeName"]
                assert made["metadata"]["name"].startswith(f"base-{node[-4:]}")
    assert names == {fleet.name(i) for i in range(3 * recorded.size)}
    assert len(uids) == 3 * len(recorded.lists)


def test_a_later_turn_has_new_pods_on_the_same_nodes(recorded: Recording) -> None:
    listed = {json.loads(line.fill(1, 0, 1, recorded.size))["metadata"]["uid"] for line in recorded.lists}
    turns: list[set[str]] = [set(), set()]
    for turn, uids in enumerate(turns):
        for version, line in enumerate(recorded.stream, 10):
            made = json.loads(line.fill(1, turn, version, recorded.size))["object"]
            assert made["metadata"]["resourceVersion"] == str(version)
            if line.path == PODS:
                uids.add(made["metadata"]["uid"])
            else:
                assert made["metadata"]["uid"] in listed
    assert len(turns[0]) == len(turns[1]) > 0
    assert not turns[0] & turns[1]
    assert not turns[0] & listed


@pytest.mark.parametrize("text", [b"", b"{}\n", b'{"recorded":"x","nodes":1}\n{"watch":"/api/v1/pods"}\n', b"no json"])
def test_a_file_that_is_no_recording(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "stream.gz"
    file.write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match="is no recording of a watch stream"):
        recording.read(file)
    file.write_bytes(text)
    with pytest.raises(ValueError, match="is no recording of a watch stream"):
        recording.read(file)
