"""The objects of DRA: ResourceSlices, DeviceTaintRules and DeviceClasses, which state the devices that a driver
publishes, which of them are tainted, and the classes by which pods ask for them; ResourceClaims and
ResourceClaimTemplates, which state the devices that pods ask for and were allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sys import intern
from typing import Final, Literal, NamedTuple

import msgspec

from extender.objects.parts import NamespacedRecord, ObjectRecord, Shared, controller, metadata, named, namespaced
from extender.objects.schema import Metadata, NodeSelector, Present, Quantity, Reader, Wire
from extender.objects.selectors import Effect, NodeTerm, Taint, Toleration, node_terms

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
    version: str | None = None


class _Range(Wire):
    min: Quantity = None
    max: Quantity = None
    step: Quantity = None


class _Policy(Wire):
    default: Quantity = None
    valid_values: list[Quantity] | None = None
    valid_range: _Range | None = None


class _Capacity(Wire):
    value: Quantity = None
    request_policy: _Policy | None = None


class _Counter(Wire):
    value: Quantity = None


class _Taint(Wire):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class _Consumption(Wire):
    counter_set: str | None = None
    counters: dict[str, _Counter | None] | None = None
    compatibility_groups: list[str] | None = None


class _CounterSet(Wire):
    name: str | None = None
    counters: dict[str, _Counter | None] | None = None


class _Place(Wire):
    """The nodes of a slice, or of a device."""

    node_name: str | None = None
    all_nodes: bool | None = None
    node_selector: NodeSelector | None = None


class _Basic(_Place):
    attributes: dict[str, _Attribute | None] | None = None
    capacity: dict[str, _Capacity | None] | None = None
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


class _Spec(_Place):
    driver: str | None = None
    pool: _Pool | None = None
    per_device_node_selection: bool | None = None
    devices: list[_Device] | None = None
    shared_counters: list[_CounterSet] | None = None
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


Amounts = tuple[tuple[str, str], ...]
"""Names with quantities, as they are written."""


class Attribute(NamedTuple):
    """The value of an attribute. `kind`: string, int, bool, version; "" for one that we cannot read."""

    kind: str
    value: str | int | bool


class Capacity(NamedTuple):
    """A quantity of a device, and what a request for it may have. None: it is not stated."""

    value: str
    default: str | None = None
    values: tuple[str, ...] | None = None  # a request is rounded up to one of these
    least: str | None = None  # or to a number of steps from this on
    most: str | None = None
    step: str | None = None


class Place(NamedTuple):
    """The nodes of a slice, or of a device of one."""

    node: str = ""
    every: bool = False
    terms: tuple[NodeTerm, ...] | None = None  # of a nodeSelector

    def has(self, node: str, labels: Mapping[str, str] | None) -> bool:
        """Whether a node is one of them. `labels`: None where the node is not known."""
        if self.node:
            return self.node == node
        return self.every or any(term.matches(node, labels or {}) for term in self.terms or ())


NOWHERE: Final = Place()


class DeviceRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A device of a slice; of the attributes that we use themselves "" and None where the driver publishes none."""

    name: str
    attributes: tuple[tuple[str, Attribute], ...] = ()  # by name as stated
    capacity: tuple[tuple[str, Capacity], ...] = ()
    consumes: tuple[tuple[str, Amounts], ...] = ()  # counter set -> of its counters
    grouped: bool = False  # whether it has compatibility groups
    place: Place = NOWHERE  # where its slice has places of single devices
    conditions: bool = False  # whether it has binding conditions
    kind: str = ""  # the attribute type (NVIDIA: gpu, mig, vfio)
    uuid: str = ""
    index: int | None = None  # the attribute index
    pci: str = ""  # its PCI address
    root: str = ""  # its PCIe root
    rdma: bool = False  # whether it is a network device with RDMA (dra.net)
    taints: tuple[Taint, ...] = ()  # those of BLOCKING
    shared: bool = False  # whether several claims may have a part of it each
    plain: bool = True  # an allocation of it states nothing but the device

    @property
    def counters(self) -> tuple[str, ...]:
        """The counter sets that it consumes."""
        return tuple([name for name, _ in self.consumes])


class ResourceSliceRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceSlice."""

    driver: str
    pool: str
    generation: int
    slices: int  # how many slices its pool has in this generation
    node: str  # "" where its devices are not those of one node
    devices: tuple[DeviceRecord, ...]
    place: Place = NOWHERE  # its nodes; none where each device has its own
    by_device: bool = False
    counters: tuple[tuple[str, Amounts], ...] = ()  # by counter set
    unnamed: int = 0  # devices without a name, which are left out


class DeviceTaintRuleRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A DeviceTaintRule."""

    driver: str  # of the devices that it taints, "" for any; so are `pool` and `device`
    pool: str
    device: str
    taint: str  # the key, "" where it keeps no claim off, or selects no device
    value: str = ""  # of the taint
    effect: str = ""


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
        value=taint.value or "",
        effect=intern(taint.effect or ""),
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
        place=_place(spec),
        unnamed=sum(not device.name for device in spec.devices or ()),
        by_device=bool(spec.per_device_node_selection),
        counters=tuple([(intern(part.name or ""), _counters(part.counters)) for part in spec.shared_counters or ()]),
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
        attributes=tuple([_attributes((intern(name), _attribute(value))) for name, value in stated.items()]),
        capacity=_capacities(
            tuple([(intern(name), _capacity(amount)) for name, amount in (wire.capacity or {}).items()])
        ),
        consumes=tuple(
            [
                _consumed((intern(part.counter_set or ""), _counters(part.counters)))
                for part in wire.consumes_counters or ()
            ]
        ),
        grouped=any(part.compatibility_groups for part in wire.consumes_counters or ()),
        place=_place(wire),
        conditions=wire.binding_conditions is not None,
        taints=tuple([_taint(taint) for taint in wire.taints or () if taint.effect in BLOCKING]),
        shared=bool(wire.allow_multiple_allocations),
        plain=plain and not (wire.binds_to_node or wire.binding_conditions or wire.node_allocatable_resources),
    )


_attributes: Final = Shared[tuple[str, Attribute]]()
_capacities: Final = Shared[tuple[tuple[str, Capacity], ...]]()
_consumed: Final = Shared[tuple[str, Amounts]]()


def _attribute(wire: _Attribute | None) -> Attribute:
    if wire is None:
        return Attribute("", "")
    if wire.text is not None:
        return Attribute("string", wire.text)
    if wire.number is not None:
        return Attribute("int", wire.number)
    if wire.truth is not None:
        return Attribute("bool", wire.truth)
    return Attribute("", "") if wire.version is None else Attribute("version", wire.version)


def _quantity(text: Quantity) -> str:
    return intern("0" if text is None else text if isinstance(text, str) else repr(text))


def _optional(text: Quantity) -> str | None:
    return None if text is None else _quantity(text)


def _capacity(wire: _Capacity | None) -> Capacity:
    if wire is None:
        return Capacity("0")
    policy = wire.request_policy or _Policy()
    span = policy.valid_range or _Range()
    return Capacity(
        _quantity(wire.value),
        _optional(policy.default),
        None if policy.valid_values is None else tuple([_quantity(text) for text in policy.valid_values]),
        _optional(span.min),
        _optional(span.max),
        _optional(span.step),
    )


def _counters(wire: dict[str, _Counter | None] | None) -> Amounts:
    return tuple([(intern(name), _quantity(part.value if part else None)) for name, part in (wire or {}).items()])


def _place(wire: _Place) -> Place:
    if wire.node_name:
        return Place(intern(wire.node_name))
    if wire.all_nodes:
        return Place(every=True)
    return NOWHERE if wire.node_selector is None else Place(terms=node_terms(wire.node_selector, "spec.nodeSelector"))


def _taint(wire: _Taint) -> Taint:
    effect: Effect = "NoExecute" if wire.effect == "NoExecute" else "NoSchedule"
    return Taint(intern(wire.key or ""), intern(wire.value or ""), effect)


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
        selectors=_expressions(spec.selectors),
    )


def _expressions(selectors: list[_ClassSelector] | None) -> tuple[str, ...]:
    """The CEL expressions of selectors, "" for one of another kind."""
    return tuple([(test.cel.expression if test.cel else None) or "" for test in selectors or ()])


device_class: Final = Reader(_DeviceClass, _device_class_of)


