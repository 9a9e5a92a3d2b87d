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


class _FromStandardLibrary(logging.Handler):
    """What libraries log through `logging` comes out in our form; `logger` says who spoke."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_log().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
        except Exception:
            self.handleError(record)


def _dumps(value: Any, default: Any) -> bytes:
    return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS)
