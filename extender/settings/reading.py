"""A text or a file into Settings, and what is wrong with it in words of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from extender.errors import BadSettings, Problem
from extender.settings.checks import Known, did_you_mean
from extender.settings.document import Document, Place, parse_document, path_of
from extender.settings.fields import API_VERSION, KIND, Server, Settings

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a settings file. A real one has one or two KiB."""
MOST_PROBLEMS, LONGEST_TEXT = 40, 400  # of a file that is rejected: how many are shown, and characters of each


def read_settings(path: Path, known: Known) -> Settings:
    """The settings in a file; BadSettings when it cannot be read or anything in it is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadSettings(str(path), [Problem("", f"cannot be read: {reason}")]) from error
    return decode_settings(raw, known, str(path))


def decode_settings(raw: bytes, known: Known, source: str) -> Settings:
    """The settings in the bytes of the file `source`; BadSettings when anything in them is wrong."""
    if len(raw) > SIZE_LIMIT:
        raise BadSettings(source, [Problem("", f"is larger than {SIZE_LIMIT} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSettings(source, [Problem("", f"is not UTF-8 at byte {error.start}")]) from error
    return parse_settings(text, known, source=source)


def parse_settings(text: str, known: Known, *, source: str = "settings") -> Settings:
    """The settings in a text; BadSettings with every problem, in the order of the file."""
    document = parse_document(text)
    problems = list(document.problems)
    if document.value is None and not problems:
        return Settings()
    if not isinstance(document.value, dict):
        problems = problems or [Problem("", f"expected a mapping with apiVersion: {API_VERSION} and kind: {KIND}")]
        raise BadSettings(source, _in_file_order(problems))
    problems += _missing_version(document.value)
    try:
        settings = Settings.model_validate(document.value, context=known, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += [_problem(detail, document) for detail in error.errors(include_url=False)]
        raise BadSettings(source, _in_file_order(problems)) from None
    if problems:
        raise BadSettings(source, _in_file_order(problems))
    return settings


def override_server(settings: Settings, given: Mapping[str, object]) -> Settings:
    """The settings with other values in `server`, by their paths in Python: `port`, `metrics.port`. BadSettings."""
    if not given:
        return settings
    made: dict[str, Any] = settings.server.model_dump()
    for path, value in given.items():
        *parts, field = path.split(".")
        part = made
        for name in parts:
            part = part[name]
        part[field] = value
    try:
        server = Server.model_validate(made)
    except ValidationError as error:
        problems = [Problem(path_of(("server", *one["loc"])), one["msg"]) for one in error.errors()]
        raise BadSettings("the command line", problems) from None
    return settings.model_copy(update={"server": server})


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    """Sorted, and short enough to be read whatever is in the file."""
    found = sorted(problems, key=lambda problem: (problem.line or 0, problem.path, problem.message))
    shown = [Problem(_cut(one.path), _cut(one.message), one.line) for one in found[:MOST_PROBLEMS]]
    more = len(found) - len(shown)
    return shown + [Problem("", f"{more} more problems are not shown")] * bool(more)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def _missing_version(value: dict[str, Any]) -> list[Problem]:
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        Problem(field, f"is missing; write {field}: {text}") for field, text in wanted.items() if field not in value
    ]


# ---- what pydantic found, in words of this file


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    place = tuple(detail["loc"])
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            fields = _fields_at(place[:-1])
            choice = did_you_mean(str(place[-1]), fields) or f"; there are: {', '.join(fields)}"
            message = f"is not a field{choice}"
        case "ours":
            message = detail["msg"]
        case "model_type":
            message = f"should be a mapping, not {_shown(given)}"
        case "tuple_type":
            message = f"should be a list, not {_shown(given)}"
        case "missing":
            message = "is missing"
        case "literal_error" if isinstance(given, str):
            allowed = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
            message = f"is {given!r}; allowed: {', '.join(allowed)}" + did_you_mean(given, allowed)
        case "string_type" if place == ("schedulerVersion",):
            # As it is written: the number 1.40 is 1.4.
            message = f'is a number; write it in quotes: schedulerVersion: "{document.texts.get(place, given)}"'
        case _:
            message = f"{detail['msg'].removeprefix('Input ')}, not {_shown(given)}"
    return Problem(path_of(place), message, document.line(place))


def _shown(value: object) -> str:
    if isinstance(value, (str, int, float)):
        return repr(value)[:80]
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), type(value).__name__)


def _fields_at(place: Place) -> list[str]:
    """The names that the part at `place` has in the file."""
    part: Any = Settings
    steps = iter(place)
    for step in steps:
        if isinstance(step, int):
            continue
        found = next(field for field in part.model_fields.values() if field.alias == step)
        inner = found.annotation
        part = inner.__args__[-1 if get_origin(inner) is dict else 0] if hasattr(inner, "__args__") else inner
        if get_origin(inner) is dict:
            next(steps, None)  # the key is a name of the user's
    return [field.alias for field in part.model_fields.values()]
