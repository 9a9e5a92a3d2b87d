"""ResourceSlices, DeviceTaintRules and DeviceClasses (DRA): the devices that a driver publishes, which of them are
tainted, and the classes by which pods ask for them."""

from __future__ import annotations

from sys import intern
from typing import Final

import msgspec

from extender.objects.parts import metadata
from extender.objects.schema import Metadata, Present, Source, Wire, read

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


class SliceWire(Wire):
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


_SLICE: Final = msgspec.json.Decoder(SliceWire)
_TAINT_RULE: Final = msgspec.json.Decoder(_TaintRule)


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


class ResourceSliceRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A ResourceSlice."""

    uid: str
    name: str
    resource_version: str
    driver: str
    pool: str
    generation: int
    slices: int  # how many slices its pool has in this generation
    node: str  # "" where its devices are not those of one node
    devices: tuple[DeviceRecord, ...]


class DeviceTaintRuleRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A DeviceTaintRule."""

    uid: str
    name: str
    resource_version: str
    driver: str  # of the devices that it taints, "" for any; so are `pool` and `device`
    pool: str
    device: str
    taint: str  # the key, "" where it keeps no claim off, or selects no device


def device_taint_rule(source: Source) -> DeviceTaintRuleRecord:
    """The record of a DeviceTaintRule. A rule without a selector selects no device, an empty selector all of them."""
    wire = read(source, _TAINT_RULE)
    meta, spec = metadata(wire.metadata), wire.spec or _RuleSpec()
    of, taint = spec.device_selector or _DeviceSelector(), spec.taint or _Taint()
    blocks = spec.device_selector is not None and taint.effect in BLOCKING
    return DeviceTaintRuleRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        driver=intern(of.driver or ""),
        pool=intern(of.pool or ""),
        device=intern(of.device or ""),
        taint=intern(taint.key or "") if blocks else "",
    )


def resource_slice(source: Source) -> ResourceSliceRecord:
    """The record of a ResourceSlice."""
    return slice_of(read(source, _SLICE))


def slice_of(wire: SliceWire) -> ResourceSliceRecord:
    """The record of a decoded ResourceSlice. A device without a name is left out: no allocation can name it."""
    meta = metadata(wire.metadata)
    spec = wire.spec or _Spec()
    pool = spec.pool or _Pool()
    return ResourceSliceRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        driver=intern(spec.driver or ""),
        pool=intern(pool.name or ""),
        generation=pool.generation or 0,
        slices=pool.resource_slice_count or 0,
        node=intern(spec.node_name or ""),
        devices=tuple(
            [_device(device, plain=not spec.skip_node_operations) for device in spec.devices or () if device.name]
        ),
    )


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


_DEVICE_CLASS: Final = msgspec.json.Decoder(_DeviceClass)


class DeviceClassRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A DeviceClass."""

    uid: str
    name: str
    resource_version: str
    extended_resource_name: str  # the resource that it also serves, "" for none
    selectors: tuple[str, ...] = ()  # the CEL expressions that a device must all match


def device_class(source: Source) -> DeviceClassRecord:
    """The record of a DeviceClass."""
    wire = read(source, _DEVICE_CLASS)
    meta = metadata(wire.metadata)
    spec = wire.spec or _DeviceClassSpec()
    return DeviceClassRecord(
        uid=meta.uid or "",
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        extended_resource_name=spec.extended_resource_name or "",
        selectors=tuple([(test.cel.expression if test.cel else None) or "" for test in spec.selectors or ()]),
    )
