"""What a stock device plugin answers when kubelet asks which GPUs to hand out.

Pure models: no I/O, and every random choice comes from the caller's ``random.Random``. They exist because
kubelet asks the plugin *after* the scheduler has bound the pod, and the plugin never learns which pod it
is: our plan for the pod's GPUs holds only where the plugin would have chosen the same ones anyway.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Literal, Protocol

from extender.topologies.reading import ids

Model = Literal["nvidia", "amd", "none"]
LinkScope = Literal["pair", "gpu-total"]
Matrix = Sequence[Sequence[int]]
Levels = Sequence[Sequence[str]]

# Points of one pair for the path between the two GPUs, as NVIDIA's best-effort rule counts them.
_NVIDIA_PATH = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVIDIA_PER_LINK = 100
_NVIDIA_MOST_LINKS = 18

# Weights of one pair (less is better) in AMD's rule. Two whole GPUs are never the same device.
_AMD_OTHER_DEVICE = 20
_AMD_XGMI, _AMD_PCIE = 10, 40
_AMD_SAME_NUMA, _AMD_OTHER_NUMA = 10, 20


class PluginPanicked(Exception):
    """The plugin process would crash on this request: kubelet fails the pod's admission."""


class TooFewDevices(ValueError):
    """Fewer devices are available than asked for, or the forced ones are more or are not available."""


class SimDevicePlugin(Protocol):
    """The one question of the device plugin API that matters for topology."""

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """``size`` GPU indices out of ``available``, all of ``must_include`` among them."""
        ...


class Arbitrary:
    """No preference, as with plugins that do not implement the question: kubelet takes what comes first."""

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The forced GPUs and a uniformly random rest."""
        _check(available, size, must_include)
        rest = sorted(set(available) - set(must_include))
        return frozenset(must_include) | frozenset(rng.sample(rest, size - len(set(must_include))))


class NvidiaBestEffort:
    """NVIDIA's best-effort rule, which plans as if every later pod would ask for the same size.

    It splits *all* available GPUs into sets of the requested size, one of them filled up with empty places when
    they do not divide, takes the split with the highest sum of pair points over all its sets, and answers the best
    set of that split. Comparisons are strict, so among equals the first in kubelet's (random) order wins.
    An empty place scores nothing but may stand in the answer; the real plugin then crashes.
    """

    def __init__(self, links: Matrix, pcie: Levels | None, link_scope: LinkScope = "pair") -> None:
        """``links[i][j]`` counts links; ``pcie[i][j]`` names the path; unknown paths count as SYS.

        With ``link_scope`` "gpu-total" links end in a switch. The plugin only counts a link whose far end
        is the other GPU, so it sees none of them.
        """
        size = len(links)
        self._pair = [[0] * size for _ in range(size)]
        for a, b in combinations(range(size), 2):
            seen = min(links[a][b], _NVIDIA_MOST_LINKS) if link_scope == "pair" else 0
            path = _NVIDIA_PATH[pcie[a][b] if pcie is not None else "SYS"]
            self._pair[a][b] = self._pair[b][a] = path + _NVIDIA_PER_LINK * seen
        self._best: dict[tuple[int, int, int, int], int] = {}

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The best set of the best split; PluginPanicked when that set has an empty place."""
        _check(available, size, must_include)
        order = sorted(available)
        rng.shuffle(order)
        if size == 0:
            return frozenset()
        if size == len(order):
            return frozenset(order)
        if size == 1:
            # Every single GPU scores 0, so the first one in the shuffled order stays the best.
            return frozenset(must_include) or frozenset(order[:1])
        forced = _mask(must_include)
        split = self._first_best_split(order, size, forced)
        holders = [chosen for chosen in split if forced & ~_mask(chosen) == 0]
        answer = max(holders, key=self._points)
        if len(answer) < size:
            raise PluginPanicked(f"the best set of {size} GPUs has {size - len(answer)} empty place(s)")
        return frozenset(answer)

    def _first_best_split(self, order: list[int], size: int, forced: int) -> list[tuple[int, ...]]:
        """The best split; among equals the one that a walk in ``order`` meets first."""
        split: list[tuple[int, ...]] = []
        remaining = order
        empty = -len(order) % size
        while remaining:
            best = self._best_total(_mask(remaining), empty, size, forced)
            for chosen in self._sets_with_first(remaining, empty, size, forced):
                rest = [gpu for gpu in remaining if gpu not in chosen]
                unused = empty - (size - len(chosen))
                if self._points(chosen) + self._best_total(_mask(rest), unused, size, forced) == best:
                    split.append(chosen)
                    remaining, empty = rest, unused
                    break
            else:  # pragma: no cover - the maximum is always reached by one of them
                raise AssertionError("no set reaches the best total")
        return split

    def _best_total(self, free: int, empty: int, size: int, forced: int) -> int:
        """The highest sum of points over all splits of ``free`` and ``empty`` places; -1 when none is."""
        if free == 0:
            return 0 if empty == 0 else -1
        key = (free, empty, size, forced)
        if (known := self._best.get(key)) is not None:
            return known
        best = -1
        remaining = ids(free)
        for chosen in self._sets_with_first(remaining, empty, size, forced):
            rest = self._best_total(free & ~_mask(chosen), empty - (size - len(chosen)), size, forced)
            if rest >= 0:
                best = max(best, rest + self._points(chosen))
        self._best[key] = best
        return best

    @staticmethod
    def _sets_with_first(remaining: Sequence[int], empty: int, size: int, forced: int) -> list[tuple[int, ...]]:
        """The sets with the first of ``remaining``, real GPUs before empty places, with all of the places or none."""
        places = [*remaining[1:], *[-1] * empty]
        sets = dict.fromkeys(
            (remaining[0], *(gpu for gpu in others if gpu >= 0))
            for others in combinations(places, size - 1)
            if others.count(-1) in (0, empty)
        )
        # A split serves a request with forced GPUs only when one set holds them all.
        return [chosen for chosen in sets if _mask(chosen) & forced in (0, forced & _mask(remaining))]

    def _points(self, chosen: Sequence[int]) -> int:
        return sum(self._pair[a][b] for a, b in combinations(chosen, 2))


