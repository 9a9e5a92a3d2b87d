"""What was measured: the time of every call, exact percentiles of them, and the gate."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.verbs import percentile

OURS, NULL = "ours", "null"
LEAST_CALLS = {"p50": 100, "p99": 1_000}
"""Of a row, for each server, before its percentile is judged: of fewer calls it is chance."""
SHOWN = 5


class Row(NamedTuple):
    """What calls have in common. `names`: nodes in the request; `churn`: watch events a second, None on a frozen
    fleet or a cluster that is not ours."""

    verb: str
    names: int
    churn: int | None = None


class Limit(NamedTuple):
    """At most so many times the null's percentile."""

    p50: float
    p99: float


# The null is the same HTTP stack that sends back our own bytes, asked in turns by the same client: a ratio of 1 is a
# decision that costs nothing. The client's part, about 0.4 ms, is in both, so these ratios are nearer to 1 than those
# of the servers' CPU. p50: about twice what is measured with neighbours on two shared cores, since
# they stretch the longer call more. p99: twice that; neighbours and garbage collection hit a call of 5 ms ten times as
# often as one of 0.5 ms.
LIMITS: Mapping[str, Limit] = {
    "filter": Limit(8.0, 16.0),  # every name is judged, a few bytes come back: the null is at its fastest
    "filter, rejected": Limit(6.0, 12.0),  # every name comes back with its reason: much of the time is transfer
    "prioritize": Limit(8.0, 16.0),  # as filter
    "preempt": Limit(10.0, 20.0),  # an exact search; the null answers one node
}
CHURN = 2.0
"""How much higher the limits are while events come: a call may find a batch of them before itself, the null none."""
# What else is measured, and not limited: bind writes to an API server, and no null has debug pages.


@dataclass
class Figures:
    """Times in ms by row and server, and what went wrong. `try_again`: answers by which kube-scheduler tries again."""

    times: dict[tuple[Row, str], array[float]] = field(default_factory=dict)
    failed: int = 0
    try_again: int = 0
    wrong: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)

    def add(self, row: Row, server: str, spent: float) -> None:
        """One call that was answered."""
        self.times.setdefault((row, server), array("d")).append(spent)

    def fail(self, what: str) -> None:
        """One call that was not, or wrongly."""
        self.failed += 1
        if len(self.wrong) < SHOWN:
            self.wrong.append(what)

    def clear(self) -> None:
        """For the next run in one process; what was expected is kept."""
        self.times.clear()
        self.failed = self.try_again = 0
        self.wrong.clear()

    def rows(self) -> list[Row]:
        """Those of which ours was asked."""
        found = {row for row, server in self.times if server == OURS}
        return sorted(found, key=_order)

    def summary(self) -> list[dict[str, Any]]:
        """One entry for each row: the percentiles of both servers and their ratios."""
        return [self._summed(row) for row in self.rows()]

    def _summed(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"verb": row.verb, "names": row.names, "churn": row.churn}
        for server in (OURS, NULL):
            spent = list(self.times.get((row, server), ()))
            found[server] = percentiles(spent) if spent else None
        ours, null = found[OURS], found[NULL]
        found["ratio"] = {key: ours[key] / null[key] for key in ("p50", "p99")} if null else None
        return found

    def as_json(self) -> dict[str, Any]:
        """With every time, in the order of the calls."""
        keys = sorted(self.times, key=lambda key: (_order(key[0]), key[1]))
        times = [{**row._asdict(), "server": server, "ms": list(self.times[row, server])} for row, server in keys]
        return {"rows": self.summary(), "failed": self.failed, "wrong": self.wrong, "times": times}

    def verdict(self, gate: bool) -> list[str]:
        """What is wrong with the answers; nothing when the run passes. `gate`: whether ratios count."""
        found = list(self.wrong)
        if self.failed > len(found):
            found.append(f"{self.failed} requests failed")
        if gate:
            for made in self.summary():
                found += over(made)
        return found

    def missing(self, least: int) -> list[str]:
        """What the run was too short for. `least`: calls at least."""
        found = []
        if (count := sum(map(len, self.times.values()))) < least:
            found.append(f"{count} requests were made, fewer than {least}: this measured nothing")
        if never := self.expected - {row.verb for row, _ in self.times}:
            found.append(f"never asked: {', '.join(sorted(never))}")
        return found


def _order(row: Row) -> tuple[int, str, int]:
    return -1 if row.churn is None else row.churn, row.verb, row.names


def percentiles(spent: list[float]) -> dict[str, float]:
    """Of times in ms, by nearest rank: each is a time that was measured."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    return {"calls": len(spent), **{key: percentile(spent, share) for key, share in shares.items()}, "max": max(spent)}


def over(made: Mapping[str, Any]) -> Iterable[str]:
    """Which limits a row of the summary exceeds."""
    limit = LIMITS.get(made["verb"])
    if limit is None or made["ratio"] is None:
        return
    allowed = CHURN if made["churn"] else 1.0
    for key, most in zip(("p50", "p99"), limit, strict=True):
        enough = min(made[OURS]["calls"], made[NULL]["calls"]) >= LEAST_CALLS[key]
        if enough and made["ratio"][key] > most * allowed:
            events = f" at {made['churn']} events/s" if made["churn"] else ""
            yield (
                f"{made['verb']} of {made['names']} names{events}: {key} is {made['ratio'][key]:.1f} x the null's, "
                f"more than {most * allowed:g}"
            )
