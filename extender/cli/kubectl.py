"""`kubectl gpu-extender ...`: the commands that ask a running server, for a server in the cluster of a kubeconfig.

kubectl's own flags mean what they mean to kubectl. The replica is found by its Lease, and reached through a forwarded
port for as long as the command runs. kubectl does all of this as a child process, so credentials, contexts, proxies and
impersonation are as the user has them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from extender import cli
from extender.cli import check
from extender.cli.kubectl_calls import (
    EVICTIONS,
    LABELS,
    NAMESPACE,
    QUEUE,
    SCHEDULER,
    Kubectl,
    Replica,
    WrongUsage,
    everything,
    find,
    forwarded,
    split,
)
from extender.cli.options import called, port, show
from extender.cli.sources import Unanswered
from extender.errors import BadInput, ExtenderError, NotFound, Unreachable
from extender.objects.queueing import GATE

PROGRAM: Final = "kubectl gpu-extender"
ASKING: Final = frozenset(
    {"explain", "decisions", "map", "top", "queue", "capacity", "whatif", "plan", "shadow", "check"}
)
"""The commands that can ask a server alone: those with an option --server, but not `compare`, which also reads the API
server by itself."""
OFFERED: Final = tuple(name for name in cli.COMMANDS if name in ASKING)
PORT: Final = 8888
LEASES: Final = (SCHEDULER, QUEUE, EVICTIONS)
OF_QUEUE: Final = (QUEUE, SCHEDULER, EVICTIONS)
ELSEWHERE: Final = ("server", "kubeconfig", "cluster", "config", "now")
"""Options of the commands that kubectl's flags replace, or that only count without a server."""
OWN_SCHEDULER: Final = "kube-scheduler"
"""The container of a replica that needs the Lease of the scheduler."""
HINT: Final = re.compile(
    rf"(?<![\w./-])(?<!kubectl ){cli.PROGRAM}(?= (?:{'|'.join(OFFERED)})\b)(?! check\b(?! --live\b))"
    rf"(?! \w+ --(?:{'|'.join(ELSEWHERE)})\b)"
)
"""The program in a hint that the plugin can follow. Of `check` it has --live alone, and none of `ELSEWHERE`."""
OWN_OPTIONS: Final = re.compile(rf" --(?:{'|'.join(ELSEWHERE)})\b")
EPILOG: Final = "kubectl's own flags are accepted everywhere (`kubectl options`); -n is the namespace of a pod."


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of `kubectl gpu-extender ARGUMENTS`. Wrong usage ends in argparse's SystemExit(2)."""
    with called(HINT, PROGRAM):
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(arguments: Sequence[str]) -> int:
    overview = cli.overview(PROGRAM, OFFERED)
    overview.epilog = EPILOG
    try:
        flags, words = split(arguments)
    except WrongUsage as error:
        overview.error(str(error))
    if not words:
        overview.print_help(sys.stderr)
        return cli.USAGE
    if words[0] == "--version":
        return cli.main(words)
    if words[0] not in OFFERED:
        overview.parse_args(words)  # ends the program: help, or what is wrong
    # A command may require one source of several. This one is replaced below.
    options = cli.parsed(parser_of(words[0]), ["--server=", *words[1:]])
    return cli.ended(partial(_run, words[0], options, Kubectl(flags)), options)


def parser_of(name: str) -> argparse.ArgumentParser:
    """What reads the arguments of a command of the plugin, kubectl's flags left out."""
    parser = cli.parser_of(name, PROGRAM)
    followed = [line for line in cli.command(name).EXAMPLES if HINT.search(line) and not OWN_OPTIONS.search(line)]
    parser.epilog = f"{cli.examples(followed)}\n\n{EPILOG}"
    for action in parser._actions:
        if action.dest in ELSEWHERE:
            action.help = argparse.SUPPRESS
        elif action.dest == "pod":
            action.metavar, action.help = "POD", f"{action.help}, NAME or NAMESPACE/NAME"
    add_place(parser.add_argument_group("where gpu-extender runs"))
    parser.usage = " ".join([PROGRAM, name, "[OPTIONS]", *filter(None, map(_written, parser._actions))])
    return parser


def add_place(parser: argparse._ActionsContainer) -> None:
    """The plugin's own options: --system-namespace, --lease and --port."""
    parser.add_argument(
        "--system-namespace", metavar="NS", default=NAMESPACE, help="the namespace of its pods (default: %(default)s)"
    )
    parser.add_argument("--lease", metavar="NAME", help="the Lease whose holder is asked (default: by the command)")
    parser.add_argument("--port", type=port, default=PORT, help="the port of the pod (default: %(default)s)")


