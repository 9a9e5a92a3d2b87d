"""What a source of cluster state says: one object came, changed or is gone."""

from __future__ import annotations

from typing import Literal, NamedTuple

from extender.records import Record

Action = Literal["set", "delete"]


class Event(NamedTuple):
    """`record` of a "delete" is the object's last known state."""

    action: Action
    record: Record
