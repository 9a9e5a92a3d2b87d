"""Evicting a pod through the API server, which respects its PodDisruptionBudgets."""

from __future__ import annotations

from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, Unreachable

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
