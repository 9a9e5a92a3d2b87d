"""A port of a replica on loopback, by `kubectl port-forward`, for as long as a command runs.

The official client's port-forward is not used: its connection has no time limit, and it lacks kubectl's impersonation
and proxy flags. kubectl exists where its plugin runs.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, Final, NamedTuple

import orjson

from extender.cli.kubectl.calls import SECONDS, Kubectl
from extender.errors import ExtenderError, NotFound, Unreachable

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
LABELS: Final = "app.kubernetes.io/name=gpu-extender,app.kubernetes.io/component=scheduler"
SCHEDULER: Final = "gpu-scheduler"
"""Its holder schedules: it is asked about pods, so it has decisions and assumed pods."""
QUEUE: Final = "gpu-extender-queue"
"""Its holder releases gangs: it alone knows their order."""
EVICTIONS: Final = "gpu-extender-evictions"
HOSTNAME_LENGTH: Final = 63
"""To which kubelet cuts the name of a pod for its host name."""
Json = dict[str, Any]


class Replica(NamedTuple):
    """The pod that is asked."""

    namespace: str
    pod: str
    warning: str = ""  # why it may not be the one that has the answer; "" where it is


class Installed(NamedTuple):
    """What of gpu-extender runs: the objects, and why they could not be read."""

    pods: list[Json]
    leases: list[Json]
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


def find(kubectl: Kubectl, namespace: str, leases: Sequence[str]) -> Replica:
    """The pod that holds the first of these Leases that is held, else any that is ready. NotFound, Unreachable."""
    pods, held, no_pods, no_leases = everything(kubectl, namespace, leases)
    if no_leases and no_pods:
        raise no_pods
    holders = {lease["metadata"]["name"]: (lease.get("spec") or {}).get("holderIdentity") or "" for lease in held}
    return chosen(namespace, [holders.get(name, "") for name in leases], pods, no_leases, no_pods)


def chosen(
    namespace: str,
    identities: Iterable[str],
    pods: Sequence[Json],
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
    ready = sorted((pod["metadata"]["name"] for pod in pods if _ready(pod)), key=str)
    why = f"the Leases cannot be read ({no_leases.message})" if no_leases else "no replica holds a Lease"
    if not ready:
        raise NotFound(
            f"{why}, and no pod with the labels {LABELS} is ready; --system-namespace names the namespace of "
            "gpu-extender",
            path=f"namespace {namespace}",
        )
    only = len(ready) == 1
    return Replica(namespace, ready[0], "" if only else f"{why}: {ready[0]} is asked, which may have no decisions")


def _items(text: Any) -> tuple[list[Json], ExtenderError | None]:
    """The objects that a call of kubectl prints, or why there are none."""
    try:
        output = text()
        answer = orjson.loads(output) if output.strip() else {}
    except ExtenderError as error:
        return [], error
    except ValueError:
        return [], Unreachable("the answer is not JSON", path="kubectl get")
    return (answer.get("items") or []) if "items" in answer else [answer] if answer else [], None


def _runs_at(pod: Json, host: str) -> bool:
    """Whether a process in the pod has this host name."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    if spec.get("hostNetwork"):
        return bool(spec.get("nodeName") == host)
    return host in (spec.get("hostname"), name, name[:HOSTNAME_LENGTH].rstrip("-."))


def _ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
