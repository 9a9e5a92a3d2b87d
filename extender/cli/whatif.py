"""What would happen to pods: do they fit, where, and if not, which eviction costs least, and what else would help? All
pods are placed together on one copy of the cluster; a gang is placed whole, and owners are expanded. Exit codes: 0 it
fits, 10 it fits after an eviction, 11 it cannot (of several pods the worst), 1 an error, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from extender.ask.text import count, gpu_hours, ids, lacks, named_gpus, proof, short, way
from extender.cli.decisions import cost_table, rejections
from extender.cli.options import add_output, note, settings_of, show
from extender.cli.screen import Line, aligned, indented, tell
from extender.cli.sources import add_now, add_sources, events, moment, of_server, pod_of, post
from extender.errors import BadInput, BadTopology
from extender.policy.labels import label

if TYPE_CHECKING:
    from rich.text import Text

    from extender.ask.whatif.question import Changes, Document
    from extender.topologies import Topology

EXAMPLES = (
    "gpu-extender whatif -f pod.yaml",
    "gpu-extender whatif --pod train/pretrain",
    "gpu-extender whatif --drain node-1 node-2",
    "gpu-extender whatif -f job.yaml --add 2 catalogue:dgx-h100 --cluster cluster.json",
)
SHOWN: Final = 5
"""Warnings of one code; the pods of a gang have many that are alike."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    parser.add_argument(
        "-f", "--filename", metavar="POD", type=Path, nargs="+", action="extend", default=[],
        help="manifests of pods and owners of pods (JSON or YAML; - is standard input)",
    )  # fmt: skip
    parser.add_argument(
        "--pod", metavar="NAMESPACE/NAME", nargs="+", action="extend", default=[], help="pods of the cluster that wait"
    )
    change = parser.add_argument_group("changes of the nodes, made first")
    change.add_argument(
        "--add", metavar=("N", "TOPOLOGY|NODE"), nargs=2, action="append", default=[],
        help="N nodes more: catalogue:ID, a description of GPUs as `topo` reads it, or the name of a node to copy",
    )  # fmt: skip
    change.add_argument(
        "--cordon", metavar="NODE", nargs="+", action="extend", default=[], help="no pod is placed there any more"
    )
    change.add_argument(
        "--drain", metavar="NODE", nargs="+", action="extend", default=[],
        help="cordon, and evict all pods but those of DaemonSets. Without -f and --pod: where do its pods go?",
    )  # fmt: skip
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    wall = moment(options.now)
    if not options.filename and not options.pod and not options.drain:
        raise BadInput("there is no pod to ask about: name it with -f or --pod, or drain a node with --drain")
    named = [pod_of(text) for text in options.pod]
    from extender.ask.whatif import engine  # here: --help need not load the core

    topologies: dict[str, Topology] = {}
    repeated: list[str] = []
    documents = list(_documents(options.filename, repeated))
    if of_server(options):
        answered = post(options.server, "/debug/whatif", _body(options, documents, named))
    else:
        answered = _frozen(options, documents, named, wall, topologies)
    answered["warnings"] += [{"code": "repeated-key", "message": text} for text in repeated]
    show(answered, options.output, partial(_lines, topologies))
    if options.output == "text":
        _warn(answered)
    return engine.exit_code(answered)


def _frozen(
    options: argparse.Namespace,
    documents: list[Document],
    named: list[tuple[str, str]],
    wall: float,
    topologies: dict[str, Topology],
) -> dict[str, Any]:
    """The answer by a cluster that is read once. `topologies`: those of its nodes are put there."""
    from extender.ask import offline
    from extender.ask.suppose import SupposedCluster
    from extender.ask.whatif import question
    from extender.objects import decode

    settings = settings_of(options)
    items: list[dict[str, Any]] = []
    cluster_events, invalid = events(options, settings, items)
    snapshot = SupposedCluster.of(settings, cluster_events)
    asked = question.read(documents, snapshot.cluster.gpu_names, named, _changes(options))
    answered = offline.whatif(snapshot, asked, wall, items)
    answered["warnings"] = [*decode.warnings(invalid), *answered["warnings"]]
    topologies.update(snapshot.cluster.gpus.topologies)
    return answered


def _documents(files: list[Path], repeated: list[str]) -> Iterator[Document]:
    """The objects of the manifests. `repeated`: sentences about keys that one of them repeats are added there."""
    from extender.ask import frozen

    for path in files:
        piped = str(path) == "-"
        raw = sys.stdin.buffer.read() if piped else frozen.load(path)
        yield from frozen.documents(raw, "standard input" if piped else str(path), repeated)


