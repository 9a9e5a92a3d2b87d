"""The preemption posture of a cluster: which classes can evict which, and what is wrong with that; nodes that lost
GPUs, are not ready, or whose links are not known; unknown names with our prefix; and advice, as `capacity` has it.
Nothing is changed, and what an input lacks is said, not judged. Exit codes: 0 no finding is an error, 10 some are (with
--strict warnings count too), 1 the cluster cannot be read or the file has neither nodes nor pods, 2 wrong usage.

With --scheduler-config instead: what keeps kube-scheduler from asking gpu-extender well, by its configuration; unknown
fields with their lines. The exit codes are the same.

With --live instead: the health of running replicas. `kubectl gpu-extender check --live` finds all of them, and reads
their Leases. Exit codes: 0 all is well, 1 something is not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from extender.cli import sources
from extender.cli.asking import LOCAL, default_server
from extender.cli.options import add_config, add_output, settings_of, show, write
from extender.cli.sources import moment
from extender.errors import BadCluster, BadInput

if TYPE_CHECKING:
    from extender.kube.client import ApiServer
    from extender.settings import Settings

MOST_BYTES = 1 << 20
"""Of a KubeSchedulerConfiguration that are read."""
LISTS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ResourceQuota": "/api/v1/resourcequotas",
    "Job": "/apis/batch/v1/jobs",
    "Deployment": "/apis/apps/v1/deployments",
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
    "PyTorchJob": "/apis/kubeflow.org/v1/pytorchjobs",
}
OWNERS = ("Deployment", "ReplicaSet", "StatefulSet", "JobSet", "LeaderWorkerSet", "PyTorchJob")
"""Whose pods a quota may refuse: what is not served, or may not be listed, is not judged."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--live", action="store_true",
        help="instead: whether the running replicas are well: rights, certificates, settings; exit code 0 or 1",
    )  # fmt: skip
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: in a pod its account, else kubectl's")
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
        return _live(options)
    if options.server:
        raise BadInput("it names a replica for --live, which is not given", path="--server")
    settings = settings_of(options)
    if options.scheduler_config is not None:
        return _scheduler_config(options.scheduler_config, settings, options)
    wall = moment(options.now)
    import asyncio

    from extender.ask import frozen, offline  # here: --help need not load the core
    from extender.ask.checks import check
    from extender.ask.suppose import SupposedCluster
    from extender.objects import tolerant

    if options.cluster is not None:
        raw, source = frozen.load(options.cluster), str(options.cluster)
    else:
        raw, source = asyncio.run(_listed(options.kubeconfig)), "the API server"
    gpus = frozenset(resource.name for resource in settings.resources)
    invalid: list[tolerant.Invalid] = []
    events = frozen.parse(raw, gpus, source, invalid)
    snapshot = SupposedCluster.of(settings, events)
    if options.cluster is not None and not snapshot.cluster.nodes and not snapshot.cluster.pods:
        raise BadCluster("has neither Node nor Pod, so nothing can be judged", path=source)
    answered = check.answer(
        settings,
        snapshot.cluster,
        frozen.objects(raw, source),
        wall,
        advice=offline.advice(settings, events, wall),
        complete=frozenset(LISTS) if options.cluster is None else frozenset(),
    )
    answered["warnings"] = [*tolerant.warnings(invalid), *answered["warnings"]]
    if options.output != "text":
        write(answered, options.output)
    else:
        from extender.cli import posture

        posture.show(answered)
    return check.exit_code(answered, options.strict)


def _scheduler_config(file: Path, settings: Settings, options: argparse.Namespace) -> int:
    from extender.ask.checks import check, scheduler_config

    try:
        text = file.read_bytes()[:MOST_BYTES].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", path=str(file)) from error
    answered = scheduler_config.answer(text, str(file), settings)
    show(answered, options.output, scheduler_config.lines)
    return check.exit_code(answered, options.strict)


def _live(options: argparse.Namespace) -> int:
    from extender.cli import live

    servers = options.server or [default_server()]
    shown = live.answer([live.replica(server, server) for server in servers], None)
    show(shown, options.output, live.lines)
    return live.exit_code(shown)


async def _listed(kubeconfig: Path | None) -> bytes:
    """One List of everything that is looked at. Unreachable when a list is refused."""
    from extender.errors import Unreachable
    from extender.kube import client
    from extender.kube.client import default_kubeconfig

    items: list[bytes] = []
    try:
        where = str(kubeconfig) if kubeconfig else default_kubeconfig()
        async with await client.ApiServer.connect(where) as server:
            for kind, path in LISTS.items():
                try:
                    items += await _items(server, kind, path)
                except client.ApiError as error:
                    if kind not in OWNERS or error.status not in (403, 404):
                        raise
    except (client.ApiError, client.NoAnswer, client.CredentialsError) as error:
        raise Unreachable(str(error), path="the API server") from error
    except (ValueError, KeyError) as error:
        raise Unreachable(f"an answer that is no list: {error}", path="the API server") from error
    return b'{"apiVersion":"v1","kind":"List","items":[' + b",".join(items) + b"]}"


async def _items(server: ApiServer, kind: str, path: str) -> list[bytes]:
    """The objects of one kind, each with its kind. Items stay bytes: one that is nested too deep for a decoder is named
    when all are read."""
    from ext_core import prune

    items: list[bytes] = []
    token = ""
    while True:
        page = await server.get(path, {"limit": "500"} | ({"continue": token} if token else {}))
        parts = prune.members(page)
        meta = orjson.loads(page[slice(*parts[b"metadata"])])
        typed = orjson.dumps({"kind": kind, "apiVersion": orjson.loads(page[slice(*parts[b"apiVersion"])])})
        null = page[slice(*parts[b"items"])] == b"null"
        for start, end in () if null else prune.elements(page, *parts[b"items"]):
            element = page[start:end]
            items.append(typed[:-1] + b"," + element[1:] if element[:2] == b'{"' else element)
        token = meta.get("continue") or ""
        if not token:
            return items
