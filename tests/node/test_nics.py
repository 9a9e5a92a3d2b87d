"""NICs from sysfs, as the kernel lays it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.node import nvml
from extender.topologies.topology import NearNic


class Sysfs:
    """/sys of a machine. `pci`: the folder of links to its devices."""

    def __init__(self, root: Path) -> None:
        self.root, self.pci = root / "devices", root / "bus/pci/devices"
        self.pci.mkdir(parents=True)

    def device(self, path: str, *rdma: str, virtual: bool = False) -> str:
        """A device below bridges, "pci0000:15/0000:15:01.0/0000:16:00.0"; its address."""
        folder = self.root / path
        folder.mkdir(parents=True)
        for name in rdma:
            (folder / "infiniband" / name).mkdir(parents=True)
        if virtual:
            (folder / "physfn").mkdir()
        (self.pci / folder.name).symlink_to(folder)
        return folder.name


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_below_one_root_port(sysfs: Sysfs) -> None:
    """Two switches with two GPUs and one NIC each; the second one is cascaded."""
    gpus = [
        sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"),
        sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0"),
        sysfs.device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0"),
        sysfs.device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0"),
    ]
    sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0", "mlx5_0")
    sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.2", "mlx5_9", virtual=True)
    sysfs.device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:02.0/0000:3e:00.0", "mlx5_1")
    sysfs.device("pci0000:15/0000:15:05.0/0000:1b:00.0", "mlx5_2")  # another root port of the first host bridge
    sysfs.device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:03.0/0000:3f:00.0")  # no RDMA
    assert nvml.read_nics(gpus, sysfs.pci) == (NearNic("mlx5_0", (0, 1)), NearNic("mlx5_1", (2, 3)))


def test_a_virtual_machine_without_bridges(sysfs: Sysfs) -> None:
    """All is on one root bus: nothing is near, and that is known."""
    gpus = [sysfs.device("pci0000:00/0000:00:05.0"), sysfs.device("pci0000:00/0000:00:06.0")]
    sysfs.device("pci0000:00/0000:00:07.0", "mlx5_0")
    assert nvml.read_nics(gpus, sysfs.pci) == ()


def test_what_cannot_be_seen_is_unknown(sysfs: Sysfs) -> None:
    gpu = sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0")
    assert nvml.read_nics([gpu], sysfs.pci) is None  # no NIC with RDMA
    sysfs.device("pci0000:15/0000:15:01.0/0000:17:00.0", "mlx5_0")
    assert nvml.read_nics([gpu], sysfs.pci) == (NearNic("mlx5_0", (0,)),)
    assert nvml.read_nics([gpu, "0000:99:00.0"], sysfs.pci) is None
    assert nvml.read_nics([gpu], sysfs.pci / "none") is None


def test_two_ports_of_a_card_are_two_nics(sysfs: Sysfs) -> None:
    gpu = sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0")
    sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0", "mlx5_0")
    sysfs.device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.1", "mlx5_1")
    assert nvml.read_nics([gpu], sysfs.pci) == (NearNic("mlx5_0", (0,)), NearNic("mlx5_1", (0,)))
