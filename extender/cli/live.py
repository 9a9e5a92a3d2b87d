"""The health of a running gpu-extender: of all replicas, and of the Leases by which they act.

A replica states by /readyz what is missing, what does not work, and by which settings it decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from extender.cli.asking import Unanswered, readiness
from extender.errors import ExtenderError

SLACK_SECONDS: Final = 15.0
"""Beyond a Lease's duration: clocks of machines differ."""
Json = dict[str, Any]


class Wanted(NamedTuple):
    """A Lease that is looked at."""

    name: str
    needed: bool
    """Without a holder nothing is scheduled. An instance takes the other Leases only where the settings ask for it."""


def replica(name: str, server: str) -> Json:
    """What one replica answers; where it cannot be asked `error` has why."""
    try:
        answer = readiness(server)
    except Unanswered as error:
        return unreachable(name, error.reason)
    except ExtenderError as error:
        return unreachable(name, error.message)
    return {
        "name": name,
        "reachable": True,
        "ready": bool(answer.get("ready")),
        "version": answer.get("version"),
        "settings": answer.get("settings"),
        "missing": list(answer.get("missing") or ()),
        "degraded": list(answer.get("degraded") or ()),
        "error": None,
    }


def unreachable(name: str, why: str) -> Json:
    """The entry of a replica that cannot be asked."""
    unknown: Json = {"ready": None, "version": None, "settings": None, "missing": None, "degraded": None}
    return {"name": name, "reachable": False, **unknown, "error": why}


def leases(objects: Iterable[Mapping[str, Any]], wanted: Sequence[Wanted], now: datetime) -> list[Json]:
    """The entries of Leases. `objects`: those that exist; `problem`: null where there is none."""
    specs = {lease["metadata"]["name"]: lease.get("spec") or {} for lease in objects}
    return [_lease(lease, specs.get(lease.name), now) for lease in wanted]


def _lease(lease: Wanted, spec: Mapping[str, Any] | None, now: datetime) -> Json:
    holder = str((spec or {}).get("holderIdentity") or "")
    age = _age((spec or {}).get("renewTime"), now)
    problem = None
    if not holder:
        problem = "no instance holds it" if lease.needed else None
    elif age is not None and age > float((spec or {}).get("leaseDurationSeconds") or 15) + SLACK_SECONDS:
        problem = f"its holder has not renewed it for {age:.0f} s"
    return {"name": lease.name, "holder": holder or None, "renewed_seconds_ago": age, "problem": problem}


def _age(text: object, now: datetime) -> float | None:
    try:
        return round((now - datetime.fromisoformat(str(text)).astimezone(UTC)).total_seconds(), 1)
    except ValueError:
        return None


def answer(replicas: Sequence[Json], held: Sequence[Json] | None, warnings: Sequence[Json] = ()) -> Json:
    """`kind: Health`. `held`: the Leases; None where they cannot be asked for."""
    problems = list(warnings)
    for key, code in (("settings", "settings-differ"), ("version", "versions-differ")):
        values = sorted({str(status[key]) for status in replicas if status[key] is not None})
        if len(values) > 1:
            problems.append({"code": code, "message": f"the replicas differ in their {key}: {', '.join(values)}"})
    well = bool(replicas) and all(status["ready"] and not status["degraded"] for status in replicas)
    leads = all(lease["problem"] is None for lease in held or ())
    same = all(problem["code"] != "settings-differ" for problem in problems)
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Health",
        "warnings": problems,
        "healthy": well and leads and same,
        "replicas": list(replicas),
        "leases": None if held is None else list(held),
    }


def exit_code(shown: Mapping[str, Any]) -> int:
    """0: all is well, 1: something is not."""
    return 0 if shown["healthy"] else 1


def lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    for warning in shown["warnings"]:
        yield f"warning: {warning['message']}"
    for status in shown["replicas"]:
        yield from _replica_lines(status)
    for lease in shown["leases"] or ():
        state = lease["problem"] or (f"held by {lease['holder']}" if lease["holder"] else "held by no instance")
        yield f"Lease {lease['name']}: {state}"
    yield "healthy" if shown["healthy"] else "not healthy"


def _replica_lines(status: Mapping[str, Any]) -> Iterator[str]:
    if not status["reachable"]:
        yield f"{status['name']}: not reachable: {status['error']}"
        return
    state = "ready" if status["ready"] else "not ready"
    yield f"{status['name']}: {state}, version {status['version']}, settings {status['settings']}"
    for text in status["missing"]:
        yield f"  missing: {text}"
    for part in status["degraded"]:
        yield f"  {part['part']}: {part['problem']}"
