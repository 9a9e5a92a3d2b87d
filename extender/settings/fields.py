"""The fields of the settings file, with their defaults, bounds and checks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

# -- checks of single fields; each raises `fault(sentence)`


OLDEST_SCHEDULER: Final = (1, 28)


@dataclass(frozen=True, slots=True)
class Known:
    """The names that a settings file may use, from the registries."""

    scorers: Collection[str]
    costs: Collection[str]


def fault(message: str) -> PydanticCustomError:
    """An error of a field's value, in one sentence."""
    # The sentence is a value, not the template: what a user wrote may hold braces.
    return PydanticCustomError("ours", "{sentence}", {"sentence": message})


def did_you_mean(given: str, allowed: Collection[str]) -> str:
    """A suggestion, or nothing where no name is near."""
    folded = {name.lower().replace("_", ""): name for name in sorted(allowed)}
    near = get_close_matches(given.lower().replace("_", "").replace("-", ""), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def in_registry(registry: Literal["scorers", "costs"]) -> Callable[[str, ValidationInfo], str]:
    """A check that the registry (of the caller's `Known`) has the name."""

    def check(name: str, info: ValidationInfo) -> str:
        known = info.context
        if isinstance(known, Known) and name not in (names := getattr(known, registry)):
            choice = did_you_mean(name, names) or f"; there are: {', '.join(sorted(names))}"
            raise fault(f"{name[:80]!r} is not one of the {registry}{choice}")
        return name

    return check


def no_repeats(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items, none of which may stand twice."""
    names = [getattr(item, "name", item) for item in items]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise fault(f"has {', '.join(map(repr, repeated))} more than once")
    return items


def not_empty(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items, of which there is at least one."""
    if not items:
        raise fault("is empty")
    return items


_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_EXTENDED = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def extended_resource(name: str) -> str:
    """kube-scheduler's own rule for managedResources."""
    domain = name.partition("/")[0]
    if not _EXTENDED.fullmatch(name) or len(domain) > 253:
        raise fault(f"{name[:80]!r} is not the name of an extended resource, as in nvidia.com/gpu")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
        raise fault(f"{name!r} is a name that Kubernetes keeps for itself")
    return name


def attribute_value(text: str) -> str:
    """`NAME=VALUE` of an attribute of a device, or nothing."""
    name, equals, value = text.partition("=")
    if text and not (name and equals and value and len(text) <= 128):
        raise fault(f"{text[:80]!r} is not NAME=VALUE, as in type=gpu")
    return text


_LABEL_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def label_key(key: str) -> str:
    """The key of a label, as the API server accepts it."""
    if not _LABEL_KEY.fullmatch(key):
        raise fault(f"{key[:80]!r} is not the key of a label, as in topology.kubernetes.io/zone")
    return key


_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def label_value(value: str) -> str:
    """The value of a label, as the API server accepts it."""
    if not _LABEL_VALUE.fullmatch(value):
        raise fault(f"{value[:80]!r} is not the value of a label, as in team-a")
    return value


def label_rule(rule: str) -> str:
    """`key` or `key=value` of a label."""
    key, _, value = rule.partition("=")
    label_key(key)
    if value:
        label_value(value)
    return rule


_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def object_name(name: str) -> str:
    """The name of a ConfigMap, a Lease or a PriorityClass, as the API server accepts it."""
    if not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        raise fault(f"{name[:80]!r} is not a name of Kubernetes: lower-case letters, digits, '-' and '.'")
    return name


def namespace_name(name: str) -> str:
    """The name of a namespace, as the API server accepts it."""
    if not re.fullmatch(_LABEL, name):
        raise fault(f"{name[:80]!r} is not the name of a namespace: lower-case letters, digits and '-'")
    return name


def supported_scheduler(text: str) -> str:
    """MAJOR.MINOR or MAJOR.MINOR.PATCH of a kube-scheduler that is not too old."""
    if not re.fullmatch(r"1\.[0-9]{1,3}(\.[0-9]{1,3})?", text):
        raise fault(f"{text[:80]!r} is neither MAJOR.MINOR, as in 1.37, nor MAJOR.MINOR.PATCH")
    if version(text) < OLDEST_SCHEDULER:
        raise fault(f"{text} is older than {OLDEST_SCHEDULER[0]}.{OLDEST_SCHEDULER[1]}, the oldest that we know")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine, or this pod, reaches an address. A name other than `localhost` may be any address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@lru_cache(maxsize=8)
def version(text: str) -> tuple[int, int]:
    """(major, minor) of a checked version."""
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


# -- the fields


ObjectName = Annotated[str, AfterValidator(object_name)]
ClassName = ObjectName  # of a PriorityClass
NamespaceName = Annotated[str, AfterValidator(namespace_name)]
API_VERSION: Final = "gpu-extender.io/v1"
KIND: Final = "GpuExtenderConfiguration"
RETRIES_FAILED_NODES: Final = (1, 38)
"""From this kube-scheduler on a node rejected by an extender alone can be a candidate for preemption. Before it, such
a node in `FailedNodes` makes the scheduler try the pod again without end (kubernetes #139270, PR #135486)."""

TOPOLOGY_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "clique": (
        "nvidia.com/gpu.clique",  # GPU feature discovery: NVLink domain and partition (NVL72)
        "accelerator.topograph.run/sub-domain",
        "accelerator.topograph.run/domain",  # Topograph from 1.0 on
        "network.topology.nvidia.com/accelerator",  # and before
        "topology.k8s.aws/ultraserver-id",
    ),
    "rack": (
        "cloud.google.com/gce-topology-subblock",
        "fabric.topograph.run/tier-0",
        "network.topology.nvidia.com/leaf",
        "topology.k8s.aws/network-node-layer-3",
        "oci.oraclecloud.com/host.rack_id",
        "cloud.provider.com/topology-rack",
        "topology.kubernetes.io/rack",  # no label of Kubernetes, but the one that guides tell people to write
    ),
    "block": (
        "cloud.google.com/gce-topology-block",
        "fabric.topograph.run/tier-1",
        "network.topology.nvidia.com/block",
        "network.topology.nvidia.com/spine",
        "topology.k8s.aws/network-node-layer-2",
        "oci.oraclecloud.com/host.network_block_id",
        "cloud.provider.com/topology-block",
    ),
    "zone": (
        "fabric.topograph.run/tier-2",
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/datacenter",
        "topology.k8s.aws/network-node-layer-1",
        "topology.kubernetes.io/zone",
    ),
}
"""Labels in use that state where a node stands, by the short name of the level, closest first."""
TOPOLOGY_LEVELS: Final = tuple(label for labels in TOPOLOGY_LABELS.values() for label in labels)
"""Labels in use that state where a node stands, closest first; those that no node of a cluster has do not count."""


class _Part(BaseModel):
    """camelCase in the file, snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


class ResourceSettings(_Part):
    """An extended resource whose amounts are GPUs, and which device plugin allocates them on the node."""

    name: Annotated[str, AfterValidator(extended_resource)]
    """The name as in the scheduler's `managedResources`."""
    device_plugin: Literal["nvidia", "amd", "arbitrary"]
    """Whose rule allocates the GPUs: that of NVIDIA's or AMD's stock plugin, or none that is known (`arbitrary`)."""
    plugin_version: Annotated[str, Field(pattern=r"^v?\d{1,4}\.\d{1,4}\.\d{1,4}$")] | None = None
    """The plugin's version, as `0.20.0`, where nodes do not state it: the rule `hazard` knows its faults."""
    dra_driver: Annotated[str, Field(max_length=63)] = ""
    """The DRA driver whose whole GPUs count as this resource. Without it the vendor's: `gpu.nvidia.com`, `gpu.amd.com`
    or `gpu.intel.com`; of several resources for the first."""
    dra_attribute: Annotated[str, AfterValidator(attribute_value)] | None = None
    """`NAME=VALUE`: the attribute by which that driver marks a whole GPU; empty: each of its devices is one. Without it
    `type=gpu` of NVIDIA's driver, `type=amdgpu` of AMD's."""


class Shortlist(_Part):
    """How many feasible nodes filter answers."""

    size: int = Field(default=16, ge=0, le=100_000)
    """The number of best nodes that filter answers on a pod's first attempt; 0: all."""
    retry_window_seconds: float = Field(default=600.0, ge=0, le=86_400)
    """A further attempt of the pod within this time gets all feasible nodes. kube-scheduler retries a pod that no event
    wakes after 5 min to 5 min 30 s: choose more."""


class WeightedScorer(_Part):
    """A scorer by name; its column counts `weight` times."""

    name: Annotated[str, AfterValidator(in_registry("scorers"))]
    """One of the [scorers](policy.md#scorers)."""
    weight: float = Field(gt=0, le=1_000_000)
    """The scorer's value is multiplied by it."""


class PackingWeights(_Part):
    """Weights of the scorer `packing`, as in NodeResourcesFit's MostAllocated: keep them equal to the scheduler's."""

    gpu: int = Field(default=10, ge=0, le=1_000)
    """Weight of the GPUs in the scorer `packing`."""
    cpu: int = Field(default=1, ge=0, le=1_000)
    """Weight of the CPU."""
    memory: int = Field(default=1, ge=0, le=1_000)
    """Weight of the memory. Keep the three equal to those of `NodeResourcesFit`."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.gpu + self.cpu + self.memory == 0:
            raise fault("are all 0, so nothing could be packed by")
        return self


class Placement(_Part):
    """Whether a pod without the annotation gpu-extender.io/placement is packed or spread, and whether a gang without
    the annotation gpu-extender.io/gpu-models mixes GPU models."""

    default: Literal["pack", "spread"] = "pack"
    """Whether pods without the annotation `gpu-extender.io/placement` are packed or spread."""
    by_label: dict[Annotated[str, AfterValidator(label_rule)], Literal["pack", "spread"]] = Field(
        default_factory=dict, max_length=1_000
    )
    """The same by a pod's label: `key=value`, or `key` for any value. The first that matches counts."""
    by_priority_class: dict[ClassName, Literal["pack", "spread"]] = Field(default_factory=dict, max_length=1_000)
    """The same by the name of a pod's PriorityClass, where no label matches."""
    gpu_models: Literal["one", "any"] = "one"
    """Whether gangs without the annotation `gpu-models` are on nodes of [one GPU model](queue.md#gpu-models) where one
    has room, or of any."""


class Hold(_Part):
    """Assumed pods: answered, and not yet seen in the watch."""

    seconds: float = Field(default=5.0, ge=0, le=60)
    """How long an answered pod is assumed on its likely node."""


class WatchSettings(_Part):
    """How old the view of the cluster may be."""

    staleness_seconds: float = Field(default=10.0, ge=5, le=60)
    """After so long without an answer of the API server no pod is evicted, and pods with `links: required` wait.

    Below 5 s a slow API server would look like a lost one; from 60 s on we are not ready anyway (/readyz).
    """


class Mix(_Part):
    """The mix of requests that the scorer `fragmentation` learns from the pods that arrive."""

    half_life_seconds: float = Field(default=7 * 86_400.0, ge=60, le=3_660 * 86_400)
    """After this time a pod counts half in the mix of requests that the scorer `fragmentation` learns."""
    kinds: int = Field(default=256, ge=1, le=1_024)
    """The most different requests in the mix."""
    model_labels: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(no_repeats)] = (
        "nvidia.com/gpu.product",
        "amd.com/gpu.product-name",
        "node.kubernetes.io/instance-type",
    )
    """Node labels that state the GPU model or the kind of machine."""


