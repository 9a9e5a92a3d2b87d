"""Device-plugin faults: known faults of a node's device plugin that fail a pod which fits.

NVIDIA's plugin has two, both open in the newest version that was read (0.20.0):

- Its answer may hold an empty place, which crashes it, and the pod fails admission: NVIDIA/go-gpuallocator#80.
  ext_core.links computes over which free GPUs this happens, and how likely it is.
- A GPU that fell off the bus (Xid 79) makes it fail every GPU pod of the node, those for the healthy GPUs too:
  NVIDIA/k8s-device-plugin#2038 (seen in 0.18.1; the same report for older ones is #231 there).

Both are in the code that chooses among whole GPUs. That code does not run with shared GPUs, nor where a relay that
knows the GPUs by their ids answers in place of the plugin. A version that is not known to have a fault may have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from extender.topologies import Topology
from extender.topologies.annotation import relayed

VERSION: Final = "gpu-extender.io/device-plugin-version"
"""Annotation or label of a node: the version that runs there, as 0.20.0 or v0.20.0; the settings state the default."""
SHARING: Final = "nvidia.com/gpu.sharing-strategy"

AFFECTED: Final = ((0, 12, 0), (0, 20, 0))
"""First and last version that is known to have both faults. Later versions may be free of them."""
PANICS, PANICS_KNOWN, LOST, LOST_KNOWN = 1, 2, 4, 8  # as ext_core.hazard has them


class StatedPlugin(NamedTuple):
    """The device plugin of a resource, as the settings state it."""

    model: Literal["nvidia", "amd", "arbitrary"]
    """Whose rules allocate the GPUs."""
    version: str | None
    """None where it is not stated."""


def version(text: str) -> tuple[int, int, int] | None:
    """0.20.0, v0.20.0 or v0.20.0-ubi9 (an image's tag) as numbers; None for anything else."""
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-+][\w.+-]{1,64})?", text.strip(), re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def affected(text: str | None) -> bool:
    """Whether this version is known to have the faults."""
    numbers = None if text is None else version(text)
    return numbers is not None and AFFECTED[0] <= numbers <= AFFECTED[1]


def hazards(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    plugin: StatedPlugin,
    topology: Topology,
    *,
    allocatable: int,
    capacity: int,
) -> int:
    """The flags of ext_core.hazard for a node.

    A GPU is lost where the node's annotation states that it is not healthy. Fewer allocatable GPUs than the node has
    may mean that too, or a fault that the plugin survives: then a pod may fail there.
    """
    if plugin.model != "nvidia" or relayed(annotations, topology) or labels.get(SHARING, "none") != "none":
        return 0
    known = affected(annotations.get(VERSION) or labels.get(VERSION) or plugin.version)
    flags = PANICS_KNOWN if known else PANICS
    stated = topology.health is not None and not all(topology.health)
    if stated and known:
        flags |= LOST_KNOWN
    elif stated or 0 < allocatable < capacity:
        flags |= LOST
    return flags
