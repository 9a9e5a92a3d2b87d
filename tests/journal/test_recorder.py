"""What a server records, and what it never does: wait, stop, or write down what nobody reads."""

from __future__ import annotations

import errno
import json
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from extender.journal import entries, files, recorder
from extender.journal.files import Input, Output
from extender.metrics import Metrics
from tests.journal import recorded
from tests.waiting import wait_for
from tests.world import JSON, World, workload

SECRET = "hunter2-the-password"
SMALL: JSON = {"record": {"fileBytes": 1 << 13, "maxBytes": 1 << 16}}


def blocks(folder: Path) -> list[bytes]:
    found = []
    for path in files.files(folder):
        with Input(path) as file:
            found += list(file.blocks())
    return found


class Recorded:
    """A world that is recorded."""

    def __init__(self, folder: Path, settings: JSON | None = None) -> None:
        self.folder, self.metrics = folder, Metrics()
        made = recorded.settings_of(settings or {})
        self.cluster = recorded.cluster(made, folder, self.metrics)
        self.world = World(made, cluster=self.cluster)

    def ask(self, pod: JSON, names: list[str], verb: str = "filter", **more: Any) -> Any:
        self.world.now += 0.01
        body = {"Pod": pod, "Nodes": None, "NodeNames": names} | more
        return self.world.call(f"/v1/{verb}", json.dumps(body).encode()).json

    def close(self) -> None:
        self.cluster.recorder.close()

    def lost(self, cause: str) -> float:
        return self.metrics.registry.get_sample_value("gpu_extender_record_lost_total", {"cause": cause}) or 0.0

    def text(self) -> bytes:
        """All that was written, no longer compressed."""
        return b"".join(blocks(self.folder))


