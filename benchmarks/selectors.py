"""What the CEL selectors of devices cost.

    python -m benchmarks.selectors [--nodes 5000]

Compiled: one expression, once. Evaluated: on a device that no other equals. Remembered: on one that states the same of
what the expression reads. A class: of all GPUs of a cluster, whose uuids and addresses all differ. Memory: what the
ResourceSlices of the cluster take as records.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable

from extender.objects.cel import DeviceProperties, Selector, judge
from extender.objects.devices import ResourceSliceRecord, resource_slice
from extender.sim import claims as dra
from extender.sim.machines import machine
from tests.selector_cases import REAL

GPU = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


def microseconds(call: Callable[[int], object], times: int) -> float:
    """The lowest mean of five rounds, of CPU time."""
    rounds: list[float] = []
    for _ in range(5):
        began = time.process_time()
        for at in range(times):
            call(at)
        rounds.append((time.process_time() - began) / times * 1e6)
    return min(rounds)


def slices(nodes: int) -> list[ResourceSliceRecord]:
    """Of so many nodes with eight GPUs."""
    model = machine("dgx1-v100")
    return [resource_slice(wire) for at in range(nodes) for wire in dra.resource_slices(f"node-{at}", model)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selectors", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    nodes: int = parser.parse_args().nodes
    tracemalloc.start()
    records = slices(nodes)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    devices = [DeviceProperties(record.driver, device) for record in records for device in record.devices]
    [asked, *_], once = [Selector(GPU)], devices[0]
    asked.judge(once)
    lines = [
        ("compile the class of NVIDIA's driver", microseconds(lambda _: Selector(GPU), 500)),
        ("compile, mean of the classes of real drivers", microseconds(lambda at: Selector(REAL[at % len(REAL)]), 500)),
        ("evaluate the class of NVIDIA's driver", microseconds(lambda _: asked._evaluate(once), 5000)),
        ("remembered", microseconds(lambda _: asked.judge(once), 20_000)),
    ]
    for what, figure in lines:
        print(f"{what:48} {figure:8.1f} µs")
    for what, expression in (
        ("driver and type", GPU),
        ("an own uuid", f"{GPU} && device.attributes['gpu.nvidia.com'].uuid != 'x'"),
    ):
        began = time.process_time()
        for device in devices:
            judge((expression,), device)
        print(f"{f'a class by {what}, {len(devices)} GPUs':48} {(time.process_time() - began) * 1e3:8.1f} ms")
    print(f"{f'ResourceSlices of {nodes} nodes':48} {memory / 2**20:8.1f} MiB, {memory / len(devices):.0f} bytes a GPU")


if __name__ == "__main__":
    main()
