"""From the bytes of lists and watches to records. An object that cannot be read in full affects only itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ext_core import prune
from extender.kube.watch.kinds import WatchedKind
from extender.kube.watch.state import State
from extender.log import Allowance, get_log
from extender.objects import decode, tolerant
from extender.objects.records import Identity, Record

MOST_REJECTED: Final = 100  # kept by name
SENSELESS_SECONDS: Final = 300.0  # events without an object that can be named lead to one list in this time
log = get_log()


class Relist(Exception):
    """The watch cannot go on from where it is, or a list made no sense."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired
        """The version is too old: nothing is wrong."""


class WatchLine(msgspec.Struct):
    """One event of a watch."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int | None = None
    message: str | None = None


_LINE: Final = msgspec.json.Decoder(WatchLine)


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
            found = decode.record(self._watched.kind, raw, self._gpus, self._watched.group)
        except Exception as error:  # RecordError, and whatever else the bytes of a hostile object may lead to
            return self._rejected(raw, str(error) or repr(error))
        if self._state.rejected:
            self._state.rejected.pop(f"{getattr(found, 'namespace', '')}/{found.name}", None)
        return found

    def line(self, line: bytes) -> WatchLine | None:
        """An event of a watch; None for a line that makes no sense. Raises Relist, once in a while, for those."""
        try:
            return _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            found = _taken_apart(line)
            if found is None:
                self.senseless(f"a watch line that makes no sense: {str(error)[:200]}")
            return found

    def senseless(self, message: str) -> None:
        """An event has no object that can be named: a new list shows what exists, once in SENSELESS_SECONDS."""
        now = self._clock()
        self._state.counters.reasons["unknown-event"] += 1
        if self._senseless_at is None or now - self._senseless_at >= SENSELESS_SECONDS:
            self._senseless_at = now
            raise Relist(message)

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


def error_of(raw: msgspec.Raw) -> Relist:
    """What an ERROR event means."""
    try:
        status = msgspec.json.decode(raw, type=_Status)
    except (msgspec.MsgspecError, RecursionError):
        status = _Status(message="an error that makes no sense")
    return Relist(f"{status.code}: {status.message}", expired=status.code == 410)


def _taken_apart(line: bytes) -> WatchLine | None:
    """An event that is nested too deep for the decoder, by its brackets; None where it is none."""
    try:
        found = prune.members(line)
    except ValueError:
        return None
    kind, body = (line[slice(*found[key])] if key in found else b"" for key in (b"type", b"object"))
    if not body or kind[:1] != b'"' or len(kind) > 100:
        return None
    return WatchLine(kind[1:-1].decode(errors="replace"), msgspec.Raw(body))
