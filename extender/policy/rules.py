"""Rules: which nodes are rejected. One short class a rule; the first in the order of RULES that rejects a node counts.

A new rule: its class, its place in RULES, its reasons in `reasons.py`, a table test; docs/policy.md is printed again.
"""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import fit, hazard, places
from ext_core.reasons import CountCodes, FailingCodes, HazardCodes, LinkCodes, NicCodes, ResourceCodes
from extender.cluster.device_plugins import partial
from extender.cluster.dra.node_gpus import taken
from extender.cluster.tables import Tables
from extender.policy import reasons as why
from extender.policy.contracts import PodRequest, Rule


class ResourceOffered(Rule):
    """Rejects a node that is not known yet, or that offers no GPUs of the requested name."""

    name = "resource"
    reasons = (why.NO_GPU_RESOURCE, why.DEVICE_PLUGIN_AWAY)
    _codes: ClassVar = ResourceCodes(none=why.NO_GPU_RESOURCE.code, away=why.DEVICE_PLUGIN_AWAY.code)

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        fit.resource(tables.nodes, request.ask, rows, out, self._codes)


class Shares(Rule):
    """Rejects a node that offers shares of GPUs (replicas, MIG), for pods with `links: required`."""

    name = "shares"
    reasons = (why.LINKS_SHARED,)
    _unless_rejected: ClassVar = bytes([why.LINKS_SHARED.code, *range(1, 256)])  # by an earlier rule: its code stays

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require links, or has one GPU."""
        return request.links != "required" or request.wanted < 2

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        if self.idle(tables, request):
            return
        if partial(tables.resources[request.resource]):
            out[:] = array("B", out.tobytes().translate(self._unless_rejected))
        else:
            places.split(tables.places, rows, out, why.LINKS_SHARED.code)


class Failing(Rule):
    """Rejects a node where GPU pods failed `failingNodes.failures` times within the window, until the window is over or
    a GPU pod runs there for a minute. It counts for all pods where kubelet reports the failures or pods of independent
    parties failed, else for their namespace.

    A namespace's own failures say nothing to the pods of others (`node_health.py`).
    """

    name = "failing"
    reasons = (why.NODE_FAILING, why.NODE_FAILING_NAMESPACE)
    _codes: ClassVar = FailingCodes(node=why.NODE_FAILING.code, namespace=why.NODE_FAILING_NAMESPACE.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """While no node fails, for all pods or for those of the namespace."""
        return not tables.places.fails(request.namespace)

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        places.failing(tables.places, request.ask, rows, out, self._codes)


class Count(Rule):
    """Rejects a node with too few free GPUs: never enough, assumed, reserved, terminating, or held.

    Free: allocatable less what running, terminating, assumed and nominated pods hold. Of several numbers that claims
    (DRA) ask for kube-scheduler allocates the first that no pod holds: it does not know what is assumed and reserved.
    """

    name = "count"
    reasons = (
        why.TOO_FEW_GPUS, why.GPUS_PROMISED, why.GPUS_RESERVED, why.GPUS_RELEASING, why.GPUS_BUSY, why.GPUS_HELD,
    )  # fmt: skip
    _codes: ClassVar = CountCodes(
        few=why.TOO_FEW_GPUS.code, assumed=why.GPUS_PROMISED.code, reserved=why.GPUS_RESERVED.code,
        releasing=why.GPUS_RELEASING.code, busy=why.GPUS_BUSY.code, held=why.GPUS_HELD.code,
    )  # fmt: skip

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        fit.count(tables.nodes, tables.pods, request.ask, rows, out, self._codes)
        if request.numbers:
            claimed = tables.nodes.claimed_rows()
            at = [i for i, row in enumerate(rows) if row in claimed and not out[i]]
            few = array("i", [rows[i] for i in at])
            given = given_gpus(tables, few, array("B", bytes(len(few)))) if few else None
            for i, row in zip(at, few, strict=True):
                out[i] = self._beside(tables, request, row, given)

    def _beside(self, tables: Tables, request: PodRequest, row: int, given: array[int] | None) -> int:
        """The code of a node on which the pod would get GPUs that are assumed or reserved; 0: it would not."""
        r, nodes = request.resource, tables.nodes
        if not nodes.alloc_of(row)[r]:  # it is not known how many there are
            return 0
        missing = allocated_on(tables, request, row, given) - nodes.free_of(row)[r]
        if missing <= 0:
            return 0
        return why.GPUS_PROMISED.code if nodes.node(row).tentative[r] >= missing else why.GPUS_RESERVED.code


class Links(Rule):
    """Rejects a node that may allocate GPUs that are not linked, for pods with `links: required`.

    Linked: one ring over NVLink or xGMI through all GPUs of the pod, in whichever of its containers: they are one job.
    A device plugin is asked for one container after the other, so with several of them only a node where any set will
    do is certain; or one whose relay hands out what bind has planned for the pod (LinkShapes.planned).
    """

    name = "links"
    reasons = (
        why.LINKS_UNKNOWN,
        why.LINKS_NEVER,
        why.LINKS_PENDING,
        why.LINKS_BUSY,
        why.LINKS_HELD,
    )
    _codes: ClassVar = LinkCodes(
        unknown=why.LINKS_UNKNOWN.code, never=why.LINKS_NEVER.code, pending=why.LINKS_PENDING.code,
        busy=why.LINKS_BUSY.code, held=why.LINKS_HELD.code,
    )  # fmt: skip

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require links, or has one GPU."""
        return request.links != "required" or request.wanted < 2

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        given = given_gpus(tables, rows, out) if not self.idle(tables, request) else None
        fit.links(tables.nodes, tables.pods, request.ask, rows, out, self._codes)
        if given is not None:
            fit.given_links(tables.nodes, request.resource, rows, out, given, self._codes)


