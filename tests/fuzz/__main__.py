"""Random hostile input against the real code; prints its seed, and for each distinct failure a file that replays it.

python -m tests.fuzz [--seconds 60] [--cases N] [--seed S] [--part NAME ...] [--folder build/fuzz]
python -m tests.fuzz --replay build/fuzz/objects-1a2b3c4d.json

Exit codes: 0 nothing found, 1 something fails, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
from pathlib import Path

from tests.fuzz import PARTS
from tests.fuzz.engine import ROOT, Report, replay, run

PROPERTIES = "properties"
"""The part that pytest runs: one round of all tests with hypothesis, on random input (tests/conftest.py)."""
ROUND = ("-m", "pytest", "-q", "-m", "hypothesis and not e2e", "--hypothesis-profile=fuzz")


def show(report: Report) -> str:
    """One line a part, and what fails."""
    lines = [f"{'part':10}{'episodes':>10}{'cases':>10}{'slowest case':>14}"]
    for name, tally in report.tallies.items():
        spent, episode, case = tally.slowest
        where = f"  case {case} of episode {episode}" if tally.cases else ""
        lines.append(f"{name:10}{tally.episodes:>10}{tally.cases:>10}{spent:>12.3f} s{where}")
    for found in report.failures.values():
        size = len(json.dumps(found.steps))
        lines += [
            f"\nFAILED {found.part}: {found.signature} ({found.seen} times)",
            f"  seed {found.seed}, episode {found.episode}, case {found.case}; shrunk from {found.shrunk_from} to "
            f"{size} characters",
            *(f"  replay: python -m tests.fuzz --replay {found.file}" for _ in (0,) if found.file),
            *("    " + line[:300] for line in found.detail.splitlines()[-8:]),
        ]
    lines.append(f"\n{len(report.failures)} distinct failures" if report.failures else "nothing failed")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    names = [*(part.name for part in PARTS), PROPERTIES]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="time for all parts but the properties",
    )
    parser.add_argument("--cases", type=int, help="end after so many cases, if that comes first")
    parser.add_argument("--seed", type=int, help="default: by chance")
    parser.add_argument("--part", nargs="+", choices=names, default=names)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="where failures are saved")
    parser.add_argument("--replay", type=Path, help="a saved failure")
    options = parser.parse_args(argv)
    if options.replay:
        done = replay(PARTS, options.replay)
        print(f"{done.signature}\n{done.detail}" if done.signature else "it does not fail")
        return 1 if done.signature else 0
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    chosen = [part for part in PARTS if part.name in options.part]
    failed = False
    if chosen:
        report = run(chosen, seed, seconds=options.seconds, cases=options.cases, folder=options.folder)
        failed = bool(report.failures)
        print(show(report), flush=True)
    if PROPERTIES in options.part:
        ended = subprocess.run([sys.executable, *ROUND, f"--hypothesis-seed={seed}", "tests"], cwd=ROOT, check=False)
        failed = failed or ended.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
