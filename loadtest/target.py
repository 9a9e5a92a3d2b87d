"""What is asked: a deployment, the names of its nodes, and what may be asked of it beyond filter and prioritize."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import fleet
from loadtest.stub import NAMESPACE

SIZES = (100, 1_000, 5_000, 15_000)
OWN_SIZES = (1_000,)
SECONDS = 10.0
MANY_GPUS = 64
Pod = dict[str, Any]


class Unusable(Exception):
    """The load test cannot begin: why, and what to do, for people."""


@dataclass
class Target:
    """A deployment. `null`: the URL of the null beside it; `live`: the server watches a cluster; `fits`: a one-GPU pod
    is known to fit on a node; `many`: GPUs of a pod that fits nowhere; `victims`: by node, (uid, priority) of pods that
    preempt may be offered."""

    host: str
    names: list[str]
    sizes: list[int]
    null: str | None = None
    live: bool = True
    fits: bool = False
    many: int = MANY_GPUS
    namespace: str = NAMESPACE
    pods: list[Pod] = field(default_factory=list)
    victims: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    bind: bool = False
    preempt: bool = False

    def some(self, size: int) -> list[str]:
        """`size` names, spread evenly over all."""
        return [self.names[i * len(self.names) // size] for i in range(size)]


def get(host: str, path: str, seconds: float = SECONDS) -> tuple[int, bytes]:
    """Status and body. Unusable: no answer. No proxy: what is measured is a server, not a way to it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(host.rstrip("/") + path, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unusable(f"{host} does not answer: {reason}") from error


def check(host: str) -> None:
    """Unusable: HOST is no gpu-extender, or none that is ready."""
    status, body = get(host, "/readyz")
    try:
        ready = json.loads(body)
        missing = ready["missing"]
    except (ValueError, KeyError, TypeError):
        text = body[:80].decode(errors="replace")
        raise Unusable(f"{host} is not a gpu-extender: /readyz answers {status} and {text!r}") from None
    if status != 200:
        raise Unusable(f"{host} is not ready: {'; '.join(map(str, missing))}")


def state_of(host: str) -> dict[str, Any]:
    """/debug/state. Unusable: it is not served."""
    status, body = get(host, "/debug/state", 60.0)
    try:
        found: dict[str, Any] = json.loads(body)
        if status == 200 and found["kind"] == "CacheState":
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise Unusable(
        f"no node names are known: {host}/debug/state answers {status}; give them with --names-file, one a line"
    )


def names_of(file: Path) -> list[str]:
    """One a line, without repetitions. Unusable: there are none."""
    try:
        found = list(dict.fromkeys(line.strip() for line in file.read_text().splitlines() if line.strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"the node names cannot be read: {error}") from error
    if not found:
        raise Unusable(f"no node names are known: {file} has none")
    return found


def pods_of(file: Path, namespace: str) -> list[Pod]:
    """The pods of `kubectl get pods -n NAMESPACE -o json` that wait. Unusable: none, or a pod of another namespace."""
    try:
        items = json.loads(file.read_bytes())["items"]
        waiting = [pod for pod in items if not pod["spec"].get("nodeName")]
        for pod in items:
            if pod["metadata"]["namespace"] != namespace:
                where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                raise Unusable(f"{file}: pod {where} is not of the test namespace {namespace}")
            pod["metadata"].pop("managedFields", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"{file} is not a list of pods, as kubectl get pods -o json prints it: {error!r}") from error
    if not waiting:
        raise Unusable(f"{file}: no pod waits for a node")
    return waiting


def deployed(host: str, options: Namespace) -> Target:
    """A deployment that was there before. Unusable: it cannot be asked as the options say."""
    for flag in ("bind", "preempt"):
        if getattr(options, flag) and not (options.test_namespace and options.pods):
            raise Unusable(
                f"--{flag} changes a live cluster: it needs --test-namespace NAMESPACE and --pods FILE, the pods of "
                "that namespace (kubectl get pods -n NAMESPACE -o json)"
            )
    if not host.startswith(("http://", "https://")):
        raise Unusable(f"--host {host}: not a URL, as http://{host}")
    check(host)
    made = Target(host, [], [], namespace=options.test_namespace or NAMESPACE)
    made.bind, made.preempt = options.bind, options.preempt
    if options.pods and (made.bind or made.preempt):
        made.pods = pods_of(Path(options.pods), made.namespace)
    if options.names_file:
        made.names = names_of(Path(options.names_file))
    if made.preempt or not made.names:
        learn(made, state_of(host))
    made.sizes = sizes(options.names, len(made.names), host)
    return made


def learn(made: Target, state: dict[str, Any]) -> None:
    """What the state states: names, unless they are known, and victims in the test namespace. Unusable: no GPU node."""
    gpu_nodes = {name: node for name, node in state["nodes"].items() if node["gpu_counts"]}
    if not made.names:
        made.names = sorted(name for name, node in gpu_nodes.items() if node["schedulable"])
    if not made.names:
        raise Unusable(f"no node names are known: {made.host} knows no schedulable node with GPUs")
    made.many = 1 + max((max(node["gpu_counts"].values()) for node in gpu_nodes.values()), default=MANY_GPUS)
    if made.preempt:
        for uid, pod in state["pods"].items():
            if pod["node"] and pod["gpu_counts"] and pod["pod"].startswith(f"{made.namespace}/"):
                made.victims.setdefault(pod["node"], []).append((uid, pod["priority"]))
        if not made.victims:
            raise Unusable(
                f"--preempt: no pod of the namespace {made.namespace} has GPUs on a node; run pods there that may be "
                "offered as victims"
            )


def sizes(asked: str, known: int, host: str) -> list[int]:
    """The numbers of names to ask with. Unusable: no number, or more than are known."""
    if not asked:
        return [size for size in SIZES if size <= known] or [known]
    made = numbers(asked, "--names")
    if max(made) > known:
        raise Unusable(f"--names {max(made)}: {host} has {known} nodes")
    return made


def numbers(text: str, flag: str) -> list[int]:
    """ "100,1000": positive numbers. Unusable: something else."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < (0 if flag == "--churn" else 1):
        raise Unusable(f"{flag} {text}: not whole numbers, separated by commas")
    return found


def own(host: str, null: str, made: Sequence[int], live: bool) -> Target:
    """The server that the load test has started itself: nothing of value changes there, so all may be asked."""
    nodes = max(made)
    names = [fleet.name(i) for i in range(nodes)]
    found = Target(host, names, list(made), null, live=live, fits=True, many=fleet.SIZE, preempt=not live)
    if live:
        found.many += 1
    else:
        for i, name in enumerate(names):
            found.victims[name] = [(fleet.pod_uid(i, j), j % 2) for j in range(fleet.taken(i))]
    return found