class LossCeiling(_Part):
    """The most work that an eviction may lose. An absent field is no ceiling."""

    gpu_hours_per_gpu: float | None = Field(default=None, ge=0, le=1_000_000)
    """GPU-hours of lost work for each GPU that the preemptor asks for."""
    gpu_hours: float | None = Field(default=None, ge=0, le=1_000_000)
    """GPU-hours of lost work in all."""


class PreemptionSettings(_Part):
    """The victim search."""

    search_budget: int = Field(default=200_000, ge=1, le=1_000_000_000)
    """Sets of victims examined for one request. Beyond it the best one is answered, not proved."""
    budget_milliseconds: float = Field(default=20.0, gt=0, le=60_000)
    """CPU time of one search. Beyond it the best one is answered, not proved."""
    minimum_run_seconds: dict[ClassName, Annotated[float, Field(ge=0, le=31_536_000)]] = Field(default_factory=dict)
    """By PriorityClass: its pods are no victims before they have run so long."""
    eviction_requests: bool = False
    """Whether a pod that is asked to save and names `spec.evictionResponders` gets an
    [EvictionRequest](saving-operators.md#evictionrequest) too."""
    ceilings: dict[ClassName, LossCeiling] = Field(default_factory=dict, max_length=10_000)
    """The most work that an eviction may lose, by the preemptor's PriorityClass ([details](preemption.md#ceilings))."""
    most_wait_seconds: dict[ClassName, Annotated[int, Field(ge=0, le=86_400)]] = Field(
        default_factory=dict, max_length=10_000
    )
    """By the preemptor's PriorityClass: how long its victims are [asked to save](saving-operators.md) first. 0, or no
    entry: none is asked. It needs `evictions.enabled`."""
    intended_order: Annotated[tuple[ClassName, ...], Field(strict=False), AfterValidator(no_repeats)] = ()
    """PriorityClasses in the intended order, the most important first. Only `check` reads it."""
    leave_freed_seconds: float = Field(default=30.0, ge=0, le=3_600)
    """A pod leaves GPUs that were freed for a lower priority, once, where victims elsewhere cost no more and end within
    this time ([why](preemption.md#reservations)). 0: it takes them."""


