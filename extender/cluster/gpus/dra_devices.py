"""Which GPU of a node's graph a device of a DRA driver is, and which NICs are near it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extender.objects.records import GpuDevice, NodeDevices
from extender.topologies.nics import near_nics
from extender.topologies.topology import NearNic, Plugin


def indices_of(devices: Sequence[GpuDevice], by_uuid: Mapping[str, int], count: int) -> dict[str, int]:
    """GpuDevice.id -> GPU index: by uuid where the graph has uuids, else by the place among all `count` GPUs of the
    node. What cannot be mapped is left out: the pod that holds it holds an unknown GPU."""
    if by_uuid:
        return {one.id: by_uuid[one.uuid] for one in devices if one.uuid in by_uuid}
    if len(devices) != count or sorted(one.place for one in devices) != list(range(count)):
        return {}
    return {one.id: one.place for one in devices}


def usable(devices: Sequence[GpuDevice], index_of: Mapping[str, int], count: int) -> int:
    """The mask of the GPUs that a pod can hold, or holds. One that cannot be mapped counts in no mask, and is missing
    in what the node offers."""
    mask = (1 << count) - 1
    for one in devices:
        if one.state != "usable" and one.id in index_of:
            mask &= ~(1 << index_of[one.id])
    return mask


def nics_of(devices: NodeDevices | None, index_of: Mapping[str, int]) -> tuple[NearNic, ...] | None:
    """The NICs of the same PCIe root as a GPU; None where a GPU has no known root or index, or no NIC is published. A
    root is a host bridge, whose devices may be under several switches."""
    if devices is None or not devices.nics or not devices.gpus:
        return None
    if any(not gpu.root or gpu.id not in index_of for gpu in devices.gpus):
        return None
    return near_nics(
        (name, [index_of[gpu.id] for gpu in devices.gpus if gpu.root == root]) for name, root in devices.nics
    )


def allocator_of(devices: NodeDevices, index_of: Mapping[str, int]) -> Plugin:
    """Which GPUs kube-scheduler takes. "first": the free ones with the lowest indices, which the slices list first;
    "unordered": others; "arbitrary": the queue cannot allocate there, because not all devices have an index, a device
    plugin offers GPUs too, or an allocation states more than the device."""
    order = [index_of.get(one.id, -1) for one in devices.gpus]
    if -1 in order or devices.plugin[1] or not all(one.plain for one in devices.gpus):
        return "arbitrary"
    return "first" if devices.first_fit and order == sorted(order) else "unordered"
