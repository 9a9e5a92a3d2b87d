"""What a node has left, by the objects alone: arithmetic of its own, so that a fault of the product's shows.

The rule is Kubernetes': containers and sidecars together, or the largest init container with the sidecars before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.world import GPU

Object = dict[str, Any]
_SUFFIX = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FORM = re.compile(r"([0-9.]+)([eE][+-]?[0-9]+|[A-Za-z]*)")


def amount(text: str) -> Fraction:
    """A quantity, exactly."""
    found = _FORM.fullmatch(text)
    assert found, text
    number, suffix = Fraction(found[1]), found[2]
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    power = _SUFFIX[suffix] if suffix in _SUFFIX else int(suffix[1:])
    return number * Fraction(10**power if power >= 0 else 1, 1 if power >= 0 else 10**-power)


def asked(pod: Object, resource: str) -> Fraction:
    """What the scheduler counts for the pod."""

    def of(container: Object) -> Fraction:
        resources = container.get("resources", {})
        for part in ("requests", "limits"):
            if resource in resources.get(part, {}):
                return amount(resources[part][resource])
        return Fraction(0)

    spec = pod["spec"]
    sidecars, largest = Fraction(0), Fraction(0)
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            sidecars += of(container)
            largest = max(largest, sidecars)
        else:
            largest = max(largest, sidecars + of(container))
    return max(largest, sidecars + sum(map(of, spec.get("containers", ())), Fraction(0)))


@dataclass(frozen=True)
class Left:
    """What is free on a node; below 0 where more is asked than there is."""

    cpu: Fraction
    memory: Fraction
    pods: int
    gpus: Fraction

    @property
    def room(self) -> bool:
        """Whether a pod that asks for next to nothing fits besides its GPUs."""
        return self.cpu >= Fraction(1, 100) and self.memory >= 1 and self.pods >= 1


def left(node: Object, pods: Iterable[Object]) -> Left:
    """Of `pods` those count that are bound to the node and have not ended."""
    there = node["status"]["allocatable"]
    here = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == node["metadata"]["name"]
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    cpu, memory, gpus = (
        amount(there[name]) - sum((asked(pod, name) for pod in here), Fraction(0)) for name in ("cpu", "memory", GPU)
    )
    return Left(cpu, memory, int(there["pods"]) - len(here), gpus)