@pytest.fixture
def made(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def hostile(name: str) -> JSON:
    """A pod with secrets in each place that the extender does not read."""
    pod = workload(name, 1, annotations={"example.com/token": SECRET, "kubectl.kubernetes.io/last-applied": SECRET})
    container = pod["spec"]["containers"][0]
    container |= {
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": SECRET}, {"name": "PASSWORD", "value": SECRET}],
        "command": [SECRET],
        "args": [SECRET],
        "volumeMounts": [{"name": SECRET, "mountPath": SECRET}],
    }
    pod["spec"]["initContainers"] = [{"name": "i", "env": [{"name": "A", "value": SECRET}]}]
    pod["spec"]["volumes"] = [{"name": SECRET, "secret": {"secretName": SECRET}}]
    pod["metadata"]["managedFields"] = [{"manager": SECRET}]
    pod["status"]["message"] = SECRET
    return pod


def test_secrets_stay_out(made: Recorded) -> None:
    world = made.world
    world.node("n1", annotations={"example.com/token": SECRET})
    known = hostile("known")
    world.set("Pod", known)
    made.ask(known, ["n1"])
    made.ask(hostile("not-known"), ["n1"])
    whole = {"metadata": {"name": "n1", "annotations": {"token": SECRET}}, "spec": {"providerID": SECRET}}
    answer = made.ask(hostile("whole"), [], NodeNames=None, Nodes={"items": [whole]})
    assert SECRET in json.dumps(answer)  # kube-scheduler gets its node back
    failed = hostile("failed")
    failed["spec"]["nodeName"], failed["status"]["phase"] = "n1", "Failed"
    world.set("FailedPod", failed)
    made.close()
    text = made.text()
    assert b"not-known" in text
    assert SECRET.encode() not in text
    assert b"PASSWORD" not in text
    assert all(SECRET.encode() not in path.read_bytes() for path in files.files(made.folder))
    found = recorded.report(made.folder)
    assert (found["requests"], found["identical"], found["first_difference"]) == (3, 3, None)


def test_an_answer_with_whole_nodes_is_compared_by_names(made: Recorded) -> None:
    for name in ("n1", "n2", "n3"):
        made.world.node(name, 1 if name == "n2" else 8)
    nodes = [{"metadata": {"name": name}, "spec": {"x": name}} for name in ("n3", "gone", "n2", "n1")]
    for verb in ("filter", "prioritize"):
        made.ask(workload("p", 2), [], verb, NodeNames=None, Nodes={"items": nodes})
    made.close()
    found = recorded.report(made.folder)
    assert (found["requests"], found["identical"], found["first_difference"]) == (2, 2, None)


def test_old_files_go_and_the_rest_is_answered_again(tmp_path: Path) -> None:
    made = Recorded(tmp_path, SMALL)
    for i in range(40):
        made.world.node(f"n{i:02}")
    for i in range(1500):
        made.ask(workload(f"p{i}", 1 + i % 8), [f"n{k:02}" for k in range(i % 7, 40)])
        if i % 50 == 49:
            wait_for(lambda: made.cluster.recorder.written, 60)
    made.close()
    every = files.files(tmp_path)
    assert sum(path.stat().st_size for path in every) <= 1 << 16
    assert int(every[0].stem) > 1
    found = recorded.report(tmp_path)
    assert 0 < found["identical"] == found["requests"] < 1500
    assert (found["first_difference"], found["warnings"]) == (None, [])
    assert (made.metrics.registry.get_sample_value("gpu_extender_record_bytes_total") or 0) > 1 << 16


def test_a_snapshot_that_is_larger_than_a_file_begins_no_file_after_the_other(tmp_path: Path) -> None:
    made = Recorded(tmp_path, {"record": {"fileBytes": 4096, "maxBytes": 1 << 30}})
    for i in range(1500):
        made.world.node(f"n{i:04}", labels={"x": f"{i * 7919 % 10_007:x}"})
    made.cluster.recorder.begin_file()
    for i in range(30):
        made.ask(workload(f"p{i}", 1), ["n0001"])
        wait_for(lambda: made.cluster.recorder.written, 60)
    made.close()
    every = files.files(tmp_path)
    assert len(every) <= 4
    assert every[-1].stat().st_size > 4096
    assert recorded.report(tmp_path)["identical"] == 30


def test_a_restart_goes_on_in_the_same_directory(tmp_path: Path) -> None:
    for name in ("first", "second"):
        made = Recorded(tmp_path)
        made.world.node("n1")
        made.ask(workload(name, 1), ["n1"])
        made.close()
    assert [path.name for path in files.files(tmp_path)] == ["000001.record", "000002.record"]
    assert recorded.report(tmp_path)["identical"] == 2


def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(files, "FLUSH_SECONDS", 0.0)
    full = threading.Event()
    block = Output.block

    def limited(self: Output, text: bytes) -> None:
        if full.is_set():
            self._file.write(b"half")  # what still had room
            raise OSError(errno.ENOSPC, "No space left on device")
        block(self, text)

    monkeypatch.setattr(Output, "block", limited)
    made = Recorded(tmp_path)
    made.world.node("n1")
    assert made.ask(workload("before", 1), ["n1"])["NodeNames"] == ["n1"]
    wait_for(lambda: b"before" in made.text(), 60)
    full.set()
    for i in range(5):
        assert made.ask(workload(f"full-{i}", 1), ["n1"])["NodeNames"] == ["n1"]
        wait_for(lambda: made.cluster.recorder.written, 60)
    wait_for(lambda: made.lost("disk") >= 1, 60)
    full.clear()

    def goes_on() -> bool:
        made.ask(workload("after", 1), ["n1"])
        return len(files.files(tmp_path)) > 1 and not made.cluster.recorder.wants_file

    wait_for(goes_on, 60)
    made.ask(workload("last", 1), ["n1"])
    made.close()
    found = recorded.report(tmp_path)
    assert found["identical"] == found["requests"] >= 2
    assert {one["code"] for one in found["warnings"]} >= {"gap"}
    assert b"last" in made.text()
    assert b"before" in made.text()


def test_a_writer_that_is_behind_delays_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, in_time = threading.Event(), list[bool]()
    block = Output.block

    def slow(self: Output, text: bytes) -> None:
        in_time.append(goes_on.wait(60))
        block(self, text)

    monkeypatch.setattr(Output, "block", slow)
    made = Recorded(tmp_path, {"record": {"queueBytes": 1 << 16}})
    made.world.node("n1")
    for i in range(200):
        assert made.ask(workload(f"p{i}", 1), ["n1"])["NodeNames"] == ["n1"] or i > 7
    assert made.lost("memory") > 100
    goes_on.set()
    wait_for(lambda: made.cluster.recorder.written, 60)
    made.world.now += 60
    made.ask(workload("after", 1), ["n1"])
    made.close()
    found = recorded.report(tmp_path)
    assert found["identical"] == found["requests"] < 200
    assert [one["code"] for one in found["warnings"]] == ["gap"]
    assert "record.queueBytes" in found["warnings"][0]["message"]
    assert b"after" in made.text()
    assert all(in_time), "a call that waits for the writer waits until it goes on by itself"


def test_a_call_that_fails_by_a_defect_begins_a_new_file(made: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    made.world.node("n1")
    made.ask(workload("before", 1), ["n1"])
    with monkeypatch.context() as broken:

        def fails(*args: object) -> None:
            raise RuntimeError("a defect")

        broken.setattr(type(made.world.verbs.policy), "judge", fails)
        assert "internal error" in made.ask(workload("broken", 1), ["n1"])["Error"]
    made.ask(workload("after", 1), ["n1"])
    made.close()
    assert made.lost("defect") == 1
    found = recorded.report(made.folder)
    assert (found["requests"], found["identical"]) == (2, 2)
    assert [one["message"] for one in found["warnings"]] == ["000002.record: 1 entries before it are lost: a defect"]


def test_a_bad_request_is_no_part_of_a_record(made: Recorded) -> None:
    made.world.node("n1")
    made.world.call("/v1/filter", b'{"Pod": {"metadata": {')
    made.ask(workload("p", 1), ["n1"])
    made.close()
    assert recorded.report(made.folder)["requests"] == 1


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="it cannot be written"):
        recorded.cluster(recorded.settings_of({}), tmp_path / "file")


def test_check_sums_are_those_of_the_sent_bytes(made: Recorded) -> None:
    made.world.node("n1")
    made.world.now += 1
    body = json.dumps({"Pod": workload("p", 1), "Nodes": None, "NodeNames": ["n1"]}).encode()
    sent = made.world.call("/v1/filter", body).body
    made.close()
    asked = [one for block in blocks(made.folder) for one in entries.decode(block) if isinstance(one, entries.Asked)]
    assert [(one.reply.size, one.reply.check, one.reply.text) for one in asked] == [(len(sent), zlib.crc32(sent), sent)]


def test_what_waits_for_the_writer_keeps_no_bytes_of_a_request(made: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[files.Item] = []
    seen: list[Any] = []
    put, entry = files.Writer.put, entries.Packer.entry

    def puts(self: files.Writer, item: files.Item) -> bool:
        items.append(item)
        return put(self, item)

    def packs(self: entries.Packer, call: Any, *more: Any, stated: bool) -> Any:
        seen.append(call)
        return entry(self, call, *more, stated=stated)

    monkeypatch.setattr(files.Writer, "put", puts)
    monkeypatch.setattr(entries.Packer, "entry", packs)
    for name in ("n0", "n1", "n2"):
        made.world.node(name)
    pod = made.world.pod("asks", 1)
    made.world.filter(pod, ["n0", "n1", "n2"])
    made.world.prioritize(pod, ["n0"])
    made.world.preempt(pod, {"n0": []})
    made.close()
    assert [type(one).__name__ for one in seen] == ["FilterCall", "PrioritizeCall", "PreemptCall"]
    assert [one.args.body for one in seen[:2]] == [b"", b""]
    assert [len(one.args.rows) for one in seen[:2]] == [3, 1]
    assert list(seen[2].asked.offers.rows) == [made.world.cluster.row("n0")]
    assert seen[2].asked.whole() == {}
    assert items[-3].size > recorder.OF_CALL + 4 * 3 + len(b"n0n1n2")  # with its candidates, and the answer
