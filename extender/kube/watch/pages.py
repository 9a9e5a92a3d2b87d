"""A list, page by page, each of bounded bytes: the one reader of the reflectors and of commands that look once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from extender.kube.client import ApiServer, TooLarge
from extender.kube.watch.kinds import WatchedKind
from extender.objects import records, tolerant

LARGEST_PAGE: Final = 2**24
"""Bytes; a page of more is asked for again with fewer objects. Tenants write objects of 1.4 MB."""


async def pages(server: ApiServer, watched: WatchedKind) -> AsyncIterator[records.Page]:
    """Every page. Only a page of one object may have more than LARGEST_PAGE bytes.

    Raises ApiError, Unreachable, RecordError (an answer that is no list)."""
    limit = watched.limit
    params: dict[str, str] = {}
    if watched.field_selector:
        params["fieldSelector"] = watched.field_selector
    while True:
        params["limit"] = str(limit)
        try:
            body = await server.get(watched.path, params, most=LARGEST_PAGE if limit > 1 else None)
        except TooLarge:
            limit = max(1, limit // 8)
            continue
        if len(body) < LARGEST_PAGE // 4:
            limit = min(2 * limit, watched.limit)
        page = tolerant.page(body)
        yield page
        if not page.continue_token:
            return
        params["continue"] = page.continue_token
