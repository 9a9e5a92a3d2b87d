"""Evicting a pod through the API server, which respects its PodDisruptionBudgets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, Unreachable
from extender.metrics import Metrics
from extender.objects.records import PodRecord

AT_ONCE: Final = 8  # requests under way
Outcome = Literal["evicted", "gone", "blocked", "refused", "unknown"]


class Evicted(NamedTuple):
    """What became of it. ``gone``: no pod with that uid is there; ``blocked``: a budget does not allow it now;
    ``unknown``: no answer, or a failure of the server's."""

    outcome: Outcome
    message: str = ""


async def evict(server: ApiServer, namespace: str, name: str, uid: str, *, dry_run: bool) -> Evicted:
    """Ask for the end of this very pod. ``dry_run``: only whether it would be allowed."""
    options: dict[str, object] = {"preconditions": {"uid": uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    body = msgspec.json.encode(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
    )
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/eviction"
    try:
        await server.post(path, body)
    except ApiError as error:
        if error.status in (404, 409):
            return Evicted("gone", str(error))  # 409: another pod has its name now
        # 500: the server answers so where more than one budget speaks of the pod, which it does not support.
        if error.status == 429 or (error.status == 500 and "PodDisruptionBudget" in error.message):
            return Evicted("blocked", str(error))
        return Evicted("unknown" if error.status >= 500 else "refused", str(error))
    except Unreachable as error:
        return Evicted("unknown", str(error))
    return Evicted("evicted")


class PodEvictions:
    """Evicts pods, and counts what the API server answers."""

    def __init__(self, server: ApiServer, metrics: Metrics) -> None:
        self._server, self._metrics = server, metrics

    async def refusal(self, pods: Iterable[PodRecord]) -> tuple[PodRecord, str] | None:
        """The first of these pods whose eviction the API server does not allow in a dry run, and why; None: it allows
        every one. Pods that are terminating are not asked about."""
        asked = [pod for pod in pods if not pod.terminating]
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            answers = await asyncio.gather(
                *(evict(self._server, pod.namespace, pod.name, pod.uid, dry_run=True) for pod in some)
            )
            for pod, said in zip(some, answers, strict=True):
                if said.outcome not in ("evicted", "gone"):
                    self._metrics.evictions.labels(f"dry-run-{said.outcome}").inc()
                    return pod, f"{pod.namespace}/{pod.name}: {said.message}"
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        """Evict one pod."""
        said = await evict(self._server, pod.namespace, pod.name, pod.uid, dry_run=False)
        self._metrics.evictions.labels(said.outcome).inc()
        return said
