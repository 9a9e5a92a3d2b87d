"""Rules: why a node is rejected. One short file a rule; the first in this order that rejects a node counts.

A new rule: its file, one line here, a table test; docs/policy.md and docs/reasons.md are printed again. Codes are the
values of columns, 1..255, never reused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from extender.objects.records import MOVING_TEXT, SEAT_TEXT
from extender.policy.contracts import Class, Reason, Rule
from extender.policy.rules.count import Count, ResourceOffered, Shares
from extender.policy.rules.failing import Failing, in_words
from extender.policy.rules.hazard import Hazard
from extender.policy.rules.links import Links
from extender.policy.rules.nics import Nics
from extender.settings import FailingNodes

RULES: tuple[type[Rule], ...] = (ResourceOffered, Shares, Failing, Count, Links, Nics, Hazard)

UNKNOWN_NODE = Reason(
    code=1,
    key="unknown-node",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node is not known to the extender yet",
    remedy="Nothing: the watch brings it within a second. If it stays, see /readyz.",
)

STALE = Reason(
    code=8,
    key="view-stale",
    cls=Class.TRANSIENT,
    text="gpu-extender: the API server is silent, what is known of pods and nodes may be out of date",
    remedy="Nothing: the pod is tried again within seconds. If it stays, see /readyz and the API server; "
    "watch.stalenessSeconds is how long a silence may last.",
)

HANDOVER = Reason(
    code=9,
    key="freed-elsewhere",
    cls=Class.HOPELESS,
    text="gpu-extender: pods are being evicted on another node to make room for this one",
    remedy="Nothing: the pod lands there when its GPUs are free (see the Events of the pod).",
)

SEATED = Reason(
    code=7,
    key="seat-elsewhere",
    cls=Class.TRANSIENT,
    text=f"gpu-extender: {SEAT_TEXT}",
    remedy="Nothing: the pod lands on its seat. If the seat is lost, the queue places the gang again.",
)

QUEUED = Reason(
    code=16,
    key="queued",
    cls=Class.HOPELESS,
    text="gpu-extender: the pod's gang waits in the queue until there is room for the whole gang",
    remedy="Nothing: the gang starts when its place is free, or when nodes are added (`queue.autoscaler`).",
)

MOVING = Reason(
    code=6,
    key="seat-moves",
    cls=Class.HOPELESS,  # no Error: the write of the new seat wakes the pod sooner than kube-scheduler's next try
    text=f"gpu-extender: {MOVING_TEXT}",
    remedy="Nothing: the queue writes the seat on the pod once every instance knows it. If it stays, see the log of "
    "the Lease's holder.",
)

STARTED = Reason(
    code=18,
    key="links-started",
    cls=Class.TRANSIENT,
    text="gpu-extender: the server has just started, pods that it placed before may not be seen on the node yet",
    remedy="Nothing: the pod is tried again within seconds. `hold.seconds` is how long this lasts after a start.",
)

WHOLE = Reason(
    code=19,
    key="links-beside",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node stays whole, the pod fits beside one that is being bound to another node",
    remedy="Nothing: the pod is tried again within seconds, and takes a whole node `hold.seconds` after its first try.",
)

CLAIM_UNMET = Reason(
    code=26,
    key="claim-unmet",
    cls=Class.HOPELESS,
    text="gpu-extender: the devices that are published and free there do not meet a ResourceClaim of the pod",
    remedy="Ask for devices that the node publishes (`whatif` names the request), or wait until they are free.",
    by_claims=True,
)

_OF_NO_RULE: Final = (CLAIM_UNMET, UNKNOWN_NODE, SEATED, MOVING, QUEUED, STARTED, WHOLE, STALE, HANDOVER)
REASONS: dict[int, Reason] = {
    reason.code: reason for reason in (*_OF_NO_RULE, *(reason for rule in RULES for reason in rule.reasons))
}


@lru_cache(maxsize=8)
def texts(failing: FailingNodes) -> list[str]:
    """Each code's sentence, "" for none, with the numbers of the settings in it."""
    reasons = REASONS | {reason.code: reason for reason in in_words(failing)}
    return [reasons[code].text if code in reasons else "" for code in range(max(reasons) + 1)]
