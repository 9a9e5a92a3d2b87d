"""The demand that the tables expect: the kinds of pods in the demand mix as types of slots."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from extender.cluster.statements import MOST
from extender.cluster.tables import FIRST_GPU, MOST_AMOUNT, ExpectedTypes, SlotType
from extender.objects.records import PodRecord
from extender.objects.resources import cpus, size
from extender.objects.selectors import Operator, Requirement
from extender.objects.stored_texts import MIX_BYTES, shortened
from extender.settings import Mix as MixSettings


class Forecast:
    """Learns the demand mix from the pods that come, and states what it makes expect. `models`: the machines that
    exist."""

    def __init__(self, settings: MixSettings, resources: Sequence[str]) -> None:
        """`resources`: by index; from FIRST_GPU the GPU resources."""
        self.mix = DemandMix(settings.half_life_seconds, settings.kinds)
        self.models = MachineModels(settings.model_labels)
        self._settings = settings
        self._resources = tuple(resources)
        self._stated: tuple[int, int] | None = None  # revisions of both that were returned last
        self._types: dict[Kind, tuple[SlotType, str]] = {}  # the kinds that were returned last, each with its text
        self._asked: list[Kind] = []  # those that `_weigher` weighs
        self._weigher = Weigher((), (), self.mix.most)

    def see(self, pod: PodRecord, before: PodRecord | None) -> None:
        """Count a pod whose GPUs are known for the first time: those by a claim when the claim is known. `before`: as
        it was known until now. Pods without GPUs, and those that a node brings along, do not count."""
        if not pod.gpus or pod.daemon or pod.mirror or pod.unread or (before is not None and before.gpus):
            return
        kind = kind_of(pod, self._resources[FIRST_GPU:], self.models.labels)
        if kind is not None:
            self.mix.see(kind, pod.uid, pod.created)

    def dump(self) -> str:
        """What was learned of the pods that came, as text."""
        return self.mix.dump()

    def load(self, text: str) -> None:
        """Start from what was learned before; ahead of the first pod. ValueError when the text is no demand mix."""
        self.mix = DemandMix.load(text, self._settings.half_life_seconds, self._settings.kinds)
        self._stated = None

    def changed(self) -> ExpectedTypes | None:
        """What is to be expected; None where it is the same as in the call before."""
        revisions = (self.mix.revision, self.models.revision)
        if revisions == self._stated:
            return None
        if self._stated is None or self._stated[1] != revisions[1]:
            self._types.clear()  # which models a kind may run on
        self._stated = revisions
        names = self._resources[FIRST_GPU:]
        came = [(kind, count) for kind, count in self.mix.weights() if count > 0 and kind.resource in names]
        asked = [kind for kind, _ in came]
        if asked != self._asked or not self._types:
            self._asked, self._weigher = asked, Weigher(asked, self.models.whole(), self.mix.most)
            before = self._types
            self._types = {kind: before.get(kind) or (self._type(kind), str(kind)) for kind in self._weigher.kinds}
        return ExpectedTypes(
            [expected for expected, _ in self._types.values()],
            self._weigher.weights([count for _, count in came]),
            self._weigher.sizes,
            [name for _, name in self._types.values()],
        )

    def _type(self, kind: Kind) -> SlotType:
        cpu, memory = min(kind.cpu, MOST_AMOUNT), min(kind.memory, MOST_AMOUNT)
        models = self.models.mask(kind.where) if kind.where else ANYWHERE
        devices = min(kind.devices, MOST)
        return self._resources.index(kind.resource), devices, kind.share, cpu, memory, models, kind.linked


# -- weights -----------------------------------------------------------------------------------------------------------


OFTEN: Final = 0.6
"""The power of a count: a kind that came twice as often weighs less than twice as much."""
EXPECTED: Final = 0.01
"""A pod that takes a whole machine counts as so many, before any has come."""
LEAN_PART: Final = 0.01
"""Of all GPU pods: a kind that fewer ask for is no rule."""


class Weigher:
    """Weighs the same kinds again and again, as their counts change. `kinds`: of the weights, in their own order;
    `sizes`: of each, GPUs."""

    def __init__(self, asked: Sequence[Kind], expected: Iterable[Kind], most: int, units: int = 1) -> None:
        """`asked`: the kinds that came, each once, in their own order; `expected`: kinds that count a little before any
        has come, as long as there are fewer than `most` kinds; `units`: the share that is a whole GPU.

        Of each resource the leanest single GPU that at least one pod in a hundred asks for, on any machine, weighs as
        much again as all kinds together: a GPU is idle for good once its node has not even the CPU or memory left that
        such a pod needs."""
        known = dict.fromkeys(asked)
        for kind in expected:
            if len(known) < most:
                known.setdefault(kind)
        self.kinds = sorted(known)
        index = {kind: i for i, kind in enumerate(asked)}
        self.sizes = [kind.devices * kind.share / units if kind in index else 1.0 for kind in self.kinds]
        self._order = [index.get(kind, -1) for kind in self.kinds]
        of: dict[str, list[int]] = {}
        for i, kind in enumerate(asked):
            of.setdefault(kind.resource, []).append(i)
        self._of = [
            (members, sorted(
                [i for i in members if (asked[i].devices, asked[i].share, asked[i].where) == (1, units, ())],
                key=lambda i: (asked[i].cpu, asked[i].memory),
            ))
            for members in of.values()
        ]  # fmt: skip

    def weights(self, counts: Sequence[float]) -> list[float]:
        """The weight of each of `kinds`. `counts`: how many pods of each kind of `asked` came, above 0."""
        weights = [count**OFTEN for count in counts]
        for members, lean in self._of:  # of one resource; lean: single GPUs, the leanest first
            every = 0.0
            for i in members:
                every += counts[i]
            leanest = next((i for i in lean if counts[i] >= LEAN_PART * every), -1)
            if leanest >= 0:
                weights[leanest] += sum([weights[i] for i in members])
        return [weights[i] if i >= 0 else EXPECTED**OFTEN for i in self._order]


# -- machines ----------------------------------------------------------------------------------------------------------


OTHERS: Final = 63
"""The model of all machines beyond the first 63 models."""
MOST_MACHINES: Final = 1_024
"""Different machines; what comes later is expected as little as a machine that does not exist."""
ANYWHERE: Final = 2**64 - 1
"""The mask of all models."""


Machine = tuple[int, str, int]
"""Model, resource, GPUs."""
CpuMemory = tuple[int, int]
"""CPU in millicores, memory in bytes."""


class MachineModels:
    """Models of machines, distinguished by the values of a few labels: 0 to 62 in the order in which they come, 63 for
    all that come later. And the machines that nodes are now, in whatever order they came.

    `revision` rises when a model comes, or other machines exist.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = tuple(labels)
        self.revision = 0
        self._known: dict[tuple[str | None, ...], int] = {}
        self._of: dict[str, tuple[Machine, CpuMemory]] = {}  # by node
        self._rooms: dict[Machine, Counter[CpuMemory]] = {}  # of how many nodes
        self._least: dict[Machine, CpuMemory] = {}

    def of(self, labels: Mapping[str, str]) -> int:
        """The model of a node with these labels."""
        values = tuple(labels.get(key) for key in self.labels)
        if values not in self._known and len(self._known) < OTHERS:
            self._known[values] = len(self._known)
            self.revision += 1
        return self._known.get(values, OTHERS)

    def set(self, node: str, machine: Machine, room: CpuMemory) -> None:
        """The node is such a machine. CPU and memory of a model's machines differ a little: the least ones count."""
        if self._of.get(node) == (machine, room):
            return
        self.drop(node)
        if machine not in self._rooms and len(self._rooms) >= MOST_MACHINES:
            return
        self._of[node] = machine, room
        self._rooms.setdefault(machine, Counter())[room] += 1
        self._renew(machine, (room, self._least.get(machine, room)))

    def drop(self, node: str) -> None:
        """The node is no such machine any more, or does not exist."""
        if node not in self._of:
            return
        machine, room = self._of.pop(node)
        others = self._rooms[machine]
        others[room] -= 1
        if others[room]:
            return
        del others[room]
        if others:
            self._renew(machine, others)
        else:
            del self._rooms[machine], self._least[machine]
            self.revision += 1

    def _renew(self, machine: Machine, rooms: Collection[CpuMemory]) -> None:
        least = min(cpu for cpu, _ in rooms), min(memory for _, memory in rooms)
        if self._least.get(machine) != least:
            self._least[machine] = least
            self.revision += 1

    def whole(self) -> list[Kind]:
        """For each kind of machine with two GPUs or more, the pod that takes nearly all of it."""
        kinds = {
            Kind(resource, gpus, 1, cpu * 4 // 5, memory * 4 // 5, (), 1)
            for (_, resource, gpus), (cpu, memory) in self._least.items()
            if gpus > 1
        }
        return sorted(kinds)

    def mask(self, where: Where) -> int:
        """The models that are allowed, as a bit mask. Models beyond 63 are not distinguished: all, or none."""
        if not where:
            return ANYWHERE
        mask = 0
        for values, model in self._known.items():
            labels = {key: value for key, value in zip(self.labels, values, strict=True) if value is not None}
            if any(all(requirement.matches(labels) for requirement in term) for term in where):
                mask |= 1 << model
        return mask


# -- the demand mix ----------------------------------------------------------------------------------------------------
#
# The demand mix: which kinds of GPU pods came, and how often, learned for the price of slots.
#
# Each GPU pod counts once, when it is first seen, at the time of its creation. A pod that was seen long ago counts
# less: half of it after the half-life. Everything follows from what was seen and in which order: no clock is read here.
#
# The demand mix outlives its process as text: `dump` writes it, `load` reads it. A pod that the dump has counted is not
# counted again when the watch brings it once more. The keeper of the text (a ConfigMap, a file) writes the newest one
# now and then. With an old text the pods since then are counted again from the watch; those of them that were deleted
# before are not counted at all. Without a text the mix starts from the pods that exist.

MIX_VERSION: Final = "gpu-extender.io/v1"
MOST_UIDS: Final = 1_000  # that are stored
WAITING: Final = 3  # beyond the kinds in use, so many times as many are counted, in case they grow
GROWTH: Final = 2.0  # a kind takes another's place when it weighs more than so many times as much
MOST_EXPONENT: Final = 512.0


class DemandMix:
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
        self._until = -math.inf  # pods created until then were counted in the dump
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
        masses = {kind: self._mass[kind] for kind in used}
        for kind, near in waiting:
            masses[near] += self._mass[kind]
        return [(kind, mass * now) for kind, mass in masses.items()]

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
        """The mix as JSON, the kinds with what they weigh now. Where MIX_BYTES have no room for all kinds, those that
        weigh least for their length are left out: tenants choose how long they are."""
        now = 2.0 ** -((self._latest - self._base) / self.half_life) if self._latest is not None else 1.0
        kinds = {
            kind: json.dumps(
                [*kind[:5], [[list(requirement) for requirement in term] for term in kind.where], kind.linked,
                 self._mass[kind] * now, kind in self._used],
                separators=(",", ":"),
            )
            for kind in sorted(self._mass)
        }  # fmt: skip
        by_worth = sorted(kinds, key=lambda kind: (-self._mass[kind] / len(kinds[kind]), kind))
        head = json.dumps(
            {
                "apiVersion": MIX_VERSION,
                "kind": "Mix",
                "until": self._latest,
                "uids": sorted(self._latest_uids)[:MOST_UIDS],
            },
            separators=(",", ":"),
        )

        def most(count: int) -> str:
            return f'{head[:-1]},"kinds":[{",".join([kinds[kind] for kind in sorted(by_worth[:count])])}]}}'

        return shortened(most, len(kinds), MIX_BYTES)

    @classmethod
    def load(cls, text: str | bytes, half_life_seconds: float, most: int = 256) -> DemandMix:
        """The mix of a dump. ValueError when the text is none."""
        mix = cls(half_life_seconds, most)
        try:
            read = json.loads(text)
            if read["apiVersion"] != MIX_VERSION or read["kind"] != "Mix":
                raise ValueError("another kind of object")
            until = read["until"]
            if until is not None:
                mix._latest = mix._base = mix._until = float(until)
            mix._until_uids = frozenset(str(uid) for uid in read["uids"])
            mix._latest_uids = set(mix._until_uids)
            for resource, devices, share, cpu, memory, where, linked, mass, used in read["kinds"]:
                devices, share, cpu, memory, linked = map(int, (devices, share, cpu, memory, linked))
                if not (devices > 0 < share and cpu >= 0 <= memory and linked in (0, 1, 2) and 0 < mass < math.inf):
                    raise ValueError(f"impossible kind: {resource}, {devices}, {share}, {cpu}, {memory}, {linked}")
                terms = tuple(tuple(_requirement(*requirement) for requirement in term) for term in where)
                kind = Kind(str(resource), devices, share, cpu, memory, terms, linked)
                mix._mass[kind] = float(mass)
                if used and len(mix._used) < most:
                    mix._used.add(kind)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a mix of requests: {error}") from error
        return mix


def _requirement(key: str, operator: Operator, values: Iterable[str]) -> Requirement:
    return Requirement(str(key), operator, tuple(str(value) for value in values))


def _gpus(kind: Kind) -> tuple[object, ...]:
    return kind.resource, kind.devices, kind.share, kind.where, kind.linked


def _distance(a: Kind, b: Kind) -> float:
    """How far apart CPU and memory are, as ratios."""
    return abs(math.log((a.cpu + 1) / (b.cpu + 1))) + abs(math.log((a.memory + 1) / (b.memory + 1)))


# -- kinds of pods: what a GPU pod asks for, as far as the price of slots depends on it


LINKS: Final = "gpu-extender.io/links"
NICS: Final = "gpu-extender.io/nics"
MODES: Final = ("ignore", "preferred", "required")
MOST_WHERE: Final = 1024
"""Characters of the labels that one pod asks for; a pod that asks for more counts as one for any node."""
MOST_TERMS: Final = 64
"""Terms, requirements and values that one pod asks for; more count as any node."""

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
        if self.linked:
            parts.append(f"links {MODES[self.linked]}")
        parts += [cpus(self.cpu), size(self.memory)]
        if self.where:
            parts.append(" or ".join(" and ".join(_text(requirement) for requirement in term) for term in self.where))
        return ", ".join(parts)


def _text(requirement: Requirement) -> str:
    return " ".join((requirement.key, requirement.operator.lower(), "|".join(requirement.values))).strip()


def links_of(pod: PodRecord) -> str:
    """required, preferred or ignore; preferred where the pod states nothing."""
    stated = pod.annotations.get(LINKS)
    return "preferred" if stated is None else _mode(stated)


def nics_of(pod: PodRecord) -> str:
    """required, preferred or ignore; "" where the pod states nothing."""
    stated = pod.annotations.get(NICS)
    return "" if stated is None else _mode(stated)


def _mode(stated: str) -> str:
    """An invalid value counts as required."""
    word = stated.strip().lower()
    return word if word in MODES else "required"


def is_particular(pod: PodRecord) -> bool:
    """Whether it matters to the pod which GPUs of a node it gets: it requires links or NICs."""
    return links_of(pod) == "required" or nics_of(pod) == "required"


def kind_of(pod: PodRecord, resources: Iterable[str], labels: Iterable[str]) -> Kind | None:
    """What a pod asks for; None without GPUs. `resources`: those that count; `labels`: those that distinguish machines.

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
    """What nodeSelector and required node affinity ask of these labels; requirements on other labels are left out."""
    if not pod.node_selector and not pod.node_terms:
        return ()
    known = frozenset(labels)
    if not _short(pod, known):
        return ()  # kinds are kept for long, and written to a ConfigMap
    chosen = [Requirement(key, "In", (value,)) for key, value in pod.node_selector if key in known]
    terms = {
        tuple(sorted({*chosen, *(_sorted(requirement) for requirement in term.labels if requirement.key in known)}))
        for term in pod.node_terms or ()
    } or {tuple(sorted(chosen))}
    return () if () in terms else tuple(sorted(terms))


def _short(pod: PodRecord, known: frozenset[str]) -> bool:
    """Whether what the pod asks of these labels is short enough to be kept."""
    terms = pod.node_terms or ()
    if len(terms) > MOST_TERMS or sum(len(term.labels) for term in terms) > MOST_TERMS:
        return False
    asked = [requirement.values for term in terms for requirement in term.labels if requirement.key in known]
    if sum(map(len, asked)) > MOST_TERMS:
        return False
    return sum(len(value) for values in asked for value in values) <= MOST_WHERE


def _sorted(requirement: Requirement) -> Requirement:
    return Requirement(requirement.key, requirement.operator, tuple(sorted(set(requirement.values))))
