"""What the running pods of one gang state, counted: a pod more or less costs the same however many there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from extender.objects.records import PodRecord

OUR_MINIMUM: Final = "gpu-extender.io/gang-min"
OUR_SIZE: Final = "gpu-extender.io/gang-size"
SIZES: Final = ("kueue.x-k8s.io/pod-group-total-count", "leaderworkerset.sigs.k8s.io/size", OUR_SIZE)
"""Annotations by which pods state the size of their gang."""
Key = TypeVar("Key", bound=Hashable)


class Members:
    """Counts pods, and how often each text that concerns their gang is stated."""

    __slots__ = ("_groups", "_texts", "count")

    def __init__(self, pods: Iterable[PodRecord] = ()) -> None:
        self.count = 0
        # Most gangs state nothing on their pods, and there may be one gang a pod: no counter is made before its use.
        self._texts: dict[str, dict[str, int]] | None = None  # key -> text -> pods that state it
        self._groups: dict[tuple[str, str, str], int] | None = None
        for pod in pods:
            self.add(pod)

    def add(self, pod: PodRecord) -> None:
        """Count a pod that is not counted."""
        self._step(pod, 1)

    def remove(self, pod: PodRecord) -> None:
        """Count a pod no more: the same record that was added."""
        self._step(pod, -1)

    @property
    def group(self) -> tuple[str, str, str] | None:
        """`spec.schedulingGroup` or `spec.workloadRef` of the pods; the first where they differ."""
        return min(self._groups) if self._groups else None

    def agreed(self, key: str) -> str | None:
        """The text of OUR_MINIMUM or of one of SIZES that all pods state which state any; None: there is none."""
        texts = self._texts.get(key) if self._texts is not None else None
        return next(iter(texts)) if texts is not None and len(texts) == 1 else None

    def _step(self, pod: PodRecord, by: int) -> None:
        labels, notes = pod.labels, pod.annotations
        text = labels.get(OUR_MINIMUM) or notes.get(OUR_MINIMUM)
        if text is not None:
            self._text(OUR_MINIMUM, text, by)
        for key in SIZES:
            if key in notes:
                self._text(key, notes[key], by)
        if pod.group is not None:
            if self._groups is None:
                self._groups = {}
            _count(self._groups, pod.group, by)
        self.count += by

    def _text(self, key: str, text: str, by: int) -> None:
        if self._texts is None:
            self._texts = {}
        texts = self._texts.setdefault(key, {})
        _count(texts, text, by)


def _count(counts: dict[Key, int], key: Key, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
