"""`kubectl gpu-extender ...`: the commands that ask a running server, for a server in the cluster of a kubeconfig.

kubectl's own flags mean what they mean to kubectl. The replica is found by its Lease, and reached through a forwarded
port for as long as the command runs. kubectl does all of this as a child process, so credentials, contexts, proxies and
impersonation are as the user has them.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import IO, Any, Final, NamedTuple

import orjson

from extender import cli
from extender.cli import check
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
    """Whether the pod waits behind the gate of the queue. Without the right to read it, the replica of the
    scheduler is asked."""
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


# -- kubectl as a child process: it knows contexts, credentials, impersonation and proxies as the user has them.
#
# It prints what the cluster has, and forwards a port of a replica to loopback for as long as a command runs. The
# official client's port-forward is not used: its connection has no time limit, and it lacks kubectl's impersonation and
# proxy flags. kubectl exists where its plugin runs.


SECONDS: Final = 30.0
"""So long an answer may take."""


class Kubectl:
    """The kubectl that called us, else the one on PATH, with the user's flags."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self._program = os.environ.get("KUBECTL_PATH") or "kubectl"  # kubectl 1.37 and later names itself

    def without(self, flag: str) -> Kubectl:
        """The same, but for one of the user's flags."""
        return Kubectl(self.flags.but(flag))

    def argv(self, *words: str, namespace: str | None = None) -> list[str]:
        """The call. `namespace`: instead of the one that the user states."""
        where = self.flags.namespace if namespace is None else namespace
        return [self._program, *words, *self.flags.others, *([f"--namespace={where}"] if where else [])]

    def get(self, *words: str, namespace: str | None = None) -> KubectlCall:
        """Begins a call that prints something and ends. Unreachable: there is no kubectl."""
        argv = self.argv(*words, namespace=namespace)
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise Unreachable(f"{error.strerror}: is kubectl on PATH?", path=self._program) from None
        return KubectlCall(child, " ".join(words[:2]))


@dataclass(frozen=True, slots=True)
class KubectlCall:
    """A call that was begun, so that several run at once."""

    child: subprocess.Popen[str]
    what: str

    def text(self, seconds: float = SECONDS) -> str:
        """Its output, once it has ended, within so many seconds. Unreachable with kubectl's own words."""
        try:
            out, err = self.child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            raise Unreachable(f"no answer within {seconds:.0f} s", path=f"kubectl {self.what}") from None
        if self.child.returncode:
            raise Unreachable(last_line(err) or f"exit code {self.child.returncode}", path=f"kubectl {self.what}")
        return out


def last_line(text: str) -> str:
    """What kubectl has to say in the end: the lines before are its log."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


# -- kubectl's own flags: those that the user gave the plugin, for the kubectl that it calls


VALUES: Final = frozenset({
    "as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority", "client-certificate",
    "client-key", "cluster", "context", "kubeconfig", "kuberc", "log-flush-frequency", "namespace", "password",
    "profile", "profile-output", "proxy-url", "request-timeout", "server", "tls-server-name", "token", "user",
    "username", "v", "vmodule",
})  # fmt: skip
"""Those with a value: `--context=x`, or `--context x`."""
SWITCHES: Final = frozenset({
    "disable-compression", "insecure-skip-tls-verify", "match-server-version", "warnings-as-errors",
})  # fmt: skip
"""Those without one, or with `=true`, `=false`."""
SHORT: Final = {"n": "namespace", "s": "server", "v": "v"}


class WrongUsage(Exception):
    """A flag without its value."""


class Flags(NamedTuple):
    """What the user gave."""

    namespaces: tuple[str, ...] = ()  # of each -n
    others: tuple[str, ...] = ()  # `--NAME=VALUE` each

    @property
    def namespace(self) -> str | None:
        """The last one counts, as to kubectl; None where none was given."""
        return self.namespaces[-1] if self.namespaces else None

    def but(self, name: str) -> Flags:
        """Without one flag."""
        return self._replace(others=tuple(flag for flag in self.others if not flag.startswith(f"--{name}=")))


def split(words: Sequence[str]) -> tuple[Flags, list[str]]:
    """kubectl's flags, wherever they stand, and all other words in order. What follows `--` is no flag. WrongUsage."""
    namespaces: list[str] = []
    others: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
            break
        flag = _flag(word, remaining)
        if flag is None:
            rest.append(word)
        elif flag[0] == "namespace":
            namespaces.append(flag[1])
        else:
            others.append(f"--{flag[0]}={flag[1]}")
    return Flags(tuple(namespaces), tuple(others)), rest


