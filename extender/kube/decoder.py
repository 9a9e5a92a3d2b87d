"""From the bytes of lists and watches to records. An object that cannot be read in full affects only itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ext_core import prune
from extender.kube.kinds import WatchedKind
from extender.kube.watching import State
from extender.log import Allowance, get_log
from extender.objects import decode, records, tolerant
from extender.objects.records import Identity, Record, RecordError

MOST_REJECTED: Final = 100  # kept by name
SENSELESS_SECONDS: Final = 300.0  # events without an object that can be named lead to one list in this time
log = get_log()


class Relist(Exception):
    """The watch cannot go on from where it is, or a list made no sense."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired
        """The version is too old: nothing is wrong."""


class _Line(msgspec.Struct):
    """One event of a watch."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int | None = None
    message: str | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


class Decoder:
    """The objects of one kind. What it rejects is noted in `state`."""

    def __init__(
        self, watched: WatchedKind, gpus: frozenset[str], state: State, allowance: Allowance, clock: Callable[[], float]
    ) -> None:
        """`gpus`: the GPU resources that records have; `allowance`: of log lines; `clock`: seconds."""
        self._watched, self._gpus, self._state = watched, gpus, state
        self._allowance, self._clock = allowance, clock
        self._senseless_at: float | None = None

    def record(self, raw: msgspec.Raw) -> Record | Identity:
        """The record, as far as the object can be read; its identity alone where nothing of it counts."""
        try:
            record = decode.record(self._watched.kind, raw, self._gpus, self._watched.group)
        except Exception as error:  # RecordError, and whatever else the bytes of a hostile object may lead to
            return self._rejected(raw, str(error) or repr(error))
        self._readable(record)
        return record

    def line(self, line: bytes) -> tuple[str, Record | Identity] | None:
        """What an event of a watch states: ADDED, MODIFIED or DELETED and the object, or BOOKMARK and an identity that
        has its version. None for a line that makes no sense. Raises Relist, once in a while, for those, and for an
        ERROR."""
        change = decode.change(self._watched.kind, line, self._gpus)
        if change is None:  # not the usual case: an event about an object that can be read in full
            return self._apart(line) if line.strip() else None
        self._readable(change.record)
        return change

    def _apart(self, line: bytes) -> tuple[str, Record | Identity] | None:
        """As `line`: the object is taken out of the event, and read for itself."""
        try:
            event = _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            by_brackets = _by_brackets(line)
            if by_brackets is None:
                self._senseless(f"a watch line that makes no sense: {str(error)[:200]}")
                return None
            event = by_brackets
        if event.type == "ERROR":
            raise _error_of(event.object)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            identified = self.record(event.object)
            if not isinstance(identified, Identity) or identified.name:
                return event.type, identified
            self._senseless("an event of an object that has no name")
        elif event.type == "BOOKMARK":
            try:
                return event.type, records.identity(event.object)
            except RecordError as error:
                self._senseless(f"a bookmark that makes no sense: {str(error)[:200]}")
        else:
            self._senseless(f"an event of the unknown type {event.type[:40]!r}")
        return None

    def _senseless(self, message: str) -> None:
        """An event has no object that can be named: a new list shows what exists, once in SENSELESS_SECONDS."""
        now = self._clock()
        self._state.counters.reasons["unknown-event"] += 1
        if self._senseless_at is None or now - self._senseless_at >= SENSELESS_SECONDS:
            self._senseless_at = now
            raise Relist(message)

    def _readable(self, record: Record) -> None:
        if self._state.rejected:
            self._state.rejected.pop(f"{getattr(record, 'namespace', '')}/{record.name}", None)

    def _rejected(self, raw: msgspec.Raw, why: str) -> Record | Identity:
        reading = tolerant.read(self._watched.kind, raw, self._gpus, why, self._watched.group or ("", ""))
        which, state = reading.identity, self._state
        state.counters.reasons[reading.reason] += 1
        key = f"{which.namespace}/{which.name}"
        known = state.rejected.get(key)
        if known is not None or len(state.rejected) < MOST_REJECTED:
            state.rejected[key] = reading.message
        if known != reading.message:  # logged once, not for each version of it
            left_out = self._allowance.take(self._clock())
            if left_out is not None:
                log.warning(
                    "an object cannot be read in full",
                    kind=self._watched.name,
                    object=tolerant.name_of(which),
                    reason=reading.reason,
                    err=reading.message,
                    left_out=left_out or None,
                )
        return which if reading.record is None else reading.record


def _error_of(raw: msgspec.Raw) -> Relist:
    """What an ERROR event means."""
    try:
        status = msgspec.json.decode(raw, type=_Status)
    except (msgspec.MsgspecError, RecursionError):
        status = _Status(message="an error that makes no sense")
    return Relist(f"{status.code}: {status.message}", expired=status.code == 410)


def _by_brackets(line: bytes) -> _Line | None:
    """An event that is nested too deep for the decoder, by its brackets; None where it is none."""
    try:
        members = prune.members(line)
    except ValueError:
        return None
    kind, body = (line[slice(*members[key])] if key in members else b"" for key in (b"type", b"object"))
    if not body or kind[:1] != b'"' or len(kind) > 100:
        return None
    return _Line(kind[1:-1].decode(errors="replace"), msgspec.Raw(body))


# -- the lines of one watch


LONGEST_LINE: Final = 2**25  # bytes; etcd takes objects of 1.5 MiB


class Lines:
    """Bytes in, whole lines out. `last`: when the last bytes came, seconds."""

    def __init__(self) -> None:
        self.last = 0.0
        self._rest = b""

    def whole(self, chunk: bytes, now: float) -> list[bytes]:
        """The lines that `chunk` ends, without their ends. Relist: one that is too long."""
        self.last = now
        *lines, self._rest = (self._rest + chunk).split(b"\n") if b"\n" in chunk else (self._rest + chunk,)
        if len(self._rest) > LONGEST_LINE:
            raise Relist(f"a watch line of more than {LONGEST_LINE} bytes")
        return lines