# -- ResourceClaims and ResourceClaimTemplates -------------------------------------------------------------------------

MOST_SELECTORS: Final = 1 << 14  # characters of all selectors of a claim, which take 10 ms
MOST_COUNT: Final = 100_000  # devices of a request: more than any node has
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""The allocator of a claim adds it. Without it the claim controller never deallocates the claim."""
PLANNED_NODE: Final = "gpu-extender.io/planned-node"
"""The annotation of a ResourceClaim whose allocation the queue writes: the node of the devices."""


class _Toleration(Wire):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Amounts(Wire):
    requests: dict[str, Quantity] | None = None


class _Exactly(Wire):
    name: str | None = None
    device_class_name: str | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    selectors: list[_ClassSelector] | None = None
    tolerations: list[_Toleration] | None = None
    capacity: _Amounts | None = None
    derived_attributes: list[Present] | None = None


class _Request(_Exactly):
    """Its own fields state the one alternative in `resource.k8s.io/v1beta1`, `exactly` in later versions."""

    exactly: _Exactly | None = None
    first_available: list[_Exactly] | None = None


class _Constraint(Wire):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Devices(Wire):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None


class _ClaimSpec(Wire):
    devices: _Devices | None = None


class _Result(Wire):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    admin_access: bool | None = None
    share: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None


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
    name: str = ""  # of the alternative, "" where the request has only this choice
    admin: bool = False  # admin access, which takes no device from others
    selectors: tuple[str, ...] = ()  # the CEL expressions that a device must all match
    tolerations: tuple[Toleration, ...] = ()
    capacity: Amounts = ()  # of each device
    derived: bool = False  # it has derived attributes, which kube-scheduler rejects where they are not switched on


class DeviceRequest(NamedTuple):
    """A request of a claim. `choices`: the preferred first; none where what it asks for cannot be read."""

    name: str
    choices: tuple[DeviceChoice, ...]


class Constraint(NamedTuple):
    """Of the devices of a claim: all have the same value of an attribute, or all another one."""

    attribute: str
    distinct: bool
    requests: tuple[str, ...] = ()  # of which it holds, as REQUEST or REQUEST/ALTERNATIVE; () for all


class ClaimSpec(NamedTuple):
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def choices(self) -> Iterator[DeviceChoice]:
        """Those of all requests."""
        return (choice for request in self.requests for choice in request.choices)


class AllocatedDevice(NamedTuple):
    """A device as an allocation names it."""

    driver: str
    pool: str
    device: str


class Share(NamedTuple):
    """A part of a device that several claims have a part of each."""

    device: AllocatedDevice
    amounts: Amounts


class ResourceClaimRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceClaim."""

    spec: ClaimSpec
    # what `status.allocation` states, None without an allocation, devices with admin access left out
    allocated: tuple[AllocatedDevice, ...] | None
    shares: tuple[Share, ...] = ()  # those of them of which it has a part
    reserved: tuple[str, ...]  # uids of the pods that `status.reservedFor` names
    planned_node: str = ""  # PLANNED_NODE, "" without it
    pod: str = ""  # uid of the pod that it was created for, and is deleted with, "" for none
    returns: bool = False  # whether the claim controller deallocates it once none of `reserved` is there
    terminating: bool = False  # it is being deleted, and is allocated to no pod any more


class ResourceClaimTemplateRecord(NamespacedRecord, frozen=True, gc=False, kw_only=True):
    """A ResourceClaimTemplate."""

    spec: ClaimSpec


def _claim_of(wire: _Claim, _: frozenset[str]) -> ResourceClaimRecord:
    meta = metadata(wire.metadata)
    status = wire.status or _ClaimStatus()
    owner, consumers = controller(meta), status.reserved_for or ()
    finalizers = (wire.metadata.finalizers if wire.metadata else None) or ()
    return ResourceClaimRecord(
        **namespaced(meta),
        spec=_claim_spec(wire.spec),
        allocated=None if status.allocation is None else _allocated(status.allocation),
        shares=() if status.allocation is None else _shares(status.allocation),
        reserved=tuple([consumer.uid for consumer in consumers if consumer.uid and _is_pod(consumer)]),
        planned_node=intern((meta.annotations or {}).get(PLANNED_NODE) or ""),
        pod=owner.uid if owner is not None and (owner.api, owner.kind) == ("", "Pod") else "",
        returns=FINALIZER in finalizers and all(consumer.uid and _is_pod(consumer) for consumer in consumers),
        terminating=meta.deletion_timestamp is not None,
    )


