"""The annotations, labels and other names of ours on Kubernetes objects, for docs/annotations.md.

Each name is defined beside the code that reads or writes it; a test compares this list with the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PREFIX: Final = "gpu-extender.io/"


class Name(NamedTuple):
    """One name. `on`: the kind of object; `writer`: "you" or the program that writes it; `values`: examples or all."""

    name: str
    on: str
    writer: str
    values: str
    meaning: str


NAMES: Final = (
    Name("links", "pod", "you", "`required`, `preferred` (default), `ignore`",
         "Whether the GPUs of all its containers must be joined in one ring of links."),
    Name("gang", "pod", "you", "a name",
         "Pods that are useful only together; a label works too. Other systems' gangs are [read too](preemption.md)."),
    Name("gang-min", "pod", "you", "a number",
         "How many pods of the gang must run; a label works too. An invalid number counts as all."),
    Name("placement", "pod", "you", "`pack`, `spread`",
         "Fill nodes, or keep replicas of one controller (or `app.kubernetes.io/name`) on different nodes and racks. "
         "Default: the settings (`placement`)."),
    Name("protect-for", "pod", "you", "`90s`, `45m`, `1h30m`",
         "The pod is never a victim for so long after its start, `claims.protectForSeconds` at most."),
    Name("last-checkpoint", "pod", "you", "RFC 3339 time",
         "Work before it is not lost by an eviction. A time before the pod's start counts as the start."),
    Name("checkpoint-interval", "pod", "you", "seconds",
         "How often the pod saves its work. `gpu-extender check` reports such pods apart from those without it."),
    Name("restart-seconds", "pod", "you", "seconds",
         "What a restart costs on top of the lost work, `claims.restartSeconds` at most."),
    Name("gpus", "pod", "bind", "`0,3`; `c1=0,3;c2=5` with several GPU containers",
         "The planned GPUs, as indices. Only the relay enforces them."),
    Name("held-gpus", "pod", "agent", "as `gpus`",
         "The GPUs that the pod holds, where kubelet does not report them. They count as observed where an "
         "[admission policy](security.md) guards the annotation (`claims.heldGpus`)."),
    Name("topology", "node", "agent", "JSON; `gpu-extender topo -o annotation` prints it",
         "The node's GPU links as its agent sees them. It is the most trusted source."),
    Name("topology-stated", "node", "you", "as `topology`",
         "The same by an administrator, used where the agent reports nothing valid. The next source is the "
         "[catalogue](machines.md). A disagreement is reported: `/debug/topologies`, the log, "
         "`gpu_extender_topology_disagreements`."),
    Name("topology-stale-since", "node", "agent", "RFC 3339 time",
         "The agent cannot renew its view of the GPUs since then."),
    Name("relay", "node", "agent", "`1`", "A relay enforces planned GPUs on the node, so they are certain there."),
    Name("device-plugin-version", "node", "you", "`0.20.0`",
         "The version of the node's device plugin; a label works too. The rule `hazard` knows faults of versions."),
    Name("rank", "PriorityClass (label)", "you", "a whole number",
         "The intended order of the classes, higher = more important. `gpu-extender check` compares their values."),
)  # fmt: skip
