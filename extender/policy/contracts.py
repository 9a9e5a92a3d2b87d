"""What a rule, a scorer, a cost term and a topology source promise.

1. They are called on the event loop between a request's first read and its answer: no await, no I/O, no thread.
2. They see tables and a `PodRequest`, never Kubernetes JSON. They change nothing but the column they are given.
3. Called twice with the same tables and request they fill the same column: no clock, no randomness of their own.
4. A request sees exactly one generation of the cluster; `extender.cluster.cluster` is the only writer of the tables.
5. kube-scheduler calls filter many times for one pod and may throw the answers away: nothing may follow from a call.
6. It is never told that an answer was carried out: that is read from the watch (or the bind verb) alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from ext_core.ask import Ask

if TYPE_CHECKING:  # the command line reads the reasons, and need not load the tables for that
    from ext_core.victims import Term
    from extender.cluster.dra.node_gpus import Tolerance
    from extender.cluster.tables import Tables
    from extender.objects.devices import ClaimSpec


class Class(Enum):
    """What a rejection means for eviction: which of the answer's two Failed maps names the node, or an Error."""

    HOPELESS = "hopeless"  # no eviction helps
    EVICTABLE = "evictable"  # evicting pods of lower priority would help, or pods that are terminating do
    TRANSIENT = "transient"  # it passes by itself: our own view may be behind, or see Reason.lasting


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of the closed list."""

    code: int  # its number in columns
    key: str  # metric label
    cls: Class
    text: str  # one constant sentence, since kube-scheduler counts equal strings
    remedy: str  # what a person can do
    links_only: bool = False
    lasting: bool = False  # transient, but for minutes: no pod waits for it, and pods may be evicted elsewhere
    by_count: bool = False  # kube-scheduler, which counts too, would not have named the node
    by_claims: bool = False  # nor would it, which allocates claims before it asks, for a pod with claims


class PodRequest(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A pod as policies read it."""

    uid: str
    namespace: str
    name: str
    priority: int
    never: bool
    amounts: tuple[int, ...]  # R exact integers: milli-CPU, bytes, 1 pod slot, GPUs by resource
    gpus: tuple[tuple[int, int], ...]
    """(resource index, units) with units > 0, where a GPU is one unit unless the node states otherwise
    (NodeTable.units)."""
    containers: int  # so many ask for GPUs
    links: str  # required, preferred or ignore
    nominated: str
    wants_all: bool  # preferred affinity or a soft spread constraint of its own: no shortlist
    exchangeable: bool  # nothing but CPU, memory, pod slots and GPUs decides where it fits
    placement: str = "pack"  # or "spread"
    siblings: tuple[int, ...] = ()  # rows of nodes with replicas of the same service, once for each; for spread
    kin: tuple[int, ...] = ()  # rows of the nodes that its group's other pods are on, once for each
    to_come: int = 0  # pods of its group that have no node yet, with itself; 0 = it has no group
    mixes: bool = False  # whether its group may be on nodes of several GPU models though one has room
    seat: str = ""  # uid of the absent seat that it takes over: its owner creates it once others of its gang run
    share: int = 1  # units of each GPU that it asks for: as many as a GPU of the node has are whole ones
    planned: bool = False  # the queue allocates the devices of its claims
    tolerances: tuple[Tolerance, ...] = ()  # what its claims tolerate of devices
    claim_specs: tuple[ClaimSpec, ...] = ()  # its claims, where kube-scheduler allocates all of its GPUs by them
    numbers: tuple[int, ...] = ()
    """How many GPUs it may take in all, by its claims: the number that kube-scheduler tries first before the others,
    0: all of the node; () where there is one number alone. `amounts` has the least."""
    others: tuple[tuple[str, int], ...] = ()
    """(resource, amount) that it asks for of resources that are no columns of the tables, above 0, by name."""
    most_wait: int = 0  # seconds for which it waits at most until victims that it asks have saved their work; 0: never
    nics: str = ""  # required, preferred or ignore; "" = the pod states nothing, and has no gang
    owner: str = ""  # what creates the pod again if it is deleted, as `owner_key` names it
    lasts: float | None = None  # seconds for which it runs at most; None: nothing states it
    ask: Ask = Ask((0, 0, 0))  # the same request as the kernels read it; follows from the other fields

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "ask", self.asking(self.priority))

    def asking(self, priority: int) -> Ask:
        """The request as the kernels read it, with any priority."""
        ask = Ask(self.amounts, self.share, self.containers, priority, self.links, self.namespace)
        if self.planned:
            ask = ask.as_planned()
        if self.most_wait:
            ask = ask.waiting(self.most_wait)
        return ask.with_nics(self.nics) if self.nics else ask

    @property
    def by_position(self) -> bool:
        """Whether it depends on which GPUs are free, and not only on how many, where it fits."""
        return (self.links == "required" and self.wanted > 1) or (self.nics == "required" and self.wanted > 0)

    @property
    def grouped(self) -> bool:
        """Whether other pods of its group have a node, or have none yet."""
        return self.to_come > 1 or (bool(self.kin) and any(row >= 0 for row in self.kin))

    @property
    def resource(self) -> int:
        """Index of the GPU resource that its links are judged on: the one it asks most of. -1 without GPUs."""
        return self.ask.resource

    @property
    def wanted(self) -> int:
        """GPUs that it takes, or takes `share` units of each."""
        return self.ask.wanted


