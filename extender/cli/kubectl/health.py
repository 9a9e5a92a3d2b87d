"""`kubectl gpu-extender check --live`: every replica, asked one after the other, and the Leases by which they act."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from extender.cli import live
from extender.cli.kubectl.calls import Kubectl
from extender.cli.kubectl.forward import EVICTIONS, LABELS, QUEUE, SCHEDULER, Replica, everything, forwarded
from extender.cli.options import show
from extender.errors import BadInput, ExtenderError, NotFound

OWN_SCHEDULER = "kube-scheduler"
"""The container of a replica that needs the Lease of the scheduler."""


def run(options: argparse.Namespace, kubectl: Kubectl) -> int:
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
    wanted = [live.Wanted(SCHEDULER, schedules), live.Wanted(QUEUE, False), live.Wanted(EVICTIONS, False)]
    if installed.no_leases:
        warning = {"code": "leases-not-read", "message": f"the Leases cannot be read: {installed.no_leases.message}"}
        shown = live.answer(replicas, None, [warning])
    else:
        shown = live.answer(replicas, live.leases(installed.leases, wanted, datetime.now(UTC)))
    show(shown, options.output, live.lines)
    return live.exit_code(shown)


def _replica(kubectl: Kubectl, replica: Replica, port: int) -> dict[str, Any]:
    try:
        with forwarded(kubectl, replica, port) as tunnel:
            answered = live.replica(replica.pod, tunnel.url)
            return (
                answered
                if answered["reachable"]
                else live.unreachable(replica.pod, tunnel.complaint() or answered["error"])
            )
    except ExtenderError as error:
        return live.unreachable(replica.pod, error.message)


def _containers(pod: dict[str, Any]) -> list[str]:
    return [container["name"] for container in (pod.get("spec") or {}).get("containers") or ()]
