"""What a server in shadow mode has found: how often kube-scheduler bound a pod where gpu-extender would have placed
it, and what the other choices gain or lose.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from extender.ask.text import count, gpu_hours
from extender.cli.options import add_output, show, warned
from extender.cli.sources import add_server, ask

EXAMPLES = (
    "gpu-extender shadow",
    "gpu-extender shadow --server http://127.0.0.1:18888 -o json",
)
KINDS = {
    "linked": "GPUs of a pod linked",
    "ring_gbps": "ring bandwidth of a pod",
    "whole_nodes": "whole nodes kept whole",
    "linked_sets": "linked sets kept free",
    "waits": "pods that would wait",
    "victims": "fewer victims",
    "work_lost": "less work lost",
    "gangs_broken": "fewer gangs broken",
}
WORK_LOST = "work_lost_gpu_seconds"
TOTALS = {
    "linked_pods": ("pods on linked GPUs", "with_several_gpus"),
    "ring_gbps": ("ring bandwidth, GB/s", "with_several_gpus"),
    "whole_nodes_broken": ("whole nodes broken", "placements"),
    "victims": ("victims", "preemptions"),
    "gangs_broken": ("gangs broken", "preemptions"),
    WORK_LOST: ("work lost, GPU-hours", "preemptions"),
}
"""By the name in the answer: the text of a row, and which of `compared` it is a sum over."""
NOT_JUDGED = {
    "not-modelled": "which ask for something else too that only kube-scheduler looks at",
    "unknown-node": "on a node that is not known yet",
    "unreadable": "of which a part cannot be read",
    "busy": "beyond 100 a second",
    "defect": "for a defect, see the log",
}
PREEMPTED = {
    "same": "with the same victims",
    "equal": "with other victims at the same cost",
    "other": "with other victims",
    "none": "where we would evict no pod",
}
COUNTED = {
    "placements": "pods",
    "with_positions": "pods",
    "with_several_gpus": "pods with two GPUs or more",
    "preemptions": "preemptions",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_server(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the report of the server."""
    show(ask(options.server, "/debug/shadow"), options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    from extender.ask.node_reasons import MEANINGS  # here: completion need not load it

    yield from warned(answer)
    if "placements" not in answer:
        return
    placed = answer["placements"]
    yield f"since {answer['since']}: kube-scheduler bound {count(placed['judged'], 'GPU pod')} that were compared"
    if placed["judged"]:
        agreed = placed["same"] + placed["equal"]
        yield (
            f"agreement {placed['agreement']:.1%}: {agreed} on the same node or one of the same score, "
            f"{placed['other']} on another node, {placed['wait']} would wait"
        )
    for why, pods in placed["not_judged"].items():
        yield f"not compared: {count(pods, 'pod')}, {NOT_JUDGED.get(why, why)}"
    for why, pods in placed["rejected"].items():
        yield f"we would reject the chosen node: {count(pods, 'pod')}, {MEANINGS.get(why, why)}"
    preempted = answer["preemptions"]
    if any(preempted.values()):
        parts = ", ".join(f"{number:,} {PREEMPTED[name]}" for name, number in preempted.items() if number)
        yield f"preemptions: {parts}"
    yield ""
    yield from _totals(answer)
    for difference in answer["differences"]:
        yield from _difference(difference)


def _totals(answer: Mapping[str, Any]) -> Iterator[str]:
    sides = answer["kube_scheduler"], answer["gpu_extender"]
    theirs, ours = ({**side, WORK_LOST: side[WORK_LOST] / 3600} for side in sides)
    compared = answer["compared"]
    if unknown := compared["placements"] - compared["with_positions"]:
        yield f"rows about links leave {count(unknown, 'pod')} out: positions of GPUs are not known on both nodes"
    yield f"{'':<28}{'kube-scheduler':>16}{'gpu-extender':>16}"
    rows = [(text, theirs[name], ours[name], of) for name, (text, of) in TOTALS.items()]
    pairs = zip(theirs["linked_sets_taken"], ours["linked_sets_taken"], strict=True)
    rows += [(f"linked sets of {a['gpus']} taken", a["sets"], b["sets"], "with_positions") for a, b in pairs]
    for text, was, would, of in rows:
        if was or would:
            yield f"{text:<28}{was:>16,.6g}{would:>16,.6g}  of {compared[of]:,} {COUNTED[of]}"


def _difference(difference: Mapping[str, Any]) -> Iterator[str]:
    from extender.ask.node_reasons import MEANINGS

    if not difference["gained"] and not difference["lost"]:
        return
    yield ""
    yield f"{KINDS[difference['kind']]}: gained {difference['gained']}, lost {difference['lost']}"
    for way in ("gained", "lost"):
        for example in difference["examples"][way]:
            theirs, ours = example["kube_scheduler"], example["gpu_extender"]
            why = example.get("rejected") or "rejected"
            would = _side(ours) if ours is not None else f"no node: {MEANINGS.get(why, why)}"
            yield f"  {way}: {example['pod']}: {_side(theirs)} -> {would}"


def _side(side: Mapping[str, Any]) -> str:
    if "victims" in side:
        return f"{side['node']} ({count(side['victims'], 'victim')}, {gpu_hours(side['work_lost_gpu_seconds'])} lost)"
    parts: list[str] = []
    if side.get("linked") is not None:
        parts.append(f"linked {side['linked']:.0%}, {side['ring_gbps']:g} GB/s")
    if side.get("whole_nodes_broken"):
        parts.append("breaks a whole node")
    taken: Sequence[Mapping[str, Any]] = side.get("linked_sets_taken", ())
    parts += [f"takes {linked_sets['sets']:g} sets of {linked_sets['gpus']}" for linked_sets in taken]
    return f"{side['node']} ({', '.join(parts)})" if parts else str(side["node"])
