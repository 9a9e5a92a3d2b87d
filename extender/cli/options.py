"""Options that several commands share, and the settings that come of them."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import orjson

from extender.cli import screen
from extender.cli.screen import Line
from extender.errors import BadInput, ExtenderError

if TYPE_CHECKING:
    from types import FrameType

    from extender.node.apiserver import ApiEndpoint
    from extender.settings import Known, Settings


APART: Final = ("metrics", "debug")
"""What can have a listener of its own."""
MOST_WARNINGS: Final = 20
"""Warnings of an answer that are printed."""


def port(text: str) -> int:
    """An argparse type: 0..65535."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings (default: every field's default)")


def add_address(parser: argparse.ArgumentParser) -> None:
    """Where it listens, and who may ask; these override the settings."""
    parser.add_argument("--host", help="address to listen on (default: server.host of the settings, 127.0.0.1)")
    parser.add_argument("--port", type=port, help="port; 0 lets the system choose (default: server.port, 8888)")
    _add_tls(parser, "", "certificate, in PEM: the verbs are served over TLS (default: server.tls.certFile)")
    for name in APART:
        parser.add_argument(f"--{name}-host", metavar="HOST", help="address of a listener of its own")
        parser.add_argument(f"--{name}-port", type=port, metavar="PORT", help="its port")
        _add_tls(parser, f"{name}-", "its certificate")
        parser.add_argument(
            f"--{name}-authorize", action="store_true", default=None, help="ask for a token that may get the path"
        )
    parser.add_argument(
        "--allow-unprotected", action="store_true", default=None,
        help="listen beyond loopback also without client certificates or tokens (server.allowUnprotected)",
    )  # fmt: skip


def host_and_port(text: str, path: str) -> tuple[str, int]:
    """HOST:PORT as (host, port); the host is "" where it is left out. BadInput for anything else."""
    host, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 6) or int(number) > 65_535:
        raise BadInput(f"{text!r} is not HOST:PORT", path=path)
    return host.strip("[]"), int(number)


def _add_tls(parser: argparse.ArgumentParser, prefix: str, text: str) -> None:
    parser.add_argument(f"--{prefix}tls-cert-file", metavar="FILE", help=text)
    parser.add_argument(f"--{prefix}tls-private-key-file", metavar="FILE", help="its key")
    parser.add_argument(
        f"--{prefix}tls-self-signed", action="store_true", default=None, help="without them: one made in memory"
    )
    parser.add_argument(f"--{prefix}client-ca-file", metavar="FILE", help="CAs of the client certificates to ask for")


def add_logging(parser: argparse.ArgumentParser) -> None:
    """--log-format and --verbose."""
    parser.add_argument(
        "--log-format",
        choices=("auto", "json", "logfmt", "text"),
        default="auto",
        help="auto: text on a terminal, else JSON",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log what is usually not worth a line; -vv: of libraries too",
    )


def configure_logging(options: argparse.Namespace) -> None:
    """As add_logging's options say."""
    from extender import log

    ours = logging.DEBUG if options.verbose else logging.INFO
    log.configure(options.log_format, ours, logging.DEBUG if options.verbose > 1 else logging.INFO)


def settings_of(options: argparse.Namespace) -> Settings:
    """The file's settings (or the defaults) with the options of add_address put in; BadSettings when any is wrong."""
    from extender.settings import Settings, override_server, read_settings

    file: Path | None = getattr(options, "config", None)
    settings = read_settings(file, known()) if file else Settings()
    given = {path: getattr(options, option, None) for option, path in _places()}
    return override_server(settings, {path: value for path, value in given.items() if value is not None})


def _places() -> Iterator[tuple[str, str]]:
    """(option of add_address, path of its field in `server`)."""
    yield "allow_unprotected", "allow_unprotected"
    for name in ("", *APART):
        option, path = (f"{name}_", f"{name}.") if name else ("", "")
        for field in ("host", "port", "authorize") if name else ("host", "port"):
            yield f"{option}{field}", f"{path}{field}"
        yield f"{option}tls_cert_file", f"{path}tls.cert_file"
        yield f"{option}tls_private_key_file", f"{path}tls.key_file"
        yield f"{option}tls_self_signed", f"{path}tls.self_signed"
        yield f"{option}client_ca_file", f"{path}tls.client_ca_file"


def known() -> Known:
    """The names of scorers and cost terms that a settings file may use."""
    from extender.policy import policy as names

    return names.known()


# -- the option --output: text for people, JSON or YAML for programs; errors take the same form
#
# Sentences name commands as `gpu-extender COMMAND`. Where the user calls the program by another name, `called` renames
# them in all text for people; what is for programs stays the same.


PARSED: Final = ("json", "yaml")
"""Forms for programs."""
FORMS: Final = ("text", *PARSED)
_LIKE_NUMBERS: Final = re.compile(r"[-+.0-9_eExXoObB:]+\Z")
"""What some reader of YAML takes for a number. PyYAML knows 1.1 alone: it would write the name `1e3` without quotes."""


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    """-o: text by default. `more`: forms of this command alone."""
    parser.add_argument(
        "-o", "--output", choices=(*FORMS, *more), default="text", help="text for people (the default), JSON or YAML"
    )


