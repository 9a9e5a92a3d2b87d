"""One decision record as /debug/decisions shows it: names and sentences are put in when a page is asked for."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from extender.cluster.dump import BLOCK
from extender.cluster.gpus.statements import gpus_of
from extender.cluster.view import ClusterView
from extender.policy.contracts import PodRequest
from extender.policy.rules import REASONS, UNKNOWN_NODE, texts
from extender.policy.rules.failing import BROKEN, OWN
from extender.verbs.decisions import Decision

SCOPES: Final = {BROKEN.code: "all", OWN.code: "namespace"}  # for whose pods a failing node is rejected
Shown: TypeAlias = "tuple[int, int, str, int, int]"  # group, place in the answer, name, row, code


class _Node(NamedTuple):
    """One node of a decision. `at`: its place among the nodes that fit; `place`: its place in the answer; -1 = none."""

    name: str
    row: int
    code: int
    at: int
    place: int


def pieces(decision: Decision, cluster: ClusterView, weights: Mapping[str, float], most_nodes: int) -> Iterator[bytes]:
    """The JSON text of a decision for /debug/decisions, in small pieces. At most `most_nodes` nodes: those that fit
    first, best first, then by name. The cluster may change between any two pieces."""
    request = decision.request
    rank = yield from _positions(decision.scored.ranked)
    fits = yield from _positions(decision.judged.fits)
    order = yield from _shown(decision, cluster, rank)
    judged, scored = decision.judged, decision.scored
    total = len(judged.rows) + judged.unknown_count
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
        "feasible": len(judged.fits),
        "answered": len(scored.ranked),
        "reasons": _reasons(decision),
    }
    yield orjson.dumps({key: value for key, value in head.items() if key not in tail})[:-1] + b',"nodes":['
    comma = b""
    for _, _, name, row, code in islice(order, most_nodes):
        node = _Node(name, row, code, fits.get(row, -1), rank.get(row, -1))
        yield comma + orjson.dumps(_entry(node, decision, cluster, weights))
        comma = b","
    yield b"]," + orjson.dumps(tail)[1:]


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
    judged = decision.judged
    all_codes = judged.codes or array("B", bytes(len(judged.rows)))  # bind judges no pod without GPUs
    blocks: list[list[Shown]] = [sorted((2, 0, name, -1, UNKNOWN_NODE.code) for name in judged.unknown)]
    yield b""
    for at in range(0, len(judged.rows), BLOCK):
        rows, codes = judged.rows[at : at + BLOCK], all_codes[at : at + BLOCK]
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
    codes = decision.judged.codes.tobytes()
    found = {reason.key: 0 for reason in REASONS.values()}
    for code, reason in REASONS.items():
        found[reason.key] += codes.count(code)
    found[UNKNOWN_NODE.key] += decision.judged.unknown_count
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


def _entry(node: _Node, decision: Decision, cluster: ClusterView, weights: Mapping[str, float]) -> dict[str, Any]:
    """What is shown of a node."""
    name, row, code, at, place = node
    scored = decision.scored
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
                for scorer, column in scored.columns.items()
            }
            entry["score"] = scored.total[at]
        if row in decision.gpus:
            entry["gpus"] = list(gpus_of(decision.gpus[row]))
        if _by_dra(cluster, name, row, decision.request):
            entry["served_by"] = "DRA"  # no device plugin: which GPUs it takes is not ours to say
        if place >= 0 and scored.points:
            entry["points"] = scored.points[place]
    if failures := cluster.health.failures_for(name, decision.request.namespace):
        entry["failures"] = [{"pod": failure.pod, "what": failure.what} for failure in failures]
    return entry


def _by_dra(cluster: ClusterView, name: str, row: int, request: PodRequest) -> bool:
    """Whether a node that fits offers none of a requested resource: only DRA can serve the pod there. As of now."""
    if cluster.row(name) != row:
        return False  # gone, or back in another place
    alloc = cluster.tables.nodes.alloc_of(row)
    return any(alloc[resource] == 0 for resource, _ in request.gpus)
