"""Which pods belong to one workload, as far as that decides where its other pods are placed, and when they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from extender.cluster.numbered import take_out
from extender.objects import gangs
from extender.objects.gangs import GROUP_KINDS
from extender.objects.records import GroupRecord, PodRecord
from extender.settings import Placement


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
            take_out(self.gang_pods, named, uid)
            take_out(self.gang_cpu_pods, named, uid)
        if key is not None:
            take_out(self.siblings, key, uid)


# -- siblings ----------------------------------------------------------------------------------------------------------
#
# Whether a pod wants to be packed or spread, and which pods are its siblings.
#
# Spread is for serving: replicas of one service on different nodes, and racks, so that no failure takes them all.


ANNOTATION = "gpu-extender.io/placement"
GPU_MODELS = "gpu-extender.io/gpu-models"
MODEL_CHOICES = ("one", "any")
APP = "app.kubernetes.io/name"
Way = Literal["pack", "spread"]
_WAYS: dict[str, Way] = {"pack": "pack", "spread": "spread"}
SiblingKey = tuple[str, str, str]


def way(pod: PodRecord, settings: Placement) -> Way:
    """The annotation, else the settings: the first label rule that fits, then the PriorityClass, then the default.

    An annotation with any other value says nothing.
    """
    text = pod.annotations.get(ANNOTATION, "").strip().lower()
    if text in _WAYS:
        return _WAYS[text]
    for rule, chosen in settings.by_label.items():
        key, equals, value = rule.partition("=")
        if key in pod.labels and (not equals or pod.labels[key] == value):
            return chosen
    return settings.by_priority_class.get(pod.priority_class, settings.default)


def mixes_models(pod: PodRecord, settings: Placement) -> bool:
    """Whether the pods of its gang may be on nodes of several GPU models though one has room: the annotation, else the
    settings. An annotation with any other value says nothing."""
    text = pod.annotations.get(GPU_MODELS, "").strip().lower()
    return (text if text in MODEL_CHOICES else settings.gpu_models) == "any"


def siblings(pod: PodRecord) -> SiblingKey | None:
    """What its siblings have in common: the controller that owns them, else the app's name; None when it has none."""
    if pod.owner is not None:
        return pod.namespace, "owner", pod.owner.identity
    name = pod.labels.get(APP)
    return (pod.namespace, "app", name) if name else None


# -- owners ------------------------------------------------------------------------------------------------------------
#
# Which pods stand below which object: a pod's owner, its owner's owner and so on, as the walk of `gangs.owners` finds
# them.
#
# The keys that a pod was added under are remembered, and dropped as they were added: the objects may have changed
# meanwhile, and owners may own each other in a circle.


class OwnerIndex:
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
            take_out(self.below, key, uid)
