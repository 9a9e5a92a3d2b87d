"""Runs episodes until the budget is used; shrinks and saves each distinct failure.

An episode is a list of steps, JSON values, made from (seed, part, number) alone and played on a fresh world. So a case
is reproduced by its seed and number, and a saved list of steps is replayed without either.
"""

from __future__ import annotations

import json
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

Step = dict[str, Any]
ROOT = Path(__file__).parents[2]
MOST_SECONDS = 2.0  # CPU seconds that one case may take
HANG_SECONDS = 60  # CPU seconds after which an episode counts as endless: other processes may slow it down
BLOCKED_SECONDS = 900  # wall-clock seconds, for an episode that waits for ever
SHRINK_SECONDS = 6.0  # for each distinct failure
MOST_FAILURES = 30  # distinct ones that are kept


class Broken(Exception):
    """An invariant does not hold. `invariant`: a constant; `detail`: what was seen; `key`: tells failures of the same
    invariant apart."""

    def __init__(self, invariant: str, detail: str, key: str = "") -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant, self.detail, self.key = invariant, detail, key


class World(Protocol):
    """What steps act on."""

    def play(self, step: Step) -> None:
        """Carry out one step and check what must hold after it. Broken, or what escapes from the code."""
        ...

    def end(self) -> None:
        """Check what must hold after the last step."""
        ...


class Part(Protocol):
    """One kind of input."""

    @property
    def name(self) -> str: ...

    def steps(self, rng: random.Random) -> list[Step]:
        """The steps of one episode; nothing but `rng` decides about them."""
        ...

    def world(self) -> AbstractContextManager[World]: ...


@dataclass
class Failure:
    """One distinct failure. `case`: the number of the step in its part, counted over all episodes from 0."""

    part: str
    seed: int
    episode: int
    case: int
    signature: str
    detail: str
    steps: list[Step]
    shrunk_from: int = 0
    seen: int = 1
    file: Path | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "seed": self.seed,
            "episode": self.episode,
            "case": self.case,
            "signature": self.signature,
            "detail": self.detail,
            "steps": self.steps,
        }


@dataclass
class Tally:
    """What a part has done so far. `slowest`: (CPU seconds, episode, case)."""

    episodes: int = 0
    cases: int = 0
    used: float = 0.0
    slowest: tuple[float, int, int] = (0.0, 0, 0)


@dataclass
class Outcome:
    """`played`: steps that were carried out; `signature`: "" when all held."""

    played: int = 0
    signature: str = ""
    detail: str = ""
    slowest: tuple[float, int] = (0.0, 0)


@dataclass
class Report:
    """The result of a run."""

    seed: int
    tallies: dict[str, Tally] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)


def rng_of(seed: int, part: str, episode: int) -> random.Random:
    return random.Random(f"{seed}/{part}/{episode}")


def play(part: Part, steps: Sequence[Step]) -> Outcome:
    """Play the steps on a fresh world; the first invariant that breaks ends it."""
    done = Outcome()
    try:
        with _watchdog(), part.world() as world:
            for number, step in enumerate(steps):
                done.played = number + 1
                began = time.process_time()
                world.play(step)
                spent = time.process_time() - began
                done.slowest = max(done.slowest, (spent, number))
                if spent > MOST_SECONDS:
                    raise Broken("a case is slow", f"{spent:.1f} s of CPU time, the limit is {MOST_SECONDS}")
            world.end()
    except Exception as error:
        done.signature, done.detail = signature_of(error)
    return done


