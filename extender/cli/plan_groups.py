"""What-if's answer about gangs as text: where each is placed whole, and the ways out of those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from extender.cli.plan import eviction
from extender.cli.verdict_text import way
from extender.offline.text import count, gpus, short

Json = Mapping[str, Any]
LONGEST: Final = 150
"""Characters of a way out."""


def show(console: Console, groups: list[Json]) -> None:
    """One paragraph for each gang."""
    for group in groups:
        console.print()
        console.print(Text(f"gang {short(group['gang'])}: {_verdict(group)}"), soft_wrap=True)
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
        missing = ", ".join(f"{one['have']} of {one['need']} {one['what']}" for one in near["missing"])
        where = f"missing: {missing}" if near["node"] is None else f"nearest: {short(near['node'])} ({missing})"
        console.print(Text(f"  {where}"), soft_wrap=True)
    for number, one in enumerate(result.get("ways_out", ()), 1):
        console.print(Text(f"  way out {number}: {short(way(one), LONGEST)}"), soft_wrap=True)


def _verdict(group: Json) -> str:
    pods, domain, there = group["pods"], group["domain"], group.get("running", ())
    runs = f"{count(len(there), 'pod')} of it {'runs' if len(there) == 1 else 'run'} on {_nodes(there)}"
    if there and not pods:
        size = group["size"]
        return f"runs already{'' if size is None else f', as a gang of {size}'}: {runs}. No pod is placed"
    where = "" if domain is None else f", in {short(domain['level'])}={short(domain['value'])}"
    number, before = count(len(pods), "pod"), f"{runs}; " if there else ""
    those = f"the other {number}" if there else f"all of its {number}"
    if group["verdict"] == "fits":
        return f"{before}{those} fit on {_nodes(pods)}{where}"
    if group["verdict"] == "evict":
        after = f"after the eviction of {count(len(group['victims']), 'pod')}"
        return f"{before}{those if there else 'all'} fit on {_nodes(pods)}{where} {after}"
    why = short(group.get("text", ""), LONGEST)
    none = f"none of the other {number}" if there else f"cannot start whole, so none of its {number}"
    return f"{before}{none} is placed ({why})"


def _nodes(pods: Sequence[Json]) -> str:
    return count(len({one["node"] for one in pods}), "node")
