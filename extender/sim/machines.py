"""GPU machines of the catalogue, as simulated nodes need them."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import combinations, permutations
from typing import Any, Literal, Protocol

from extender.topologies import Topology
from extender.topologies.reading import ids

# -- what a stock device plugin answers when kubelet asks which GPUs to hand out.
#
# Pure models: no I/O, and every random choice comes from the caller's ``random.Random``. They exist because
# kubelet asks the plugin *after* the scheduler has bound the pod, and the plugin never learns which pod it
# is: our plan for the pod's GPUs holds only where the plugin would have chosen the same ones anyway.


Model = Literal["nvidia", "amd", "none"]
LinkScope = Literal["pair", "gpu-total"]
Matrix = Sequence[Sequence[int]]
Levels = Sequence[Sequence[str]]

# Points of one pair for the path between the two GPUs, as NVIDIA's best-effort rule counts them.
_NVIDIA_PATH = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVIDIA_PER_LINK = 100
_NVIDIA_MOST_LINKS = 18

# Weights of one pair (less is better) in AMD's rule. Two whole GPUs are never the same device.
_AMD_OTHER_DEVICE = 20
_AMD_XGMI, _AMD_PCIE = 10, 40
_AMD_SAME_NUMA, _AMD_OTHER_NUMA = 10, 20


class PluginPanicked(Exception):
    """The plugin process would crash on this request: kubelet fails the pod's admission."""


class TooFewDevices(ValueError):
    """Fewer devices are available than asked for, or the forced ones are more or are not available."""


class SimDevicePlugin(Protocol):
    """The one question of the device plugin API that matters for topology."""

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """``size`` GPU indices out of ``available``, all of ``must_include`` among them."""
        ...


class Arbitrary:
    """No preference, as with plugins that do not implement the question: kubelet takes what comes first."""

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The forced GPUs and a uniformly random rest."""
        _check(available, size, must_include)
        rest = sorted(set(available) - set(must_include))
        return frozenset(must_include) | frozenset(rng.sample(rest, size - len(set(must_include))))


class NvidiaBestEffort:
    """NVIDIA's best-effort rule, which plans as if every later pod would ask for the same size.

    It splits *all* available GPUs into sets of the requested size, one of them filled up with empty places when
    they do not divide, takes the split with the highest sum of pair points over all its sets, and answers the best
    set of that split. Comparisons are strict, so among equals the first in kubelet's (random) order wins.
    An empty place scores nothing but may stand in the answer; the real plugin then crashes.
    """

    def __init__(self, links: Matrix, pcie: Levels | None, link_scope: LinkScope = "pair") -> None:
        """``links[i][j]`` counts links; ``pcie[i][j]`` names the path; unknown paths count as SYS.

        With ``link_scope`` "gpu-total" links end in a switch. The plugin only counts a link whose far end
        is the other GPU, so it sees none of them.
        """
        size = len(links)
        self._pair = [[0] * size for _ in range(size)]
        for a, b in combinations(range(size), 2):
            seen = min(links[a][b], _NVIDIA_MOST_LINKS) if link_scope == "pair" else 0
            path = _NVIDIA_PATH[pcie[a][b] if pcie is not None else "SYS"]
            self._pair[a][b] = self._pair[b][a] = path + _NVIDIA_PER_LINK * seen
        self._best: dict[tuple[int, int, int, int], int] = {}

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The best set of the best split; PluginPanicked when that set has an empty place."""
        _check(available, size, must_include)
        order = sorted(available)
        rng.shuffle(order)
        if size == 0:
            return frozenset()
        if size == len(order):
            return frozenset(order)
        if size == 1:
            # Every single GPU scores 0, so the first one in the shuffled order stays the best.
            return frozenset(must_include) or frozenset(order[:1])
        forced = _mask(must_include)
        split = self._first_best_split(order, size, forced)
        holders = [chosen for chosen in split if forced & ~_mask(chosen) == 0]
        answer = max(holders, key=self._points)
        if len(answer) < size:
            raise PluginPanicked(f"the best set of {size} GPUs has {size - len(answer)} empty place(s)")
        return frozenset(answer)

    def _first_best_split(self, order: list[int], size: int, forced: int) -> list[tuple[int, ...]]:
        """The best split; among equals the one that a walk in ``order`` meets first."""
        split: list[tuple[int, ...]] = []
        remaining = order
        empty = -len(order) % size
        while remaining:
            best = self._best_total(_mask(remaining), empty, size, forced)
            for chosen in self._sets_with_first(remaining, empty, size, forced):
                rest = [gpu for gpu in remaining if gpu not in chosen]
                unused = empty - (size - len(chosen))
                if self._points(chosen) + self._best_total(_mask(rest), unused, size, forced) == best:
                    split.append(chosen)
                    remaining, empty = rest, unused
                    break
            else:  # pragma: no cover - the maximum is always reached by one of them
                raise AssertionError("no set reaches the best total")
        return split

    def _best_total(self, free: int, empty: int, size: int, forced: int) -> int:
        """The highest sum of points over all splits of ``free`` and ``empty`` places; -1 when none is."""
        if free == 0:
            return 0 if empty == 0 else -1
        key = (free, empty, size, forced)
        if (known := self._best.get(key)) is not None:
            return known
        best = -1
        remaining = ids(free)
        for chosen in self._sets_with_first(remaining, empty, size, forced):
            rest = self._best_total(free & ~_mask(chosen), empty - (size - len(chosen)), size, forced)
            if rest >= 0:
                best = max(best, rest + self._points(chosen))
        self._best[key] = best
        return best

    @staticmethod
    def _sets_with_first(remaining: Sequence[int], empty: int, size: int, forced: int) -> list[tuple[int, ...]]:
        """The sets with the first of ``remaining``, real GPUs before empty places, with all of the places or none."""
        places = [*remaining[1:], *[-1] * empty]
        sets = dict.fromkeys(
            (remaining[0], *(gpu for gpu in others if gpu >= 0))
            for others in combinations(places, size - 1)
            if others.count(-1) in (0, empty)
        )
        # A split serves a request with forced GPUs only when one set holds them all.
        return [chosen for chosen in sets if _mask(chosen) & forced in (0, forced & _mask(remaining))]

    def _points(self, chosen: Sequence[int]) -> int:
        return sum(self._pair[a][b] for a, b in combinations(chosen, 2))


