"""Messages of kubelet's APIs that the agent and the relay read or change: device plugins (v1beta1) and PodResources.

They are few, so their wire format is read and written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc

from extender.errors import Unreachable

# -- the wire format of Protocol Buffers, as much as these messages need
#
# A message is a row of fields: a key (number and kind as one varint), then the value. A field that comes twice counts
# the second time, and two messages in one field are merged: so appending changes a message, whatever else it holds.
# Source: protobuf.dev/programming-guides/encoding.


_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes that are no message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) in the order they stand there: int for a varint, bytes for anything else. Raises Malformed."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise Malformed(f"field {number} is of kind {kind}")
        if at + size > len(message):
            raise Malformed(f"field {number} ends after the message")
        yield number, message[at : at + size]
        at += size


def messages(message: bytes, number: int) -> list[bytes]:
    """The values of a repeated field of messages, texts or bytes."""
    return [value for at, value in fields(message) if at == number and isinstance(value, bytes)]


def texts(message: bytes, number: int) -> list[str]:
    """The values of a repeated field of texts."""
    try:
        return [value.decode() for value in messages(message, number)]
    except UnicodeDecodeError as error:
        raise Malformed(f"field {number} is no text") from error


def text(message: bytes, number: int) -> str:
    """The value of a field of text; "" where it is not there."""
    return (texts(message, number) or [""])[-1]


def integer(message: bytes, number: int) -> int:
    """The value of a field of a whole number; 0 where it is not there."""
    values = [value for at, value in fields(message) if at == number and isinstance(value, int)]
    return values[-1] if values else 0


def field(number: int, value: int | bytes | str) -> bytes:
    """One field: a whole number from 0 on, or a text, or bytes."""
    if isinstance(value, int):
        return _as_varint(number << 3 | _VARINT) + _as_varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(value)) + value


def repeated(number: int, values: Iterable[bytes | str]) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise Malformed("a number has no end")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- the messages of kubelet's device plugin API (v1beta1) that the relay reads or changes; the rest passes through.
#
# Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.


REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
KUBELET_SOCKET = "kubelet.sock"
HEALTHY = "Healthy"


class Registration(NamedTuple):
    """RegisterRequest: where a plugin serves and what."""

    endpoint: str  # the socket's name in the plugin folder
    resource: str
    prefers: bool  # it answers GetPreferredAllocation


class ContainerPreference(NamedTuple):
    """ContainerPreferredAllocationRequest."""

    available: list[str]  # device ids, the `must` ones included
    must: list[str]
    size: int


def registration(request: bytes) -> Registration:
    """The plugin's RegisterRequest, decoded. Raises Malformed."""
    options = b"".join(messages(request, 4))
    return Registration(text(request, 2), text(request, 3), bool(integer(options, 2)))


def register_as(request: bytes, endpoint: str, *, prefers: bool) -> bytes:
    """The plugin's RegisterRequest with our endpoint; with `prefers` it also states that preferences are answered."""
    changed = request + field(2, endpoint)
    return changed + field(4, preferring(b"")) if prefers else changed


def preferring(options: bytes) -> bytes:
    """DevicePluginOptions that also say that GetPreferredAllocation is answered."""
    return options + field(2, 1)


def devices(listed: bytes) -> dict[str, bool]:
    """Device id -> healthy, from a ListAndWatchResponse."""
    return {text(d, 1): text(d, 2) == HEALTHY for d in messages(listed, 1)}


def asked(request: bytes) -> list[ContainerPreference]:
    """One entry a container, from a PreferredAllocationRequest. kubelet asks for one container at a time."""
    return [ContainerPreference(texts(entry, 1), texts(entry, 2), integer(entry, 3)) for entry in messages(request, 1)]


def ask(question: ContainerPreference) -> bytes:
    """A PreferredAllocationRequest for one container."""
    available, must, size = question
    request = repeated(1, available) + repeated(2, must) + field(3, size)
    return field(1, request)


def prefer(ids: list[str]) -> bytes:
    """One ContainerPreferredAllocationResponse inside a PreferredAllocationResponse; appended, the next container's."""
    return field(1, repeated(1, ids))


def allocated(request: bytes) -> list[list[str]]:
    """The device ids of each container in an AllocateRequest."""
    return [texts(entry, 1) for entry in messages(request, 1)]


# -- the PodResources API: which pod holds which device, and which devices work
#
# Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.


SERVICE = "v1.PodResourcesLister"
SECONDS = 5.0
MOST_BYTES = 64 * 2**20
OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MOST_BYTES),
)


class HeldDevices(NamedTuple):
    """The devices of one resource that a container holds."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]  # ascending


class Kubelet:
    """This node's kubelet, at the socket of its PodResources. Raises Unreachable."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def held(self) -> list[HeldDevices]:
        """What all pods of the node hold, in a fixed order."""
        devices_of: dict[tuple[str, str, str, str], set[str]] = {}
        for pod in messages(self._call("List"), 1):
            name, namespace = text(pod, 1), text(pod, 2)
            for container in messages(pod, 3):
                for devices in messages(container, 2):
                    key = (namespace, name, text(container, 1), text(devices, 1))
                    devices_of.setdefault(key, set()).update(texts(devices, 2))
        return [HeldDevices(*key, tuple(sorted(ids))) for key, ids in sorted(devices_of.items()) if ids]

    def healthy(self, resource: str) -> frozenset[str]:
        """The devices of a resource that kubelet would hand out or has handed out."""
        listed = messages(self._call("GetAllocatableResources"), 1)
        return frozenset(id for devices in listed if text(devices, 1) == resource for id in texts(devices, 2))

    def _call(self, method: str) -> bytes:
        try:
            with grpc.insecure_channel(f"unix:{self._socket}", options=OPTIONS) as channel:
                call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
                return call(b"", timeout=SECONDS)
        except grpc.RpcError as error:
            raise Unreachable(f"{self._socket}: {error.code().name}: {error.details()}") from error
