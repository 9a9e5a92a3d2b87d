"""PodDisruptionBudgets, and which of them each bound pod is in.

A namespace may have thousands of both, and one tenant writes them. So a pod is compared only with budgets that one of
its labels leads to, and a budget only with pods that have such a label. What has changed is counted once for a batch of
events, when it is read (`refresh`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from extender.cluster.numbered import Numbered, set_or_drop, take_out
from extender.objects.records import PdbRecord, PodRecord
from extender.objects.selectors import MOST_VALUES, Labels, Selector
from extender.times import Rests

BudgetSet = tuple[tuple[str, str], ...]
"""Namespace and name of each budget, by name."""
MOST_BUDGETS: Final = 32
"""Of one pod: all of them are weighed for each possible victim."""
MOST_COMPARED: Final = 512
"""Budgets that one pod is compared with, those first by name: more have no meaning but to cost time."""
FEW: Final = 8
"""Of so many changed budgets it is looked up which pods they may limit; beyond it all pods of the namespace are
compared again."""
POD_SECONDS: Final = 4e-6  # for which the sets of a pod are found anew, about
COMPARED_SECONDS: Final = 4e-8  # the same for each budget that it is compared with


class _Key(NamedTuple):
    """What a pod must have to be in a budget: the label, with one of these values; None: with any value. The empty
    label is on every pod."""

    label: str
    values: tuple[str, ...] | None

    def on(self, labels: Labels) -> bool:
        """Whether a pod with these labels may be in the budget."""
        if not self.label:
            return True
        value = labels.get(self.label)
        return value is not None and (self.values is None or value in self.values)


EVERY_POD: Final = _Key("", None)


def _key_of(selector: Selector) -> _Key:
    """The requirement that the fewest pods meet, by its form."""
    values = [requirement for requirement in selector.requirements if requirement.operator == "In"]
    if values:
        narrowest = min(values, key=lambda requirement: (len(requirement.values), requirement.key))
        many = len(narrowest.values) > MOST_VALUES
        return _Key(narrowest.key, None if many else tuple(dict.fromkeys(narrowest.values)))
    keys = [requirement.key for requirement in selector.requirements if requirement.operator in ("Exists", "Gt", "Lt")]
    return _Key(min(keys), None) if keys else EVERY_POD


class _OfNamespace:
    """The budgets of one namespace. `by_label`: their names in order, by the label and value that their pods have; the
    value None: any."""

    def __init__(self) -> None:
        self.records: dict[str, PdbRecord] = {}
        self.by_label: dict[tuple[str, str | None], list[str]] = {}

    def put(self, budget: PdbRecord, change: str) -> None:
        """The budget is "set", or there is a "delete"."""
        before = self.records.pop(budget.name, None)
        if before is not None and (change != "set" or before.selector != budget.selector):
            for place in self._places(before):
                names = self.by_label[place]
                del names[bisect_left(names, budget.name)]
                if not names:
                    del self.by_label[place]
        if change == "set":
            self.records[budget.name] = budget
            if before is None or before.selector != budget.selector:
                for place in self._places(budget):
                    insort(self.by_label.setdefault(place, []), budget.name)

    def of(self, pod: PodRecord) -> Iterator[str]:
        """The names of the budgets that the pod is in, in order. kube-scheduler: an empty selector matches nothing,
        nothing matches a pod without labels (not even NotIn or DoesNotExist), and a pod in disruptedPods has been
        counted already."""
        if not pod.labels:
            return
        places = [("", None), *((label, None) for label in pod.labels), *pod.labels.items()]
        sorted_names = [names for place in places if (names := self.by_label.get(place)) is not None]
        compared = islice(sorted_names[0] if len(sorted_names) == 1 else merge(*sorted_names), MOST_COMPARED)
        for name in compared:
            budget = self.records[name]
            if pod.name not in budget.disrupted_pods and budget.selector.matches(pod.labels):
                yield name

    def _places(self, budget: PdbRecord) -> list[tuple[str, str | None]]:
        if budget.selector.empty or budget.selector.nothing:
            return []
        label, values = _key_of(budget.selector)
        return [(label, None)] if values is None else [(label, value) for value in values]


class Budgets:
    """`records`: by namespace and name; `sets`: the different sets of budgets that bound pods are in, by number."""

    def __init__(self, pods: Mapping[str, PodRecord], uids: Mapping[tuple[str, str], str]) -> None:
        """All pods, bound or not. `pods`: by uid; `uids`: by namespace and name."""
        self._records, self._uids = pods, uids
        self.records: dict[tuple[str, str], PdbRecord] = {}
        self.sets: Numbered[BudgetSet] = Numbered(())
        self._in: dict[str, _OfNamespace] = {}
        self._bound: dict[str, dict[str, None]] = {}  # namespace -> uids of its bound pods
        self._numbers: dict[str, int] = {}  # uid -> number of its set
        self._changed: dict[str, dict[_Key, None]] = {}  # namespace -> which of its pods may be in another set
        self._named: dict[str, None] = {}  # uids of pods that may be, too
        self._rests = Rests()  # of namespaces whose budgets stay as they are, but for their status
        self._late: dict[str, dict[str, tuple[PdbRecord, str]]] = {}  # by namespace and name: what counts from then on

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is bound, and known."""
        return uid in self._numbers

    def number(self, uid: str) -> int:
        """The number of the pod's set; 0 where the pod is in no budget, or not bound."""
        return self._numbers.get(uid, 0)

    def namespaces(self) -> Iterable[str]:
        """Those that have bound pods."""
        return self._bound

    def pods_in(self, namespace: str) -> Iterable[PodRecord]:
        """The bound pods of a namespace."""
        return map(self._records.__getitem__, self._bound.get(namespace, ()))

    def of(self, pod: PodRecord) -> BudgetSet:
        """The budgets that an eviction of the bound pod counts against."""
        return self.sets[self._numbers.get(pod.uid, 0)]

    def add(self, pod: PodRecord) -> None:
        """A pod is bound, and not known yet."""
        self._bound.setdefault(pod.namespace, {})[pod.uid] = None
        self._numbers[pod.uid] = self.sets.take(self._with(pod))

    def remove(self, pod: PodRecord) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        self.sets.drop(self._numbers.pop(pod.uid, 0))
        take_out(self._bound, pod.namespace, pod.uid)

    def due(self, now: float) -> bool:
        """Whether `refresh` has budgets to change by now."""
        return bool(self._late) and any(not self._rests.rests(space, now) for space in self._late)

    def set(self, budget: PdbRecord, change: str, now: float) -> None:
        """The budget is "set", or there is a "delete". Which pods it limits counts from the next `refresh` on, or a
        later one where the pods of the namespace were compared for long. `now`: seconds on the server's clock."""
        space, key = budget.namespace, (budget.namespace, budget.name)
        take_out(self._late, space, budget.name)
        before = self.records.get(key)
        same = before is not None and change == "set" and before.selector == budget.selector
        if not same and self._rests.rests(space, now):
            self._late.setdefault(space, {})[budget.name] = budget, change
            return
        set_or_drop(self.records, key, budget, change)
        budgets = self._in.setdefault(space, _OfNamespace())
        budgets.put(budget, change)
        if not budgets.records:
            del self._in[space]
        if same and before is not None:
            changed = (self._uids.get((space, name)) for name in before.disrupted_pods ^ budget.disrupted_pods)
            bound = self._bound.get(space, ())
            self._named |= {uid: None for uid in changed if uid is not None and uid in bound}
            return
        keys = self._changed.setdefault(space, {})
        for selector in {budget.selector, budget.selector if before is None else before.selector}:
            if not selector.empty and not selector.nothing:
                keys[_key_of(selector)] = None

    def refresh(self, now: float) -> Iterator[str]:
        """Bring the sets of all pods up to date. `now`: as for `set`. Yields the uids of the bound pods whose set is
        another one: the caller writes the number of each before it asks for the next, since a number may be free
        afterwards."""
        for space in [space for space in self._late if not self._rests.rests(space, now)]:
            for budget, change in self._late.pop(space).values():
                self.set(budget, change, now)
        if not self._changed and not self._named:
            return
        changed, named = self._changed, self._named
        self._changed, self._named = {}, {}
        for space, keys in changed.items():
            bound = self._bound.get(space, ())
            found: dict[str, None] = {}
            for key in keys if len(keys) <= FEW else (EVERY_POD,):
                found |= {uid: None for uid in bound if key.on(self._records[uid].labels)}
            self._rest(space, len(found), now)
            named |= found
        for uid in named:
            old = self._numbers.get(uid)
            if old is None:  # bound no more
                continue
            new = self.sets.take(self._with(self._records[uid]))
            self._numbers[uid] = new
            if new != old:
                yield uid
            self.sets.drop(old)

    def _rest(self, space: str, pods: int, now: float) -> None:
        """So many pods of the namespace are compared."""
        budgets = self._in.get(space)
        compared = 0 if budgets is None else min(len(budgets.records), MOST_COMPARED)
        self._rests.took(space, pods * (POD_SECONDS + compared * COMPARED_SECONDS), now)

    def _with(self, pod: PodRecord) -> BudgetSet:
        """The budgets that the pod is in. Of more than MOST_BUDGETS the first by name count: the API server evicts no
        pod that is in more than one."""
        budgets = self._in.get(pod.namespace)
        names = () if budgets is None else islice(budgets.of(pod), MOST_BUDGETS)
        return tuple([(pod.namespace, name) for name in names])
