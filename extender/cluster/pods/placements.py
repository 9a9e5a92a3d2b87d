"""Where pods are: bound to a node, nominated for one, or waiting without one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from extender.objects.records import PodRecord

SETTLE_SECONDS: Final = 30.0  # a bound pod that has not started by then is not "about to be seen" any more


class Placements:
    """`bound`: node name -> uids of the pods that hold something there; `nominated`: uid of an unbound pod -> node
    name; `waiting`: uid of an unbound GPU pod -> its priority; `repelling`: uids of bound pods with required
    anti-affinity; `settling`: uid of a pod that is being admitted -> when it was first seen bound."""

    def __init__(self) -> None:
        self.bound: dict[str, dict[str, None]] = {}
        self.nominated: dict[str, str] = {}
        self.waiting: dict[str, int] = {}
        self.repelling: set[str] = set()
        self.settling: OrderedDict[str, float] = OrderedDict()  # in the order of the times

    def wait(self, pod: PodRecord) -> None:
        """The pod has no node yet."""
        if pod.gpus and not pod.gated and not pod.terminating:
            self.waiting[pod.uid] = pod.priority
        if pod.nominated_node and not pod.terminating:
            self.nominated[pod.uid] = pod.nominated_node

    def bind(self, pod: PodRecord) -> None:
        """The pod holds something on its node."""
        self.bound.setdefault(pod.node, {})[pod.uid] = None
        if pod.anti_affinity_terms:
            self.repelling.add(pod.uid)

    def unbind(self, uid: str, node: str) -> bool:
        """The pod holds nothing on the node any more; whether it did."""
        uids = self.bound.get(node)
        if uids is None or uids.pop(uid, 0) is not None:
            return False
        if not uids:
            del self.bound[node]
        return True

    def leave(self, uid: str) -> None:
        """Forget where the pod was, but for its node and since when it settles."""
        self.nominated.pop(uid, None)
        self.waiting.pop(uid, None)
        self.repelling.discard(uid)

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
