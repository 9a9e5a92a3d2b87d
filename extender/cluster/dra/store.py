"""The GPUs of DRA drivers, as all else counts GPUs: on the records of nodes and pods.

    ResourceSlices                           ──► the node's `gpus`, `gpu_capacity` and `devices`
    ResourceClaims, templates, DeviceClasses ──► the pod's `gpus`, `held` and `devices`

A node has each GPU once, whether a device plugin, a driver or both offer it. A bound pod holds the GPUs that are
allocated to the claims that are reserved for it: that is observed. Only `status` counts, which tenants cannot write. A
GPU that is allocated, and that no pod of its node holds, is not free either. A pod without a node asks for what its
claims ask for and is not allocated yet.

Records may go through here several times: what was added before is taken out first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.device_plugins import partial
from extender.cluster.dra import node_gpus
from extender.cluster.dra.allocator import Result
from extender.cluster.dra.claim_fits import MOST_KEPT, ClaimFits, ClaimsTogether, Specs
from extender.cluster.dra.claims import ALL, EXTENDED, Key, PlannedClaims, is_plain, numbers
from extender.cluster.dra.resource_slices import (
    AMD,
    EVERY,
    INTEL,
    NVIDIA,
    WHOLE,
    Mark,
    NodePools,
    Selected,
    Slices,
    TaintRules,
    device_of,
    drivers_of,
    identity,
    selected,
)
from extender.objects.devices import (
    ClaimSpec,
    DeviceClassRecord,
    DeviceTaintRuleRecord,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
    ResourceSliceRecord,
    Share,
)
from extender.objects.pods import PodClaimRef
from extender.objects.records import DraRecord, NodeRecord, PodRecord
from extender.settings.fields import ResourceSettings

PLUGINS: Final = {"nvidia": NVIDIA, "amd": AMD}
"""By `devicePlugin`: the driver whose whole GPUs count as the resource, where the settings name none."""


class _Asked(NamedTuple):
    """What claims ask for that are not allocated. `added`: GPUs by resource; `plain`: any whole GPUs will do;
    `numbers`: `claim_numbers` of a pod with these claims."""

    added: Mapping[str, int]
    plain: bool
    numbers: tuple[int, ...]


class DraStore:
    """What the API objects of DRA state. `classes`: the DeviceClasses by name; `uncounted`: the resources that a
    DeviceClass serves which may hand out something else than whole GPUs of its driver. What is left on a node is not
    known then, so GPUs of these drivers are not counted. `claims`: all claims, and what the queue allocates of them;
    `published`: the devices of nodes; `homes`: the nodes of claims that a pod there holds without an allocation, as a
    question supposes it."""

    def __init__(
        self, resources: Iterable[ResourceSettings], bound: Callable[[str], PodRecord | None], *, plans: bool = False
    ) -> None:
        """`bound`: uid of a pod -> the pod, if it holds something on a node; `plans`: the queue allocates devices."""
        self._resources: dict[str, str] = {}  # by driver
        self._whole: dict[str, Mark] = {}  # by driver
        for resource in resources:
            driver = _driver_of(resource)
            if driver and driver not in self._resources and not partial(resource.name):
                self._resources[driver] = resource.name
                name, _, value = (resource.dra_attribute or "").partition("=")
                self._whole[driver] = WHOLE.get(driver, EVERY) if resource.dra_attribute is None else (name, value)
        self._bound = bound
        self.taint_rules = TaintRules(plans=plans)
        self.published = Slices(self._whole, self.taint_rules)
        self.slices: Mapping[str, ResourceSliceRecord] = self.published.records  # by name
        self._pools = NodePools(self.published.by_pool, self.taint_rules)
        self.classes: dict[str, DeviceClassRecord] = {}
        self.uncounted: set[str] = set()
        self._every: set[str] = set()  # the classes that select every whole GPU of their driver
        self._served: set[str] = set()  # the resources that any class serves
        self._narrowed: set[str] = set()  # the resources that another class serves
        self._drivers: dict[str, str] = {}  # by class; "" where its devices need not be whole GPUs of one driver
        self.homes: dict[Key, str] = {}
        self._allocated: set[str] = set()  # those of them whose devices the queue may allocate
        self._serving: dict[str, str] = {}  # resource -> the one class that serves it
        self.claims = PlannedClaims(self.published, self._allocated, on=plans)
        self.fits = ClaimFits(self._pools, self.claims, self.classes, self._every, self._serving)
        self._asked: dict[Specs, _Asked] = {}  # depends on the classes, and on the smallest node of each driver
        self._stale_pods: dict[str, None] = {}
        self._stale_nodes: dict[str, None] = {}

    def served_unseen(self) -> set[str]:
        """The resources that a DeviceClass serves, without those of which the devices are counted: slices of their
        driver are read, and each names its node, so a node without such slices offers none."""
        slices = self.published
        read = {kind.driver for kind in slices.kinds if not slices.of_any_node[kind.driver]}
        counted = {resource for driver, resource in self._resources.items() if driver in read} - self.uncounted
        return {device_class.extended_resource_name for device_class in self.classes.values()} - counted

    def device_classes(self, pod: PodRecord) -> list[str]:
        """The DeviceClasses of which its claims ask for devices, by name."""
        return sorted({choice.device_class for _, spec in self.claims.of(pod) for choice in spec.choices})

    def absent(self, pod: PodRecord) -> str:
        """The first claim, template or DeviceClass that a pod names and that does not exist, "" for none. Without any
        DeviceClass claims and templates are not read."""
        for ref in pod.claim_refs if self.classes else ():
            kind, name = ("ResourceClaim", ref.claim) if ref.claim else ("ResourceClaimTemplate", ref.template)
            if name and (pod.namespace, name) not in (self.claims.records if ref.claim else self.claims.templates):
                return f"{kind} {pod.namespace}/{name}"
        return self.absent_class(pod)

    def absent_class(self, pod: PodRecord) -> str:
        """As `absent`, of the DeviceClasses alone."""
        names = (choice.device_class for _, spec in self.claims.of(pod) for choice in spec.choices)
        return next((f"DeviceClass {name}" for name in names if name not in self.classes), "")

    # -- events ---------------------------------------------------------------------------------------------------

    def set(self, record: DraRecord, change: str) -> None:
        """An object is "set", or there is a "delete"."""
        if isinstance(record, ResourceSliceRecord):
            before = self.slices.get(record.name)
            smallest, kinds = dict(self.published.smallest), set(self.published.kinds)
            touched = self.published.update(record, change)
            self.fits.changed(self._pools.update(before, self.slices.get(record.name)))
            if kinds != self.published.kinds.keys():
                self._read_classes(self.classes)
            if smallest != self.published.smallest:
                self._asked.clear()
                self._mark(self.claims.waiting())
            self._mark_nodes(touched.nodes)
            for key in {key for gpu in touched.gpus for key in self.claims.holders.get(gpu, ())}:
                self._mark(self.claims.records[key].reserved)
                if self.claims.on:
                    self._mark(self.claims.users("claim", self.claims.records[key]))
        elif isinstance(record, ResourceClaimRecord):
            for version in self.claims.set(record, change):
                self.fits.changed_pools({(device.driver, device.pool) for device in version.allocated or ()})
                self._mark(version.reserved)
                for other in self.claims.beside(version):
                    self._mark(other.reserved)
                self._mark_nodes(self.published.where(version.allocated or ()))
            self._mark(self.claims.users("claim", record))
        elif isinstance(record, ResourceClaimTemplateRecord):
            self.claims.set_template(record, change)
            self._mark(self.claims.users("template", record))
        elif isinstance(record, DeviceTaintRuleRecord):
            self.fits.changed(None)
            for rule in self.taint_rules.update(record, change):
                self._mark(*self.claims.selected(rule))
        else:
            self._set_class(record, change)

    def gone(self, uid: str) -> None:
        """The pod is deleted."""
        if not self.claims.knows(uid):
            return
        self._mark(*self.claims.touched(uid))
        self.claims.forget(uid)
        self._moved(uid)

    def take(self, most: int) -> tuple[list[str], list[str]]:
        """Uids of pods, and names of nodes, whose records may be others by the events before: at most so many of each,
        the first ones; the others are left for the next call."""
        pods, nodes = list(islice(self._stale_pods, most)), list(islice(self._stale_nodes, most))
        for uid in pods:
            del self._stale_pods[uid]
        for name in nodes:
            del self._stale_nodes[name]
        return pods, nodes

    @property
    def stale(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._stale_pods or self._stale_nodes)

    def _set_class(self, record: DeviceClassRecord, change: str) -> None:
        self.fits.changed(None)
        self.classes.pop(record.name, None)
        if change == "set":
            self.classes[record.name] = record
        self._read_classes((record.name,))

    def _read_classes(self, names: Iterable[str]) -> None:
        """What these classes select of the devices that are published now, and which resources all classes serve."""
        self._asked.clear()
        for name in names:
            before, now = Selected(self._drivers.pop(name, ""), name in self._every), Selected()
            self._every.discard(name)
            self._allocated.discard(name)
            if name in self.classes:
                now = selected(self.classes[name], self.published.kinds, self._whole)
                self._drivers[name] = now.driver
            if now.every:
                self._every.add(name)
                if now.driver == NVIDIA:
                    self._allocated.add(name)
            if now != before:
                self._mark(self.claims.waiting())
        counted = set(self._resources.values())
        serving = Counter([device_class.extended_resource_name for device_class in self.classes.values()])
        self._serving.clear()
        self._serving.update(
            {
                device_class.extended_resource_name: device_class.name
                for device_class in self.classes.values()
                if serving[device_class.extended_resource_name] == 1
            }
        )
        served = {
            (device_class.extended_resource_name, self._drivers[device_class.name])
            for device_class in self.classes.values()
        }
        odd = {name for name, driver in served if name in counted and self._resources.get(driver) != name}
        narrowed = {
            device_class.extended_resource_name
            for device_class in self.classes.values()
            if device_class.name not in self._every
        } & counted
        by_class = {name for name, _ in served} & counted
        if (odd, narrowed, by_class) != (self.uncounted, self._narrowed, self._served):
            self.uncounted, self._narrowed, self._served = odd, narrowed, by_class
            self._mark_nodes(self.published.nodes)
            self._mark((*self.claims.holding(), *self.claims.waiting()))

    def _mark(self, uids: Iterable[str], nodes: Iterable[str] = ()) -> None:
        self._stale_pods.update(dict.fromkeys(uids))
        self._mark_nodes(nodes)

    def _mark_nodes(self, names: Iterable[str]) -> None:
        self._stale_nodes.update(dict.fromkeys(names))

    def _moved(self, uid: str) -> None:
        """A pod has come, has gone or is bound: what its claims hold may be held by another pod, or by none."""
        for claim in self.claims.reserved(uid):
            self._mark_nodes(self.published.where(claim.allocated or ()))
            if len(claim.reserved) > 1:
                self._mark(claim.reserved)

    # -- records --------------------------------------------------------------------------------------------------

    def node(self, node: NodeRecord) -> NodeRecord:
        """The node with its GPUs by DRA."""
        stated, pools = node_gpus.bare(node), self.published.of(node.name)
        for driver, resource in self._resources.items():
            of = [devices for devices in pools if devices and devices[0].driver == driver]
            if of and resource not in self.uncounted:
                every, nics = resource not in self._narrowed, self.published.nics(node.name)
                known = node_gpus.Allocation(self._is_held, self.published.taints, resource in self._served)
                return node_gpus.with_devices(stated, resource, of, known, every=every, nics=nics)
        return stated

    def pod(self, pod: PodRecord) -> PodRecord:
        """The pod, which is new or has changed, with its GPUs by DRA."""
        if not (pod.claimed or self._may_have_claims(pod)):
            return pod
        self._mark(*self.claims.touched(pod.uid))
        self.claims.note(pod)
        self._mark(*self.claims.touched(pod.uid))
        self._moved(pod.uid)
        return self.read(pod)

    def read(self, pod: PodRecord) -> PodRecord:
        """The pod with its GPUs by DRA."""
        stated = _bare(pod)
        if stated.finished or not self._may_have_claims(stated):
            return stated
        return self._holding(stated) if stated.node else self._asking(stated)

    def _may_have_claims(self, pod: PodRecord) -> bool:
        """False for pods that have nothing to do with DRA, which are most: they must not pay for it."""
        return bool(pod.claim_refs or pod.class_requests or pod.extended_claim or self.claims.knows(pod.uid))

    def asks_gpus(self, pod: PodRecord) -> bool:
        """Whether the pod has claims that are allocated, not counted, and a class of them is one of devices of a driver
        whose whole GPUs are counted: of these, of parts of them, or with admin access."""
        kinds, marks = self.published.kinds, self._whole
        return any(drivers_of(record, kinds, marks) & self._resources.keys() for record in self._classes_of(pod))

    def unpublished(self, pod: PodRecord) -> list[str]:
        """The names of the classes of such claims of which no published device is one."""
        kinds = self.published.kinds
        return sorted(record.name for record in self._classes_of(pod) if not drivers_of(record, kinds, {}))

    def _classes_of(self, pod: PodRecord) -> list[DeviceClassRecord]:
        """The classes of its claims that are allocated, not counted."""
        claims = self.fits.of(pod)
        specs = () if claims is None else claims.specs
        names = {choice.device_class for spec in specs for choice in spec.choices}
        return [self.classes[name] for name in names if name in self.classes]

    def together(self, roles: Sequence[PodRecord]) -> ClaimsTogether | None:
        """Which pods of these roles (one pod each) the devices of a node meet together; None where the GPUs that are
        counted tell it."""
        if all(self.fits.of(pod) is None for pod in roles):
            return None
        return ClaimsTogether(self.fits, self.claims, roles)

    def allocated_for(self, pods: Sequence[PodRecord]) -> list[Specs]:
        """The sets of claims that are looked at on nodes where these pods are placed together; none where the GPUs that
        are counted tell it."""
        if all(self.fits.of(pod) is None for pod in pods):
            return []
        served = ("", *self._serving)
        return [*({self.fits.all_of(pod, resource).specs: None for pod in pods for resource in served}.keys() - {()})]

    def as_placed(self, pod: PodRecord, node: NodeRecord) -> tuple[PodRecord, list[ResourceClaimRecord]] | None:
        """(the pod as it is on the node, with its claims as kube-scheduler allocates and reserves them for it). None
        where it has none, or that is not known."""
        stated = list(self.claims.references(pod))
        wanted = self.fits.all_of(pod, self.fits.serves(node))
        if pod.planned or pod.extended_claim or len(stated) < len(pod.claim_refs) or not (stated or wanted.specs):
            return None
        allocation = self.fits.on(node, wanted)
        if allocation.results is None:
            return None
        results = iter(allocation.results)
        claims: dict[str, ResourceClaimRecord] = {}
        refs: list[PodClaimRef] = []
        for ref, (claim, name, spec) in stated:
            record = claim or _created(pod, name, len(refs), spec)
            if record.name not in claims:
                record = record if record.allocated is not None else _allocated(record, next(results))
                claims[record.name] = replace(record, reserved=(*record.reserved, pod.uid))
            refs.append(ref._replace(claim=record.name))
        placed = replace(_bare(pod), claim_refs=tuple(refs))
        if rest := [result for of_claim in results for result in of_claim]:  # devices of classes that serve a resource
            record = _allocated(_created(pod, EXTENDED, len(refs), ClaimSpec(())), rest)
            claims[record.name] = replace(record, reserved=(pod.uid,))
            placed = replace(placed, extended_claim=record.name)
        return placed, list(claims.values())

    def joint(self, pods: Sequence[PodRecord]) -> PodRecord:
        """Pods without a node that share claims, as one pod like the first: each claim counts once."""
        bare = [_bare(pod) for pod in pods]
        gpus = Counter[str]()
        for pod in bare:
            gpus.update(dict(pod.gpus))
        refs = dict.fromkeys(
            ref if ref.claim else (at, number, ref)
            for at, pod in enumerate(bare)
            for number, ref in enumerate(pod.claim_refs)
        )
        named = tuple([ref if isinstance(ref, PodClaimRef) else ref[2] for ref in refs])
        whole = replace(
            bare[0],
            claim_refs=named,
            gpus=_counts(gpus),
            cpu_milli=sum(pod.cpu_milli for pod in pods),
            memory=sum(pod.memory for pod in pods),
        )
        return self._asking(whole)

    def _node_of(self, uid: str) -> str:
        """The node on which a pod holds something, "" for none."""
        pod = self._bound(uid)
        return pod.node if pod is not None else ""

    def _is_held(self, gpu: str) -> bool | None:
        holders = self.claims.holders.get(gpu)
        if holders is None:
            return None
        node = self.published.node_of.get(gpu)
        if node and self.claims.waits(gpu, node):
            return None
        return any(self._holder(self.claims.records[key], node) for key in holders)

    def _holder(self, claim: ResourceClaimRecord, node: str | None) -> str:
        """Which pod of the node counts as the holder of what is allocated to a claim: of several that share it the
        first by uid; "" for none."""
        return min((uid for uid in claim.reserved if node and self._node_of(uid) == node), default="")

    def _holding(self, pod: PodRecord) -> PodRecord:
        """A bare pod with what it holds on its node."""
        held: dict[str, str] = {}  # GpuDevice.id -> resource
        added, stated, keeps = Counter[str](), Counter(dict(pod.gpus)), not self.claims.on
        for claim in self.claims.reserved(pod.uid):
            others = [uid for uid in claim.reserved if uid < pod.uid and self._node_of(uid) == pod.node]
            if others or claim.namespace != pod.namespace:
                continue
            keeps = keeps or not self.claims.returned_by(claim, pod)
            for device in claim.allocated or ():
                gpu, resource = identity(device), self._resources.get(device.driver, "")
                if self.published.node_of.get(gpu) == pod.node and resource not in self.uncounted and gpu not in held:
                    held[gpu] = resource
                    asked_for = claim.name == pod.extended_claim and stated[resource] > 0
                    (stated.subtract if asked_for else added.update)((resource,))
        if not held:
            return pod
        ids = {(resource, gpu) for gpu, resource in held.items()}
        return _plus(
            pod,
            added,
            held=tuple(sorted(ids.union(pod.held))),
            devices=tuple(sorted(held)),
            keeps_devices=keeps or self.published.any_tainted(pod.node, held),
        )

    def _asking(self, pod: PodRecord) -> PodRecord:
        """A bare pod without a node, with what it will take. A claim that several pods name counts for each of them."""
        allocated, node = False, ""
        wanted: list[ClaimSpec] = []
        for claim, _, spec in self.claims.named_by(pod):
            taken = claim is not None and claim.allocated is not None and not self.claims.node_of(claim)
            home = "" if claim is None else self._home(claim)
            node, allocated = node or home, allocated or taken
            if not taken and not home:
                wanted.append(spec)
        specs = tuple(wanted)
        added, plain, choices = self._asked_by(specs)
        extended = self.claims.records.get((pod.namespace, pod.extended_claim)) if pod.extended_claim else None
        if extended is not None and extended.allocated is not None:
            allocated, added = True, Counter(added)
            added.subtract(self._resources.get(device.driver, "") for device in extended.allocated)
            self._drop_uncounted(added)
        if not added and not allocated and not node:
            return pod
        asking = _plus(
            pod,
            added,
            allocated=allocated,
            first_fit=plain and bool(added),
            claim_node=node,
            claim_specs=specs,
            claim_numbers=choices if any(count > 0 for count in added.values()) else (),
        )
        return self.claims.judged(asking)

    def _asked_by(self, specs: Specs) -> _Asked:
        """What these claims ask for. Claims of one template ask alike, and each call is about another pod."""
        asked = self._asked.get(specs)
        if asked is None:
            plain = all(
                is_plain(spec, self._every) or not numbers(spec.requests, self._drivers, self._every) for spec in specs
            )
            requests = (request for spec in specs for request in spec.requests)
            numbers_of = numbers(requests, self._drivers, self._every)
            added = Counter[str]()
            for driver, counts in numbers_of.items():
                least = min(number or self.published.smallest.get(driver, 1) for number in counts)
                added[self._resources[driver]] += least
            self._drop_uncounted(added)
            choices = next((counts for counts in numbers_of.values() if len(counts) > 1 or ALL in counts), ())
            if len(self._asked) >= MOST_KEPT:
                del self._asked[next(iter(self._asked))]
            asked = self._asked[specs] = _Asked(added, plain, choices)
        return asked

    def _drop_uncounted(self, added: Counter[str]) -> None:
        for resource in (*self.uncounted, ""):
            del added[resource]

    def _home(self, claim: ResourceClaimRecord) -> str:
        """The node to which the claim binds a pod, "" for any."""
        if claim.allocated is not None:
            if self.claims.node_of(claim):
                return ""
            where = {self.published.node_of.get(identity(device), "") for device in claim.allocated}
            return where.pop() if len(where) == 1 else ""
        return self.homes.get((claim.namespace, claim.name), "")


def _driver_of(resource: ResourceSettings) -> str:
    """The driver whose whole GPUs count as the resource, "" for none."""
    intel = INTEL if resource.name.startswith(f"{INTEL}/") else ""
    return resource.dra_driver or PLUGINS.get(resource.device_plugin, intel)


def _created(pod: PodRecord, template: str, number: int, spec: ClaimSpec) -> ResourceClaimRecord:
    """The claim that is created for a pod from a template."""
    name = f"{pod.name}-{template}-{number}"
    return ResourceClaimRecord(
        uid=f"{pod.uid}-{number}", namespace=pod.namespace, name=name, resource_version="", spec=spec, allocated=None,
        reserved=(), pod=pod.uid, returns=True,
    )  # fmt: skip


def _allocated(claim: ResourceClaimRecord, results: Iterable[Result]) -> ResourceClaimRecord:
    """The claim with these devices."""
    of = [result for result in results if not result.admin]
    devices = tuple([device_of(result.candidate.id) for result in of])
    shares = [
        Share(device, tuple([(name, f"{amount}n") for name, amount in result.amounts.items()]))
        for device, result in zip(devices, of, strict=True)
        if result.amounts is not None
    ]
    return replace(claim, allocated=devices, shares=tuple(shares))


def _plus(pod: PodRecord, added: Mapping[str, int], **fields: Any) -> PodRecord:
    """The bare pod with more GPUs, or fewer, and with these fields: a record is copied once."""
    counts = dict(pod.gpus)
    claimed = {name: max(count, -counts.get(name, 0)) for name, count in sorted(added.items())}
    for name, count in claimed.items():
        counts[name] = counts.get(name, 0) + count
    return replace(pod, gpus=_counts(counts), claimed=_counts(claimed), **fields)


def _bare(pod: PodRecord) -> PodRecord:
    """The pod as its own object states it."""
    if not (pod.claimed or pod.devices or pod.allocated or pod.claim_node):
        return pod
    counts = Counter(dict(pod.gpus))
    counts.subtract(dict(pod.claimed))
    held = tuple([entry for entry in pod.held if entry[1] not in pod.devices])
    none = {
        "keeps_devices": False,
        "allocated": False,
        "first_fit": False,
        "claim_numbers": (),
        "claim_node": "",
        "claim_specs": (),
    }
    return replace(pod, gpus=_counts(counts), held=held, claimed=(), devices=(), planned=False, left_devices="", **none)


def _counts(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted([(name, count) for name, count in counts.items() if count]))