def write(answer: Mapping[str, Any], form: str, stream: TextIO | None = None) -> None:
    """Prints the answer for programs. `form`: json or yaml; `stream`: standard output without one."""
    stream = stream or sys.stdout
    if isinstance(stream, _Renaming):
        stream = stream.unchanged
    if form == "json":
        stream.write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE).decode())
        return
    import yaml

    yaml.dump(answer, stream, _dumper(), sort_keys=False, allow_unicode=True, width=120)


def show(answer: Mapping[str, Any], form: str, lines: Callable[[Mapping[str, Any]], Iterable[Line]]) -> None:
    """Prints the answer; for people its `lines`. `form`: one of FORMS."""
    if form == "text":
        screen.show(lines(answer))
    else:
        write(answer, form)


def warned(answer: Mapping[str, Any]) -> Iterator[str]:
    """The first MOST_WARNINGS warnings of an answer, a line each, and how many more there are."""
    from extender.ask.text import count

    for warning in answer["warnings"][:MOST_WARNINGS]:
        yield f"warning: {warning['message']}"
    if (hidden := len(answer["warnings"]) - MOST_WARNINGS) > 0:
        yield f"and {count(hidden, 'more warning')} (-o json has all)"


def note(warnings: Iterable[Mapping[str, str]], prefix: str = "") -> None:
    """Prints the sentences of warnings to standard error."""
    from extender.ask.text import short

    for warning in warnings:
        screen.tell(f"gpu-extender: {prefix}{short(warning['message'], 400)}")


def complain(error: ExtenderError, form: str) -> None:
    """Prints an error to standard error."""
    if form in PARSED:
        # An argument may have bytes that are no UTF-8.
        parts = {key: text.encode(errors="replace").decode() for key, text in error.as_json()["error"].items()}
        write({"error": parts}, form, sys.stderr)
    else:
        screen.tell(f"gpu-extender: {error}")


@contextmanager
def called(hint: re.Pattern[str], name: str) -> Iterator[None]:
    """Meanwhile what is written to standard output and standard error has `name` for each match of `hint`."""
    out, err = (cast("TextIO", _Renaming(stream, hint, name)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


class _Renaming:
    """A stream of text that writes another name of the program. `unchanged`: the stream without it."""

    def __init__(self, stream: TextIO, hint: re.Pattern[str], name: str) -> None:
        self.unchanged = stream
        self._hint = hint
        self._name = name

    def write(self, text: str) -> int:
        """The length of `text`, as callers of a stream expect."""
        self.unchanged.write(self.renamed(text))
        return len(text)

    def renamed(self, text: str) -> str:
        """The text with the other name."""
        return self._hint.sub(self._name, text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Each as `write`."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchanged, name)


def _dumper() -> Any:
    """A dumper whose text means the same to readers of YAML 1.1 and 1.2."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # without libyaml the slow one

    class Dumper(base):  # type: ignore[misc] # it has no types
        """Answers share no parts for which a program would expect an anchor."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _LIKE_NUMBERS, list("-+.0123456789"))
    return Dumper


# -- commands that run on a GPU node


def add_node(parser: argparse.ArgumentParser) -> None:
    """Of the commands that run on a GPU node: which node this is, and where the API server is."""
    parser.add_argument(
        "--node", default=os.environ.get("NODE_NAME", ""), help="this node's name (default: $NODE_NAME)"
    )
    parser.add_argument("--api-server", metavar="URL", help="default: as a pod with its service account")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="with --api-server: read for each request")
    parser.add_argument(
        "--ca-file", metavar="FILE", type=Path, help="with --api-server: the authority of its certificate"
    )
    parser.add_argument("--probe", metavar="HOST:PORT", default="", help="serve /livez and /metrics there")


def api_endpoint(options: argparse.Namespace) -> ApiEndpoint:
    """Where the API server is. BadInput outside of a pod, when nothing is named."""
    from extender.node.apiserver import ApiEndpoint

    if options.api_server:
        return ApiEndpoint(options.api_server.rstrip("/"), options.token_file, options.ca_file)
    return ApiEndpoint.of_pod()


def node_name(options: argparse.Namespace) -> str:
    """This node's name. BadInput when it is not known."""
    if not options.node:
        raise BadInput("the name of this node is unknown; give --node or set NODE_NAME", path="node")
    return str(options.node)


def probe_address(options: argparse.Namespace) -> tuple[str, int] | None:
    """(host, port); None when no probe is served. BadInput for anything else."""
    if not options.probe:
        return None
    host, number = host_and_port(options.probe, "probe")
    return host or "0.0.0.0", number


def say(message: str) -> None:
    """One line of JSON on standard error."""
    line = orjson.dumps({"ts": round(time.time(), 3), "msg": message}) + b"\n"
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()


def stop_by_signal() -> threading.Event:
    """Set from the first SIGTERM or Ctrl-C on."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    return stopping
