"""The pods: their records, where they are, and what they belong to.

    Pending --bind--> on a node, settling --ids seen--> on a node, positions sure --deleted/ended--> gone
       \\--nominated by kube-scheduler--/                 (a terminating pod holds its GPUs until it is gone)

A pod keeps what it holds until it has terminated (Succeeded, Failed) or is deleted.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from ext_core.table import PodTable
from extender.cluster.annotation_limits import AnnotationLimits
from extender.cluster.budgets import Budgets
from extender.cluster.demand import is_particular
from extender.cluster.gangs import Gangs, OwnerIndex, Workloads
from extender.cluster.listener import Faults
from extender.cluster.nodes import NodeRows, Nodes
from extender.cluster.numbered import Numbered, Requirements, set_or_drop, take_out
from extender.cluster.statements import HELD, PLAN
from extender.cluster.tables import Amounts, OtherResources
from extender.objects import gangs
from extender.objects.decode import bare
from extender.objects.progress import SAVES
from extender.objects.queueing import is_queued
from extender.objects.records import (
    GroupRecord,
    PodRecord,
    PriorityClassRecord,
    QuotaRecord,
    SaveAnswersRecord,
)
from extender.objects.selectors import PodTerm, Selector

MOST_MOVED: Final = 64
"""Pods below an object that follow each change of its owner at once: about 10 us each, on the event loop."""
OWNER_SECONDS: Final = 10.0
"""Where the owner of an object above more pods changes again within this time, the former one counts until then."""


class Pods:
    """All pods. `records`: by uid; `uids`: by namespace and name; `stale`: what the tables do not have yet;
    `priority_classes`: by name; `quotas`: by namespace and name; `save_answers`: by namespace."""

    def __init__(
        self, table: PodTable, amounts: Amounts, limits: AnnotationLimits, nodes: Nodes, faults: Faults
    ) -> None:
        self.records: dict[str, PodRecord] = {}
        self.uids: dict[tuple[str, str], str] = {}
        self.priority_classes: dict[str, PriorityClassRecord] = {}
        self.quotas: dict[tuple[str, str], QuotaRecord] = {}
        self.save_answers: dict[str, SaveAnswersRecord] = {}
        limits.ignores = self._ignores
        self.amounts, self.limits = amounts, limits
        self.placements = Placements(amounts)
        self.rows = PodRows(table)
        self.gangs = Gangs(nodes.records, limits, faults)
        self.budgets = Budgets(self.records, self.uids)
        self.requirements = Requirements(nodes.eligibility)
        self.workloads = Workloads()
        self.stale = Stale()
        self._table = table
        self._owners = OwnerIndex()  # of the pods that are bound, or in a workload
        self._moved: dict[gangs.ObjectKey, float] = {}  # when their owners changed, the oldest first
        self._moves: dict[gangs.ObjectKey, GroupRecord] = {}  # those of `_moved` whose owners have changed again
        self._held_counts = nodes.gpus.held_counts

    def on(self, node: str) -> Iterator[PodRecord]:
        """The pods that hold something on a node."""
        return map(self.records.__getitem__, self.placements.bound.get(node, ()))

    def bound(self, uid: str) -> PodRecord | None:
        """The pod, if it holds something on its node."""
        pod = self.records.get(uid)
        return pod if pod is not None and uid in self.placements.bound.get(pod.node, ()) else None

    # -- pods -----------------------------------------------------------------------------------------------------

    def set(self, pod: PodRecord, now: float) -> None:
        """The pod is new or has changed. `now`: seconds on the server's clock."""
        before = self.records.get(pod.uid)
        self.stale.try_again(pod.node)
        if before is not None and self._stays(before, pod):
            self._change(before, pod)
            return
        if before is not None:
            self._remove(before, keep_row=before.node == pod.node)
        self.records[pod.uid] = pod
        self._owners.add(pod, self.gangs.objects)
        self.uids[(pod.namespace, pod.name)] = pod.uid
        placements = self.placements
        if pod.finished:
            self.rows.free(pod.uid)
            placements.settling.pop(pod.uid, None)
            return
        named = self.gangs.ref(pod)
        if (pod.gpus or not pod.node) and not pod.terminating:
            self.workloads.add(pod, named)
        if not pod.node:
            placements.wait(pod)
            return
        placements.bind(pod)
        self._join(pod, named)
        self.stale.pod(pod)
        if _is_settled(pod, self._held_counts):
            placements.settling.pop(pod.uid, None)
        elif before is None or not before.node:
            placements.settle(pod.uid, now)

    def renew(self, before: PodRecord, pod: PodRecord) -> None:
        """A known pod has another version, in which nothing else has changed."""
        self.stale.try_again(pod.node)
        self.records[pod.uid] = pod
        self.gangs.renew(before, pod)

    def _stays(self, before: PodRecord, pod: PodRecord) -> bool:
        """Whether a known pod is bound as before, and all that is held of it is in place."""
        same = before.node == pod.node and before.name == pod.name and before.namespace == pod.namespace
        return same and pod.uid in self.budgets and not pod.finished

    def _change(self, before: PodRecord, pod: PodRecord) -> None:
        """A bound pod that stays has changed: renew what depends on the parts of it that are others now."""
        uid, stale, placements = pod.uid, self.stale, self.placements
        self.records[uid] = pod
        self.uids[(pod.namespace, pod.name)] = uid
        amounts = before.cpu_milli == pod.cpu_milli and before.memory == pod.memory and before.gpus == pod.gpus
        if (
            self._belongs_elsewhere(before, pod, amounts)
            or not amounts
            or _row_inputs(before) != _row_inputs(pod)
            or before.annotations != pod.annotations
        ):
            stale.pods[uid] = None
        if before.anti_affinity_terms != pod.anti_affinity_terms or before.quota_facts != pod.quota_facts:
            placements.repelling.remove(uid)
            placements.others.release(uid)
            placements.bind(pod)
        settled = uid in placements.settling and _is_settled(pod, self._held_counts)
        if settled:
            del placements.settling[uid]
        if before.gpus or pod.gpus:
            same = before.gpus == pod.gpus and before.held == pod.held and _statements(before) == _statements(pod)
            if settled or not same:
                stale.ledgers.add(pod.node)

    def _belongs_elsewhere(self, before: PodRecord, pod: PodRecord, amounts: bool) -> bool:
        """Renew what a changed pod belongs to; whether its row must be marked with other numbers, perhaps. `amounts`:
        it asks for the same."""
        uid, owned = pod.uid, before.owner == pod.owner
        labels = before.labels == pod.labels
        named = labels and owned and before.group == pod.group and before.annotations == pod.annotations
        if not owned:
            self._owners.drop(uid)
            self._owners.add(pod, self.gangs.objects)
        works = bool(pod.gpus) and not pod.terminating
        if not named or works != (uid in self.workloads):
            self.workloads.remove(uid)
            if works:
                self.workloads.add(pod, self.gangs.ref(pod))
        asks = amounts and _requirements(before) == _requirements(pod)
        if named and asks:  # the labels are the same, so the budgets are
            self.gangs.renew(before, pod)
            return False
        row = self.rows.get(uid)
        if row is not None:
            self._table.mark(row, 0, 0, 0)  # no row names a number that is free, whatever fails until it is written
        self.gangs.remove(uid)
        self.gangs.add(pod, self.gangs.ref(pod))
        if not labels:
            self.budgets.remove(before)
            self.budgets.add(pod)
        if not asks:
            self.requirements.remove(uid)
            self.requirements.add(pod, self.amounts.of(pod))
        return True

    def drop(self, pod: PodRecord) -> None:
        """The pod, which is known, is deleted."""
        del self.records[pod.uid]
        if self.uids.get((pod.namespace, pod.name)) == pod.uid:
            del self.uids[(pod.namespace, pod.name)]
        self._remove(pod, keep_row=False)
        self.placements.settling.pop(pod.uid, None)
        self.stale.try_again(pod.node)

    def come_to(self, node: str) -> None:
        """The node, which was not known, exists: its pods hold what they ask for."""
        uids = self.placements.bound.get(node, ())
        self.gangs.touch(uids)
        self.stale.pods.update(dict.fromkeys(uids))
        self.stale.node(node, gpus=True)

    def leave_from(self, node: str) -> None:
        """The node does not exist any more. Its pods stay by name: it may come back."""
        uids = self.placements.bound.get(node, ())
        self.gangs.touch(uids)
        for uid in uids:
            self.rows.free(uid)
        self.stale.try_again(node)

    def hold_bare(self, pod: PodRecord, *, deleted: bool) -> None:
        """After a defect: a pod that exists holds its GPUs on its node, and nothing else is known of it. A deleted pod
        holds nothing. Only tables are written, so that this cannot fail as well."""
        uid = pod.uid
        before = self.records.pop(uid, pod)
        for key in ((before.namespace, before.name), (pod.namespace, pod.name)):
            if self.uids.get(key) == uid:
                del self.uids[key]
        placements = self.placements
        placements.leave(uid)
        placements.settling.pop(uid, None)
        self._owners.drop(uid)
        self.workloads.remove(uid)
        for known in (before, pod):
            self._part(known)
            if placements.unbind(uid, known.node):
                self.stale.node(known.node, gpus=True)
        self.rows.free(uid)
        if deleted:
            return
        self.records[uid] = bare(pod)
        self.uids[(pod.namespace, pod.name)] = uid
        if pod.node and not pod.finished:
            placements.bound.setdefault(pod.node, {})[uid] = None
            self.stale.pod(pod)

    def _remove(self, pod: PodRecord, *, keep_row: bool) -> None:
        """Take a pod out of everything but `records` and `uids`."""
        self._owners.drop(pod.uid)
        self.workloads.remove(pod.uid)
        self.placements.leave(pod.uid)
        if pod.node:
            self._part(pod)
            if self.placements.unbind(pod.uid, pod.node):
                self.stale.node(pod.node, gpus=bool(pod.gpus))
        if not keep_row:
            self.rows.free(pod.uid)

    # -- what a bound pod belongs to, as numbers in the table -----------------------------------------------------

    def _join(self, pod: PodRecord, named: gangs.Ref | None) -> None:
        """Find the numbers of a bound pod, which names that gang. They are written with its row, and the gang's when
        the gang is read."""
        self.gangs.add(pod, named)
        self.budgets.add(pod)
        self.requirements.add(pod, self.amounts.of(pod))

    def _part(self, pod: PodRecord) -> None:
        """Give the numbers of a bound pod back."""
        row = self.rows.get(pod.uid)
        if row is not None:
            self._table.mark(row, 0, 0, 0)  # no row names a number that is free, whatever fails until it is written
        self.budgets.remove(pod)
        self.requirements.remove(pod.uid)
        self.gangs.remove(pod.uid)

    def mark(self, row: int, uid: str) -> None:
        """Write the numbers of a bound pod into its row."""
        self._table.mark(row, self.gangs.number(uid), self.budgets.number(uid), self.requirements.number(uid))

    def refresh(self, now: float) -> None:
        """Bring the gangs and the budgets that have changed up to date."""
        self._mark_all(self.gangs.refresh(now))
        self._mark_all(self.budgets.refresh(now))

    def _mark_all(self, uids: Iterator[str]) -> None:
        for uid in uids:
            row = self.rows.get(uid)
            if row is not None:
                self.mark(row, uid)

    # -- other objects that concern pods --------------------------------------------------------------------------

    def set_priority_class(self, record: PriorityClassRecord, change: str) -> None:
        """A PriorityClass is "set", or there is a "delete"."""
        set_or_drop(self.priority_classes, record.name, record, change)

    def set_save_answers(self, record: SaveAnswersRecord, change: str) -> None:
        """What is remembered of a namespace is "set", or there is a "delete". The rows of its pods that save follow."""
        set_or_drop(self.save_answers, record.name, record, change)
        for pod in self.budgets.pods_in(record.name):
            row = self.rows.get(pod.uid) if not pod.annotations.keys().isdisjoint(SAVES) else None
            if row is not None:  # there may be thousands: their rows are not written anew
                self._table.believe(row, self._ignores(pod))

    def _ignores(self, pod: PodRecord) -> int:
        """How likely the pod ignores a request to save, in thousandths."""
        record = self.save_answers.get(pod.namespace)
        if record is None:  # nearly always
            return 0
        return record.owners.get(gangs.top_owner(pod, self.gangs.objects), record.ignores)

    def set_quota(self, record: QuotaRecord, change: str) -> None:
        """A ResourceQuota is "set", or there is a "delete"."""
        set_or_drop(self.quotas, (record.namespace, record.name), record, change)

    def move(self, now: float) -> bool:
        """Follow the changes of owners that were put off, once it is time. Whether there were any."""
        moved = False
        while self._moved and now - next(iter(self._moved.values())) >= OWNER_SECONDS:
            key = next(iter(self._moved))
            del self._moved[key]
            record = self._moves.pop(key, None)
            if record is not None:
                self.set_group(record, "set", now)
                moved = True
        return moved

    def _with_owner(self, key: gangs.ObjectKey, before: GroupRecord, record: GroupRecord, now: float) -> GroupRecord:
        """The record, with the owner of `before` where too many pods have followed another change of it lately."""
        self._moves.pop(key, None)
        if record.owner == before.owner or len(self._owners.below.get(key, ())) <= MOST_MOVED:
            return record
        if now - self._moved.get(key, -inf) < OWNER_SECONDS:
            self._moves[key] = record
            return replace(record, owner=before.owner)
        self._moved.pop(key, None)
        self._moved[key] = now
        return record

    def set_group(self, record: GroupRecord, change: str, now: float) -> None:
        """An object that states how many pods must run is "set", or there is a "delete". `now`: seconds on the
        server's clock."""
        key = (record.api, record.kind, record.namespace, record.name)
        before = self.gangs.objects.get(key)
        if change == "set" and before is not None:
            record = self._with_owner(key, before, record, now)
        else:
            self._moves.pop(key, None)
        owner = record.owner if change == "set" else None
        pods: list[PodRecord] = []
        if (before.owner if before is not None else None) != owner:  # another gang from here on
            pods = [self.records[uid] for uid in self._owners.below.get(key, ())]
        in_workloads = [pod for pod in pods if pod.uid in self.workloads]
        bound = [pod for pod in pods if pod.uid in self.budgets]
        for pod in pods:
            self._owners.drop(pod.uid)
            self.workloads.remove(pod.uid)
        for pod in bound:
            self._part(pod)
        self.gangs.set(record, change)
        for pod in pods:
            self._owners.add(pod, self.gangs.objects)
        for pod in in_workloads:
            self.workloads.add(pod, self.gangs.ref(pod))
        for pod in bound:
            self._join(pod, self.gangs.ref(pod))
            self.stale.pods[pod.uid] = None


