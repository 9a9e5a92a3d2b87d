"""Which pods stand below which object: a pod's owner, its owner's owner and so on, as the walk of `gangs.owners` finds
them.

The keys that a pod was added under are remembered, and dropped as they were added: the objects may have changed
meanwhile, and owners may own each other in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.objects import gangs
from extender.objects.gangs import GROUP_KINDS
from extender.objects.records import GroupRecord, PodRecord


class Owners:
    """An index from an object to the uids of the pods below it. Only objects of `gangs.GROUP_KINDS` are keys."""

    def __init__(self) -> None:
        self.below: dict[gangs.ObjectKey, dict[str, None]] = {}
        self.above: dict[str, tuple[gangs.ObjectKey, ...]] = {}  # by uid of the pod; each key once

    def add(self, pod: PodRecord, objects: Mapping[gangs.ObjectKey, GroupRecord]) -> None:
        """Add the pod under each of its owners, as far as `objects` are known. It must not be there yet."""
        if pod.owner is None:
            return
        walked = gangs.owners(pod.namespace, pod.owner, objects)
        keys = tuple(dict.fromkeys(key for key in walked if key[:2] in GROUP_KINDS))
        if keys:
            self.above[pod.uid] = keys
        for key in keys:
            self.below.setdefault(key, {})[pod.uid] = None

    def drop(self, uid: str) -> None:
        """Drop the pod wherever it was added."""
        for key in self.above.pop(uid, ()):
            pods = self.below[key]
            del pods[uid]
            if not pods:
                del self.below[key]
