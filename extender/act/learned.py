"""What is learned and outlives us: the demand mix, and how pods answer requests to save. Each is one text in a
ConfigMap, written now and then and at the end.

It is learned and can be learned again: a mix that cannot be read is started anew, one that cannot be written is tried
again later, and neither stops a verb. Of several instances the last to write wins. A mix of a version to come is not
written over: that version may run again after a downgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

from extender.act.controller import Controller
from extender.act.document import MOST_BYTES, KeptDocument
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, VersionConflict
from extender.log import get_log
from extender.times import Backoff

KEY: Final = "document"
READ_SECONDS = 60.0  # the start waits no longer for it
BACKOFF: Final = Backoff(first=0.2, most=10.0)
LAST_SECONDS = 2.0  # the end of the process neither
TRIES: Final = 8  # of a write: at the end all that share the ConfigMap write at once, and each may come last
log = get_log()


class LearnedStore(Controller):
    """Reads the mix at the start, and writes it when it has changed."""

    name = "document"

    def __init__(
        self,
        configmap: ConfigMap,
        dump: Callable[[], str],
        load: Callable[[str], None],
        *,
        newer: Callable[[str], bool] = lambda text: False,
        key: str = KEY,
        every: float = 300.0,
    ) -> None:
        """`dump`: returns the text to store; `load`: takes what was stored, and raises on what it cannot use; `newer`:
        whether a text is of a version to come; `key`: of the text; `every`: seconds between two writes."""
        self._name = configmap.name
        self._document = KeptDocument([configmap], time.monotonic)
        self._dump, self._load, self._newer = dump, load, newer
        self._key, self._every = key, every
        self._chance = random.Random()
        self._written: str | None = None
        self._warned = False

    async def begin(self) -> None:
        """Read it, before anything is learned. While the API server is away nothing else could be read either."""
        text: str | None = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._read()
                text = self._document.text(self._key)
        except (ApiError, TimeoutError) as error:
            log.warning("what was learned cannot be read, and is learned anew", document=self._name, err=str(error))
        if text is None or self._stands(text):
            return
        try:
            self._load(text)
        except Exception as error:  # whatever a document of another version, or of another program, may lead to
            log.warning("what was learned is damaged, and is learned anew", document=self._name, err=repr(error))
        else:
            self._written = text
            log.info("what was learned is read", document=self._name)

    async def run(self) -> None:
        """Write it now and then, and at the end."""
        try:
            while True:
                await asyncio.sleep(self._every)
                await self.save()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.save()

    async def _read(self) -> None:
        """Read it. Raises ApiError for what repeating cannot cure."""
        failures = 0
        while True:
            try:
                await self._document.read()
                return
            except (ApiError, NoAnswer) as error:
                if isinstance(error, ApiError) and error.is_final:
                    raise
                failures += 1
                await asyncio.sleep(BACKOFF.delay(failures, self._chance))

    def _stands(self, text: str) -> bool:
        """Whether what is kept is left as it is."""
        if not self._newer(text):
            return False
        if not self._warned:
            self._warned = True
            log.warning(
                "what a newer version has learned is left as it is, and what is learned now is not kept: delete the "
                "ConfigMap if that version does not come back",
                document=self._name,
            )
        return True

    async def _take_over(self) -> None:
        """Take over what another instance has stored since; nothing where that cannot be read."""
        with contextlib.suppress(ApiError, NoAnswer, ValueError):
            await self._document.read()
            text = self._document.text(self._key)
            if text is not None and text != self._written and not self._stands(text):
                self._load(text)
                self._written = text

    async def save(self) -> None:
        """Write the document, if it is another one than before."""
        text = self._dump()
        if text == self._written:
            return
        try:
            if len(text.encode()) > MOST_BYTES:
                raise ApiError(413, f"it is longer than the {MOST_BYTES} bytes that are kept")
            for _ in range(TRIES):
                with contextlib.suppress(VersionConflict):
                    await self._document.read()
                    if self._stands(self._document.text(self._key) or ""):
                        return
                    await self._document.write({self._key: text})
                    self._written, self._warned = text, False
                    return
        except (ApiError, NoAnswer) as error:
            if not self._warned:
                self._warned = True
                log.warning("what was learned cannot be kept", document=self._name, err=str(error))
