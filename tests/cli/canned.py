"""A command that a test calls, and a server on loopback that answers what a test has it answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO, TextIOWrapper
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from extender.cli import main
from tests.waiting import in_thread


class Cli:
    """Calls `gpu-extender` with words; each call states the exit code that it has to have."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def out(self, words: Sequence[str], code: int = 0) -> str:
        """What it prints."""
        return self._called(words, code)[0]

    def err(self, words: Sequence[str], code: int = 0) -> str:
        """What it prints to standard error."""
        return self._called(words, code)[1]

    def json(self, words: Sequence[str], code: int = 0) -> Any:
        """The JSON that it prints."""
        return json.loads(self.out(words, code))

    def run(self, words: Sequence[str], stdin: bytes = b"") -> tuple[int, str, str]:
        """Its exit code, what it prints, and what it prints to standard error."""
        self._captured.readouterr()
        with patch("sys.stdin", TextIOWrapper(BytesIO(stdin))):
            code = main(words)
        return code, *self._captured.readouterr()

    def _called(self, words: Sequence[str], code: int) -> tuple[str, str]:
        ended, out, err = self.run(words)
        assert ended == code
        return out, err


class Canned(BaseHTTPRequestHandler):
    """`asked`: the paths that were asked for."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    """Its URL."""
    Canned.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Canned) as http, in_thread(lambda: http.serve_forever(0.01), http.shutdown):
        yield f"http://127.0.0.1:{http.server_port}/"


def answer(body: Any, status: int = 200) -> None:
    """What it answers from now on: bytes, or JSON."""
    Canned.status, Canned.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()
