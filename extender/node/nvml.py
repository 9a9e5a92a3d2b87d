"""The GPUs of this node as NVIDIA's driver reports them (NVML, through nvidia-ml-py), in the order of nvidia-smi.

A link counts for a pair when its other end is that GPU; one that ends in a switch counts for the GPU's total. A GPU
that does not answer, or whose rows could not be remapped, is not healthy; without its id there is no view at all,
because it was unknown which one it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from extender.errors import BadInput
from extender.topologies.annotation import near_nics
from extender.topologies.topology import NearNic, Topology

PCI = Path("/sys/bus/pci/devices")
MOST_LINKS = 18
# NVML_TOPOLOGY_*: how near the common ancestor of two GPUs is.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SPEEDS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}  # GB/s per link and direction by NVLink version
_TO_GPU, _TO_SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*


class NoDriver(BadInput):
    """NVML is not installed, or finds no driver or no GPU."""

    code = "no-driver"


def read(nvml: Any = None, pci: Path = PCI) -> Topology:
    """The view of this moment; `nvml`: the module pynvml, or one like it. Raises NoDriver."""
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError as error:
            raise NoDriver(f"{error}: install gpu-extender[node]") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoDriver(f"NVML: {error}") from error
    try:
        return _read(nvml, pci)
    except nvml.NVMLError as error:
        raise NoDriver(f"NVML: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any, pci: Path) -> Topology:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not handles:
        raise NoDriver("NVML finds no GPU")
    buses = [_text(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
    links, switched, speed = _links(nvml, handles, [_bus(name) for name in buses])
    linked = any(map(any, links))
    return Topology(
        len(handles),
        links,
        gpu_total=switched,
        kind="nvlink" if linked else None,
        gbps=speed if linked else 0.0,
        numa=_numa(buses, pci),
        pcie=_pcie(nvml, handles),
        uuids=tuple(_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles),
        health=tuple(_healthy(nvml, handle) for handle in handles),
        nics=read_nics([_address(name) for name in buses], pci),
    )


def _links(nvml: Any, handles: list[Any], buses: list[tuple[int, int, int]]) -> tuple[Any, bool, float]:
    size = len(handles)
    pairs = [[0] * size for _ in handles]
    totals = [0] * size
    speeds = set()
    for gpu, handle in enumerate(handles):
        for link in range(MOST_LINKS):
            if not _try(nvml, "nvmlDeviceGetNvLinkState", handle, link):
                continue
            remote = _try(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            at = None if remote is None else _bus(_text(remote.busId))
            kind = _try(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            if at in buses and kind in (_TO_GPU, None):
                pairs[gpu][buses.index(at)] += 1
            elif kind == _TO_SWITCH:
                totals[gpu] += 1
            speeds.add(_SPEEDS.get(_try(nvml, "nvmlDeviceGetNvLinkVersion", handle, link) or 0, 0.0))
    if any(totals):
        pairs = [[min(a, b) if i != j else 0 for j, b in enumerate(totals)] for i, a in enumerate(totals)]
    # A link that only one side sees is none (it is coming up, or going down).
    both = tuple(tuple(min(pairs[i][j], pairs[j][i]) for j in range(size)) for i in range(size))
    return both, any(totals), min(speeds - {0.0}, default=0.0)


def _pcie(nvml: Any, handles: list[Any]) -> tuple[tuple[str, ...], ...] | None:
    rows = []
    for a in handles:
        row = []
        for b in handles:
            level = "X"
            if a is not b:
                ancestor = _try(nvml, "nvmlDeviceGetTopologyCommonAncestor", a, b)
                if ancestor not in _LEVELS:
                    return None
                level = _LEVELS[ancestor]
            row.append(level)
        rows.append(tuple(row))
    return tuple(rows)


def _numa(buses: list[str], pci: Path) -> tuple[int | None, ...] | None:
    """As the kernel has it; -1 there means unknown."""
    numa_nodes: list[int | None] = []
    for name in buses:
        try:
            node = int((pci / _address(name) / "numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        numa_nodes.append(node if node >= 0 else None)
    return tuple(numa_nodes) if any(node is not None for node in numa_nodes) else None


def _healthy(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return False
    rows = _try(nvml, "nvmlDeviceGetRemappedRows", handle)  # (correctable, not, pending, failed)
    return not (rows and rows[3])


def _try(nvml: Any, question: str, *about: Any) -> Any:
    """None where this GPU, link or driver has no answer."""
    try:
        return getattr(nvml, question)(*about)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _address(name: str) -> str:
    """ "00000000:3B:00.0" -> "0000:3b:00.0", as sysfs has it."""
    domain, bus, device = _bus(name)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _bus(name: str) -> tuple[int, int, int]:
    """ "00000000:3B:00.0" -> (domain, bus, device)."""
    domain, bus, device = name.partition(".")[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


# -- the NICs under the PCIe switches of GPUs, as the kernel has them in sysfs; of GPUs of AMD, too
#
# Two devices are under one switch, or under several without a host bridge between them, where they are behind the same
# root port. NICs are the devices with RDMA, as in the columns of `nvidia-smi topo -m`, without virtual functions.


def read_nics(gpus: Sequence[str], pci: Path = PCI) -> tuple[NearNic, ...] | None:
    """The NICs near GPUs with these PCI addresses ("0000:3b:00.0"), in the order of their indices. None: a GPU, or any
    NIC with RDMA, cannot be seen."""
    try:
        ports = [_root_port(pci / address) for address in gpus]
        seen = [(name, _root_port(device)) for device in sorted(pci.iterdir()) for name in _rdma_names(device)]
    except OSError:
        return None
    if not seen:
        return None
    near = [(name, [gpu for gpu, own in enumerate(ports) if own and own == port]) for name, port in seen]
    return near_nics(near)


def _root_port(device: Path) -> tuple[str, ...]:
    """The root bus and the root port above a device; () for one on the root bus itself. OSError: it does not exist."""
    parts = device.resolve(strict=True).parts
    root = next((i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    return parts[root : root + 2] if len(parts) > root + 2 else ()


def _rdma_names(device: Path) -> list[str]:
    """What the kernel calls the RDMA devices of a PCI device."""
    if (device / "physfn").exists() or not (device / "infiniband").is_dir():
        return []
    return sorted(path.name for path in (device / "infiniband").iterdir())
