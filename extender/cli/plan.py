"""The cheapest set and order of moves of running pods after which a shape fits, or a node has no pod with GPUs left.
Each next place is free when its turn comes. Exit codes: 0 no move is needed, 10 moves help, 11 they do not (or none was
found), 1 an error, 2 wrong usage.

With --at the room is for that time: pods that are declared to end before (duration, deadlines) count as gone. Nothing
is changed without --apply: it makes an advance reservation, an entry of the ConfigMap
gpu-extender-advance-reservations, for which a server with evictions.enabled moves the pods in time.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from extender.cli.options import add_output, settings_of, show, warned
from extender.cli.screen import Line, aligned, tell
from extender.cli.sources import WORK_SECONDS, add_now, add_sources, answer_of, by_api_server
from extender.errors import BadInput, Unreachable

if TYPE_CHECKING:
    from extender.cli.kubectl import Kubectl

EXAMPLES = (
    "gpu-extender plan --for 8",
    "gpu-extender plan --for 4x8 --domain rack",
    "gpu-extender plan --for 8 --priority-class urgent --cluster cluster.json",
    "gpu-extender plan --node node-1",
    "gpu-extender plan --for 4x8 --at 2026-12-01T08:00:00Z --until 2026-12-01T12:00:00Z --namespace ml --apply",
)
EXIT_CODES: Final = {"fits": 0, "moves": 10, "cannot": 11}
MOST_KEY: Final = 253
"""Characters of a key of a ConfigMap."""
NOT_IN_KEYS: Final = re.compile(r"[^-._a-zA-Z0-9]")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--for", metavar="SHAPE", dest="shape",
        help="GPUs of one pod, or PODSxGPUS: 8 is one pod with 8 GPUs, 4x8 are four of them, on one GPU model",
    )  # fmt: skip
    what.add_argument("--node", metavar="NODE", help="no pod with GPUs is left on it")
    parser.add_argument(
        "--domain", metavar="LEVEL[=VALUE]", help="all pods of the shape in one domain of this level, or in this one"
    )
    parser.add_argument("--model", metavar="MODEL", help="on nodes of this GPU model")
    parser.add_argument(
        "--priority-class", metavar="CLASS",
        help="only pods of a lower priority move, at the cost that preemption.ceilings allows the class "
        "(default: of any priority, at any cost)",
    )  # fmt: skip
    parser.add_argument("--at", metavar="RFC3339", help="when the room is needed (default: now)")
    parser.add_argument("--until", metavar="RFC3339", help="with --apply: when the reservation ends")
    parser.add_argument(
        "--namespace", metavar="NS", action="append", help="with --apply and --for: whose pods may use it; repeatable"
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="make the advance reservation, by the kubeconfig, where moves help or none is needed",
    )
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the moves, and makes the reservation where that is wanted."""
    from extender.objects.advance import WantedRoom

    stated = {"for": options.shape, "domain": options.domain, "model": options.model,
              "priority-class": options.priority_class, "node": options.node, "at": options.at}  # fmt: skip
    query = {name: text for name, text in stated.items() if text is not None}
    try:
        asked = WantedRoom.of(query)
    except BadInput as error:
        raise BadInput(error.message, path=f"--{error.path}") from None
    entry = _entry(options)
    page = f"/debug/plan?{urlencode(query)}"
    answer = answer_of(
        options, page, lambda offline, *cluster: offline.explainer(*cluster, queue=False).moves(asked), WORK_SECONDS
    )
    show(answer, options.output, _lines)
    if entry is not None and answer["verdict"] != "cannot":
        _apply(options, *entry)
    elif entry is not None:
        tell("gpu-extender: no reservation is made: no moves help")
    return EXIT_CODES[answer["verdict"]]


# ---- the advance reservation


def _entry(options: argparse.Namespace) -> tuple[str, str] | None:
    """(key, text) of the entry that is to be written; None: none is. BadInput."""
    from extender.objects import advance

    alone = {"--until": options.until, "--namespace": options.namespace}
    if not options.apply:
        if given := [name for name, value in alone.items() if value is not None]:
            raise BadInput("it belongs to a reservation: give --apply too", path=given[0])
        return None
    if options.cluster is not None:
        raise BadInput("a file has no API server to write to", path="--apply")
    if options.at is None or options.until is None:
        raise BadInput("a reservation has a time: give --at and --until", path="--apply")
    fields = {"for": options.shape, "node": options.node, "model": options.model, "domain": options.domain,
              "from": options.at, "until": options.until, "namespaces": options.namespace,
              "priorityClass": options.priority_class}  # fmt: skip
    parts = (options.shape or f"node-{options.node}", options.domain, options.model, options.at)
    key = NOT_IN_KEYS.sub("-", "-".join(part for part in parts if part)).lower()[:MOST_KEY]
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items() if value is not None)
    advance.entry(key, text)
    return key, text


def _apply(options: argparse.Namespace, key: str, text: str) -> None:
    """Write the entry. BadInput: there is another one of this name. Unreachable."""
    from extender.objects.advance import CONFIG_MAP

    kubectl: Kubectl | None = getattr(options, "kubectl", None)
    if kubectl is None:
        namespace, before = _put(options, key, text)
    else:
        namespace = options.system_namespace
        before = _put_by(kubectl, namespace, key, text)
    where = f"ConfigMap {namespace}/{CONFIG_MAP}"
    if before not in (None, text):
        raise BadInput(f"{where} has another entry of this name: edit that", path=key)
    tell(f"gpu-extender: reserved: entry {key} of {where}")
    tell(f"gpu-extender: what becomes of it: kubectl -n {namespace} describe configmap {CONFIG_MAP}")


