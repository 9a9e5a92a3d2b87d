"""DeviceTaintRules: which devices are tainted beside what their slices state."""

from __future__ import annotations

from collections import Counter
from itertools import product

from extender.objects.records import FENCE, AllocatedDevice, DeviceTaintRuleRecord

Selector = tuple[str, str, str]
"""Driver, pool and device, "" for any."""


class TaintRules:
    """The rules of the cluster. `records`: by name."""

    def __init__(self, *, plans: bool) -> None:
        """`plans`: the queue allocates devices, so its own fence keeps none of them from it."""
        self.records: dict[str, DeviceTaintRuleRecord] = {}
        self._plans = plans
        self._taints: Counter[Selector] = Counter()
        self._fences: Counter[Selector] = Counter()

    def update(self, record: DeviceTaintRuleRecord, change: str) -> list[DeviceTaintRuleRecord]:
        """A rule is "set", or there is a "delete". Its versions before and after that taint devices."""
        versions: list[DeviceTaintRuleRecord] = []
        before = self.records.pop(record.name, None)
        if before is not None:
            versions.append(before)
            self._count(before, -1)
        if change == "set":
            self.records[record.name] = record
            versions.append(record)
            self._count(record, 1)
        return [one for one in versions if one.taint and not self._is_ours(one)]

    def taints(self, device: AllocatedDevice) -> bool:
        """Whether the device is tainted by a rule."""
        return bool(self._taints) and _is_selected(self._taints, device)

    def fences(self, device: AllocatedDevice) -> bool:
        """Whether a rule keeps kube-scheduler off the device, and leaves it to the queue."""
        return bool(self._fences) and _is_selected(self._fences, device)

    def _is_ours(self, record: DeviceTaintRuleRecord) -> bool:
        return self._plans and record.taint == FENCE

    def _count(self, record: DeviceTaintRuleRecord, by: int) -> None:
        if not record.taint:
            return
        counts, selector = self._fences if self._is_ours(record) else self._taints, selector_of(record)
        counts[selector] += by
        if not counts[selector]:
            del counts[selector]


def selector_of(record: DeviceTaintRuleRecord) -> Selector:
    """What the rule selects."""
    return record.driver, record.pool, record.device


def _is_selected(selectors: Counter[Selector], device: AllocatedDevice) -> bool:
    return any(selector in selectors for selector in product(*((name, "") for name in device)))
