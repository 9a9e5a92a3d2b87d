"""The objects of DRA: ResourceSlices, DeviceTaintRules and DeviceClasses, which state the devices that a driver
publishes, which of them are tainted, and the classes by which pods ask for them; ResourceClaims and
ResourceClaimTemplates, which state the devices that pods ask for and were allocated."""

from __future__ import annotations

from sys import intern
from typing import Final, NamedTuple

import msgspec

from extender.objects.parts import NamespacedRecord, ObjectRecord, controller, metadata, named, namespaced
from extender.objects.schema import Metadata, Present, Reader, Wire

BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of a device taint by which kube-scheduler allocates the device to no claim that does not tolerate it."""
PCI_BUS: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
FENCE: Final = "gpu-extender.io/planned"
"""The key of the device taint that keeps kube-scheduler's allocator off devices that the queue allocates."""


class _Attribute(Wire):
    text: str | None = msgspec.field(default=None, name="string")
    number: int | None = msgspec.field(default=None, name="int")
    truth: bool | None = msgspec.field(default=None, name="bool")


class _Taint(Wire):
    key: str | None = None
    effect: str | None = None


class _Consumption(Wire):
    counter_set: str | None = None


class _Basic(Wire):
    attributes: dict[str, _Attribute | None] | None = None
    consumes_counters: list[_Consumption] | None = None
    taints: list[_Taint] | None = None
    allow_multiple_allocations: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    node_allocatable_resources: dict[str, Present] | None = None


class _Device(_Basic):
    """Its own fields state what it is; in `resource.k8s.io/v1beta1` those of `basic` do."""

    name: str | None = None
    basic: _Basic | None = None


class _Pool(Wire):
    name: str | None = None
    generation: int | None = None
    resource_slice_count: int | None = None


class _Spec(Wire):
    driver: str | None = None
    pool: _Pool | None = None
    node_name: str | None = None
    devices: list[_Device] | None = None
    skip_node_operations: list[str] | None = None


class _Slice(Wire):
    """A ResourceSlice."""

    metadata: Metadata | None = None
    spec: _Spec | None = None


class _DeviceSelector(Wire):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class _RuleSpec(Wire):
    device_selector: _DeviceSelector | None = None
    taint: _Taint | None = None


class _TaintRule(Wire):
    metadata: Metadata | None = None
    spec: _RuleSpec | None = None


class DeviceRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A device of a slice, by the attributes that we use; "" and None where the driver publishes none."""

    name: str
    kind: str = ""  # the attribute type (NVIDIA: gpu, mig, vfio)
    uuid: str = ""
    index: int | None = None  # the attribute index
    pci: str = ""  # its PCI address
    root: str = ""  # its PCIe root
    rdma: bool = False  # whether it is a network device with RDMA (dra.net)
    counters: tuple[str, ...] = ()  # the counter sets that it consumes
    taints: tuple[str, ...] = ()  # the keys of its BLOCKING taints
    shared: bool = False  # whether several claims may have a part of it each
    plain: bool = True  # an allocation of it states nothing but the device


class ResourceSliceRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceSlice."""

    driver: str
    pool: str
    generation: int
    slices: int  # how many slices its pool has in this generation
    node: str  # "" where its devices are not those of one node
    devices: tuple[DeviceRecord, ...]


class DeviceTaintRuleRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A DeviceTaintRule."""

    driver: str  # of the devices that it taints, "" for any; so are `pool` and `device`
    pool: str
    device: str
    taint: str  # the key, "" where it keeps no claim off, or selects no device


def _taint_rule_of(wire: _TaintRule, _: frozenset[str]) -> DeviceTaintRuleRecord:
    """A rule without a selector selects no device, an empty selector all of them."""
    meta, spec = metadata(wire.metadata), wire.spec or _RuleSpec()
    of, taint = spec.device_selector or _DeviceSelector(), spec.taint or _Taint()
    blocks = spec.device_selector is not None and taint.effect in BLOCKING
    return DeviceTaintRuleRecord(
        **named(meta),
        driver=intern(of.driver or ""),
        pool=intern(of.pool or ""),
        device=intern(of.device or ""),
        taint=intern(taint.key or "") if blocks else "",
    )


device_taint_rule: Final = Reader(_TaintRule, _taint_rule_of)


def _slice_of(wire: _Slice, _: frozenset[str]) -> ResourceSliceRecord:
    """A device without a name is left out: no allocation can name it."""
    meta = metadata(wire.metadata)
    spec = wire.spec or _Spec()
    pool = spec.pool or _Pool()
    return ResourceSliceRecord(
        **named(meta),
        driver=intern(spec.driver or ""),
        pool=intern(pool.name or ""),
        generation=pool.generation or 0,
        slices=pool.resource_slice_count or 0,
        node=intern(spec.node_name or ""),
        devices=tuple(
            [_device(device, plain=not spec.skip_node_operations) for device in spec.devices or () if device.name]
        ),
    )


resource_slice: Final = Reader(_Slice, _slice_of)


def _device(device: _Device, *, plain: bool) -> DeviceRecord:
    wire: _Basic = device if device.basic is None else device.basic
    stated = wire.attributes or {}
    index = stated.get("index")
    return DeviceRecord(
        name=intern(device.name or ""),
        kind=intern(_text(stated, "type")),
        uuid=_text(stated, "uuid"),
        index=None if index is None else index.number,
        pci=_text(stated, PCI_BUS) or _text(stated, "pciBusID"),
        root=intern(_text(stated, PCIE_ROOT)),
        rdma=_truth(stated, "rdma") or _truth(stated, "dra.net/rdma"),
        counters=tuple([intern(consumption.counter_set or "") for consumption in wire.consumes_counters or ()]),
        taints=tuple([intern(taint.key or "") for taint in wire.taints or () if taint.effect in BLOCKING]),
        shared=bool(wire.allow_multiple_allocations),
        plain=plain and not (wire.binds_to_node or wire.binding_conditions or wire.node_allocatable_resources),
    )


def _truth(stated: dict[str, _Attribute | None], name: str) -> bool:
    attribute = stated.get(name)
    return attribute is not None and bool(attribute.truth)


def _text(stated: dict[str, _Attribute | None], name: str) -> str:
    attribute = stated.get(name)
    return (attribute.text or "") if attribute is not None else ""


# -- DeviceClasses


class _Expression(Wire):
    expression: str | None = None


class _ClassSelector(Wire):
    cel: _Expression | None = None


class _DeviceClassSpec(Wire):
    extended_resource_name: str | None = None
    selectors: list[_ClassSelector] | None = None


class _DeviceClass(Wire):
    metadata: Metadata | None = None
    spec: _DeviceClassSpec | None = None


class DeviceClassRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A DeviceClass."""

    extended_resource_name: str  # the resource that it also serves, "" for none
    selectors: tuple[str, ...] = ()  # the CEL expressions that a device must all match


def _device_class_of(wire: _DeviceClass, _: frozenset[str]) -> DeviceClassRecord:
    meta = metadata(wire.metadata)
    spec = wire.spec or _DeviceClassSpec()
    return DeviceClassRecord(
        **named(meta),
        extended_resource_name=spec.extended_resource_name or "",
        selectors=tuple([(test.cel.expression if test.cel else None) or "" for test in spec.selectors or ()]),
    )


device_class: Final = Reader(_DeviceClass, _device_class_of)


# -- ResourceClaims and ResourceClaimTemplates -------------------------------------------------------------------------

MOST_COUNT: Final = 100_000  # devices of a request: more than any node has
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""The allocator of a claim adds it. Without it the claim controller never deallocates the claim."""
PLANNED_NODE: Final = "gpu-extender.io/planned-node"
"""The annotation of a ResourceClaim whose allocation the queue writes: the node of the devices."""


class _Exactly(Wire):
    device_class_name: str | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    selectors: list[Present] | None = None
    tolerations: list[Present] | None = None
    capacity: Present | None = None
    derived_attributes: list[Present] | None = None


class _Request(_Exactly):
    """Its own fields state the one alternative in `resource.k8s.io/v1beta1`, `exactly` in later versions."""

    exactly: _Exactly | None = None
    first_available: list[_Exactly] | None = None


class _Devices(Wire):
    requests: list[_Request] | None = None
    constraints: list[Present] | None = None


class _ClaimSpec(Wire):
    devices: _Devices | None = None


class _Result(Wire):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    admin_access: bool | None = None


class _Results(Wire):
    results: list[_Result] | None = None


class _Allocation(Wire):
    devices: _Results | None = None


class _Consumer(Wire):
    resource: str | None = None
    uid: str | None = None
    api_group: str | None = None


class _ClaimStatus(Wire):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _ClaimMetadata(Metadata):
    finalizers: list[str] | None = None


class _Claim(Wire):
    """A ResourceClaim."""

    metadata: _ClaimMetadata | None = None
    spec: _ClaimSpec | None = None
    status: _ClaimStatus | None = None


class _TemplateSpec(Wire):
    spec: _ClaimSpec | None = None


class _Template(Wire):
    """A ResourceClaimTemplate."""

    metadata: Metadata | None = None
    spec: _TemplateSpec | None = None


class DeviceChoice(NamedTuple):
    """Devices of one class."""

    device_class: str
    number: int  # 0 for all devices of a node
    beyond: str = ""  # what else is asked of them, "" where any of the class will do, whatever else the claim gets


class AllocatedDevice(NamedTuple):
    """A device as an allocation names it."""

    driver: str
    pool: str
    device: str


class ResourceClaimRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceClaim."""

    # the choices of each request, the preferred first; a request for admin access, which takes no device from others,
    # has none
    requests: tuple[tuple[DeviceChoice, ...], ...]
    # what `status.allocation` states, None without an allocation, devices with admin access left out
    allocated: tuple[AllocatedDevice, ...] | None
    reserved: tuple[str, ...]  # uids of the pods that `status.reservedFor` names
    planned_node: str = ""  # PLANNED_NODE, "" without it
    pod: str = ""  # uid of the pod that it was created for, and is deleted with, "" for none
    returns: bool = False  # whether the claim controller deallocates it once none of `reserved` is there
    terminating: bool = False  # it is being deleted, and is allocated to no pod any more


class ResourceClaimTemplateRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceClaimTemplate."""

    requests: tuple[tuple[DeviceChoice, ...], ...]  # as of ResourceClaimRecord


def _claim_of(wire: _Claim, _: frozenset[str]) -> ResourceClaimRecord:
    meta = metadata(wire.metadata)
    status = wire.status or _ClaimStatus()
    owner, consumers = controller(meta), status.reserved_for or ()
    finalizers = (wire.metadata.finalizers if wire.metadata else None) or ()
    return ResourceClaimRecord(
        **namespaced(meta),
        requests=_requests(wire.spec),
        allocated=None if status.allocation is None else _allocated(status.allocation),
        reserved=tuple([consumer.uid for consumer in consumers if consumer.uid and _is_pod(consumer)]),
        planned_node=intern((meta.annotations or {}).get(PLANNED_NODE) or ""),
        pod=owner.uid if owner is not None and (owner.api, owner.kind) == ("", "Pod") else "",
        returns=FINALIZER in finalizers and all(consumer.uid and _is_pod(consumer) for consumer in consumers),
        terminating=meta.deletion_timestamp is not None,
    )


resource_claim: Final = Reader(_Claim, _claim_of)


def _template_of(wire: _Template, _: frozenset[str]) -> ResourceClaimTemplateRecord:
    requests = _requests(wire.spec.spec if wire.spec else None)
    return ResourceClaimTemplateRecord(**namespaced(metadata(wire.metadata)), requests=requests)


resource_claim_template: Final = Reader(_Template, _template_of)


def _is_pod(consumer: _Consumer) -> bool:
    return consumer.resource == "pods" and not consumer.api_group


def _allocated(wire: _Allocation) -> tuple[AllocatedDevice, ...]:
    results = (wire.devices.results if wire.devices else None) or ()
    return tuple(
        [
            AllocatedDevice(intern(result.driver or ""), intern(result.pool or ""), intern(result.device or ""))
            for result in results
            if not result.admin_access
        ]
    )


def _requests(spec: _ClaimSpec | None) -> tuple[tuple[DeviceChoice, ...], ...]:
    requests = (spec.devices.requests if spec and spec.devices else None) or ()
    constrained = bool(spec and spec.devices and spec.devices.constraints)
    return tuple([_choices(request, constrained) for request in requests])


def _choices(request: _Request, constrained: bool) -> tuple[DeviceChoice, ...]:
    stated: list[_Exactly] = request.first_available or []
    if request.exactly is not None or request.device_class_name is not None:
        stated = [request if request.exactly is None else request.exactly]
    return tuple([_choice(choice, constrained) for choice in stated if not choice.admin_access])


def _choice(wire: _Exactly, constrained: bool) -> DeviceChoice:
    count = 0 if wire.allocation_mode == "All" else min(max(1 if wire.count is None else wire.count, 1), MOST_COUNT)
    asked = {
        "selectors": wire.selectors,
        "constraints": constrained,
        "tolerations": wire.tolerations,
        "capacity": wire.capacity,
        "derived attributes": wire.derived_attributes,
    }
    beyond = next((name for name, is_stated in asked.items() if is_stated), "")
    return DeviceChoice(intern(wire.device_class_name or ""), count, beyond)
