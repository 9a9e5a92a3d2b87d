"""What a running server has decided about a pod, or about all pods: its latest decision records, newest first."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from extender.ask.text import count, ids, named_gpus, proof, result_text, value
from extender.cli.options import add_output, show
from extender.cli.screen import aligned
from extender.cli.sources import add_server, ask, pod_of
from extender.errors import BadInput, NotFound
from extender.policy.labels import label

EXAMPLES = (
    "gpu-extender decisions train/pretrain",
    "gpu-extender decisions --most 20",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", nargs="?", help="the pod (default: all)")
    add_server(parser)
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions shown (default: %(default)s)")
    add_verbose(parser)
    add_output(parser)


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """-v."""
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="also the scores of nodes, classes of reasons, the generation of the state and the time spent",
    )  # fmt: skip


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
    show(answer, options.output, partial(_all, verbose=options.verbose))
    return 0


def _all(answer: dict[str, Any], verbose: bool) -> Iterator[str]:
    for number, record in enumerate(answer["decisions"]):
        if number:
            yield ""
        yield from lines(record, verbose)


# -- one decision record for people


SHOWN_NODES: Final = 10
NAMED_ALIKE: Final = 3
"""Nodes with equal lines that are named."""
QUIET: Final = ("scores", "class")
"""Of a node: what only helps to find a defect."""
COUNTED: Final = (("filter", "fits"), ("filter", "refused"), ("prioritize", "scored"))
"""Results that the number of nodes states."""


def lines(decision: dict[str, Any], verbose: bool = False) -> Iterator[str]:
    """The lines of a record, as /debug/decisions has it. `verbose`: with what only helps to find a defect."""
    pod = decision["pod"]
    at = datetime.fromtimestamp(decision["at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    generation = f"  generation {decision['generation']}" if verbose else ""
    yield f"{decision['verb']}  {pod['namespace']}/{pod['name']}  {at}{generation}"
    gpus = ", ".join(f"{number:,} x {name}" for name, number in pod["gpus"].items())
    yield f"  asks for: {gpus or 'no GPU'}, links {pod['links']}, priority {pod['priority']:,}"
    if pod.get("placement") == "spread":
        yield f"  spread: {count(pod['siblings'], 'sibling')} placed"
    if group := pod.get("group"):
        yield f"  group: {count(group['placed'], 'pod')} on a node, {group['to_come']} to come"
    yield f"  result: {_result(decision)}"
    if best := decision.get("best_class"):
        yield f"  schedulerWeight: only the best of {count(best['fit'], 'node')} that fit is answered"
    if decision.get("why"):
        yield f"  because: {decision['why']}"
    if verbose and decision.get("plan"):
        yield f"  plan: {decision['plan']}"
    yield from _victims(decision)
    for warning in decision.get("warnings") or ():
        yield f"  warning: {warning['message']}"
    if decision["result"] != "bound" or verbose:  # else the result states all of it
        yield from _nodes(decision["nodes"][:SHOWN_NODES], verbose)
    hidden = max(0, len(decision["nodes"]) - SHOWN_NODES) + decision["nodes_left_out"]
    if hidden > 0:
        yield f"  and {count(hidden, 'more node')} (-o json has up to 100)"
    if hidden > 0 or verbose:
        yield from rejections(decision["reasons"], "  rejected by ", verbose)
    if verbose and decision["duration_us"]:
        yield "  took: " + ", ".join(f"{stage} {spent:.0f} us" for stage, spent in decision["duration_us"].items())


def rejections(reasons: Mapping[str, int], before: str, verbose: bool = False) -> Iterator[str]:
    """How many nodes are rejected, by reason, the most first. `verbose`: with the keys of the reasons."""
    from extender.ask.node_reasons import MEANINGS, by_most_nodes  # here: completion need not load it

    for key, text in by_most_nodes(reasons):
        yield before + text + (f" [{key}]" if verbose and key in MEANINGS else "")


def _result(decision: dict[str, Any]) -> str:
    """What came of it, where, and of how many nodes."""
    verb, result = decision["verb"], decision["result"]
    parts = ["" if (verb, result) in COUNTED else result_text(verb, result)]
    if decision.get("node"):
        parts[0] += f" on {decision['node']}"
    if decision.get("gpus"):
        parts.append(named_gpus(decision["gpus"]))
    asked = decision["candidates"]
    if decision["verb"] in ("filter", "prioritize"):
        feasible, answered = decision["feasible"], decision["answered"]
        parts.append(f"fits on {feasible:,} of {count(asked, 'node')} that kube-scheduler asked about")
        if answered != feasible:
            parts.append(f"{answered:,} answered")
    elif decision["verb"] in ("preempt", "evict") and asked:
        parts.append(f"{count(asked, 'node')} to choose from")
    if decision["error"]:
        parts.append(decision["error"])
    return ", ".join(filter(None, parts))


def _nodes(nodes: Sequence[dict[str, Any]], verbose: bool) -> Iterator[str]:
    """A line for each node, or for several with equal lines. Terms that are equal on all nodes that fit stand once."""
    if not verbose:
        nodes = [{key: part for key, part in node.items() if key not in QUIET} for node in nodes]
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
    return f" and {number:,} more" if number > 0 else ""


def _scores(scores: dict[str, Any], names: Collection[str]) -> str:
    return ", ".join(
        f"{name} {score['raw']:g} x {score['weight']:g}" for name, score in scores.items() if name in names
    )


def _node(node: dict[str, Any], equal: Collection[str]) -> str:
    """Without its name and the terms that are equal on all nodes."""
    failed = ", ".join(f"{failure['pod']} ({failure['what']})" for failure in node.get("failures", ()))
    if not node["fits"]:
        text = f"rejected{f' ({why})' if (why := node.get('class')) else ''}: {_plain(node['text'])}"
        return f"{text}; failed there: {failed}" if failed else text
    scores = node.get("scores", {})
    parts = ["fits"]
    if scores:
        other = _scores(scores, [name for name in scores if name not in equal])
        parts.append(f"score {node['score']:g}{' with ' if equal and other else ' = ' if other else ''}{other}")
    if "points" in node:
        parts.append(f"{node['points']} points")
    if node.get("gpus"):
        parts.append(named_gpus(node["gpus"]))
    if not node.get("answered", True):
        parts.append("not answered")
    if failed:
        parts.append(f"failed there: {failed}")
    return "; ".join(parts)


def _plain(text: str) -> str:
    """A reason without the name of the program, which kube-scheduler's Events need."""
    return text.removeprefix("gpu-extender: ")


