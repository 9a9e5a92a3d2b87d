"""The whole load test against servers of its own: `python -m loadtest [--seconds 60]`, which is `make loadtest`.

Two runs of locust, one table: one scheduler in a closed loop over a frozen fleet of 15,000 nodes, with requests that
name 100 to 15,000 of them; then over 1,000 nodes under 0, 100 and 1,000 watch events a second. With --rate-seconds also
at the highest rate that a real API server reaches on this machine; only that needs more than Python. The report with
the distributions is one HTML file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtest.report import beside_idle, limits, page, table
from loadtest.target import SIZES

LOCUSTFILE = Path(__file__).parent / "locustfile.py"
REPORT = Path("build/loadtest/report.html")
START_SECONDS = 240.0
"""The most for the servers of one run to start and to end."""
USUAL_START_SECONDS = 20
"""For those of both runs, on two cores."""
FULL_SECONDS = 60.0
"""A run of fewer is short: some rows have too few calls to be judged."""
RATES = (0, 100, 1_000)
CHURN_NODES = 1_000


def say(line: str) -> None:
    """To standard error, for people."""
    print(f"loadtest: {line}", file=sys.stderr, flush=True)


def locust(words: list[str], seconds: float, folder: Path) -> dict[str, Any]:
    """One run, headless; its figures. RuntimeError: it ended without any. It never outlives this call."""
    figures = folder / "figures.json"
    figures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--users=1"]
    command += ["--loglevel=WARNING", f"--run-time={max(1, round(seconds))}s", f"--figures={figures}", *words]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = child.communicate(timeout=seconds + START_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"locust has not ended within {seconds + START_SECONDS:.0f} s") from error
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if not figures.exists():
        raise RuntimeError(f"locust ended with {child.returncode}:\n{said[-3000:]}")
    found: dict[str, Any] = json.loads(figures.read_bytes())
    return found


def highest_rate(seconds: float) -> float | None:
    """Watch events a second of a real API server; None where there is none. It needs Go, and tests/e2e."""
    from loadtest import rate

    found = rate.measure(seconds, say)
    if found is not None:
        say(f"a real API server reaches {found:.0f} watch events/s on this machine")
    return found


def plan(asked: argparse.Namespace) -> str:
    """What the load test will do, and how long that takes."""
    text = f"{asked.seconds:g} s of load in two runs; their servers take about {USUAL_START_SECONDS} s more to start"
    if asked.rate_seconds:
        text += (
            f". First {asked.rate_seconds:g} s or more for the rate of a real API server; "
            "where Kubernetes is not built yet, building it takes about 4 minutes on 2 cores"
        )
    return text


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Both runs; the figures of both."""
    short = ["--short"] if asked.seconds < FULL_SECONDS else []
    with tempfile.TemporaryDirectory(prefix="gpu-extender-loadtest-") as name:
        folder = Path(name)
        rates = list(RATES)
        highest = highest_rate(asked.rate_seconds) if asked.rate_seconds else None
        if highest is not None:
            rates = sorted({*rates, round(highest)})
        say(f"{asked.names} names, {asked.seconds * 0.6:.0f} s")
        sizes = locust([f"--names={asked.names}", *short, "Scheduler"], asked.seconds * 0.6, folder)
        say(f"{', '.join(map(str, rates))} events/s, {asked.seconds * 0.4:.0f} s")
        words = [f"--names={CHURN_NODES}", f"--churn={','.join(map(str, rates))}", "--bind", *short, "Scheduler"]
        churn = locust(words, asked.seconds * 0.4, folder)
    joined = {key: sizes[key] + churn[key] for key in ("rows", "failed", "wrong", "times", "failures", "notes")}
    return {**joined, "sent": churn["sent"], "highest": highest}


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=FULL_SECONDS, help="of load; starting the servers comes on top"
    )
    parser.add_argument("--names", default=",".join(map(str, SIZES)), help="numbers of names (default: %(default)s)")
    parser.add_argument(
        "--rate-seconds",
        type=float,
        default=0.0,
        help="measure the rate of a real API server for so long, and use it as well; needs Go (default: leave it out)",
    )
    parser.add_argument("--report", type=Path, default=REPORT, help="default: %(default)s")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    say(plan(asked))
    try:
        found = run(asked)
    except RuntimeError as error:
        say(str(error))
        return 1
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(page(found, "our own servers"))
    print(table(found["rows"]), end="\n\n")
    print(
        "Times in ms, the client's part included. null: the same HTTP stack sends back our bytes, in turns.", limits()
    )
    print(*beside_idle(found["rows"]), sep="\n")
    for events, sent in found["sent"].items():
        print(f"Watch events/s: {events} asked for, {sent:.0f} sent.")
    if found["highest"] is not None:
        print(f"A real API server reaches {found['highest']:.0f} watch events/s on this machine.")
    print(f"Report: {asked.report}. {time.monotonic() - began:.0f} s in all.")
    if asked.seconds < FULL_SECONDS:
        print(f"Note: {asked.seconds:g} s are a short run: compare figures of {FULL_SECONDS:g} s or more.")
    for why in found["notes"]:
        print(f"Note: {why}")
    for why in found["failures"]:
        print(f"FAILED: {why}")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
