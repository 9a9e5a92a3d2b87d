"""What is asked of the cluster: the mix of GPU requests, learned from the pods that come, for the price of slots.

Each GPU pod counts once, when it is first seen, at the time of its creation. What was seen long ago counts less: half
of it after the half-life. Everything follows from what was seen and in which order: no clock is read here.

A mix outlives its process as text: `dump` writes it, `load` reads it, and a pod that the dump has counted is not
counted again when the watch brings it once more. Whoever keeps the text (a ConfigMap, a file) need only write the
newest one now and then: what is lost by an old one is that the pods since then are counted anew from the watch, those
of them that are gone by then not at all. Without a text the mix starts from the pods that exist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from extender.objects.records import PodRecord
from extender.objects.selectors import Operator, Requirement

LINKS: Final = "gpu-extender.io/links"
MODES: Final = ("ignore", "preferred", "required")
VERSION: Final = "gpu-extender.io/v1"
WAITING: Final = 3  # beyond the kinds in use, so many times as many are counted, in case they grow
GROWTH: Final = 2.0  # a kind takes another's place when it weighs more than so many times as much
MOST_EXPONENT: Final = 512.0
OFTEN: Final = 0.6  # asked for twice as often weighs so much less than twice: the power of a count
EXPECTED: Final = 0.01  # a pod that takes a whole machine counts as so many, before any has come
LEAN_PART: Final = 0.01  # of all GPU pods: fewer are no rule
MOST_WHERE: Final = (
    1024  # characters of the labels that one pod asks for, and MOST_TERMS: longer ones are as if any node
)
MOST_TERMS: Final = 64
OTHERS: Final = 63  # the model of machines beyond the first 63
ANYWHERE: Final = 2**64 - 1

Where = tuple[tuple[Requirement, ...], ...]
"""Labels that a node must have: all requirements of one of these; () is any node."""


class Kind(NamedTuple):
    """Pods that ask for the same. `devices` GPUs of `resource`, `share` units of each; `linked`: 0 links do not
    matter, 1 preferred, 2 required."""

    resource: str
    devices: int
    share: int
    cpu: int
    memory: int
    where: Where
    linked: int

    def __str__(self) -> str:
        parts = [f"{self.devices} x {self.resource}"]
        if self.share > 1:
            parts.append(f"{self.share} units")
        parts.append(f"{self.cpu}m, {self.memory >> 20} MiB")
        if self.where:
            parts.append(" or ".join(" and ".join(_text(one) for one in term) for term in self.where))
        return ", ".join(parts)


def _text(one: Requirement) -> str:
    return " ".join((one.key, one.operator, "|".join(one.values))).strip()


def links_of(pod: PodRecord) -> str:
    """required, preferred or ignore. A word that is none of them counts as required: what was meant is not guessed."""
    said = pod.annotations.get(LINKS, "preferred").strip().lower()
    return said if said in MODES else "required"


def kind_of(pod: PodRecord, resources: Iterable[str], labels: Iterable[str]) -> Kind | None:
    """What a pod asks for; None without GPUs. `resources`: those that count; `labels`: those that tell machines apart.

    With several GPU resources: the one it asks most of, among equals the first.
    """
    order = {name: i for i, name in enumerate(resources)}
    asked = [(-count, order[name], name) for name, count in pod.gpus if name in order]
    if not asked:
        return None
    count, _, name = min(asked)
    linked = MODES.index(links_of(pod)) if -count > 1 else 0
    return Kind(name, -count, 1, pod.cpu_milli, pod.memory, where_of(pod, labels), linked)


def where_of(pod: PodRecord, labels: Iterable[str]) -> Where:
    """What nodeSelector and required node affinity say of these labels; of others nothing is kept."""
    known = frozenset(labels)
    if not _short(pod, known):
        return ()  # kinds are kept for long, and written to a ConfigMap
    chosen = [Requirement(key, "In", (value,)) for key, value in pod.node_selector if key in known]
    terms = {
        tuple(sorted({*chosen, *(_sorted(one) for one in term.labels if one.key in known)}))
        for term in pod.node_terms or ()
    } or {tuple(sorted(chosen))}
    return () if () in terms else tuple(sorted(terms))


def _short(pod: PodRecord, known: frozenset[str]) -> bool:
    """Whether what the pod says of these labels is short enough to be kept."""
    terms = pod.node_terms or ()
    if len(terms) > MOST_TERMS or sum(len(term.labels) for term in terms) > MOST_TERMS:
        return False
    said = [one.values for term in terms for one in term.labels if one.key in known]
    if sum(map(len, said)) > MOST_TERMS:
        return False
    return sum(len(value) for values in said for value in values) <= MOST_WHERE


def _sorted(one: Requirement) -> Requirement:
    return Requirement(one.key, one.operator, tuple(sorted(set(one.values))))


class Models:
    """Kinds of machines, told apart by the values of a few labels: 0 to 62 as they come, 63 for all that come later.

    `revision` rises when a new one is met.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = tuple(labels)
        self.machines: dict[tuple[int, str, int], tuple[int, int]] = {}  # model, resource, GPUs: least CPU, memory
        self.revision = 0
        self._known: dict[tuple[str | None, ...], int] = {}

    def of(self, labels: Mapping[str, str]) -> int:
        """The model of a node with these labels."""
        values = tuple(labels.get(key) for key in self.labels)
        if values not in self._known and len(self._known) < OTHERS:
            self._known[values] = len(self._known)
            self.revision += 1
        return self._known.get(values, OTHERS)

    def meet(self, model: int, resource: str, gpus: int, cpu: int, memory: int) -> None:
        """There is such a machine. CPU and memory of a model's machines differ a little: the least ones count."""
        key = (model, resource, gpus)
        known = self.machines.get(key, (cpu, memory))
        least = (min(known[0], cpu), min(known[1], memory))
        if self.machines.get(key) != least:
            self.machines[key] = least
            self.revision += 1

    def whole(self) -> list[Kind]:
        """For each kind of machine with two GPUs or more, the pod that takes nearly all of it."""
        found = {
            Kind(resource, gpus, 1, cpu * 4 // 5, memory * 4 // 5, (), 1)
            for (_, resource, gpus), (cpu, memory) in self.machines.items()
            if gpus > 1
        }
        return sorted(found)

    def mask(self, where: Where) -> int:
        """The models that are allowed, as a bit mask; of those beyond 63 nobody knows: anywhere or not at all."""
        if not where:
            return ANYWHERE
        found = 0
        for values, model in self._known.items():
            labels = {key: value for key, value in zip(self.labels, values, strict=True) if value is not None}
            if any(all(one.matches(labels) for one in term) for term in where):
                found |= 1 << model
        return found


class Mix:
    """Kinds of pods with their weights: how many came, those of long ago counting less.

    At most `most` kinds are in use. While there are more, those that weigh least wait: each counts for the kind that
    asks for the same GPUs and is nearest in CPU and memory, if there is one. `revision` rises with every change.
    """

    def __init__(self, half_life_seconds: float, most: int = 256) -> None:
        if half_life_seconds <= 0 or most < 1:
            raise ValueError("a mix has a half-life and one kind or more")
        self.half_life = half_life_seconds
        self.most = most
        self.revision = 0
        self._mass: dict[Kind, float] = {}  # in units of one pod at `_base`
        self._used: set[Kind] = set()
        self._order: tuple[list[Kind], list[tuple[Kind, Kind]]] | None = None  # see _ordered; None: to be made anew
        self._near: dict[Kind, Kind | None] = {}  # of a kind that waits: the one that it counts for
        self._base = 0.0
        self._latest: float | None = None
        self._latest_uids: set[str] = set()  # of pods that were made in the latest second
        self._until = -math.inf  # pods made until then were counted by who dumped the mix
        self._until_uids: frozenset[str] = frozenset()

    def see(self, kind: Kind, uid: str = "", at: float | None = None) -> None:
        """Count a pod that is seen for the first time. `at`: when it was made, seconds since 1970; None: just now."""
        if at is not None and (at < self._until or (at == self._until and uid in self._until_uids)):
            return
        if self._latest is None:
            self._latest = self._base = at or 0.0
        when = self._latest if at is None else at
        if when > self._latest:
            self._latest = when
            self._latest_uids.clear()
        if when == self._latest and uid and at is not None:
            self._latest_uids.add(uid)
        if (when - self._base) / self.half_life > MOST_EXPONENT:
            self._rebase(when)
        if kind not in self._mass:
            self._order = None
        self._mass[kind] = self._mass.get(kind, 0.0) + 2.0 ** max(-MOST_EXPONENT, (when - self._base) / self.half_life)
        if kind not in self._used:
            self._admit(kind)
        self.revision += 1

    def _rebase(self, base: float) -> None:
        factor = 2.0 ** -min(1000.0, (base - self._base) / self.half_life)
        self._mass = {kind: mass * factor for kind, mass in self._mass.items() if mass * factor > 1e-12}
        self._used &= self._mass.keys()
        self._order = None
        self._near.clear()
        self._base = base

    def _admit(self, kind: Kind) -> None:
        if len(self._used) < self.most:
            self._used.add(kind)
            self._enter(kind)
            return
        least = min(self._used, key=self._rank)
        if self._mass[kind] > GROWTH * self._mass[least]:
            self._used.remove(least)
            self._used.add(kind)
            self._enter(kind, least)
        if len(self._mass) > (1 + WAITING) * self.most:
            gone = min(self._mass.keys() - self._used - {kind}, key=self._rank)
            del self._mass[gone]
            self._near.pop(gone, None)
            self._order = None

    def _enter(self, come: Kind, gone: Kind | None = None) -> None:
        """A kind is in use now, in the place of `gone`: it may be the nearest of those that wait."""
        self._order = None
        self._near.pop(come, None)
        for kind, near in list(self._near.items()):
            if near == gone:
                del self._near[kind]
            elif _gpus(kind) == _gpus(come) and (
                near is None or (_distance(kind, come), come) < (_distance(kind, near), near)
            ):
                self._near[kind] = come

    def _rank(self, kind: Kind) -> tuple[float, Kind]:
        return self._mass[kind], kind

    def weights(self) -> list[tuple[Kind, float]]:
        """The kinds in use, in their own order, with the pods of each as they count now."""
        now = 2.0 ** -((self._latest - self._base) / self.half_life) if self._latest is not None else 1.0
        used, waiting = self._order = self._order or self._ordered()
        found = {kind: self._mass[kind] for kind in used}
        for kind, near in waiting:
            found[near] += self._mass[kind]
        return [(kind, mass * now) for kind, mass in found.items()]

    def _ordered(self) -> tuple[list[Kind], list[tuple[Kind, Kind]]]:
        """(the kinds in use, those that wait with the kind that each counts for), in their own order."""
        used, waiting = sorted(self._used), sorted(self._mass.keys() - self._used)
        alike: dict[tuple[object, ...], list[Kind]] = {}
        if not self._near.keys() >= set(waiting):
            for kind in used:
                alike.setdefault(_gpus(kind), []).append(kind)
        for kind in waiting:
            if kind not in self._near:
                others = alike.get(_gpus(kind), ())
                self._near[kind] = min(others, key=lambda other: (_distance(kind, other), other), default=None)
        return used, [(kind, near) for kind in waiting if (near := self._near[kind]) is not None]

    def dump(self) -> str:
        """The mix as JSON, all kinds with what they weigh now."""
        now = 2.0 ** -((self._latest - self._base) / self.half_life) if self._latest is not None else 1.0
        return json.dumps(
            {
                "apiVersion": VERSION,
                "kind": "Mix",
                "until": self._latest,
                "uids": sorted(self._latest_uids),
                "kinds": [
                    [*kind[:5], [[list(one) for one in term] for term in kind.where], kind.linked,
                     self._mass[kind] * now, kind in self._used]
                    for kind in sorted(self._mass)
                ],
            },
            separators=(",", ":"),
        )  # fmt: skip

    @classmethod
    def load(cls, text: str | bytes, half_life_seconds: float, most: int = 256) -> Mix:
        """The mix of a dump. ValueError when it is none."""
        made = cls(half_life_seconds, most)
        try:
            read = json.loads(text)
            if read["apiVersion"] != VERSION or read["kind"] != "Mix":
                raise ValueError("another kind of object")
            until = read["until"]
            if until is not None:
                made._latest = made._base = made._until = float(until)
            made._until_uids = frozenset(str(uid) for uid in read["uids"])
            made._latest_uids = set(made._until_uids)
            for resource, devices, share, cpu, memory, where, linked, mass, used in read["kinds"]:
                devices, share, cpu, memory, linked = map(int, (devices, share, cpu, memory, linked))
                if not (devices > 0 < share and cpu >= 0 <= memory and linked in (0, 1, 2) and 0 < mass < math.inf):
                    raise ValueError(f"impossible kind: {resource}, {devices}, {share}, {cpu}, {memory}, {linked}")
                terms = tuple(tuple(_requirement(*one) for one in term) for term in where)
                kind = Kind(str(resource), devices, share, cpu, memory, terms, linked)
                made._mass[kind] = float(mass)
                if used and len(made._used) < most:
                    made._used.add(kind)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a mix of requests: {error}") from error
        return made


def _requirement(key: str, operator: Operator, values: Iterable[str]) -> Requirement:
    return Requirement(str(key), operator, tuple(str(value) for value in values))


def _gpus(kind: Kind) -> tuple[object, ...]:
    return kind.resource, kind.devices, kind.share, kind.where, kind.linked


def _distance(a: Kind, b: Kind) -> float:
    """How far apart CPU and memory are, as ratios."""
    return abs(math.log((a.cpu + 1) / (b.cpu + 1))) + abs(math.log((a.memory + 1) / (b.memory + 1)))


class Pull(NamedTuple):
    """How much a kind weighs in the price of slots; `size`: GPUs, for the powers of the price."""

    kind: Kind
    weight: float
    size: float


def pulls(asked: Iterable[tuple[Kind, float]], expected: Iterable[Kind], most: int, units: int = 1) -> list[Pull]:
    """What the kinds that came, and those that may, weigh; in their own order.

    `expected`: kinds that count a little before any has come, as long as there are fewer than `most` kinds. `units`:
    the share that is a whole GPU. Of each resource the leanest single GPU that at least one pod in a hundred asks for,
    on any machine, weighs as much again as all kinds together: a GPU is idle for good once its node has not even the
    CPU or memory left that such a pod needs.
    """
    counts = {kind: count for kind, count in asked if count > 0}
    weights = {kind: count**OFTEN for kind, count in counts.items()}
    sizes = {kind: kind.devices * kind.share / units for kind in counts}
    every: dict[str, float] = {}
    for kind in sorted(counts):
        every[kind.resource] = every.get(kind.resource, 0.0) + counts[kind]
    for resource, count in every.items():
        lean = [
            kind
            for kind in counts
            if (kind.resource, kind.devices, kind.share, kind.where) == (resource, 1, units, ())
            and counts[kind] >= LEAN_PART * count
        ]
        if lean:
            whole = sum(weights[kind] for kind in sorted(counts) if kind.resource == resource)
            weights[min(lean, key=lambda kind: (kind.cpu, kind.memory))] += whole
    for kind in expected:
        if kind not in weights and len(weights) < most:
            weights[kind], sizes[kind] = EXPECTED**OFTEN, 1.0
    return [Pull(kind, weights[kind], sizes[kind]) for kind in sorted(weights)]
