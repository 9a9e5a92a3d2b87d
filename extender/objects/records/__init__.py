"""Kubernetes objects as slim records: only the fields that we use, decoded straight from JSON.

Records are what the rest of the program sees of Kubernetes: flat, immutable, compared by value and, as none refers back
to another, outside the garbage collector. A field of a wrong type or an impossible quantity is a ``RecordError`` that
states where; `tolerant.py` reads the rest of such an object. Every function takes the bytes of one object, or the
same as a dict (from YAML); ``gpus`` are the names of the resources that count as GPUs.
"""

from extender.objects.records.budgets import PdbRecord, budget_of, pod_disruption_budget
from extender.objects.records.classes import DeviceClassRecord, PriorityClassRecord, device_class, priority_class
from extender.objects.records.groups import GroupRecord
from extender.objects.records.lists import KINDS, Kind, Page, Record, page
from extender.objects.records.nodes import NodeRecord, node, node_of, selects
from extender.objects.records.parts import Identity, Owner, identity
from extender.objects.records.pods import MOST_GRACE, PodRecord, pod, pod_of
from extender.objects.schema import RecordError, Source

__all__ = [
    "KINDS", "MOST_GRACE", "DeviceClassRecord", "GroupRecord", "Identity", "Kind", "NodeRecord", "Owner", "Page",
    "PdbRecord", "PodRecord", "PriorityClassRecord", "Record", "RecordError", "Source", "budget_of", "device_class",
    "identity", "node", "node_of", "page", "pod", "pod_disruption_budget", "pod_of", "priority_class",
    "selects",
]  # fmt: skip
