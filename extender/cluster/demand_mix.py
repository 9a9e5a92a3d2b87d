"""The demand mix: which kinds of GPU pods came, and how often, learned for the price of slots.

Each GPU pod counts once, when it is first seen, at the time of its creation. A pod that was seen long ago counts less:
half of it after the half-life. Everything follows from what was seen and in which order: no clock is read here.

The demand mix outlives its process as text: `dump` writes it, `load` reads it. A pod that the dump has counted is not
counted again when the watch brings it once more. The keeper of the text (a ConfigMap, a file) writes the newest one now
and then. With an old text the pods since then are counted again from the watch; those of them that were deleted before
are not counted at all. Without a text the mix starts from the pods that exist.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Final

from extender.cluster.pod_kinds import Kind
from extender.objects.selectors import Operator, Requirement

VERSION: Final = "gpu-extender.io/v1"
WAITING: Final = 3  # beyond the kinds in use, so many times as many are counted, in case they grow
GROWTH: Final = 2.0  # a kind takes another's place when it weighs more than so many times as much
MOST_EXPONENT: Final = 512.0


_NUMBERED: Final = re.compile(r"gpu-extender\.io/v([2-9]|[1-9][0-9]{1,8})")


def is_newer(text: str) -> bool:
    """Whether the text is a demand mix that a version to come has written."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    stated = read.get("apiVersion") if isinstance(read, dict) and read.get("kind") == "Mix" else None
    return isinstance(stated, str) and _NUMBERED.fullmatch(stated) is not None


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
        """The mix as JSON, all kinds with what they weigh now."""
        now = 2.0 ** -((self._latest - self._base) / self.half_life) if self._latest is not None else 1.0
        return json.dumps(
            {
                "apiVersion": VERSION,
                "kind": "Mix",
                "until": self._latest,
                "uids": sorted(self._latest_uids),
                "kinds": [
                    [*kind[:5], [[list(requirement) for requirement in term] for term in kind.where], kind.linked,
                     self._mass[kind] * now, kind in self._used]
                    for kind in sorted(self._mass)
                ],
            },
            separators=(",", ":"),
        )  # fmt: skip

    @classmethod
    def load(cls, text: str | bytes, half_life_seconds: float, most: int = 256) -> DemandMix:
        """The mix of a dump. ValueError when the text is none."""
        mix = cls(half_life_seconds, most)
        try:
            read = json.loads(text)
            if read["apiVersion"] != VERSION or read["kind"] != "Mix":
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