class Rule:
    """Base of the rules. One rejects candidate rows; the first in declared order that rejects a row gives its
    reason."""

    name: ClassVar[str]
    reasons: ClassVar[tuple[Reason, ...]]

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """Whether it can reject no row for this request: then `fill` is not called."""
        return False

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Write reason codes into `out` (one byte a row) where it is still 0."""
        raise NotImplementedError


class Scorer:
    """Base of the scorers. One fills a column over candidate rows: 0.0 worst, 1.0 best. `by_row`: the value of a row
    does not depend on which other rows are candidates."""

    name: ClassVar[str]
    by_row: ClassVar[bool] = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """The value of every row, where they cannot differ for this request: then `fill` is not called. None: they
        can."""
        return None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Write the value of each row into `out`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods that may be victims, gathered node by node, most important first: columns of one number a pod."""

    pods: array[int]  # pod rows
    priority: array[int]
    start_ms: array[int]
    saved_ms: array[int]  # 0 unknown
    restart_s: array[int]
    saves_s: array[int]  # in which it saves its work before it ends; -1: it does not
    ignores: array[int]  # how likely it does not save all the same, in thousandths
    grace_s: array[int]
    gpus: array[int]
    terminating: array[int]  # 1 = deletionTimestamp is set
    now_ms: int  # since 1970
    budgets: VictimGroups
    gangs: VictimGroups
    gang_work: array[int]  # GPU-seconds lost by all running members of each gang, when it breaks
    stranded: array[int]  # 1 = no other node has room for the pod; filled where a cost term asks
    lacking: array[int]  # by candidate: GPUs that the preemptor lacks, once terminating pods are gone
    leftover: list[array[int]]  # per table of the search: a price for each set of GPUs left free


@dataclass(frozen=True, slots=True)
class VictimGroups:
    """Which groups each gathered pod is in: pod i is in members[starts[i]:starts[i+1]]. Of gangs the first is the gang,
    and a second one its role."""

    starts: array[int]
    members: array[int]
    allowance: array[int]  # so many pods may group g lose
    names: tuple[str, ...]  # for people


Bound = Literal["priority", "work", ""]


@dataclass(slots=True, eq=False)
class CostTerm:
    """One level of the cost of a set of victims, in one of the forms that the search can bound. `term`: ("sum", column)
    | ("sum", column, what each candidate lacks) | ("max", column) | ("group" | "gang", starts, members, allowance,
    price) | ("mask", prices per table). `floor`: which bound of `ext_core.scout` its value is never below on a node, ""
    = it is never below 0."""

    name: str
    unit: str
    term: Callable[[Victims], Term]
    floor: Bound = ""


Labels = Mapping[str, str]
