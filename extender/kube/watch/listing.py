"""All objects of some kinds, once: for commands that look and end. What goes on watching is the reflector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from extender.kube.client import ApiError, ApiServer
from extender.kube.watch.kinds import WATCHED_KINDS, WatchedKind
from extender.kube.watch.pages import pages
from extender.objects import tolerant
from extender.objects.event import Event


async def list_all(
    server: ApiServer,
    gpus: frozenset[str],
    kinds: Sequence[WatchedKind] = WATCHED_KINDS,
    invalid: list[tolerant.Invalid] | None = None,
) -> list[Event]:
    """Every object of these kinds as an event, each as far as it can be read; what is wrong with one goes to
    `invalid`. ApiError, Unreachable, RecordError (an answer that is no list)."""
    events: list[Event] = []
    wrong: list[tolerant.Invalid] = [] if invalid is None else invalid
    for watched in kinds:
        try:
            async with aclosing(pages(server, watched)) as read:
                async for page in read:
                    found = tolerant.all_of(watched.kind, page.items, gpus, watched.group, wrong)
                    events += [Event(watched.kind, "set", record) for record in found]
        except ApiError as error:
            if error.status == 403 and watched.renounced:
                wrong.append(tolerant.Invalid(watched.kind, "(all)", "they may not be listed (403): they are unknown"))
            elif not watched.optional or error.status != 404:
                raise
    return events
