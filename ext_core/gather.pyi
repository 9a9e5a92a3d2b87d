"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there."""

from array import array

from typing_extensions import disjoint_base

from ext_core.ask import Ask
from ext_core.candidates import Candidates
from ext_core.table import NodeTable, PodTable

@disjoint_base
class Gathered(Candidates):
    """Candidates, and what the cost terms read of their m pods. Times in ms since 1970, spans in s.

    `masks`: GPUs surely held. `free`: GPUs not surely held now; `unknown`: how many of them are held all the same.
    `short`: below 0 where there is more than the request, 0 where nothing is requested.
    """

    def __new__(cls, start: array[int], resources: int) -> Gathered:
        """All columns are 0, and `table` is -1. ValueError: `start` does not begin with 0, or falls."""
    @property
    def pods(self) -> array[int]:
        """int32[m] pod rows."""
    @property
    def priority(self) -> array[int]:
        """int64[m]"""
    @property
    def start_ms(self) -> array[int]:
        """int64[m] when the pod started; far in the future while it has not."""
    @property
    def saved_ms(self) -> array[int]:
        """int64[m] the last checkpoint; 0 = none is known."""
    @property
    def restart_s(self) -> array[int]:
        """int64[m] what a restart costs."""
    @property
    def saves_s(self) -> array[int]:
        """int64[m] in which it saves its work before it ends, for this preemptor; -1 = it does not."""
    @property
    def ignores(self) -> array[int]:
        """int64[m] how likely it does not save all the same, in thousandths."""
    @property
    def grace_s(self) -> array[int]:
        """int64[m] terminationGracePeriodSeconds."""
    @property
    def gpus(self) -> array[int]:
        """int64[m] units of all GPU resources."""
    @property
    def terminating(self) -> array[int]:
        """int64[m] 1 = deletionTimestamp is set."""
    @property
    def gang(self) -> array[int]:
        """int32[m] id, as PodTable.mark wrote it; 0 = none."""
    @property
    def budgets(self) -> array[int]:
        """int32[m] id of the set of disruption budgets; 0 = none."""
    @property
    def ask(self) -> array[int]:
        """int32[m] id of what the pod requests and where it may run; 0 = unknown."""
    @property
    def some_terminating(self) -> bool:
        """Whether any of the pods is terminating."""
    @property
    def most_wait(self) -> int:
        """That of the request."""

def victims(
    nodes: NodeTable,
    pods: PodTable,
    ask: Ask,
    rows: array[int],
    now_ms: int = 0,
    needed: bytes | bytearray = b"",
) -> Gathered:
    """Gather the pods of lower priority that may be evicted on each of `rows` (int32[n]).

    Pods that are protected at `now_ms` are left out unless they are terminating; so are pods whose row is marked in
    `needed`. The positions of GPUs are those of `ask.resource`. Pods of equal priority and start are in the
    order of `PodTable.names`.
    ValueError: a wrong number of amounts, no GPUs requested, tables of different width. IndexError: no such row.
    """

def by_name(nodes: NodeTable, rows: array[int], more: array[int]) -> array[int]:
    """int32: the rows of `rows`, and those of `more` that are not cordoned, each once, in the order of their nodes'
    names (`NodeTable.set_order`); -1 stands for no node. IndexError: no such row. ValueError: the order has no place
    for a row."""

def lost(columns: tuple[array[int], ...], now_ms: int) -> array[int]:
    """int64[m]: GPU-seconds that each pod's eviction loses, as if none were terminating. ValueError: lengths differ.

    `columns`: GPUs, start, last checkpoint (0 = none is known), restart, `saves_s` (-1 = it does not save) and
    `ignores`, as in `Gathered`. GPUs x (now - last checkpoint, or start, + restart); of a pod that saves its work
    before it ends GPUs x (`saves_s` + restart) at most, and `ignores` thousandths of what that would save.
    """

def unless(column: array[int], marks: array[int], value: int) -> array[int]:
    """int64[m]: the column, with `value` where `marks` is not 0. ValueError: lengths differ."""

def lacking(of: Gathered, first: int, end: int) -> array[int]:
    """int64[n]: how much of the resources from index `first` to before `end` is short on each candidate, summed, beside
    what pods free that are terminating. ValueError: no such resources."""

def distinct(ids: array[int], terminating: array[int]) -> list[int]:
    """The ids above 0 of the pods that are not terminating, each once, ascending."""

def memberships(
    ids: array[int], terminating: array[int], groups: dict[int, tuple[int, ...]]
) -> tuple[array[int], array[int]]:
    """(starts int32[m + 1], members int32): pod i is in members[starts[i]:starts[i + 1]], which is `groups[ids[i]]`;
    nothing for id 0 and for a terminating pod. KeyError: an id without an entry."""

def gangs(pods: PodTable, size: int, now_ms: int, most_wait: int = 0) -> tuple[array[int], array[int]]:
    """(members, work) by gang id, int64[size]: how many pods of it run and are not terminating, and the GPU-seconds
    that all of them would lose to a preemptor that waits so many seconds at most (Ask.most_wait). ValueError: a pod
    has a gang id that is not below `size`."""

def some_free(nodes: NodeTable, resource: int) -> array[int]:
    """uint64, one bit a row: the nodes that are not cordoned and where some of the resource is free, claims taken.
    ValueError: no such resource."""

def room(nodes: NodeTable, request: array[int], allowed: array[int], free: array[int]) -> tuple[int, int]:
    """(how many nodes have room for `request`, 2 standing for more; the row of the only one, else -1). `request`:
    int64[R]; `allowed` (`Columns.select`) and `free` (`some_free` of a requested resource): uint64, one bit a
    row, both have to be set. Claims are taken; links do not count. ValueError: a wrong number of amounts."""

def stranded(
    pods: PodTable, chosen: array[int], ask: array[int], terminating: array[int], rooms: dict[int, tuple[int, int]]
) -> array[int]:
    """int64[m]: 1 where a pod has room nowhere but on its own node; `rooms`: what `room` answers, by ask id. 0 for ask
    0, for an ask that is not in `rooms`, and for a terminating pod."""

def graphs(nodes: NodeTable, rows: array[int]) -> tuple[array[int], list[tuple[int, int, int]]]:
    """(kind of each of `rows`, int32; kinds in the order in which they come). A kind is (shape, healthy mask, GPU
    resource index or -1). IndexError: no such row."""