class Nics(Rule):
    """Rejects a node that may allocate GPUs without NICs of their own, for pods with `nics: required`.

    A NIC under the GPU's PCIe switch: for jobs over several nodes, whose traffic between the nodes then leaves each GPU
    by another NIC. A node that does not hand out what we plan is certain only where its device plugin can hand out no
    other set. No pod is evicted for NICs.
    """

    name = "nics"
    reasons = (why.NICS_UNKNOWN, why.NICS_NEVER, why.NICS_PENDING, why.NICS_HELD)
    _codes: ClassVar = NicCodes(
        unknown=why.NICS_UNKNOWN.code, never=why.NICS_NEVER.code, pending=why.NICS_PENDING.code, held=why.NICS_HELD.code
    )

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require NICs, or has no GPU."""
        return request.ask.nics != "required" or request.wanted < 1

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        given = given_gpus(tables, rows, out) if not self.idle(tables, request) else None
        fit.nics(tables.nodes, request.ask, rows, out, self._codes)
        if given is not None:
            fit.given_nics(tables.nodes, request.resource, rows, out, given, self._codes)


class Hazard(Rule):
    """Rejects a node whose device plugin would crash over the GPUs that are free there, or fails every pod since a GPU
    was lost (NVIDIA's plugin, 0.12.0 to 0.20.0).

    Where the version is not known to have the fault, or which GPUs are free is not seen, the scorer `hazard` puts the
    node below all others instead.
    """

    name = "hazard"
    reasons = (why.PLUGIN_PANICS, why.PLUGIN_LOST_GPU)
    _codes: ClassVar = HazardCodes(panics=why.PLUGIN_PANICS.code, lost=why.PLUGIN_LOST_GPU.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """While no device plugin is known to fail such a pod."""
        return not tables.hazards.rejects(request.ask)

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        hazard.reject(tables.nodes, tables.hazards, request.ask, rows, out, self._codes)


RULES: tuple[type[Rule], ...] = (ResourceOffered, Shares, Failing, Count, Links, Nics, Hazard)


def allocated_on(tables: Tables, request: PodRequest, row: int, given: array[int] | None) -> int:
    """How many GPUs kube-scheduler allocates to a pod with `numbers` on the row. `given`: as of `given_gpus`."""
    mask, r = 0 if given is None else given[row], request.resource
    if 0 < mask < fit.UNMET:
        return mask.bit_count()
    whole = tables.nodes.alloc_of(row)[r]
    return taken(request.numbers, whole - tables.nodes.used_of(row)[r], whole)


def given_gpus(tables: Tables, rows: array[int], codes: array[int]) -> array[int] | None:
    """By row the GPUs that the claims of the pod get, of the `rows` that no rule has rejected; None for nearly all
    pods."""
    source = tables.given.source
    return None if source is None else source(rows, codes)
