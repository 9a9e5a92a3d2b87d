"""Loads the settings file again when it changes: weights, cost terms and quotas count at once, the rest at a restart.

A file that is wrong changes nothing. It is read in a thread: to parse the largest file takes seconds, in which no
verb waits.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from extender.act.controller import Controller
from extender.decide.verbs import Verbs
from extender.errors import BadSettings
from extender.log import get_log
from extender.metrics import Metrics
from extender.policy.policy import known
from extender.settings import Settings
from extender.settings.reading import SIZE_LIMIT, decode_settings

LOOK_SECONDS: Final = 4.0
SETTLE_SECONDS: Final = 0.5
"""A file that changes within it is being written: half of one is often valid, and an empty one is all defaults."""
RELOADED: Final = ("scorers", "costs", "packing_weights")
"""Fields that count at once; of `queue` the field `queues` does."""
OF_THE_COMMAND: Final = "server"
"""--host and --port change it: what the file states is not compared."""
log = get_log()


class SettingsFile(Controller):
    """Watches one file."""

    name = "settings"

    def __init__(self, file: Path, verbs: Verbs, metrics: Metrics) -> None:
        self._file, self._verbs, self._metrics = file, verbs, metrics
        self._seen: bytes | None = None  # what the server was started with may have changed meanwhile

    async def run(self) -> None:
        """Look until cancelled. By content: a ConfigMap's file is a link that is replaced."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Load the file if it has changed."""
        content = _content(self._file)
        if content is None or content == self._seen:
            return
        await asyncio.sleep(SETTLE_SECONDS)
        if _content(self._file) != content:
            return
        first, self._seen = self._seen is None, content
        try:
            read = await asyncio.to_thread(decode_settings, content, known(), str(self._file))
        except BadSettings as error:
            self._metrics.settings_reloads.labels("invalid").inc()
            self._metrics.degraded.note("settings", f"the file is invalid, so the settings before it count: {error}")
            log.error("the settings file is invalid: the settings stay as they are", err=str(error))
            return
        self._take(read, first=first)

    def _take(self, read: Settings, *, first: bool) -> None:
        before = self._verbs.cluster.settings
        changed = {name: getattr(read, name) for name in RELOADED}
        changed["queue"] = before.queue.model_copy(update={"queues": read.queue.queues})
        settings = before.model_copy(update=changed)
        if not settings.ceilings_have_their_term:  # the ceilings stay until the next start, and so does their term
            settings = settings.model_copy(update={"costs": before.costs})
        later = _differing(settings, read)
        restart = f"these fields of the file count from the next start on: {', '.join(later)}"
        self._metrics.degraded.note("settings", restart if later else "")
        if first and settings == before and not later:
            return
        self._metrics.settings_reloads.labels("partly" if later else "loaded").inc()
        if settings.hash != before.hash:
            self._verbs.take(settings)
            self._metrics.state(settings.hash)
        log.info("the settings file is loaded", settings=settings.hash, policy=settings.policy_hash)
        if later:
            log.warning("these settings count from the next start on", fields=later)


def _content(file: Path) -> bytes | None:
    """None where there is no such file, and of a pipe: it is read once, and to open it again may wait without end."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            return stream.read(SIZE_LIMIT + 1)
    except OSError:
        return None


def _differing(ours: Settings, read: Settings) -> list[str]:
    """The fields of the first two levels that differ."""
    a, b = (settings.model_dump(mode="json", by_alias=True, exclude={OF_THE_COMMAND}) for settings in (ours, read))
    return [path for name in a for path in _paths(name, a[name], b[name])]


def _paths(name: str, ours: Any, read: Any) -> list[str]:
    if ours == read:
        return []
    if not isinstance(ours, dict) or not isinstance(read, dict):
        return [name]
    return [f"{name}.{key}" for key in sorted({*ours, *read}) if ours.get(key) != read.get(key)]
