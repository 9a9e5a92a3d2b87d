"""A log that cannot be written stops nothing: closed, full, without a reader, or with one that does not read."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender import log
from extender.log import WAITING_BYTES, WAITING_LINES, LineWriter
from tests import plain
from tests.e2e.process import free_port
from tests.server.test_app import valid
from tests.waiting import MOST_SECONDS, wait_for

CLUSTER = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
         "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}}}
        for name in "nm"
    ],
}  # fmt: skip

PATIENT = (
    "-c 'from extender import cli, log; log.LineWriter.flush.__defaults__ = (60.0,); raise SystemExit(cli.main())'"
)
"""The command, that waits a minute for its last lines to be read: on a busy machine this process may stand still for
longer than the second of the real one."""


@contextmanager
def server(folder: Path, streams: str, program: str = "-m extender", **given: Any) -> Iterator[httpx.Client]:
    """The command, started by a shell whose redirections are `streams`."""
    file, port = folder / "cluster.json", free_port()
    file.write_text(json.dumps(CLUSTER))
    command = f"exec {sys.executable} {program} serve --cluster {file} --port {port} {streams}"
    process = subprocess.Popen(["/bin/sh", "-c", command], **given)
    try:
        with plain.client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:

            def answers() -> bool:
                assert process.poll() is None, "the server has ended"
                with suppress(httpx.TransportError):
                    client.get("/healthz")
                    return True
                return False

            wait_for(answers, 60)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(MOST_SECONDS)
        finally:
            process.kill()


def check_serves(client: httpx.Client, times: int) -> None:
    for _ in range(times):
        answer = client.post("/v1/filter", json=valid("filter"))
        assert answer.status_code == 200
        assert sorted(answer.json()["NodeNames"]) == ["m", "n"]
    assert client.post("/v1/filter", content=b"{").json()["Error"]  # a bad request is logged, and answered


def dropped(client: httpx.Client) -> float:
    found = re.search(r"(?m)^gpu_extender_log_lines_dropped_total (\S+)$", client.get("/metrics").text)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path: Path, streams: str) -> None:
    with server(tmp_path, streams) as client:
        check_serves(client, 3)


def test_a_full_disk(tmp_path: Path) -> None:
    with server(tmp_path, "2>/dev/full") as client:
        check_serves(client, 3)
        wait_for(lambda: dropped(client) >= 4)


def test_a_pipe_without_a_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with server(tmp_path, "", stderr=writing) as client:
            check_serves(client, 3)
            wait_for(lambda: dropped(client) >= 4)
    finally:
        os.close(writing)


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """It holds 64 KiB, some 200 lines; then the writer waits, and no request does."""
    reading, writing = os.pipe()
    try:
        with server(tmp_path, "", stderr=writing) as client:
            os.close(writing)
            check_serves(client, 500)  # a request that waited for the reader would never be answered
            said = b""
            while said.count(b"decided") < 500 and select.select([reading], [], [], 5.0)[0]:
                said += os.read(reading, 65536)
            lines = [json.loads(line) for line in said.splitlines()[:-1]]  # whole lines, in order
            assert sum(line["msg"] == "decided" for line in lines) >= 499
    finally:
        os.close(reading)


def test_the_last_lines_are_written_before_a_signal_ends_the_process(tmp_path: Path) -> None:
    """What reads the log is behind by more than the pipe holds when SIGTERM comes."""
    reading, writing = os.pipe()
    said: list[bytes] = []

    def read() -> None:
        with suppress(httpx.TransportError):
            while True:  # until it takes no more connections
                plain.get(f"{client.base_url}/healthz")
        while part := os.read(reading, 1 << 16):
            said.append(part)

    reader = threading.Thread(target=read, daemon=True)
    try:
        with server(tmp_path, "", PATIENT, stderr=writing) as client:
            os.close(writing)
            for _ in range(400):
                check_serves(client, 1)
            reader.start()
        reader.join(MOST_SECONDS)  # the pipe ends with the process
    finally:
        os.close(reading)
    lines = b"".join(said).splitlines()
    assert sum(json.loads(line)["msg"] == "decided" for line in lines) == 400
    assert json.loads(lines[-1])["msg"].startswith("Finished server process")


# -- the writer itself -------------------------------------------------------------------------------------------------


def drained(writer: LineWriter, reading: int) -> bytes:
    """What comes through the pipe until the writer has written all lines."""
    said = b""

    def wrote() -> bool:
        nonlocal said
        if select.select([reading], [], [], 0)[0]:  # the writer may have counted the last bytes not yet
            said += os.read(reading, 1 << 20)
        return writer.flush(0.001)

    wait_for(wrote, every=0.0)
    return said


def test_lines_beyond_the_room_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    try:
        writer = LineWriter(writing)
        for _ in range(WAITING_LINES + 5_000):
            writer.line(b"x" * 100)
        assert 4_000 <= writer.dropped <= 5_000
        assert not writer.flush(0.01)
        large = writer.dropped
        said = drained(writer, reading)
        os.close(writing)
        while part := os.read(reading, 1 << 20):
            said += part
        assert said == b"x" * 100 + b"\n" + (b"x" * 100 + b"\n") * (WAITING_LINES + 5_000 - large - 1)
    finally:
        os.close(reading)


def test_waiting_lines_have_a_limit_in_bytes_and_so_has_each() -> None:
    reading, writing = os.pipe()
    try:
        writer = LineWriter(writing)
        for _ in range(2_000):
            writer.line(b"x" * 1_000_000)
        kept = 2_000 - writer.dropped
        assert kept * (log.LONGEST_LINE + 20) <= WAITING_BYTES + (1 << 17)
        drained(writer, reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_line_that_json_can_not_hold_is_written_all_the_same() -> None:
    for value in ("\ud800", 1 << 70, {1 << 70: object()}):
        assert json.loads(log._dumps({"msg": "x", "value": value}, repr))["msg"] == "x"


@pytest.mark.parametrize("micros", [0, 7])
@pytest.mark.parametrize("pod", ["a/b", "\ud800"])  # the second one makes the slow encoder write the line
def test_a_time_has_the_form_of_all_lines(pod: str, micros: int) -> None:
    at = datetime(2026, 11, 29, 23, 13, 46, micros, UTC)
    written = json.loads(log._dumps({"ts": at, "pod": pod}, repr))["ts"]
    assert written == at.isoformat().replace("+00:00", "Z")  # structlog's TimeStamper writes this


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"msg": "it is so", "pod": "a/b", "us": 3}, 'msg="it is so" pod=a/b us=3'),
        ({"level": "info", "pod": "a", "msg": "m", "ts": "t"}, "ts=t level=info msg=m pod=a"),
        ({"msg": 'a "b" = c\n', "node": None, "empty": ""}, 'msg="a \\"b\\" = c\\n" empty=""'),
        (
            {"reasons": {"links": 1}, "evict": ["a/b"], "ok": True},
            'reasons="{\\"links\\":1}" evict="[\\"a/b\\"]" ok=true',
        ),
    ],
)
def test_logfmt(fields: dict[str, Any], line: str) -> None:
    assert log._as_logfmt(None, "", fields) == line


def test_the_format_and_the_levels_of_the_command_line(tmp_path: Path) -> None:
    """-v is of our own lines, -vv of libraries too."""
    code = (
        "import logging; from extender import log; import argparse; from extender.cli import options as o; "
        "p = argparse.ArgumentParser(); o.add_logging(p); o.configure_logging(p.parse_args()); "
        "log.get_log().debug('ours', n=1); logging.getLogger('lib').debug('theirs'); log.get_log().info('always')"
    )
    for words, expected in (([], ["always"]), (["-v"], ["ours", "always"]), (["-vv"], ["ours", "theirs", "always"])):
        done = subprocess.run(
            [sys.executable, "-c", code, "--log-format=logfmt", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert re.findall(r"msg=(\w+)", done.stderr) == expected


def test_text_moves_no_cursor() -> None:
    """The path of a request is logged, and a client chooses it."""
    said = "path='/\\x1b[2J', n=1, two='a\\nb'"
    code = f"from extender import log; log.configure('text'); log.get_log().warning('m', {said})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "\x1b" not in done.stderr
    assert done.stderr.rstrip().endswith(r"n=1 path=/\x1b[2J two='a\nb'")
