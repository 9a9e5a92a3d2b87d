"""Why a pod is where it is, or why it waits, in the words of a running server: its latest decisions about the pod,
newest first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from extender.cli.asking import ask
from extender.cli.output import add_output
from extender.errors import BadInput, NotFound

SHOWN_NODES = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", help="the pod")
    parser.add_argument("--server", metavar="URL", default="http://127.0.0.1:8888", help="default: %(default)s")
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions shown (default: %(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what the server has kept; NotFound when it has kept nothing about the pod."""
    namespace, slash, name = options.pod.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise BadInput(f"{options.pod!r} is not NAMESPACE/NAME", path="pod")
    if options.most < 1:
        raise BadInput(f"{options.most} is less than 1", path="--most")
    answer = ask(options.server, f"/debug/decisions?pod={quote(options.pod)}&most={options.most}")
    if not answer.get("decisions"):
        raise NotFound(
            "the server has kept no decision about this pod: it was not asked since it started, or has dropped the "
            "record (decisions.maxBytes). Does the pod ask for GPUs and name this scheduler? Of several replicas only "
            "the one that schedules is asked",
            path=options.pod,
        )
    if options.output == "json":
        sys.stdout.write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE).decode())
    else:
        for decision in answer["decisions"]:
            print("\n".join(_lines(decision)), end="\n\n")
    return 0


# ---- for people


def _lines(decision: dict[str, Any]) -> Iterator[str]:
    pod = decision["pod"]
    at = datetime.fromtimestamp(decision["at"], UTC).isoformat(timespec="milliseconds")
    gpus = ", ".join(f"{count} x {name}" for name, count in pod["gpus"].items())
    yield f"{decision['verb']}  {pod['namespace']}/{pod['name']}  {at}  generation {decision['generation']}"
    yield f"  asks for {gpus or 'no GPU'}, links {pod['links']}, priority {pod['priority']}"
    if pod.get("placement") == "spread":
        yield f"  is spread: {pod['siblings']} siblings have a node"
    if group := pod.get("group"):
        yield f"  has a group: {group['placed']} of its pods have a node, {group['to_come']} are to come"
    said = [decision["error"]] if decision["error"] else []
    asked = decision["candidates"]
    if decision["verb"] in ("filter", "prioritize"):
        said.insert(0, f"{_count(asked, 'node')} asked, {decision['feasible']} fit, {decision['answered']} answered")
    elif decision["verb"] in ("preempt", "evict") and asked:
        said.insert(0, f"{_count(asked, 'node')} to choose from")
    yield f"  {decision['result']}" + (f": {'; '.join(said)}" if said else "")
    if best := decision.get("best_class"):
        yield f"  schedulerWeight: only the best of {_count(best['fit'], 'node')} that fit is answered"
    if decision.get("why"):
        yield f"  because: {decision['why']}"
    if decision.get("node"):
        gpus = ",".join(map(str, decision.get("gpus") or ()))
        plan = f", plan {decision['plan']}" if decision.get("plan") else ""
        yield f"  node {decision['node']}" + (f", GPUs {gpus}" if gpus else "") + plan
    yield from _victims(decision)
    for warning in decision.get("warnings") or ():
        yield f"  warning: {warning['message']}"
    for node in decision["nodes"][:SHOWN_NODES]:
        yield "  " + _node(node)
    left = max(0, len(decision["nodes"]) - SHOWN_NODES) + decision["nodes_left_out"]
    if left > 0:
        yield f"  and {_count(left, 'more node')} (-o json has up to 100)"
    if decision["reasons"]:
        yield "  refused: " + ", ".join(f"{count} x {code}" for code, count in decision["reasons"].items())
    if decision["duration_us"]:
        yield "  took " + ", ".join(f"{stage} {spent:.0f} us" for stage, spent in decision["duration_us"].items())


def _node(node: dict[str, Any]) -> str:
    failed = ", ".join(f"{one['pod']} ({one['what']})" for one in node.get("failures", ()))
    if not node["fits"]:
        text = f"{node['node']}: refused ({node['class']}) {node['text']}"
        return f"{text}; failed there: {failed}" if failed else text
    scores = ", ".join(
        f"{name} {score['raw']:g} x {score['weight']:g}" for name, score in node.get("scores", {}).items()
    )
    parts = [f"{node['node']}: fits"]
    if scores:
        parts.append(f"score {node['score']:g} = {scores}")
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
            f"{_count(victim['gpu_count'], 'GPU')} ({gpus})"
        )
    if cost := decision.get("cost"):
        yield f"  cost: {_cost(cost)}"
    if certificate := decision.get("certificate"):
        how = (
            "proved the cheapest" if certificate["proved"] else "the cheapest found before the search budget was spent"
        )
        nodes, sets = _count(certificate["nodes_examined"], "node"), _count(certificate["sets_examined"], "set")
        yield f"  {how}: {nodes}, {sets} examined"
        if other := certificate["runner_up"]:
            yield f"  next best: node {other['node']}, lost on {certificate['lost_on']}; cost: {_cost(other['cost'])}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _cost(terms: list[dict[str, Any]]) -> str:
    return ", ".join(f"{term['term']} {'-' if term['value'] is None else term['value']}" for term in terms)