class AmdBestEffort:
    """AMD's rule: the set with the lowest sum of pair weights. How it breaks ties is not documented."""

    def __init__(self, links: Matrix, numa: Sequence[int] | None) -> None:
        """``links[i][j]`` counts XGMI links; ``numa[i]`` is a GPU's NUMA node (unknown: one for all)."""
        size = len(links)
        self._pair = [[0] * size for _ in range(size)]
        for a, b in combinations(range(size), 2):
            near = numa is None or numa[a] == numa[b]
            weight = _AMD_OTHER_DEVICE + (_AMD_XGMI if links[a][b] else _AMD_PCIE)
            weight += _AMD_SAME_NUMA if near else _AMD_OTHER_NUMA
            self._pair[a][b] = self._pair[b][a] = weight

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The lightest set; a random one among equals."""
        _check(available, size, must_include)
        forced = tuple(sorted(set(must_include)))
        rest = sorted(set(available) - set(forced))
        lightest: list[tuple[int, ...]] = []
        least = -1
        for others in combinations(rest, size - len(forced)):
            weight = sum(self._pair[a][b] for a, b in combinations(forced + others, 2))
            if least < 0 or weight < least:
                least, lightest = weight, []
            if weight == least:
                lightest.append(forced + others)
        return frozenset(rng.choice(lightest))


def device_plugin(
    model: Model,
    links: Matrix,
    pcie: Levels | None = None,
    *,
    link_scope: LinkScope = "pair",
    numa: Sequence[int] | None = None,
) -> SimDevicePlugin:
    """The model by name, for the GPUs of one node. Nodes of one shape can share the object."""
    if model == "nvidia":
        return NvidiaBestEffort(links, pcie, link_scope)
    if model == "amd":
        return AmdBestEffort(links, numa)
    return Arbitrary()


def _check(available: Collection[int], size: int, must_include: Collection[int]) -> None:
    if not set(must_include) <= set(available):
        raise TooFewDevices("a GPU that must be included is not available")
    if not len(set(must_include)) <= size <= len(set(available)):
        raise TooFewDevices(f"{size} GPUs asked for, {len(set(available))} available")


def _mask(gpus: Collection[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


# -- machines


Object = dict[str, Any]
GPU = "nvidia.com/gpu"
TOPOLOGY = "gpu-extender.io/topology"
_GPU_IDS = uuid.UUID("0d6d4dd1-94f5-4c6f-8f0b-6b1a64a1a4f5")
_KINDS: Mapping[str, Literal["nvlink", "xgmi"]] = {"nvlink": "nvlink", "nvlink-bridge": "nvlink", "xgmi": "xgmi"}


@dataclass(frozen=True)
class SimMachine:
    """The GPUs of one node type. What is unknown is None (or "")."""

    links: tuple[tuple[int, ...], ...]
    pcie: tuple[tuple[str, ...], ...] | None = None
    numa: tuple[int, ...] | None = None
    scope: Literal["pair", "gpu-total"] = "pair"
    kind: Literal["nvlink", "xgmi"] | None = None
    gbps: float | None = None  # GB/s per link and direction
    product: str = ""
    chassis: str = ""

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.links)

    def plugin(self) -> SimDevicePlugin:
        """The stock plugin that hands them out."""
        model: Literal["amd", "nvidia"] = "amd" if self.kind == "xgmi" else "nvidia"
        return device_plugin(model, self.links, self.pcie, link_scope=self.scope, numa=self.numa)

    def topology(self) -> Topology:
        """As the server's topology sources state it."""
        return Topology(
            self.gpus,
            self.links,
            gpu_total=self.scope == "gpu-total",
            kind=self.kind,
            gbps=self.gbps or 0.0,
            numa=self.numa,
            pcie=self.pcie,
        )

    def linked(self, gpus: Iterable[int]) -> bool:
        """Whether a ring through all of them over links exists, tried in every order (so for 8 GPUs at most).

        None or one GPU always is; two need a direct link.
        """
        order = sorted(gpus)
        if len(order) < 2:
            return True
        first, *rest = order
        return any(
            all(self.links[a][b] for a, b in zip((first, *ring), (*ring, first), strict=True))
            for ring in permutations(rest)
        )


