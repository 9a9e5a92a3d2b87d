"""A list, page by page, each of bounded bytes: the one reader of the reflectors and of commands that look once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from extender.kube.client import ApiServer, TooLarge
from extender.kube.watch.kinds import WatchedKind
from extender.objects import records, tolerant

LARGEST_PAGE: Final = 2**24
"""Bytes; a page of more is asked for again with fewer objects. Tenants write objects of 1.4 MB."""


async def pages(server: ApiServer, watched: WatchedKind) -> AsyncGenerator[records.Page]:
    """Every page; close it (`contextlib.aclosing`). Only a page of one object may have more than LARGEST_PAGE bytes.

    While the caller works on a page the next one is on its way: the server and the caller work at the same time.
    Raises ApiError, Unreachable, RecordError (an answer that is no list)."""
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
