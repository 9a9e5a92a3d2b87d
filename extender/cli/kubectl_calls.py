"""kubectl as a child process: it knows contexts, credentials, impersonation and proxies as the user has them.

It prints what the cluster has, and forwards a port of a replica to loopback for as long as a command runs. The official
client's port-forward is not used: its connection has no time limit, and it lacks kubectl's impersonation and proxy
flags. kubectl exists where its plugin runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, Final, NamedTuple

import orjson

from extender.errors import ExtenderError, NotFound, Unreachable

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