def _put(options: argparse.Namespace, key: str, text: str) -> tuple[str, str | None]:
    """(namespace of the ConfigMap, the entry that it had). By the kubeconfig."""
    from extender.kube.client import ApiServer, own_namespace  # here: the plugin need not load it
    from extender.kube.own_objects import ConfigMap
    from extender.objects.advance import CONFIG_MAP

    namespace = own_namespace(settings_of(options).reservations.namespace)

    async def put(server: ApiServer) -> str | None:
        entries = ConfigMap(server, namespace, CONFIG_MAP)
        before = (await entries.read()).data.get(key)
        if before is None:
            await entries.put({key: text})
        return before

    try:
        return namespace, by_api_server(put, options.kubeconfig)
    except Unreachable as error:
        raise Unreachable(f"the reservation is not written: {error.message}", path=error.path) from None


def _put_by(kubectl: Kubectl, namespace: str, key: str, text: str) -> str | None:
    """The entry that the ConfigMap had. By kubectl: it writes to the cluster, and as the user, that its flags name."""
    from extender.objects.advance import CONFIG_MAP

    named = ("configmap", CONFIG_MAP)
    stored = kubectl.get("get", *named, "--ignore-not-found", "--output=json", namespace=namespace).text()
    if not stored.strip():
        kubectl.get("create", *named, f"--from-literal={key}={text}", namespace=namespace).text()
        return None
    before: str | None = (json.loads(stored).get("data") or {}).get(key)
    if before is None:
        patch = json.dumps({"data": {key: text}})
        kubectl.get("patch", *named, "--type=merge", f"--patch={patch}", namespace=namespace).text()
    return before


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[Line]:
    from extender.ask.text import count, gpu_hours, named_gpus, short, value
    from extender.policy.labels import label

    yield from warned(answer)
    moves, certificate = answer["moves"], answer["certificate"]
    yield f"{_asked(answer)}: {_verdict(answer)}"
    rows = []
    for step, move in enumerate(moves, 1):
        owner = f"{move['owner']['kind']} {short(move['owner']['name'])}"
        for at, pod in enumerate(move["pods"]):
            to = short(pod["to"]) + (f", {named_gpus(pod['gpus'])}" if pod["gpus"] else "")
            name = f"{short(pod['namespace'])}/{short(pod['name'])}"
            lost = gpu_hours(move["work_lost_gpu_seconds"]) if not at else ""
            cells = f"{step}" if not at else "", name, f"{pod['priority']:,}", f"{pod['gpu_count']}"
            rows.append((*cells, short(pod["from"]), to, lost, owner if not at else ""))
    header = ("", "evict", "priority", "GPUs", "from", "next place", "work lost", "created again by")
    yield from aligned(rows, "><>><<><", header, "  ")
    if moves:
        yield ""
        yield from aligned([(label(term["term"]), value(term)) for term in answer["cost"]], "<>", (), "  ")
    if (ended := answer["ended"])["pods"]:
        which = f"{count(ended['pods'], 'pod')} with {count(ended['gpus'], 'GPU')}"
        yield f"  gone by {answer['at']}, as declared by duration or deadline: {which}"
    for place in answer["places"]:
        yield f"  place: {short(place['node'])}, {count(place['pods'], 'pod')}"
    found, bound = answer["verdict"] != "cannot", certificate["bound_gpu_seconds"]
    if certificate["proved"]:
        yield f"  proved: no moves {'cost less' if found else 'help'}"
    elif bound is None:
        yield f"  not proved: other moves may {'cost less' if found else 'help'}, the search ended at its limit"
    else:
        yield f"  not proved: no moves lose less than {gpu_hours(bound)} of work, and the search ended at its limit"
    for pod in answer["stays"]:
        yield f"  stays: {short(pod['namespace'])}/{short(pod['name'])}: {pod['reason']}"
    elsewhere, named = " on other nodes" if answer["stays"] else "", Counter(pod["reason"] for pod in answer["stays"])
    for reason in answer["not_moved"] if answer["verdict"] != "fits" else ():
        if pods := reason["pods"] - named[reason["reason"]]:
            yield f"  not moved{elsewhere}: {count(pods, 'pod')}: {reason['reason']}"


def _asked(answer: Mapping[str, Any]) -> str:
    from extender.ask.text import count, short

    shape, domain = answer["shape"], answer["domain"]
    if shape is None:
        return f"node {short(answer['node'])}"
    where = "" if domain is None else f" in one {domain['level']}"
    if domain is not None and domain["value"]:
        where = f" in {domain['level']}={short(domain['value'])}"
    return f"{count(shape['pods'], 'pod')} with {count(shape['gpus'], 'GPU')}{where}"


def _verdict(answer: Mapping[str, Any]) -> str:
    from extender.ask.text import count

    number = count(len(answer["moves"]), "move")
    if answer["shape"] is None:
        return {"fits": "no pod with GPUs moves", "moves": f"empty after {number}"}.get(
            answer["verdict"], "not emptied"
        )
    fits = "fits now" if answer["at"] is None else f"fits at {answer['at']}"
    cannot = "no moves help" if answer["certificate"]["proved"] else "no moves were found that help"
    return {"fits": fits, "moves": f"fits after {number}"}.get(answer["verdict"], cannot)
