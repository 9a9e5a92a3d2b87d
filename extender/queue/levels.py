"""The levels at which a gang may stay together, and the domain of each node there.

A level is a node label; a domain is the nodes with one value of it. A short name stands for several labels, since each
vendor and cloud has its own: of each node the first of them that the node has counts. What is not in the table
belongs to a short name with which the label's own name ends (`example.com/rack`).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Sliced, pauses
from extender.objects.records import NodeRecord
from extender.policy.roles import NODE
from extender.settings.fields import TOPOLOGY_LABELS

SHORT: Final[Mapping[str, tuple[str, ...]]] = {"node": (NODE,), **TOPOLOGY_LABELS}
"""Short names of levels, the closest first, and the labels that they stand for."""
_KNOWN: Final = frozenset(key for keys in SHORT.values() for key in keys)
_PLACES: Final = frozenset((
    "block", "cabinet", "chassis", "clique", "leaf", "rack", "row", "spine", "subblock", "superblock", "superpod",
    "switch", "tor",
))  # fmt: skip
"""Words with which the names of labels end that state where a node stands."""
_NVLINK: Final = frozenset(("nvl", "nvl72", "nvlink"))
_ENDINGS: Final = frozenset(("id", "index", "name", "number"))
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_FLAGS: Final = frozenset(("", "true", "false", "yes", "no", "present", "enabled", "disabled"))
MOST_UNREAD: Final = 8
"""Labels that look like levels and are reported."""


class PlacementLevel(NamedTuple):
    """One level at which a placement may keep pods together."""

    name: str  # the short name or label that asks for it
    keys: tuple[str, ...]  # node labels
    domain: array[int]  # int32 by index of a node, numbered from 0 in the order of their first nodes; -1: in none
    domains: int  # how many there are

    def of_node(self, cluster: ClusterView, row: int) -> tuple[str, str] | None:
        """(label, value) of the domain that a node is in; None: in none."""
        return domain_of_node(cluster, self.keys, row)


class Layout:
    """The nodes in the order of the topology, and the levels of the settings at which some node has a domain. Nodes of
    one domain follow each other; within the closest they are in the order of their names."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._seen: tuple[list[int], array[int], list[array[int]]] | None = None  # what the order follows from
        self._rows, self._levels = array("i"), list[PlacementLevel]()

    def read(self) -> tuple[array[int], list[PlacementLevel]]:
        """(their rows; the levels, the closest first). The caller changes neither."""
        places, settings = self._cluster.tables.places, self._cluster.settings.topology_levels
        named, active = self._cluster.rows.all(), places.active()
        columns = [places.numbered(number, named)[0] for number in active]
        if self._seen != (active, named, columns):
            order: Iterable[int] = range(len(named))
            for column in columns:  # by the largest level last, which so comes first
                order = sorted(order, key=column.__getitem__)
            self._rows = array("i", [named[i] for i in order])
            self._levels = [
                PlacementLevel(settings[number], (settings[number],), *places.numbered(number, self._rows))
                for number in active
            ]
            self._seen = active, named[:], columns
        return self._rows, self._levels

    def models(self) -> PlacementLevel:
        """The GPU models of the nodes as a level; a node without GPUs is in no domain."""
        rows, _ = self.read()
        places = self._cluster.tables.places
        return PlacementLevel("model", (), *places.numbered(places.levels, rows))

    def asked(self, name: str) -> PlacementLevel:
        """The level of that name: a node's domain is its value of the first of the name's labels that it has."""
        rows, levels = self.read()
        settings = self._cluster.settings.topology_levels
        keys = keys_of(name, settings)
        if NODE in keys:
            return nodes(len(rows))
        domain_by_key = {level.keys[0]: level.domain for level in levels if level.keys[0] in keys}
        for key in [key for key in keys if key not in settings]:
            domain_by_key[key] = self._labelled(key, rows)
        columns = [(key, domain_by_key[key]) for key in keys if key in domain_by_key]
        if len(columns) == 1:
            key, domain = columns[0]
            return PlacementLevel(name, (key,), domain, max(domain, default=-1) + 1)
        of_nodes = zip(*(domain for _, domain in columns), strict=True)
        firsts = [next(((k, n) for k, n in enumerate(numbers) if n >= 0), None) for numbers in of_nodes]
        return PlacementLevel(name, tuple([key for key, _ in columns]), *numbered(firsts or [None] * len(rows), None))

    def _labelled(self, key: str, rows: array[int]) -> array[int]:
        """The domains of a label that is no level of the settings."""
        names, records = self._cluster.names, self._cluster.nodes
        return numbered([records[names[row]].labels.get(key, "") for row in rows], "")[0]


def unread(cluster: ClusterView) -> Sliced[dict[str, int]]:
    """Node labels that look like levels and are read as none, and how many nodes have each; the most nodes first,
    MOST_UNREAD at most. Other work may run between its slices."""
    settings, counts = frozenset(cluster.settings.topology_levels), Counter[str]()
    for name, pause in pauses(list(cluster.nodes)):
        if pause:
            yield
        record = cluster.nodes.get(name)
        for key, value in record.labels.items() if record is not None else ():
            if looks_like_level(key) and key not in settings and value.lower() not in _FLAGS:
                counts[key] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_UNREAD])


@lru_cache(maxsize=4096)
def looks_like_level(key: str) -> bool:
    """Whether the label's own name ends as those that state where a node stands; not those that are read anyway."""
    words = [word.lower() for word in _WORD.findall(key.rpartition("/")[2])]
    while len(words) > 1 and words[-1] in _ENDINGS:
        words.pop()
    if key in _KNOWN or not words:
        return False
    return words[-1] in _PLACES or (words[-1] in ("domain", "partition") and not _NVLINK.isdisjoint(words))


def domain_of_node(cluster: ClusterView, keys: Sequence[str], row: int) -> tuple[str, str] | None:
    """(label, value) of the first of some labels that a node has; None: it has none of them."""
    record = cluster.nodes.get(cluster.names[row])
    values = ((key, "" if record is None else value_of(record, key)) for key in keys)
    return next(((key, value) for key, value in values if value), None)


def value_of(record: NodeRecord, key: str) -> str:
    """The value of a label, of NODE the name of the node; "" without one."""
    return record.name if key == NODE else record.labels.get(key, "")


def nodes(count: int) -> PlacementLevel:
    """The level of single nodes."""
    return PlacementLevel("node", (NODE,), array("i", range(count)), count)


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """What people call the label of each level: its short name, or its own name where several share a short name."""
    distinct = set(labels)
    names = {label: next((name for name, keys in SHORT.items() if label in keys), "") for label in distinct}
    shared = Counter(names.values())
    return {label: name if name and shared[name] == 1 else label.rpartition("/")[2] for label, name in names.items()}


def keys_of(name: str, settings: Sequence[str]) -> tuple[str, ...]:
    """The labels that a level's name stands for, the closest first: a label for itself."""
    if name not in SHORT:
        return (name,)
    named = [key for key in settings if key not in _KNOWN and key.rpartition("/")[2].endswith(name)]
    return (*named, *SHORT[name])


def numbered(values: Iterable[Hashable], none: Hashable) -> tuple[array[int], int]:
    """(numbers from 0 in the order in which values first occur, -1 for `none`; how many there are)."""
    seen: dict[Hashable, int] = {none: -1}
    return array("i", [seen.setdefault(value, len(seen) - 1) for value in values]), len(seen) - 1


def inside(inner: PlacementLevel, outer: PlacementLevel | None) -> PlacementLevel:
    """The domains of `inner`, each divided where it lies in several of `outer`; what is outside of those is in none."""
    if outer is None or inner is outer:
        return inner
    if inner.domains == len(inner.domain) and -1 not in inner.domain:  # each node is a domain of its own
        if -1 not in outer.domain:
            return inner
        numbers = count()
        domain = array("i", [next(numbers) if number >= 0 else -1 for number in outer.domain])
        return inner._replace(domain=domain, domains=next(numbers))
    pairs = zip(inner.domain, outer.domain, strict=True)
    domain, domains = numbered([None if -1 in pair else pair for pair in pairs], None)
    return inner._replace(domain=domain, domains=domains)
