"""The kinds of objects, and lists of them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from extender.objects import schema
from extender.objects.records.budgets import PdbRecord
from extender.objects.records.classes import DeviceClassRecord, PriorityClassRecord
from extender.objects.records.device_claims import ResourceClaimRecord, ResourceClaimTemplateRecord
from extender.objects.records.devices import DeviceTaintRuleRecord, ResourceSliceRecord
from extender.objects.records.groups import GroupRecord
from extender.objects.records.nodes import NodeRecord
from extender.objects.records.pods import PodRecord
from extender.objects.records.quotas import QuotaRecord
from extender.objects.schema import RecordError, read

Kind = Literal[
    "Pod", "FailedPod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim",
    "ResourceClaimTemplate", "DeviceTaintRule", "ResourceQuota", "Group",
]  # fmt: skip
"""FailedPod: a Pod that holds nothing any more, and states how it failed. Group: an object of gangs.GROUP_KINDS, which
states how many pods of a group must run; gangs.group reads it."""
KINDS: Final[tuple[Kind, ...]] = (
    "Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim",
    "ResourceClaimTemplate", "DeviceTaintRule", "ResourceQuota",
)  # fmt: skip
DraRecord = (
    DeviceClassRecord | ResourceSliceRecord | ResourceClaimRecord | ResourceClaimTemplateRecord | DeviceTaintRuleRecord
)
Record = PodRecord | NodeRecord | PdbRecord | PriorityClassRecord | QuotaRecord | GroupRecord | DraRecord

_LIST: Final = msgspec.json.Decoder(schema.List)


class Page(NamedTuple):
    """One answer to a list request: its objects, still bytes, and where the rest is.

    The objects point into the answer's own bytes, so a page is to be used up and dropped.
    """

    kind: str
    """Of one item; "" for a List of mixed kinds."""
    resource_version: str
    continue_token: str
    """"" on the last page."""
    items: list[msgspec.Raw]


def page(source: bytes) -> Page:
    """A ``PodList``, ``NodeList`` ... or ``List``, with its objects not yet decoded."""
    wire = read(source, _LIST)
    meta = wire.metadata or schema.ListMetadata()
    if wire.kind is None or not wire.kind.endswith("List"):
        raise RecordError("kind", f"not a list: {wire.kind!r}")
    return Page(wire.kind.removesuffix("List"), meta.resource_version or "", meta.continue_ or "", wire.items or [])
