"""One ConfigMap that is ours: read, and replaced only where nobody else has changed it since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, Unreachable

_LABELS: Final = {"app.kubernetes.io/name": "gpu-extender"}


class Kept(NamedTuple):
    """What is there. ``version``: its resourceVersion, "" where there is no such ConfigMap."""

    data: dict[str, str]
    version: str


class _Meta(msgspec.Struct):
    resourceVersion: str


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


class Conflict(Exception):
    """Somebody else wrote it, made it or deleted it since it was read."""


class ConfigMap:
    """Reads and writes the ConfigMap ``name``. Both raise ApiError and Unreachable."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self.name = name
        self._server = server
        self._where = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._path = f"{self._where}/{quote(name, safe='')}"
        self._meta = {"name": name, "namespace": namespace, "labels": _LABELS}

    async def read(self) -> Kept:
        """As it is now; empty where there is none."""
        try:
            return _kept(await self._server.get(self._path))
        except ApiError as error:
            if error.status == 404:
                return Kept({}, "")
            raise

    async def write(self, data: Mapping[str, str], version: str) -> Kept:
        """Replaces what was read with ``version``; Conflict where it is another one by now."""
        meta = {**self._meta, "resourceVersion": version} if version else self._meta
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(data)})
        try:
            if version:
                return _kept(await self._server.put(self._path, body))
            return _kept(await self._server.post(self._where, body))
        except ApiError as error:
            if error.status == 409 or (error.status == 404 and version):
                raise Conflict from error
            raise


def _kept(body: bytes) -> Kept:
    try:
        found = msgspec.json.decode(body, type=_ConfigMap)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreachable(f"no ConfigMap came: {error}") from error
    return Kept(found.data or {}, found.metadata.resourceVersion)
