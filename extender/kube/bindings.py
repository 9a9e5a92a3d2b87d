"""Binding a pod to a node, with the annotations that state which GPUs were planned for it, and in which order.

kubelet admits pods in the order in which the Bindings of its node reach the API server, and the device plugin chooses
GPUs for each from those that are free then. A pod that requires links was promised that whatever is free as its turn
comes is linked. Bind counted the pods that it decided before as if they took any GPUs, in any order. A pod that it
decides later must not overtake (`Turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.objects import records, tolerant
from extender.objects.records import PodRecord, RecordError

BindingOutcome = Literal["bound", "conflict", "not-found", "refused", "unknown"]

_OUTCOMES: Final[dict[int, BindingOutcome]] = {404: "not-found", 409: "conflict"}


class Result(NamedTuple):
    """What became of a binding.

    ``conflict``: the pod is bound already, is being deleted, or is another one with the same name. ``unknown``: no
    answer came, or one of 500 and above, after which the pod may or may not be bound; get_pod() shows it.
    """

    outcome: BindingOutcome
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
            otherwise: BindingOutcome = "unknown" if error.status >= 500 else "refused"
            return Result(_OUTCOMES.get(error.status, otherwise), str(error))
        except NoAnswer as error:
            return Result("unknown", str(error))
        return Result("bound")

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it now, None when there is none; one that is nested too deep is read as well.
        Raises ApiError, NoAnswer, RecordError (of what is read in part only, too: bind must know all of it)."""
        try:
            raw = await self._server.get(_path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        try:
            return records.pod(raw, self._gpus)
        except RecordError as error:
            pod = tolerant.read("Pod", raw, self._gpus, str(error)).record
            if not isinstance(pod, PodRecord) or pod.partial:
                raise
            return pod


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


LONGEST: Final = 1.0  # seconds that a Binding waits for another: kube-scheduler waits 2 s for the answer


class Turns:
    """The Bindings that are being written, and that no later one of their node may overtake."""

    def __init__(self) -> None:
        self._open: dict[str, list[asyncio.Event]] = {}  # by node, in the order in which they were asked for

    @asynccontextmanager
    async def of(self, node: str, *, first: bool) -> AsyncIterator[None]:
        """The block in which a Binding to the node is written. `first`: no block that is entered later begins before
        this one has ended. Raises TimeoutError where one before has not ended after LONGEST."""
        before = tuple(self._open.get(node, ()))
        mine = asyncio.Event() if first else None
        if mine is not None:
            self._open.setdefault(node, []).append(mine)
        try:
            if before:
                async with asyncio.timeout(LONGEST):
                    for turn in before:
                        await turn.wait()
            yield
        finally:
            if mine is not None:
                self._close(node, mine)

    def _close(self, node: str, turn: asyncio.Event) -> None:
        turn.set()
        others = [other for other in self._open[node] if other is not turn]
        if others:
            self._open[node] = others
        else:
            del self._open[node]