def _body(options: argparse.Namespace, documents: list[Document], named: list[tuple[str, str]]) -> dict[str, Any]:
    """The question for a server."""
    changes = _changes(options)
    return {
        "objects": [document.item for document in documents],
        "pods": ["/".join(pod) for pod in named],
        "add": [{"count": added.nodes, "like": added.what} for added in changes.add],
        "cordon": list(changes.cordon),
        "drain": list(changes.drain),
    }


def _changes(options: argparse.Namespace) -> Changes:
    """The changes of the nodes. BadInput, BadTopology."""
    from extender.ask.whatif.question import Added, Changes
    from extender.topologies import load

    added = []
    for number, like in options.add:
        if not (number.isascii() and number.isdigit() and int(number[:9]) > 0 and len(number) < 9):
            raise BadInput(f"{number!r} is not a number of nodes", path="--add")
        if not like.startswith(load.PREFIX) and Path(like).is_file():
            like = _stated(Path(like))
        added.append(Added(int(number), like))
    return Changes(tuple(added), tuple(options.cordon), tuple(options.drain))


def _stated(file: Path) -> str:
    """The topology annotation of the GPUs that the file describes. BadInput, BadTopology."""
    from extender.topologies import annotation, load

    try:
        reading = load.read(file.read_bytes())
    except OSError as error:
        raise BadInput(error.strerror or str(error), path=str(file)) from None
    try:
        return annotation.encode(reading.topology())
    except BadTopology as error:  # such as links of which the speed is not known
        raise BadInput(f"{error}; `gpu-extender topo` with --gbps or --product adds it", path=str(file)) from None


def _lines(topologies: Mapping[str, Topology], answered: Mapping[str, Any]) -> Iterator[Line]:
    """The answer for people."""
    if "cost" in answered:
        yield from _drain(answered)
        return
    grouped = {_key(pod) for group in answered["groups"] for pod in group["pods"]}
    alone = [result for result in answered["results"] if _key(result["pod"]) not in grouped]
    for number, result in enumerate(alone):
        if number:
            yield ""
        yield from result_lines(result, topologies, answered["holdings"])
        yield from way_lines(result)
    if alone and answered["groups"]:
        yield ""
    yield from group_lines(answered["groups"])


def _drain(answered: Mapping[str, Any]) -> Iterator[Line]:
    """Where the pods of drained nodes go."""

    from extender.queue.report import first_names

    cost = {term["term"]: term["value"] for term in answered["cost"]}
    results = answered["results"]
    homeless = sum(not result["node"] for result in results)
    parts = [f"{homeless:,} {'has' if homeless == 1 else 'have'} no place" if homeless else "all have a place"]
    parts.append(f"{gpu_hours(cost['work_lost_gpu_seconds'])} of work lost")
    if cost["gangs_broken"]:
        parts.append(f"{count(cost['gangs_broken'], 'gang')} broken")
    what = f"{count(cost['victims'], 'GPU pod')}: {', '.join(parts)}" if results else "no pod with GPUs"
    yield f"the drain evicts {what}"
    rows = []
    for result in results:
        pod = result["pod"]
        which = "GPUs unknown" if result["gpus"] is None else named_gpus(result["gpus"])
        seat = f"{short(result['node'])}, {which}" if result["node"] else "no place"
        rows.append((f"{short(pod['namespace'])}/{short(pod['name'])}", f"{pod['priority']:,}", seat))
    yield from aligned(rows, "<><", ("pod", "priority", "moves to"), "  ")
    unplaced: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for result, (name, *_) in zip(results, rows, strict=True):
        if not result["node"]:
            unplaced.setdefault(tuple(result["reasons"].items()), []).append(name)
    for reasons, names in unplaced.items():
        yield ""
        yield f"why {first_names(names, SHOWN)} {'has' if len(names) == 1 else 'have'} no place:"
        yield from rejections(dict(reasons), "  ")
    helped = [
        (short(f"{result['pod']['namespace']}/{result['pod']['name']}"), way(result["ways_out"][0]))
        for result in results
        if result.get("ways_out")
    ]
    if helped:
        yield ""
        yield f"what would give {'it' if len(helped) == 1 else 'them'} a place:"
        yield from aligned(helped, "<<", (), "  ")
    if answered["groups"]:
        yield ""
    yield from group_lines(answered["groups"])


