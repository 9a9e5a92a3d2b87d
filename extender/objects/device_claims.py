"""ResourceClaims and ResourceClaimTemplates (DRA): which devices pods ask for, and which ones they were allocated."""

from __future__ import annotations

from sys import intern
from typing import Final, NamedTuple

import msgspec

from extender.objects.parts import controller, metadata
from extender.objects.schema import Metadata, Present, Source, Wire, read

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


class ClaimWire(Wire):
    """A ResourceClaim."""

    metadata: _ClaimMetadata | None = None
    spec: _ClaimSpec | None = None
    status: _ClaimStatus | None = None


class _TemplateSpec(Wire):
    spec: _ClaimSpec | None = None


class TemplateWire(Wire):
    """A ResourceClaimTemplate."""

    metadata: Metadata | None = None
    spec: _TemplateSpec | None = None


_CLAIM: Final = msgspec.json.Decoder(ClaimWire)
_TEMPLATE: Final = msgspec.json.Decoder(TemplateWire)


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


class ResourceClaimRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A ResourceClaim."""

    uid: str
    namespace: str
    name: str
    resource_version: str
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


class ResourceClaimTemplateRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A ResourceClaimTemplate."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    requests: tuple[tuple[DeviceChoice, ...], ...]  # as of ResourceClaimRecord


def resource_claim(source: Source) -> ResourceClaimRecord:
    """The record of a ResourceClaim. Without a namespace it is in "default", as kubectl has it."""
    return claim_of(read(source, _CLAIM))


def claim_of(wire: ClaimWire) -> ResourceClaimRecord:
    """The record of a decoded ResourceClaim."""
    meta = metadata(wire.metadata)
    status = wire.status or _ClaimStatus()
    owner, consumers = controller(meta), status.reserved_for or ()
    finalizers = (wire.metadata.finalizers if wire.metadata else None) or ()
    return ResourceClaimRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        requests=_requests(wire.spec),
        allocated=None if status.allocation is None else _allocated(status.allocation),
        reserved=tuple([consumer.uid for consumer in consumers if consumer.uid and _is_pod(consumer)]),
        planned_node=intern((meta.annotations or {}).get(PLANNED_NODE) or ""),
        pod=owner.uid if owner is not None and (owner.api, owner.kind) == ("", "Pod") else "",
        returns=FINALIZER in finalizers and all(consumer.uid and _is_pod(consumer) for consumer in consumers),
        terminating=meta.deletion_timestamp is not None,
    )


def resource_claim_template(source: Source) -> ResourceClaimTemplateRecord:
    """The record of a ResourceClaimTemplate."""
    return template_of(read(source, _TEMPLATE))


def template_of(wire: TemplateWire) -> ResourceClaimTemplateRecord:
    """The record of a decoded ResourceClaimTemplate."""
    meta = metadata(wire.metadata)
    return ResourceClaimTemplateRecord(
        uid=meta.uid or "",
        namespace=intern(meta.namespace or "default"),
        name=meta.name or "",
        resource_version=meta.resource_version or "",
        requests=_requests(wire.spec.spec if wire.spec else None),
    )


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
