"""Decision records: what was answered and why, kept in a ring that is bounded in bytes.

A record keeps columns, not text: rows, reason codes, each scorer's column. Names and sentences are put in when somebody
asks, so that keeping costs a request next to nothing.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

import orjson

from extender.cluster.dump import BLOCK
from extender.cluster.gpus.statements import gpus_of
from extender.cluster.view import ClusterView
from extender.policy.contracts import PodRequest
from extender.policy.rules import REASONS, UNKNOWN_NODE, texts
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
class Decision:
    """One answered call. `at`: seconds since 1970; `rows`, `codes`: the candidates and their reasons (0 = fits);
    `ranked`: feasible rows, best first, as answered; `total`, `columns`: their scores in the order of `fits`."""

    verb: str
    at: float
    generation: int
    request: PodRequest
    rows: array[int] = field(default_factory=lambda: array("i"))
    codes: array[int] = field(default_factory=lambda: array("B"))
    reasons: dict[int, int] = field(default_factory=dict)  # code -> how many candidates it refused
    fits: array[int] = field(default_factory=lambda: array("i"))
    total: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    ranked: array[int] = field(default_factory=lambda: array("i"))
    points: array[int] = field(default_factory=lambda: array("i"))
    gpus: dict[int, int] = field(default_factory=dict)  # row -> mask that we would take there
    unknown: tuple[str, ...] = ()  # names of nodes without a row, MOST_UNKNOWN at most
    unknown_count: int = 0
    offered: int = 0  # preempt: the nodes it may choose from, which have no rows here
    proved: bool | None = None  # preempt: whether its search came to its end; None: it did not search
    result: str = ""
    error: str = ""
    detail: dict[str, Any] = field(default_factory=dict)  # preempt and bind
    stages_us: dict[str, float] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        return len(self.rows) + self.unknown_count or self.offered

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

    def lack(self, unknown: list[str]) -> None:
        """These nodes have no row. What a request names is kept within bounds."""
        self.unknown = tuple(unknown[:MOST_UNKNOWN])
        self.unknown_count = len(unknown)

    def size(self) -> int:
        """Bytes of memory, rather too many than too few: what the allocator adds is measured in a test."""
        request, detail = self.request, self.detail
        whole: list[array[int]] = [self.rows, self.codes, self.fits, self.ranked, self.points]
        shares: list[array[float]] = [self.total, *self.columns.values()]
        kept = sum(len(column) * column.itemsize for column in whole) + sum(8 * len(column) for column in shares)
        runner_up = (detail.get("certificate") or {}).get("runner_up") or {}
        victims = [*detail.get("victims", ()), *runner_up.get("victims", ())]
        texts = [name for one in victims if isinstance(one, dict) for name in one.get("pdbs", ())]  # tenants make them
        warnings = detail.get("warnings", ())
        texts += [text for one in warnings for text in one.values()]
        slots = sum(len(priced["slots"]) for priced in detail.get("price", ()))
        named = len(request.uid) + len(request.namespace) + len(request.name) + len(self.error)
        named += sum(map(len, self.unknown)) + OF_NAME * len(self.unknown)
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


def pieces(decision: Decision, cluster: ClusterView, weights: Mapping[str, float], most_nodes: int) -> Iterator[bytes]:
    """The JSON text of a decision for /debug/decisions, in small pieces. At most `most_nodes` nodes: those that fit
    first, best first, then by name. The cluster may change between any two pieces."""
    request = decision.request
    rank = yield from _positions(decision.ranked)
    fits = yield from _positions(decision.fits)
    order = yield from _shown(decision, cluster, rank)
    total = len(decision.rows) + decision.unknown_count
    tail = {
        "nodes_left_out": max(0, total - most_nodes),
        **decision.detail,
        "duration_us": {stage: round(spent, 1) for stage, spent in decision.stages_us.items()},
    }
    head = {
        "verb": decision.verb,
        "at": decision.at,
        "generation": decision.generation,
        "pod": _pod(request, cluster),
        "result": decision.result,
        "error": decision.error or None,
        "candidates": decision.candidates,
        "feasible": len(decision.fits),
        "answered": len(decision.ranked),
        "reasons": _reasons(decision),
    }
    yield orjson.dumps({key: value for key, value in head.items() if key not in tail})[:-1] + b',"nodes":['
    comma = b""
    for _, _, name, row, code in islice(order, most_nodes):
        at, place = fits.get(row, -1), rank.get(row, -1)
        yield comma + orjson.dumps(_entry(decision, cluster, weights, name, row, code, at, place))
        comma = b","
    yield b"]," + orjson.dumps(tail)[1:]


Shown: TypeAlias = "tuple[int, int, str, int, int]"  # group, place in the answer, name, row, code


def _positions(rows: array[int]) -> Generator[bytes, None, dict[int, int]]:
    """row -> its place."""
    found: dict[int, int] = {}
    for at in range(0, len(rows), 4 * BLOCK):
        found.update(zip(rows[at : at + 4 * BLOCK], range(at, at + 4 * BLOCK), strict=False))
        yield b""
    return found


def _shown(
    decision: Decision, cluster: ClusterView, rank: Mapping[int, int]
) -> Generator[bytes, None, Iterator[Shown]]:
    """The nodes in the order that they are shown in."""
    judged = decision.codes or array("B", bytes(len(decision.rows)))  # bind judges no pod without GPUs
    blocks: list[list[Shown]] = [sorted((2, 0, name, -1, UNKNOWN_NODE.code) for name in decision.unknown)]
    yield b""
    for at in range(0, len(decision.rows), BLOCK):
        rows, codes = decision.rows[at : at + BLOCK], judged[at : at + BLOCK]
        blocks.append(
            sorted(
                (0 if row in rank else 1 if not code else 2, rank.get(row, 0),
                 cluster.rows.name_at(row, decision.generation), row, code)
                for row, code in zip(rows, codes, strict=True)
            )
        )  # fmt: skip
        yield b""
    return heapq.merge(*blocks)


def _reasons(decision: Decision) -> dict[str, int]:
    """How many nodes each rule refused."""
    codes = decision.codes.tobytes()
    found = {reason.key: 0 for reason in REASONS.values()}
    for code, reason in REASONS.items():
        found[reason.key] += codes.count(code)
    found[UNKNOWN_NODE.key] += decision.unknown_count
    return {key: count for key, count in sorted(found.items()) if count}


def _pod(request: PodRequest, cluster: ClusterView) -> dict[str, Any]:
    return {
        "namespace": request.namespace,
        "name": request.name,
        "uid": request.uid,
        "priority": request.priority,
        "gpus": {cluster.resources[r]: count for r, count in request.gpus},
        "links": request.links,
        "placement": request.placement,
        "siblings": len(request.siblings),  # on nodes, or answered by us; counted for placement spread only
        "group": {"placed": len(request.kin), "to_come": request.to_come} if request.to_come else None,
    }


def _entry(
    decision: Decision,
    cluster: ClusterView,
    weights: Mapping[str, float],
    name: str,
    row: int,
    code: int,
    at: int,
    place: int,
) -> dict[str, Any]:
    """What is shown of a node. `at`: its place in `fits`; `place`: its place in the answer; -1 = none."""
    entry: dict[str, Any] = {"node": name}
    if code:
        reason = REASONS[code]
        text = texts(cluster.settings.failing_nodes)[code]
        entry |= {"fits": False, "reason": reason.key, "class": reason.cls.value, "text": text}
        if code in SCOPES:
            entry["scope"] = SCOPES[code]
    else:
        entry["fits"] = True
        if at >= 0:  # bind judges one node and scores none
            entry["answered"] = place >= 0
            entry["scores"] = {
                scorer: {"raw": column[at], "weight": weights[scorer], "weighted": column[at] * weights[scorer]}
                for scorer, column in decision.columns.items()
            }
            entry["score"] = decision.total[at]
        if row in decision.gpus:
            entry["gpus"] = list(gpus_of(decision.gpus[row]))
        if _by_dra(cluster, name, row, decision.request):
            entry["served_by"] = "DRA"  # no device plugin: which GPUs it takes is not ours to say
        if place >= 0 and decision.points:
            entry["points"] = decision.points[place]
    if failures := cluster.health.failures_for(name, decision.request.namespace):
        entry["failures"] = [{"pod": failure.pod, "what": failure.what} for failure in failures]
    return entry


def _by_dra(cluster: ClusterView, name: str, row: int, request: PodRequest) -> bool:
    """Whether a node that fits offers none of a requested resource: only DRA can serve the pod there. As of now."""
    if cluster.row(name) != row:
        return False  # gone, or back in another place
    alloc = cluster.tables.nodes.alloc_of(row)
    return any(alloc[resource] == 0 for resource, _ in request.gpus)
