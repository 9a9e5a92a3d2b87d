"""What-if's answer as text: the verdict, the GPUs drawn, the victims, their cost beside the next best, the proof; and
where each gang is placed whole, and the ways out of those that are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from extender.ask.text import count, ids, lacks, named_gpus, proof, short, way
from extender.cli.decisions import cost_table, rejections
from extender.cli.gpu_picture import legend_of, picture
from extender.cli.screen import Line, aligned, indented
from extender.policy.labels import label
from extender.topologies import Topology

CAUSES = {
    "priority": "of equal or higher priority",
    "daemonset": "of DaemonSets",
    "static": "static or mirror pods",
    "protected": "protected",
    "affinity": "needed by its own affinity",
}
Json = Mapping[str, Any]
LONGEST = 300
"""Characters of a reason."""


def lines(result: Json, topologies: Mapping[str, Topology], holdings: list[Json]) -> Iterator[Line]:
    """One result. `topologies`: by node; `holdings`: which pod holds which GPUs, as the answer has it."""
    pod = result["pod"]
    yield f"{short(pod['namespace'])}/{short(pod['name'])} (priority {pod['priority']:,}): {_verdict(result)}"
    yield from indented(_drawn(result, topologies, holdings))
    plan = result if result["victims"] else result["forbidden"]
    if plan:
        yield ""
        yield from eviction(plan, result["certificate"])
    yield from (f"  {sentence}" for sentence in _proof(result))
    if result["reasons"] and "quota" not in result["reasons"]:
        yield ""
        yield from _refusals(result)
        yield ""
    yield from (f"  {sentence}" for sentence in _spared(result["spared"]))


def eviction(plan: Json, certificate: Json) -> Iterator[Line]:
    """The victims of a plan, and its cost beside that of the next best."""
    yield from _victims(plan["victims"])
    yield ""
    yield from cost_table(plan["cost"], certificate, "  ")
    yield ""


def _verdict(result: Json) -> str:
    node = short(result["node"] or "")
    at = named_gpus(result["gpus"]) if result["gpus"] else "which GPUs it would get is unknown"
    if result["verdict"] == "fits":
        return f"fits on {node}, {at}"
    if result["verdict"] == "evict":
        return f"fits on {node} after {_evictions(result['victims'])}, {at}"
    if "quota" in result["reasons"]:
        return f"cannot be created: {short(result['text'], LONGEST)}"
    if result["forbidden"]:
        forbidden = result["forbidden"]
        return (
            f"cannot be placed: it may not preempt (preemptionPolicy: Never); {_evictions(forbidden['victims'])} on "
            f"{short(forbidden['node'])} would make room"
        )
    return "cannot be placed, an eviction does not help"


def _evictions(victims: list[Json]) -> str:
    return "the eviction of " + count(len(victims), "pod")


def _drawn(result: Json, topologies: Mapping[str, Topology], holdings: list[Json]) -> Iterator[Text]:
    """The node's GPUs, where their links and holders are known."""
    topology, chosen = topologies.get(result["node"] or ""), result["gpus"]
    if topology is None or not chosen:
        return
    gone = {victim["uid"] for victim in result["victims"]}
    staying = [holding for holding in holdings if holding["node"] == result["node"] and holding["uid"] not in gone]
    taken = {gpu for holding in staying for gpu in holding["gpus"] or ()} - set(chosen)
    if lines := list(picture(topology.links, chosen, taken, gpu_total=topology.gpu_total)):
        yield from (Text(), *lines, legend_of(topology.gpu_total))


def _victims(victims: list[Json]) -> Iterator[Line]:
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


def _proof(result: Json) -> Iterator[str]:
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


def _refusals(result: Json) -> Iterator[Line]:
    """How many nodes reject the pod as they stand, and what would help."""
    for key, number in result["reasons"].items():
        yield from rejections({key: number}, "  rejected by ")
        if remedy := result["remedies"].get(key):
            yield f"    {remedy}"


def _spared(spared: list[Json]) -> Iterator[str]:
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
        rows = [(*_seat(pod), "") for pod in placed]
        rows += [(*_seat(pod), "runs already") for pod in group.get("running", ())]
        yield from aligned(rows, "<<<<", (), "  ")
        if group["victims"]:
            yield ""
            yield from eviction(group, group["certificate"])
        yield from ways(group)


def _seat(pod: Json) -> tuple[str, str, str]:
    """The name of a pod, its node, and its GPUs."""
    gpus = pod["gpus"]
    which = "GPUs unknown" if gpus is None else named_gpus(gpus) if gpus else "no GPU"
    return short(pod["name"]), short(pod["node"]), which


def ways(result: Json) -> Iterator[Line]:
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
    runs = f"{count(len(running), 'pod')} {'runs' if len(running) == 1 else 'run'} on {_nodes(running)}"
    if running and not pods:
        size = group["size"]
        return f"runs already{'' if size is None else f', as a gang of {size}'}: {runs}. No pod is placed"
    where = "" if domain is None else f", in {short(domain['level'])}={short(domain['value'])}"
    before = f"{runs}; " if running else ""
    others = "the other pod" if len(pods) == 1 else f"the other {len(pods)} pods"
    those = others if running else f"all of its {count(len(pods), 'pod')}"
    fit = "fits" if len(pods) == 1 and running else "fit"
    if group["verdict"] == "fits":
        return f"{before}{those} {fit} on {_nodes(pods)}{where}"
    if group["verdict"] == "evict":
        after = f"after the eviction of {count(len(group['victims']), 'pod')}"
        return f"{before}{those} {fit} on {_nodes(pods)}{where} {after}"
    why = short(group.get("text", ""), LONGEST_WAY)
    none = f"{others} {'has' if len(pods) == 1 else 'have'} no place" if running else "it cannot start whole"
    return f"{before}{none} ({why})"


def _nodes(pods: Sequence[Json]) -> str:
    return count(len({pod["node"] for pod in pods}), "node")
