"""One server under verbs, events and broken watches: its last hour against its second.

python -m tests.steady [--hours 8] [--real 1] [--nodes 200] [--rate 10] [--seed S]

`--real`: the pods of `--hours` come in so many real hours, at a higher rate. What the server does by a clock takes as
long as ever. A run of less than eight hours compares eighths of it. Exit codes: 0 steady, 1 not.
"""

from __future__ import annotations

import argparse
import http.client
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.process import free_port
from tests.kube.test_client import kubeconfig
from tests.steady.accounts import Plan, Window, faults, table
from tests.steady.cluster import Api, Scheduler
from tests.waiting import wait_for

SETTINGS = """\
apiVersion: gpu-extender.io/v1
kind: GpuExtenderConfiguration
queue: {enabled: false}
decisions: {maxBytes: %d}
"""
RECORDS, FEW_RECORDS = 32 << 20, 1 << 19
"""Bytes of decision records: the default, and for a short run as many as fill in its first window."""
MANY_PODS = 18_000
"""Pods of a window in which the default fills."""


@contextmanager
def server(
    folder: Path, url: str, records: int = FEW_RECORDS
) -> Iterator[tuple[subprocess.Popen[bytes], http.client.HTTPConnection]]:
    """One that is ready. `records`: bytes of decision records that it keeps."""
    port, config = free_port(), folder / "settings.yaml"
    config.write_text(SETTINGS % records)
    command = [sys.executable, "-m", "extender", "serve", "--config", str(config), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--kubeconfig", kubeconfig(folder, url, {})], stdout=log, stderr=log)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        wait_for(lambda: _ready(process, client), 120, lambda: (folder / "log").read_text()[-2000:])
        yield process, client
    except Exception:
        print(f"the server (status {process.poll()}):\n{(folder / 'log').read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def _ready(process: subprocess.Popen[bytes], client: http.client.HTTPConnection) -> bool:
    assert process.poll() is None
    try:
        client.request("GET", "/readyz")
        reply = client.getresponse()
        reply.read()
    except OSError:
        client.close()
        return False
    return reply.status == 200


def rss(pid: int) -> float:
    """MiB."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def run(plan: Plan, nodes: int, seed: int) -> list[Window]:
    """The windows of a run."""
    api = Api()
    with tempfile.TemporaryDirectory(prefix="steady-") as folder, api.running() as url:
        scheduler = Scheduler(api, nodes, seed)
        records = RECORDS if plan.window * plan.real_rate >= MANY_PODS else FEW_RECORDS
        with server(Path(folder), url, records) as (process, client):
            windows, begin = [Window()], time.monotonic()
            sampled = pods = 0
            while (passed := time.monotonic() - begin) < plan.seconds:
                if passed >= plan.window * len(windows):
                    windows.append(Window())
                scheduler.calls = windows[-1].calls
                due = pods / plan.real_rate
                if passed >= due:
                    scheduler.step(client)
                    pods += 1
                    windows[-1].pods += 1
                else:
                    time.sleep(min(due - passed, 0.05))
                if passed >= sampled:
                    windows[-1].rss.append(rss(process.pid))
                    sampled += 1
            assert process.poll() is None, "the server has ended"
    return windows


def parsed(argv: list[str] | None) -> tuple[Plan, argparse.Namespace]:
    """The options. A run of an hour or more takes an hour at least, for what the server does by a clock."""
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--real", type=float, help="real hours in which the hours are played; default: as many")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10.0, help="pods a second of the played hours")
    parser.add_argument("--seed", type=int, help="default: by chance")
    options = parser.parse_args(argv)
    real = options.hours if options.real is None else options.real
    if not 0 < real <= options.hours or real < 1 <= options.hours:
        parser.error("--real: above 0, at most --hours, and at least 1 where --hours is")
    return Plan(options.hours, real, options.rate), options


def main(argv: list[str] | None = None) -> int:
    """Runs, prints the windows and the verdict."""
    plan, options = parsed(argv)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}, {plan}", flush=True)
    windows = run(plan, options.nodes, seed)
    print(table(windows))
    print(plan.reached(windows))
    found = faults(plan, windows)
    print("\n".join(found) if found else "steady")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
