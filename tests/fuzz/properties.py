"""The property tests (those with hypothesis) with random input: rounds of pytest, each with a seed of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.engine import ROOT

PROFILE = "fuzz"  # tests/conftest.py has it


@dataclass(frozen=True)
class Round:
    """What one round of all property tests found. `text`: pytest's output; `command`: runs the same round again."""

    seed: int
    failed: bool
    text: str
    command: str


def command(seed: int) -> list[str]:
    """The arguments of Python for the round of a seed."""
    chosen = ["-q", "-m", "hypothesis and not e2e", f"--hypothesis-profile={PROFILE}", f"--hypothesis-seed={seed}"]
    return ["-m", "pytest", *chosen, "tests"]


def play(arguments: Sequence[str]) -> tuple[int, str]:
    """(exit code, output) of Python with these arguments, in the folder of the project."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def run(
    seed: int,
    seconds: float,
    play: Callable[[Sequence[str]], tuple[int, str]] = play,
    clock: Callable[[], float] = time.monotonic,
) -> list[Round]:
    """Rounds with the seeds `seed`, `seed + 1`, ... until the time is over, or one fails. One at least, and whole."""
    until = clock() + seconds
    rounds: list[Round] = []
    while not rounds or (clock() < until and not rounds[-1].failed):
        arguments = command(seed + len(rounds))
        code, text = play(arguments)
        shown = " ".join(f'"{one}"' if " " in one else one for one in arguments)
        rounds.append(Round(seed + len(rounds), code != 0, text, f"python {shown}"))
    return rounds


def show(rounds: Sequence[Round]) -> str:
    """One line, and what fails: with the blob that reproduces each example, and the command of the round."""
    last = rounds[-1]
    lines = [f"{'properties':10}{len(rounds):>10} rounds, seeds {rounds[0].seed} to {last.seed}"]
    if last.failed:
        lines += [
            "\nFAILED properties",
            *("    " + line for line in last.text.splitlines()),
            f"  again: {last.command}",
        ]
    return "\n".join(lines)
