"""Advice in sentences: for people, and for findings of `check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.verdict.text import amount, count, short

Json = Mapping[str, Any]


def shape(one: Json) -> str:
    """A request that leaves GPUs unused, and what to ask for instead."""
    size = count(one["gpus"], "GPU")
    cause = {
        "gpus": f"leave {one['unused_gpus_per_node']} of {count(one['machine_gpus'], 'GPU')} unused",
        "cpu": f"leave {count(one['unused_gpus_per_node'], 'GPU')} without CPU",
        "memory": f"leave {count(one['unused_gpus_per_node'], 'GPU')} without memory",
    }[one["because"]]
    instead = " or ".join(_change(change) for change in one["instead"])
    if one["because"] != "gpus":
        instead = instead.replace(" or ", " and ")
    return (
        f"{count(one['pods'], 'pod')} of {size} (such as {short(one['example'])}): {one['pods_per_node']} on a machine "
        f"of model {short(one['model'])} {cause}, unless other pods fill them; ask for {instead}"
    )


def drain(plan: Json) -> str:
    """A plan, without its steps."""
    cost = {term["term"]: term["value"] for term in plan["cost"]}
    hours = cost["work_lost_gpu_seconds"] / 3600
    proved = "the smallest drain" if plan["proved"] else "a drain (it is not proved that none is smaller)"
    unmanaged = f"; nothing creates {', '.join(map(short, plan['unmanaged'][:3]))} again" if plan["unmanaged"] else ""
    moved = f"{count(cost['pods'], 'pod')} with {count(cost['gpus_moved'], 'GPU')}"
    return (
        f"{proved} that makes {count(plan['whole_nodes'], 'node')} of model {short(plan['model'])} whole: cordon "
        f"{', '.join(plan['nodes'])}, then move {moved}, {hours:.2g} GPU-h of work lost{unmanaged}"
    )


def machines(one: Json) -> str:
    """Machines that would start waiting pods."""
    gangs = f" ({count(one['gangs'], 'gang')} among them)" if one["gangs"] else ""
    return (
        f"{count(one['nodes'], 'more node')} like {one['like']} (model {short(one['model'])}) would start "
        f"{count(one['pods'], 'waiting pod')} with {count(one['gpus'], 'GPU')}{gangs}"
    )


def _change(change: Json) -> str:
    what = {"gpus": "GPU", "cpu": "cpu", "memory": "memory"}[change["what"]]
    asked = count(change["is"], "GPU") if what == "GPU" else amount(what, change["is"])
    nodes, gpus = change["frees_nodes"], change["frees_gpus"]
    frees = [
        *([f"frees {count(nodes, 'node')}"] if nodes > 0 else []),
        *([f"{'' if nodes > 0 else 'frees '}{count(gpus, 'GPU')}"] if gpus > 0 else []),
    ]
    effect = " and ".join(frees) or ("uses what is left" if gpus < 0 else "makes room for more")
    return f"{asked} ({change['pods_per_node']} on a machine; {effect})"
