"""Tests. What a test logs is captured, and seldom read: a traceback is plain text, not a table with all local variables,
which costs 0.1 s each."""

import structlog

structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
