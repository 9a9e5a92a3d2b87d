"""ResourceClaims: what is allocated to which pods, and what pods without a node ask for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from extender.cluster.dra.resource_slices import identity
from extender.objects.device_claims import MOST_COUNT
from extender.objects.queueing import PINNED
from extender.objects.records import (
    DeviceChoice,
    PodRecord,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
)

Key = tuple[str, str]
"""Namespace and name."""
_NOTHING: Final[Mapping[Key, None]] = {}
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
                _remove(self._reserved, uid, key)
            for device in before.allocated or ():
                _remove(self.holders, identity(device), key)
            self.marked.pop(key, None)
            self.unallocated.pop(key, None)
            yield before
        if change == "set":
            self.records[key] = record
            for uid in record.reserved:
                self._reserved.setdefault(uid, {})[key] = None
            for device in record.allocated or ():
                self.holders.setdefault(identity(device), {})[key] = None
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
        if pod.node or not (pod.claim_refs or pod.extended_claim):
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
            users = self._users[use]
            del users[uid]
            if not users:
                del self._users[use]

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

    def of(self, pod: PodRecord) -> Iterator[tuple[ResourceClaimRecord | None, tuple[tuple[DeviceChoice, ...], ...]]]:
        """For each claim that the pod names, once: the claim if it exists, and its requests; those of its template
        where it is not created yet."""
        seen: set[str] = set()
        for ref in pod.claim_refs:
            if ref.claim and ref.claim in seen:
                continue
            seen.add(ref.claim)
            claim = self.records.get((pod.namespace, ref.claim)) if ref.claim else None
            template = self.templates.get((pod.namespace, ref.template)) if not ref.claim else None
            stated = claim or template
            if stated is not None:
                yield claim, stated.requests


def is_plain(requests: tuple[tuple[DeviceChoice, ...], ...], classes: Container[str]) -> bool:
    """Whether there is a request, any devices of these classes will do for each, and how many is stated."""
    return not beyond(requests, classes)


def beyond(requests: tuple[tuple[DeviceChoice, ...], ...], classes: Container[str]) -> str:
    """What the requests ask for beyond a number of any devices of these classes, "" for nothing."""
    if not requests:
        return "its claim asks for no devices"
    return next((why for choices in requests if (why := _beyond(choices, classes))), "")


def _beyond(choices: tuple[DeviceChoice, ...], classes: Container[str]) -> str:
    if len(choices) != 1:
        return "its claim names alternatives (firstAvailable)" if choices else "its claim asks for admin access"
    [choice] = choices
    if choice.beyond:
        return f"the {choice.beyond} of its claim cannot be evaluated"
    if not choice.number:
        return "its claim asks for all devices of a node (allocationMode: All)"
    if choice.device_class not in classes:
        return f"DeviceClass {choice.device_class} is not known to select every whole GPU of its driver"
    return ""


def numbers(
    requests: Iterable[tuple[DeviceChoice, ...]], drivers: Mapping[str, str], classes: Container[str]
) -> dict[str, tuple[int, ...]]:
    """Driver -> how many of its whole GPUs the requests may take together of a node, the number that the in-tree
    allocator tries first before the others; ALL: whatever the node has. `drivers`: by DeviceClass, "" where its devices
    need not be whole GPUs; `classes`: those that select every whole GPU of their driver.

    All devices of a class that selects some GPUs alone are at most all GPUs of the node: they count as that.
    """
    by_driver: dict[str, tuple[int, ...]] = {}
    for choices in requests:
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
        if choice.number and not choice.beyond and choice.device_class in classes:
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


def _remove(index: dict[str, dict[Key, None]], name: str, key: Key) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[name]
