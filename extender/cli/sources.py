"""Where a command gets what it shows: from a running server over HTTP, from the API server, or from a file."""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Mapping
from datetime import datetime
from http.client import BadStatusLine, HTTPException, RemoteDisconnected
from pathlib import Path
from ssl import SSLCertVerificationError, SSLError
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from extender.cli.options import add_config, settings_of
from extender.errors import BadInput, ExtenderError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from extender.kube.client import ApiServer
    from extender.objects.decode import Invalid
    from extender.objects.records import Event
    from extender.settings import Settings

    Read = Callable[[Any, Settings, list[Event], float], dict[str, Any]]
    """The answer by `ask.offline`, settings, the objects of a cluster, and the time in seconds since 1970."""

T = TypeVar("T")

# -- a running server


LOCAL = "http://127.0.0.1:8888"
TIMEOUT_SECONDS = 10.0
WORK_SECONDS = 120.0
"""For an answer that takes work."""
TRIES = 10
ASKED_AGAIN = (429, 503)
NOT_READY = 503


class Unanswered(Unreachable):
    """Nothing answers at the address of a server. `reason`: why, without advice on the address."""

    def __init__(self, reason: str, server: str) -> None:
        super().__init__(
            f"{reason}: no gpu-extender serves there; --server names another address, and `kubectl port-forward` makes "
            "a server in a pod reachable. Most commands also read a cluster without a server: --kubeconfig, --cluster",
            path=server,
        )
        self.reason = reason


def default_server() -> str:
    """The server that is asked where no option names one."""
    return os.environ.get("GPU_EXTENDER_SERVER") or LOCAL


def add_server(parser: argparse._ActionsContainer) -> None:
    """--server, of a command that asks one server."""
    parser.add_argument(
        "--server", metavar="URL", default=default_server(), help=f"default: $GPU_EXTENDER_SERVER, else {LOCAL}"
    )


def pod_of(text: str) -> tuple[str, str]:
    """(namespace, name) of NAMESPACE/NAME. BadInput for anything else."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise BadInput(f"{text!r} is not NAMESPACE/NAME, as default/train", path="pod")
    return namespace, name


def ask(server: str, path: str, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """The JSON object at a path of the server; Unreachable when there is none, or the server's own error. `seconds`:
    for which it waits."""
    return _answer(server, path, None, seconds=seconds)


NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""What OpenSSL calls an answer that is no TLS."""


def post(server: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """As `ask`, of a question in JSON."""
    return _answer(server, path, orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), seconds=WORK_SECONDS)


def readiness(server: str) -> dict[str, Any]:
    """What /readyz answers, also with 503."""
    return _answer(server, "/readyz", None, NOT_READY)


def _answer(
    server: str, path: str, body: bytes | None, also: int = 0, seconds: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """`also`: a status whose body is an answer, too."""
    try:
        scheme = urlsplit(server).scheme
    except ValueError:  # such as brackets that are not closed
        scheme = ""
    if scheme not in ("http", "https"):
        hint = "" if "//" in server else f": write http://{server}"
        raise BadInput(f"{server!r} is not an http or https address{hint}", path="--server")
    headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
    request = Request(server.rstrip("/") + path, data=body, headers=headers)
    try:
        answer = _decoded(server, _read(request, seconds))
    except HTTPError as error:
        with error:
            text = error.read()
            if error.code != also:
                raise _refusal(server, error.code, text) from None
            answer = _decoded(server, text)
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, SSLError) and reason.reason in NO_TLS:
            raise Unreachable(f"it does not speak TLS: write http://{urlsplit(server).netloc}", path=server) from None
        if isinstance(reason, SSLCertVerificationError):
            why = f"its certificate is not trusted ({reason.verify_message}): SSL_CERT_FILE names that of its authority"
            raise Unreachable(why, path=server) from None
        if scheme == "http" and isinstance(reason, RemoteDisconnected | BadStatusLine | ConnectionResetError):
            raise Unreachable(
                f"it closes the connection without an answer. If it speaks TLS, write https://{urlsplit(server).netloc}",
                path=server,
            ) from None
        if isinstance(reason, TimeoutError):
            raise Unreachable(f"no answer within {seconds:g} s", path=server) from None
        raise Unanswered(getattr(reason, "strerror", None) or str(reason), server) from None
    if not isinstance(answer, dict):
        raise Unreachable("the answer is not an object; is this a gpu-extender?", path=server)
    return answer


def _decoded(server: str, text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise Unreachable(f"the answer is not JSON: {error}", path=server) from None


def _read(request: Request, timeout: float) -> bytes:
    """The body of the answer. A server that is busy, or not ready for the moment, states when to ask again."""
    for remaining in reversed(range(TRIES)):
        try:
            # No proxy: the server is on loopback, at the end of a port-forward, or in the cluster.
            with build_opener(ProxyHandler({})).open(request, timeout=timeout) as response:
                body: bytes = response.read()
                return body
        except HTTPError as error:
            later = error.headers.get("Retry-After", "")
            if error.code not in ASKED_AGAIN or not remaining or not later.isdecimal():
                raise
            error.close()
            time.sleep(min(int(later), TIMEOUT_SECONDS))
    raise AssertionError("the last try returns or raises")


def _refusal(server: str, status: int, body: bytes) -> ExtenderError:
    """The server's own error where it sent one."""
    later = "; try again, `gpu-extender check --live` shows what it waits for" if status == NOT_READY else ""
    try:
        error = orjson.loads(body)["error"]
        return ExtenderError(f"{error['message']}{later}", path=str(error["path"]), code=str(error["code"]))
    except (ValueError, KeyError, TypeError):
        answered = f"it answered with HTTP status {status}; is this a gpu-extender?"
        return Unreachable(f"it is not ready{later}" if later else answered, path=server)


# -- a server, or a cluster that is read once


def add_sources(parser: argparse.ArgumentParser) -> None:
    """--server, --kubeconfig or --cluster, and --config for the two that need settings."""
    source = parser.add_mutually_exclusive_group()
    add_server(source)
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="list the cluster that the file names")
    add_cluster(parser, source)
    add_config(parser)


