"""What the controller of the queue writes through: the API server of a cluster, or a simulated one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from extender.kube.pod_writes import NO_ANNOTATIONS, Evicted, Patched
from extender.objects.records import PodRecord


class Leads(Protocol):
    """Whether this instance is the one that acts, as `Leadership`."""

    @property
    def held(self) -> bool:
        """Whether it may act now."""
        ...

    async def campaign(self, wanted: bool) -> None:
        """Claim it, or give it back."""
        ...

    async def resign(self) -> None:
        """Give it back at the end."""
        ...


class PodWrites(Protocol):
    """The writes on a pod, as `PodPatches`: each states the version of the pod that it changes."""

    async def nominate(
        self, namespace: str, name: str, version: str, node: str, annotations: Mapping[str, str | None]
    ) -> Patched:
        """Nominate the pod for a node, "" for none, and write annotations; None removes one."""
        ...

    async def condition(self, namespace: str, name: str, version: str, condition: Mapping[str, str]) -> Patched:
        """Write one condition of the pod; its others stay."""
        ...

    async def annotate(self, namespace: str, name: str, version: str, annotations: Mapping[str, str | None]) -> Patched:
        """Write annotations; None removes one."""
        ...

    async def pin(
        self, pod: PodRecord, version: str, node: str, gates: Sequence[str], annotations: Mapping[str, str | None]
    ) -> Patched:
        """As `open`, and let the pod run on this node alone."""
        ...

    async def open(
        self,
        namespace: str,
        name: str,
        version: str,
        gates: Sequence[str],
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
    ) -> Patched:
        """Leave the pod with these gates, and write annotations; None removes one."""
        ...


class Evicts(Protocol):
    """Evicts pods, as `PodEvictions`."""

    async def refusal(self, pods: Iterable[PodRecord]) -> tuple[PodRecord, str] | None:
        """The first of these pods whose eviction is not allowed in a dry run, and why."""
        ...

    async def evict(self, pod: PodRecord) -> Evicted:
        """Evict one pod."""
        ...


Reads = Callable[[str, str], Awaitable[PodRecord | None]]
"""The pod of a namespace and name as the API server has it; None: there is no such pod. It raises as
`Bindings.get_pod`."""