def machine(topology: str | Mapping[str, Any] | None, count: int | None = None) -> SimMachine:
    """A machine by its id in the catalogue (KeyError when there is none), from an entry of the catalogue's form, or
    (None) GPUs without links.

    `count` keeps the first so many GPUs. None without a count has eight.
    """
    if topology is None:
        size = 8 if count is None else count
        return SimMachine(links=((0,) * size,) * size)
    return _catalogued(topology, count) if isinstance(topology, str) else _of_entry(topology, count)


def gpu_uuid(node: str, index: int) -> str:
    """The id of a GPU, the same in every run."""
    return f"GPU-{uuid.uuid5(_GPU_IDS, f'{node}/{index}')}"


def gpu_uuids(node: str, hardware: SimMachine) -> list[str]:
    """The ids of all GPUs of a node, by index."""
    return [gpu_uuid(node, index) for index in range(hardware.gpus)]


def topology_annotation(hardware: SimMachine, uuids: Sequence[str], health: Sequence[bool] | None = None) -> str:
    """What our node agent writes on the node: the graph, and which id each GPU has; compact JSON.

    `health`: by GPU; all are healthy without it.
    """
    value = {
        "v": 1,
        "gpus": hardware.gpus,
        "links": [
            [a, b, hardware.links[a][b]] for a, b in combinations(range(hardware.gpus), 2) if hardware.links[a][b]
        ],
        "scope": hardware.scope,
        "kind": hardware.kind,
        "gbps": hardware.gbps,
        "numa": hardware.numa,
        "pcie": hardware.pcie,
        "uuids": list(uuids),
        "health": [True] * hardware.gpus if health is None else list(health),
    }
    return json.dumps(value, separators=(",", ":"))


@cache
def _catalogued(topology: str, count: int | None) -> SimMachine:
    return _of_entry(_catalogue()[topology], count)


