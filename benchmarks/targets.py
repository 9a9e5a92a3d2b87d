"""The targets of live speed: measure, target, what this machine got, met or lost.

    python -m benchmarks.targets [--full] [--only scheduler events ...] [--write docs]

Runs each measurement in a process of its own, prints its tables, and at the end all lines of their targets tables with
the losses. About half an hour on two idle cores, the builds of the control plane and of the arm `before` not counted.
`--full` adds what takes longer (scheduler at 500 and 15,000 nodes): about an hour and a half.
A measurement that fails is reported and does not stop the others; then the status is 1. A lost target is no failure.
`--write docs` writes the tables of each measurement that ran to docs/results/NAME.csv. After a run of all measurements
it writes the lines of the targets to docs/results/targets.csv, and the losses into docs/performance.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import say
from benchmarks.tables import save

HEAD = "| measure | target | got | |"
WIDE = 78


@dataclass(frozen=True)
class Part:
    """One measurement. `arguments` of the bounded run, and `full` instead of them; `smaller`: what the bounded run
    leaves out; `seconds`: after which it counts as failed."""

    name: str
    arguments: tuple[str, ...] = ()
    full: tuple[str, ...] | None = None
    smaller: str = ""
    seconds: float = 900.0

    def asked(self, *, whole: bool) -> tuple[str, ...]:
        """The arguments of the run."""
        return self.full if whole and self.full is not None else self.arguments


PARTS = (
    Part("verbs", ("--names", "5000", "--candidates", "--seconds", "60")),
    Part("stages"),
    Part("decisions"),
    Part("events"),
    Part("watch"),
    Part("preempt_speed", ("--candidates",)),
    Part("reservations"),
    Part("memory", seconds=1800.0),
    Part(
        "scheduler",
        ("--seconds", "600"),
        full=("--nodes", "500", "5000", "15000", "--seconds", "2700"),
        smaller="500 and 15,000 nodes",
        seconds=6000.0,
    ),
)


@dataclass
class Outcome:
    """What came of the parts: lines of targets tables, and failures."""

    lines: list[list[str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    smaller: list[str] = field(default_factory=list)


def run(part: Part, *, whole: bool) -> tuple[str, str]:
    """(What it prints, why it failed or "")."""
    words = [sys.executable, "-m", f"benchmarks.{part.name}", *part.asked(whole=whole)]
    try:
        made = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=part.seconds, check=False)
    except subprocess.TimeoutExpired:
        return "", f"not done after {part.seconds:.0f} s"
    return made.stdout, f"status {made.returncode}, see above" if made.returncode else ""


def lines_of(text: str) -> list[list[str]]:
    """The cells of the lines of all targets tables in the text."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line == HEAD:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def summary(outcome: Outcome) -> str:
    """All lines, then what is lost, what failed, and what ran at a smaller size."""
    parts = ["Targets", "", HEAD, "|---|---|---|---|"]
    parts += ["| " + " | ".join(cells) + " |" for cells in outcome.lines]
    lost = [cells[0] for cells in outcome.lines if cells[3] == "LOST"]
    judged = sum(cells[3] in ("met", "LOST") for cells in outcome.lines)
    parts += ["", f"{judged - len(lost)} of {judged} targets are met."]
    for what, names in (("lost", lost), ("FAILED", outcome.failed), ("not measured, use --full", outcome.smaller)):
        parts += [f"{what}: {name}" for name in names]
    return "\n".join(parts)


def losses(outcome: Outcome) -> str:
    """For docs/performance.md, between its marks: how many targets are met, and each line that is lost."""
    lost = [cells for cells in outcome.lines if cells[3] == "LOST"]
    judged = sum(cells[3] in ("met", "LOST") for cells in outcome.lines)
    head = f"{judged - len(lost)} of {judged} targets are met ([targets.csv](results/targets.csv)). **Lost** are:"
    return "\n".join([head, "", *(f"- {measure}: {target}, got {got}" for measure, target, got, _ in lost)])


def without_targets(text: str) -> str:
    """What a measurement prints, less its targets table."""
    kept, inside = [], False
    for line in text.splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if not inside and line != "Targets":
            kept.append(line)
    return "\n".join(kept).strip()


MARKED = re.compile(r"(?<=<!-- targets -->\n\n).*?(?=\n\n<!-- /targets -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all sizes")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the tables below this folder of documents")
    asked = parser.parse_args(arguments)
    outcome, began = Outcome(), time.monotonic()
    for part in PARTS:
        if asked.only and part.name not in asked.only:
            continue
        say(f"{part.name} {' '.join(part.asked(whole=asked.full))} ({(time.monotonic() - began) / 60:.0f} min so far)")
        text, why = run(part, whole=asked.full)
        print(f"{part.name}\n{'-' * WIDE}\n{text}", flush=True)
        outcome.lines += lines_of(text)
        if why:
            outcome.failed.append(f"{part.name}: {why}")
        elif asked.write:
            save(without_targets(text), asked.write / "results" / f"{part.name}.csv")
        if part.smaller and not asked.full:
            outcome.smaller.append(f"{part.name}: {part.smaller}")
    print(summary(outcome))
    if asked.write and not asked.only:
        save(summary(outcome), asked.write / "results" / "targets.csv")
        page = asked.write / "performance.md"
        page.write_text(MARKED.sub(lambda _: losses(outcome), page.read_text()))
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