def _victims(decision: dict[str, Any]) -> Iterator[str]:
    for victim in decision.get("victims") or ():
        if isinstance(victim, str):  # an earlier reservation that still stands names only uids
            yield f"  evict: uid {victim}, which still terminates"
            continue
        held = "not known which" if victim["gpus"] is None else ids(victim["gpus"])
        yield (
            f"  evict: {victim['namespace']}/{victim['name']}, priority {victim['priority']:,}, "
            f"{count(victim['gpu_count'], 'GPU')} ({held})"
        )
    if certificate := decision.get("certificate"):
        yield f"  {proof(certificate, evicts=True)}"
        if other := certificate["runner_up"]:
            yield f"  next best: {_place(other)}"
    if cost := decision.get("cost"):
        yield from cost_table(cost, certificate, "  ")


def cost_table(cost: Sequence[Mapping[str, Any]], certificate: Mapping[str, Any] | None, indent: str) -> Iterator[str]:
    """The terms of a cost, the weightiest first, beside those of the next best; the term that decides is marked. Terms
    that count nothing on both sides are left out."""
    other, lost_on = (certificate or {}).get("runner_up"), (certificate or {}).get("lost_on")
    others = other["cost"] if other and other["cost"] else [None] * len(cost)
    rows = [
        (
            label(term["term"]),
            value(term),
            value(theirs) if theirs else "",
            "decides" if term["term"] == lost_on else "",
        )
        for term, theirs in zip(cost, others, strict=True)
        if term["value"] or (theirs and theirs["value"]) or term["term"] == lost_on
    ]
    yield from aligned(rows, "<>><", ("cost", "this", "next best", ""), indent)


def _place(other: dict[str, Any]) -> str:
    """Where the victims of a runner-up are."""
    if "node" in other:
        return str(other["node"])
    domain = other["domain"]
    return "other nodes" if domain is None else f"{domain['level']} {domain['value']}"
