"""The simulated cluster at a glance, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from extender.sim.machines import Machine
from extender.topologies.gpu_map import FREE, TAKEN


def overview(machines: Mapping[str, Machine], holders: Mapping[str, Mapping[int, str]]) -> Iterator[Text]:
    """One line a node: a letter per GPU, `·` where it is free. `holders`: node -> GPU -> the holder's letter."""
    names = max(map(len, machines))
    products = max(len(machine.product) for machine in machines.values())
    for name, machine in machines.items():
        line = Text(f"{name:<{names}}  {machine.product:<{products}}  ")
        for gpu in range(machine.gpus):
            letter = holders.get(name, {}).get(gpu)
            line.append(f" {letter}" if letter else " ·", TAKEN if letter else FREE)
        if not holders.get(name):
            line.append("   whole node free", FREE)
        yield line
