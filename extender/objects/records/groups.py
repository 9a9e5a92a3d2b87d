"""Objects that state how many pods of a group must run; `extender.objects.gangs` reads them."""

from __future__ import annotations

import msgspec

from extender.objects.records.parts import Owner
from extender.objects.records.pods import PodRecord


class LatePods(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Pods of one template that an object creates only once others of its pods run. ``template``: what each states, its
    index left out; ``creator``: the name of the object that creates them, with which their names begin; ``label``: the
    label that has the index of each, "" where they have none; ``first``, ``end``: the indices."""

    template: PodRecord
    creator: str
    label: str
    first: int
    end: int


class GroupRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An object of gangs.GROUP_KINDS.

    ``minimum``: how many of its pods must run, None when it does not state it (0: none must; below 0, or above
    gangs.MOST: what it states is invalid or unreadable). ``parts``: the same by the name of a part, where it has named
    parts. ``owner``: its controller, where that is one of GROUP_KINDS too (a JobSet owns Jobs). ``size``: how many pods
    it runs at once in all, None when it does not state it; ``late``: how many of these it creates only once the others
    run; ``late_pods``: these pods; ``unread``: why their templates cannot be read, "" where they can. ``ends_at``: when
    its deadline ends all of its pods, seconds since the epoch; it runs while pods are gated. ``before``: the roles
    whose pods complete before it creates the others: these are not of the gang. ``jobs``: for each replicated Job of a
    JobSet (prefix of the names of its Jobs, how many Jobs, pods of each); ``succeeded``: how many of the pods that it
    states have succeeded, and never come again.
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
    size: int | None = None
    late: int = 0
    late_pods: tuple[LatePods, ...] = ()
    unread: str = ""
    ends_at: float | None = None
    before: tuple[str, ...] = ()
    jobs: tuple[tuple[str, int, int], ...] = ()
    succeeded: int = 0
