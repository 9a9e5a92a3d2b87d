"""What a source of cluster state says: one object came, changed or is gone."""

from __future__ import annotations

from typing import Literal, NamedTuple

from extender.objects.records import Kind, Record


class Event(NamedTuple):
    """``set``: the object is new or changed. ``delete``: it is gone; the record is the last that is known of it."""

    kind: Kind
    change: Literal["set", "delete"]
    record: Record