def signature_of(error: BaseException) -> tuple[str, str]:
    """(what tells this failure from others, what to show of it)."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Broken):
        return f"{error.invariant} {error.key}".strip(), error.detail[:2000]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "/tests/" not in one.filename]
    frames = [one for one in frames if "/extender/" in one.filename or "/ext_core/" in one.filename] or frames
    where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
    shown = "".join(traceback.format_exception(error)[-6:])
    return f"an exception escapes: {type(error).__name__} in {where}", shown[-2000:]


@contextmanager
def _watchdog() -> Iterator[None]:
    """Interrupts an episode that does not end. Only on the main thread, as in the command and in pytest."""

    def late(number: int, frame: FrameType | None) -> None:
        limit = f"{HANG_SECONDS} s of CPU time" if number == signal.SIGPROF else f"{BLOCKED_SECONDS} s"
        raise Broken("a case does not end", f"more than {limit}; at {frame and frame.f_code.co_qualname}")

    before = [(number, signal.signal(number, late)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    signal.alarm(BLOCKED_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before:
            signal.signal(number, handler)


# ---- the run


def run(
    parts: Sequence[Part],
    seed: int,
    *,
    seconds: float,
    cases: int | None = None,
    folder: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Episodes of all parts, each part with the same share of the time, until `seconds` or `cases` are used. Shrinking
    counts as time of the part."""
    report = Report(seed, {part.name: Tally() for part in parts})
    until = clock() + seconds
    while clock() < until and (cases is None or sum(one.cases for one in report.tallies.values()) < cases):
        part = min(parts, key=lambda one: report.tallies[one.name].used)
        tally, began = report.tallies[part.name], clock()
        steps = part.steps(rng_of(seed, part.name, tally.episodes))
        done = play(part, steps)
        spent, at = done.slowest
        tally.slowest = max(tally.slowest, (spent, tally.episodes, tally.cases + at))
        if done.signature:
            _record(report, part, steps[: done.played], done, folder, until)
        tally.episodes += 1
        tally.cases += done.played
        tally.used += clock() - began
    return report


def _record(report: Report, part: Part, steps: list[Step], done: Outcome, folder: Path | None, until: float) -> None:
    key = f"{part.name}: {done.signature}"
    if key in report.failures:
        report.failures[key].seen += 1
        return
    if len(report.failures) >= MOST_FAILURES:
        return
    tally = report.tallies[part.name]
    found = Failure(
        part.name, report.seed, tally.episodes, tally.cases + done.played - 1, done.signature, done.detail, steps
    )
    report.failures[key] = found
    found.shrunk_from = len(json.dumps(steps))
    found.steps, found.detail = shrink(part, steps, done, min(SHRINK_SECONDS, max(1.0, until - time.monotonic())))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = sha256(key.encode()).hexdigest()[:8]
        found.file = folder / f"{part.name}-{name}.json"
        found.file.write_text(json.dumps(found.as_json(), indent=1))


def replay(parts: Sequence[Part], file: Path) -> Outcome:
    """Play a saved failure again."""
    saved: Mapping[str, Any] = json.loads(file.read_text())
    part = next(one for one in parts if one.name == saved["part"])
    return play(part, saved["steps"])


# ---- shrinking


def shrink(part: Part, steps: list[Step], done: Outcome, seconds: float) -> tuple[list[Step], str]:
    """Fewer and smaller steps that fail in the same way, found within the time; and their detail."""
    until = time.monotonic() + seconds
    best, detail = steps, done.detail

    def fails(candidate: list[Step]) -> bool:
        nonlocal best, detail
        again = play(part, candidate)
        if again.signature != done.signature:
            return False
        best, detail = candidate, again.detail
        return True

    if not fails([steps[-1]]):
        size = max(1, len(best) // 2)
        while size and time.monotonic() < until:
            at = 0
            while at < len(best) and time.monotonic() < until:
                if not fails(best[:at] + best[at + size :]):
                    at += size
            size //= 2
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for number in range(len(best)):
            for smaller in reductions(best[number]):
                if time.monotonic() >= until:
                    break
                if fails([*best[:number], smaller, *best[number + 1 :]]):
                    progress = True
                    break
    return best, detail


def reductions(value: Any) -> Iterator[Any]:
    """The same value with one part left out or made smaller; the largest parts first."""
    if isinstance(value, dict):
        for key in sorted(value, key=lambda key: -len(json.dumps(value[key]))):
            yield {one: value[one] for one in value if one != key}
        for key in value:
            for smaller in reductions(value[key]):
                yield {**value, key: smaller}
    elif isinstance(value, list):
        size = len(value) // 2
        while size:
            for at in range(0, len(value), size):
                yield value[:at] + value[at + size :]
            size //= 2
        for at, one in enumerate(value):
            for smaller in reductions(one):
                yield [*value[:at], smaller, *value[at + 1 :]]
    elif isinstance(value, str) and len(value) > 64 and not value.startswith("@"):
        yield value[: len(value) // 2]
