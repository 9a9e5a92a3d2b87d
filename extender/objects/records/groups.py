"""Objects that state how many pods of a group must run; `extender.objects.gangs` reads them."""

from __future__ import annotations

import msgspec

from extender.objects.records.parts import Owner


class GroupRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An object of gangs.GROUP_KINDS.

    ``minimum``: how many of its pods must run, None when it does not state it (0: none must; below 0, or above
    gangs.MOST: what it states is invalid or unreadable). ``parts``: the same by the name of a part, where it has named
    parts. ``owner``: its controller, where that is one of GROUP_KINDS too (a JobSet owns Jobs).
    """

    uid: str
    api: str
    kind: str
    namespace: str
    name: str
    resource_version: str
    minimum: int | None
    parts: tuple[tuple[str, int | None], ...]
    owner: Owner | None = None