class ClaimBounds(_Part):
    """Upper bounds of what a pod's annotations may state. An absent field is no bound."""

    protect_for_seconds: int | None = Field(default=None, ge=0, le=31_536_000)
    """The bound of `protect-for`."""
    restart_seconds: int | None = Field(default=None, ge=0, le=604_800)
    """The bound of `restart-seconds`."""
    gang_min: int | None = Field(default=None, ge=0, le=1_000_000)
    """The bound of how many pods of a gang must run."""
    saves_on_termination_seconds: int | None = Field(default=None, ge=0, le=604_800)
    """The bound of `saves-on-termination`."""
    saves_on_request_seconds: int | None = Field(default=None, ge=0, le=604_800)
    """The bound of `saves-on-request`."""
    gang_team: Literal["namespace", "serviceAccount", "owner"] | None = None
    """Whose pods of one name are one gang."""


class ClaimSettings(_Part):
    """What the annotations of pods may claim at most: the creator of a pod writes them. 0: the annotation is ignored.

    Of `byPriorityClass` and `byNamespace` the lower bound counts. A tenant chooses its class, so a class must not raise
    what its namespace may claim; and a class that is there to be evicted stays so in every namespace.
    """

    protect_for_seconds: int = Field(default=3600, ge=0, le=31_536_000)
    """The bound of `protect-for`; 0: it is ignored. `preemption.minimumRunSeconds` has no such bound."""
    restart_seconds: int = Field(default=3600, ge=0, le=604_800)
    """The bound of `restart-seconds`; 0: it is ignored."""
    gang_min: int = Field(default=1_000_000, ge=0, le=1_000_000)
    """The bound of how many pods of a gang must run, for every source of gangs; 0: no gang counts."""
    saves_on_termination_seconds: int = Field(default=3600, ge=0, le=604_800)
    """The bound of `saves-on-termination`; a longer time does not count, 0: none does."""
    saves_on_request_seconds: int = Field(default=3600, ge=0, le=604_800)
    """The bound of `saves-on-request`; a longer time does not count, 0: none does."""
    gang_team: Literal["namespace", "serviceAccount", "owner"] = "namespace"
    """Whose pods that name one gang are that gang. If several apply, the last in this order counts ([what each
    splits](security.md#gangs))."""
    by_priority_class: dict[ClassName, ClaimBounds] = Field(default_factory=dict, max_length=10_000)
    """Bounds for the pods of a PriorityClass, by its name: the fields above."""
    by_namespace: dict[NamespaceName, ClaimBounds] = Field(default_factory=dict, max_length=10_000)
    """The same for the pods of a namespace. The lowest bound counts."""
    held_gpus: Literal["auto", "kubelet", "policy"] = "auto"
    """Whether the annotation `held-gpus` counts. `policy`: yes, an [admission policy](security.md) lets only the agent
    write it. `kubelet`: no, only kubelet's own report counts. `auto`: no in a live cluster, yes in one from a file."""


