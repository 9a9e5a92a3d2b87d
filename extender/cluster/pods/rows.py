"""The rows that bound pods have in the tables."""

from __future__ import annotations

from typing import Final

from ext_core.table import PodTable
from extender.objects.records import PodRecord

FREE: Final = ("", "")


class PodRows:
    """One row a bound pod, once its node is written; a deleted pod's row is used again. `uids`: by row, "" free;
    `names`: by row (namespace, name), ("", "") free."""

    def __init__(self, table: PodTable) -> None:
        self.uids: list[str] = []
        self.names: list[tuple[str, str]] = []
        table.names = self.names
        self._table = table
        self._rows: dict[str, int] = {}
        self._free: list[int] = []

    def __getitem__(self, uid: str) -> int:
        """The row of a pod that has one. KeyError: it has none."""
        return self._rows[uid]

    def get(self, uid: str) -> int | None:
        """The pod's row, None where it has none."""
        return self._rows.get(uid)

    def take(self, pod: PodRecord) -> int:
        """The pod's row; a free one where it had none."""
        uid = pod.uid
        row = self._rows.get(uid)
        if row is None:
            if self._free:
                row = self._free.pop()
            else:
                row = len(self.uids)
                self.uids.append("")
                self.names.append(FREE)
            self._rows[uid] = row
            self.uids[row], self.names[row] = uid, (pod.namespace, pod.name)
        return row

    def free(self, uid: str) -> None:
        """The pod needs no row any more."""
        row = self._rows.pop(uid, None)
        if row is not None:
            self._table.drop(row)
            self.uids[row], self.names[row] = "", FREE
            self._free.append(row)
