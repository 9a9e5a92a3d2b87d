"""The messages of kubelet's device plugin API (v1beta1) that the relay reads or changes; the rest passes through.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
"""

from __future__ import annotations

from typing import NamedTuple

from extender.node import protobuf

REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
KUBELET_SOCKET = "kubelet.sock"
HEALTHY = "Healthy"


class Registration(NamedTuple):
    """RegisterRequest: where a plugin serves and what."""

    endpoint: str  # the socket's name in the plugin folder
    resource: str
    prefers: bool  # it answers GetPreferredAllocation


class Asked(NamedTuple):
    """ContainerPreferredAllocationRequest."""

    available: list[str]  # device ids, the `must` ones included
    must: list[str]
    size: int


def registration(request: bytes) -> Registration:
    """The plugin's RegisterRequest, decoded. Raises Malformed."""
    options = b"".join(protobuf.messages(request, 4))
    return Registration(protobuf.text(request, 2), protobuf.text(request, 3), bool(protobuf.integer(options, 2)))


def register_as(request: bytes, endpoint: str, *, prefers: bool) -> bytes:
    """The plugin's RegisterRequest with our endpoint; with `prefers` it also says that preferences are answered."""
    changed = request + protobuf.field(2, endpoint)
    return changed + protobuf.field(4, preferring(b"")) if prefers else changed


def preferring(options: bytes) -> bytes:
    """DevicePluginOptions that also say that GetPreferredAllocation is answered."""
    return options + protobuf.field(2, 1)


def devices(listed: bytes) -> dict[str, bool]:
    """Device id -> healthy, from a ListAndWatchResponse."""
    return {protobuf.text(d, 1): protobuf.text(d, 2) == HEALTHY for d in protobuf.messages(listed, 1)}


def asked(request: bytes) -> list[Asked]:
    """One entry a container, from a PreferredAllocationRequest. kubelet asks for one container at a time."""
    return [
        Asked(protobuf.texts(one, 1), protobuf.texts(one, 2), protobuf.integer(one, 3))
        for one in protobuf.messages(request, 1)
    ]


def ask(question: Asked) -> bytes:
    """A PreferredAllocationRequest for one container."""
    available, must, size = question
    said = protobuf.repeated(1, available) + protobuf.repeated(2, must) + protobuf.field(3, size)
    return protobuf.field(1, said)


def prefer(ids: list[str]) -> bytes:
    """One ContainerPreferredAllocationResponse inside a PreferredAllocationResponse; appended, the next container's."""
    return protobuf.field(1, protobuf.repeated(1, ids))


def allocated(request: bytes) -> list[list[str]]:
    """The device ids of each container in an AllocateRequest."""
    return [protobuf.texts(one, 1) for one in protobuf.messages(request, 1)]