def _warn(answered: dict[str, Any]) -> None:
    """The warnings, a few of each kind, to standard error."""
    alike: dict[str, list[dict[str, str]]] = {}
    for warning in answered["warnings"]:
        alike.setdefault(warning["code"], []).append(warning)
    for code, warnings in alike.items():
        note(warnings[:SHOWN], "warning: ")
        if hidden := len(warnings[SHOWN:]):
            tell(f"gpu-extender: and {count(hidden, 'more warning')} {code} (-o json has all)")


def _key(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["namespace"], pod["name"]


# -- one result: the verdict, the GPUs drawn, the victims, their cost beside the next best, and the proof

CAUSES = {
    "priority": "of equal or higher priority",
    "daemonset": "of DaemonSets",
    "static": "static or mirror pods",
    "claims": "by ResourceClaims",
    "protected": "protected",
    "affinity": "needed by its own affinity",
}
Json = Mapping[str, Any]
LONGEST_REASON = 300
"""Characters of a reason."""


def result_lines(result: Json, topologies: Mapping[str, Topology], holdings: list[Json]) -> Iterator[Line]:
    """One result. `topologies`: by node; `holdings`: which pod holds which GPUs, as the answer has it."""
    pod = result["pod"]
    yield f"{short(pod['namespace'])}/{short(pod['name'])} (priority {pod['priority']:,}): {_result_verdict(result)}"
    yield from indented(_drawn_gpus(result, topologies, holdings))
    plan = result if result["victims"] else result["forbidden"]
    if plan:
        yield ""
        yield from eviction_lines(plan, result["certificate"])
    yield from (f"  {sentence}" for sentence in _proof_lines(result))
    if result["reasons"] and "quota" not in result["reasons"]:
        yield ""
        yield from _rejection_lines(result)
        yield ""
    yield from (f"  {sentence}" for sentence in _spared_lines(result["spared"]))


def eviction_lines(plan: Json, certificate: Json) -> Iterator[Line]:
    """The victims of a plan, and its cost beside that of the next best."""
    yield from _victim_rows(plan["victims"])
    yield ""
    yield from cost_table(plan["cost"], certificate, "  ")
    yield ""


def _result_verdict(result: Json) -> str:
    node = short(result["node"] or "")
    at = named_gpus(result["gpus"]) if result["gpus"] else "which GPUs it would get is unknown"
    if result["verdict"] == "fits":
        return f"fits on {node}, {at}"
    if result["verdict"] == "evict":
        return f"fits on {node} after {_evictions(result['victims'])}, {at}"
    if "quota" in result["reasons"]:
        return f"cannot be created: {short(result['text'], LONGEST_REASON)}"
    if result["forbidden"]:
        forbidden = result["forbidden"]
        return (
            f"cannot be placed: it may not preempt (preemptionPolicy: Never); {_evictions(forbidden['victims'])} on "
            f"{short(forbidden['node'])} would make room"
        )
    return "cannot be placed, an eviction does not help"


def _evictions(victims: list[Json]) -> str:
    return "the eviction of " + count(len(victims), "pod")


def _drawn_gpus(result: Json, topologies: Mapping[str, Topology], holdings: list[Json]) -> Iterator[Text]:
    """The node's GPUs, where their links and holders are known."""
    from rich.text import Text  # here: --help need not load rich

    from extender.topologies.gpu_map import FREE, legend, picture

    topology, chosen = topologies.get(result["node"] or ""), result["gpus"]
    if topology is None or not chosen:
        return
    gone = {victim["uid"] for victim in result["victims"]}
    staying = [holding for holding in holdings if holding["node"] == result["node"] and holding["uid"] not in gone]
    taken = {gpu for holding in staying for gpu in holding["gpus"] or ()} - set(chosen)
    if drawn := list(picture(topology.links, chosen, taken, gpu_total=topology.gpu_total)):
        yield from (Text(), *drawn, Text(legend(gpu_total=topology.gpu_total), FREE))


def _victim_rows(victims: list[Json]) -> Iterator[Line]:
    rows = []
    for victim in victims:
        gang = f"{victim.get('gang_source') or ''} gang {short(victim['gang'])}".lstrip() if victim["gang"] else ""
        which = "unknown which" if victim["gpus"] is None else ids(victim["gpus"])
        held = f" ({which})" if victim["gpu_count"] else ""
        cells = (
            short(f"{victim['namespace']}/{victim['name']}"), f"{victim['priority']:,}",
            f"{victim['gpu_count']:,}{held}", gang, ", ".join(map(short, victim["pdbs"])),
            "terminates already" if victim["terminating"] else "",
        )  # fmt: skip
        rows.append(cells)
    yield from aligned(rows, "<><<<<", ("evict", "priority", "GPUs", "belongs to", "budgets", ""), "  ")


def _proof_lines(result: Json) -> Iterator[str]:
    certificate = result["certificate"]
    if result["verdict"] == "evict":
        yield proof(certificate, evicts=True)
        if other := certificate["runner_up"]:
            victims = count(len(other["victims"]), "victim")
            lost = label(certificate["lost_on"] or "")
            yield f"next best: {short(other['node'])} with {victims}, loses by: {lost}"
        else:
            yield "no other node is possible"
    elif result["verdict"] == "cannot" and not result["forbidden"] and "quota" not in result["reasons"]:
        yield proof(certificate, evicts=False)


def _rejection_lines(result: Json) -> Iterator[Line]:
    """How many nodes reject the pod as they stand, and what would help."""
    for key, number in result["reasons"].items():
        yield from rejections({key: number}, "  rejected by ")
        if remedy := result["remedies"].get(key):
            yield f"    {remedy}"


def _spared_lines(spared: list[Json]) -> Iterator[str]:
    for group in spared:
        until = f", the first until {group['until']}" if group["until"] else ""
        holding = f" with {count(group['gpus'], 'GPU')}" if group["gpus"] else ""
        yield f"never victims: {count(group['pods'], 'pod')}{holding}, {CAUSES[group['cause']]}{until}"


# -- gangs


LONGEST_WAY: Final = 400
"""Characters of a way out."""


def group_lines(groups: list[Json]) -> Iterator[Line]:
    """One paragraph for each gang."""
    for number, group in enumerate(groups):
        if number:
            yield ""
        yield f"gang {short(group['gang'])}: {_group_verdict(group)}"
        placed = group["pods"] if group["verdict"] != "cannot" else ()
        rows = [(*_placed_cells(pod), "") for pod in placed]
        rows += [(*_placed_cells(pod), "runs already") for pod in group.get("running", ())]
        yield from aligned(rows, "<<<<", (), "  ")
        if group["victims"]:
            yield ""
            yield from eviction_lines(group, group["certificate"])
        yield from way_lines(group)


def _placed_cells(pod: Json) -> tuple[str, str, str]:
    """The name of a pod, its node, and its GPUs."""
    gpus = pod["gpus"]
    which = "GPUs unknown" if gpus is None else named_gpus(gpus) if gpus else "no GPU"
    return short(pod["name"]), short(pod["node"]), which


def way_lines(result: Json) -> Iterator[Line]:
    """The nearest miss, and the ways out."""
    near = result.get("nearest")
    if near is not None:
        missing, beside = lacks(near["missing"]), " without an eviction" if result["verdict"] == "evict" else ""
        nearest = f"  nearest{beside}: {short(near['node'] or '')} ({missing})"
        yield f"  missing: {missing}" if near["node"] is None else nearest
    for number, way_out in enumerate(result.get("ways_out", ()), 1):
        yield f"  way out {number}: {short(way(way_out), LONGEST_WAY)}"


def _group_verdict(group: Json) -> str:
    pods, domain, running = group["pods"], group["domain"], group.get("running", ())
    runs = f"{count(len(running), 'pod')} {'runs' if len(running) == 1 else 'run'} on {_node_count(running)}"
    if running and not pods:
        size = group["size"]
        return f"runs already{'' if size is None else f', as a gang of {size}'}: {runs}. No pod is placed"
    where = "" if domain is None else f", in {short(domain['level'])}={short(domain['value'])}"
    before = f"{runs}; " if running else ""
    others = "the other pod" if len(pods) == 1 else f"the other {len(pods)} pods"
    those = others if running else f"all of its {count(len(pods), 'pod')}"
    fit = "fits" if len(pods) == 1 and running else "fit"
    if group["verdict"] == "fits":
        return f"{before}{those} {fit} on {_node_count(pods)}{where}"
    if group["verdict"] == "evict":
        return f"{before}{those} {fit} on {_node_count(pods)}{where} after {_evictions(group['victims'])}"
    why = short(group.get("text", ""), LONGEST_WAY)
    none = f"{others} {'has' if len(pods) == 1 else 'have'} no place" if running else "it cannot start whole"
    return f"{before}{none} ({why})"


def _node_count(pods: Sequence[Json]) -> str:
    return count(len({pod["node"] for pod in pods}), "node")