class ReservationSettings(_Part):
    """Where reservations are kept, so that a restart loses none."""

    store: Literal["configmap", "memory"] = "configmap"
    """`configmap`: a preemption is answered once its reservation is written. `memory`: a restart forgets it."""
    namespace: Annotated[str, AfterValidator(lambda name: name and namespace_name(name))] = ""
    """The namespace of the ConfigMap. Empty: that of the server's pod, and `kube-system` outside of a pod."""
    name: ObjectName = "gpu-extender-reservations"
    """The name of the ConfigMap."""
    deadline_seconds: float = Field(default=0.2, gt=0, le=5)
    """How long a preempt reply waits for the write, where a wait of 3.6 s was in vain just before. After that no pod is
    evicted."""


class Evictions(_Part):
    """Evictions of our own."""

    enabled: bool = False
    """Whether the server evicts pods: [for links alone](preemption.md#evictions-for-links-alone), for the [first gang
    in the queue](queue.md#evictions), to [empty nodes](cookbook.md#drain-a-node), and for [advance
    reservations](plan.md#moved-by-gpu-extender)."""
    lease: ObjectName = "gpu-extender-evictions"
    """The Lease whose holder evicts, in the namespace of the reservations."""


class QueueLimits(_Part):
    """What one queue is entitled to. A model is the value of the first of `mix.modelLabels` that a node has."""

    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """The share of the queue is divided by it: twice the weight gets twice the GPUs while others wait."""
    guaranteed_gpus: dict[str, Annotated[int, Field(ge=0, le=10_000_000)]] = Field(
        default_factory=dict, max_length=1_000
    )
    """GPUs by model that other queues leave it while its gangs wait; a model that is absent is not guaranteed."""
    limit_gpus: dict[str, Annotated[int, Field(ge=0, le=10_000_000)]] = Field(default_factory=dict, max_length=1_000)
    """GPUs by model that it holds at most; a model that is absent is not limited."""
    borrow: bool = True
    """Whether it may hold more than its guarantee, of what other queues neither hold nor wait for within theirs."""

    @model_validator(mode="after")
    def _guarantee_within_limit(self) -> Self:
        for model, limit in self.limit_gpus.items():
            if self.guaranteed_gpus.get(model, 0) > limit:
                raise fault(f"guarantees more GPUs of model {model} than its limit allows")
        return self


