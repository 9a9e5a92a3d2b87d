"""GPUs that are handed out in parts: replicas of time-slicing or MPS, and MIG instances. They are never whole GPUs.

What tells (k8s-device-plugin and its GPU feature discovery):

- `nvidia.com/gpu.shared`: replicas, renamed. Without the renaming they are called `nvidia.com/gpu`, and the labels
  `nvidia.com/gpu.sharing-strategy`, `nvidia.com/gpu.replicas` and a product that ends in `-SHARED` say so.
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
