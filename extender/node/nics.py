"""The NICs under the PCIe switches of this node's GPUs, as the kernel has them in sysfs.

Two devices are under one switch, or under several without a host bridge between them, where they are behind the same
root port. NICs are the devices with RDMA, as in the columns of `nvidia-smi topo -m`, without virtual functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extender.topologies.nics import near_nics
from extender.topologies.topology import NearNic

PCI = Path("/sys/bus/pci/devices")


def read(gpus: Sequence[str], pci: Path = PCI) -> tuple[NearNic, ...] | None:
    """The NICs near GPUs with these PCI addresses ("0000:3b:00.0"), in the order of their indices. None: a GPU, or any
    NIC with RDMA, cannot be seen."""
    try:
        ports = [_port(pci / address) for address in gpus]
        seen = [(name, _port(device)) for device in sorted(pci.iterdir()) for name in _names(device)]
    except OSError:
        return None
    if not seen:
        return None
    near = [(name, [gpu for gpu, own in enumerate(ports) if own and own == port]) for name, port in seen]
    return near_nics(near)


def _port(device: Path) -> tuple[str, ...]:
    """The root bus and the root port above a device; () for one on the root bus itself. OSError: it does not exist."""
    parts = device.resolve(strict=True).parts
    root = next((i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    return parts[root : root + 2] if len(parts) > root + 2 else ()


def _names(device: Path) -> list[str]:
    """What the kernel calls the RDMA devices of a PCI device."""
    if (device / "physfn").exists() or not (device / "infiniband").is_dir():
        return []
    return sorted(path.name for path in (device / "infiniband").iterdir())