def value_of(word: str) -> str | None:
    """The name of the flag whose value comes with the word after this one; None: no value is missing."""
    name, given = _named(word)
    return name if name in VALUES and given is None else None


def _flag(word: str, following: Iterator[str]) -> tuple[str, str] | None:
    """(name, value); None: the word is no flag of kubectl. The value may be the first of `following`."""
    name, given = _named(word)
    if name in SWITCHES:
        return name, "true" if given is None else given
    if name not in VALUES:
        return None
    value = next(following, None) if given is None else given
    if value is None:
        raise WrongUsage(f"{word} needs a value")
    return name, value


def _named(word: str) -> tuple[str, str | None]:
    """The flag's long name ("" for none), and its value where the word has it."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals else None
    if word[:1] == "-" and word[1:2] in SHORT:
        value = word[2:].removeprefix("=")
        return SHORT[word[1]], value if len(word) > 2 else None
    return "", None


# -- a port of a replica on loopback


FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")
END_SECONDS: Final = 5.0
MOST_SAID: Final = 1_000  # characters of standard error that are shown
SIGNALS: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Tunnel(NamedTuple):
    """A forwarded port of a replica."""

    url: str  # where the replica is reached
    complaint: Callable[[], str]  # what kubectl has written to standard error, "" for nothing


@contextmanager
def forwarded(kubectl: Kubectl, replica: Replica, port: int) -> Iterator[Tunnel]:
    """A free port of loopback that leads to a port of the replica. Unreachable with kubectl's own words."""
    lasting = kubectl.without("request-timeout")  # the forward lasts as long as the command
    argv = lasting.argv(
        "port-forward", f"pod/{replica.pod}", f":{port}", "--address=127.0.0.1", namespace=replica.namespace
    )
    with tempfile.TemporaryFile("w+") as errors, _signals() as obey:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            obey()
            yield Tunnel(f"http://127.0.0.1:{_port(child, errors, replica)}", lambda: _said(errors))
        finally:
            _end(child)


def _port(child: subprocess.Popen[str], errors: IO[str], replica: Replica) -> int:
    """The local port, which kubectl prints once it listens."""
    assert child.stdout is not None
    limit = threading.Timer(SECONDS, child.kill)
    limit.start()
    try:
        line = child.stdout.readline()
    finally:
        limit.cancel()
    match = FORWARDING.match(line)
    if match is None:
        child.kill()
        child.wait()
        where = f"pod {replica.namespace}/{replica.pod}"
        raise Unreachable(_said(errors) or f"no port is forwarded within {SECONDS:.0f} s", path=where)
    return int(match[1])


def _said(errors: IO[str]) -> str:
    """All of it: the last line is only that the connection is lost."""
    errors.seek(0)
    return "; ".join(line.strip() for line in errors.read(MOST_SAID).splitlines() if line.strip())


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """A signal that ends this program ends kubectl first: signals wait until the call of what is given here."""
    came: list[int] = []
    obeyed = False

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if obeyed:
            raise SystemExit(128 + number)

    def obey() -> None:
        nonlocal obeyed
        obeyed = True
        if came:
            raise SystemExit(128 + came[0])

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield obey
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- which replica is asked: the holder of the Lease by which it schedules, or releases gangs


NAMESPACE: Final = "gpu-extender-system"
COMPONENT: Final = "app.kubernetes.io/component"
OBSERVER: Final = "observer"
SERVERS: Final = ("scheduler", "extender", OBSERVER)
"""The components whose pods run a server: beside a kube-scheduler of its own, beside kubeadm's, and without one."""
LABELS: Final = f"app.kubernetes.io/name=gpu-extender,{COMPONENT} in ({','.join(SERVERS)})"
SCHEDULER: Final = "gpu-scheduler"
"""Its holder schedules: it is asked about pods, so it has decisions and assumed pods."""
QUEUE: Final = "gpu-extender-queue"
"""Its holder releases gangs: it alone knows their order."""
EVICTIONS: Final = "gpu-extender-evictions"
LEASES: Final = (SCHEDULER, QUEUE, EVICTIONS)
OF_QUEUE: Final = (QUEUE, SCHEDULER, EVICTIONS)
HOSTNAME_LENGTH: Final = 63
"""To which kubelet cuts the name of a pod for its host name."""
JSON = dict[str, Any]