class Queue(_Part):
    """The queue of gangs and single pods behind the scheduling gate `gpu-extender.io/queue`."""

    enabled: bool = False
    """Whether the server starts gangs that wait behind the gate. While it is off, no gate opens."""
    lease: ObjectName = "gpu-extender-queue"
    """The Lease whose holder opens gates, in the namespace of the reservations."""
    reservations: ObjectName = Field(default="gpu-extender-seats", max_length=240)
    """The prefix of the names of the ConfigMaps with the reserved seats, in the same namespace."""
    queues: dict[Annotated[str, AfterValidator(label_value)], QueueLimits] = Field(
        default_factory=dict, max_length=10_000
    )
    """Weight, guarantee and limit by the name of a queue: a namespace, or a value of the label `gpu-extender.io/queue`.
    A queue that is not named has weight 1, no guarantee and no limit."""
    strict: bool = False
    """Whether no gang starts before those that are ahead of it in order."""
    patience_seconds: float = Field(default=3_600.0, ge=0, le=31_536_000)
    """A gang that has waited so long goes before all others of its priority but those that run and lack pods."""
    backfill_confidence: float | None = Field(default=None, ge=0.5, le=0.99)
    """With which probability a gang behind the head has to end before the head's median start, by
    [learned run times](queue.md#learned-ends). Without it stated durations count."""
    use_half_life_seconds: float = Field(default=0.0, ge=0, le=31_536_000)
    """0: the share of a queue counts the GPUs that it holds now. Else past use counts too: half after this time."""
    seat_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """How long a seat is reserved for a pod that is not bound to it."""
    hard_pins: bool = False
    """Whether a released GPU pod may run on the node of its seat alone ([hard pins](queue.md#hard-pins))."""
    planned_allocation: bool = False
    """Whether the queue allocates the GPUs of pods with ResourceClaims itself ([planned
    allocation](dra.md#planned-allocation))."""
    reclaim_regardless_of_priority: bool = False
    """Whether a queue within its guarantee may have borrowers' pods of equal and higher priority evicted
    ([reclaim](queue.md#evictions))."""
    absent_seat_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """How long a seat is reserved for a pod that does not exist yet, from when the latest pod of its gang got its
    seat."""
    autoscaler: Literal["none", "unnominated", "provisioningRequest"] = "none"
    """How gangs without a place are shown to an [autoscaler](queue.md#autoscalers)."""
    autoscaler_wait_seconds: float = Field(default=600.0, ge=0, le=31_536_000)
    """After so long the first gang in order is shown too. A gang that fits nowhere, whatever ends, is shown at once."""


class Events(_Part):
    """What `kubectl describe` shows of an eviction."""

    enabled: bool = True
    """Whether Events are written on victims and preemptors."""


class DecisionSettings(_Part):
    """The kept decision records of /debug/decisions."""

    max_bytes: int = Field(default=32 << 20, ge=0, le=1 << 34)
    """Memory of the kept decision records; 0 keeps none."""


