"""ResourceClaims: what is allocated to which pods, and what pods without a node ask for."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.dra.resource_slices import Slices, device_of, identity
from extender.cluster.numbered import take_out
from extender.objects.devices import (
    MOST_COUNT,
    AllocatedDevice,
    ClaimSpec,
    DeviceChoice,
    DeviceRequest,
    DeviceTaintRuleRecord,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
    Share,
)
from extender.objects.pods import PodClaimRef
from extender.objects.queueing import GATE, PINNED
from extender.objects.records import PodRecord
from extender.objects.resources import nano

Key = tuple[str, str]
"""Namespace and name."""
_NOTHING: Final[Mapping[Key, None]] = {}
EXTENDED: Final = "of its extended resources"
"""Instead of the name of a claim."""
ALL: Final = 0
"""Instead of a number of GPUs: all that the node has."""
MOST_OF_NODE: Final = 64
"""GPUs of a node. Numbers beyond that are looked at only where a claim can take no other."""


class ResourceClaims:
    """The claims and templates of the cluster. `records`: by namespace and name; `holders`: GpuDevice.id of an
    allocated device -> the claims that it is allocated to; `templates`: by namespace and name; `marked`: the claims
    with PLANNED_NODE that are allocated and reserved for no pod; `unallocated`: those that are not allocated;
    `awaited`: uid of a pod without a node that names claims -> the node that it is nominated or pinned to; `pinned`:
    uids of those of them that are not nominated."""

    def __init__(self) -> None:
        self.records: dict[Key, ResourceClaimRecord] = {}
        self.holders: dict[str, dict[Key, None]] = {}
        self.templates: dict[Key, ResourceClaimTemplateRecord] = {}
        self.marked: dict[Key, None] = {}
        self.unallocated: dict[Key, None] = {}
        self._shares: dict[str, dict[Key, tuple[Share, ...]]] = {}  # by GpuDevice.id of a device that claims share
        self.awaited: dict[str, str] = {}
        self.pinned: set[str] = set()
        self._reserved: dict[str, dict[Key, None]] = {}  # by uid of a pod
        self._users: dict[tuple[str, Key], dict[str, None]] = {}  # of a claim or template: uids of pods without a node
        self._uses: dict[str, set[tuple[str, Key]]] = {}  # by uid

    def set(self, record: ResourceClaimRecord, change: str) -> Iterator[ResourceClaimRecord]:
        """A claim is "set", or there is a "delete". The versions before and after it."""
        key = (record.namespace, record.name)
        before = self.records.pop(key, None)
        if before is not None:
            for uid in before.reserved:
                take_out(self._reserved, uid, key)
            for device in before.allocated or ():
                take_out(self.holders, identity(device), key)
            for share in before.shares:
                take_out(self._shares, identity(share.device), key)
            self.marked.pop(key, None)
            self.unallocated.pop(key, None)
            yield before
        if change == "set":
            self.records[key] = record
            for uid in record.reserved:
                self._reserved.setdefault(uid, {})[key] = None
            for device in record.allocated or ():
                self.holders.setdefault(identity(device), {})[key] = None
            for share in record.shares:
                of = self._shares.setdefault(identity(share.device), {})
                of[key] = (*of.get(key, ()), share)
            if record.allocated is None:
                self.unallocated[key] = None
            elif record.planned_node and not record.reserved:
                self.marked[key] = None
            yield record

    def set_template(self, record: ResourceClaimTemplateRecord, change: str) -> None:
        """A template is "set", or there is a "delete"."""
        key = (record.namespace, record.name)
        self.templates.pop(key, None)
        if change == "set":
            self.templates[key] = record

    def note(self, pod: PodRecord) -> None:
        """Remember which claims a pod asks for while it has no node."""
        self.forget(pod.uid)
        if pod.node or not (pod.claim_refs or pod.class_requests or pod.extended_claim):
            return
        claims = [ref.claim for ref in pod.claim_refs] + [pod.extended_claim]
        uses = {("claim", (pod.namespace, name)) for name in claims if name}
        uses |= {("template", (pod.namespace, ref.template)) for ref in pod.claim_refs if ref.template}
        self._uses[pod.uid] = uses
        if node := pod.nominated_node or pod.annotations.get(PINNED, ""):
            self.awaited[pod.uid] = node
            if not pod.nominated_node:
                self.pinned.add(pod.uid)
        for use in uses:
            self._users.setdefault(use, {})[pod.uid] = None

    def forget(self, uid: str) -> None:
        """The pod has a node, or does not exist any more."""
        self.awaited.pop(uid, None)
        self.pinned.discard(uid)
        for use in self._uses.pop(uid, ()):
            take_out(self._users, use, uid)

    def users(self, kind: str, record: ResourceClaimRecord | ResourceClaimTemplateRecord) -> list[str]:
        """Uids of the pods without a node that name a "claim" or a "template"."""
        return list(self._users.get((kind, (record.namespace, record.name)), ()))

    def first_user(self, claim: ResourceClaimRecord) -> str:
        """Uid of the first pod without a node that names the claim, "" for none."""
        return next(iter(self._users.get(("claim", (claim.namespace, claim.name)), ())), "")

    def many(self, claim: ResourceClaimRecord) -> int:
        """How many pods without a node name the claim: there may be thousands."""
        return len(self._users.get(("claim", (claim.namespace, claim.name)), ()))

    def is_of(self, claim: ResourceClaimRecord, uid: str) -> bool:
        """Whether no other pod than this one names the claim while it has no node, and it is reserved for no other."""
        named = self.many(claim)
        named_by_others = named > 1 or (named == 1 and self.first_user(claim) != uid)
        return not named_by_others and all(user == uid for user in claim.reserved)

    def named(self, uid: str) -> list[ResourceClaimRecord]:
        """The claims that exist of those that a pod without a node names."""
        keys = (key for kind, key in self._uses.get(uid, ()) if kind == "claim")
        return [self.records[key] for key in sorted(keys) if key in self.records]

    def waiting(self) -> list[str]:
        """Uids of all pods without a node that name any."""
        return list(self._uses)

    def reserved(self, uid: str) -> list[ResourceClaimRecord]:
        """The claims that are reserved for a pod, by name."""
        return [self.records[key] for key in sorted(self._reserved.get(uid, _NOTHING))]

    def returned_by(self, claim: ResourceClaimRecord, pod: PodRecord) -> bool:
        """Whether the devices of a claim are free for others once a pod on a node has ended: no other pod uses the
        claim or waits for it, none that the owner of the pod creates instead will, and the claim is deallocated."""
        key = (claim.namespace, claim.name)
        alone = claim.reserved == (pod.uid,) and ("claim", key) not in self._users
        own = claim.pod == pod.uid or (not claim.pod and pod.owner is None)
        once = all(len(self.holders[identity(device)]) == 1 for device in claim.allocated or ())
        return claim.returns and alone and own and once

    def alone(self, device: str) -> bool:
        """As of `allocator.Taken`."""
        holders = self.holders.get(device)
        return holders is not None and len(holders) > len(self._shares.get(device, ()))

    def parts(self, device: str) -> Mapping[str, int] | None:
        """As of `allocator.Taken`."""
        claims = self._shares.get(device)
        if claims is None:
            return None
        total: dict[str, int] = {}
        for share in (share for shares in claims.values() for share in shares):
            for name, amount in share.amounts:
                total[name] = total.get(name, 0) + nano(amount)
        return total

    def beside(self, claim: ResourceClaimRecord) -> Iterator[ResourceClaimRecord]:
        """The claims to which a device of this one is allocated too."""
        for device in claim.allocated or ():
            for key in self.holders.get(identity(device), ()):
                yield self.records[key]

    def knows(self, uid: str) -> bool:
        """Whether any claim is reserved for the pod, or was named by it while it had no node."""
        return uid in self._reserved or uid in self._uses

    def holding(self) -> list[str]:
        """Uids of all pods that claims are reserved for."""
        return list(self._reserved)

    def of(self, pod: PodRecord) -> Iterator[tuple[ResourceClaimRecord | None, ClaimSpec]]:
        """For each claim that the pod names, once: the claim if it exists, and what it asks for; what its template
        states where it is not created yet."""
        for claim, _, spec in self.named_by(pod):
            yield claim, spec

    def named_by(self, pod: PodRecord) -> Iterator[tuple[ResourceClaimRecord | None, str, ClaimSpec]]:
        """As `of`, with the name of the claim or of its template."""
        seen: set[str] = set()
        for ref, named in self.references(pod):
            if not (ref.claim and ref.claim in seen):
                seen.add(ref.claim)
                yield named
        if pod.class_requests:
            claim = self.records.get((pod.namespace, pod.extended_claim)) if pod.extended_claim else None
            yield claim, EXTENDED, extended(pod.class_requests)

    def references(
        self, pod: PodRecord
    ) -> Iterator[tuple[PodClaimRef, tuple[ResourceClaimRecord | None, str, ClaimSpec]]]:
        """Each reference of the pod with what `named_by` states of its claim; none whose claim or template does not
        exist."""
        for ref in pod.claim_refs:
            claim = self.records.get((pod.namespace, ref.claim)) if ref.claim else None
            template = self.templates.get((pod.namespace, ref.template)) if not ref.claim else None
            stated = claim or template
            if stated is not None:
                yield ref, (claim, ref.claim or ref.template, stated.spec)


def extended(classes: tuple[tuple[str, int], ...]) -> ClaimSpec:
    """The claim that kube-scheduler makes for the extended resources of DeviceClasses."""
    requests = [
        DeviceRequest(name, (DeviceChoice(name, min(count, MOST_COUNT)),)) for name, count in classes if count > 0
    ]
    return ClaimSpec(tuple(requests))


def is_plain(spec: ClaimSpec, classes: Container[str]) -> bool:
    """Whether there is a request, any devices of these classes will do for each, and how many is stated."""
    return not beyond(spec, classes)


def beyond(spec: ClaimSpec, classes: Container[str]) -> str:
    """What a claim asks for beyond a number of any devices of these classes, "" for nothing."""
    if not spec.requests:
        return "its claim asks for no devices"
    if spec.constraints:
        return "the constraints of its claim cannot be evaluated"
    return next((why for request in spec.requests if (why := _beyond(request.choices, classes))), "")


def _beyond(choices: tuple[DeviceChoice, ...], classes: Container[str]) -> str:
    if len(choices) != 1:
        return "its claim names alternatives (firstAvailable)"
    [choice] = choices
    if choice.admin:
        return "its claim asks for admin access"
    asked = {
        "selectors": choice.selectors,
        "tolerations": choice.tolerations,
        "capacity": choice.capacity,
        "derived attributes": choice.derived,
    }
    if name := next((name for name, is_stated in asked.items() if is_stated), ""):
        return f"the {name} of its claim cannot be evaluated"
    if not choice.number:
        return "its claim asks for all devices of a node (allocationMode: All)"
    if choice.device_class not in classes:
        return f"DeviceClass {choice.device_class} is not known to select every whole GPU of its driver"
    return ""


def numbers(
    requests: Iterable[DeviceRequest], drivers: Mapping[str, str], classes: Container[str]
) -> dict[str, tuple[int, ...]]:
    """Driver -> how many of its whole GPUs the requests may take together of a node, the number that the in-tree
    allocator tries first before the others; ALL: whatever the node has. `drivers`: by DeviceClass, "" where its devices
    need not be whole GPUs; `classes`: those that select every whole GPU of their driver.

    All devices of a class that selects some GPUs alone are at most all GPUs of the node: they count as that.
    """
    by_driver: dict[str, tuple[int, ...]] = {}
    for request in requests:
        choices = tuple([choice for choice in request.choices if not choice.admin])
        of = {drivers.get(choice.device_class, "") for choice in choices}
        if len(of) == 1 and (driver := of.pop()):
            by_driver[driver] = _sums(by_driver.get(driver), _tried(choices, classes))
    return by_driver


def _tried(choices: tuple[DeviceChoice, ...], classes: Container[str]) -> list[int]:
    """The numbers of a request. What comes after a number that any GPUs will do for, and is not below it, is never
    taken."""
    tried: list[int] = []
    bound = MOST_COUNT + 1
    for choice in choices:
        if not choice.number or choice.number < bound:
            tried.append(choice.number)
        asks_more = choice.selectors or choice.tolerations or choice.capacity or choice.derived
        if choice.number and not asks_more and choice.device_class in classes:
            bound = min(bound, choice.number)
    return tried


def _sums(before: tuple[int, ...] | None, more: Sequence[int]) -> tuple[int, ...]:
    """The numbers of requests, with those of one more. Where one takes ALL, the others find none."""
    sums = (
        more
        if before is None
        else [ALL if ALL in (first, second) else first + second for first in before for second in more]
    )
    least = min((number for number in sums if number), default=ALL)
    return tuple(dict.fromkeys([number for number in sums if number <= max(least, MOST_OF_NODE)]))


def _takes(request: DeviceRequest) -> bool:
    """Whether its devices are taken from others."""
    return any(not choice.admin for choice in request.choices)


# -- claims whose devices the queue allocates --------------------------------------------------------------------------
#
# Claims whose devices the queue allocates (`queue.plannedAllocation`).
#
# Between the allocation and the start of its pod such a claim is what the seat of the pod states already: the pod still
# asks for its GPUs, and its node still offers them. So each GPU counts once, and the pod may change its seat.

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


class PlannedClaims(ResourceClaims):
    """All claims, and what the queue does with them. `on`: whether it allocates at all."""

    def __init__(self, slices: Slices, classes: Collection[str], *, on: bool) -> None:
        """`classes`: the DeviceClasses that select every whole GPU of their driver, kept up to date by the caller."""
        super().__init__()
        self._slices, self._classes, self.on = slices, classes, on

    def node_of(self, claim: ResourceClaimRecord) -> str:
        """The node on which the devices of an allocated claim wait for its one pod, "" where they do not. They need not
        exist any more: a pod whose node is lost asks for its GPUs again. For a pod that states its node by annotation
        alone only marked claims wait: a tenant may write that annotation on a pod that never starts."""
        if not self.on or not claim.allocated:
            return ""
        uid = self.first_user(claim)
        if not uid or not self.is_of(claim, uid) or (uid in self.pinned and not claim.planned_node):
            return ""
        node = self.awaited.get(uid, "")
        where = {self._slices.node_of.get(identity(device), node) for device in claim.allocated}
        return node if where == {node} else ""

    def waits(self, gpu: str, node: str) -> bool:
        """Whether a device of the node (GpuDevice.id) is allocated to claims alone whose pods wait for the node."""
        if not self.on:
            return False
        return all(self.node_of(self.records[key]) == node for key in self.holders[gpu])

    def touched(self, uid: str) -> tuple[set[str], set[str]]:
        """The uids of the pods, and the nodes, for which it matters whether a pod without a node names its claims."""
        nodes: set[str] = set()
        uids: set[str] = set()
        for claim in self.named(uid):
            if self.many(claim) > 2:  # it is shared with and without the pod
                continue
            uids.update(claim.reserved)
            if self.on:
                nodes |= self._slices.where(claim.allocated or ())
                uids.update(self.users("claim", claim))
        return uids, nodes

    def selected(self, rule: DeviceTaintRuleRecord) -> tuple[Collection[str], set[str]]:
        """The uids of the pods, and the nodes, for which it matters whether there is a rule."""
        nodes, gpu = self._slices.selected(rule.driver, rule.pool), (rule.driver, rule.pool, rule.device)
        if not all(gpu):
            return self.holding(), nodes
        holders = self.holders.get(identity(AllocatedDevice(*gpu)), ())
        return {uid for key in holders for uid in self.records[key].reserved}, nodes

    def judged(self, pod: PodRecord) -> PodRecord:
        """A pod without a node, with what allocates the devices of its claims. The queue allocates those of pods behind
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
            for claim, _ in self.of(pod)
        )

    def why_not(self, pod: PodRecord) -> str:
        """Why kube-scheduler allocates the devices of a pod with claims, "" where the queue can."""
        if pod.gpus != pod.claimed:
            return MIXED
        for claim, spec in self.of(pod):
            if more := beyond(spec, self._classes):
                return more
            if claim is not None and not self.is_of(claim, pod.uid):
                return SHARED
        return ""

    def missing(self, pod: PodRecord) -> str:
        """The first claim of a pod that does not exist, or the template that it lacks, "" for none: devices are
        allocated to claims alone, and what a claim without a template asks for is not known. Where the queue can
        allocate no devices, it does not look: kube-scheduler waits for the claim."""
        if not (self.on and self._classes):
            return ""
        for ref in pod.claim_refs:
            if ref.claim and (pod.namespace, ref.claim) not in self.records:
                return f"ResourceClaim {pod.namespace}/{ref.claim}"
            if not ref.claim and ref.template:
                known = (pod.namespace, ref.template) in self.templates
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
        for claim, spec in self.of(pod):
            if claim is None:
                return None
            count = sum(request.choices[0].number for request in spec.requests)
            assigned.append(ClaimDevices(claim, tuple(map(device_of, unassigned[:count]))))
            del unassigned[:count]
        if len(assigned) < len(set(pod.claim_refs)):
            return None
        complete = not unassigned and all(assignment.devices for assignment in assigned)
        return tuple(assigned) if complete and assigned else OTHER_NUMBER

    def is_allocated_to(self, uid: str) -> bool:
        """Whether a claim that is reserved for the pod is allocated: also of one that has ended, until the claim
        controller has seen that."""
        return any(claim.allocated is not None for claim in self.reserved(uid))

    def others(self, device: AllocatedDevice, claim: Key) -> list[Key]:
        """The other claims to which a device is allocated."""
        return [key for key in self.holders.get(identity(device), ()) if key != claim]

    def waiting_for(self, uid: str) -> list[ResourceClaimRecord]:
        """Those of the claims that a pod names whose devices wait for it on its node."""
        return [claim for claim in self.named(uid) if self.node_of(claim)]

    def unused(self, known: Iterable[Key] = ()) -> list[ResourceClaimRecord]:
        """The claims that the queue allocated, and that are reserved for no pod. `known`: claims that it allocated, be
        they marked or not: the owner of a claim may take the annotation away."""
        claims = (self.records.get(key) for key in dict.fromkeys((*self.marked, *known)))
        return [claim for claim in claims if claim is not None and claim.allocated is not None and not claim.reserved]

    def seekers(self) -> dict[str, None]:
        """The uids of the pods without a node to which kube-scheduler may allocate a claim: no claim of theirs is
        terminating, or asks for more devices than any node has."""
        most = self._slices.most
        claims = (self.records[key] for key in self.unallocated)
        takes = (claim for claim in claims if any(map(_takes, claim.spec.requests)))
        uids = dict.fromkeys(uid for claim in takes for uid in self.users("claim", claim))
        return {uid: None for uid in uids if not any(self._is_vain(claim, most) for claim in self.named(uid))}

    def _is_vain(self, claim: ResourceClaimRecord, most: int | None) -> bool:
        """Whether a claim gets no devices, whatever becomes free. `most`: as of Slices."""
        if claim.allocated is not None:
            return False
        ours = [
            request.choices
            for request in claim.spec.requests
            if _takes(request) and all(choice.device_class in self._classes for choice in request.choices)
        ]
        least = sum(min(choice.number for choice in choices) for choices in ours)
        return claim.terminating or (most is not None and least > most)
