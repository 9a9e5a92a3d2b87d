"""Claims whose devices the queue allocates (`queue.plannedAllocation`).

Between the allocation and the start of its pod such a claim is what the seat of the pod states already: the pod still
asks for its GPUs, and its node still offers them. So each GPU counts once, and the pod may change its seat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.dra.claims import Key, ResourceClaims, beyond
from extender.cluster.dra.resource_slices import Slices, device_of, identity
from extender.objects.queueing import GATE
from extender.objects.records import AllocatedDevice, DeviceTaintRuleRecord, PodRecord, ResourceClaimRecord

SHARED: Final = "other pods use its claim too"
NOT_GATED: Final = "it does not wait behind the gate of the queue"
MIXED: Final = "it asks for GPUs without a claim too"
OTHER_NUMBER: Final = "its claims ask for another number of GPUs than its seat has"


class ClaimDevices(NamedTuple):
    """The devices that are planned for a claim, in the order of its requests."""

    claim: ResourceClaimRecord
    devices: tuple[AllocatedDevice, ...]

    @property
    def key(self) -> Key:
        """Of the claim."""
        return self.claim.namespace, self.claim.name

    @property
    def allocated(self) -> bool:
        """Whether these devices are what the claim was allocated."""
        return self.claim.allocated is not None and sorted(self.claim.allocated) == sorted(self.devices)


class PlannedClaims:
    """What is known of them. `on`: whether the queue allocates at all."""

    def __init__(self, slices: Slices, claims: ResourceClaims, classes: Collection[str], *, on: bool) -> None:
        """`classes`: the DeviceClasses that select every whole GPU of their driver, kept up to date by the caller."""
        self._slices, self._claims, self._classes, self.on = slices, claims, classes, on

    def node_of(self, claim: ResourceClaimRecord) -> str:
        """The node on which the devices of an allocated claim wait for its one pod, "" where they do not. They need not
        exist any more: a pod whose node is lost asks for its GPUs again. For a pod that states its node by annotation
        alone only marked claims wait: a tenant may write that annotation on a pod that never starts."""
        if not self.on or not claim.allocated:
            return ""
        uid = self._claims.first_user(claim)
        if not uid or not self._claims.is_of(claim, uid) or (uid in self._claims.pinned and not claim.planned_node):
            return ""
        node = self._claims.awaited.get(uid, "")
        where = {self._slices.node_of.get(identity(device), node) for device in claim.allocated}
        return node if where == {node} else ""

    def waits(self, gpu: str, node: str) -> bool:
        """Whether a device of the node (GpuDevice.id) is allocated to claims alone whose pods wait for the node."""
        if not self.on:
            return False
        return all(self.node_of(self._claims.records[key]) == node for key in self._claims.holders[gpu])

    def touched(self, uid: str) -> tuple[set[str], set[str]]:
        """The uids of the pods, and the nodes, for which it matters whether a pod without a node names its claims."""
        nodes: set[str] = set()
        uids: set[str] = set()
        for claim in self._claims.named(uid):
            if self._claims.many(claim) > 2:  # it is shared with and without the pod
                continue
            uids.update(claim.reserved)
            if self.on:
                nodes |= self._slices.where(claim.allocated or ())
                uids.update(self._claims.users("claim", claim))
        return uids, nodes

    def selected(self, rule: DeviceTaintRuleRecord) -> tuple[Collection[str], set[str]]:
        """The uids of the pods, and the nodes, for which it matters whether there is a rule."""
        nodes, gpu = self._slices.selected(rule.driver, rule.pool), (rule.driver, rule.pool, rule.device)
        if not all(gpu):
            return self._claims.holding(), nodes
        holders = self._claims.holders.get(identity(AllocatedDevice(*gpu)), ())
        return {uid for key in holders for uid in self._claims.records[key].reserved}, nodes

    def published_on(self, gpu: str) -> str:
        """The node of a whole GPU (GpuDevice.id), "" where none is published by that name."""
        return self._slices.node_of.get(gpu, "")

    def judged(self, pod: PodRecord) -> PodRecord:
        """A pod without a node, with who allocates the devices of its claims. The queue allocates those of pods behind
        our gate, and has allocated those of pods that it released."""
        if not self.on or not pod.claimed:
            return pod
        if GATE in pod.gates:
            why = self.why_not(pod)
        else:  # what the queue has allocated stays so, whatever becomes of the DeviceClass
            why = "" if self._is_released(pod) else self.why_not(pod) or NOT_GATED
        return replace(pod, planned=not why, left_devices=why)

    def _is_released(self, pod: PodRecord) -> bool:
        """Whether the queue has allocated all claims of the pod, and they wait for it on its node. kube-scheduler, too,
        allocates the claims of a pod that has no node yet, and nominates it meanwhile."""
        return pod.gpus == pod.claimed and all(
            claim is not None and bool(claim.planned_node) and claim.planned_node == self.node_of(claim)
            for claim, _ in self._claims.of(pod)
        )

    def why_not(self, pod: PodRecord) -> str:
        """Why kube-scheduler allocates the devices of a pod with claims, "" where the queue can."""
        if pod.gpus != pod.claimed:
            return MIXED
        for claim, requests in self._claims.of(pod):
            if more := beyond(requests, self._classes):
                return more
            if claim is not None and not self._claims.is_of(claim, pod.uid):
                return SHARED
        return ""

    def missing(self, pod: PodRecord) -> str:
        """The first claim of a pod that does not exist, or the template that it lacks, "" for none: devices are
        allocated to claims alone, and what a claim without a template asks for is not known. Where the queue can
        allocate no devices, it does not look: kube-scheduler waits for the claim."""
        if not (self.on and self._classes):
            return ""
        for ref in pod.claim_refs:
            if ref.claim and (pod.namespace, ref.claim) not in self._claims.records:
                return f"ResourceClaim {pod.namespace}/{ref.claim}"
            if not ref.claim and ref.template:
                known = (pod.namespace, ref.template) in self._claims.templates
                template = f"ResourceClaimTemplate {pod.namespace}/{ref.template}"
                return f"a ResourceClaim of {template}" if known else template
        return ""

    def plan(self, pod: PodRecord, gpus: Sequence[str]) -> tuple[ClaimDevices, ...] | str | None:
        """Which of these devices (GpuDevice.id) each claim of a pod gets; why kube-scheduler allocates them instead;
        None: a claim is not created yet."""
        if why := self.why_not(pod):
            return why
        assigned: list[ClaimDevices] = []
        unassigned = list(gpus)
        for claim, requests in self._claims.of(pod):
            if claim is None:
                return None
            count = sum(choices[0].number for choices in requests)
            assigned.append(ClaimDevices(claim, tuple(map(device_of, unassigned[:count]))))
            del unassigned[:count]
        if len(assigned) < len(set(pod.claim_refs)):
            return None
        complete = not unassigned and all(assignment.devices for assignment in assigned)
        return tuple(assigned) if complete and assigned else OTHER_NUMBER

    def is_allocated_to(self, uid: str) -> bool:
        """Whether a claim that is reserved for the pod is allocated: also of one that has ended, until the claim
        controller has seen that."""
        return any(claim.allocated is not None for claim in self._claims.reserved(uid))

    def others(self, device: AllocatedDevice, claim: Key) -> list[Key]:
        """The other claims to which a device is allocated."""
        return [key for key in self._claims.holders.get(identity(device), ()) if key != claim]

    def named(self, uid: str) -> list[ResourceClaimRecord]:
        """The claims that exist of those that a pod without a node names."""
        return self._claims.named(uid)

    def waiting_for(self, uid: str) -> list[ResourceClaimRecord]:
        """Those of them whose devices wait for the pod on its node."""
        return [claim for claim in self.named(uid) if self.node_of(claim)]

    def unused(self, known: Iterable[Key] = ()) -> list[ResourceClaimRecord]:
        """The claims that the queue allocated, and that are reserved for no pod. `known`: claims that it allocated, be
        they marked or not: the owner of a claim may take the annotation away."""
        claims = (self._claims.records.get(key) for key in dict.fromkeys((*self._claims.marked, *known)))
        return [claim for claim in claims if claim is not None and claim.allocated is not None and not claim.reserved]

    def unallocated(self) -> list[ResourceClaimRecord]:
        """The claims that are not allocated."""
        return [self._claims.records[key] for key in self._claims.unallocated]

    @property
    def most(self) -> int | None:
        """As of Slices."""
        return self._slices.most

    def seekers(self) -> dict[str, None]:
        """The uids of the pods without a node to which kube-scheduler may allocate a claim: no claim of theirs is
        terminating, or asks for more devices than any node has."""
        most = self._slices.most
        uids = dict.fromkeys(uid for claim in self.unallocated() if any(claim.requests) for uid in self.users(claim))
        return {uid: None for uid in uids if not any(self._is_vain(claim, most) for claim in self.named(uid))}

    def _is_vain(self, claim: ResourceClaimRecord, most: int | None) -> bool:
        """Whether a claim gets no devices, whatever becomes free. `most`: as of Slices."""
        if claim.allocated is not None:
            return False
        ours = [
            choices
            for choices in claim.requests
            if choices and all(choice.device_class in self._classes for choice in choices)
        ]
        least = sum(min(choice.number for choice in choices) for choices in ours)
        return claim.terminating or (most is not None and least > most)

    def users(self, claim: ResourceClaimRecord) -> list[str]:
        """The uids of the pods without a node that name the claim."""
        return self._claims.users("claim", claim)

    def user(self, claim: ResourceClaimRecord) -> str:
        """The uid of a pod without a node that names the claim, "" for none."""
        return self._claims.first_user(claim)
