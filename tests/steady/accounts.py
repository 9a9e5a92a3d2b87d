"""What a long run is judged by: its last window against its second."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

WINDOW_SECONDS: Final = 3600.0
PARTS: Final = 8
"""A run shorter than as many windows has windows of its eighth part."""
MOST_RSS, MOST_P99 = 1.05, 1.2
"""The last window's over the second's, at most."""


@dataclass
class Window:
    """What was seen in a part of the run. `calls`: seconds of each; `rss`: MiB, once a second."""

    calls: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)

    def quantile(self, part: float) -> float:
        """Seconds that `part` of the calls took at most; 0 without calls."""
        ordered = sorted(self.calls)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0

    @property
    def size(self) -> float:
        """The median of the resident memory, MiB."""
        return median(self.rss) if self.rss else 0.0


def length(seconds: float) -> float:
    """Seconds of a window of a run."""
    return min(WINDOW_SECONDS, seconds / PARTS)


def faults(windows: list[Window]) -> list[str]:
    """What is wrong with the windows of a run, in words."""
    if len(windows) < 3 or not all(one.calls and one.rss for one in (windows[1], windows[-1])):
        return ["there are no three windows with calls"]
    second, last = windows[1], windows[-1]
    found = []
    if last.size > MOST_RSS * second.size:
        found.append(f"RSS {last.size:.1f} MiB is more than {MOST_RSS} x {second.size:.1f} MiB")
    if last.quantile(0.99) > MOST_P99 * second.quantile(0.99):
        found.append(
            f"p99 {last.quantile(0.99) * 1000:.2f} ms is more than {MOST_P99} x {second.quantile(0.99) * 1000:.2f} ms"
        )
    return found


def table(windows: list[Window]) -> str:
    """One line a window."""
    lines = [f"{'window':>6}{'calls':>10}{'p50 ms':>10}{'p99 ms':>10}{'RSS MiB':>10}"]
    for number, one in enumerate(windows, 1):
        p50, p99 = one.quantile(0.5) * 1000, one.quantile(0.99) * 1000
        lines.append(f"{number:>6}{len(one.calls):>10}{p50:>10.2f}{p99:>10.2f}{one.size:>10.1f}")
    return "\n".join(lines)