def _is_settled(pod: PodRecord, held_counts: bool) -> bool:
    """Whether what is known of a bound pod's GPUs will not be known better in a moment. `held_counts`: whether the
    annotation held-gpus counts."""
    return bool(pod.held) or (held_counts and HELD in pod.annotations) or pod.phase != "Pending"


def _row_inputs(pod: PodRecord) -> tuple[object, ...]:
    """What a row has of the pod, besides its amounts and annotations."""
    return (
        pod.priority, pod.priority_class, pod.terminating, pod.start, pod.grace_seconds, pod.daemon, pod.mirror,
        bool(pod.devices), pod.keeps_devices,
    )  # fmt: skip


def _requirements(pod: PodRecord) -> tuple[object, ...]:
    """What its number of requirements depends on, besides its amounts and namespace."""
    return pod.node_selector, pod.node_terms, pod.tolerations


def _statements(pod: PodRecord) -> tuple[str | None, str | None]:
    """What its annotations state about its GPUs."""
    return pod.annotations.get(HELD), pod.annotations.get(PLAN)


def touched_nodes(pods: Pods) -> set[str]:
    """Names of the nodes to which pods have come, on which they have changed, or which they have left, since the latest
    refresh."""
    changed = (pod.node for uid in pods.stale.pods if (pod := pods.records.get(uid)) is not None)
    return pods.stale.nodes.union(changed)


