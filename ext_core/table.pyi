"""Packed tables: one column per fact, one row per node or pod."""

class NodeTable:
    resources: int
    height: int
    def __init__(self, resources: int) -> None: ...
    def add(self, row: int) -> None: ...
    def clear(self, row: int) -> None: ...
    def set_node(
        self,
        row: int,
        alloc: tuple[int, ...],
        gpu: int,
        shape: int,
        healthy: int,
        flags: int,
        units: int = 1,
        model: int = 0,
    ) -> None:
        """What the Node object says. `units`: of the GPU resource, per GPU; `model`: kind of machine, 0..63."""
    def set_held(
        self,
        row: int,
        used: tuple[int, ...],
        sure: int,
        likely: int,
        unknown: int,
        pending: int,
        parts: tuple[int, ...] = (),
    ) -> None:
        """What its pods hold. `parts`: units of each GPU taken by pods that take less than the whole of it."""
    def set_order(self, rows: list[int]) -> None: ...
    def add_claim(self, row: int, amounts: tuple[int, ...], wanted: int, tentative: bool) -> None: ...
    def drop_claims(self) -> None: ...
    def version_of(self, row: int) -> int:
        """A number that rises with every change of the row, and that no other row and no earlier state had."""
    def node(self, row: int) -> dict[str, int | tuple[int, ...]]: ...

class PodTable:
    resources: int
    height: int
    now: int
    """The time at which `until` is judged, milliseconds since 1970; 0 at first."""

    def __init__(self, resources: int) -> None: ...
    def put(
        self,
        pod: int,
        node: int,
        priority: int,
        amounts: tuple[int, ...],
        mask: int,
        unsure: int,
        flags: int,
        start: int = 0,
        saved: int = 0,
        restart: int = 0,
        grace: int = 0,
        until: int = 0,
    ) -> None: ...
    def mark(self, pod: int, gang: int, budgets: int, ask: int = 0) -> None: ...
    def drop(self, pod: int) -> None: ...
    def on(self, node: int) -> list[int]: ...
