"""Open the scheduling gates of the queue, without a running server.

`off` deletes the bindings of the policies that add the gate, then removes our gate from all pods of the cluster.
`open` removes it from pods that are older than a limit: the annotation gpu-extender.io/queue-age-limit of their
namespace, else --older-than. Gates of other controllers stay. Exit code 0: nothing is left to do. 1: the API server
refused something.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from extender.ask.text import count
from extender.cli.sources import add_kubeconfig, by_api_server
from extender.errors import BadInput
from extender.kube import pod_writes
from extender.kube.client import ApiServer
from extender.kube.pod_writes import Tally
from extender.objects.progress import duration, duration_text
from extender.objects.queueing import GATE
from extender.objects.records import PodRecord

EXAMPLES = (
    "gpu-extender gates open --older-than 24h",
    "gpu-extender gates off",
)
NEVER = "never"
# Seconds. Each API server renews its view of the policies every second, so it may add the gate for as long after the
# binding is deleted.
SETTLE = 3.0
SWEEPS = 20
PROGRESS_SECONDS = 2.0
SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("action", choices=("off", "open"), help="off: all gates, and the policy; open: old pods alone")
    parser.add_argument(
        "--older-than",
        metavar="DURATION",
        type=_duration,
        help="with open: the age limit where a namespace states none, as 30m or 1h30m",
    )
    parser.add_argument(
        "--namespace", metavar="NS", help="with open: this namespace alone; --older-than counts, not its annotation"
    )
    add_kubeconfig(parser)
    parser.add_argument("--context", help="the context of the kubeconfig (default: its current one)")


def run(options: argparse.Namespace) -> int:
    """Removes the gates and prints what was done; 1 where a gate that should go is left."""
    if options.action == "open" and options.older_than is None:
        raise BadInput("open needs an age: give --older-than, as in --older-than 30m", path="--older-than")
    if options.action == "off" and (options.older_than is not None or options.namespace):
        raise BadInput("it opens the gates of all pods; only open has --older-than and --namespace", path="off")

    def open_(server: ApiServer) -> Coroutine[Any, Any, int]:
        return _off(server) if options.action == "off" else _open(server, options.older_than, options.namespace or "")

    return by_api_server(open_, options.kubeconfig, options.context)


async def _off(server: ApiServer) -> int:
    names = await pod_writes.delete_bindings(server)
    for name in names:
        print(f"deleted MutatingAdmissionPolicyBinding {name}: new pods get no gate")
    if not names:
        print(f"no binding of {' or '.join(pod_writes.POLICIES)} exists: new pods get no gate")
    sys.stdout.flush()
    settled = time.monotonic() + (SETTLE if names else 0.0)
    pods, progress = 0, _progress()
    for _ in range(SWEEPS):
        begun = time.monotonic()
        tally = await pod_writes.remove_gates(server, lambda pod: True, progress)
        pods += tally.pods
        if tally.refused:
            print(f"removed the gate {GATE} from {count(pods, 'pod')}")
            return _refused(tally)
        if not tally.pods and begun >= settled:
            print(f"removed the gate {GATE} from {count(pods, 'pod')}; none is left in the cluster")
            return 0
        await asyncio.sleep(max(0.0, settled - time.monotonic()))
    print(f"removed the gate {GATE} from {count(pods, 'pod')}")
    print(
        "gpu-extender: new pods with the gate keep coming: from a template that names it, or from another policy",
        file=sys.stderr,
    )
    return 1


async def _open(server: ApiServer, older_than: int, namespace: str) -> int:
    limits = _limits({} if namespace else await pod_writes.age_limits(server))
    now = time.time()

    def old(pod: PodRecord) -> bool:
        return now - (pod.created or 0.0) > limits.get(pod.namespace, older_than)

    tally = await pod_writes.remove_gates(server, old, _progress(), namespace)
    for name, pods in sorted(tally.removed.items()):
        age = duration_text(int(limits.get(name, older_than)))
        print(f"removed the gate {GATE} from {count(pods, 'pod')} of namespace {name}: older than {age}")
    if tally.refused:
        return _refused(tally)
    if not tally.removed:
        where = f" of namespace {namespace}" if namespace else ""
        print(f"no pod{where} behind the gate {GATE} is older than its limit")
    return 0


def _limits(stated: dict[str, str]) -> dict[str, float]:
    """Seconds by namespace; an annotation that is invalid is reported and ignored."""
    limits: dict[str, float] = {}
    for name, text in sorted(stated.items()):
        seconds = math.inf if text.strip() == NEVER else duration(text)
        if seconds is None:
            print(
                f"gpu-extender: namespace {name}: {pod_writes.AGE_LIMIT}: {text[:40]!r} is no duration and not "
                f"`{NEVER}`; --older-than counts",
                file=sys.stderr,
            )
        else:
            limits[name] = seconds
    return limits


def _refused(tally: Tally) -> int:
    print(f"gpu-extender: {count(len(tally.refused), 'pod')} still with the gate {GATE}:", file=sys.stderr)
    for pod, why in tally.refused[:SHOWN]:
        print(f"  {pod.namespace}/{pod.name}: {why}", file=sys.stderr)
    if len(tally.refused) > SHOWN:
        print(f"  and {len(tally.refused) - SHOWN} more", file=sys.stderr)
    return 1


def _progress() -> Callable[[Tally], None]:
    """Prints how far it is, at most every PROGRESS_SECONDS."""
    due = time.monotonic() + PROGRESS_SECONDS

    def show(tally: Tally) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + PROGRESS_SECONDS
            print(f"gpu-extender: {count(tally.pods, 'pod')} released so far", file=sys.stderr, flush=True)

    return show


def _duration(text: str) -> int:
    seconds = duration(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, as in 30m or 1h30m")
    return seconds
