"""PodDisruptionBudgets, and which of them each bound pod is in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from extender.cluster.pods.numbered import Numbered
from extender.objects.records import PdbRecord, PodRecord

BudgetSet = tuple[tuple[str, str], ...]
"""Namespace and name of each budget, by name."""
MOST_BUDGETS: Final = 32
"""Of one pod: all of them are weighed for each possible victim."""


class Budgets:
    """`records`: by namespace and name; `sets`: the different sets of budgets that bound pods are in, by number."""

    def __init__(self, uids: Mapping[tuple[str, str], str]) -> None:
        """`uids`: of all pods, by namespace and name."""
        self._uids = uids
        self.records: dict[tuple[str, str], PdbRecord] = {}
        self.sets: Numbered[BudgetSet] = Numbered(())
        self._in: dict[str, dict[str, PdbRecord]] = {}  # namespace -> its budgets, in the order of their names
        self._pods: dict[str, dict[str, PodRecord]] = {}  # namespace -> its bound pods by uid
        self._numbers: dict[str, int] = {}  # uid -> number of its set

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is bound, and known."""
        return uid in self._numbers

    def number(self, uid: str) -> int:
        """The number of the pod's set; 0 where the pod is in no budget, or not bound."""
        return self._numbers.get(uid, 0)

    def of(self, pod: PodRecord) -> BudgetSet:
        """The budgets that an eviction of the bound pod counts against."""
        return self.sets[self._numbers.get(pod.uid, 0)]

    def add(self, pod: PodRecord) -> None:
        """A pod is bound, and not known yet."""
        self._pods.setdefault(pod.namespace, {})[pod.uid] = pod
        self._numbers[pod.uid] = self.sets.take(self._with(pod))

    def renew(self, pod: PodRecord) -> None:
        """A bound pod has changed, and its name and labels have not: it is in the budgets that it was in."""
        self._pods[pod.namespace][pod.uid] = pod

    def remove(self, pod: PodRecord) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        self.sets.drop(self._numbers.pop(pod.uid, 0))
        pods = self._pods.get(pod.namespace)
        if pods is not None:
            pods.pop(pod.uid, None)
            if not pods:
                del self._pods[pod.namespace]

    def set(self, budget: PdbRecord, change: str) -> Iterator[str]:
        """The budget is "set", or there is a "delete". Yields the uids of the bound pods whose set is another one: the
        caller writes the number of each before it asks for the next, since a number may be free afterwards."""
        space, key = budget.namespace, (budget.namespace, budget.name)
        before = self.records.get(key)
        self._put(budget, change)
        pods = self._pods.get(space, {})
        if before is not None and change == "set" and before.selector == budget.selector:
            changed = (self._uids.get((space, name)) for name in before.disrupted_pods ^ budget.disrupted_pods)
            pods = {uid: pods[uid] for uid in changed if uid in pods}
        for uid, pod in list(pods.items()):
            inside = self.sets[old := self._numbers[uid]]
            if (limited := change == "set" and _limits(budget, pod)) == (key in inside):
                continue
            if limited:  # only this budget is compared with each pod: a namespace may have thousands
                found = tuple(sorted((*inside, key))[:MOST_BUDGETS])
            elif len(inside) < MOST_BUDGETS:
                found = tuple([other for other in inside if other != key])
            else:
                found = self._with(pod)
            self._numbers[uid] = self.sets.take(found)
            yield uid
            self.sets.drop(old)

    def _put(self, budget: PdbRecord, change: str) -> None:
        space, key = budget.namespace, (budget.namespace, budget.name)
        there = self._in.setdefault(space, {})
        if change == "set":
            self.records[key] = budget
            new = budget.name not in there
            there[budget.name] = budget
            if new:
                self._in[space] = dict(sorted(there.items()))
            return
        self.records.pop(key, None)
        there.pop(budget.name, None)
        if not there:
            del self._in[space]

    def _with(self, pod: PodRecord) -> BudgetSet:
        """The budgets that the pod is in. kube-scheduler: an empty selector matches nothing, nothing matches a pod
        without labels (not even NotIn or DoesNotExist), and a pod in disruptedPods has been counted already. Of more
        than MOST_BUDGETS the first by name count: the API server evicts no pod that is in more than one."""
        budgets = self._in.get(pod.namespace, {}).values()
        return tuple(islice(((one.namespace, one.name) for one in budgets if _limits(one, pod)), MOST_BUDGETS))


def _limits(budget: PdbRecord, pod: PodRecord) -> bool:
    """Whether the pod is in the budget, and not counted by it already."""
    return (
        bool(pod.labels)
        and not budget.selector.empty
        and pod.name not in budget.disrupted_pods
        and budget.selector.matches(pod.labels)
    )
