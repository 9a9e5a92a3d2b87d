"""`gpu-extender demo` as people call it: a process of its own, plain output, an exit code that can be trusted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

SCENES = ("packing", "contiguous fit", "a refused node", "a preemption", "a wait that ends")
LIMIT_SECONDS = 120


def demo(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "extender", "demo", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *program], capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment, check=False
    )


@pytest.fixture(scope="module")
def once() -> subprocess.CompletedProcess[str]:
    return demo("--once")


def test_the_day_comes_out_as_told(once: subprocess.CompletedProcess[str]) -> None:
    assert once.returncode == 0, once.stdout + once.stderr
    assert once.stderr == ""
    for scene in SCENES:
        assert re.search(rf"^\d  \d\d:00  {scene}", once.stdout, re.MULTILINE), scene


def test_each_scene_says_what_the_server_answered(once: subprocess.CompletedProcess[str]) -> None:
    out = re.sub(r"\s+", " ", once.stdout)
    assert "the free GPUs are not linked, pods that this one may not evict hold the others" in out
    assert "evict train/asr, priority 0, GPUs" in out
    assert "work_lost_gpu_seconds 1,680" in out  # 4 GPUs x (300 s since the checkpoint + 120 s to restart)
    assert once.stdout.count("/debug/decisions?pod=") == once.stdout.count(":00  ")


def test_plain_output_has_no_escapes(once: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in once.stdout
    assert max(map(len, once.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("from extender.policy.rules.links import Links as it; it.fill = lambda *_: None",
         "not as told: pretrain waits"),
        ("from extender.policy.costs.work_lost import WorkLost as it; it.term = lambda _, victims: "
         "('sum', __import__('array').array('q', [0] * len(victims.pods)))", "not as told: "),
        ("from extender.cluster.cluster import Cluster as it; it._set_pod = lambda *_: 1 / 0",
         "could not apply a write"),
    ],
)  # fmt: skip
def test_a_server_that_is_wrong_is_found_out(spoiled: str, said: str) -> None:
    ran = demo(code=f"import sys; {spoiled}\nfrom extender.cli import main\nsys.exit(main(['demo', '--once']))")
    assert ran.returncode == 1
    assert said in ran.stdout
    assert "all scenes came out as told" not in ran.stdout


def test_it_serves_on_until_ctrl_c() -> None:
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "extender", "demo"], stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if found := re.match(r"serving on (http://127\.0\.0\.1:\d+)", line):
                    break
            else:
                pytest.fail("it does not say where it serves")
            with urlopen(found[1] + "/debug/decisions?pod=serving/urgent", timeout=10) as answer:
                assert b'"evict"' in answer.read()
            running.send_signal(signal.SIGINT)
            assert running.wait(LIMIT_SECONDS) == 0
        finally:
            running.kill()
