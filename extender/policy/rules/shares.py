"""`links: required` asks for whole GPUs: shares of GPUs (replicas, MIG instances) have no links."""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import places
from extender.cluster.gpus.device_sharing import partial
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason

SHARED = Reason(
    code=25,
    key="links-shared",
    cls=Class.HOPELESS,
    text="gpu-extender: the node hands out shares of GPUs for the requested resource, and shares have no links",
    remedy="Ask for whole GPUs, or leave links: required away: several shares may even be on one GPU.",
)
ALL = bytes([SHARED.code, *range(1, 256)])  # refuses what is not refused yet


class Shares:
    """Rejects a node that offers shares of GPUs (replicas, MIG), for pods with `links: required`."""

    name: ClassVar[str] = "shares"
    reasons: ClassVar[tuple[Reason, ...]] = (SHARED,)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require links, or has one GPU."""
        return request.links != "required" or request.wanted < 2

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        if self.idle(tables, request):
            return
        if partial(tables.resources[request.resource]):
            out[:] = array("B", out.tobytes().translate(ALL))
        else:
            places.split(tables.places, rows, out, SHARED.code)
