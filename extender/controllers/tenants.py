"""What lives beside the watches: tasks that get the API server once it is connected, and end with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from extender.kube.client import ApiServer
from extender.log import get_log

RESTART_SECONDS = 5.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
log = get_log()


class Tenant(Protocol):
    """One task. `name`: for the log."""

    name: str

    def missing(self) -> str:
        """What must be known before a verb is answered, in words; "" when nothing."""
        ...

    async def run(self, server: ApiServer) -> None:
        """Until it is cancelled. What it must still write it writes then, within seconds."""
        ...


async def keep(tenant: Tenant, server: ApiServer) -> None:
    """Run a tenant; a defect in it is logged and does not stop the scheduling."""
    while True:
        try:
            await tenant.run(server)
            return
        except Exception:
            log.exception("defect", controller=tenant.name)
            await asyncio.sleep(RESTART_SECONDS)


class Begun(Protocol):
    """What reads something of its own before the lists are read."""

    name: str

    async def begin(self, server: ApiServer) -> None: ...


async def begun(document: Begun, server: ApiServer) -> None:
    """Begin; a defect in it is logged, and the document starts empty."""
    try:
        await document.begin(server)
    except Exception:
        log.exception("defect", controller=document.name)


def own_namespace(said: str) -> str:
    """The settings' namespace; else, in a pod, its own; else that of the control plane, which exists everywhere."""
    if said:
        return said
    try:
        return ACCOUNT.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"