# -- what is stale -----------------------------------------------------------------------------------------------------


class Stale:
    """`pods`: uids of pods whose rows differ from their records; `nodes`: names of nodes on which pods hold other
    amounts; `ledgers`: names of nodes on which pods may hold other GPUs, or which have other GPUs. After a defect:
    `unwritten`: uids of pods whose rows could not be written, by node; `unread`: nodes whose ledger is not read."""

    def __init__(self) -> None:
        self.pods: dict[str, None] = {}
        self.nodes: set[str] = set()
        self.ledgers: set[str] = set()
        self.unwritten: dict[str, dict[str, None]] = {}
        self.unread: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.pods or self.nodes or self.ledgers)

    def pod(self, pod: PodRecord) -> None:
        """A pod has come to its node: its row must be written, and what depends on it."""
        self.pods[pod.uid] = None
        self.node(pod.node, gpus=bool(pod.gpus))

    def node(self, name: str, *, gpus: bool) -> None:
        """A pod has come to the node, or has left it. `gpus`: it asks for GPUs."""
        self.nodes.add(name)
        if gpus:
            self.ledgers.add(name)

    def try_again(self, node: str) -> None:
        """An event is about the node, or a pod of it: what could not be written of it is stale again."""
        if self.unwritten or self.unread:
            self.pods.update(self.unwritten.pop(node, {}))
            if node in self.unread:
                self.unread.remove(node)
                self.ledgers.add(node)

    def take(self) -> tuple[dict[str, None], set[str], set[str]]:
        """The three, which are empty from now on."""
        taken = self.pods, self.nodes, self.ledgers
        self.pods, self.nodes, self.ledgers = {}, set(), set()
        return taken


