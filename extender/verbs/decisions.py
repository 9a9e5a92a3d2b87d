"""Decision records: what was answered and why, kept in a ring that is bounded in bytes.

A record keeps columns, not text: rows, reason codes, each scorer's column. Names and sentences are put in when a client
asks, so that keeping costs a request next to nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from extender.cluster.cluster import Cluster
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.rules.failing import BROKEN, OWN

WORK_LOST: Final = "work_lost_gpu_seconds"
MOST_LOGGED: Final = 20  # victims named in a log line
SCOPES: Final = {BROKEN.code: "all", OWN.code: "namespace"}  # for whose pods a failing node is rejected
MOST_UNKNOWN: Final = 100  # names kept of nodes without a row: as many as are shown by default
# Bytes of memory of what a record is made of, roughly:
OF_DECISION: Final = 5_000  # itself, its request, its dictionaries and the heads of its arrays
OF_COLUMN: Final = 120  # the head of a scorer's column
OF_VICTIM: Final = 1_000  # what is written of one victim
OF_WARNING: Final = 250  # its dictionary
OF_SLOT: Final = 400  # what is written of a slot that the pod takes
OF_NAME: Final = 70  # the head of a string
OF_NUMBER: Final = 40  # a number in a tuple


@dataclass(slots=True)
class Judged:
    """What the rules found. `rows`, `codes`: the candidates and their reasons (0 = fits); `fits`: the rows that fit."""

    rows: array[int] = field(default_factory=lambda: array("i"))
    codes: array[int] = field(default_factory=lambda: array("B"))
    reasons: dict[int, int] = field(default_factory=dict)  # code -> how many candidates it rejected
    fits: array[int] = field(default_factory=lambda: array("i"))
    unknown: tuple[str, ...] = ()  # names of nodes without a row, MOST_UNKNOWN at most
    unknown_count: int = 0

    def lack(self, unknown: list[str]) -> None:
        """These nodes have no row. What a request names is kept within bounds."""
        self.unknown = tuple(unknown[:MOST_UNKNOWN])
        self.unknown_count = len(unknown)


@dataclass(slots=True)
class Scored:
    """What the scorers found. `total`, `columns`: the scores of the nodes that fit, in the order of `Judged.fits`;
    `ranked`: the rows that were answered, best first; `points`: the points of each of them, 0..10."""

    total: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    ranked: array[int] = field(default_factory=lambda: array("i"))
    points: array[int] = field(default_factory=lambda: array("i"))


@dataclass(slots=True)
class Decision:
    """One answered call. `at`: seconds since 1970; `detail`: what preempt, bind and sampling add, as it is shown."""

    verb: str
    at: float
    generation: int
    request: PodRequest
    judged: Judged = field(default_factory=Judged)
    scored: Scored = field(default_factory=Scored)
    gpus: dict[int, int] = field(default_factory=dict)  # row -> mask that we would take there
    offered: int = 0  # preempt: the nodes it may choose from, which have no rows here
    proved: bool | None = None  # preempt: whether its search came to its end; None: it did not search
    result: str = ""
    error: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    stages_us: dict[str, float] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        """How many nodes the request names, or, for preempt, offers."""
        return len(self.judged.rows) + self.judged.unknown_count or self.offered

    def value_of(self, term: str) -> int | None:
        """What a term of the cost says; None where it is not known, or not among the settings' terms."""
        return next((one["value"] for one in self.detail.get("cost", ()) if one["term"] == term), None)

    def logged(self) -> dict[str, Any]:
        """What the log line of a preemption or an eviction says besides: bounded, and nothing for other verbs."""
        detail = self.detail
        said: dict[str, Any] = {}
        victims = detail.get("victims")
        if victims:  # an earlier plan that still stands has their uids alone
            names = [one if isinstance(one, str) else f"{one['namespace']}/{one['name']}" for one in victims]
            said |= {"victims": len(names), "evict": names[:MOST_LOGGED]}
        if "cost" in detail:
            said["cost"] = {one["term"]: one["value"] for one in detail["cost"]}
        if self.proved is not None:
            said["proved"] = self.proved
        return said

    def choose_gpus(self, cluster: Cluster, policy: Policy, *, priced: bool) -> None:
        """Note the GPUs to take on the best nodes, and, `priced`, what the first two cost the pods to come."""
        tables, request = cluster.tables, self.request
        best = self.scored.ranked[:16]
        self.gpus = dict(zip(best, policy.gpus(tables, request, best), strict=True))
        if priced:
            self.detail["price"] = policy.price(tables, request, cluster.names, self.scored.ranked[:2])

    def size(self) -> int:
        """Bytes of memory, rather too many than too few: what the allocator adds is measured in a test."""
        request, judged, scored, detail = self.request, self.judged, self.scored, self.detail
        whole: list[array[int]] = [judged.rows, judged.codes, judged.fits, scored.ranked, scored.points]
        shares: list[array[float]] = [scored.total, *scored.columns.values()]
        kept = sum(len(column) * column.itemsize for column in whole) + sum(8 * len(column) for column in shares)
        runner_up = (detail.get("certificate") or {}).get("runner_up") or {}
        victims = [*detail.get("victims", ()), *runner_up.get("victims", ())]
        texts = [name for one in victims if isinstance(one, dict) for name in one.get("pdbs", ())]  # tenants make them
        warnings = detail.get("warnings", ())
        texts += [text for one in warnings for text in one.values()]
        slots = sum(len(priced["slots"]) for priced in detail.get("price", ()))
        named = len(request.uid) + len(request.namespace) + len(request.name) + len(self.error)
        named += sum(map(len, judged.unknown)) + OF_NAME * len(judged.unknown)
        named += sum(map(len, texts)) + OF_NAME * len(texts) + OF_WARNING * len(warnings)
        others = OF_NUMBER * (len(request.siblings) + len(request.kin))
        return (
            OF_DECISION + kept + OF_COLUMN * len(shares) + OF_VICTIM * len(victims) + OF_SLOT * slots + named + others
        )


class Decisions:
    """The latest decisions, newest last. 0 bytes keep none."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._kept: deque[Decision] = deque()
        self._sizes: deque[int] = deque()  # as they came: what a decision tells may change later
        self._bytes = 0

    def add(self, decision: Decision) -> None:
        """Keep one; the oldest are dropped where the bytes do not suffice. One that is too large alone is not kept."""
        size = decision.size()
        if size > self._max:
            return
        self._kept.append(decision)
        self._sizes.append(size)
        self._bytes += size
        while self._bytes > self._max:
            self._kept.popleft()
            self._bytes -= self._sizes.popleft()

    def latest(self) -> Iterator[Decision]:
        """Newest first."""
        return reversed(self._kept)