def _written(action: argparse.Action) -> str:
    """How the usage shows a positional argument; an option is among its OPTIONS."""
    if action.option_strings:
        return ""
    shown = str(action.metavar or action.dest)
    return f"[{shown}]" if action.nargs == "?" else shown


def _run(name: str, options: argparse.Namespace, kubectl: Kubectl) -> int:
    """The command, through a forwarded port."""
    match getattr(options, "pod", None):
        case str(pod):
            options.pod = _with_namespace(pod, kubectl)
        case list(pods):
            options.pod = [_with_namespace(pod, kubectl) for pod in pods]
    if name == "check":
        return _health(options, kubectl)
    if name == "plan":  # its --namespace is a flag of kubectl here, and what --apply writes goes where kubectl goes
        options.kubectl, options.namespace = kubectl, list(kubectl.flags.namespaces) if options.apply else None
    if options.lease:
        leases: tuple[str, ...] = (options.lease,)
    else:
        leases = OF_QUEUE if name == "queue" or (name == "explain" and _queued(options.pod, kubectl)) else LEASES
    replica = find(kubectl, options.system_namespace, leases, name == "shadow")
    if replica.warning:
        print(f"gpu-extender: warning: {replica.warning}", file=sys.stderr)
    with forwarded(kubectl, replica, options.port) as tunnel:
        options.server = tunnel.url
        try:
            return int(cli.command(name).run(options))
        except Unreachable as error:
            where = f"pod {replica.namespace}/{replica.pod}, port {options.port}"
            why = error.reason if isinstance(error, Unanswered) else error.message
            raise Unreachable(tunnel.complaint() or why, path=where) from None


def _with_namespace(pod: str, kubectl: Kubectl) -> str:
    """NAMESPACE/NAME of what the user gave: by -n, or by the context. BadInput where the two differ."""
    given = kubectl.flags.namespace
    namespace, slash, _ = pod.partition("/")
    if slash:
        if given not in (None, namespace):
            raise BadInput(f"{pod!r} is not in namespace {given!r}", path="--namespace")
        return pod
    if given is None:
        try:
            given = kubectl.get("config", "view", "--minify", "--output=jsonpath={..namespace}").text().strip()
        except Unreachable:  # no context, as in a pod
            given = ""
    return f"{given or 'default'}/{pod}"


def _queued(pod: str, kubectl: Kubectl) -> bool:
    """Whether the pod waits behind the gate of the queue. Who may not read it asks the scheduler's replica."""
    namespace, _, name = pod.partition("/")
    try:
        gates = kubectl.get(
            "get", f"pod/{name}", "--output=jsonpath={.spec.schedulingGates[*].name}", namespace=namespace
        )
        return GATE in gates.text().split()
    except ExtenderError:
        return False


# -- check --live: every replica, asked one after the other, and the Leases by which they act


def _health(options: argparse.Namespace, kubectl: Kubectl) -> int:
    """Prints the health; 1 where something is not well."""
    if not options.live:
        raise BadInput(
            "the plugin asks running servers: give --live (gpu-extender check judges a cluster)", path="check"
        )
    namespace = options.system_namespace
    installed = everything(kubectl, namespace, (SCHEDULER, QUEUE, EVICTIONS))
    if installed.no_pods:
        raise installed.no_pods
    if not installed.pods:
        raise NotFound(
            f"no pod has the labels {LABELS}; --system-namespace names the namespace of gpu-extender",
            path=f"namespace {namespace}",
        )
    pods = sorted(installed.pods, key=lambda pod: str(pod["metadata"]["name"]))
    replicas = [_replica(kubectl, Replica(namespace, pod["metadata"]["name"]), options.port) for pod in pods]
    schedules = any(OWN_SCHEDULER in _containers(pod) for pod in pods)
    wanted = [check.Wanted(SCHEDULER, schedules), check.Wanted(QUEUE, False), check.Wanted(EVICTIONS, False)]
    if installed.no_leases:
        warning = {"code": "leases-not-read", "message": f"the Leases cannot be read: {installed.no_leases.message}"}
        shown = check.health(replicas, None, [warning])
    else:
        shown = check.health(replicas, check.leases(installed.leases, wanted, datetime.now(UTC)))
    show(shown, options.output, check.health_lines)
    return check.health_code(shown)


def _replica(kubectl: Kubectl, replica: Replica, port: int) -> dict[str, Any]:
    try:
        with forwarded(kubectl, replica, port) as tunnel:
            answered = check.replica(replica.pod, tunnel.url)
            return (
                answered
                if answered["reachable"]
                else check.unreachable(replica.pod, tunnel.complaint() or answered["error"])
            )
    except ExtenderError as error:
        return check.unreachable(replica.pod, error.message)


def _containers(pod: dict[str, Any]) -> list[str]:
    return [container["name"] for container in (pod.get("spec") or {}).get("containers") or ()]
