"""Our own label or annotation `gpu-extender.io/gang`; `gang-min` counts for the gangs of all sources."""

from __future__ import annotations

from typing import Final

from extender.objects.gangs.source import Ref, Source
from extender.objects.records import PodRecord

GANG: Final = "gpu-extender.io/gang"


class Ours(Source):
    """Pods with the same value of the label or annotation."""

    name = "gpu-extender"
    states = "label gpu-extender.io/gang-min"

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label, else the annotation."""
        found = pod.labels.get(GANG) or pod.annotations.get(GANG)
        return Ref(self.name, pod.namespace, found) if found else None
