"""Which classes can evict which, and faults of priorities, budgets, quotas, gangs, nodes and names. Exit codes: 0 no
finding is an error, 10 some are (with --strict warnings count too), 1 the cluster cannot be read or the file has
neither nodes nor pods, 2 wrong usage.

With --scheduler-config instead: what keeps kube-scheduler from asking gpu-extender well, with the same exit codes.

With --live instead: the health of running replicas, as exit code 0 or 1.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from extender.ask.text import count, short
from extender.cli import sources
from extender.cli.options import add_config, add_output, note, settings_of, show, warned
from extender.cli.screen import Line, aligned
from extender.cli.sources import LOCAL, Unanswered, default_server, moment, readiness
from extender.errors import BadCluster, BadInput, ExtenderError

if TYPE_CHECKING:
    from extender.kube.client import ApiServer
    from extender.objects.decode import Invalid
    from extender.settings import Settings

EXAMPLES = (
    "gpu-extender check --cluster cluster.json",
    "gpu-extender check --kubeconfig ~/.kube/config --strict",
    "gpu-extender check --scheduler-config config.yaml",
    "gpu-extender check --live",
)
JSON = dict[str, Any]
MOST_BYTES = 1 << 20
"""Of a KubeSchedulerConfiguration that are read."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--live", action="store_true",
        help="instead: whether the running replicas are well: rights, certificates, settings; exit code 0 or 1",
    )  # fmt: skip
    sources.add_kubeconfig(source)
    sources.add_cluster(parser, source)
    source.add_argument(
        "--scheduler-config", metavar="FILE", type=Path,
        help="instead: what is wrong with a KubeSchedulerConfiguration that asks gpu-extender; no cluster is read",
    )  # fmt: skip
    parser.add_argument(
        "--server", metavar="URL", action="append", default=[],
        help=f"with --live: a replica, once for each (default: $GPU_EXTENDER_SERVER, else {LOCAL})",
    )  # fmt: skip
    parser.add_argument("--now", metavar="RFC3339", help="the time at which it is asked (default: the clock)")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors for the exit code")
    add_config(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the table and the findings, or the health of the replicas."""
    if options.live:
        servers = options.server or [default_server()]
        shown = health([replica(server, server) for server in servers], None)
        show(shown, options.output, health_lines)
        return health_code(shown)
    if options.server:
        raise BadInput("it names a replica for --live, which is not given", path="--server")
    settings = settings_of(options)
    if options.scheduler_config is not None:
        return _scheduler_config(options.scheduler_config, settings, options)
    wall = moment(options.now)
    from extender.ask import checks, frozen, offline  # here: --help need not load the core
    from extender.ask.suppose import SupposedCluster
    from extender.objects import decode

    invalid: list[Invalid] = []
    items: list[JSON] = []
    complete: frozenset[str] = frozenset()
    if options.cluster is not None:
        events, invalid = sources.events(options, settings, items)
    else:
        from extender.kube.lists import CHECKED_KINDS

        raw = sources.by_api_server(lambda server: _listed(server, invalid), options.kubeconfig)
        gpus = frozenset(resource.name for resource in settings.resources)
        events = frozen.parse(raw, gpus, "the API server", invalid, items)
        complete = frozenset(watched.object_kind for watched in CHECKED_KINDS)
    snapshot = SupposedCluster.of(settings, events)
    if options.cluster is not None and not snapshot.cluster.nodes and not snapshot.cluster.pods:
        raise BadCluster("has neither Node nor Pod, so nothing can be judged", path=str(options.cluster))
    answered = checks.answer(
        settings,
        snapshot.cluster,
        items,
        wall,
        advice=offline.explainer(settings, events, wall).advice(),
        complete=complete,
    )
    unread = decode.warnings(invalid)
    answered["warnings"] = [*unread, *answered["warnings"]]
    answered["summary"]["warning"] += len(unread)
    show(answered, options.output, _lines)
    if options.output == "text":
        note(answered["warnings"], "warning: ")
    return checks.exit_code(answered, options.strict)


def _scheduler_config(file: Path, settings: Settings, options: argparse.Namespace) -> int:
    from extender.ask import checks
    from extender.ask.checks import scheduler_config

    try:
        text = file.read_bytes()[:MOST_BYTES].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", path=str(file)) from error
    answered = scheduler_config.answer(text, str(file), settings)
    show(answered, options.output, scheduler_config.lines)
    return checks.exit_code(answered, options.strict)


async def _listed(server: ApiServer, invalid: list[Invalid]) -> bytes:
    """One List of everything that is looked at, each object with its kind. Items stay bytes: one that is nested too
    deep for a decoder is named when all are read. `invalid`: what may not be listed."""
    from extender.kube.lists import CHECKED_KINDS, every_page

    items: list[bytes] = []
    async with aclosing(every_page(server, CHECKED_KINDS, invalid)) as read:
        async for watched, page in read:
            version = watched.path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
            typed = orjson.dumps({"kind": watched.object_kind, "apiVersion": version})[:-1] + b","
            elements = map(bytes, page.items)
            items += [typed + element[1:] if element[:2] == b'{"' else element for element in elements]
    return b'{"apiVersion":"v1","kind":"List","items":[' + b",".join(items) + b"]}"


# -- the findings, for people


MOST_OF_A_CODE: Final = 10
"""Findings of one kind that are printed."""
NAMED: Final = 3
"""Objects of one finding that are named."""


def _lines(answered: Mapping[str, Any]) -> Iterator[Line]:
    """The answer of `check` without its warnings."""
    yield "which classes can evict which:"
    yield from _classes(answered["classes"])
    yield from (lack["message"] for lack in answered["lacks"])
    of_code: Counter[str] = Counter(finding["code"] for finding in answered["findings"])
    shown: Counter[str] = Counter()
    for finding in answered["findings"]:
        shown[finding["code"]] += 1
        if shown[finding["code"]] > MOST_OF_A_CODE:
            continue
        yield ""
        yield f"{finding['severity']}: {_objects(finding)}: {finding['message']}"
        yield f"  {finding['remedy']}"
        hidden = of_code[finding["code"]] - MOST_OF_A_CODE
        if shown[finding["code"]] == MOST_OF_A_CODE and hidden:
            yield f"  and {count(hidden, 'more finding')} {finding['code']} (-o json has all)"
    sums = answered["summary"]
    yield ""
    yield f"{count(sums['error'], 'error')}, {count(sums['warning'], 'warning')}, {sums['info']} info"


def _objects(finding: JSON) -> str:
    """The objects of a finding, the first few by name."""
    names = [short(name, 100) for name in (finding["about"], *finding["others"][: NAMED - 1])]
    hidden = len(finding["others"]) - (NAMED - 1)
    return ", ".join(names) + (f" and {hidden} more" if hidden > 0 else "")


def _classes(levels: list[JSON]) -> Iterator[Line]:
    rows = []
    for level in levels:
        evicts = ", ".join(map(short, level["evicts"])) or "none"
        if not level["preempts"]:
            evicts = "none (preemptionPolicy: Never)"
        counts = (f"{level[key]:,}" for key in ("priority", "pods", "gpus"))
        rows.append((short(level["name"] or "(no class)"), *counts, evicts))
    yield from aligned(rows, "<>>><", ("class", "priority", "GPU pods", "GPUs", "evicts"), "  ")


# -- --live: the health of replicas, each of which states by /readyz what is missing, what does not work, and by which
# settings it decides; and of the Leases by which they act


SLACK_SECONDS: Final = 15.0
"""Beyond a Lease's duration: clocks of machines differ."""


class Wanted(NamedTuple):
    """A Lease that is looked at."""

    name: str
    needed: bool
    """Without a holder nothing is scheduled. An instance takes the other Leases only where the settings ask for it."""


def replica(name: str, server: str) -> JSON:
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


def unreachable(name: str, why: str) -> JSON:
    """The entry of a replica that cannot be asked."""
    unknown: JSON = {"ready": None, "version": None, "settings": None, "missing": None, "degraded": None}
    return {"name": name, "reachable": False, **unknown, "error": why}


def leases(objects: Iterable[Mapping[str, Any]], wanted: Sequence[Wanted], now: datetime) -> list[JSON]:
    """The entries of Leases. `objects`: those that exist; `problem`: null where there is none."""
    specs = {lease["metadata"]["name"]: lease.get("spec") or {} for lease in objects}
    return [_lease(lease, specs.get(lease.name), now) for lease in wanted]


def _lease(lease: Wanted, spec: Mapping[str, Any] | None, now: datetime) -> JSON:
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


def health(replicas: Sequence[JSON], held: Sequence[JSON] | None, warnings: Sequence[JSON] = ()) -> JSON:
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


def health_code(shown: Mapping[str, Any]) -> int:
    """0: all is well, 1: something is not."""
    return 0 if shown["healthy"] else 1


def health_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    yield from warned(shown)
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
