"""Kubernetes objects as slim records: only the fields that we use, decoded straight from JSON.

Records are what the rest of the program sees of Kubernetes: flat, immutable, compared by value and, as none refers back
to another, outside the garbage collector. A field of a wrong type or an impossible quantity is a ``RecordError`` that
states where; `tolerant.py` reads the rest of such an object. Every function takes the bytes of one object, or the
same as a dict (from YAML); ``gpus`` are the names of the resources that count as GPUs.
"""

from extender.objects.records.budgets import PdbRecord, budget_of, pod_disruption_budget
from extender.objects.records.classes import DeviceClassRecord, PriorityClassRecord, device_class, priority_class
from extender.objects.records.device_claims import (
    FINALIZER,
    PLANNED_NODE,
    AllocatedDevice,
    Choice,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
    resource_claim,
    resource_claim_template,
)
from extender.objects.records.devices import (
    FENCE,
    DeviceRecord,
    DeviceTaintRuleRecord,
    ResourceSliceRecord,
    device_taint_rule,
    resource_slice,
)
from extender.objects.records.groups import GroupRecord, LatePods
from extender.objects.records.lists import KINDS, DraRecord, Kind, Page, Record, page
from extender.objects.records.nodes import GpuDevice, NodeDevices, NodeRecord, node, node_of, selects
from extender.objects.records.parts import Identity, Owner, identity
from extender.objects.records.pods import (
    LONGEST_DEADLINE,
    MOST_GRACE,
    MOVING_TEXT,
    PLACEABLE,
    SEAT_MOVES,
    SEAT_REJECTED,
    SEAT_TEXT,
    UNREADABLE,
    UNSCHEDULABLE,
    PodClaimRef,
    PodRecord,
    pod,
    pod_of,
    pod_of_template,
)
from extender.objects.records.quotas import (
    PRIORITY_CLASS,
    QuotaFacts,
    QuotaRecord,
    QuotaScope,
    quota_of,
    resource_quota,
)
from extender.objects.schema import RecordError, Source

__all__ = [
    "FENCE", "FINALIZER", "KINDS", "LONGEST_DEADLINE", "MOST_GRACE", "MOVING_TEXT", "PLACEABLE", "PLANNED_NODE",
    "PRIORITY_CLASS", "SEAT_MOVES", "SEAT_REJECTED", "SEAT_TEXT", "UNREADABLE", "UNSCHEDULABLE", "AllocatedDevice",
    "Choice", "DeviceClassRecord", "DeviceRecord", "DeviceTaintRuleRecord", "DraRecord", "GpuDevice", "GroupRecord",
    "Identity", "Kind", "LatePods", "NodeDevices", "NodeRecord", "Owner", "Page", "PdbRecord", "PodClaimRef",
    "PodRecord", "PriorityClassRecord", "QuotaFacts", "QuotaRecord", "QuotaScope", "Record", "RecordError",
    "ResourceClaimRecord", "ResourceClaimTemplateRecord", "ResourceSliceRecord", "Source", "budget_of",
    "device_class", "device_taint_rule", "identity", "node", "node_of", "page", "pod", "pod_disruption_budget",
    "pod_of", "pod_of_template", "priority_class", "quota_of", "resource_claim", "resource_claim_template",
    "resource_quota", "resource_slice", "selects",
]  # fmt: skip
