"""`nics: required`: each GPU that the node hands out for the pod has a NIC of its own under the GPU's PCIe switch.

For jobs over several nodes, whose traffic between the nodes then leaves each GPU by another NIC. A node that does not
hand out what we plan is certain only where its device plugin can hand out no other set. No pod is evicted for NICs.
"""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import fit
from ext_core.reasons import NicCodes
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason
from extender.policy.rules.links import given_gpus

UNKNOWN = Reason(
    code=30,
    key="nics-unknown",
    cls=Class.HOPELESS,
    text="gpu-extender: it is not known which NICs are near the node's GPUs, and the pod requires NICs",
    remedy="Run the agent on the node, or annotate it with gpu-extender.io/topology-nics; or use nics: preferred.",
)
NEVER = Reason(
    code=31,
    key="nics-never",
    cls=Class.HOPELESS,
    text="gpu-extender: the node cannot be relied upon to hand out that many GPUs with a NIC each, even empty",
    remedy="Ask for as many GPUs as NICs are under PCIe switches of their own, let the relay hand out planned GPUs, or "
    "use nics: preferred.",
)
PENDING = Reason(
    code=32,
    key="nics-pending",
    cls=Class.TRANSIENT,
    text="gpu-extender: which GPUs with NICs are free is not known until a pod on the node has started",
    remedy="Nothing: the pod is tried again within seconds.",
)
HELD = Reason(
    code=33,
    key="nics-held",
    cls=Class.HOPELESS,
    text="gpu-extender: the free GPUs do not have a NIC each, pods hold the others",
    remedy="Wait for running pods to end: none is evicted for NICs. Or use nics: preferred.",
)


class Nics:
    """Rejects a node that may allocate GPUs without NICs of their own, for pods with `nics: required`."""

    name: ClassVar[str] = "nics"
    reasons: ClassVar[tuple[Reason, ...]] = (UNKNOWN, NEVER, PENDING, HELD)
    _codes: ClassVar = NicCodes(unknown=UNKNOWN.code, never=NEVER.code, pending=PENDING.code, held=HELD.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require NICs, or has no GPU."""
        return request.ask.nics != "required" or request.wanted < 1

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        given = given_gpus(tables, rows, out) if not self.idle(tables, request) else None
        fit.nics(tables.nodes, request.ask, rows, out, self._codes)
        if given is not None:
            fit.given_nics(tables.nodes, request.resource, rows, out, given, self._codes)