# -- rows --------------------------------------------------------------------------------------------------------------


FREE: Final = ("", "")


class PodRows:
    """One row a bound pod, once its node is written; a deleted pod's row is used again. `uids`: by row, "" free;
    `names`: by row (namespace, name), ("", "") free."""

    def __init__(self, table: PodTable) -> None:
        self.uids: list[str] = []
        self.names: list[tuple[str, str]] = []
        table.name_rows(self.names)
        self._table = table
        self._rows: dict[str, int] = {}
        self._free: list[int] = []

    def __getitem__(self, uid: str) -> int:
        """The row of a pod that has one. KeyError: it has none."""
        return self._rows[uid]

    def get(self, uid: str) -> int | None:
        """The pod's row, None where it has none."""
        return self._rows.get(uid)

    def take(self, pod: PodRecord) -> int:
        """The pod's row; a free one where it had none."""
        uid = pod.uid
        row = self._rows.get(uid)
        if row is None:
            if self._free:
                row = self._free.pop()
            else:
                row = len(self.uids)
                self.uids.append("")
                self.names.append(FREE)
            self._rows[uid] = row
            self.uids[row], self.names[row] = uid, (pod.namespace, pod.name)
        return row

    def free(self, uid: str) -> None:
        """The pod needs no row any more."""
        row = self._rows.pop(uid, None)
        if row is not None:
            self._table.drop(row)
            self.uids[row], self.names[row] = "", FREE
            self._free.append(row)


