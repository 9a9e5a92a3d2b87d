"""What the reasons mean by which nodes are rejected, and what helps: for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from extender.ask.text import count
from extender.policy.reasons import REASONS

TOO_LITTLE: Final = ("too-little-cpu", "too-little-memory", "too-few-pod-slots", "too-little-of-another-resource")
"""By the numbers of `Judge.short`; the last is OTHER."""
REPELLED: Final = "repelled-by-a-running-pod"
UNREADABLE: Final = "not-judged"
REMEDIES: Final = {
    "cordoned": "Uncordon the node.",
    "node-selector": "Label the node as the pod's nodeSelector asks, or change that.",
    "node-affinity": "Label the node as the pod's required node affinity asks, or change that.",
    "taint": "Let the pod tolerate the node's taint.",
    "gpus-by-claims-alone": "Ask for the GPUs by a ResourceClaim, or have a DeviceClass serve the resource.",
    "claim-elsewhere": "A claim of the pod is in use on another node: give the pod a claim of its own.",
    "no-gpus-by-claims": "No DRA driver publishes GPUs there: ask for the resource of its device plugin.",
    "claim-unmet": "Ask for devices that the node publishes, or wait until they are free (see the warnings).",
    TOO_LITTLE[0]: "Ask for less CPU, or wait for pods to end.",
    TOO_LITTLE[1]: "Ask for less memory, or wait for pods to end.",
    TOO_LITTLE[2]: "Wait for pods to end.",
    TOO_LITTLE[3]: "Ask for less of it, wait for pods to end, or add nodes that offer it.",
    REPELLED: "A pod there has a required anti-affinity to this one, or this one to it.",
    UNREADABLE: "Create the pod again with what the warning names corrected.",
}
"""What helps, by the reasons that are of no rule."""
MEANINGS: Final = {
    **{reason.key: reason.text.removeprefix("gpu-extender: ") for reason in REASONS.values()},
    "cordoned": "the node is cordoned",
    "node-selector": "the labels of the node do not match the pod's nodeSelector",
    "node-affinity": "the node does not match the pod's required node affinity",
    "taint": "the node has a taint that the pod does not tolerate",
    "gpus-by-claims-alone": "the node hands out its GPUs by claims alone",
    "claim-elsewhere": "a claim of the pod is in use on another node",
    "no-gpus-by-claims": "no DRA driver publishes GPUs on the node",
    TOO_LITTLE[0]: "too little CPU is free",
    TOO_LITTLE[1]: "too little memory is free",
    TOO_LITTLE[2]: "no pod slot is free",
    TOO_LITTLE[3]: "too little of another resource is free",
    REPELLED: "a pod on the node repels it, or it that pod",
    UNREADABLE: "the pod cannot be read in full, or its requirements are too long",
}
"""What each reason means of a node."""


def by_most_nodes(reasons: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Of each reason its key, and for how many nodes it is: "2 nodes: the node is cordoned"."""
    for key, number in sorted(reasons.items(), key=lambda reason: (-reason[1], reason[0])):
        yield key, f"{count(number, 'node')}: {MEANINGS.get(key, key)}"


def counted_reasons(reasons: Mapping[str, int]) -> str:
    """How many nodes are rejected for what, the most first."""
    return ", ".join(text for _, text in by_most_nodes(reasons))
