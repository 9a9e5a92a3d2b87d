"""What-if's answer as text: the verdict, the GPUs drawn, the victims, their cost beside the next best, the proof; and
where each gang is placed whole, and the ways out of those that are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from extender.ask.text import count, gpus, label, no_victim_counts, short, way
from extender.cli.gpu_picture import legend_of, picture, text_table
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


def show(console: Console, result: Json, topologies: Mapping[str, Topology], holdings: list[Json]) -> None:
    """One result. `topologies`: by node; `holdings`: which pod holds which GPUs, as the answer has it."""
    pod = result["pod"]
    console.print(
        Text(f"{short(pod['namespace'])}/{short(pod['name'])} (priority {pod['priority']}): {_verdict(result)}")
    )
    for line in _drawn(result, topologies, holdings):
        console.print(Padding(line, (0, 0, 0, 2), expand=False), soft_wrap=True)
    plan = result if result["victims"] else result["forbidden"]
    if plan:
        console.print()
        eviction(console, plan, result["certificate"])
    for sentence in _proof(result):
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    if result["reasons"] and "quota" not in result["reasons"]:
        console.print(Padding(_refusals(result), (0, 0, 0, 2), expand=False))
    for sentence in _spared(result["spared"]):
        console.print(Text(f"  {sentence}"), soft_wrap=True)


def eviction(console: Console, plan: Json, certificate: Json) -> None:
    """The victims of a plan, and its cost beside that of the next best."""
    console.print(Padding(_victims(plan["victims"]), (0, 0, 0, 2), expand=False))
    console.print()
    console.print(Padding(_cost(plan["cost"], certificate), (0, 0, 0, 2), expand=False))
    console.print()


def _verdict(result: Json) -> str:
    node = short(result["node"] or "")
    at = f"GPUs {gpus(result['gpus'])}" if result["gpus"] else "which GPUs it would get is unknown"
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


def _victims(victims: list[Json]) -> Table:
    rows = []
    for victim in victims:
        gang = f"{victim.get('gang_source') or ''} gang {short(victim['gang'])}".lstrip() if victim["gang"] else ""
        held = f" ({gpus(victim['gpus'])})" if victim["gpu_count"] else ""
        cells = (
            short(f"{victim['namespace']}/{victim['name']}"), str(victim["priority"]), f"{victim['gpu_count']}{held}",
            gang, ", ".join(map(short, victim["pdbs"])), "ends already" if victim["terminating"] else "",
        )  # fmt: skip
        rows.append(cells)
    columns = (("evict", "<"), ("priority", ">"), ("GPUs", "<"), ("belongs to", "<"), ("budgets", "<"), ("", "<"))
    used = [i for i in range(len(columns)) if i < 3 or any(cells[i] for cells in rows)]
    table = text_table(*(columns[i] for i in used))
    for cells in rows:
        table.add_row(*(Text(cells[i]) for i in used))
    return table


def _cost(cost: list[Json], certificate: Json) -> Table:
    """Term, value, the value of the next best, unit; the term that it lost on is marked."""
    other = certificate["runner_up"]
    columns = [("cost", "<"), ("value", ">"), *([("next best", ">")] if other else []), ("unit", "<")]
    table = text_table(*columns)
    for i, term in enumerate(cost):
        cells = [label(term["term"]), _number(term)]
        unit = term["unit"]
        if other:
            lost = certificate["lost_on"] == term["term"]
            cells.append(("> " if lost else "") + _number(other["cost"][i]))
        if unit == "GPU-seconds" and term["value"]:
            unit += f" ({term['value'] / 3600:,.1f} GPU-hours)"
        table.add_row(*map(Text, (*cells, unit)))
    return table


def _number(term: Json) -> str:
    if term["value"] is None:
        return "none" if no_victim_counts(term) else "unknown"
    return f"{term['value']:,}"


def _proof(result: Json) -> Iterator[str]:
    certificate = result["certificate"]
    looked = f"{count(certificate['nodes_examined'], 'node')}, {count(certificate['sets_examined'], 'search step')}"
    if result["verdict"] == "evict":
        proved = certificate["proved"]
        yield f"{'proved to be the cheapest' if proved else 'the best found, not proved: the budget ended'} ({looked})"
        if other := certificate["runner_up"]:
            victims = count(len(other["victims"]), "victim")
            lost = label(certificate["lost_on"] or "")
            yield f"next best: {short(other['node'])} with {victims}, lost on: {lost}"
        else:
            yield "no other node is possible"
    elif result["verdict"] == "cannot" and not result["forbidden"] and "quota" not in result["reasons"]:
        yield f"{'proved' if certificate['proved'] else 'not proved: the budget ended'} ({looked})"


def _refusals(result: Json) -> Table:
    """How many nodes are refused as they stand, and what would help."""
    helps = result["remedies"]
    table = text_table(("nodes", ">"), ("refused for", "<"), *([("what would help", "<")] if helps else []))
    for code, nodes in result["reasons"].items():
        table.add_row(*map(Text, (str(nodes), code, *([helps.get(code, "")] if helps else []))))
    return table


def _spared(spared: list[Json]) -> Iterator[str]:
    for group in spared:
        until = f", the first until {group['until']}" if group["until"] else ""
        holding = f" with {count(group['gpus'], 'GPU')}" if group["gpus"] else ""
        yield f"never victims: {count(group['pods'], 'pod')}{holding}, {CAUSES[group['cause']]}{until}"


# -- gangs


LONGEST_WAY: Final = 150
"""Characters of a way out."""


def show_groups(console: Console, groups: list[Json]) -> None:
    """One paragraph for each gang."""
    for group in groups:
        console.print()
        console.print(Text(f"gang {short(group['gang'])}: {_group_verdict(group)}"), soft_wrap=True)
        for pod in group["pods"] if group["verdict"] != "cannot" else ():
            console.print(
                Text(f"  {short(pod['name'])}: {short(pod['node'])}, GPUs {gpus(pod['gpus'])}"), soft_wrap=True
            )
        for pod in group.get("running", ()):
            console.print(
                Text(f"  {short(pod['name'])} runs: {short(pod['node'])}, GPUs {gpus(pod['gpus'])}"), soft_wrap=True
            )
        if group["victims"]:
            console.print()
            eviction(console, group, group["certificate"])
        ways(console, group)


def ways(console: Console, result: Json) -> None:
    """The nearest miss, and the ways out."""
    near = result.get("nearest")
    if near is not None:
        missing = ", ".join(f"{lack['have']} of {lack['need']} {lack['what']}" for lack in near["missing"])
        where = f"missing: {missing}" if near["node"] is None else f"nearest: {short(near['node'])} ({missing})"
        console.print(Text(f"  {where}"), soft_wrap=True)
    for number, way_out in enumerate(result.get("ways_out", ()), 1):
        console.print(Text(f"  way out {number}: {short(way(way_out), LONGEST_WAY)}"), soft_wrap=True)


def _group_verdict(group: Json) -> str:
    pods, domain, running = group["pods"], group["domain"], group.get("running", ())
    runs = f"{count(len(running), 'pod')} of it {'runs' if len(running) == 1 else 'run'} on {_nodes(running)}"
    if running and not pods:
        size = group["size"]
        return f"runs already{'' if size is None else f', as a gang of {size}'}: {runs}. No pod is placed"
    where = "" if domain is None else f", in {short(domain['level'])}={short(domain['value'])}"
    number, before = count(len(pods), "pod"), f"{runs}; " if running else ""
    those = f"the other {number}" if running else f"all of its {number}"
    if group["verdict"] == "fits":
        return f"{before}{those} fit on {_nodes(pods)}{where}"
    if group["verdict"] == "evict":
        after = f"after the eviction of {count(len(group['victims']), 'pod')}"
        return f"{before}{those if running else 'all'} fit on {_nodes(pods)}{where} {after}"
    why = short(group.get("text", ""), LONGEST_WAY)
    none = f"none of the other {number}" if running else f"cannot start whole, so none of its {number}"
    return f"{before}{none} is placed ({why})"


def _nodes(pods: Sequence[Json]) -> str:
    return count(len({pod["node"] for pod in pods}), "node")
