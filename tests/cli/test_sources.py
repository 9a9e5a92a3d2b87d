"""What a command asks a server, and when it asks again."""

from __future__ import annotations

from http.server import HTTPServer
from pathlib import Path

import pytest

from extender.cli import sources
from tests.cli.canned import Canned, Cli
from tests.waiting import in_thread


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_busy_or_not_ready_is_asked_again(status: int) -> None:
    answers = [status, status, 200]

    class Later(Canned):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(b"{}")

    with HTTPServer(("127.0.0.1", 0), Later) as http, in_thread(lambda: http.serve_forever(0.01), http.shutdown):
        assert sources.ask(f"http://127.0.0.1:{http.server_port}", "/") == {}
    assert not answers


def test_an_address_without_a_scheme_is_named_with_one(cli: Cli) -> None:
    assert "write http://127.0.0.1:8888" in cli.err(["top", "--server", "127.0.0.1:8888"], 1)


def test_a_file_that_is_no_yaml_names_the_line(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "notes.md"
    file.write_text("# Notes\n\n**bold**\n")
    assert f"{file}: malformed YAML, line 3, column 2: did not find expected" in cli.err(
        ["top", "--cluster", str(file)], 1
    )
    assert f"{file}: no line of it" in cli.err(["topo", str(file)], 1)
