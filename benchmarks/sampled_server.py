"""The server of a tree, and where its CPU time goes: `python -P sampled_server.py FILE serve ...` with the tree in
PYTHONPATH. SIGUSR1 begins to take samples; SIGUSR2 ends that and writes FILE, JSON: [[file, function, samples], ...].

A sample is taken for every few milliseconds of CPU time, and costs what it measures next to nothing. It counts for the
innermost Python function of the tree or of a package. The time of compiled code counts for the function that calls it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY = 0.001  # seconds of CPU time; the kernel's tick may make it longer
samples: Counter[tuple[str, str]] = Counter()
library = str(Path(json.__file__).parents[1])


def sample(number: int, frame: FrameType | None) -> None:
    """Count the innermost function that is not of the standard library."""
    inner = frame
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("/") and ("site-packages" in file or not file.startswith(library)):
            break
        frame = frame.f_back
    frame = frame or inner
    if frame is not None:
        samples[frame.f_code.co_filename, frame.f_code.co_name] += 1


def begin(number: int, frame: FrameType | None) -> None:
    """SIGUSR1."""
    samples.clear()
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)


def end(number: int, frame: FrameType | None) -> None:
    """SIGUSR2."""
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    found = [[file, name, count] for (file, name), count in samples.most_common()]
    made = Path(sys.argv[1])
    made.with_suffix(".part").write_text(json.dumps(found))
    made.with_suffix(".part").rename(made)


def main() -> int:
    from extender.cli import main as extender

    signal.signal(signal.SIGPROF, sample)
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    return extender(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
