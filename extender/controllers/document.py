"""One small JSON document that outlives us: in a ConfigMap of its own, written now and then and at the end.

For what is learned and can be learned again: a document that can not be read is started anew, one that can not be
written is tried again later, and neither stops a verb. Of several instances the last to write wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from extender.controllers.tenants import own_namespace
from extender.kube.client import ApiError, ApiServer, Unreachable
from extender.kube.configmaps import ConfigMap, Conflict
from extender.log import get_log

KEY: Final = "document"
MOST_BYTES: Final = 900_000  # a ConfigMap may have 1 MiB
READ_SECONDS = 5.0  # the start waits no longer for it
LAST_SECONDS = 2.0  # the end of the process neither
log = get_log()


class Document:
    """A Tenant of the live cluster. `dump` gives what is to be kept, `load` takes what was, and raises on what it can
    not use."""

    def __init__(
        self,
        name: str,
        dump: Callable[[], Any],
        load: Callable[[Any], None],
        *,
        namespace: str = "",
        every: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of the ConfigMap; `namespace` as reservations.namespace in the settings; `every`: seconds."""
        self.name = name
        self._dump, self._load = dump, load
        self._namespace, self._every, self._clock = namespace, every, clock
        self._written: bytes | None = None
        self._loaded = False
        self._said = False

    def missing(self) -> str:
        return "" if self._loaded else f"{self.name}: not read yet"

    async def run(self, server: ApiServer) -> None:
        kept = ConfigMap(server, own_namespace(self._namespace), self.name)
        if not self._loaded:
            await self._read(kept)
        try:
            while True:
                await asyncio.sleep(self._every)
                await self.save(kept)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.save(kept)

    async def _read(self, kept: ConfigMap) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                data = (await kept.read()).data
            if KEY in data:
                self._load(orjson.loads(data[KEY]))
                self._written = data[KEY].encode()
                log.info("what was learned is read", document=self.name)
        except (ApiError, Unreachable, TimeoutError) as error:
            log.warning("what was learned can not be read, and is learned anew", document=self.name, err=str(error))
        except Exception as error:  # whatever a document of another version, or of nobody, may lead to
            log.warning("what was learned is damaged, and is learned anew", document=self.name, err=repr(error))
        finally:
            self._loaded = True

    async def save(self, kept: ConfigMap) -> None:
        """Write the document, if it is another one than before."""
        text = orjson.dumps(self._dump(), option=orjson.OPT_SORT_KEYS)
        if text == self._written:
            return
        try:
            if len(text) > MOST_BYTES:
                raise ApiError(413, f"it has {len(text)} bytes, {MOST_BYTES} at most are kept")
            for _ in range(3):
                with contextlib.suppress(Conflict):
                    await kept.write({KEY: text.decode()}, (await kept.read()).version)
                    self._written, self._said = text, False
                    return
        except (ApiError, Unreachable) as error:
            if not self._said:
                self._said = True
                log.warning("what was learned can not be kept", document=self.name, err=str(error))
