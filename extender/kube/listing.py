"""A whole list, once, page by page: for commands that look and leave. What goes on watching is the reflector."""

from __future__ import annotations

from collections.abc import Sequence

from extender import records
from extender.events import Event
from extender.kube.client import ApiError, ApiServer
from extender.kube.reflector import SOURCES, Source


async def list_all(server: ApiServer, gpus: frozenset[str], sources: Sequence[Source] = SOURCES) -> list[Event]:
    """Every object of these sources as an event. ApiError, Unreachable, RecordError."""
    events: list[Event] = []
    for source in sources:
        params = {"limit": str(source.limit)}
        if source.field_selector:
            params["fieldSelector"] = source.field_selector
        while True:
            try:
                page = records.page(await server.get(source.path, params))
            except ApiError as error:
                if source.optional and error.status == 404:
                    break
                raise
            events += [Event(source.kind, "set", records.record(source.kind, raw, gpus)) for raw in page.items]
            if not page.continue_token:
                break
            params["continue"] = page.continue_token
    return events