def add_now(parser: argparse.ArgumentParser) -> None:
    """--now, for what is not a running server."""
    parser.add_argument(
        "--now", metavar="RFC3339", help="without a server: the time at which it is asked (default: the clock)"
    )


def answer_of(options: argparse.Namespace, page: str, read: Read, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """The JSON object at `page` of the server, for which it waits so many seconds; else what `read` makes of a cluster
    that is read once: invalid objects come first in its `warnings`. BadInput, BadSettings, BadCluster, Unreachable, or
    the server's own error."""
    if of_server(options):
        return ask(options.server, page, seconds)
    from extender.ask import offline  # here: --help need not load the core
    from extender.objects import decode

    settings, wall = settings_of(options), moment(getattr(options, "now", None))
    cluster_events, invalid = events(options, settings)
    answer = read(offline, settings, cluster_events, wall)
    return answer | {"warnings": [*decode.warnings(invalid), *answer["warnings"]]}


def of_server(options: argparse.Namespace) -> bool:
    """Whether a running server is to be asked."""
    return options.cluster is None and options.kubeconfig is None


def events(
    options: argparse.Namespace, settings: Settings, items: list[dict[str, Any]] | None = None
) -> tuple[list[Event], list[Invalid]]:
    """The objects of the API server or the file, and what is wrong with some of them; those of the file go to `items`
    as they stand there. Unreachable, BadCluster."""
    from extender.ask import frozen  # here: --help need not load the core

    gpus = frozenset(resource.name for resource in settings.resources)
    invalid: list[Invalid] = []
    if options.cluster is not None:
        return frozen.read(options.cluster, gpus, invalid, items), invalid
    return listed(options.kubeconfig, gpus, invalid), invalid


def listed(kubeconfig: Path | None, gpus: frozenset[str], invalid: list[Any]) -> list[Event]:
    """Every object of a cluster as an event; what is wrong with one goes to `invalid`. Unreachable."""
    from extender.kube import lists

    return by_api_server(lambda server: lists.list_all(server, gpus, invalid=invalid), kubeconfig)


def by_api_server(
    ask: Callable[[ApiServer], Coroutine[Any, Any, T]], kubeconfig: Path | None, context: str | None = None
) -> T:
    """What `ask` makes of the API server of a kubeconfig and its context (None: the current one); without a kubeconfig:
    in a pod its account, else kubectl's. Unreachable."""
    import asyncio

    from extender.kube.client import ApiError, ApiServer, CredentialsError, NoAnswer, default_kubeconfig
    from extender.objects.records import RecordError

    async def answered() -> T:
        path = str(kubeconfig) if kubeconfig else default_kubeconfig()
        async with await ApiServer.connect(path, context) as server:
            return await ask(server)

    try:
        return asyncio.run(answered())
    except (ApiError, NoAnswer, CredentialsError, RecordError) as error:
        raise Unreachable(str(error), path="the API server") from error


def moment(text: str | None) -> float:
    """Seconds since 1970 of an RFC 3339 time with its zone; of now without one. BadInput for anything else."""
    if text is None:
        return time.time()
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        given = None
    if given is None or given.tzinfo is None:
        raise BadInput(f"{text!r} is not a time like 2026-11-21T15:00:00Z", path="--now")
    return given.timestamp()


# -- the option --cluster, and the one command that writes such a file from a live cluster


KINDS: Final = (
    "nodes", "pods", "poddisruptionbudgets.policy", "priorityclasses.scheduling.k8s.io", "resourcequotas",
    "deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io", "devicetaintrules.resource.k8s.io", "jobs.batch", "deployments.apps",
    "replicasets.apps", "statefulsets.apps",
    "podgroups.scheduling.k8s.io", "podgroups.scheduling.x-k8s.io", "podgroups.scheduling.volcano.sh",
    "workloads.scheduling.k8s.io", "jobsets.jobset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io",
    "rayclusters.ray.io", "podgangs.scheduler.grove.io", "pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org",
    "mpijobs.kubeflow.org",
    "xgboostjobs.kubeflow.org", "paddlejobs.kubeflow.org", "jaxjobs.kubeflow.org",
)  # fmt: skip
_LINES: Final = textwrap.wrap(" ".join(f"-e_{kind}" for kind in KINDS), 84, break_on_hyphens=False)
_NAMES: Final = " \\\n".join("    " + line.replace("-e_", "-e ") for line in _LINES)
CLUSTER_FILE: Final = f"""\
A FILE for --cluster, with every kind that is read and that the cluster has:

  kubectl get "$(kubectl api-resources --verbs=list -o name | grep -xF \\
{_NAMES} |
    paste -sd, -)" -A -o json > cluster.json
"""


def add_kubeconfig(parser: argparse._ActionsContainer) -> None:
    """--kubeconfig, of a command that asks the API server itself."""
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: in a pod its account, else kubectl's")


def add_cluster(parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None) -> None:
    """--cluster, in `group` where it is one of several choices."""
    (group or parser).add_argument(
        "--cluster", metavar="FILE", type=Path, required=group is None,
        help="a cluster's objects, JSON or YAML (`gpu-extender --help` has a command that writes it)",
    )  # fmt: skip
