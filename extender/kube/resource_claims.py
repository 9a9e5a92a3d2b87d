"""The writes on a ResourceClaim that the queue allocates: its devices, and none again; and the DeviceTaintRules that
keep devices for it meanwhile.

A status write cannot touch metadata. So the finalizer comes first, as kube-scheduler has it: without it the claim
controller would never free the devices of a claim that outlives its pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from extender.kube.client import MERGE_PATCH, STRATEGIC_PATCH, ApiError, ApiServer, NoAnswer
from extender.kube.pod_writes import Patched, patched
from extender.objects.records import FENCE, FINALIZER, PLANNED_NODE, AllocatedDevice

_API: Final = "/apis/resource.k8s.io/v1"
_RULES: Final = f"{_API}/devicetaintrules"
Object = dict[str, Any]


class ResourceClaimWrites:
    """Reads and writes claims at one API server. What reads raises ApiError and NoAnswer."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def claim(self, namespace: str, name: str) -> Object | None:
        """The claim as it is; None where it does not exist."""
        return await self._get(_path(namespace, name))

    async def device_class(self, name: str) -> Object | None:
        """The DeviceClass; None where it does not exist."""
        return await self._get(f"{_API}/deviceclasses/{quote(name, safe='')}")

    async def protect(self, namespace: str, name: str, version: str, node: str) -> Patched:
        """Add the finalizer, and the annotation that the queue allocates the claim on the node."""
        meta = {"resourceVersion": version, "finalizers": [FINALIZER], "annotations": {PLANNED_NODE: node}}
        return await patched(self._server, _path(namespace, name), {"metadata": meta}, STRATEGIC_PATCH)

    async def allocate(
        self, namespace: str, name: str, version: str, allocation: Mapping[str, object] | None
    ) -> Patched:
        """Write `status.allocation`, None: take it away."""
        body = {"metadata": {"resourceVersion": version}, "status": {"allocation": allocation}}
        return await patched(self._server, f"{_path(namespace, name)}/status", body, MERGE_PATCH)

    async def _get(self, path: str) -> Object | None:
        try:
            item = msgspec.json.decode(await self._server.get(path))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return item if isinstance(item, dict) else None


class DeviceTaintRuleWrites:
    """Makes and deletes DeviceTaintRules at one API server; raises nothing."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def fence(self, name: str, device: AllocatedDevice) -> Patched:
        """Keep kube-scheduler's allocator off a device; a rule with this name that is there already will do."""
        rule = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "gpu-extender"}},
            "spec": {"deviceSelector": device._asdict(), "taint": {"key": FENCE, "effect": "NoSchedule"}},
        }
        return await self._written("POST", _RULES, 409, msgspec.json.encode(rule))

    async def lift(self, name: str) -> Patched:
        """Delete a rule; one that does not exist will do."""
        return await self._written("DELETE", f"{_RULES}/{quote(name, safe='')}", 404)

    async def _written(self, method: str, path: str, done: int, body: bytes | None = None) -> Patched:
        """`done`: the status by which it is so already."""
        try:
            await self._server.request(method, path, body)
        except ApiError as error:
            if error.status == done:
                return Patched("written")
            return Patched("unknown" if error.status == 429 or error.status >= 500 else "refused", message=str(error))
        except NoAnswer as error:
            return Patched("unknown", message=str(error))
        return Patched("written")


def _path(namespace: str, name: str) -> str:
    return f"{_API}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"
