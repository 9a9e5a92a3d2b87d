"""The settings file: versioned, strict, read once, frozen.

YAML or JSON, `apiVersion: gpu-extender.io/v1`, `kind: GpuExtenderConfiguration`. Every field has a default, so an
empty file is a valid one. A field that is unknown, repeated, of the wrong type or out of range refuses the file: a
server that runs with half of what was meant is worse than one that does not start. All problems are reported at once.

The names of scorers and cost terms are checked against the registries, which the caller passes in (`Known`): they
stand above this module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from extender.errors import BadSettings, Problem
from extender.yaml_lines import Document, Place, parse_document, path_of

API_VERSION: Final = "gpu-extender.io/v1"
KIND: Final = "GpuExtenderConfiguration"
SIZE_LIMIT: Final = 1 << 20
"""Bytes of a settings file. A real one has one or two KiB."""
MOST_PROBLEMS, LONGEST_TEXT = 40, 400  # of a file that is rejected: how many are shown, and characters of each

OLDEST_SCHEDULER: Final = (1, 28)
RETRIES_FAILED_NODES: Final = (1, 38)
"""From this kube-scheduler on a node refused by an extender alone can be a candidate for preemption. Before it, such
a node in `FailedNodes` makes the scheduler try the pod again without end (kubernetes #139270, PR #135486)."""

TOPOLOGY_LEVELS: Final = (
    "nvidia.com/gpu.clique",  # GPU feature discovery: NVLink domain and partition (NVL72)
    "accelerator.topograph.run/sub-domain",
    "accelerator.topograph.run/domain",  # Topograph from 1.0 on
    "network.topology.nvidia.com/accelerator",  # and before
    "topology.k8s.aws/ultraserver-id",
    "cloud.google.com/gce-topology-subblock",
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "topology.k8s.aws/network-node-layer-3",
    "oci.oraclecloud.com/host.rack_id",
    "cloud.provider.com/topology-rack",
    "cloud.google.com/gce-topology-block",
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/block",
    "network.topology.nvidia.com/spine",
    "topology.k8s.aws/network-node-layer-2",
    "oci.oraclecloud.com/host.network_block_id",
    "cloud.provider.com/topology-block",
    "fabric.topograph.run/tier-2",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/datacenter",
    "topology.k8s.aws/network-node-layer-1",
    "topology.kubernetes.io/zone",
)
"""Labels in use that say where a node stands, closest first; those that no node of a cluster has do not count."""


@dataclass(frozen=True, slots=True)
class Known:
    """The names that a settings file may use, from the registries."""

    scorers: Collection[str]
    costs: Collection[str]


# ---- checks that pydantic has no word for; each raises _fault(sentence)


def _fault(message: str) -> PydanticCustomError:
    # The sentence is a value, not the template: what a user wrote may hold braces.
    return PydanticCustomError("ours", "{sentence}", {"sentence": message})


def _did_you_mean(given: str, allowed: Collection[str]) -> str:
    """A suggestion, or nothing where no name is near."""
    folded = {name.lower().replace("_", ""): name for name in sorted(allowed)}
    near = get_close_matches(given.lower().replace("_", "").replace("-", ""), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def _in_registry(what: Literal["scorers", "costs"]) -> Callable[[str, ValidationInfo], str]:
    def check(name: str, info: ValidationInfo) -> str:
        known = info.context
        if isinstance(known, Known) and name not in (names := getattr(known, what)):
            choice = _did_you_mean(name, names) or f"; there are: {', '.join(sorted(names))}"
            raise _fault(f"{name[:80]!r} is not one of the {what}{choice}")
        return name

    return check


def _no_repeats(items: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [getattr(item, "name", item) for item in items]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise _fault(f"has {', '.join(map(repr, repeated))} more than once")
    return items


def _not_empty(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if not items:
        raise _fault("is empty")
    return items


_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_EXTENDED = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def _extended_resource(name: str) -> str:
    """kube-scheduler's own rule for managedResources."""
    domain = name.partition("/")[0]
    if not _EXTENDED.fullmatch(name) or len(domain) > 253:
        raise _fault(f"{name[:80]!r} is not the name of an extended resource, as in nvidia.com/gpu")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
        raise _fault(f"{name!r} is a name that Kubernetes keeps for itself")
    return name


_LABEL_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def _label_key(key: str) -> str:
    if not _LABEL_KEY.fullmatch(key):
        raise _fault(f"{key[:80]!r} is not the key of a label, as in topology.kubernetes.io/zone")
    return key


def _label_rule(rule: str) -> str:
    _label_key(rule.partition("=")[0])
    return rule


def _scheduler_version(text: str) -> str:
    if not re.fullmatch(r"1\.[0-9]{1,3}", text):
        raise _fault(f"{text[:80]!r} is not MAJOR.MINOR, as in 1.37")
    if _version(text) < OLDEST_SCHEDULER:
        raise _fault(f"{text} is older than {OLDEST_SCHEDULER[0]}.{OLDEST_SCHEDULER[1]}, the oldest that we know")
    return text


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


# ---- the file


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


class Resource(_Part):
    """An extended resource whose amounts are GPUs, and who hands the GPUs out on the node."""

    name: Annotated[str, AfterValidator(_extended_resource)]
    device_plugin: Literal["nvidia", "amd", "arbitrary"]
    """Which rules say what GPUs a pod will get: those of NVIDIA's or AMD's stock plugin, or none that we know."""
    plugin_version: Annotated[str, Field(pattern=r"^v?\d{1,4}\.\d{1,4}\.\d{1,4}$")] | None = None
    """The plugin's version, where nodes do not say it: known faults of it refuse nodes (rule `hazard`)."""


class Shortlist(_Part):
    """How many feasible nodes filter answers."""

    size: int = Field(default=16, ge=0, le=100_000)
    """Best nodes for a pod's first attempt; 0 = all."""
    retry_window_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """A further attempt within this time gets all feasible nodes."""


class WeightedScorer(_Part):
    """A scorer by name; its column counts `weight` times."""

    name: Annotated[str, AfterValidator(_in_registry("scorers"))]
    weight: float = Field(gt=0, le=1_000_000)


class PackingWeights(_Part):
    """What a unit of use of each resource counts in the packing scorer, as in NodeResourcesFit's MostAllocated."""

    gpu: int = Field(default=10, ge=0, le=1_000)
    cpu: int = Field(default=1, ge=0, le=1_000)
    memory: int = Field(default=1, ge=0, le=1_000)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.gpu + self.cpu + self.memory == 0:
            raise _fault("are all 0, so nothing could be packed by")
        return self


class Placement(_Part):
    """Whether a pod that does not say it (annotation gpu-extender.io/placement) is packed or spread."""

    default: Literal["pack", "spread"] = "pack"
    by_label: dict[Annotated[str, AfterValidator(_label_rule)], Literal["pack", "spread"]] = Field(
        default_factory=dict, max_length=1_000
    )
    """`key=value`, or `key` for any value, of a pod's label; the first that fits counts."""
    by_priority_class: dict[str, Literal["pack", "spread"]] = Field(default_factory=dict, max_length=1_000)


class Hold(_Part):
    """The tentative hold between our answer and the watch that tells where the pod went."""

    seconds: float = Field(default=5.0, ge=0, le=60)


class Watch(_Part):
    """How old what we know of the cluster may be."""

    staleness_seconds: float = Field(default=10.0, ge=5, le=60)
    """Without the API server's word for so long no pod is evicted, and pods with `links: required` wait.

    Below 5 s a slow API server would look like a lost one; from 60 s on we are not ready anyway (/readyz).
    """


class Mix(_Part):
    """What is learned of the pods that come, for the scorer `fragmentation`."""

    half_life_seconds: float = Field(default=7 * 86_400.0, ge=60, le=3_660 * 86_400)
    """After this time a pod that came counts half."""
    kinds: int = Field(default=256, ge=1, le=1_024)
    """Different requests at most; beyond, those that are asked for least count for the nearest."""
    model_labels: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_no_repeats)] = (
        "nvidia.com/gpu.product",
        "amd.com/gpu.product-name",
        "node.kubernetes.io/instance-type",
    )
    """The node labels that tell machines apart: pods that select by them may run on some machines only."""


class Preemption(_Part):
    """The victim search."""

    search_budget: int = Field(default=200_000, ge=1, le=1_000_000_000)
    """Sets of victims examined for one request; then the best found is answered, and said to be unproved."""
    budget_milliseconds: float = Field(default=20.0, gt=0, le=60_000)
    """CPU time of one search; when it is used up, the best found is answered, and said to be unproved."""
    minimum_run_seconds: dict[str, Annotated[float, Field(ge=0, le=31_536_000)]] = Field(default_factory=dict)
    """By the name of a PriorityClass: its pods are never victims before they have run so long."""
    intended_order: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_no_repeats)] = ()
    """PriorityClasses as they are meant to rank, the most important first. Only `gpu-extender check` reads it."""
    leave_freed_seconds: float = Field(default=30.0, ge=0, le=3_600)
    """A pod leaves GPUs freed for a lower priority, once, where its own victims' grace is at most this; 0: it takes."""


