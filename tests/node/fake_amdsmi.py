"""AMD SMI of a machine of the catalogue: the few calls that the agent makes, by the library's documentation."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from extender.sim.machines import SimMachine


class AmdSmiException(Exception):
    """As amdsmi's."""


class AmdSmiLinkType(IntEnum):
    """As from release 7 on."""

    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2


class AmdSmiIoLinkType(IntEnum):
    """As before."""

    PCIEXPRESS = 1
    XGMI = 2


class FakeAmdsmi:
    """A handle is the GPU's index. `lost`: GPUs that answer nothing but their address; `all_one_hop`: as MI250X's
    driver does; `bandwidth` off: a driver that reports 0; `speed`: what it takes for one link, in GB/s."""

    AmdSmiException = AmdSmiException
    AmdSmiLinkType = AmdSmiLinkType

    def __init__(self, what: SimMachine, *, bandwidth: bool = True, all_one_hop: bool = False) -> None:
        self.what, self.bandwidth, self.all_one_hop = what, bandwidth, all_one_hop
        self.speed = what.gbps or 0
        self.lost: set[int] = set()
        self.down: set[tuple[int, int]] = set()  # (from, to)
        self.open = 0
        self.buses = [f"0000:{16 + gpu:02X}:00.0" for gpu in range(what.gpus)]

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.what.gpus))

    def amdsmi_get_gpu_device_bdf(self, gpu: int) -> str:
        return self.buses[gpu]

    def amdsmi_get_gpu_vram_usage(self, gpu: int) -> dict[str, int]:
        self._answer(gpu)
        return {"vram_total": 1, "vram_used": 0}

    def amdsmi_get_gpu_asic_info(self, gpu: int) -> dict[str, Any]:
        self._answer(gpu)
        return {"market_name": self.what.product.replace("_", " ")}

    def amdsmi_topo_get_numa_node_number(self, gpu: int) -> int:
        self._answer(gpu)
        return 0xFFFFFFFF if self.what.numa is None else self.what.numa[gpu]

    def amdsmi_topo_get_link_type(self, a: int, b: int) -> dict[str, int]:
        self._answer(a)
        self._answer(b)
        if self.what.kind != "xgmi":
            return {"hops": 2, "type": AmdSmiLinkType.AMDSMI_LINK_TYPE_PCIE}
        hops = 1 if self._linked(a, b) or self.all_one_hop else 2
        return {"hops": hops, "type": int(AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI)}

    def amdsmi_topo_get_link_weight(self, a: int, b: int) -> int:
        self._answer(a)
        return 15 if self._linked(a, b) or self.all_one_hop else 30

    def amdsmi_get_minmax_bandwidth_between_processors(self, a: int, b: int) -> dict[str, int]:
        self._answer(a)
        links, one = self.what.links[a][b], round(self.speed * 1000)
        if not self.bandwidth or not self._linked(a, b):
            return {"min_bandwidth": 0, "max_bandwidth": 0}
        return {"min_bandwidth": one, "max_bandwidth": one * links}

    def _linked(self, a: int, b: int) -> bool:
        return self.what.links[a][b] > 0 and (a, b) not in self.down

    def _answer(self, gpu: int) -> None:
        if gpu in self.lost:
            raise AmdSmiException("device busy")
