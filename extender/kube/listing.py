"""A whole list, once, page by page: for commands that look and leave. What goes on watching is the reflector."""

from __future__ import annotations

from collections.abc import Sequence

from extender.kube.client import ApiError, ApiServer
from extender.kube.reflector import SOURCES, Source
from extender.objects import tolerant
from extender.objects.event import Event


async def list_all(
    server: ApiServer,
    gpus: frozenset[str],
    sources: Sequence[Source] = SOURCES,
    invalid: list[tolerant.Invalid] | None = None,
) -> list[Event]:
    """Every object of these sources as an event, each as far as it can be read; what is wrong with one goes to
    `invalid`. ApiError, Unreachable, RecordError (an answer that is no list)."""
    events: list[Event] = []
    wrong: list[tolerant.Invalid] = [] if invalid is None else invalid
    for source in sources:
        params = {"limit": str(source.limit)}
        if source.field_selector:
            params["fieldSelector"] = source.field_selector
        while True:
            try:
                page = tolerant.page(await server.get(source.path, params))
            except ApiError as error:
                if source.optional and error.status == 404:
                    break
                raise
            found = tolerant.all_of(source.kind, page.items, gpus, source.group, wrong)
            events += [Event(source.kind, "set", record) for record in found]
            if not page.continue_token:
                break
            params["continue"] = page.continue_token
    return events