class Record(_Part):
    """The record that `serve --record` writes. Beyond a limit nothing waits: the oldest file is deleted, and what finds
    no room in memory is lost and counted."""

    max_bytes: int = Field(default=1 << 30, ge=1 << 16, le=1 << 44)
    """Disk space of all files of the record; the oldest are deleted beyond it."""
    file_bytes: int = Field(default=32 << 20, ge=1 << 12, le=1 << 40)
    """The size from which on a new file is begun. Larger where its snapshot is more than a third of it."""
    queue_bytes: int = Field(default=64 << 20, ge=1 << 16, le=1 << 34)
    """Memory, about, of what is not written yet."""

    @model_validator(mode="after")
    def _room_for_two(self) -> Self:
        if self.max_bytes < 2 * self.file_bytes:
            raise fault("has a maxBytes below twice its fileBytes, so no file could be deleted before the next is full")
        return self


class Log(_Part):
    """What is logged of decisions."""

    decisions_per_second: float = Field(default=100.0, ge=0, le=1_000_000)
    """The lines for filter and prioritize calls, on average over 10 s. Above it they are sampled; evictions, errors and
    the first rejection of a pod for a reason are logged always."""


class FailingNodes(_Part):
    """From when on a node is rejected because GPU pods fail there (rule `failing`)."""

    reject: Literal["all", "namespace", "none"] = "all"
    """For which pods a node is rejected. `all`: for all, or for the namespace whose pods failed; `namespace`: never for
    all; `none`: never."""
    failures: int = Field(default=3, ge=1, le=20)
    """This number of failures within the window rejects the node."""
    window_seconds: float = Field(default=600.0, ge=60, le=1_800)
    """The length of the window, and how long the node is rejected after the failures."""
    parties: int = Field(default=2, ge=2, le=10)
    """Failures that kubelet does not report count for all pods once pods of this number of parties failed on the
    node."""


class LimitSettings(_Part):
    """Upper bounds of requests and connections."""

    body_bytes: int = Field(default=128 << 20, ge=1 << 10, le=1 << 34)
    """The largest body of a request. 5,000 whole Node objects (`nodeCacheCapable: false`) are 72 MB."""
    names: int = Field(default=100_000, ge=1, le=10_000_000)
    """The most node names in a request."""
    all_bodies_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 36)
    """The bodies of all requests in progress. Beyond it the client address that has most loses its oldest request."""
    request_seconds: float = Field(default=30.0, ge=1, le=3_600)
    """The time from a request's first byte to its last, and for its client to read the answer."""
    connections: int = Field(default=1_000, ge=2, le=100_000)
    """Open connections. Beyond it the client address that has most loses one that waits."""

    @model_validator(mode="after")
    def _room_for_one(self) -> Self:
        if self.all_bodies_bytes < self.body_bytes:
            raise fault("has an allBodiesBytes below bodyBytes, so the largest body would never be read")
        return self


class Tls(_Part):
    """The certificates of a listener, in PEM. The files are read again when they change; no connection is lost."""

    cert_file: str = ""
    """The server's certificate, and after it the intermediate ones. Without it, and without `selfSigned`, the listener
    speaks plain HTTP."""
    key_file: str = ""
    """The key of the certificate, without a password."""
    self_signed: bool = False
    """Whether the server makes a certificate in memory where `certFile` is not set. No client can verify it."""
    client_ca_file: str = ""
    """The CAs of client certificates. A client without a valid certificate of one of them is rejected."""
    client_names: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(no_repeats)] = ()
    """The common names of the client certificates that are accepted. Without one: every certificate of the CAs."""

    @property
    def encrypts(self) -> bool:
        """Whether the listener speaks TLS."""
        return bool(self.cert_file) or self.self_signed

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise fault("has one of certFile and keyFile without the other")
        if self.client_ca_file and not self.encrypts:
            raise fault("has a clientCaFile without a certFile or selfSigned")
        if self.client_names and not self.client_ca_file:
            raise fault("has clientNames without a clientCaFile")
        return self


class ListenerSettings(_Part):
    """Where the metrics, or the page with the debug pages, are served."""

    host: str = "127.0.0.1"
    """The address of the listener; "" for all addresses, of IPv4 and IPv6."""
    port: int | None = Field(default=None, ge=0, le=65_535)
    """The port of a listener of its own; 0 lets the system choose. Without it: on the port of the verbs."""
    tls: Tls = Tls()
    authorize: bool = False
    """Whether a request needs a bearer token (TokenReview) whose user may `get` the path (SubjectAccessReview)."""

    @model_validator(mode="after")
    def _own(self) -> Self:
        if self.port is None and self.tls != Tls():
            raise fault("has tls without a port: on the port of the verbs, server.tls counts")
        return self


