"""What-if's answer about gangs as text: where each is placed whole, and the ways out of those that are not."""

from __future__ import annotations

from collections.abc import Mapping
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
    pods, domain = group["pods"], group["domain"]
    where = "" if domain is None else f", in {short(domain['level'])}={short(domain['value'])}"
    nodes = count(len({one["node"] for one in pods}), "node")
    if group["verdict"] == "fits":
        return f"all of its {count(len(pods), 'pod')} fit on {nodes}{where}"
    if group["verdict"] == "evict":
        return f"all fit on {nodes}{where} after the eviction of {count(len(group['victims']), 'pod')}"
    why = short(group.get("text", ""), LONGEST)
    return f"cannot start whole, so none of its {count(len(pods), 'pod')} is placed ({why})"