class Replica(NamedTuple):
    """The pod that is asked."""

    namespace: str
    pod: str
    warning: str = ""  # why it may not be the one that has the answer; "" where it is


class Installed(NamedTuple):
    """What of gpu-extender runs: the objects, and why they could not be read."""

    pods: list[JSON]
    leases: list[JSON]
    no_pods: ExtenderError | None
    no_leases: ExtenderError | None


def everything(kubectl: Kubectl, namespace: str, leases: Sequence[str]) -> Installed:
    """All replicas, and the Leases of these names that exist."""
    named = kubectl.get(
        "get", "leases.coordination.k8s.io", *leases, "--ignore-not-found", "--output=json", namespace=namespace
    )
    listed = kubectl.get("get", "pods", f"--selector={LABELS}", "--output=json", namespace=namespace)
    held, no_leases = _items(named.text)
    pods, no_pods = _items(listed.text)
    return Installed(pods, held, no_pods, no_leases)


def find(kubectl: Kubectl, namespace: str, leases: Sequence[str], observer: bool = False) -> Replica:
    """The pod that holds the first of these Leases that is held, else any that is ready; where an `observer` is meant,
    one that is ready comes before both. NotFound, Unreachable."""
    pods, held, no_pods, no_leases = everything(kubectl, namespace, leases)
    if no_leases and no_pods:
        raise no_pods
    if observer and (observers := [pod for pod in pods if _observes(pod) and _ready(pod)]):
        return chosen(namespace, [], observers)
    holders = {lease["metadata"]["name"]: (lease.get("spec") or {}).get("holderIdentity") or "" for lease in held}
    return chosen(namespace, [holders.get(name, "") for name in leases], pods, no_leases, no_pods)


def chosen(
    namespace: str,
    identities: Iterable[str],
    pods: Sequence[JSON],
    no_leases: ExtenderError | None = None,
    no_pods: ExtenderError | None = None,
) -> Replica:
    """`identities`: of the holders, in order of preference, "" for none; `pods`: the replicas; why either could not be
    read."""
    hosts = [identity.partition("_")[0] for identity in identities if identity]  # HOSTNAME_..., as client-go has it
    for host in hosts:
        if matching := next((pod for pod in pods if _runs_at(pod, host)), None):
            return Replica(namespace, matching["metadata"]["name"])
    if no_pods and hosts:  # a right to read pods is not needed where their names are their host names
        return Replica(namespace, hosts[0])
    ready = [pod["metadata"]["name"] for pod in sorted(filter(_ready, pods), key=_preference)]
    why = f"the Leases cannot be read ({no_leases.message})" if no_leases else "no replica holds a Lease"
    if not ready:
        raise NotFound(
            f"{why}, and no pod with the labels {LABELS} is ready; --system-namespace names the namespace of "
            "gpu-extender",
            path=f"namespace {namespace}",
        )
    only = len(ready) == 1
    return Replica(namespace, ready[0], "" if only else f"{why}: {ready[0]} is asked, which may have no decisions")


def _items(text: Any) -> tuple[list[JSON], ExtenderError | None]:
    """The objects that a call of kubectl prints, or why there are none."""
    try:
        output = text()
        answer = orjson.loads(output) if output.strip() else {}
    except ExtenderError as error:
        return [], error
    except ValueError:
        return [], Unreachable("the answer is not JSON", path="kubectl get")
    return (answer.get("items") or []) if "items" in answer else [answer] if answer else [], None


def _runs_at(pod: JSON, host: str) -> bool:
    """Whether a process in the pod has this host name."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    if spec.get("hostNetwork"):
        return bool(spec.get("nodeName") == host)
    return host in (spec.get("hostname"), name, name[:HOSTNAME_LENGTH].rstrip("-."))


def _observes(pod: JSON) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(COMPONENT) == OBSERVER)


def _preference(pod: JSON) -> tuple[bool, str]:
    """An observer comes last: it decides nothing."""
    return _observes(pod), pod["metadata"]["name"]


def _ready(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
