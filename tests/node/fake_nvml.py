"""NVML of a machine of the catalogue: the few calls that the agent makes, with the driver's ways of saying no."""

from __future__ import annotations

from types import SimpleNamespace

from extender.sim.machines import SimMachine, gpu_uuid

LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
VERSIONS = {20: 1, 25: 3, 50: 5}


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml:
    """A handle is the GPU's index. `lost`: GPUs that answer nothing but their name; `failed_rows`: not remapped."""

    NVMLError = NVMLError

    def __init__(self, what: SimMachine, node: str = "node-1", *, lost: set[int] | None = None) -> None:
        self.what, self.node = what, node
        self.lost, self.failed_rows = lost or set(), set[int]()
        self.down: set[tuple[int, int]] = set()  # (GPU, link)
        self.open = 0
        # The links of each GPU: the GPU at the other end, None for a switch.
        self.ends: list[list[int | None]] = []
        for gpu, row in enumerate(what.links):
            if what.scope == "gpu-total":
                self.ends.append([None] * max(row))
            else:
                self.ends.append([peer for peer, count in enumerate(row) for _ in range(count) if peer != gpu])

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.what.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return gpu_uuid(self.node, gpu)

    def nvmlDeviceGetPciInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{16 + gpu:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> int:
        if gpu in self.lost:
            raise NVMLError("GPU is lost")
        return 0

    def nvmlDeviceGetRemappedRows(self, gpu: int) -> tuple[int, int, int, int]:
        return (0, 0, 0, int(gpu in self.failed_rows))

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        self._end(gpu, link)
        return int((gpu, link) not in self.down)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> SimpleNamespace:
        end = self._end(gpu, link)
        return SimpleNamespace(busId="FFFFFFFF:FF:FF.0") if end is None else self.nvmlDeviceGetPciInfo(end)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return 2 if self._end(gpu, link) is None else 0

    def nvmlDeviceGetNvLinkVersion(self, gpu: int, link: int) -> int:
        self._end(gpu, link)
        return VERSIONS[int(self.what.gbps or 25)]

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        if self.what.pcie is None:
            raise NVMLError("Not Supported")
        return LEVELS[self.what.pcie[a][b]]

    def _end(self, gpu: int, link: int) -> int | None:
        if gpu in self.lost or link >= len(self.ends[gpu]):
            raise NVMLError("Not Supported")
        return self.ends[gpu][link]
