"""Nodes where GPU pods failed three times within ten minutes (see extender/health.py).

Transient, since it passes by itself; but it lasts for minutes, so it counts as an ordinary refusal: the pod gets no
Error (which would retry it every few seconds and keep it from preempting elsewhere) and waits as any other that fits
nowhere. kube-scheduler tries it again when anything in the cluster changes, every five minutes at the latest.
"""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import places
from extender.contracts import Class, PodRequest, Reason, Tables

BROKEN = Reason(
    code=4,
    key="node-failing",
    cls=Class.TRANSIENT,
    text="gpu-extender: GPU pods failed on the node three times within ten minutes",
    remedy="Look at the node's device plugin and GPUs (Xid errors, a lost GPU). It is tried again ten minutes after "
    "the failures; uncordoning the node, or a GPU pod that runs there for a minute, clears it at once.",
    lasting=True,
)


class Failing:
    name: ClassVar[str] = "failing"
    reasons: ClassVar[tuple[Reason, ...]] = (BROKEN,)

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        places.failing(tables.places, rows, out, BROKEN.code)
