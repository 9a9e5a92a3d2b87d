"""Where pods are: bound to a node, nominated for one, or waiting without one."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

from extender.cluster.nodes import NodeRows
from extender.cluster.numbered import Numbered, take_out
from extender.cluster.other_resources import OtherResources
from extender.cluster.pod_kinds import is_particular
from extender.cluster.statements import PLAN
from extender.cluster.tables import Amounts
from extender.objects.queueing import is_queued
from extender.objects.records import PodRecord
from extender.objects.selectors import PodTerm

SETTLE_SECONDS: Final = 30.0  # a bound pod that has not started by then is not "about to be seen" any more


class Repelling:
    """The required anti-affinity of bound pods, by node. Pods of a node with the same terms count once."""

    def __init__(self) -> None:
        self._terms: Numbered[tuple[PodTerm, ...]] = Numbered(())
        self._on: dict[str, dict[int, int]] = {}  # node name -> number of the terms -> how many pods have them
        self._pods: dict[str, tuple[str, int]] = {}  # uid -> its node, and the number of its terms

    def __len__(self) -> int:
        """How many bound pods have required anti-affinity."""
        return len(self._pods)

    def __iter__(self) -> Iterator[PodTerm]:
        """The terms; one that different pods have may come several times."""
        return chain.from_iterable(self._terms)

    def add(self, pod: PodRecord) -> None:
        """A pod is bound, and not counted yet."""
        number = self._terms.take(pod.anti_affinity_terms)
        if not number:
            return
        self._pods[pod.uid] = pod.node, number
        counts = self._on.setdefault(pod.node, {})
        counts[number] = counts.get(number, 0) + 1

    def remove(self, uid: str) -> None:
        """A pod is bound no more; it need not be counted."""
        placement = self._pods.pop(uid, None)
        if placement is None:
            return
        node, number = placement
        counts = self._on[node]
        counts[number] -= 1
        if not counts[number]:
            del counts[number]
            if not counts:
                del self._on[node]
        self._terms.drop(number)

    def nodes(self, pod: PodRecord, names: Collection[str]) -> set[str]:
        """Those of the nodes where a required anti-affinity of a bound pod may match `pod`; the topology of the terms
        is not looked at."""
        with_terms = self._on.keys() & names if self._on else set()
        repels: dict[int, bool] = {}  # the same terms are compared once
        repelling = set()
        for name in with_terms:
            for number in self._on[name]:
                if number not in repels:
                    repels[number] = any(term.may_match(pod.namespace, pod.labels) for term in self._terms[number])
                if repels[number]:
                    repelling.add(name)
                    break
        return repelling


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
