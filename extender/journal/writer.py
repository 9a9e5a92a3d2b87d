"""The thread that writes a record: what is to be written waits in a queue that is bounded in bytes.

Nothing waits for it. Where it is behind, or the disk is full, the rest of the file is lost: a record with a hole could
not be answered again. It goes on with a new file, which begins with a snapshot.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from extender.journal import entries
from extender.journal.entries import Entry
from extender.journal.files import Folder, Header
from extender.log import get_log
from extender.metrics import Metrics
from extender.settings import Record as Limits

GATHER_SECONDS: Final = 0.25
"""Between two looks into the queue: to wake up for each call would cost more than its entry."""
FLUSH_SECONDS: Final = 1.0
"""What is written later is lost when the process is killed."""
BLOCK_BYTES: Final = 128 << 10
SLICE_SECONDS: Final = 0.0002
"""So long the thread keeps the interpreter's lock; the event loop waits for it then."""
RETRY_SECONDS: Final = 10.0
"""After an error of the disk."""
CLOSE_SECONDS: Final = 3.0
log = get_log()


class Item(NamedTuple):
    """Entries to write."""

    size: int
    """Bytes of memory, about."""
    make: Callable[[], Iterable[Entry]]
    """Its entries; called on the writer's thread."""
    header: Header | None = None
    """Of the file that begins with them; None: the file goes on."""


class Writer:
    """Writes to one directory. All methods are for the event loop."""

    def __init__(self, folder: Path, limits: Limits, metrics: Metrics) -> None:
        """BadInput where the directory cannot be written."""
        self._folder, self._limits, self._metrics = Folder(folder, limits), limits, metrics
        self._items: deque[Item] = deque()
        self._put = self._taken = 0  # bytes; each is written by one thread
        self._full = self._failed = False  # the file, the disk
        self._asked = False  # a file is to begin
        self._missed = 0  # items since the file ended
        self._retry_at = self._until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return self._put == self._taken

    def wants_file(self) -> bool:
        """Whether the next item should begin a file: the current one is full, or the disk may be writable again."""
        return not self._asked and (self._full or (self._failed and time.monotonic() >= self._retry_at))

    def has_room(self, size: int, *, begins: bool = False) -> bool:
        """Whether so much may wait beside what waits; what is too large for the limit may wait alone. `begins`: it
        begins a file, and what follows needs room too."""
        waiting = self._put - self._taken
        return not waiting or waiting + size <= self._limits.queue_bytes // (2 if begins else 1)

    def put(self, item: Item) -> bool:
        """Have it written; False where there is no room for it: it is lost."""
        if not self.has_room(item.size):
            return False
        self._put += item.size
        if item.header is not None:
            self._asked = True
        self._items.append(item)
        return True

    def close(self) -> None:
        """Write what waits, for CLOSE_SECONDS at most."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)

    # -- on the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pending = _Block()
        while True:
            closing = self._closing.wait(GATHER_SECONDS)
            while self._items:
                self._write(self._items.popleft(), pending)
            if pending.entries and (closing or time.monotonic() - pending.began >= FLUSH_SECONDS):
                self._flush(pending)
            if closing:
                self._folder.end()
                return

    def _write(self, item: Item, pending: _Block) -> None:
        try:
            if item.header is not None:
                self._flush(pending)
                self._begin(item.header)
            if not self._folder.is_open:
                self._missed += 1
                self._metrics.record_lost.labels("disk").inc()
                return
            for entry in item.make():
                pending.add(entries.encode(entry))
                if pending.size >= BLOCK_BYTES:
                    self._flush(pending)
                if time.monotonic() >= self._until:
                    time.sleep(0)
                    self._until = time.monotonic() + SLICE_SECONDS
            if item.header is not None:
                self._flush(pending)
                self._folder.begun()
                self._full = False  # by its snapshot alone no file is
        except OSError as error:
            self._lose("disk", error)
        except Exception as error:
            log.exception("defect", controller="record")
            self._lose("defect", error)
        finally:
            self._taken += item.size
            if item.header is not None:
                self._asked = False

    def _begin(self, header: Header) -> None:
        """Begin a file."""
        self._full = self._failed = False
        if self._missed:
            header = msgspec.structs.replace(header, lost=header.lost + self._missed, cause=header.cause or "disk")
        self._folder.begin(header)
        self._missed = 0

    def _flush(self, pending: _Block) -> None:
        """Write a block; nothing where there is no file."""
        text = pending.take()
        if not self._folder.is_open or not text:
            return
        try:
            self._metrics.record_bytes.inc(self._folder.block(text))
        except OSError as error:
            self._lose("disk", error)
            return
        self._full = self._full or self._folder.is_full

    def _lose(self, cause: str, error: Exception) -> None:
        """The file has a hole from here on: it ends."""
        self._metrics.record_lost.labels(cause).inc()
        log.error(
            "the record cannot be written: it goes on with a new file when that is possible",
            directory=str(self._folder.path), err=str(error), retry_seconds=RETRY_SECONDS,
        )  # fmt: skip
        self._folder.end()
        self._missed += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._failed = True


class _Block:
    """Encoded entries that become one block."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.size, self.began = 0, 0.0

    def add(self, text: bytes) -> None:
        """One more."""
        if not self.entries:
            self.began = time.monotonic()
        self.entries.append(text)
        self.size += len(text)

    def take(self) -> bytes:
        """The block, an array of MessagePack; b"" for none. None waits then."""
        if not self.entries:
            return b""
        text = b"".join((b"\xdd", len(self.entries).to_bytes(4, "big"), *self.entries))
        self.entries, self.size = [], 0
        return text
