"""A node's GPUs by DRA beside those of its device plugin: each counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.cluster.device_plugins import COUNT
from extender.cluster.dra.resource_slices import Published
from extender.objects.devices import ClaimSpec
from extender.objects.nodes import DeviceState, GpuDevice, NodeDevices
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import Taint, Toleration, tolerates

Nics = tuple[tuple[str, str], ...]
"""As of NodeDevices."""
Held = Callable[[str], bool | None]
"""Of a GpuDevice.id: None where it is not allocated, else whether a pod of its node holds it."""


class Allocation(NamedTuple):
    """What is known of devices beside their slices. `taints`: those that keep claims off a device; `served`: as of
    NodeDevices."""

    held: Held
    taints: Callable[[Published], tuple[Taint, ...]]
    served: bool


CLAIMS_ALONE: Final = "gpus-by-claims-alone"
NO_DEVICES: Final = "no-gpus-by-claims"
ELSEWHERE: Final = "claim-elsewhere"


class GpuAsk(NamedTuple):
    """How a pod asks for GPUs. `itself`: the resources that it asks for; `claims`: whether it asks by claims too;
    `node`: as `claim_node` of the pod."""

    itself: frozenset[str]
    claims: bool
    node: str

    @classmethod
    def of(cls, pod: PodRecord) -> GpuAsk:
        """As the cluster has the pod."""
        claimed = {name: max(0, count) for name, count in pod.claimed}
        itself = frozenset([name for name, count in pod.gpus if count > claimed.get(name, 0)])
        return cls(itself, any(claimed.values()), pod.claim_node)

    def mismatch(self, node: NodeRecord) -> str:
        """Why the node gives such a pod no GPUs, however many are free: CLAIMS_ALONE where it asks for the resource,
        NO_DEVICES where it asks by claims, ELSEWHERE where a claim of it is used on another node; "" where it may get
        them."""
        devices = node.devices
        if self.node and self.node != node.name:
            return ELSEWHERE
        if self.claims and (devices is None or not devices.gpus):
            return NO_DEVICES
        if devices is None or devices.resource not in self.itself:
            return ""
        return CLAIMS_ALONE if devices.for_claims_alone else ""


def bare(node: NodeRecord) -> NodeRecord:
    """The node as its device plugin has it."""
    devices = node.devices
    if devices is None:
        return node
    gpus, capacity = dict(node.gpus), dict(node.gpu_capacity)
    for amounts, count in zip((gpus, capacity), devices.plugin, strict=True):
        amounts.pop(devices.resource, None)
        if count is not None:
            amounts[devices.resource] = count
    return replace(node, gpus=_sorted(gpus), gpu_capacity=_sorted(capacity), devices=None)


def with_devices(
    node: NodeRecord,
    resource: str,
    pools: Sequence[Sequence[Published]],
    known: Allocation,
    *,
    every: bool,
    nics: Nics = (),
) -> NodeRecord:
    """The bare node with what its pools publish. `resource`: that the whole GPUs count as; `every`: a DeviceClass that
    serves it selects all of them; `nics`: as of NodeDevices."""
    gpus, others = [], 0
    for devices in pools:
        whole = [published for published in devices if published.whole]
        others += len(devices) - len(whole)
        gpus += [
            GpuDevice(
                published.id,
                published.device.uuid,
                published.place,
                state := _state(published, devices, known),
                published.device.plain,
                published.device.root,
                known.taints(published) if state == "tainted" else (),
            )
            for published in whole
        ]
    plugin = node.gpus.get(resource), node.gpu_capacity.get(resource)
    first_fit = every and len(pools) == 1 and not plugin[1]
    node_devices = NodeDevices(resource, tuple(gpus), plugin, others, first_fit, nics, known.served)
    if not gpus:
        return replace(node, devices=node_devices)
    offered, capacity = _together(node_devices, node.labels)
    return replace(
        node,
        gpus=_sorted(node.gpus | {resource: offered}),
        gpu_capacity=_sorted(node.gpu_capacity | {resource: capacity}),
        devices=node_devices,
    )


def _state(published: Published, pool: Sequence[Published], known: Allocation) -> DeviceState:
    held = known.held
    by_pod = held(published.id)
    if by_pod is not None:
        return "usable" if by_pod else "allocated"
    counters = set(published.device.counters)
    if counters and any(counters.intersection(other.device.counters) for other in pool if held(other.id) is not None):
        return "divided"
    return "tainted" if known.taints(published) else "usable"


class Tolerance(NamedTuple):
    """What a request tolerates of devices. `number`: of devices that it asks for, 0 for all of a node."""

    tolerations: tuple[Toleration, ...]
    number: int


def tolerances(specs: Iterable[ClaimSpec]) -> tuple[Tolerance, ...]:
    """Of the requests of these claims that take devices from others."""
    choices = (choice for spec in specs for choice in spec.choices)
    return tuple([Tolerance(choice.tolerations, choice.number) for choice in choices if choice.tolerations])


def tolerated(devices: NodeDevices, tolerated_by: Sequence[Tolerance]) -> tuple[int, list[str]]:
    """(how many of the tainted GPUs pods with these tolerances may take at most, which of them: GpuDevice.id)."""
    sets = {tolerance.tolerations for tolerance in tolerated_by}
    gpus = [gpu.id for gpu in devices.gpus if gpu.taints and any(tolerates(by, gpu.taints) for by in sets)]
    every = any(not tolerance.number for tolerance in tolerated_by)
    return len(gpus) if every else min(len(gpus), sum(tolerance.number for tolerance in tolerated_by)), gpus


def _together(devices: NodeDevices, labels: Mapping[str, str]) -> tuple[int, int]:
    """(allocatable, capacity) of plugin and driver together. Both offer the same GPUs where the numbers are equal, or
    together more than the label nvidia.com/gpu.count has; else they offer different ones."""
    published = len(devices.gpus)
    plugin = devices.plugin[1] or 0
    stated = labels.get(COUNT, "")
    physical = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 7 else plugin + published
    if plugin == published:
        physical = min(physical, plugin)
    capacity = max(plugin, published, min(plugin + published, physical))
    missing = devices.unusable + plugin - min(plugin, devices.plugin[0] or 0)
    return max(0, capacity - missing), capacity


def _sorted(amounts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(amounts.items()))


def with_number(pod: PodRecord, number: int) -> PodRecord:
    """A pod with `claim_numbers` that takes so many GPUs by claims."""
    resource = resource_by_claims(pod)
    before = dict(pod.claimed)[resource]
    gpus, claimed = dict(pod.gpus), dict(pod.claimed) | {resource: number}
    gpus[resource] += number - before
    return replace(pod, gpus=tuple(sorted(gpus.items())), claimed=tuple(sorted(claimed.items())))


def resource_by_claims(pod: PodRecord) -> str:
    """The resource as which the GPUs of a pod with `claim_numbers` count."""
    return next(resource for resource, count in pod.claimed if count > 0)


def size(node: NodeRecord | None) -> int:
    """How many GPUs are published for the node."""
    return 0 if node is None or node.devices is None else len(node.devices.gpus)


def taken(numbers: Sequence[int], left: int, whole: int) -> int:
    """Which of the `claim_numbers` of a pod kube-scheduler allocates on a node of `whole` GPUs, of which no pod holds
    `left`: the first that they are enough for. That GPUs are reserved it does not know. The least where none is."""
    counts = [number or whole for number in numbers]
    return next((number for number in counts if number <= left), min(counts))


def most(pod: PodRecord, size: int) -> int:
    """The most GPUs that the claims of a pod with `claim_numbers` take of a node for which so many are published; what
    they take at least where that is more than the node has."""
    counts = [number or size for number in pod.claim_numbers]
    return max([number for number in counts if number <= size], default=min(counts))
