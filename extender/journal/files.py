"""The files of a record, by number, each a header and blocks. A file stands for itself: it begins with a snapshot.

    DIR/000042.record:   magic · header · block · block · ...
    header, block:       length (4 bytes) · CRC-32 of the bytes (4 bytes) · the bytes, compressed by zlib

A block that is cut off, as a killed server leaves it, ends its file: what was written before counts.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

from extender.errors import BadInput
from extender.journal import entries
from extender.journal.entries import Entry
from extender.log import get_log
from extender.metrics import Metrics
from extender.settings import Record as Limits

MAGIC: Final = b"gpu-extender record 1\n"
SUFFIX: Final = ".record"
LEVEL: Final = 1
"""Of zlib: the texts of a record repeat, so that more costs time and saves little."""
MOST_BLOCK: Final = 256 << 20
"""Bytes that a block may have, also when it is no longer compressed."""
_HEAD: Final = struct.Struct("<II")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is a record of."""

    version: str
    form: str
    """Names the fields of the entries."""
    policy_hash: str
    settings: dict[str, Any]
    run: str
    """Of the process that wrote it."""
    number: int
    """Of the file in its run, from 0."""
    began: float
    """Seconds since 1970."""
    live: bool
    """Whether the cluster is an API server's."""
    lost: int = 0
    """How many entries were lost just before."""
    cause: str = ""
    """Why they were lost."""


class BadRecord(BadInput):
    """A directory or a file that is no record, or one that this version cannot read."""

    code = "bad-record"


class Torn(BadRecord):
    """A file in which nothing is but a part of its header: the process was killed, or the disk was full."""


def files(folder: Path) -> list[Path]:
    """The files of a record, in their order."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit())


class Output:
    """One file that is being written. OSError, as the system states it; then nothing more may be written."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.size = path, 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # pods' names, labels
        self._file: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        try:
            self._write(MAGIC)
            self.block(msgspec.json.encode(header))
        except OSError:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def block(self, text: bytes) -> None:
        """Write a block."""
        packed = zlib.compress(text, LEVEL)
        self._write(_HEAD.pack(len(packed), zlib.crc32(packed)) + packed)

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def _write(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(text)


class Folder:
    """The directory of a record: the file that is being written, and the older ones, of which the oldest are deleted.
    Methods raise OSError, as the system states it."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """BadInput where it cannot be written."""
        self.path, self._limits = path, limits
        self._output: Output | None = None
        self._older: list[tuple[Path, int]] = []  # the other files, with their bytes
        self._snapshot_size = 0  # of the current file
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise BadInput(f"it cannot be written: {error.strerror}", path=str(path)) from error
        self._next = 1 + max((int(known.stem) for known in files(path)), default=0)

    @property
    def is_open(self) -> bool:
        """Whether a file is being written."""
        return self._output is not None

    @property
    def is_full(self) -> bool:
        """Whether the file has its size."""
        size = self._output.size if self._output is not None else 0
        return size >= max(self._limits.file_bytes, 3 * self._snapshot_size)

    def begin(self, header: Header) -> None:
        """Begin a file."""
        self.end()
        self._snapshot_size = 0
        self._older = [(path, path.stat().st_size) for path in files(self.path)]
        self._delete(self._limits.max_bytes - self._limits.file_bytes)
        self._output = Output(self.path / f"{self._next:06}{SUFFIX}", header)
        self._next += 1

    def begun(self) -> None:
        """The snapshot is written."""
        self._snapshot_size = self._output.size if self._output is not None else 0

    def block(self, text: bytes) -> int:
        """Write a block to the file; its bytes on the disk."""
        assert self._output is not None
        before = self._output.size
        self._output.block(text)
        self._delete(self._limits.max_bytes - self._output.size)
        return self._output.size - before

    def end(self) -> None:
        """Nothing more is written to the file."""
        if self._output is not None:
            self._output.close()
        self._output = None

    def _delete(self, room: int) -> None:
        """Delete the oldest files until the others, without the current one, have no more bytes than this."""
        while self._older and sum(size for _, size in self._older) > room:
            path, _ = self._older.pop(0)
            path.unlink(missing_ok=True)


class Input:
    """One file that is read. `torn`: why it ends before its end, "" where it does not; known once all is read."""

    def __init__(self, path: Path) -> None:
        """BadRecord where it is no record, Torn where it was cut off before anything was in it, OSError where it
        cannot be read."""
        self.path, self.torn = path, ""
        self._file = path.open("rb")
        try:
            self.header = self._header()
        except BadRecord:
            self._file.close()
            raise

    def _header(self) -> Header:
        path = str(self.path)
        begin = self._file.read(len(MAGIC))
        if begin != MAGIC:
            if MAGIC.startswith(begin):
                raise Torn("it is cut off before its header", path=path)
            raise BadRecord("this is no record of gpu-extender, or one of another format", path=path)
        head = self._block()
        if head is None:
            raise Torn("it is cut off in its header", path=path)
        try:
            return msgspec.json.decode(head, type=Header)
        except msgspec.MsgspecError as error:
            raise BadRecord(f"its header cannot be read: {error}", path=path) from error

    def blocks(self) -> Iterator[bytes]:
        """All blocks that are whole."""
        while (block := self._block()) is not None:
            yield block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        self._file.close()

    def _block(self) -> bytes | None:
        head = self._file.read(_HEAD.size)
        if not head:
            return None
        if len(head) < _HEAD.size:
            return self._tears("its last block is cut off")
        size, check = _HEAD.unpack(head)
        packed = self._file.read(size) if size <= MOST_BLOCK else b""
        if len(packed) < size:
            return self._tears("its last block is cut off")
        if zlib.crc32(packed) != check:
            return self._tears("a block is damaged")
        unpacked = zlib.decompressobj()
        try:
            text = unpacked.decompress(packed, MOST_BLOCK)
        except zlib.error:
            return self._tears("a block is damaged")
        return text if unpacked.eof else self._tears("a block is damaged")

    def _tears(self, why: str) -> bytes | None:
        self.torn = f"{why}, at byte {self._file.tell()}"
        return None


# -- the thread that writes a record: what is to be written waits in a queue that is bounded in bytes.
#
# Nothing waits for it. Where it is behind, or the disk is full, the rest of the file is lost: a record with a hole
# could not be answered again. It goes on with a new file, which begins with a snapshot.


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
