"""One ConfigMap that is ours: read, and written only where no other writer has changed it since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from extender.kube.client import MERGE_PATCH, ApiError, ApiServer, NoAnswer

_LABELS: Final = {"app.kubernetes.io/name": "gpu-extender"}
T = TypeVar("T")


class StoredTexts(NamedTuple):
    """What is there."""

    data: dict[str, str]
    version: str  # its resourceVersion, "" where there is no such ConfigMap


class _Meta(msgspec.Struct):
    resourceVersion: str


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


class _Written(msgspec.Struct):
    metadata: _Meta


class VersionConflict(Exception):
    """Another writer wrote, made or deleted it since it was read."""


class TextMap(Protocol):
    """Texts by key that are stored: a `ConfigMap`, or one of the simulation."""

    async def read(self) -> StoredTexts:
        """As it is now; empty where there is none."""
        ...

    async def change(self, changes: Mapping[str, str | None], version: str) -> str:
        """Write keys, None removes one; returns the new version. VersionConflict: `version` is not the stored one."""
        ...

    async def put(self, changes: Mapping[str, str | None]) -> StoredTexts:
        """Write keys that no other instance writes, whatever the version is; None removes one. What is there then."""
        ...


class ConfigMap:
    """Reads and writes the ConfigMap ``name``. All raise ApiError and NoAnswer."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self.name = name
        self._server = server
        self._where = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._path = f"{self._where}/{quote(name, safe='')}"
        self._meta = {"name": name, "namespace": namespace, "labels": _LABELS}

    async def read(self) -> StoredTexts:
        """As it is now; empty where there is none."""
        try:
            configmap = _decoded(await self._server.get(self._path), _READ)
        except ApiError as error:
            if error.status == 404:
                return StoredTexts({}, "")
            raise
        return StoredTexts(configmap.data or {}, configmap.metadata.resourceVersion)

    async def change(self, changes: Mapping[str, str | None], version: str) -> str:
        """Writes these keys alone, None removes one; VersionConflict where it is no more what was read with ``version``
        ("": it did not exist). The new version.

        The API server compares the version in a patch, so no update is lost."""
        if not version:
            data = {key: text for key, text in changes.items() if text is not None}
            body: dict[str, object] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._meta, "data": data}
        else:
            # An empty entry keeps the API server from tracking the writer of each key, which takes it some time.
            body = {"metadata": {"resourceVersion": version, "managedFields": [{}]}, "data": changes}
        text = msgspec.json.encode(body)
        try:
            if version:
                answer = await self._server.change("PATCH", self._path, text, MERGE_PATCH)
            else:
                answer = await self._server.change("POST", self._where, text)
        except ApiError as error:
            if error.status == 409 or (error.status == 404 and version):
                raise VersionConflict from error
            raise
        return _decoded(answer, _WRITTEN).metadata.resourceVersion

    async def put(self, changes: Mapping[str, str | None]) -> StoredTexts:
        """Writes keys that no other writer writes, whatever the version is; None removes one. What is there then."""
        body = msgspec.json.encode({"metadata": {"managedFields": [{}]}, "data": changes})
        try:
            configmap = _decoded(await self._server.patch(self._path, body), _READ)
            return StoredTexts(configmap.data or {}, configmap.metadata.resourceVersion)
        except ApiError as error:
            if error.status != 404:
                raise
        try:
            await self.change(changes, "")
        except VersionConflict:  # another writer made it meanwhile
            return await self.put(changes)
        return await self.read()


_READ: Final = msgspec.json.Decoder(_ConfigMap)
_WRITTEN: Final = msgspec.json.Decoder(_Written)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoAnswer(f"no ConfigMap came: {error}") from error
