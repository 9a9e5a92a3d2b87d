"""Which pods belong to one workload, as far as that decides where its other pods are placed, and when they start."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from extender.cluster.pods.siblings import SiblingKey, siblings
from extender.objects import gangs
from extender.objects.records import PodRecord

Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held")


class Workloads:
    """Pods that are neither finished nor terminating. `siblings`: uid -> node of the bound GPU pods; `gang_pods`:
    uid -> node of the GPU pods that name a gang, "" for a pod without a node; `gang_cpu_pods`: uids of the pods without
    GPUs and without a node that name one (a launcher)."""

    def __init__(self, named: Callable[[PodRecord], gangs.Ref | None]) -> None:
        """`named`: the gang that a pod names."""
        self.siblings: dict[SiblingKey, dict[str, str]] = {}
        self.gang_pods: dict[gangs.Ref, dict[str, str]] = {}
        self.gang_cpu_pods: dict[gangs.Ref, dict[str, None]] = {}
        self._named = named
        self._keys: dict[str, tuple[gangs.Ref | None, SiblingKey | None]] = {}  # uid -> its keys in these two

    def __contains__(self, uid: str) -> bool:
        return uid in self._keys

    def gang_of(self, uid: str) -> gangs.Ref | None:
        """The gang that the pod names; None where it names none, or is not among these pods."""
        return self._keys.get(uid, (None, None))[0]

    def add(self, pod: PodRecord) -> None:
        """Add a pod with GPUs, or without a node, that is not known yet."""
        named, key = self._named(pod), siblings(pod) if pod.node else None
        if named is not None:
            if pod.gpus:
                self.gang_pods.setdefault(named, {})[pod.uid] = pod.node
            else:
                self.gang_cpu_pods.setdefault(named, {})[pod.uid] = None
        if key is not None:
            self.siblings.setdefault(key, {})[pod.uid] = pod.node
        self._keys[pod.uid] = named, key

    def remove(self, uid: str) -> None:
        """Remove a pod under the keys that it was added under: its owners may have changed since."""
        named, key = self._keys.pop(uid, (None, None))
        if named is not None:
            _remove(self.gang_pods, named, uid)
            _remove(self.gang_cpu_pods, named, uid)
        if key is not None:
            _remove(self.siblings, key, uid)


def _remove(table: dict[Key, dict[str, Held]], key: Key, uid: str) -> None:
    inner = table.get(key)
    if inner is not None and uid in inner:
        del inner[uid]
        if not inner:
            del table[key]
