"""Which GPU pods belong to one workload, as far as that decides where its other pods are placed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from extender.cluster.pods.siblings import SiblingKey, siblings
from extender.objects import gangs
from extender.objects.records import GroupRecord, PodRecord

Key = TypeVar("Key", bound=Hashable)


class Workloads:
    """GPU pods that are neither finished nor terminating. `siblings`: uid -> node of the bound ones; `gang_pods`:
    uid -> node of those that name a gang, "" for a pod without a node."""

    def __init__(self, objects: Mapping[gangs.ObjectKey, GroupRecord]) -> None:
        """`objects`: the PodGroups, Jobs and so on that are known."""
        self.siblings: dict[SiblingKey, dict[str, str]] = {}
        self.gang_pods: dict[gangs.Ref, dict[str, str]] = {}
        self._objects = objects
        self._keys: dict[str, tuple[gangs.Ref | None, SiblingKey | None]] = {}  # uid -> its keys in these two

    def __contains__(self, uid: str) -> bool:
        return uid in self._keys

    def add(self, pod: PodRecord) -> None:
        """Add a GPU pod that is not known yet."""
        named, key = gangs.ref(pod, self._objects), siblings(pod) if pod.node else None
        if named is not None:
            self.gang_pods.setdefault(named, {})[pod.uid] = pod.node
        if key is not None:
            self.siblings.setdefault(key, {})[pod.uid] = pod.node
        self._keys[pod.uid] = named, key

    def remove(self, uid: str) -> None:
        """Remove a pod under the keys that it was added under: its owners may have changed since."""
        named, key = self._keys.pop(uid, (None, None))
        if named is not None:
            _remove(self.gang_pods, named, uid)
        if key is not None:
            _remove(self.siblings, key, uid)


def _remove(table: dict[Key, dict[str, str]], key: Key, uid: str) -> None:
    inner = table.get(key)
    if inner is not None and inner.pop(uid, None) is not None and not inner:
        del table[key]