class ServerSettings(_Part):
    """Where the server listens."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on; `--host` overrides it."""
    port: int = Field(default=8888, ge=0, le=65_535)
    """The port; `--port` overrides it, 0 lets the system choose."""
    tls: Tls = Tls()
    metrics: ListenerSettings = ListenerSettings()
    debug: ListenerSettings = ListenerSettings()
    allow_unprotected: bool = False
    """Whether a listener beyond loopback may lack [protection](security.md#who-may-ask)."""
    hosts: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(strict=False)] = ()
    """Names by which browsers and commands reach the page and the debug pages, beyond IP addresses, names without
    a dot, names of Services (`.svc`) and `host`. Another `Host` gets 421: a web site's name could resolve here."""
    keep_alive_seconds: int = Field(default=120, gt=90, le=86_400)
    """How long an idle connection stays open. kube-scheduler keeps it for 90 s, so a shorter time breaks requests."""

    @property
    def apart(self) -> tuple[Literal["metrics", "debug"], ...]:
        """Which of the two have a listener of their own."""
        return tuple(name for name in ("metrics", "debug") if self.listener(name).port is not None)

    def listener(self, name: Literal["metrics", "debug"]) -> ListenerSettings:
        """One of the two."""
        return self.metrics if name == "metrics" else self.debug

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if self.allow_unprotected:
            return self
        if not is_loopback(self.host) and not self.tls.client_ca_file:
            raise fault(f"answers verbs on {self.host} to everyone: set tls.clientCaFile, or allowUnprotected: true")
        for name in self.apart:
            at = self.listener(name)
            if not is_loopback(at.host) and not at.tls.client_ca_file and not (at.authorize and at.tls.encrypts):
                raise fault(
                    f"serves {name} on {at.host or 'all addresses'} to everyone: set {name}.authorize and {name}.tls, "
                    f"{name}.tls.clientCaFile, or allowUnprotected: true"
                )
        return self