# -- where pods are: bound to a node, nominated for one, or waiting without one


SETTLE_SECONDS: Final = 30.0  # a bound pod that has not started by then is not "about to be seen" any more


MOST_TESTS: Final = 4096
"""Tests of labels in the required anti-affinity of a namespace's pods. The API server lets one pod state thousands, and
each question about another pod would compare all of them."""


class _Stated(NamedTuple):
    """What bound pods of a namespace state alike."""

    namespace: str
    terms: tuple[PodTerm, ...]

    @property
    def tests(self) -> int:
        """How many tests of labels, or of namespaces alone, it takes to compare another pod with them."""
        return sum(1 + len(term.selector.requirements) for term in self.terms)


class Repelling:
    """The required anti-affinity of bound pods. Pods of a namespace with the same terms count once. Where the terms of
    a namespace have more than MOST_TESTS tests, each matches every pod of the namespaces into which it looks."""

    def __init__(self) -> None:
        self._stated: Numbered[_Stated] = Numbered(_Stated("", ()))
        self._on: dict[int, dict[str, int]] = {}  # number of what is stated -> node name -> how many pods state it
        self._into: dict[str | None, dict[int, None]] = {}  # namespace, None for any -> numbers with terms about it
        self._tests: dict[str, int] = {}  # by namespace of the pods that state them
        self._pods: dict[str, tuple[str, int]] = {}  # uid -> its node, and the number of what it states

    def __len__(self) -> int:
        """How many bound pods have required anti-affinity."""
        return len(self._pods)

    def add(self, pod: PodRecord) -> None:
        """A pod is bound, and not counted yet."""
        if not pod.anti_affinity_terms:
            return
        stated = _Stated(pod.namespace, pod.anti_affinity_terms)
        number = self._stated.take(stated)
        self._pods[pod.uid] = pod.node, number
        counts = self._on.get(number)
        if counts is None:
            counts = self._on[number] = {}
            self._tests[pod.namespace] = self._tests.get(pod.namespace, 0) + stated.tests
            for namespace in _into(stated.terms):
                self._into.setdefault(namespace, {})[number] = None
        counts[pod.node] = counts.get(pod.node, 0) + 1

    def remove(self, uid: str) -> None:
        """A pod is bound no more; it need not be counted."""
        placement = self._pods.pop(uid, None)
        if placement is None:
            return
        node, number = placement
        counts, stated = self._on[number], self._stated[number]
        counts[node] -= 1
        if not counts[node]:
            del counts[node]
        if not self._stated.drop(number):
            return
        del self._on[number]
        self._tests[stated.namespace] -= stated.tests
        if not self._tests[stated.namespace]:
            del self._tests[stated.namespace]
        for namespace in _into(stated.terms):
            take_out(self._into, namespace, number)

    def terms(self, namespace: str) -> Iterator[PodTerm]:
        """Those that may match pods of the namespace; one that different pods have may come several times."""
        return chain.from_iterable(self._of(number, namespace) for number in self._about(namespace))

    def nodes(self, pod: PodRecord, names: Collection[str]) -> set[str]:
        """Those of the nodes where a required anti-affinity of a bound pod may match `pod`; the topology of the terms
        is not looked at."""
        repelling = set[str]()
        for number in self._about(pod.namespace):
            if any(term.may_match(pod.namespace, pod.labels) for term in self._of(number, pod.namespace)):
                repelling.update(self._on[number])
        return repelling.intersection(names)

    def _about(self, namespace: str) -> list[int]:
        """Numbers of what is stated about pods of the namespace."""
        return list(dict.fromkeys((*self._into.get(namespace, ()), *self._into.get(None, ()))))

    def _of(self, number: int, namespace: str) -> Sequence[PodTerm]:
        """What is stated about pods of the namespace."""
        own, terms = self._stated[number]
        if self._tests[own] > MOST_TESTS:
            return (PodTerm("", Selector(), frozenset([namespace])),)
        return terms


