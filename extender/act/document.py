"""Texts of ours that outlive this process: under keys, in one ConfigMap or spread over several (shards).

Theory of operation
-------------------
1. A write is a merge patch of the keys that change. It states the version of its ConfigMap that it changes, so the API
   server rejects it where another instance has written since (VersionConflict). Only then the map is read before the
   next write. A map that was deleted is made anew.
2. After a write without an answer the known version stays. If that write was carried out, the next one finds the
   conflict; if not, the next one replaces that version, and the late one is rejected.
3. A key stays in its shard. Keys that are new and are written together go to the shard with most room.
4. A text states its format, a number that rises only where a version before would read it wrongly. A text with a higher
   one than ours comes from a version to come, which may run again after a downgrade. It is left as it is (`newer`), for
   NEWER_SECONDS or until it is over by what every version knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from extender.act.controller import Controller
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.log import get_log
from extender.objects.stored_texts import Damaged, is_newer
from extender.times import Backoff

MOST_BYTES: Final = 900_000  # of one ConfigMap, which may have 1 MiB
NEWER_SECONDS: Final = 600.0  # by then a reservation has ended in every version, and seats are long used
Changes = Mapping[str, str | None]
"""Texts to write, by key; None: the key is to be removed."""


class _Shard:
    """One ConfigMap as far as we know it."""

    def __init__(self, configmap: ConfigMap) -> None:
        self.map = configmap
        self.data: dict[str, str] = {}
        self.version: str | None = None
        """None: it has to be read before it is written."""
        self.size = 0
        """Bytes of its keys and texts: tenants name gangs in any alphabet."""

    def note(self, stored: StoredTexts) -> None:
        """The map was read."""
        self.data, self.version = dict(stored.data), stored.version
        self.size = sum(_size(key, text) for key, text in stored.data.items())

    def growth(self, key: str, text: str | None) -> int:
        """By how many bytes it grows with this text under the key."""
        before = self.data.get(key)
        return _size(key, text) - _size(key, before)

    async def write(self, changes: Changes) -> None:
        """Write these keys. Raises VersionConflict, ApiError, NoAnswer."""
        if self.version is None:
            self.note(await self.map.read())
        try:
            self.version = await self.map.change(changes, self.version or "")
        except VersionConflict:
            self.version = None
            raise
        for key, text in changes.items():
            self.size += self.growth(key, text)
            if text is None:
                self.data.pop(key, None)
            else:
                self.data[key] = text


class KeptDocument:
    """The texts as they were last read or written. What reads or writes raises ApiError and NoAnswer; a write raises
    VersionConflict where another instance has written since."""

    def __init__(self, maps: Sequence[ConfigMap], clock: Callable[[], float], most: int | None = None) -> None:
        """`maps`: the shards; `clock`: seconds; `most`: keys in one shard, None: any number."""
        self._shards = [_Shard(configmap) for configmap in maps]
        self._clock = clock
        self._most = most
        self.newer: dict[str, float] = {}
        """Keys whose texts are of a version to come, and since when that is known, in seconds."""

    @property
    def is_known(self) -> bool:
        """Whether no shard has to be read before it is written."""
        return all(shard.version is not None for shard in self._shards)

    @property
    def version(self) -> int:
        """The newest version of the shards: the API server counts one number for all. 0: there is no map, or none is
        known."""
        return max(_number(shard.version) for shard in self._shards)

    def text(self, key: str) -> str | None:
        """The text of a key; None where there is none."""
        return next((shard.data[key] for shard in self._shards if key in shard.data), None)

    def items(self) -> Iterator[tuple[str, str]]:
        """Each key with its text, shard by shard in the order of keys."""
        for shard in self._shards:
            yield from sorted(shard.data.items())

    def stands(self, key: str) -> bool:
        """Whether the text of this key is left as it is, because a version to come wrote it."""
        since = self.newer.get(key)
        return since is not None and self._clock() - since < NEWER_SECONDS

    # -- reading

    async def fetch(self) -> list[StoredTexts]:
        """All shards as the API server has them, or none; `note` makes them the known ones."""
        answers = await asyncio.gather(*(shard.map.read() for shard in self._shards), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, StoredTexts)]

    def note(self, fetched: Sequence[StoredTexts]) -> None:
        """What `fetch` returned is what is known from now on."""
        for shard, stored in zip(self._shards, fetched, strict=True):
            shard.note(stored)

    async def read(self) -> None:
        """Fetch and note."""
        self.note(await self.fetch())

    # -- writing

    def changes(self, wanted: Mapping[str, str]) -> dict[str, str | None]:
        """What to write, so that the document has exactly what is wanted. Texts of a version to come stay."""
        known = dict(self.items())
        over = known.keys() - wanted.keys() - self.newer.keys()
        changed = {key: text for key, text in wanted.items() if key not in self.newer and known.get(key) != text}
        return dict.fromkeys(over) | changed

    def has_room(self, changes: Changes) -> bool:
        """Whether every shard stays within its limits."""
        for shard, part in self._placed(changes).items():
            if shard.size + sum(shard.growth(key, text) for key, text in part.items()) > MOST_BYTES:
                return False
            if self._most is not None and _entries(shard.data, part) > self._most:
                return False
        return True

    async def write(self, changes: Changes) -> None:
        """Write these keys, to each shard that has one of them in turn. No change at all is written to the first shard:
        it shows whether a write is possible."""
        for shard, part in (self._placed(changes) or {self._shards[0]: {}}).items():
            await shard.write(part)

    def _placed(self, changes: Changes) -> dict[_Shard, dict[str, str | None]]:
        """The changes by the shard that gets them."""
        placed: dict[_Shard, dict[str, str | None]] = {}
        sizes = {shard: shard.size for shard in self._shards}
        roomy = min(self._shards, key=sizes.__getitem__)
        for key, text in changes.items():
            holders = [shard for shard in self._shards if key in shard.data]
            if not holders and text is not None:
                if sizes[roomy] + _size(key, text) > MOST_BYTES:
                    roomy = min(self._shards, key=sizes.__getitem__)
                holders = [roomy]
            for at, shard in enumerate(holders):  # more than one only where other instances wrote them
                here = text if at == 0 else None
                sizes[shard] += shard.growth(key, here)
                placed.setdefault(shard, {})[key] = here
        return placed


def _number(version: str | None) -> int:
    """The version of a map as a number; 0 where the map does not exist, or is not known."""
    return int(version) if version and version.isdigit() else 0


def _size(key: str, text: str | None) -> int:
    """Bytes of a key and its text, as the API server counts them."""
    return 0 if text is None else len(key.encode()) + len(text.encode())


def _entries(data: Mapping[str, str], changes: Changes) -> int:
    """How many keys there are after the changes."""
    added = sum(text is not None and key not in data for key, text in changes.items())
    removed = sum(text is None and key in data for key, text in changes.items())
    return len(data) + added - removed


# -- one text: a small JSON object, whose times are seconds since 1970


Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
LONGEST_NAME: Final = 1024
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=2**40)]


class Entries:
    """Texts that state amounts, and times on our clock."""

    def __init__(self, resources: tuple[str, ...], epoch: Callable[[], float]) -> None:
        """`resources`: the names of the amounts, by index; `epoch`: seconds since 1970 at 0 of our clock."""
        self._resources, self._epoch = resources, epoch

    def _wall(self, at: float) -> float:
        return round(at + self._epoch(), 3)

    def _stated(self, amounts: Sequence[int]) -> dict[str, int]:
        return {name: amount for name, amount in zip(self._resources, amounts, strict=True) if amount}

    def _amounts(self, stated: Mapping[str, int]) -> tuple[int, ...]:
        if strange := sorted(stated.keys() - set(self._resources)):
            raise Damaged(f"amounts of {', '.join(strange)[:100]}, which the settings do not name")
        return tuple(stated.get(name, 0) for name in self._resources)


# -- what is learned and kept over a restart. Each store has one text in a ConfigMap, which is written now and then, and
# at the end of the process.
#
# It can be learned again: what cannot be read is learned anew, what cannot be written is written later, and neither
# stops a verb. Of several instances the last to write wins. A text of a newer version is not written over: that version
# may run again after a downgrade.


KEY: Final = "document"
READ_SECONDS = 60.0  # the start of the process waits no longer for a text
BACKOFF: Final = Backoff(first=0.2, most=10.0)
LAST_SECONDS = 2.0  # its end waits no longer
STORE_SECONDS: Final = 60.0  # between two writes of what changes often
TRIES: Final = 8  # of a write: at the end all that share the ConfigMap write at once, and each may come last
log = get_log()


class LearnedStore(Controller):
    """Reads a text at the start, and writes it when it has changed."""

    name = "document"

    def __init__(
        self,
        configmap: ConfigMap,
        dump: Callable[[], str],
        load: Callable[[str], None],
        known: int = 1,
        *,
        key: str = KEY,
        every: float = 300.0,
    ) -> None:
        """`dump`: returns the text to store; `load`: takes what was stored, and raises on what it cannot use; `known`:
        the format that this version writes; `key`: of the text; `every`: seconds between two writes."""
        self._name = configmap.name
        self._document = KeptDocument([configmap], time.monotonic)
        self._dump, self._load, self._known = dump, load, known
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
        if not is_newer(text, self._known):
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
