"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there."""

from array import array

from ext_core.table import NodeTable, PodTable

class Gathered:
    """n candidates, m pods in all; within a node the most important pod first. Times in ms since 1970, spans in s.

    `start`: int32[n+1], candidate i has the pods start[i]:start[i+1]. `pods`: int32[m] pod rows. `masks`: uint32[m]
    GPUs surely held; `unsure`: int32[m] GPUs held elsewhere. `free`: uint32[n] GPUs not surely held now; `unknown`:
    int32[n] how many of them are held all the same. `short`: int64[R, n], below 0 where there is more than asked, 0
    where nothing is asked; `amounts`: int64[R, m] (one unused column where n or m is 0). `gang`, `budgets`, `ask`:
    int32[m], the ids that PodTable.mark wrote; `some_go`: whether any is terminating. `gpus`: of all GPU resources. The
    others: int64[m].
    """

    @property
    def start(self) -> array[int]: ...
    @property
    def pods(self) -> array[int]: ...
    @property
    def masks(self) -> array[int]: ...
    @property
    def unsure(self) -> array[int]: ...
    @property
    def free(self) -> array[int]: ...
    @property
    def unknown(self) -> array[int]: ...
    @property
    def priority(self) -> array[int]: ...
    @property
    def start_ms(self) -> array[int]: ...
    @property
    def saved_ms(self) -> array[int]: ...
    @property
    def restart_s(self) -> array[int]: ...
    @property
    def grace_s(self) -> array[int]: ...
    @property
    def gpus(self) -> array[int]: ...
    @property
    def going(self) -> array[int]: ...
    @property
    def gang(self) -> array[int]: ...
    @property
    def budgets(self) -> array[int]: ...
    @property
    def ask(self) -> array[int]: ...
    @property
    def some_go(self) -> bool: ...
    @property
    def short(self) -> memoryview: ...
    @property
    def amounts(self) -> memoryview: ...

def victims(
    nodes: NodeTable,
    pods: PodTable,
    rows: array[int],
    request: array[int],
    resource: int,
    priority: int,
    now_ms: int = 0,
    needed: bytes | bytearray = b"",
) -> Gathered:
    """Gather the pods of lower priority that may be evicted on each of `rows` (int32[n]).

    Neither those that are protected at `now_ms` and do not go already, nor those whose row is marked in `needed`.

    `request`: int64[R]; `resource`: index of the GPU resource whose positions count; `priority`: the preemptor's.
    ValueError: a wrong number of amounts, no such resource, tables of different width. IndexError: no such row.
    """

def by_name(nodes: NodeTable, rows: array[int], more: array[int]) -> array[int]:
    """int32: the rows of `rows`, and those of `more` that are not cordoned, each once, in the order of their nodes'
    names (`NodeTable.set_order`); -1 stands for no node. IndexError: no such row. ValueError: the order has no place
    for a row."""

def lost(
    gpus: array[int],
    start_ms: array[int],
    saved_ms: array[int],
    restart_s: array[int],
    going: array[int],
    now_ms: int,
) -> array[int]:
    """int64[m]: GPU-seconds that each pod's eviction loses; 0 for one that goes anyway. ValueError: lengths differ.

    `saved_ms`: the last checkpoint; 0 none is known; -i: it saves every i milliseconds after its start.
    """

def unless(column: array[int], marks: array[int], value: int) -> array[int]:
    """int64[m]: the column, with `value` where `marks` is not 0. ValueError: lengths differ."""

def distinct(ids: array[int], going: array[int]) -> list[int]:
    """The ids above 0 of the pods that do not go anyway, each once, ascending."""

def memberships(
    ids: array[int], going: array[int], groups: dict[int, tuple[int, ...]]
) -> tuple[array[int], array[int]]:
    """(starts int32[m + 1], members int32): pod i is in members[starts[i]:starts[i + 1]], which is `groups[ids[i]]`;
    nothing for id 0 and for a pod that goes anyway. KeyError: an id without an entry."""

def gangs(pods: PodTable, size: int, now_ms: int) -> tuple[array[int], array[int]]:
    """(members, work) by gang id, int64[size]: how many pods of it run and do not go, and the GPU-seconds that all of
    them would lose. ValueError: a pod has a gang id that is not below `size`."""

def some_free(nodes: NodeTable, resource: int) -> array[int]:
    """uint64, one bit a row: the nodes that are not cordoned and where some of the resource is free, claims taken.
    ValueError: no such resource."""

def room(nodes: NodeTable, request: array[int], allowed: array[int], free: array[int]) -> tuple[int, int]:
    """(how many nodes have room for `request`, 2 standing for more; the row of the only one, else -1). `request`:
    int64[R]; `allowed` (`Columns.select`) and `free` (`some_free` of a resource that is asked for): uint64, one bit a
    row, both have to be set. Claims are taken; links are not looked at. ValueError: a wrong number of amounts."""

def stranded(
    pods: PodTable, chosen: array[int], ask: array[int], going: array[int], rooms: dict[int, tuple[int, int]]
) -> array[int]:
    """int64[m]: 1 where a pod has room nowhere but on its own node; `rooms`: what `room` answers, by ask id. 0 for ask
    0, for an ask that is not in `rooms`, and for a pod that goes anyway."""

def graphs(nodes: NodeTable, rows: array[int]) -> tuple[array[int], list[tuple[int, int, int]]]:
    """(kind of each of `rows`, int32; kinds in the order in which they come). A kind is (shape, healthy mask, GPU
    resource index or -1). IndexError: no such row."""
