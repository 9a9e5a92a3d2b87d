"""The annotations, labels and other names of ours on Kubernetes objects, for docs/annotations.md.

Each name is defined beside the code that reads or writes it; a test compares this list with the code."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

PREFIX: Final = "gpu-extender.io/"
Place = Literal["annotation", "label", "gate"]
"""Where a name is read on an object."""


class Name(NamedTuple):
    """One name."""

    name: str
    on: str  # the kind of object
    writer: str  # "you" or the program that writes it
    values: str  # examples or all
    meaning: str
    places: tuple[Place, ...] = ("annotation",)  # where it is read
    words: tuple[str, ...] = ()  # all its values, () where they are not a list of words

    @property
    def kind(self) -> str:
        """The kind of object, in lower case."""
        return self.on.partition(" ")[0].lower()


NAMES: Final = (
    Name("links", "pod", "you", "`required`, `preferred` (default), `ignore`",
         "Whether the GPUs of all its containers must be joined in one ring of links.",
         words=("required", "preferred", "ignore")),
    Name("nics", "pod", "you", "`required`, `preferred` (default for pods of a gang), `ignore` (default for others)",
         "Whether each of its GPUs must have a [NIC of its own](nics.md) under the GPU's PCIe switch.",
         words=("required", "preferred", "ignore")),
    Name("gang", "pod", "you", "a name",
         "Pods that are useful only together; a label works too. Other systems' gangs are [read too](preemption.md).",
         ("annotation", "label")),
    Name("gang-min", "pod", "you", "a number",
         "How many pods of the gang must run; a label works too. An invalid number counts as all.",
         ("annotation", "label")),
    Name("gang-size", "pod", "you", "a number",
         "How many pods the gang has, those that do not exist yet included. It overrides what the pods' owner states."),
    Name("domain", "pod", "you", "`required:rack`, `preferred:block`",
         "Where the pods of a queued gang are together: a node label of `topologyLevels`, or its short name (clique, "
         "rack, block, zone)."),
    Name("duration", "pod", "you", "`45m`, `1h30m`",
         "How long the pod runs at most. The queue plans with it; no pod is stopped by it."),
    Name("queue", "pod (label, scheduling gate)", "you; the gate also `manifests/queue`",
         "the name of a queue; the gate has no value",
         "The label names the [queue](queue.md), without it the namespace does. Behind the gate the pod waits until "
         "its gang starts.", ("label", "gate")),
    Name("wants-nodes", "pod", "the queue", "RFC 3339 time",
         "Since then the gate is open so that an autoscaler [sees the pod](queue.md#autoscalers). The pod waits in the "
         "queue all the same."),
    Name("pinned", "pod", "the queue", "the name of a node",
         "The released pod may run on this node alone ([hard pins](queue.md#hard-pins))."),
    Name("planned-node", "ResourceClaim", "the queue", "the name of a node",
         "The queue allocates the devices of the claim, on this node "
         "([planned allocation](dra.md#planned-allocation))."),
    Name("queue-age-limit", "Namespace", "you", "`30m`, `24h`, `never`",
         "For how long pods may wait behind the gate; then `gpu-extender gates open` [removes it](queue.md)."),
    Name("placement", "pod", "you", "`pack`, `spread`",
         "Fill nodes, or keep replicas of one controller (or `app.kubernetes.io/name`) on different nodes and racks. "
         "Default: the settings (`placement`).", words=("pack", "spread")),
    Name("gpu-models", "pod", "you", "`one`, `any`",
         "Whether the pods of the gang are on nodes of [one GPU model](queue.md#gpu-models) where one has room, or of "
         "any. Default: the settings (`placement.gpuModels`).", words=("one", "any")),
    Name("protect-for", "pod", "you", "`90s`, `45m`, `1h30m`",
         "The pod is never a victim for so long after its start, `claims.protectForSeconds` at most."),
    Name("last-checkpoint", "pod", "you", "RFC 3339 time",
         "Work before it is not lost by an eviction. A time before the pod's start counts as the start."),
    Name("checkpoint-interval", "pod", "you", "seconds",
         "How often the pod saves its work. `gpu-extender check` reports such pods apart from those without it."),
    Name("restart-seconds", "pod", "you", "seconds",
         "What a restart costs on top of the lost work, `claims.restartSeconds` at most."),
    Name("saves-on-termination", "pod", "you", "`90s`, `10m`",
         "Once its containers are told to end (SIGTERM), the pod saves its work within this time. It counts where the "
         "grace period is as long, and up to `claims.savesOnTerminationSeconds`."),
    Name("saves-on-request", "pod", "you", "`90s`, `10m`",
         "Once it is [asked](saving-operators.md), the pod saves its work within this time, up to "
         "`claims.savesOnRequestSeconds`."),
    Name("saves-for-gang", "pod", "you", "`true`",
         "The answer of this pod counts for its whole gang. Without it that of the pod of rank 0 does."),
    Name("save-requested", "pod", "the server", """`{"id", "by", "at", "until"}`""",
         "The pod is asked to save its work, for the preemptor `by`, until the time `until`."),
    Name("saved", "pod", "you", "the id of the request", "The answer: the work is saved, and the pod may be evicted."),
    Name("gpus", "pod", "bind, the queue", "`0,3`; `c1=0,3;c2=5` with several GPU containers",
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
    Name("topology-nics", "node", "agent", "JSON; `gpu-extender topo -o annotation-nics` prints it",
         "Which NICs are under the PCIe switches of which GPUs ([NICs](nics.md)). You may write it where no "
         "agent runs."),
    Name("topology-stale-since", "node", "agent", "RFC 3339 time",
         "The agent cannot renew its view of the GPUs since then."),
    Name("relay", "node", "agent", "`1`", "A relay enforces planned GPUs on the node, so they are certain there."),
    Name("device-plugin-version", "node", "you", "`0.20.0`",
         "The version of the node's device plugin; a label works too. The rule `hazard` knows faults of versions.",
         ("annotation", "label")),
    Name("drain", "node", "you", "RFC 3339 time; empty: at once",
         "The GPU pods of the cordoned node are asked to save and evicted, so that it is empty at that time "
         "([recipe](cookbook.md#drain-a-node)). It needs `evictions.enabled`."),
    Name("rank", "PriorityClass (label)", "you", "a whole number",
         "The intended order of the classes, higher = more important. `gpu-extender check` compares their values.",
         ("label",)),
)  # fmt: skip
