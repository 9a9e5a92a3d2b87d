"""The GPUs of all nodes: graph, division and ledger of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ext_core.links import LinkShapes
from extender.cluster import ledger
from extender.cluster.device_plugins import Division, StatedPlugin, division, hazards
from extender.cluster.ledger import Changes, UnitLedger
from extender.cluster.statements import PLAN, Holding, NodeGpus, NodeLedger, indices, mask_of
from extender.log import Allowance, get_log
from extender.objects.nodes import GpuDevice, NodeDevices
from extender.objects.records import NodeRecord, PodRecord
from extender.settings import Settings
from extender.topologies import Topology, resolve, unknown
from extender.topologies.annotation import is_aligned, near_nics, relay_ignored, relayed
from extender.topologies.topology import NearNic, Plugin

MOST_GPUS: Final = 16  # of a node whose GPUs have positions
AWAY_SECONDS: Final = 60.0
"""A node whose device plugin offers nothing for longer has none."""
log = get_log()


class GpuColumns(NamedTuple):
    """What the table has of a node's GPUs. `shape`: of `LinkShapes`, 0 unknown; `healthy`: bit mask; `units`: of the
    resource per GPU; `hazards`: flags of ext_core.hazard; `whole`: whether the node hands out whole GPUs; `away`:
    whether its device plugin offers nothing, for AWAY_SECONDS at most."""

    shape: int = 0
    healthy: int = 0
    units: int = 1
    hazards: int = 0
    whole: bool = True
    away: bool = False


NO_GPUS: Final = GpuColumns()
NOTHING_HELD: Final = NodeLedger()


class GpuStore:
    """The GPUs of all nodes. `names`: the GPU resources; `topologies`, `divisions`, `ledgers`: by node name; `drifts`:
    planned pods, counted when they are first observed to hold GPUs; `schedulable`: nodes that offer GPUs and are not
    cordoned; `held_counts`: whether the annotation held-gpus counts."""

    def __init__(self, settings: Settings, shapes: LinkShapes, *, held_counts: bool) -> None:
        self.names = tuple(resource.name for resource in settings.resources)
        self.name_set = frozenset(self.names)
        self.held_counts = held_counts
        self.topologies: dict[str, Topology] = {}
        self.divisions: dict[str, Division] = {}
        self.ledgers: dict[str, NodeLedger] = {}
        self.drifts: Counter[ledger.Drift] = Counter()
        self.schedulable: set[str] = set()
        self._devices: dict[str, NodeGpus] = {}
        self._unit_ledgers: dict[str, UnitLedger] = {}  # of the nodes that hand out parts of GPUs
        self._away: dict[str, float] = {}  # node -> since when its device plugin offers nothing, the earliest first
        self._lost: set[str] = set()  # nodes whose device plugin has offered nothing for longer than AWAY_SECONDS
        self._plugins = {
            resource.name: StatedPlugin(resource.device_plugin, resource.plugin_version)
            for resource in settings.resources
        }
        self._shapes = shapes
        self._allowance = Allowance()

    def resource_of(self, node: NodeRecord) -> str | None:
        """The GPU resource whose devices the node's graph describes: the first that it offers."""
        for offered in (node.gpus, node.gpu_capacity):
            for name in self.names:
                if offered.get(name, 0) > 0:
                    return name
        return None

    def devices(self, node: str) -> NodeGpus | None:
        """The node's GPUs as far as its ledger depends on them; None where it offers none."""
        return self._devices.get(node)

    def indices(self, node: str) -> Mapping[str, int]:
        """Device id -> GPU index of the node's GPUs, as far as that is known."""
        devices = self._devices.get(node)
        return devices.index_of if devices is not None else {}

    def is_relayed(self, node: str) -> bool:
        """Whether the node's relay hands out the planned GPUs."""
        devices = self._devices.get(node)
        return devices is not None and devices.relayed

    def describe(self, node: NodeRecord, resource: str, now: float) -> GpuColumns:
        """Read what the node states about its GPUs, which it offers as `resource`. `now`: the server's clock."""
        offered = node.gpus.get(resource, 0)
        published = node.devices.gpus if node.devices is not None and node.devices.resource == resource else ()
        capacity = max(offered, node.gpu_capacity.get(resource, 0))
        # The labels state how a device plugin divides GPUs.
        by_driver = node.devices is not None and bool(published) and not node.devices.plugin[1]
        divided = Division(1, capacity) if by_driver else division(resource, capacity, node.labels)
        count, units = divided.gpus, max(1, divided.units)
        topology = resolve(node.annotations, node.labels, count) if count else unknown(0, divided.detail)
        if ignored := relay_ignored(node.annotations, topology):
            topology = replace(topology, disagreements=(*topology.disagreements, ignored))
        by_relay = relayed(node.annotations, topology) and not published
        index_of = {uuid: i for i, uuid in enumerate(topology.uuids) if uuid} if topology.uuids else {}
        index_of |= indices_of(published, index_of, count)
        if topology.links is not None and topology.nics is None:
            topology = replace(topology, nics=nics_of(node.devices, index_of))
        self._log_faults(node.name, topology, now)
        self.divisions[node.name], self.topologies[node.name] = divided, topology
        plugin = self._plugins[resource]
        shape = healthy = faults = 0
        if count <= MOST_GPUS and divided.units:
            healthy = _healthy(topology, count, offered, units)
            if published:
                healthy = usable(published, index_of, count)
            if divided.whole and topology.gpus == count:
                stated: Plugin = "arbitrary" if is_aligned(node.annotations) else plugin.model
                model: Plugin = "relay" if by_relay else stated
                if node.devices is not None and published:
                    model = allocator_of(node.devices, index_of)
                shape = topology.intern(self._shapes, model)
        if divided.whole and not published:
            faults = hazards(node.annotations, node.labels, plugin, topology, allocatable=offered, capacity=count)
        self._devices[node.name] = NodeGpus(
            resource,
            (1 << count) - 1 if count <= MOST_GPUS else 0,
            healthy,
            index_of,
            by_relay,
            divided.units,
        )
        (self.schedulable.discard if node.unschedulable else self.schedulable.add)(node.name)
        away = self._is_away(node.name, now) if not offered and not published else False
        if offered or published:
            self._returned(node.name)
        return GpuColumns(shape, healthy, units, faults, divided.whole, away)

    def _is_away(self, node: str, now: float) -> bool:
        return node not in self._lost and now - self._away.setdefault(node, now) <= AWAY_SECONDS

    def _returned(self, node: str) -> None:
        self._away.pop(node, None)
        self._lost.discard(node)

    def away(self, now: float) -> Iterator[str]:
        """Nodes whose device plugin offers nothing, for AWAY_SECONDS at most."""
        return (name for name, since in self._away.items() if now - since <= AWAY_SECONDS)

    def offers_nothing(self, node: str) -> bool:
        """Whether the node's device plugin offers nothing, however long."""
        return node in self._away or node in self._lost

    def lost(self, now: float) -> list[str]:
        """Nodes whose device plugin offers nothing for longer, each once."""
        lost: list[str] = []
        for name, since in self._away.items():
            if since >= now - AWAY_SECONDS:
                break
            lost.append(name)
        for name in lost:
            del self._away[name]
        self._lost.update(lost)
        return lost

    def forget(self, node: str) -> None:
        """The node offers no GPUs."""
        self.schedulable.discard(node)
        self.topologies.pop(node, None)
        self.divisions.pop(node, None)
        self._devices.pop(node, None)

    def drop(self, node: str) -> None:
        """The node does not exist any more."""
        self.forget(node)
        self.ledgers.pop(node, None)
        self._unit_ledgers.pop(node, None)
        self._returned(node)

    def _log_faults(self, node: str, topology: Topology, now: float) -> None:
        """Log what is wrong with a node's GPU graph, once a change, and not for all nodes of a fleet: /debug/topologies
        names them."""
        problems, before = (topology.warnings, topology.disagreements), self.topologies.get(node)
        if not any(problems) or (before is not None and problems == (before.warnings, before.disagreements)):
            return
        left_out = self._allowance.take(now)
        if left_out is not None:
            log.warning(
                "what a node states about its GPUs does not fit together",
                node=node,
                believed=topology.detail,
                disagreements=list(topology.disagreements) or None,
                warnings=list(topology.warnings) or None,
                left_out=left_out or None,
            )

    # -- which pod holds which --------------------------------------------------------------------------------------

    def read(self, node: str, pods: Sequence[PodRecord], settling: Container[str]) -> NodeLedger:
        """What `pods`, all on the node, hold of its GPUs. `settling`: uids of pods that are being admitted now."""
        devices = self._devices.get(node)
        if devices is None:
            return NodeLedger()
        return ledger.read(pods, devices, settling, held_counts=self.held_counts)

    def renew(self, node: str, pods: Sequence[PodRecord], settling: Container[str]) -> dict[str, Holding | None]:
        """As `read`; the result is the node's ledger from now on. The holdings that are others, by uid; None: the pod
        holds none any more."""
        before = self.ledgers.get(node, NOTHING_HELD)
        after, changes = self._renewed(node, pods, settling)
        if changes is None:
            changes = _changes(before, after)
        if any(was and now and now.how == "observed" != was.how for was, now in changes.values()):
            devices = self._devices.get(node)
            healthy, by_relay = (devices.healthy, devices.relayed) if devices is not None else (0, False)
            self.drifts.update(ledger.drifts(before, after, pods, healthy, relayed=by_relay))
        self.ledgers[node] = after
        return {uid: now for uid, (_, now) in changes.items()}

    def _renewed(
        self, node: str, pods: Sequence[PodRecord], settling: Container[str]
    ) -> tuple[NodeLedger, Changes | None]:
        devices = self._devices.get(node)
        if devices is None or devices.units == 1:
            self._unit_ledgers.pop(node, None)
            return self.read(node, pods, settling), None
        node_ledger = self._unit_ledgers.pop(node, None)  # not there while it changes: after a defect all is read anew
        if node_ledger is None or node_ledger.devices != devices:
            node_ledger = UnitLedger(devices, held_counts=self.held_counts)
        renewed = node_ledger.renew(pods, settling)
        self._unit_ledgers[node] = node_ledger
        return renewed

    def holding(self, node: str, uid: str) -> Holding | None:
        """What a pod holds of the node's GPUs."""
        ledger = self.ledgers.get(node, NOTHING_HELD)
        return next((holding for holding in ledger.holdings if holding.uid == uid), None)

    def follows_plans(self, node: str, pods: Sequence[PodRecord]) -> bool:
        """Whether the node's relay gave one of its pods the very GPUs that were planned for it."""
        if not self.is_relayed(node):
            return False
        plans = {pod.uid: pod.annotations.get(PLAN, "") for pod in pods}
        return any(_as_planned(holding, plans[holding.uid]) for holding in self.ledgers[node].holdings)