def _into(terms: Iterable[PodTerm]) -> set[str | None]:
    """The namespaces into which these look, None among them for any."""
    return {namespace for term in terms for namespace in ((None,) if term.namespaces is None else term.namespaces)}


class Placements:
    """`bound`: node name -> uids of the pods that hold something there; `nominated`: uid of an unbound pod -> node
    name; `claims`: what those claim; `unbound`: uids of the pods without a node; `waiting`: uid of an unbound GPU pod
    -> its priority; `queued`: uids of the unbound pods that wait in a queue of ours; `repelling`: the required
    anti-affinity of bound pods; `others`: what they hold of other resources; `settling`: uid of a pod that is being
    admitted -> when it was first seen bound."""

    def __init__(self, amounts: Amounts) -> None:
        self.claims = Nominated(amounts)
        self.bound: dict[str, dict[str, None]] = {}
        self.nominated: dict[str, str] = {}
        self.unbound: dict[str, None] = {}
        self.waiting: dict[str, int] = {}
        self.queued: dict[str, None] = {}
        self.repelling = Repelling()
        self.others = OtherResources()
        self.settling: OrderedDict[str, float] = OrderedDict()  # in the order of the times

    def wait(self, pod: PodRecord) -> None:
        """The pod has no node yet."""
        self.unbound[pod.uid] = None
        if is_queued(pod) and not pod.terminating:
            self.queued[pod.uid] = None
        elif pod.gpus and not pod.gated and not pod.terminating:
            self.waiting[pod.uid] = pod.priority
        if pod.nominated_node and not pod.terminating:
            self.nominated[pod.uid] = pod.nominated_node
            self.claims.add(pod)

    def bind(self, pod: PodRecord) -> None:
        """The pod holds something on its node."""
        self.bound.setdefault(pod.node, {})[pod.uid] = None
        if pod.anti_affinity_terms:
            self.repelling.add(pod)
        if pod.other_resources:
            self.others.hold(pod)

    def unbind(self, uid: str, node: str) -> bool:
        """The pod holds nothing on the node any more; whether it did."""
        is_bound = uid in self.bound.get(node, ())
        take_out(self.bound, node, uid)
        return is_bound

    def leave(self, uid: str) -> None:
        """Forget where the pod was, but for its node and since when it settles."""
        node = self.nominated.pop(uid, None)
        if node is not None:
            self.claims.remove(uid, node)
        self.unbound.pop(uid, None)
        self.waiting.pop(uid, None)
        self.queued.pop(uid, None)
        self.repelling.remove(uid)
        self.others.release(uid)

    def settle(self, uid: str, now: float) -> None:
        """The pod is being admitted from now on. `now`: not before that of an earlier call."""
        self.settling.pop(uid, None)
        self.settling[uid] = now

    def settled(self, now: float) -> list[str]:
        """Uids of the pods that have been settling for too long; they settle no more."""
        late: list[str] = []
        while self.settling and now - next(iter(self.settling.values())) > SETTLE_SECONDS:
            late.append(self.settling.popitem(last=False)[0])
        return late


