"""The option --output: text for people, JSON or YAML for programs; errors take the same form."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TextIO

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
