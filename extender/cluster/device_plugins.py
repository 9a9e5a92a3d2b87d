"""How the device plugin of a node divides its GPUs, and which known faults it has.

GPUs are handed out whole, or in parts: replicas of time-slicing or MPS, and MIG instances. Parts are never whole GPUs.

What shows it (k8s-device-plugin and its GPU feature discovery):

- `nvidia.com/gpu.shared`: replicas, renamed. Without the renaming they are called `nvidia.com/gpu`, and the labels
  `nvidia.com/gpu.sharing-strategy`, `nvidia.com/gpu.replicas` and a product that ends in `-SHARED` show it.
- `nvidia.com/mig-1g.5gb` and the like (MIG strategy mixed), or `nvidia.com/gpu` with `-MIG-` in the product (single).
- device ids: `GPU-<uuid>::3` is a replica of GPU-<uuid>, `MIG-GPU-<uuid>/1/0` an instance on it. The newer `MIG-<uuid>`
  does not name its GPU.

Replicas divide a GPU into equal units; then units are counted by GPU. How many MIG instances a GPU has left is nowhere
to be read, so they are counted by node alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from extender.topologies import Topology
from extender.topologies.annotation import relayed

COUNT = "nvidia.com/gpu.count"
REPLICAS = "nvidia.com/gpu.replicas"
STRATEGY = "nvidia.com/gpu.sharing-strategy"
PRODUCT = "nvidia.com/gpu.product"
MIG_STRATEGY = "nvidia.com/mig.strategy"
MOST_UNITS = 10_000
_MIG_ID = re.compile(r"MIG-(GPU-[^/]+)/")


@dataclass(frozen=True, slots=True)
class Division:
    """How a node hands out its GPUs. `units`: of the resource per GPU, 1 = whole GPUs, 0 = parts of unknown size;
    `gpus`: physical GPUs, 0 where unknown; `detail`: one sentence for people, "" for whole GPUs."""

    units: int
    gpus: int
    detail: str = ""

    @property
    def whole(self) -> bool:
        """Whether whole GPUs are handed out."""
        return self.units == 1


def partial(resource: str) -> bool:
    """Whether a resource's name alone says that it counts parts of GPUs."""
    return resource.endswith(".shared") or "/mig-" in resource


def division(resource: str, amount: int, labels: Mapping[str, str]) -> Division:
    """How a node with these labels that offers `amount` of `resource` divides its GPUs."""
    if resource.startswith("nvidia.com/"):
        product = labels.get(PRODUCT, "")
        count = _number(labels.get(COUNT))
        if "/mig-" in resource or "-MIG-" in product:
            # With strategy single the label counts instances.
            gpus = count if labels.get(MIG_STRATEGY) == "mixed" else 0
            return Division(0, gpus, f"MIG: {resource} counts instances")
        replicas = _number(labels.get(REPLICAS))
        shared = resource.endswith(".shared") or product.endswith("-SHARED")
        shared = shared or replicas > 1 or labels.get(STRATEGY, "none") not in ("", "none")
        if shared:
            return _replicas(resource, amount, count, replicas)
    elif partial(resource):
        return Division(0, 0, f"{resource} counts parts of GPUs")
    return Division(1, amount)


def _replicas(resource: str, amount: int, count: int, replicas: int) -> Division:
    """`amount`, capacity where it is more than what is allocatable, must be all replicas of all GPUs."""
    if 1 < replicas <= MOST_UNITS and amount % replicas == 0 and count in (0, amount // replicas):
        return Division(replicas, amount // replicas, f"{replicas} replicas a GPU")
    counted = f"{count or 'unknown'} GPUs x {replicas or 'unknown'} replicas"
    return Division(0, count, f"{resource} counts replicas, but the labels ({counted}) do not give {amount}")


def gpu_of(identity: str) -> str:
    """The id of the GPU that a device id is on; the id itself where it names a whole GPU, or says nothing."""
    named = _MIG_ID.match(identity)
    return named[1] if named else identity.partition("::")[0]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else 0


# -- faults ------------------------------------------------------------------------------------------------------------
#
# Device-plugin faults: known faults of a node's device plugin that fail a pod which fits.
#
# NVIDIA's plugin has two, both open in the newest version that was read (0.20.0):
#
# - Its answer may hold an empty place, which crashes it, and the pod fails admission: NVIDIA/go-gpuallocator#80.
#   ext_core.links computes over which free GPUs this happens, and how likely it is.
# - A GPU that fell off the bus (Xid 79) makes it fail every GPU pod of the node, those for the healthy GPUs too:
#   NVIDIA/k8s-device-plugin#2038 (seen in 0.18.1; the same report for older ones is #231 there).
#
# Both are in the code that chooses among whole GPUs. That code does not run with shared GPUs, nor where a relay that
# knows the GPUs by their ids answers in place of the plugin. A version that is not known to have a fault may have it.

PLUGIN_VERSION: Final = "gpu-extender.io/device-plugin-version"
"""Annotation or label of a node: the version that runs there, as 0.20.0 or v0.20.0; the settings state the default."""

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
    if plugin.model != "nvidia" or relayed(annotations, topology) or labels.get(STRATEGY, "none") != "none":
        return 0
    known = affected(annotations.get(PLUGIN_VERSION) or labels.get(PLUGIN_VERSION) or plugin.version)
    flags = PANICS_KNOWN if known else PANICS
    stated = topology.health is not None and not all(topology.health)
    if stated and known:
        flags |= LOST_KNOWN
    elif stated or 0 < allocatable < capacity:
        flags |= LOST
    return flags
