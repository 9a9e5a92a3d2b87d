"""Decision records: what was answered and why, kept in a ring that is bounded in bytes.

A record keeps columns, not text: rows, reason codes, each scorer's column. Names and sentences are put in when somebody
asks, so that keeping costs a request next to nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from extender.cluster import Cluster
from extender.contracts import PodRequest
from extender.ledger import gpus_of
from extender.rules import REASONS, texts
from extender.rules.failing import BROKEN, OWN

WORK_LOST: Final = "work_lost_gpu_seconds"
MOST_LOGGED: Final = 20  # victims named in a log line
SCOPES: Final = {BROKEN.code: "all", OWN.code: "namespace"}  # for whose pods a failing node is rejected
OF_VICTIM: Final = 1_000  # bytes of what is told of one, roughly


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
    unknown: tuple[str, ...] = ()
    offered: int = 0  # preempt: the nodes it may choose from, which have no rows here
    proved: bool | None = None  # preempt: whether its search came to its end; None: it did not search
    result: str = ""
    error: str = ""
    detail: dict[str, Any] = field(default_factory=dict)  # preempt and bind
    stages_us: dict[str, float] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        return len(self.rows) + len(self.unknown) or self.offered

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

    def size(self) -> int:
        """Bytes, roughly."""
        whole: list[array[int]] = [self.rows, self.codes, self.fits, self.ranked, self.points]
        shares: list[array[float]] = [self.total, *self.columns.values()]
        kept = sum(len(column) * column.itemsize for column in whole) + sum(8 * len(column) for column in shares)
        runner_up = (self.detail.get("certificate") or {}).get("runner_up") or {}
        victims = len(self.detail.get("victims", ())) + len(runner_up.get("victims", ()))
        return 1_000 + kept + 60 * len(self.unknown) + OF_VICTIM * victims


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

    def latest(self, namespace: str | None = None, name: str | None = None, most: int = 20) -> Iterator[Decision]:
        """Newest first; of one pod when it is named."""
        found = 0
        for decision in reversed(self._kept):
            if name is not None and (decision.request.namespace, decision.request.name) != (namespace, name):
                continue
            yield decision
            found += 1
            if found >= most:
                return


def as_json(decision: Decision, cluster: Cluster, weights: Mapping[str, float], most_nodes: int) -> dict[str, Any]:
    """A decision for /debug/decisions. At most `most_nodes` nodes: those that fit first, best first, then by name."""
    request = decision.request
    rank = {row: i for i, row in enumerate(decision.ranked)}
    fits = {row: i for i, row in enumerate(decision.fits)}
    said = texts(cluster.settings)
    nodes: list[dict[str, Any]] = []
    reasons: dict[str, int] = {}
    for code in decision.codes:
        if code:
            reasons[REASONS[code].key] = reasons.get(REASONS[code].key, 0) + 1
    for _ in decision.unknown:
        reasons["unknown-node"] = reasons.get("unknown-node", 0) + 1
    pairs = [
        (0 if row in rank else 1 if not code else 2, rank.get(row, 0), cluster.name_at(row, decision.generation), row,
         code)
        for row, code in zip(decision.rows, decision.codes, strict=True)
    ]  # fmt: skip
    pairs += [(2, 0, name, -1, 1) for name in decision.unknown]
    for _, _, name, row, code in sorted(pairs)[:most_nodes]:
        entry: dict[str, Any] = {"node": name}
        if code:
            reason = REASONS[code]
            entry |= {"fits": False, "reason": reason.key, "class": reason.cls.value, "text": said[code]}
            if code in SCOPES:
                entry["scope"] = SCOPES[code]
        else:
            entry["fits"] = True
            if row in fits:  # bind judges one node and scores none
                at = fits[row]
                entry["answered"] = row in rank
                entry["scores"] = {
                    scorer: {"raw": column[at], "weight": weights[scorer], "weighted": column[at] * weights[scorer]}
                    for scorer, column in decision.columns.items()
                }
                entry["score"] = decision.total[at]
            if row in decision.gpus:
                entry["gpus"] = list(gpus_of(decision.gpus[row]))
            if _by_dra(cluster, name, row, request):
                entry["served_by"] = "DRA"  # no device plugin: which GPUs it takes is not ours to say
            if row in rank and decision.points:
                entry["points"] = decision.points[rank[row]]
        if failures := cluster.health.failures_for(name, request.namespace):
            entry["failures"] = [{"pod": failure.pod, "what": failure.what} for failure in failures]
        nodes.append(entry)
    return {
        "verb": decision.verb,
        "at": decision.at,
        "generation": decision.generation,
        "pod": {
            "namespace": request.namespace,
            "name": request.name,
            "uid": request.uid,
            "priority": request.priority,
            "gpus": {cluster.resources[r]: count for r, count in request.gpus},
            "links": request.links,
            "placement": request.placement,
            "siblings": len(request.siblings),  # on nodes, or answered by us; counted for placement spread only
            "group": {"placed": len(request.kin), "to_come": request.to_come} if request.to_come else None,
        },
        "result": decision.result,
        "error": decision.error or None,
        "candidates": decision.candidates,
        "feasible": len(decision.fits),
        "answered": len(decision.ranked),
        "reasons": dict(sorted(reasons.items())),
        "nodes": nodes,
        "nodes_left_out": max(0, len(pairs) - most_nodes),
        **decision.detail,
        "duration_us": {stage: round(spent, 1) for stage, spent in decision.stages_us.items()},
    }


def _by_dra(cluster: Cluster, name: str, row: int, request: PodRequest) -> bool:
    """Whether a node that fits offers none of a requested resource: only DRA can serve the pod there. As of now."""
    if cluster.row(name) != row:
        return False  # gone, or back in another place
    alloc = cluster.tables.nodes.node(row)["alloc"]
    assert isinstance(alloc, tuple)
    return any(alloc[resource] == 0 for resource, _ in request.gpus)
