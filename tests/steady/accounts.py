"""What a long run is judged by: its last window against its second."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

PARTS: Final = 8
"""Hours. A shorter run has windows of its eighth part."""
MOST_RSS, MOST_P99 = 1.05, 1.2
"""The last window's over the second's, at most."""
LEAST_PODS = 0.9
"""The part of the stated pods that a run plays at least."""


@dataclass(frozen=True)
class Plan:
    """A run. `hours`: how many it plays; `real`: in how many; `rate`: pods a second of the played hours."""

    hours: float
    real: float
    rate: float = 10.0

    @property
    def seconds(self) -> float:
        """That it takes."""
        return self.real * 3600

    @property
    def real_rate(self) -> float:
        """Pods a second that passes."""
        return self.rate * self.hours / self.real

    @property
    def pods(self) -> float:
        """In all."""
        return self.real_rate * self.seconds

    @property
    def window(self) -> float:
        """Seconds of a window: of a played hour, or of an eighth of a shorter run."""
        return self.seconds / max(self.hours, PARTS)

    def reached(self, windows: list[Window]) -> str:
        """How many pods were played."""
        pods = sum(one.pods for one in windows)
        return f"{pods} of {self.pods:.0f} pods, {pods / self.seconds:.1f} a second"

    def __str__(self) -> str:
        return f"{self.hours:g} h in {self.real:g} h: {self.real_rate:g} pods a second, windows of {self.window:g} s"


@dataclass
class Window:
    """What was seen in a part of the run. `calls`: seconds of each; `rss`: MiB, once a second; `pods`: that came."""

    calls: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    pods: int = 0

    def quantile(self, part: float) -> float:
        """Seconds that `part` of the calls took at most; 0 without calls."""
        ordered = sorted(self.calls)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0

    @property
    def size(self) -> float:
        """The median of the resident memory, MiB."""
        return median(self.rss) if self.rss else 0.0


def faults(plan: Plan, windows: list[Window]) -> list[str]:
    """What is wrong with the windows of a run, in words."""
    found = []
    if sum(one.pods for one in windows) < LEAST_PODS * plan.pods:
        found.append(f"{plan.reached(windows)}: less than {LEAST_PODS} of them. This machine is too slow for the rate")
    if len(windows) < 3 or not all(one.calls and one.rss for one in (windows[1], windows[-1])):
        return [*found, "there are no three windows with calls"]
    second, last = windows[1], windows[-1]
    if last.size > MOST_RSS * second.size:
        found.append(f"RSS {last.size:.1f} MiB is more than {MOST_RSS} x {second.size:.1f} MiB")
    if last.quantile(0.99) > MOST_P99 * second.quantile(0.99):
        found.append(
            f"p99 {last.quantile(0.99) * 1000:.2f} ms is more than {MOST_P99} x {second.quantile(0.99) * 1000:.2f} ms"
        )
    return found


def table(windows: list[Window]) -> str:
    """One line a window."""
    lines = [f"{'window':>6}{'pods':>10}{'calls':>10}{'p50 ms':>10}{'p99 ms':>10}{'RSS MiB':>10}"]
    for number, one in enumerate(windows, 1):
        p50, p99 = one.quantile(0.5) * 1000, one.quantile(0.99) * 1000
        lines.append(f"{number:>6}{one.pods:>10}{len(one.calls):>10}{p50:>10.2f}{p99:>10.2f}{one.size:>10.1f}")
    return "\n".join(lines)
