"""Binding a pod to a node, with the annotations that state which GPUs were planned for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, Unreachable
from extender.objects import records, tolerant
from extender.objects.records import PodRecord, RecordError

Outcome = Literal["bound", "conflict", "not-found", "refused", "unknown"]

_OUTCOMES: Final[dict[int, Outcome]] = {404: "not-found", 409: "conflict"}


class Result(NamedTuple):
    """What became of a binding.

    ``conflict``: the pod is bound already, is being deleted, or is another one with the same name. ``unknown``: no
    answer came, or one of 500 and above, after which the pod may or may not be bound; get_pod() shows it.
    """

    outcome: Outcome
    message: str = ""
    """The server's words; "" for bound."""


class Bindings:
    """The writes of one API server that bind pods."""

    def __init__(self, server: ApiServer, gpus: frozenset[str]) -> None:
        self._server = server
        self._gpus = gpus

    async def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> Result:
        """Binds the pod with this uid to the node; the API server copies the annotations onto the pod with it."""
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": dict(annotations)},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
        )
        try:
            await self._server.post(f"{_path(namespace, name)}/binding", body)
        except ApiError as error:
            otherwise: Outcome = "unknown" if error.status >= 500 else "refused"
            return Result(_OUTCOMES.get(error.status, otherwise), str(error))
        except Unreachable as error:
            return Result("unknown", str(error))
        return Result("bound")

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it now, None when there is none; one that is nested too deep is read as well.
        Raises ApiError, Unreachable, RecordError (of what is read in part only, too: bind must know all of it)."""
        try:
            raw = await self._server.get(_path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        try:
            return records.pod(raw, self._gpus)
        except RecordError as error:
            found = tolerant.read("Pod", raw, self._gpus, str(error)).record
            if not isinstance(found, PodRecord) or found.partial:
                raise
            return found


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
