"""One line per event on standard error: JSON for machines, text for terminals.

Keys as in Kubernetes' JSON logs where it has them: `ts`, `level`, `msg`, `pod` ("namespace/name"), `node`, `err`.
The message is a constant sentence; what varies stands in the keys.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, cast

import orjson
import structlog

Log = structlog.typing.FilteringBoundLogger


def get_log(**bound: Any) -> Log:
    """A logger; it may be made before configure() is called."""
    return cast(Log, structlog.get_logger(**bound))


def configure(form: Literal["auto", "json", "text"] = "auto", level: int = logging.INFO) -> None:
    """Called once, by the command line. `auto` is text when standard error is a terminal."""
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    ]
    if text:
        last: list[Any] = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
            )
        ]
        factory: Any = structlog.WriteLoggerFactory(sys.stderr)
    else:
        last = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("msg"),
            structlog.processors.JSONRenderer(serializer=_dumps),
        ]
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=factory,
        cache_logger_on_first_use=False,  # a cached logger would keep a stream that is closed since
    )
    root = logging.getLogger()
    root.handlers[:] = [_FromStandardLibrary()]
    root.setLevel(level)


class Allowance:
    """How many lines may be logged of what others cause: `burst` at once, and `per_second` on average."""

    def __init__(self, burst: float = 20.0, per_second: float = 0.2) -> None:
        self._burst, self._per_second = burst, per_second
        self._left = burst
        self._at: float | None = None
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """None where a line is not to be logged; else how many were left out since the last one. `now`: seconds."""
        earned = 0.0 if self._at is None else max(0.0, now - self._at) * self._per_second
        self._left, self._at = min(self._burst, self._left + earned), now
        if self._left < 1.0:
            self._left_out += 1
            return None
        self._left -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out


class _FromStandardLibrary(logging.Handler):
    """What libraries log through `logging` comes out in our form; `logger` says who spoke."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_log().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
        except Exception:
            self.handleError(record)


def _dumps(value: Any, default: Any) -> bytes:
    return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS)