def _of_entry(entry: Mapping[str, Any], count: int | None) -> SimMachine:
    size = entry["gpus"] if count is None else count
    if size > entry["gpus"]:
        raise ValueError(f"{entry.get('id', 'the topology')} has {entry['gpus']} GPUs, not {size}")
    numa = {gpu: int(number) for number, gpus in (entry.get("numa") or {}).items() for gpu in gpus}
    pcie = entry.get("pcie")
    return SimMachine(
        links=tuple(tuple(row[:size]) for row in entry["links"][:size]),
        pcie=tuple(tuple(row[:size]) for row in pcie[:size]) if pcie else None,
        numa=tuple(numa[gpu] for gpu in range(size)) if numa.keys() >= set(range(size)) else None,
        scope="gpu-total" if entry.get("nvswitch") else "pair",
        kind=_KINDS.get(entry.get("link_kind") or ""),
        gbps=entry.get("gbps_link_dir"),
        product=(entry.get("product_label") or [""])[0],
        chassis=(entry.get("machine_label") or [""])[0],
    )


@cache
def _catalogue() -> dict[str, Any]:
    text = resources.files("extender.topologies").joinpath("catalogue.json").read_text(encoding="utf-8")
    return {entry["id"]: entry for entry in json.loads(text)["topologies"]}


# -- pods and nodes as Kubernetes objects


@dataclass(frozen=True)
class SimPod:
    """A pod of one container."""

    name: str
    namespace: str
    gpus: int
    links: str = ""  # the annotation gpu-extender.io/links, "" for none
    priority: int = 0
    preempts: bool = True
    cpu: str = "4"
    memory: str = "16Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    grace: int = 30  # seconds
    gates: Sequence[str] = ()
    claim: str = ""  # the name of the ResourceClaim that it uses, "" for none

    def object(self) -> Object:
        """The Pod as the API server has it: defaults filled in, the priority resolved."""
        requests = {"cpu": self.cpu, "memory": self.memory, **({GPU: str(self.gpus)} if self.gpus else {})}
        links = {"gpu-extender.io/links": self.links} if self.links else {}
        spec: Object = {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/workload:1",
                    "resources": {"requests": requests, "limits": {GPU: str(self.gpus)} if self.gpus else {}},
                }
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace,
            "schedulerName": "default-scheduler",
            "priority": self.priority,
            "preemptionPolicy": "PreemptLowerPriority" if self.preempts else "Never",
        }
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        if self.claim:
            spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": self.claim}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
        if self.gates:
            spec["schedulingGates"] = [{"name": gate} for gate in self.gates]
        if self.tolerations:
            spec["tolerations"] = [dict(toleration) for toleration in self.tolerations]
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "annotations": {**links, **self.annotations},
        }
        return {"metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class SimNode:
    """A ready node whose GPUs are all healthy. Without `annotate` only its labels state what it is; without
    `device_plugin` it offers no GPU resource."""

    name: str
    machine: SimMachine
    annotate: bool = True
    device_plugin: bool = True
    resource: str = GPU
    cpu: str = "96"
    memory: str = "768Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    def object(self) -> Object:
        """The Node as Kubernetes has it."""
        name, machine = self.name, self.machine
        vendor = self.resource.partition("/")[0]
        product = {"amd.com": "amd.com/gpu.product-name"}.get(vendor, f"{vendor}/gpu.product")
        product_labels = {product: machine.product, f"{vendor}/gpu.count": str(machine.gpus)}
        if machine.chassis:
            product_labels[f"{vendor}/gpu.machine"] = machine.chassis
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": "110"}
        if self.device_plugin:
            amounts[self.resource] = str(machine.gpus)
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **product_labels, **self.labels}
        stated = {TOPOLOGY: topology_annotation(machine, gpu_uuids(name, machine))} if self.annotate else {}
        return {
            "metadata": {"name": name, "labels": labels, "annotations": stated},
            "spec": {"taints": [dict(taint) for taint in self.taints]} if self.taints else {},
            "status": {
                "capacity": amounts,
                "allocatable": dict(amounts),
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