class ClaimBounds(_Part):
    """How much of a pod's own claims counts. A field that is left out bounds nothing here."""

    protect_for_seconds: int | None = Field(default=None, ge=0, le=31_536_000)
    restart_seconds: int | None = Field(default=None, ge=0, le=604_800)
    gang_min: int | None = Field(default=None, ge=0, le=1_000_000)


class Claims(_Part):
    """What the annotations of pods may claim at most: whoever creates a pod writes them. 0 = not honoured.

    Of `byPriorityClass` and `byNamespace` the lower bound counts. A tenant chooses its class, so a class must not raise
    what its namespace may claim; and a class that is there to be evicted stays so in every namespace.
    """

    protect_for_seconds: int = Field(default=3600, ge=0, le=31_536_000)
    """Of `protect-for`. `preemption.minimumRunSeconds` is the administrator's, and has no bound here."""
    restart_seconds: int = Field(default=3600, ge=0, le=604_800)
    """Of `restart-seconds`."""
    gang_min: int = Field(default=1_000_000, ge=0, le=1_000_000)
    """Of how many pods of a gang must run, whoever states it."""
    by_priority_class: dict[str, ClaimBounds] = Field(default_factory=dict, max_length=10_000)
    by_namespace: dict[str, ClaimBounds] = Field(default_factory=dict, max_length=10_000)
    held_gpus: Literal["auto", "kubelet", "policy"] = "auto"
    """Whether `held-gpus` counts. policy: yes, an admission policy lets the agent alone write it; kubelet: no, only
    what kubelet itself reports; auto: no in a live cluster, yes in one from a file."""