class Settings(_Part):
    """The whole file. `Settings()` is the default."""

    api_version: Literal["gpu-extender.io/v1"] = API_VERSION
    """The version of this file's format; required."""
    kind: Literal["GpuExtenderConfiguration"] = KIND
    """Required."""
    mode: Literal["active", "shadow"] = "active"
    """`shadow`: everything is decided and recorded, and nothing is answered or written: [shadow.md](shadow.md)."""
    resources: Annotated[
        tuple[ResourceSettings, ...], Field(strict=False), AfterValidator(not_empty), AfterValidator(no_repeats)
    ] = (
        ResourceSettings(name="nvidia.com/gpu", device_plugin="nvidia"),
        ResourceSettings(name="amd.com/gpu", device_plugin="amd"),
        ResourceSettings(name="nvidia.com/gpu.shared", device_plugin="nvidia"),
    )
    """The extended resources that are GPUs ([how to name others](operations.md#other-gpu-resources))."""
    shortlist: Shortlist = Shortlist()
    scorers: Annotated[tuple[WeightedScorer, ...], Field(strict=False), AfterValidator(no_repeats)] = (
        WeightedScorer(name="bad_nodes", weight=1000.0),
        WeightedScorer(name="hazard", weight=100.0),
        WeightedScorer(name="whole", weight=60.0),
        WeightedScorer(name="gpu_model", weight=30.0),
        WeightedScorer(name="spread", weight=20.0),
        WeightedScorer(name="topology_level", weight=10.0),
        WeightedScorer(name="links", weight=10.0),
        WeightedScorer(name="nics", weight=5.0),
        WeightedScorer(name="fragmentation", weight=1.0),
        WeightedScorer(name="leftover", weight=0.05),
        WeightedScorer(name="packing", weight=0.0001),
    )
    """The [scorers](policy.md#scorers) whose weighted sum ranks the nodes."""
    costs: Annotated[
        tuple[Annotated[str, AfterValidator(in_registry("costs"))], ...],
        Field(strict=False),
        AfterValidator(no_repeats),
    ] = (
        "pdb_violations",
        "highest_victim_priority",
        "gangs_broken",
        "work_lost_gpu_seconds",
        "grace_seconds",
        "victims",
        "freed_beyond_gpus",
        "leftover_fragmentation",
        "victims_stranded",
    )
    """The [terms](policy.md#costs) of what an eviction costs, compared in this order."""
    packing_weights: PackingWeights = PackingWeights()
    placement: Placement = Placement()
    topology_levels: Annotated[
        tuple[Annotated[str, AfterValidator(label_key)], ...],
        Field(strict=False, max_length=32),
        AfterValidator(no_repeats),
    ] = TOPOLOGY_LEVELS
    """Node labels whose values name places, the closest first. A value names one place in the whole cluster."""
    hold: Hold = Hold()
    watch: WatchSettings = WatchSettings()
    mix: Mix = Mix()
    scheduler_version: Annotated[str, AfterValidator(supported_scheduler)] = "1.37"
    """MAJOR.MINOR of the kube-scheduler; a PATCH is ignored. From 1.38 on nodes where an eviction helps are answered
    in `FailedNodes`."""
    schedulers: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(strict=False, min_length=1, max_length=32),
        AfterValidator(no_repeats),
    ] = ("gpu-scheduler", "default-scheduler")
    """Names of the scheduler profiles that ask us, for warnings alone: a request of any scheduler is answered."""
    scheduler_weight: int | None = Field(default=None, ge=1, le=1_000_000)
    """The extender's [`weight`](operations.md#the-weight) in the scheduler's configuration. Without it filter answers
    the shortlist."""
    scheduler_score_weights: int = Field(default=14, ge=0, le=1_000_000)
    """The sum of the weights of the scheduler's score plugins ([details](operations.md#the-weight)). Read with
    `schedulerWeight` only."""
    preemption: PreemptionSettings = PreemptionSettings()
    claims: ClaimSettings = ClaimSettings()
    reservations: ReservationSettings = ReservationSettings()
    evictions: Evictions = Evictions()
    queue: Queue = Queue()
    events: Events = Events()
    decisions: DecisionSettings = DecisionSettings()
    record: Record = Record()
    log: Log = Log()
    failing_nodes: FailingNodes = FailingNodes()
    limits: LimitSettings = LimitSettings()
    server: ServerSettings = ServerSettings()

    @property
    def ceilings_have_their_term(self) -> bool:
        """Whether a cost term counts what the ceilings bound."""
        return not self.preemption.ceilings or "work_lost_gpu_seconds" in self.costs

    @model_validator(mode="after")
    def _terms_of_ceilings(self) -> Self:
        if not self.ceilings_have_their_term:
            raise fault("preemption.ceilings needs the cost term work_lost_gpu_seconds in costs")
        return self

    @model_validator(mode="after")
    def _leases_of_their_own(self) -> Self:
        if self.queue.lease == self.evictions.lease:
            raise fault("queue.lease and evictions.lease name one Lease; each needs its own")
        if self.reservations.name.startswith(f"{self.queue.reservations}-"):
            raise fault("reservations.name begins as the ConfigMaps of queue.reservations do; choose another name")
        return self

    @property
    def policy_hash(self) -> str:
        """Names the policy: equal for settings that answer alike, whatever the server's address and limits."""
        places = {"mode", "server", "decisions", "record", "log", "limits", "hold", "watch"}
        answered = {"shortlist", "scheduler_weight", "scheduler_score_weights"}
        unused = {"queue"} if self.queue == Queue() else set()
        document = self.model_dump_json(by_alias=True, exclude=places | answered | unused)
        return hashlib.sha256(document.encode()).hexdigest()[:16]

    @property
    def hash(self) -> str:
        """Names the file: equal for settings of which every field but `server` is equal. Options override `server`, so
        with it the file alone would have another hash than the server that has read it."""
        return hashlib.sha256(self.model_dump_json(by_alias=True, exclude={"server"}).encode()).hexdigest()[:16]

    @property
    def shadow(self) -> bool:
        """Whether nothing is answered or written: kube-scheduler decides alone."""
        return self.mode == "shadow"

    @property
    def only_the_best_class_wins(self) -> bool:
        """Whether one point of ours outweighs all in-tree scores: no node with fewer points than the best can win.

        A score plugin gives 0 to 100 times its weight, and a point of ours, 0 to 10, counts 10 times our weight.
        """
        return self.scheduler_weight is not None and self.scheduler_weight * 10 > 100 * self.scheduler_score_weights

    @property
    def evictable_as_failed_nodes(self) -> bool:
        """Whether a node where only an eviction would help goes to `FailedNodes`.

        False: it goes to `FailedAndUnresolvableNodes`. The pod's own nominated node goes to `FailedNodes` always.
        """
        return version(self.scheduler_version) >= RETRIES_FAILED_NODES
