"""Bind's write to the API server."""

from __future__ import annotations

from extender.kube.bindings import Bindings
from extender.kube.client import ApiError, Unreachable
from extender.log import get_log
from extender.objects.records import PodRecord, RecordError
from extender.verbs import wire
from extender.verbs.bind import Written

log = get_log()


class ApiBinder:
    """A Binder over one API server."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it; None where there is none, or where it cannot be read."""
        try:
            return await self._bindings.get_pod(namespace, name)
        except (ApiError, Unreachable, RecordError) as error:
            log.warning("the pod to bind cannot be read", pod=f"{namespace}/{name}", err=str(error))
            return None

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written:
        """The outcome; "bound" where the pod is bound there, now or before."""
        result = await self._bindings.bind(binding.namespace, binding.name, binding.uid, binding.node, annotations)
        if result.outcome == "bound":
            return Written("bound")
        if result.outcome in ("conflict", "unknown"):  # it may be our own binding, answered before or lost on the way
            pod = await self.pod(binding.namespace, binding.name)
            if pod is not None and pod.uid == binding.uid and pod.node == binding.node:
                return Written("bound")
        return Written("unknown" if result.outcome == "unknown" else "failed", f"{result.outcome}: {result.message}")
