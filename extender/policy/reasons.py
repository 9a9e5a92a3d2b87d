"""Reasons: why a node is rejected. What `kubectl describe pod` shows of us.

A new reason: a constant at its place in the order; docs/reasons.md lists them. Codes
are the values of columns, 1..255, never reused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from extender.objects.pods import MOVING_TEXT, SEAT_TEXT
from extender.policy.contracts import Class, Reason

if TYPE_CHECKING:
    from extender.settings import FailingNodes

# -- of no rule

CLAIM_UNMET = Reason(
    code=26,
    key="claim-unmet",
    cls=Class.HOPELESS,
    text="gpu-extender: the devices that are published and free there do not meet a ResourceClaim of the pod",
    remedy="Ask for devices that the node publishes (`whatif` names the request), or wait until they are free.",
    by_claims=True,
)

UNKNOWN_NODE = Reason(
    code=1,
    key="unknown-node",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node is not known to the extender yet",
    remedy="Nothing: the watch brings it within a second. If it stays, see /readyz.",
)

SEATED = Reason(
    code=7,
    key="seat-elsewhere",
    cls=Class.TRANSIENT,
    text=f"gpu-extender: {SEAT_TEXT}",
    remedy="Nothing: the pod lands on its seat. If the seat is lost, the queue places the gang again.",
)

MOVING = Reason(
    code=6,
    key="seat-moves",
    cls=Class.HOPELESS,  # no Error: the write of the new seat wakes the pod sooner than kube-scheduler's next try
    text=f"gpu-extender: {MOVING_TEXT}",
    remedy="Nothing: the queue writes the seat on the pod once every instance knows it. If it stays, see the log of "
    "the Lease's holder.",
)

QUEUED = Reason(
    code=16,
    key="queued",
    cls=Class.HOPELESS,
    text="gpu-extender: the pod's gang waits in the queue until there is room for the whole gang",
    remedy="Nothing: the gang starts when its place is free, or when nodes are added (`queue.autoscaler`).",
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

# -- of the rules, in their order

NO_GPU_RESOURCE = Reason(
    code=2,
    key="no-gpu-resource",
    cls=Class.HOPELESS,
    text="gpu-extender: the node offers no GPUs of the requested resource name",
    remedy="Ask for the resource name that the node's device plugin registers, or add GPU nodes.",
    by_claims=True,
)

DEVICE_PLUGIN_AWAY = Reason(
    code=3,
    key="device-plugin-away",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node's device plugin offers no GPUs for the moment",
    remedy="Look at the device plugin's pod on the node; a restart takes seconds.",
)

LINKS_SHARED = Reason(
    code=25,
    key="links-shared",
    cls=Class.HOPELESS,
    text="gpu-extender: the node hands out shares of GPUs for the requested resource, and shares have no links",
    remedy="Ask for whole GPUs, or leave links: required away: several shares may even be on one GPU.",
)

# Transient, since it passes by itself; but it lasts for minutes, so it counts as an ordinary rejection: the pod gets no
# Error, which would retry it every few seconds and keep it from preempting elsewhere. kube-scheduler tries it again
# when anything in the cluster changes, every five minutes at the latest.
NODE_FAILING = Reason(
    code=4,
    key="node-failing",
    cls=Class.TRANSIENT,
    text="gpu-extender: GPU pods failed on the node three times within ten minutes",
    remedy="Look at the node's device plugin and GPUs (Xid errors, a lost GPU). It is tried again ten minutes after "
    "the failures; uncordoning the node, or a GPU pod that runs there for a minute, clears it at once.",
    lasting=True,
)

NODE_FAILING_NAMESPACE = Reason(
    code=5,
    key="node-failing-namespace",
    cls=Class.TRANSIENT,
    text="gpu-extender: for pods of this namespace: its GPU pods failed on the node three times within ten minutes",
    remedy="Look at why the namespace's own pods fail (image, command, service account: their Event names what they "
    "have in common). Pods of other namespaces may use the node. It is tried again ten minutes after the failures; a "
    "GPU pod of the namespace that runs there for a minute, or uncordoning the node, clears it at once.",
    lasting=True,
)

TOO_FEW_GPUS = Reason(
    code=10,
    key="too-few-gpus",
    cls=Class.HOPELESS,
    text="gpu-extender: the node has fewer GPUs than requested",
    remedy="Ask for fewer GPUs per pod, or add larger nodes.",
    by_count=True,
)

GPUS_PROMISED = Reason(
    code=11,
    key="gpus-promised",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node's free GPUs are promised to a pod that is being bound",
    remedy="Nothing: the pod is tried again within seconds.",
)

GPUS_RESERVED = Reason(
    code=12,
    key="gpus-reserved",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's free GPUs are reserved for a nominated pod of equal or higher priority",
    remedy="Wait for the nominated pod to be bound, or raise this pod's priority.",
)

GPUS_FOR_A_DATE = Reason(  # of no rule: in place of `gpus-reserved`
    code=34,
    key="gpus-for-a-date",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's GPUs are held for an advance reservation, and the pod is not known to end before it",
    remedy="State how long the pod runs at most (gpu-extender.io/duration), or wait until the reservation ends "
    "(`gpu-extender queue` lists them).",
)

GPUS_RELEASING = Reason(
    code=13,
    key="gpus-releasing",
    cls=Class.EVICTABLE,
    text="gpu-extender: the node's GPUs are still held by pods that are terminating",
    remedy="Nothing: the pod is tried again when they are gone.",
    by_count=True,
)

GPUS_BUSY = Reason(
    code=14,
    key="gpus-busy",
    cls=Class.EVICTABLE,
    text="gpu-extender: too few GPUs are free, pods of lower priority hold them",
    remedy="Wait, or let the pod preempt (preemptionPolicy: PreemptLowerPriority).",
    by_count=True,
)

GPUS_HELD = Reason(
    code=15,
    key="gpus-held",
    cls=Class.HOPELESS,
    text="gpu-extender: too few GPUs are free, pods that this one may not evict hold them",
    remedy="Wait for running pods to end (or for their protection to), raise the priority, or add nodes.",
    by_count=True,
)

LINKS_UNKNOWN = Reason(
    code=20,
    key="links-unknown",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's GPU links are unknown and the pod requires linked GPUs",
    remedy="Annotate the node with gpu-extender.io/topology, or use links: preferred.",
)

LINKS_NEVER = Reason(
    code=21,
    key="links-never",
    cls=Class.HOPELESS,
    text="gpu-extender: the node cannot be relied upon to hand out that many linked GPUs, even when it is empty",
    remedy="Ask for a number of GPUs that the machine links, or use links: preferred.",
)

LINKS_PENDING = Reason(
    code=22,
    key="links-pending",
    cls=Class.TRANSIENT,
    text="gpu-extender: which GPUs are free is not known until a pod on the node has started",
    remedy="Nothing: the pod is tried again within seconds.",
)

LINKS_BUSY = Reason(
    code=23,
    key="links-busy",
    cls=Class.EVICTABLE,
    text="gpu-extender: the free GPUs are not linked, evicting pods of lower priority would make them so",
    remedy="Wait for running pods to end; kube-scheduler up to 1.37 does not preempt for links alone, "
    "evictions.enabled does.",
    links_only=True,
)

LINKS_HELD = Reason(
    code=24,
    key="links-held",
    cls=Class.HOPELESS,
    text="gpu-extender: the free GPUs are not linked, pods that this one may not evict hold the others",
    remedy="Wait for running pods to end (or for their protection to), or use links: preferred.",
)

NICS_UNKNOWN = Reason(
    code=30,
    key="nics-unknown",
    cls=Class.HOPELESS,
    text="gpu-extender: it is not known which NICs are near the node's GPUs, and the pod requires NICs",
    remedy="Run the agent on the node, or annotate it with gpu-extender.io/topology-nics; or use nics: preferred.",
)

NICS_NEVER = Reason(
    code=31,
    key="nics-never",
    cls=Class.HOPELESS,
    text="gpu-extender: the node cannot be relied upon to hand out that many GPUs with a NIC each, even empty",
    remedy="Ask for as many GPUs as NICs are under PCIe switches of their own, let the relay hand out planned GPUs, or "
    "use nics: preferred.",
)

NICS_PENDING = Reason(
    code=32,
    key="nics-pending",
    cls=Class.TRANSIENT,
    text="gpu-extender: which GPUs with NICs are free is not known until a pod on the node has started",
    remedy="Nothing: the pod is tried again within seconds.",
)

NICS_HELD = Reason(
    code=33,
    key="nics-held",
    cls=Class.HOPELESS,
    text="gpu-extender: the free GPUs do not have a NIC each, pods hold the others",
    remedy="Wait for running pods to end: none is evicted for NICs. Or use nics: preferred.",
)

# Hopeless, though a free set changes when any pod ends: no pod is evicted for a plugin's fault, and what is hopeless is
# tried again at any change of a pod or node, just when the free GPUs may have become harmless. "transient" would block
# preemption elsewhere for as long as the pods there run, and retry every few seconds.
PLUGIN_PANICS = Reason(
    code=60,
    key="plugin-panics",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's device plugin may crash when it chooses among the GPUs that are free there",
    remedy="Nothing: another free set may do. A device plugin with go-gpuallocator#80 fixed, or the relay, ends it.",
)

PLUGIN_LOST_GPU = Reason(
    code=61,
    key="plugin-lost-gpu",
    cls=Class.HOPELESS,
    text="gpu-extender: the node has lost a GPU, and its device plugin fails every pod for that",
    remedy="Restart the node or take the GPU away. k8s-device-plugin#2038 fixed, or the relay, ends it.",
)

REASONS: dict[int, Reason] = {reason.code: reason for reason in list(globals().values()) if isinstance(reason, Reason)}
"""By code, in the order in which they count where a pod is rejected for several."""

_TIMES = {1: "once", 2: "twice", 3: "three times"}


@lru_cache(maxsize=8)
def texts(failing: FailingNodes) -> list[str]:
    """Each code's sentence, "" for none, with the numbers of the settings in it."""
    from extender.cluster.pod_failures import words_of  # here: the command line needs no more than REASONS

    times = _TIMES.get(failing.failures, f"{failing.failures} times")
    limit = f"{times} within {words_of(failing.window_seconds)}"
    sentences = [""] * (max(REASONS) + 1)
    for code, reason in REASONS.items():
        sentences[code] = reason.text.replace("three times within ten minutes", limit)
    return sentences
