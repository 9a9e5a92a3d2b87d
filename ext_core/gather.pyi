"""Gather, for each candidate node, the pods that may be victims and what the preemptor lacks there."""

from array import array

from ext_core.table import NodeTable, PodTable

class Gathered:
    """n candidates, m pods in all; within a node the most important pod first. Times in ms since 1970, spans in s.

    `start`: int32[n+1], candidate i has the pods start[i]:start[i+1]. `pods`: int32[m] pod rows. `masks`: uint32[m]
    GPUs surely held; `unsure`: int32[m] GPUs held elsewhere. `free`: uint32[n] GPUs not surely held now; `unknown`:
    int32[n] how many of them are held all the same. `short`: int64[R, n], below 0 where there is more than asked, 0
    where nothing is asked; `amounts`: int64[R, m] (one unused column where n or m is 0). The others: int64[m].
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
    def short(self) -> memoryview: ...
    @property
    def amounts(self) -> memoryview: ...

def victims(
    nodes: NodeTable, pods: PodTable, rows: array[int], request: array[int], resource: int, priority: int
) -> Gathered:
    """Gather the pods of lower priority that may be evicted on each of `rows` (int32[n]).

    `request`: int64[R]; `resource`: index of the GPU resource whose positions count; `priority`: the preemptor's.
    ValueError: a wrong number of amounts, no such resource, tables of different width. IndexError: no such row.
    """
