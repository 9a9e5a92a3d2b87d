"""The node offers the GPU resource at all."""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import fit
from ext_core.reasons import ResourceCodes
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason

NONE = Reason(
    code=2,
    key="no-gpu-resource",
    cls=Class.HOPELESS,
    text="gpu-extender: the node offers no GPUs of the requested resource name",
    remedy="Ask for the resource name that the node's device plugin registers, or add GPU nodes.",
)
AWAY = Reason(
    code=3,
    key="device-plugin-away",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node's device plugin offers no GPUs for the moment",
    remedy="Look at the device plugin's pod on the node; a restart takes seconds.",
)


class Resource:
    """Rejects a node that is not known yet, or that offers no GPUs of the requested name."""

    name: ClassVar[str] = "resource"
    reasons: ClassVar[tuple[Reason, ...]] = (NONE, AWAY)
    _codes: ClassVar = ResourceCodes(none=NONE.code, away=AWAY.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """Never: any row may offer no such GPUs."""
        return False

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        fit.resource(tables.nodes, request.ask, rows, out, self._codes)
