"""The option --output: text for people, JSON or YAML for programs; errors take the same form.

Sentences name commands as `gpu-extender COMMAND`, wherever they come from. Where the user calls the program by another
name, `called` renames them in all text for people; what is for programs stays the same."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO, cast

import orjson

from extender.errors import ExtenderError

FORMS: Final = ("text", "json", "yaml")
_LIKE_NUMBERS: Final = re.compile(r"[-+.0-9_eExXoObB:]+\Z")
"""What some reader of YAML takes for a number. PyYAML knows 1.1 alone: it would write the name `1e3` without quotes."""


def add_output(parser: argparse.ArgumentParser) -> None:
    """-o: text by default."""
    parser.add_argument(
        "-o", "--output", choices=FORMS, default="text", help="text for people (the default), JSON or YAML"
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


def show(answer: Mapping[str, Any], form: str, lines: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
    """Prints the answer; for people its `lines`. `form`: one of FORMS."""
    if form == "text":
        print("\n".join(lines(answer)))
    else:
        write(answer, form)


def complain(error: ExtenderError, form: str) -> None:
    """Prints an error to standard error."""
    if form in ("json", "yaml"):
        # An argument may have bytes that are no UTF-8.
        parts = {key: text.encode(errors="replace").decode() for key, text in error.as_json()["error"].items()}
        write({"error": parts}, form, sys.stderr)
    else:
        print(f"gpu-extender: {error}", file=sys.stderr)


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
        self.unchanged.write(self._hint.sub(self._name, text))
        return len(text)

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
