"""A cluster, listed once over the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extender.errors import Unreachable
from extender.kube import lists
from extender.kube.client import ApiError, ApiServer, CredentialsError, NoAnswer, default_kubeconfig
from extender.objects.records import Event, RecordError


async def listed(kubeconfig: Path | None, gpus: frozenset[str], invalid: list[Any]) -> list[Event]:
    """Every object as an event; what is wrong with one goes to `invalid`. Without a kubeconfig: in a pod its account,
    else kubectl's. Unreachable."""
    path = str(kubeconfig) if kubeconfig else default_kubeconfig()
    try:
        async with await ApiServer.connect(path) as server:
            return await lists.list_all(server, gpus, invalid=invalid)
    except (ApiError, NoAnswer, CredentialsError, RecordError) as error:
        raise Unreachable(str(error), path="API server") from None