# -- nominated pods ----------------------------------------------------------------------------------------------------


class Nominated:
    """The claims of the nominated pods. A claim has a position: `rows`, `priorities`, and R `amounts` there.
    `particular`: uids of the pods that require links or NICs; these have no position, since what they claim depends on
    the node. `planned`: uids of those for which the queue planned GPUs; `on`: uids of all, by node."""

    def __init__(self, amounts: Amounts) -> None:
        self.rows, self.priorities, self.amounts = array("i"), array("q"), array("q")
        self.particular: dict[str, None] = {}
        self.planned: dict[str, None] = {}
        self.on: dict[str, dict[str, None]] = {}
        self._of = amounts.of
        self._positions: dict[str, int] = {}
        self._uids: list[str] = []
        self._nodes: list[str] = []
        self._fresh: dict[str, None] = {}  # pods whose row is not known yet
        self._moves = 0

    def add(self, pod: PodRecord) -> None:
        """The pod, which is not known here, is nominated for a node."""
        self.on.setdefault(pod.nominated_node, {})[pod.uid] = None
        if pod.annotations.get(PLAN):
            self.planned[pod.uid] = None
        if is_particular(pod):
            self.particular[pod.uid] = None
            return
        self._positions[pod.uid] = len(self._uids)
        self._uids.append(pod.uid)
        self._nodes.append(pod.nominated_node)
        self.rows.append(-1)
        self.priorities.append(pod.priority)
        self.amounts.extend(self._of(pod))
        self._fresh[pod.uid] = None

    def remove(self, uid: str, node: str) -> None:
        """The pod is nominated for the node no more. The last claim takes its position."""
        take_out(self.on, node, uid)
        self.particular.pop(uid, None)
        self.planned.pop(uid, None)
        at = self._positions.pop(uid, None)
        if at is None:
            return
        self._fresh.pop(uid, None)
        last, width = self._uids.pop(), len(self.amounts) // len(self.rows)
        name, row, priority = self._nodes.pop(), self.rows.pop(), self.priorities.pop()
        amounts = self.amounts[-width:]
        del self.amounts[-width:]
        if last != uid:
            self._positions[last], self._uids[at], self._nodes[at] = at, last, name
            self.rows[at], self.priorities[at] = row, priority
            self.amounts[at * width : (at + 1) * width] = amounts

    def locate(self, nodes: NodeRows) -> None:
        """Bring the rows up to date: all where a node has come or gone, else those of new claims."""
        if self._moves != nodes.moves:
            self._moves = nodes.moves
            self.rows = array("i", [nodes.row(name) for name in self._nodes])
        for uid in self._fresh:
            at = self._positions[uid]
            self.rows[at] = nodes.row(self._nodes[at])
        self._fresh.clear()

    def position(self, uid: str) -> int:
        """Where the pod's claim is; -1: it has none here."""
        return self._positions.get(uid, -1)

    def counts(self, uid: str, least: int) -> bool:
        """Whether the pod's claim counts for a request of priority `least`."""
        at = self._positions.get(uid)
        return at is not None and self.priorities[at] >= least