class AmdBestEffort:
    """AMD's rule: the set with the lowest sum of pair weights. How it breaks ties is not documented."""

    def __init__(self, links: Matrix, numa: Sequence[int] | None) -> None:
        """``links[i][j]`` counts XGMI links; ``numa[i]`` is a GPU's NUMA node (unknown: one for all)."""
        size = len(links)
        self._pair = [[0] * size for _ in range(size)]
        for a, b in combinations(range(size), 2):
            near = numa is None or numa[a] == numa[b]
            weight = _AMD_OTHER_DEVICE + (_AMD_XGMI if links[a][b] else _AMD_PCIE)
            weight += _AMD_SAME_NUMA if near else _AMD_OTHER_NUMA
            self._pair[a][b] = self._pair[b][a] = weight

    def choose(
        self, available: Collection[int], size: int, rng: random.Random, must_include: Collection[int] = ()
    ) -> frozenset[int]:
        """The lightest set; a random one among equals."""
        _check(available, size, must_include)
        forced = tuple(sorted(set(must_include)))
        rest = sorted(set(available) - set(forced))
        lightest: list[tuple[int, ...]] = []
        least = -1
        for others in combinations(rest, size - len(forced)):
            weight = sum(self._pair[a][b] for a, b in combinations(forced + others, 2))
            if least < 0 or weight < least:
                least, lightest = weight, []
            if weight == least:
                lightest.append(forced + others)
        return frozenset(rng.choice(lightest))


def device_plugin(
    model: Model,
    links: Matrix,
    pcie: Levels | None = None,
    *,
    link_scope: LinkScope = "pair",
    numa: Sequence[int] | None = None,
) -> SimDevicePlugin:
    """The model by name, for the GPUs of one node. Nodes of one shape can share the object."""
    if model == "nvidia":
        return NvidiaBestEffort(links, pcie, link_scope)
    if model == "amd":
        return AmdBestEffort(links, numa)
    return Arbitrary()


def _check(available: Collection[int], size: int, must_include: Collection[int]) -> None:
    if not set(must_include) <= set(available):
        raise TooFewDevices("a GPU that must be included is not available")
    if not len(set(must_include)) <= size <= len(set(available)):
        raise TooFewDevices(f"{size} GPUs asked for, {len(set(available))} available")


def _mask(gpus: Collection[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask
