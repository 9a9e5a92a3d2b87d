from array import array
from collections.abc import Sequence

from typing_extensions import disjoint_base

from ext_core.ask import Ask
from ext_core.reasons import FailingCodes
from ext_core.rows import PlaceRow
from ext_core.table import NodeTable

@disjoint_base
class Places:
    levels: int
    height: int
    def __new__(cls, levels: int = 0) -> Places: ...
    def add(self, row: int) -> None: ...
    def clear(self, row: int) -> None: ...
    def set_health(self, row: int, doubt: float, failing: bool) -> None:
        """Write how badly GPU pods fared on the node. `doubt` >= 0; `failing`: the node is rejected for it."""
    def set_own(self, namespace: str, rows: Sequence[int], doubts: Sequence[float], failing: Sequence[int]) -> None:
        """Write what also counts for the pods of one namespace: rows in ascending order, a doubt >= 0 and 0 or 1 =
        failing for each. No rows: nothing."""
    def namespaces(self) -> list[str]:
        """The namespaces that have a list of their own, in the order of their names."""
    def set_split(self, row: int, split: bool) -> None: ...
    def set_domains(self, row: int, domains: tuple[int, ...]) -> None:
        """`domains`: L numbers from 1, 0 = in none."""
    def set_model(self, row: int, model: int) -> None:
        """The model of the node's GPUs: a number from 1, 0 = it has none. ValueError: it is negative."""
    def doubts(self, namespace: str) -> bool:
        """Whether any node is doubted for pods of the namespace; else `trusted` gives 1 everywhere."""
    def fails(self, namespace: str) -> bool:
        """Whether `failing` may reject a node for pods of the namespace."""
    def splits(self) -> bool:
        """Whether any node hands out parts of GPUs; else `whole` gives 1 everywhere."""
    def active(self) -> list[int]:
        """The levels at which some node has a domain, the closest first."""
    def models(self) -> int:
        """The largest number of a model so far; below 2 all nodes with GPUs are of one model."""
    def numbered(self, level: int, rows: array[int]) -> tuple[array[int], int]:
        """(int32: the domain of each row at a level, -1 = none; how many domains there are), numbered from 0 in the
        order in which `rows` come to them. Level L: the models. IndexError: no such level, a negative row."""
    def place(self, row: int) -> PlaceRow:
        """One row, for people and tests."""

def trusted(places: Places, ask: Ask, rows: array[int], out: array[float]) -> None:
    """1 / (1 + doubt), with the doubt that counts for pods of the request's namespace only."""

def whole(places: Places, rows: array[int], out: array[float]) -> None:
    """0 where GPUs are handed out in parts, else 1."""

def failing(places: Places, ask: Ask, rows: array[int], out: array[int], codes: FailingCodes) -> None:
    """Reject the nodes that are marked as failing, for every pod or for pods of the request's namespace."""

def split(places: Places, rows: array[int], out: array[int], code: int) -> None:
    """Reject the nodes whose GPUs are handed out in parts."""

def spread(places: Places, rows: array[int], siblings: array[int], out: array[float]) -> None:
    """How few siblings are near: on the node, then in the node's closest domain. `siblings`: the row of each."""

def together(places: Places, rows: array[int], kin: array[int], out: array[float]) -> None:
    """How close the node is to the group's other pods. `kin`: the row of each."""

def alike(places: Places, rows: array[int], kin: array[int], out: array[float]) -> None:
    """The share of the group's other pods that are on nodes of the row's model, 1 where none has a model. `kin`: the
    row of each."""

def best_fit(nodes: NodeTable, places: Places, ask: Ask, left: int, rows: array[int], out: array[float]) -> None:
    """Where a group should begin of which `left` pods like the request have no node yet. ValueError: a request without
    GPUs, a group of no pods."""

def holds(nodes: NodeTable, places: Places, ask: Ask, left: int, rows: array[int], out: array[float]) -> None:
    """Whether the nodes of the row's model have room for a group of which `left` pods like the request have no node
    yet. ValueError: a request without GPUs, a group of no pods."""