def _changes(before: NodeLedger, after: NodeLedger) -> Changes:
    known = {holding.uid: holding for holding in before.holdings}
    changes: Changes = {}
    for holding in after.holdings:
        former = known.pop(holding.uid, None)
        if former != holding:
            changes[holding.uid] = former, holding
    for uid, former in known.items():
        changes[uid] = former, None
    return changes


def _as_planned(holding: Holding, plan: str) -> bool:
    return bool(holding.gpus) and holding.how in ("observed", "enforced") and indices(plan) == holding.gpus


def _healthy(topology: Topology, count: int, offered: int, units: int) -> int:
    """The bit mask of the GPUs that work. The topology's statement is out of date where more units are offered."""
    if topology.health is not None and len(topology.health) == count:
        stated = mask_of(i for i, good in enumerate(topology.health) if good)
        if offered <= stated.bit_count() * units:
            return stated
    return (1 << count) - 1


# -- GPUs by DRA -------------------------------------------------------------------------------------------------------


def indices_of(devices: Sequence[GpuDevice], by_uuid: Mapping[str, int], count: int) -> dict[str, int]:
    """GpuDevice.id -> GPU index: by uuid where the graph has uuids, else by the place among all `count` GPUs of the
    node. What cannot be mapped is left out: the pod that holds it holds an unknown GPU."""
    if by_uuid:
        return {device.id: by_uuid[device.uuid] for device in devices if device.uuid in by_uuid}
    if len(devices) != count or sorted(device.place for device in devices) != list(range(count)):
        return {}
    return {device.id: device.place for device in devices}


def usable(devices: Sequence[GpuDevice], index_of: Mapping[str, int], count: int) -> int:
    """The mask of the GPUs that a pod can hold, or holds. One that cannot be mapped counts in no mask, and is missing
    in what the node offers."""
    mask = (1 << count) - 1
    for device in devices:
        if device.state != "usable" and device.id in index_of:
            mask &= ~(1 << index_of[device.id])
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
    order = [index_of.get(device.id, -1) for device in devices.gpus]
    if -1 in order or devices.plugin[1] or not all(device.plain for device in devices.gpus):
        return "arbitrary"
    return "first" if devices.first_fit and order == sorted(order) else "unordered"
