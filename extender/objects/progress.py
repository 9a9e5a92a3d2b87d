"""What a pod states of its own progress: when it last saved its work, and what a restart costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ext_core.rows import NOT_ASKED
from extender.objects.records import PodRecord

PROTECT = "gpu-extender.io/protect-for"
CHECKPOINT = "gpu-extender.io/last-checkpoint"
INTERVAL = "gpu-extender.io/checkpoint-interval"
RESTART = "gpu-extender.io/restart-seconds"
SAVES_ON_TERMINATION = "gpu-extender.io/saves-on-termination"
SAVES_ON_REQUEST = "gpu-extender.io/saves-on-request"
SAVES = SAVES_ON_TERMINATION, SAVES_ON_REQUEST
LONGEST_TEXT = 64  # characters of a duration: an annotation may have 256 KiB, and is read for each change of a node
LONGEST = 100 * 365 * 86_400  # seconds: a longer duration counts as this, so that times stay times
NOT_STARTED = 2**52  # milliseconds: later than any start, so nothing is lost and the pod counts as the youngest


_PART = re.compile(r"(\d{1,9}(?:\.\d*)?|\.\d+)(h|ms|m|s)", re.ASCII)
_MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


def duration(text: str) -> int | None:
    """Seconds, rounded up, of a duration as Go and Kubernetes write it ("90s", "45m", "1h30m", "1.5h"), or of plain
    seconds ("5400"), LONGEST at most; None for anything else."""
    return _duration(text) if len(text) <= LONGEST_TEXT else None


@lru_cache(maxsize=1024)
def _duration(text: str) -> int | None:
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if not text or _PART.sub("", text):
        return None
    milliseconds = sum(Fraction(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text))
    return min(ceil(milliseconds / 1000), LONGEST)


def duration_text(seconds: int) -> str:
    """As Go writes it: "1h0m0s", "45m0s", "30s"."""
    hours, minutes = seconds // 3600, seconds // 60 % 60
    text = f"{minutes}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"
    return f"{hours}h{text}" if hours else text


def protected_ms(pod: PodRecord, minimum_run: Mapping[str, float], most: int) -> int:
    """Until when the pod is never a victim, milliseconds since 1970: the annotation protect-for, which counts as `most`
    seconds at most, or the minimum run time of its PriorityClass (`minimum_run`, seconds by name), whichever is longer,
    after its start. 0: it is not protected (an invalid duration is ignored); NOT_STARTED while it has not started."""
    stated = min(duration(pod.annotations.get(PROTECT, "0")) or 0, most)
    seconds = max(stated, minimum_run.get(pod.priority_class, 0.0))
    if seconds <= 0:
        return 0
    return NOT_STARTED if pod.start is None else int((pod.start + seconds) * 1000)


def start_ms(pod: PodRecord) -> int:
    """Milliseconds since 1970; NOT_STARTED while it has not."""
    return max(0, int(pod.start * 1000)) if pod.start is not None else NOT_STARTED


class Saving(NamedTuple):
    """In how many seconds a pod saves its work before it ends; -1: it does not, or not in time."""

    on_termination: int = -1
    """Once its containers are told to end."""
    on_request: int = -1
    """Once it is asked to."""
    ignores: int = 0
    """How likely it does not all the same, by what pods like it did when they were asked, in thousandths."""

    @property
    def when_asked(self) -> int:
        """`on_request`; -1 where the pod is not believed, and so not asked."""
        return self.on_request if self.ignores < NOT_ASKED else -1

    def within(self, most_wait: int) -> int:
        """What counts for a preemptor that waits so many seconds at most until its victims have saved; 0: it does not
        ask."""
        asked = self.when_asked if self.when_asked <= most_wait > 0 else -1
        if asked < 0 or self.on_termination < 0:
            return max(asked, self.on_termination)
        return min(asked, self.on_termination)


NOT_SAVING = Saving()


def saving(pod: PodRecord, most_on_termination: int, most_on_request: int) -> Saving:
    """What its annotations state; nothing beyond `most_...` seconds (0: nothing at all), nor beyond its grace."""
    on_termination, on_request = (
        -1 if (seconds := duration(pod.annotations.get(name, ""))) is None or seconds > most or not most else seconds
        for name, most in zip(SAVES, (most_on_termination, most_on_request), strict=True)
    )
    return Saving(on_termination if on_termination <= pod.grace_seconds else -1, on_request)


def lost(gpus: int, since: int, restart: int, saves: int, ignores: int, now: int) -> int:
    """Work in GPU-seconds that an eviction loses: GPUs x (now - last checkpoint, or start, + restart seconds). Of a pod
    that saves its work within `saves` seconds before it ends it is GPUs x (`saves` + restart seconds), if that is less,
    and `ignores` thousandths of the difference.

    `since`, `now`: milliseconds since 1970; `restart`: seconds; `saves`: -1: it does not. A checkpoint in the future
    counts as now.
    """
    work = gpus * max(0, now - since) // 1000
    least = work if saves < 0 else min(work, gpus * saves)
    return least + (work - least) * ignores // 1000 + gpus * restart


def saved_ms(pod: PodRecord) -> int:
    """Milliseconds since 1970 of the annotation last-checkpoint (RFC 3339 with an offset). 0 without a valid one, and
    where it is not later than the pod's start: then the start counts, so that no pod seems to lose more than it ran."""
    text = pod.annotations.get(CHECKPOINT)
    if not text:  # nearly always
        return 0
    saved = checkpoint(text)
    return saved if saved > start_ms(pod) else 0


def checkpoint(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time with an offset; 0 when it is none."""
    try:
        moment = datetime.fromisoformat(text.strip().upper())  # RFC 3339 has t and z too
    except ValueError:
        return 0
    if moment.tzinfo is None:
        return 0
    return max(0, int(moment.timestamp() * 1000))


def whole(text: str) -> int | None:
    """A number of seconds below 10^9; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def restart_seconds(pod: PodRecord, most: int) -> int:
    """Seconds of the annotation restart-seconds, `most` at most; 0 when it is absent or not a number."""
    return min(whole(pod.annotations.get(RESTART, "")) or 0, most)
