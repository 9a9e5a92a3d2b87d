"""kubelet's PodResources API: which pod holds which device, and which devices work.

Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import grpc

from extender.errors import Unreachable
from extender.node import protobuf

SERVICE = "v1.PodResourcesLister"
SECONDS = 5.0
MOST_BYTES = 64 * 2**20
OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MOST_BYTES),
)


class Held(NamedTuple):
    """The devices of one resource that a container holds."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]  # ascending


def held(socket: Path) -> list[Held]:
    """What all pods hold, in a fixed order. Raises Unreachable."""
    found: dict[tuple[str, str, str, str], set[str]] = {}
    for pod in protobuf.messages(_call(socket, "List"), 1):
        name, namespace = protobuf.text(pod, 1), protobuf.text(pod, 2)
        for container in protobuf.messages(pod, 3):
            for devices in protobuf.messages(container, 2):
                key = (namespace, name, protobuf.text(container, 1), protobuf.text(devices, 1))
                found.setdefault(key, set()).update(protobuf.texts(devices, 2))
    return [Held(*key, tuple(sorted(ids))) for key, ids in sorted(found.items()) if ids]


def healthy(socket: Path) -> dict[str, frozenset[str]]:
    """Resource -> devices that kubelet would hand out or has handed out. Raises Unreachable."""
    found: dict[str, set[str]] = {}
    for devices in protobuf.messages(_call(socket, "GetAllocatableResources"), 1):
        found.setdefault(protobuf.text(devices, 1), set()).update(protobuf.texts(devices, 2))
    return {resource: frozenset(ids) for resource, ids in found.items()}


def _call(socket: Path, method: str) -> bytes:
    try:
        with grpc.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
            return call(b"", timeout=SECONDS)
    except grpc.RpcError as error:
        raise Unreachable(f"{socket}: {error.code().name}: {error.details()}") from error
