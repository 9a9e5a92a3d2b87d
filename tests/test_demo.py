"""`gpu-extender demo` as people call it: a process of its own, plain output, an exit code that can be trusted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from extender.cli import demo as demo_command
from extender.cli import main
from tests.web.page.crawl import crawl

SCENES = (
    "two good candidates", "contiguous fit", "a refused node", "a preemption", "a wait that ends",
    "a gang that starts whole", "a claim with linked GPUs", "asked to save first", "a start that was stated before",
    "a pod that waits",
)  # fmt: skip
LIMIT_SECONDS = 120
HEADER = r"^\d+  \d\d:[03]0"


@dataclass
class Shown:
    """A demo that goes on: what it printed until the day was over."""

    process: subprocess.Popen[str]
    text: str = ""

    def told(self, begins: str) -> str:
        """The rest of the line that begins so."""
        return next(line.removeprefix(begins) for line in self.text.splitlines() if line.startswith(begins))


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    program = [sys.executable, "-m", "extender", "demo", "--port", "0"]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        demo = Shown(running)
        assert running.stdout is not None
        late = threading.Timer(LIMIT_SECONDS, running.kill)
        late.start()
        try:
            for line in running.stdout:
                demo.text += line
                if line.startswith("why a pod waits:"):
                    break
            late.cancel()
            yield demo
        finally:
            running.kill()


def test_the_day_comes_out_as_told(shown: Shown) -> None:
    assert "all scenes came out as they state" in shown.text, shown.text
    for scene in SCENES:
        assert re.search(rf"{HEADER}  {scene}", shown.text, re.MULTILINE), scene


def test_each_scene_says_what_the_server_answered(shown: Shown) -> None:
    out = re.sub(r"\s+", " ", shown.text)
    assert "pairs-a beat pairs-b: it takes no linked set of 2 GPUs from later pods, pairs-b would take 1." in out
    assert "the free GPUs are not linked, pods that this one may not evict hold the others" in out
    assert not re.search("hopeless|[a-z]_[a-z]", out)
    assert "evict train/asr, priority 0, GPUs" in out
    assert (
        "work lost 0.47 GPU-hours 3 GPU-hours decides" in out
    )  # 4 GPUs x (300 s since the checkpoint + 120 s to restart)
    assert "waiting: train/distill" in out
    assert "distill-1: nominated for pairs-b, bound to pairs-b, GPUs 0,1,2,3" in out
    assert "ResourceClaim train/rlhf: allocated gpu-4, gpu-5, gpu-6, gpu-7" in out
    assert "saved 20:30:04, chat started 20:30:04: 16 GPU-seconds lost instead of 14 GPU-hours" in out
    assert "way out 1: set gpu-extender.io/links: preferred (it fits on dgx1)" in out
    assert len(re.findall(r"/debug/(decisions|explain)\?pod=", shown.text)) == len(
        re.findall(HEADER, shown.text, re.MULTILINE)
    )


def test_plain_output_has_no_escapes(shown: Shown) -> None:
    assert "\x1b" not in shown.text
    assert max(map(len, shown.text.splitlines())) <= 120


def played(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, output) of the demo in this process, whose server a test has changed."""
    code = main(["demo", "--once", "--port", "0"])
    out, errors = capsys.readouterr()
    assert errors == ""
    return code, out


def test_the_queue_needs_no_time_that_the_day_does_not_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The day's clock stands still while a scene waits for the queue: the queue must not rest by it."""
    monkeypatch.setattr("extender.act.queue.controller.REST", 1e9)
    code, out = played(capsys)
    assert code == 0, out
    assert "all scenes came out as they state" in out


def giving(answer: object) -> Any:
    async def give(*_: object) -> object:
        return answer

    return give


@pytest.mark.parametrize(
    ("spoiled", "instead", "said"),
    [
        ("policy.rules.Links.fill", lambda *_: None, "not as stated: pretrain waits"),
        (
            "policy.costs.work_lost_gpu_seconds.term",
            lambda victims: ("sum", array("q", [0] * len(victims.pods))),
            "not as stated",
        ),
        ("cluster.cluster.Cluster._set_pod", lambda *_: 1 / 0, "could not apply a write"),
        ("act.queue.seat_store.SeatStore.keep", giving(""), "not as stated: seats of all are written"),
        ("act.queue.release.Release._state_seat", giving(None), "not as stated: seats of all are written"),
        (
            "act.queue.allocator.DeviceAllocator.settle",
            giving(True),
            "not as stated: the claim is allocated before the gate",
        ),
        ("act.saving.SaveRequests.ready", giving(True), "did not ask train/pretrain to save its work"),
        ("ask.ways.pod.with_links", lambda pod: pod, "not as stated: dgx1 has enough GPUs"),
    ],
)
def test_a_server_that_is_wrong_is_found_out(
    spoiled: str, instead: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"extender.{spoiled}", instead)
    monkeypatch.setattr("extender.cli.demo.ACTS_SECONDS", 10.0)
    code, out = played(capsys)
    assert code == 1
    assert said in out
    assert "all scenes came out as they state" not in out


def fetched(url: str) -> tuple[int, str]:
    """(status, text)."""
    try:
        with urlopen(Request(url, headers={"accept": "text/html"}), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


def jobs(url: str) -> set[str]:
    """The pods that hold GPUs of the nodes whose pods come and end."""
    with urlopen(url + "/debug/map?rack=rack-4", timeout=10) as answer:
        nodes = json.loads(answer.read())["nodes"]
    return {pod["pod"] for node in nodes for gpu in node["gpus"] for pod in gpu["pods"]}


def eventually(true: Callable[[], object]) -> bool:
    ends = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < ends:
        if true():
            return True
        time.sleep(0.2)
    return False


def test_it_serves_on_until_ctrl_c(shown: Shown) -> None:
    url = shown.told("serving on ").partition(" ")[0]
    with urlopen(url + "/debug/decisions?pod=serving/urgent", timeout=10) as answer:
        assert b'"evict"' in answer.read()
    with urlopen(url + "/", timeout=10) as answer:
        assert b">dgx1</a>" in answer.read()  # the address opens in a browser
    answered = crawl(lambda path: fetched(url + path), ["/", "/decisions", "/preemptions"])
    assert [path for path, status in answered.items() if status != 200] == []
    asked = [sys.executable, "-m", "extender", *shown.told("why a pod waits: gpu-extender ").split()]
    explained = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    assert "waits: 1 node has enough free GPUs, but no linked set of 4 GPUs" in explained.stdout
    assert eventually(lambda: jobs(url)), "no pod comes after the day"
    seen = jobs(url)
    assert eventually(lambda: jobs(url) != seen), "no pod comes or ends after the first"
    shown.process.send_signal(signal.SIGINT)
    _, errors = shown.process.communicate(timeout=LIMIT_SECONDS)
    assert (shown.process.returncode, errors) == (0, "")


def test_it_takes_another_port_where_the_usual_one_is_taken() -> None:
    with demo_command.listen_anywhere(0) as first:
        taken = first.getsockname()[1]
        with demo_command.listen_anywhere(taken) as second:
            assert second.getsockname()[1] not in (0, taken)
