"""What a running server has decided about a pod, or about all pods: its latest decision records, newest first."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from extender.ask.text import count
from extender.cli.options import add_output, show
from extender.cli.sources import add_server, ask, pod_of
from extender.errors import BadInput, NotFound


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", nargs="?", help="the pod (default: all)")
    add_server(parser)
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions shown (default: %(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what the server has kept; NotFound when it has kept nothing."""
    if options.most < 1:
        raise BadInput(f"{options.most} is less than 1", path="--most")
    only = "" if options.pod is None else f"pod={quote('/'.join(pod_of(options.pod)))}&"
    answer = ask(options.server, f"/debug/decisions?{only}most={options.most}")
    if not answer.get("decisions"):
        raise NotFound(
            "the server has kept no decision about this pod: it was not asked since it started, or has dropped the "
            "record (decisions.maxBytes). Does the pod ask for GPUs and name this scheduler? With several replicas, "
            "only the one that schedules is asked",
            path=options.pod or options.server,
        )
    show(answer, options.output, lambda shown: [line for record in shown["decisions"] for line in (*lines(record), "")])
    return 0


# -- one decision record for people


SHOWN_NODES: Final = 10
NAMED_ALIKE: Final = 3
"""Nodes with equal lines that are named."""


def lines(decision: dict[str, Any]) -> Iterator[str]:
    """The lines of a record, as /debug/decisions has it."""
    pod = decision["pod"]
    at = datetime.fromtimestamp(decision["at"], UTC).isoformat(timespec="milliseconds")
    gpus = ", ".join(f"{number} x {name}" for name, number in pod["gpus"].items())
    yield f"{decision['verb']}  {pod['namespace']}/{pod['name']}  {at}  generation {decision['generation']}"
    yield f"  asks for {gpus or 'no GPU'}, links {pod['links']}, priority {pod['priority']}"
    if pod.get("placement") == "spread":
        yield f"  is spread: {pod['siblings']} siblings have a node"
    if group := pod.get("group"):
        yield f"  has a group: {group['placed']} of its pods have a node, {group['to_come']} are to come"
    details = [decision["error"]] if decision["error"] else []
    asked = decision["candidates"]
    if decision["verb"] in ("filter", "prioritize"):
        details.insert(0, f"{count(asked, 'node')} asked, {decision['feasible']} fit, {decision['answered']} answered")
    elif decision["verb"] in ("preempt", "evict") and asked:
        details.insert(0, f"{count(asked, 'node')} to choose from")
    yield f"  {decision['result']}" + (f": {'; '.join(details)}" if details else "")
    if best := decision.get("best_class"):
        yield f"  schedulerWeight: only the best of {count(best['fit'], 'node')} that fit is answered"
    if decision.get("why"):
        yield f"  because: {decision['why']}"
    if decision.get("node"):
        gpus = ",".join(map(str, decision.get("gpus") or ()))
        plan = f", plan {decision['plan']}" if decision.get("plan") else ""
        yield f"  node {decision['node']}" + (f", GPUs {gpus}" if gpus else "") + plan
    yield from _victims(decision)
    for warning in decision.get("warnings") or ():
        yield f"  warning: {warning['message']}"
    yield from _nodes(decision["nodes"][:SHOWN_NODES])
    hidden = max(0, len(decision["nodes"]) - SHOWN_NODES) + decision["nodes_left_out"]
    if hidden > 0:
        yield f"  and {count(hidden, 'more node')} (-o json has up to 100)"
    if decision["reasons"]:
        yield "  refused: " + ", ".join(f"{number} x {code}" for code, number in decision["reasons"].items())
    if decision["duration_us"]:
        yield "  took " + ", ".join(f"{stage} {spent:.0f} us" for stage, spent in decision["duration_us"].items())


def _nodes(nodes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each node, or for several with equal lines. Terms that are equal on all nodes that fit stand once."""
    scored = [node["scores"] for node in nodes if node["fits"] and node.get("scores")]
    first = scored[0] if scored else {}
    equal = {name for name in first if all(scores.get(name) == first[name] for scores in scored)}
    if len(scored) < 2 or not equal:
        equal = set()
    else:
        yield f"  equal on all nodes below that fit: {_scores(scored[0], equal)}"
    for text, alike in groupby(nodes, key=lambda node: _node(node, equal)):
        names = [node["node"] for node in alike]
        yield f"  {', '.join(names[:NAMED_ALIKE])}{_more(len(names) - NAMED_ALIKE)}: {text}"


def _more(number: int) -> str:
    """ " and 3 more", or nothing."""
    return f" and {number} more" if number > 0 else ""


def _scores(scores: dict[str, Any], names: Collection[str]) -> str:
    return ", ".join(
        f"{name} {score['raw']:g} x {score['weight']:g}" for name, score in scores.items() if name in names
    )


def _node(node: dict[str, Any], equal: Collection[str]) -> str:
    """Without its name and the terms that are equal on all nodes."""
    failed = ", ".join(f"{failure['pod']} ({failure['what']})" for failure in node.get("failures", ()))
    if not node["fits"]:
        text = f"refused ({node['class']}) {node['text']}"
        return f"{text}; failed there: {failed}" if failed else text
    scores = node.get("scores", {})
    parts = ["fits"]
    if scores:
        other = _scores(scores, [name for name in scores if name not in equal])
        parts.append(f"score {node['score']:g}{' with ' if equal and other else ' = ' if other else ''}{other}")
    if "points" in node:
        parts.append(f"{node['points']} points")
    if node.get("gpus"):
        parts.append("GPUs " + ",".join(map(str, node["gpus"])))
    if not node.get("answered", True):
        parts.append("not answered")
    if failed:
        parts.append(f"failed there: {failed}")
    return "; ".join(parts)


def _victims(decision: dict[str, Any]) -> Iterator[str]:
    for victim in decision.get("victims") or ():
        if isinstance(victim, str):  # an earlier reservation that still stands names only uids
            yield f"  still to go: uid {victim}"
            continue
        gpus = "which is unknown" if victim["gpus"] is None else ",".join(map(str, victim["gpus"]))
        yield (
            f"  evict {victim['namespace']}/{victim['name']}, priority {victim['priority']}, "
            f"{count(victim['gpu_count'], 'GPU')} ({gpus})"
        )
    if cost := decision.get("cost"):
        yield f"  cost: {_cost(cost)}"
    if certificate := decision.get("certificate"):
        how = (
            "proved the cheapest" if certificate["proved"] else "the cheapest found before the search budget was spent"
        )
        nodes, sets = count(certificate["nodes_examined"], "node"), count(certificate["sets_examined"], "set")
        yield f"  {how}: {nodes}, {sets} examined"
        if other := certificate["runner_up"]:
            yield f"  next best: {_place(other)}, lost on {certificate['lost_on']}; cost: {_cost(other['cost'])}"


def _place(other: dict[str, Any]) -> str:
    """Where the victims of a runner-up are."""
    if "node" in other:
        return f"node {other['node']}"
    domain = other["domain"]
    return "other nodes" if domain is None else f"{domain['level']} {domain['value']}"


def _cost(terms: list[dict[str, Any]]) -> str:
    return ", ".join(f"{term['term']} {'-' if term['value'] is None else term['value']}" for term in terms)