resource_claim: Final = Reader(_Claim, _claim_of)


def _template_of(wire: _Template, _: frozenset[str]) -> ResourceClaimTemplateRecord:
    spec = _claim_spec(wire.spec.spec if wire.spec else None)
    return ResourceClaimTemplateRecord(**namespaced(metadata(wire.metadata)), spec=spec)


resource_claim_template: Final = Reader(_Template, _template_of)


def _is_pod(consumer: _Consumer) -> bool:
    return consumer.resource == "pods" and not consumer.api_group


def _allocated(wire: _Allocation) -> tuple[AllocatedDevice, ...]:
    return tuple([_device_of(result) for result in _results(wire)])


def _shares(wire: _Allocation) -> tuple[Share, ...]:
    return tuple(
        [
            Share(_device_of(result), _requested(result.consumed_capacity))
            for result in _results(wire)
            if result.share is not None
        ]
    )


def _results(wire: _Allocation) -> list[_Result]:
    return [result for result in (wire.devices.results if wire.devices else None) or () if not result.admin_access]


def _device_of(result: _Result) -> AllocatedDevice:
    return AllocatedDevice(intern(result.driver or ""), intern(result.pool or ""), intern(result.device or ""))


def _requested(wire: dict[str, Quantity] | None) -> Amounts:
    return tuple([(intern(name), _quantity(text)) for name, text in (wire or {}).items()])


_specs: Final = Shared[ClaimSpec](256)


def _claim_spec(spec: _ClaimSpec | None) -> ClaimSpec:
    devices = (spec.devices if spec else None) or _Devices()
    requests = [_request(request) for request in devices.requests or ()]
    length = sum(len(text) for request in requests for choice in request.choices for text in choice.selectors)
    return _specs(
        ClaimSpec(
            tuple(requests if length <= MOST_SELECTORS else map(_unread, requests)),
            tuple(
                [
                    Constraint(
                        constraint.match_attribute or constraint.distinct_attribute or "",
                        constraint.match_attribute is None,
                        tuple(constraint.requests or ()),
                    )
                    for constraint in devices.constraints or ()
                ]
            ),
        )
    )


def _unread(request: DeviceRequest) -> DeviceRequest:
    """The request with a selector that cannot be evaluated instead of those that it has."""
    return request._replace(
        choices=tuple([choice._replace(selectors=("",) * bool(choice.selectors)) for choice in request.choices])
    )


def _request(wire: _Request) -> DeviceRequest:
    if wire.exactly is not None or wire.device_class_name is not None:
        choices = [_choice(wire if wire.exactly is None else wire.exactly, "")]
    else:
        choices = [_choice(choice, choice.name or "") for choice in wire.first_available or ()]
    return DeviceRequest(intern(wire.name or ""), tuple(choices))


def _choice(wire: _Exactly, name: str) -> DeviceChoice:
    count = 0 if wire.allocation_mode == "All" else min(max(1 if wire.count is None else wire.count, 1), MOST_COUNT)
    return DeviceChoice(
        intern(wire.device_class_name or ""),
        count,
        intern(name),
        bool(wire.admin_access),
        _expressions(wire.selectors),
        # One of another effect, such as None, tolerates no taint that keeps claims off a device.
        tuple(
            [
                _tolerated(toleration)
                for toleration in wire.tolerations or ()
                if not toleration.effect or toleration.effect in BLOCKING
            ]
        ),
        _requested(wire.capacity.requests if wire.capacity else None),
        bool(wire.derived_attributes),
    )


def _tolerated(wire: _Toleration) -> Toleration:
    operator: Literal["Equal", "Exists"] = "Exists" if wire.operator == "Exists" else "Equal"
    effect: Effect | Literal[""] = ""
    if wire.effect:
        effect = "NoExecute" if wire.effect == "NoExecute" else "NoSchedule"
    return Toleration(wire.key or "", operator, wire.value or "", effect)
