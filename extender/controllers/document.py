"""One small text that outlives us: in a ConfigMap of its own, written now and then and at the end.

For what is learned and can be learned again: a document that can not be read is started anew, one that can not be
written is tried again later, and neither stops a verb. Of several instances the last to write wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from extender.controllers.tenants import own_namespace
from extender.kube.backoff import Backoff
from extender.kube.client import ApiError, ApiServer, Unreachable
from extender.kube.configmaps import ConfigMap, Conflict
from extender.log import get_log

KEY: Final = "document"
MOST_BYTES: Final = 900_000  # a ConfigMap may have 1 MiB
READ_SECONDS = 60.0  # the start waits no longer for it
BACKOFF: Final = Backoff(first=0.2, most=10.0)
LAST_SECONDS = 2.0  # the end of the process neither
log = get_log()


class Document:
    """`dump` gives the text that is to be kept, `load` takes what was, and raises on what it can not use."""

    def __init__(
        self,
        name: str,
        dump: Callable[[], str],
        load: Callable[[str], None],
        *,
        namespace: str = "",
        every: float = 300.0,
        chance: random.Random | None = None,
    ) -> None:
        """`name`: of the ConfigMap; `namespace` as reservations.namespace in the settings; `every`: seconds."""
        self.name = name
        self._dump, self._load = dump, load
        self._namespace, self._every = namespace, every
        self._chance = chance or random.Random()
        self._written: str | None = None
        self._said = False

    def missing(self) -> str:
        return ""

    async def begin(self, server: ApiServer) -> None:
        """Read it, before anything is learned. While the API server is away nothing else could be read either."""
        kept = self._map(server)
        text: str | None = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                text = (await self._read(kept)).get(KEY)
        except (ApiError, TimeoutError) as error:
            log.warning("what was learned can not be read, and is learned anew", document=self.name, err=str(error))
        if text is None:
            return
        try:
            self._load(text)
        except Exception as error:  # whatever a document of another version, or of nobody, may lead to
            log.warning("what was learned is damaged, and is learned anew", document=self.name, err=repr(error))
        else:
            self._written = text
            log.info("what was learned is read", document=self.name)

    async def run(self, server: ApiServer) -> None:
        kept = self._map(server)
        try:
            while True:
                await asyncio.sleep(self._every)
                await self.save(kept)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.save(kept)

    def _map(self, server: ApiServer) -> ConfigMap:
        return ConfigMap(server, own_namespace(self._namespace), self.name)

    async def _read(self, kept: ConfigMap) -> dict[str, str]:
        """Its data. Raises ApiError for what repeating can not cure."""
        failures = 0
        while True:
            try:
                return (await kept.read()).data
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.status < 500 and error.status != 429:
                    raise
                failures += 1
                await asyncio.sleep(BACKOFF.delay(failures, self._chance))

    async def save(self, kept: ConfigMap) -> None:
        """Write the document, if it is another one than before."""
        text = self._dump()
        if text == self._written:
            return
        try:
            if len(text.encode()) > MOST_BYTES:
                raise ApiError(413, f"it is longer than the {MOST_BYTES} bytes that are kept")
            for _ in range(3):
                with contextlib.suppress(Conflict):
                    await kept.write({KEY: text}, (await kept.read()).version)
                    self._written, self._said = text, False
                    return
        except (ApiError, Unreachable) as error:
            if not self._said:
                self._said = True
                log.warning("what was learned can not be kept", document=self.name, err=str(error))
