"""Lists, page by page, each of bounded bytes: the one reader of the reflectors and of commands that look once.

`list_all` reads the objects of some kinds once, for commands that look and end. Only the reflector keeps watching.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from extender.kube.client import ApiError, ApiServer, TooLarge
from extender.kube.kinds import WATCHED_KINDS, WatchedKind
from extender.objects import records, tolerant
from extender.objects.records import Event

LARGEST_PAGE: Final = 2**24
"""Bytes; a page of more is asked for again with fewer objects. Tenants write objects of 1.4 MB."""


async def pages(server: ApiServer, watched: WatchedKind) -> AsyncGenerator[records.Page]:
    """Every page; close it (`contextlib.aclosing`). Only a page of one object may have more than LARGEST_PAGE bytes.

    While the caller works on a page the server sends the next one: the server and the caller work at the same time.
    Raises ApiError, NoAnswer, RecordError (an answer that is no list)."""
    reader = _Reader(server, watched)
    body = await reader.page("")
    while True:
        page = tolerant.page(body)
        if not page.continue_token:
            yield page
            return
        coming = asyncio.create_task(reader.page(page.continue_token))
        try:
            yield page
            del page
            body = await coming
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming


class _Reader:
    """Reads one page after another, in as many objects as are below LARGEST_PAGE."""

    def __init__(self, server: ApiServer, watched: WatchedKind) -> None:
        self._server, self._watched, self._limit = server, watched, watched.limit

    async def page(self, token: str) -> bytes:
        """The body of the page at a continue token; "": the first."""
        watched = self._watched
        params = {"fieldSelector": watched.field_selector} if watched.field_selector else {}
        if token:
            params["continue"] = token
        while True:
            params["limit"] = str(self._limit)
            try:
                body = await self._server.get(watched.path, params, most=LARGEST_PAGE if self._limit > 1 else None)
            except TooLarge:
                self._limit = max(1, self._limit // 8)
                continue
            if len(body) < LARGEST_PAGE // 4:
                self._limit = min(2 * self._limit, watched.limit)
            return body


async def list_all(
    server: ApiServer,
    gpus: frozenset[str],
    kinds: Sequence[WatchedKind] = WATCHED_KINDS,
    invalid: list[tolerant.Invalid] | None = None,
) -> list[Event]:
    """Every object of these kinds as an event, each as far as it can be read; what is wrong with one goes to
    `invalid`. ApiError, NoAnswer, RecordError (an answer that is no list)."""
    events: list[Event] = []
    wrong: list[tolerant.Invalid] = [] if invalid is None else invalid
    for watched in kinds:
        try:
            async with aclosing(pages(server, watched)) as read:
                async for page in read:
                    objects = tolerant.all_of(watched.kind, page.items, gpus, watched.group, wrong)
                    events += [Event(watched.kind, "set", record) for record in objects]
        except ApiError as error:
            if error.status == 403 and watched.renounced:
                wrong.append(tolerant.Invalid(watched.kind, "(all)", "they may not be listed (403): they are unknown"))
            elif not watched.optional or error.status != 404:
                raise
    return events
