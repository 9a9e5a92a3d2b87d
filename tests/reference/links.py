"""The slow twin of ext_core.links: the same answers from definitions, with exact fractions."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from ext_core.ask import Ask
from tests.oracles.rings import ring_links
from tests.reference.device_plugin import DevicePlugin, Gpus

Chosen = namedtuple("Chosen", "gpus ring ring_best left left_before expected_ring")


def _ids(mask: int) -> Gpus:
    return tuple(i for i in range(16) if mask >> i & 1)


def _mask(ids: Sequence[int]) -> int:
    return sum(1 << i for i in ids)


def _half_up(value: Fraction) -> int:
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


MOST_SHAPES, MOST_LARGE = 512, 16


class Graph:
    """One shape."""

    def __init__(
        self,
        links: Sequence[Sequence[int]],
        gpu_total: bool,
        pcie: Sequence[Sequence[int]] | None,
        numa: Sequence[int] | None,
        plugin: str,
    ) -> None:
        self.nic_sets: Sequence[int] | None = None
        self.gpus, self.links, self.gpu_total = len(links), links, gpu_total
        self.pcie, self.plugin = pcie, plugin
        self.device = DevicePlugin(links, gpu_total, pcie, numa, plugin)
        self.ring = lru_cache(None)(self._ring)

    def _ring(self, ids: Gpus) -> int:
        if len(ids) < 2:
            return 0
        if self.gpu_total:
            seen = all(self.links[a][b] for a, b in combinations(ids, 2))
            return 1000 * min(max(self.links[a]) for a in ids) if seen else 0
        return _half_up(1000 * ring_links(self.links, ids))

    def linked(self, ids: Gpus) -> bool:
        return len(ids) == 1 or self.ring(ids) > 0

    def top(self, ids: Gpus, k: int) -> int:
        return max((self.ring(s) for s in combinations(ids, k)), default=0) if k >= 2 else 0

    def left(self, ids: Gpus) -> int:
        return sum(self.top(ids, k) for k in range(2, self.gpus + 1))

    def ways(self, ids: Gpus) -> int:
        return sum(self.ring(s) for k in range(2, len(ids) + 1) for s in combinations(ids, k))

    @lru_cache(None)  # noqa: B019 - a test's graph lives as long as its test
    def future(self, ids: Gpus) -> int:
        """In millionths, cut at each step."""
        everyone = tuple(range(self.gpus))
        total = 0
        for k in range(1, len(ids) + 1):
            best = max((self.ring(s), self.future(tuple(i for i in ids if i not in s))) for s in combinations(ids, k))
            whole = self.top(everyone, k)
            total += best[1] + (1_000_000 * best[0] // whole if whole else 0)
        return total // self.gpus if self.gpus <= 12 else 0

    def near(self, ids: Gpus) -> int:
        return sum(self.pcie[a][b] if self.pcie else self.device.same_numa(a, b) for a, b in combinations(ids, 2))

    def objective(self, free: Gpus, ids: Gpus) -> tuple[int, int, int, int, int, int]:
        rest = tuple(i for i in free if i not in ids)
        future, ways = self.future(rest) + self.future(ids), self.ways(rest) + self.ways(ids)
        return self.ring(ids), self.left(rest), future, ways, self.near(ids), self.near(rest)

    @lru_cache(None)  # noqa: B019 - a test's graph lives as long as its test
    def nics(self, ids: Gpus) -> int:
        assert self.nic_sets is not None
        return matched(ids, self.nic_sets)

    def with_nics(self, free: Gpus, k: int, nics: str) -> Gpus:
        def worth(ids: Gpus) -> tuple[int, ...]:
            by = self.objective(free, ids)
            return (self.nics(ids), *by) if nics == "required" else (*by[:4], self.nics(ids), *by[4:])

        if nics == "ignore" or self.nic_sets is None:
            return self.ordered(free, k)[0]
        return min(combinations(free, k), key=lambda ids: ([-value for value in worth(ids)], ids))

    def certain_nics(self, free: Gpus, k: int) -> tuple[int, int | None]:
        """(whether all, some or no sets have NICs of their own, the same of what the plugin hands out)."""
        every = [self.nics(ids) == k for ids in combinations(free, k)]
        answers = self.answers(free, k)
        handed = None if answers is None else [len(ids) == k and self.nics(ids) == k for ids in answers]
        return _certain(every), None if handed is None else _certain(handed)

    def expected_nics(self, free: Gpus, k: int) -> float | None:
        answers = self.answers(free, k)
        if answers is None:
            return None
        mean = sum((share * self.nics(ids) for ids, share in answers.items() if len(ids) == k), Fraction(0))
        return _half_up(1_000_000 * mean / k) / 1e6

    def answers(self, free: Gpus, k: int) -> dict[Gpus, Fraction] | None:
        """How likely each set is handed out (smaller ones too); None = unknown."""
        if self.plugin == "relay":
            return {self.ordered(free, k)[0]: Fraction(1)}
        if self.plugin == "first":
            return {tuple(sorted(free)[:k]): Fraction(1)}
        return self.device.answers(free, k)

    def crash(self, free: Gpus, k: int) -> int | None:
        answers = self.answers(free, k)
        if answers is None:
            return 0 if self.plugin != "nvidia" else None
        return math.ceil(1_000_000 * sum((share for s, share in answers.items() if len(s) != k), Fraction(0)))

    def expected(self, free: Gpus, k: int) -> int:
        answers = self.answers(free, k)
        if answers is None:
            rings = {self.ring(s) for s in combinations(free, k)}
            return rings.pop() if len(rings) == 1 else -1
        return _half_up(sum((share * self.ring(s) for s, share in answers.items() if len(s) == k), Fraction(0)))

    def ordered(self, free: Gpus, k: int) -> list[Gpus]:
        """All sets of k, the best first."""
        return sorted(combinations(free, k), key=lambda s: ([-v for v in self.objective(free, s)], s))

    def chosen(self, free: Gpus, ids: Gpus) -> Chosen:
        rest = tuple(i for i in free if i not in ids)
        best = self.top(tuple(range(self.gpus)), len(ids))
        return Chosen(_mask(ids), self.ring(ids), best, self.left(rest), self.left(free), self.expected(free, len(ids)))


def matched(gpus: Gpus, nics: Sequence[int]) -> int:
    """The most of `gpus` that can each have one of `nics` (sets of GPUs) alone: every way to give them out is tried."""
    if not gpus or not nics:
        return 0
    near, rest = nics[0], nics[1:]
    kept = [1 + matched(tuple(gpu for gpu in gpus if gpu != one), rest) for one in gpus if near >> one & 1]
    return max(kept, default=0) if kept else matched(gpus, rest)


def _certain(good: Sequence[bool]) -> int:
    return 2 if all(good) else 1 if any(good) else 0


class LinkShapes:
    """As ext_core.links.LinkShapes, for graphs of a few GPUs."""

    planned = False

    def __init__(self) -> None:
        self._graphs: list[tuple[Any, Graph | None, float | None]] = [(None, None, None)]

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def nics_known(self) -> bool:
        return any(graph is not None and graph.nic_sets is not None for _, graph, _ in self._graphs)

    def intern(
        self,
        links: Sequence[Sequence[int]] | None,
        *,
        gpu_total: bool,
        pcie: Sequence[Sequence[int]] | None,
        numa: Sequence[int] | None,
        plugin: str,
        gbps: float,
    ) -> int:
        return self._intern(None, links, (gpu_total, pcie, numa, plugin, gbps))

    def intern_with_nics(self, nics: Sequence[int] | None, links: Sequence[Sequence[int]] | None, **graph: Any) -> int:
        kept = tuple(graph[name] for name in ("gpu_total", "pcie", "numa", "plugin", "gbps"))
        return self._intern(nics, links, kept)

    def _intern(self, nics: Sequence[int] | None, links: Sequence[Sequence[int]] | None, graph: tuple[Any, ...]) -> int:
        if links is None:
            return 0
        nics = None if nics is None else sorted(near for near in nics if near)
        key = repr((links, graph, nics))
        for shape, (known, _, _) in enumerate(self._graphs):
            if known == key:
                return shape
        large = sum(graph is not None and graph.gpus > 8 for _, graph, _ in self._graphs)
        if len(self._graphs) > MOST_SHAPES or (len(links) > 8 and large >= MOST_LARGE):
            return 0
        made = Graph(links, *graph[:4])
        made.nic_sets = nics
        self._graphs.append((key, made, graph[4]))
        return len(self._graphs) - 1

    def _graph(self, shape: int) -> Graph | None:
        return self._graphs[shape][1]

    def gpus(self, shape: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.gpus

    def relay(self, shape: int) -> bool | None:
        graph = self._graphs[shape][1]
        return None if graph is None else graph.plugin == "relay"

    def follows_plans(self, shape: int, planned: bool = False) -> bool:
        graph = self._graphs[shape][1]
        if graph is None:
            return False
        return self.planned if graph.plugin == "relay" else planned and graph.plugin in ("first", "unordered")

    def gbps(self, shape: int) -> float | None:
        return self._graphs[shape][2]

    def ring(self, shape: int, gpus: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.ring(_ids(gpus))

    def proved(self, shape: int, gpus: int) -> bool | None:
        return None if shape == 0 else True

    def linked(self, shape: int, gpus: int) -> bool | None:
        graph = self._graph(shape)
        if graph is None:
            return True if len(_ids(gpus)) == 1 else None
        return graph.linked(_ids(gpus))

    def top(self, shape: int, gpus: int, k: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.top(_ids(gpus), k)

    def left(self, shape: int, gpus: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.left(_ids(gpus))

    def ways(self, shape: int, gpus: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.ways(_ids(gpus))

    def future(self, shape: int, gpus: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None else graph.future(_ids(gpus))

    def crash(self, shape: int, free: int, k: int) -> int | None:
        graph = self._graph(shape)
        if graph is None:
            return None
        return graph.crash(_ids(free), k) if 1 <= k <= len(_ids(free)) else 0

    def islands(self, shape: int) -> list[int] | None:
        graph = self._graph(shape)
        if graph is None:
            return None
        everyone = range(graph.gpus)
        cliques = [
            set(s)
            for k in range(2, graph.gpus + 1)
            for s in combinations(everyone, k)
            if all(graph.links[a][b] for a, b in combinations(s, 2))
        ]
        return [_mask(s) for s in sorted(sorted(c) for c in cliques if not any(c < other for other in cliques))]

    def components(self, shape: int) -> list[int] | None:
        graph = self._graph(shape)
        if graph is None:
            return None
        groups = [{i} for i in range(graph.gpus)]
        for a, b in combinations(range(graph.gpus), 2):
            if graph.links[a][b]:
                joined = [g for g in groups if a in g or b in g]
                groups = [g for g in groups if g not in joined] + [set().union(*joined)]
        return [_mask(g) for g in sorted(sorted(g) for g in groups)]

    def objective(self, shape: int, free: int, gpus: int) -> tuple[int, int, int, int, int, int] | None:
        graph = self._graph(shape)
        return None if graph is None else graph.objective(_ids(free), _ids(gpus))

    def choice(self, shape: int, free: int, k: int) -> Chosen | None:
        graph = self._graph(shape)
        if graph is None or not 1 <= k <= len(_ids(free)):
            return None
        return graph.chosen(_ids(free), graph.ordered(_ids(free), k)[0])

    def equals(self, shape: int, free: int, k: int) -> list[int] | None:
        graph = self._graph(shape)
        if graph is None:
            return None
        sets = graph.ordered(_ids(free), k) if k >= 1 else []
        return [_mask(s) for s in sets if graph.objective(_ids(free), s) == graph.objective(_ids(free), sets[0])]

    def runner_up(self, shape: int, free: int, k: int) -> Chosen | None:
        graph = self._graph(shape)
        equals = self.equals(shape, free, k)
        if graph is None or not equals:
            return None
        worse = graph.ordered(_ids(free), k)[len(equals) :]
        return graph.chosen(_ids(free), worse[0]) if worse else None

    def certain(
        self, shape: int, free: int, k: int, unknown: int = 0, containers: int = 1, planned: bool = False
    ) -> int:
        ids = _ids(free)
        if not 1 <= k <= len(ids) - unknown:
            return 0
        if k == 1:
            return 2
        graph = self._graph(shape)
        if graph is None:
            return -1
        follows = self.follows_plans(shape, planned)
        answers: Iterable[Gpus] | None = graph.ordered(ids, k)[:1] if follows else graph.answers(ids, k)
        if unknown or (containers > 1 and not follows) or answers is None:
            linked = [graph.linked(s) for s in combinations(ids, k)]
        else:
            linked = [len(s) == k and graph.linked(s) for s in answers]
        return 2 if all(linked) else 1 if any(linked) else 0

    def nics(self, shape: int, gpus: int) -> int | None:
        graph = self._graph(shape)
        return None if graph is None or graph.nic_sets is None else graph.nics(_ids(gpus))

    def with_nics(self, shape: int, free: int, k: int, nics: str) -> int | None:
        graph = self._graph(shape)
        if graph is None or not 1 <= k <= len(_ids(free)):
            return None
        return _mask(graph.with_nics(_ids(free), k, nics))

    def certain_nics(self, shape: int, free: int, ask: Ask, unknown: int = 0, linked: bool = False) -> int:
        graph, ids = self._graph(shape), _ids(free)
        if graph is None or graph.nic_sets is None:
            return -1
        k, follows = ask.wanted, self.follows_plans(shape, ask.planned)
        if not 1 <= k <= len(ids) - unknown:
            return 0
        if unknown == 0 and follows:
            best = graph.with_nics(ids, k, "required")
            return 2 if graph.nics(best) == k and (not linked or graph.linked(best)) else 0
        sets, handed = graph.certain_nics(ids, k)
        return sets if unknown or ask.containers != 1 or handed is None else handed

    def expected_nics(self, shape: int, free: int, k: int, nics: str, planned: bool = False) -> float:
        graph, ids = self._graph(shape), _ids(free)
        if graph is None or graph.nic_sets is None or not 1 <= k <= len(ids):
            return 0.0
        expected = graph.expected_nics(ids, k)
        if expected is not None and not self.follows_plans(shape, planned):
            return expected
        return graph.nics(graph.with_nics(ids, k, "required" if nics == "required" else "preferred")) / k

    def handed_out(self, shape: int, free: int, k: int) -> list[tuple[int, float]] | None:
        graph = self._graph(shape)
        ids = _ids(free)
        if graph is None:
            return None
        if not 1 <= k <= len(ids):
            return []
        answers = graph.answers(ids, k)
        if answers is None:
            return None
        return [(_mask(s), round(float(share), 9)) for s, share in sorted(answers.items()) if len(s) == k]