class Reservations(_Part):
    """Where the plans of preemptions are kept, so that a restart loses none."""

    store: Literal["configmap", "memory"] = "configmap"
    """configmap: nobody is evicted unless the plan is written; memory: a restart forgets who the GPUs are for."""
    namespace: str = Field(default="", max_length=63)
    """Of all that we keep. Empty: our own pod's, and kube-system outside of a pod."""
    name: str = Field(default="gpu-extender-reservations", min_length=1, max_length=253)
    deadline_seconds: float = Field(default=0.2, gt=0, le=5)
    """How long a preempt reply waits for the write."""


class Evictions(_Part):
    """Evictions of our own, for pods whose nodes are refused for links alone: kube-scheduler up to 1.37 never asks."""

    enabled: bool = False
    lease: str = Field(default="gpu-extender-evictions", min_length=1, max_length=253)
    """The Lease whose holder evicts, in the namespace of the reservations."""


class Events(_Part):
    """What `kubectl describe` shows of an eviction."""

    enabled: bool = True


class Decisions(_Part):
    """The kept decision records of /debug/decisions."""

    max_bytes: int = Field(default=32 << 20, ge=0, le=1 << 34)
    """The oldest are dropped beyond this; 0 keeps none."""


class FailingNodes(_Part):
    """From when on a node is rejected because GPU pods fail there (rule `failing`)."""

    reject: Literal["all", "namespace", "none"] = "all"
    """all: for all pods, or for those of the namespace whose pods failed; namespace: never for all; none: never."""
    failures: int = Field(default=3, ge=1, le=20)
    """So many within the window reject the node."""
    window_seconds: float = Field(default=600.0, ge=60, le=1_800)
    parties: int = Field(default=2, ge=2, le=10)
    """Pods of so many independent parties (they differ in namespace, owner, image and service account) must fail on a
    node before failures that kubelet does not report count for all."""


class Limits(_Part):
    """What a request may bring at most."""

    body_bytes: int = Field(default=128 << 20, ge=1 << 10, le=1 << 34)
    """5,000 whole Node objects (`nodeCacheCapable: false`) are 72 MB."""
    names: int = Field(default=100_000, ge=1, le=10_000_000)
    all_bodies_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 36)
    """Of the bodies of all requests in progress; beyond it the client that has most of them loses its oldest."""
    request_seconds: float = Field(default=30.0, ge=1, le=3_600)
    """From a request's first byte to its last, and for its client to take the answer."""
    connections: int = Field(default=1_000, ge=2, le=100_000)
    """Open connections; beyond it the client that has most of them loses one that waits."""

    @model_validator(mode="after")
    def _room_for_one(self) -> Self:
        if self.all_bodies_bytes < self.body_bytes:
            raise _fault("has an allBodiesBytes below bodyBytes, so the largest body would never be read")
        return self


class Server(_Part):
    """Where we listen."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8888, ge=0, le=65_535)
    """0 lets the system choose."""
    keep_alive_seconds: int = Field(default=120, gt=90, le=86_400)
    """kube-scheduler keeps an idle connection for 90 s; closing it earlier fails a scheduling cycle now and then."""


class Settings(_Part):
    """The whole file. `Settings()` is the default."""

    api_version: Literal["gpu-extender.io/v1"] = API_VERSION
    kind: Literal["GpuExtenderConfiguration"] = KIND
    resources: Annotated[
        tuple[Resource, ...], Field(strict=False), AfterValidator(_not_empty), AfterValidator(_no_repeats)
    ] = (
        Resource(name="nvidia.com/gpu", device_plugin="nvidia"),
        Resource(name="amd.com/gpu", device_plugin="amd"),
        Resource(name="nvidia.com/gpu.shared", device_plugin="nvidia"),
    )
    shortlist: Shortlist = Shortlist()
    scorers: Annotated[tuple[WeightedScorer, ...], Field(strict=False), AfterValidator(_no_repeats)] = (
        WeightedScorer(name="bad_nodes", weight=1000.0),
        WeightedScorer(name="hazard", weight=100.0),
        WeightedScorer(name="whole", weight=20.0),
        WeightedScorer(name="spread", weight=20.0),
        WeightedScorer(name="topology_level", weight=10.0),
        WeightedScorer(name="links", weight=10.0),
        WeightedScorer(name="fragmentation", weight=1.0),
        WeightedScorer(name="leftover", weight=0.05),
        WeightedScorer(name="packing", weight=0.0001),
    )
    costs: Annotated[
        tuple[Annotated[str, AfterValidator(_in_registry("costs"))], ...],
        Field(strict=False),
        AfterValidator(_no_repeats),
    ] = (
        "pdb_violations",
        "highest_victim_priority",
        "gangs_broken",
        "work_lost_gpu_seconds",
        "grace_seconds",
        "victims",
        "leftover_fragmentation",
        "victims_stranded",
    )
    """The terms of what an eviction costs, the weightiest first: they are compared one after the other."""
    packing_weights: PackingWeights = PackingWeights()
    placement: Placement = Placement()
    topology_levels: Annotated[
        tuple[Annotated[str, AfterValidator(_label_key)], ...],
        Field(strict=False, max_length=32),
        AfterValidator(_no_repeats),
    ] = TOPOLOGY_LEVELS
    """Node labels whose values name what is near: the closest first."""
    hold: Hold = Hold()
    watch: Watch = Watch()
    mix: Mix = Mix()
    scheduler_version: Annotated[str, AfterValidator(_scheduler_version)] = "1.37"
    """MAJOR.MINOR of the kube-scheduler that asks us."""
    preemption: Preemption = Preemption()
    claims: Claims = Claims()
    reservations: Reservations = Reservations()
    evictions: Evictions = Evictions()
    events: Events = Events()
    decisions: Decisions = Decisions()
    failing_nodes: FailingNodes = FailingNodes()
    limits: Limits = Limits()
    server: Server = Server()

    @property
    def policy_hash(self) -> str:
        """Names what decides: equal for settings that answer alike, whatever the server's address and limits."""
        said = self.model_dump_json(
            by_alias=True, exclude={"server", "decisions", "limits", "hold", "shortlist", "watch"}
        )
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def evictable_as_failed_nodes(self) -> bool:
        """Whether a node where only an eviction would help goes to `FailedNodes`.

        False: it goes to `FailedAndUnresolvableNodes`. The pod's own nominated node goes to `FailedNodes` always.
        """
        return _version(self.scheduler_version) >= RETRIES_FAILED_NODES


def read_settings(path: Path, known: Known) -> Settings:
    """The settings in a file; BadSettings when it cannot be read or anything in it is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadSettings(str(path), [Problem("", f"cannot be read: {reason}")]) from error
    if len(raw) > SIZE_LIMIT:
        raise BadSettings(str(path), [Problem("", f"is larger than {SIZE_LIMIT} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSettings(str(path), [Problem("", f"is not UTF-8 at byte {error.start}")]) from error
    return parse_settings(text, known, source=str(path))


def parse_settings(text: str, known: Known, *, source: str = "settings") -> Settings:
    """The settings in a text; BadSettings with every problem, in the order of the file."""
    document = parse_document(text)
    problems = list(document.problems)
    if document.value is None and not problems:
        return Settings()
    if not isinstance(document.value, dict):
        problems = problems or [Problem("", f"expected a mapping with apiVersion: {API_VERSION} and kind: {KIND}")]
        raise BadSettings(source, _in_file_order(problems))
    problems += _missing_version(document.value)
    try:
        settings = Settings.model_validate(document.value, context=known, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += [_problem(detail, document) for detail in error.errors(include_url=False)]
        raise BadSettings(source, _in_file_order(problems)) from None
    if problems:
        raise BadSettings(source, _in_file_order(problems))
    return settings


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    """Sorted, and short enough to be read whatever is in the file."""
    found = sorted(problems, key=lambda problem: (problem.line or 0, problem.path, problem.message))
    shown = [Problem(_cut(one.path), _cut(one.message), one.line) for one in found[:MOST_PROBLEMS]]
    more = len(found) - len(shown)
    return shown + [Problem("", f"{more} more problems are not shown")] * bool(more)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def _missing_version(value: dict[str, Any]) -> list[Problem]:
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        Problem(field, f"is missing; write {field}: {text}") for field, text in wanted.items() if field not in value
    ]


# ---- what pydantic found, in words of this file


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    place = tuple(detail["loc"])
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            fields = _fields_at(place[:-1])
            choice = _did_you_mean(str(place[-1]), fields) or f"; there are: {', '.join(fields)}"
            message = f"is not a field{choice}"
        case "ours":
            message = detail["msg"]
        case "model_type":
            message = f"should be a mapping, not {_shown(given)}"
        case "tuple_type":
            message = f"should be a list, not {_shown(given)}"
        case "missing":
            message = "is missing"
        case "literal_error" if isinstance(given, str):
            allowed = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
            message = f"is {given!r}; allowed: {', '.join(allowed)}" + _did_you_mean(given, allowed)
        case "string_type" if place == ("schedulerVersion",):
            message = f'is a number; write it in quotes, as in schedulerVersion: "{given}"'
        case _:
            message = f"{detail['msg'].removeprefix('Input ')}, not {_shown(given)}"
    return Problem(path_of(place), message, document.line(place))


def _shown(value: object) -> str:
    if isinstance(value, (str, int, float)):
        return repr(value)[:80]
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), type(value).__name__)


def _fields_at(place: Place) -> list[str]:
    """The names that the part at `place` has in the file."""
    part: Any = Settings
    steps = iter(place)
    for step in steps:
        if isinstance(step, int):
            continue
        found = next(field for field in part.model_fields.values() if field.alias == step)
        inner = found.annotation
        part = inner.__args__[-1 if get_origin(inner) is dict else 0] if hasattr(inner, "__args__") else inner
        if get_origin(inner) is dict:
            next(steps, None)  # the key is a name of the user's
    return [field.alias for field in part.model_fields.values()]
