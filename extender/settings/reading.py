"""A text or a file into Settings, and what is wrong with it in words of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from extender.errors import BadSettings, Problem
from extender.settings.fields import API_VERSION, KIND, Known, ServerSettings, Settings, did_you_mean

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
    values: dict[str, Any] = settings.server.model_dump()
    for path, value in given.items():
        *parts, field = path.split(".")
        part = values
        for name in parts:
            part = part[name]
        part[field] = value
    try:
        server = ServerSettings.model_validate(values)
    except ValidationError as error:
        problems = [Problem(path_of(("server", *detail["loc"])), detail["msg"]) for detail in error.errors()]
        raise BadSettings("the command line", problems) from None
    return settings.model_copy(update={"server": server})


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    """Sorted, and short enough to be read whatever is in the file."""
    ordered = sorted(problems, key=lambda problem: (problem.line or 0, problem.path, problem.message))
    shown = [Problem(_cut(problem.path), _cut(problem.message), problem.line) for problem in ordered[:MOST_PROBLEMS]]
    more = len(ordered) - len(shown)
    return shown + [Problem("", f"{more} more problems are not shown")] * bool(more)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def _missing_version(value: dict[str, Any]) -> list[Problem]:
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        Problem(field, f"is missing; write {field}: {text}") for field, text in wanted.items() if field not in value
    ]


# ---- what pydantic found, in words of this file


def _problem(detail: ErrorDetails, document: SettingsDocument) -> Problem:
    place = tuple(step for step in detail["loc"] if step != "[key]")  # pydantic adds it to a key that is wrong
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
        step_field = next(field for field in part.model_fields.values() if field.alias == step)
        inner = step_field.annotation
        part = inner.__args__[-1 if get_origin(inner) is dict else 0] if hasattr(inner, "__args__") else inner
        if get_origin(inner) is dict:
            next(steps, None)  # the key is a name of the user's
    return [field.alias for field in part.model_fields.values()]


# -- YAML (or JSON) into plain values that remember their lines
#
# Strict where YAML is lax: a repeated key, an alias, a tag or a second document is a problem, not a surprise. All
# problems of a text are found in one pass; only a syntax error ends it early.


Place = tuple[str | int, ...]

DEPTH_LIMIT = 50
BRACKET_LIMIT = 500  # open at once: the parser's time grows with their square, and is 5 s for 3,000
_COLLECTIONS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_SCALARS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "null"}


def path_of(place: Place) -> str:
    """("scorers", 1, "weight") -> "scorers[1].weight"."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@dataclass(slots=True)
class SettingsDocument:
    """One document: its value, where each part of it stands, and what is wrong with its form."""

    value: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    """Numbers and other plain values as they are written: 1.40 is the number 1.4."""
    problems: list[Problem] = field(default_factory=list)

    def line(self, place: Place) -> int | None:
        """The line (from 1) of a field or item; that of the nearest part around it when it is missing."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def parse_document(text: str) -> SettingsDocument:
    """Never raises for what stands in the text: see `problems`. No text, or only comments, has the value None."""
    document = SettingsDocument()
    if text.lstrip().startswith("{"):
        # A raw tab cannot stand inside a JSON string, and YAML forbids it as indentation.
        text = text.replace("\t", " ")
    yaml = YAML(typ="safe", pure=True)
    try:
        if _most_open(text) > BRACKET_LIMIT:
            raise RecursionError
        root = yaml.compose(text)
        if root is not None:
            document.value = _Builder(yaml, document).value(root, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.context, error.problem) if part)
        document.problems.append(Problem("", words or "is not YAML", mark.line + 1 if mark else None))
    except RecursionError:
        document.problems.append(Problem("", f"is nested deeper than {DEPTH_LIMIT} levels"))
    except (YAMLError, ValueError) as error:
        document.problems.append(Problem("", f"is not YAML: {str(error).splitlines()[0]}"))
    return document


def _most_open(text: str) -> int:
    """Brackets and braces that are open at once, those in strings and comments counted too."""
    return max(accumulate(1 if char in "[{" else -1 for char in text if char in "[]{}"), default=0)


class _Builder:
    """Walks YAML's nodes; one is made for one document."""

    def __init__(self, yaml: YAML, document: SettingsDocument) -> None:
        self._yaml = yaml
        self._document = document
        self._seen: set[int] = set()

    def value(self, node: Node, place: Place) -> Any:
        self._document.lines.setdefault(place, node.start_mark.line + 1)
        if len(place) > DEPTH_LIMIT:
            raise RecursionError
        # An alias gives the very node again. Refused: a small text could unfold without end.
        if id(node) in self._seen:
            self._refuse(node, place, "is an alias; write the value out")
            return None
        self._seen.add(id(node))
        if not isinstance(node, ScalarNode) and str(node.tag) not in _COLLECTIONS:
            self._refuse(node, place, f"has the tag {node.tag}; only plain values are read")
            return None
        match node:
            case MappingNode():
                return self._mapping(node, place)
            case SequenceNode():
                return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
            case ScalarNode():
                return self._scalar(node, place)
        raise TypeError(type(node))  # YAML has no fourth kind

    def _mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, ScalarNode):
                self._refuse(key, place, "has a key that is not a word")
                continue
            name = self._text(key, place)
            inner = (*place, name)
            if name in mapping:
                first = self._document.lines[inner]
                self._refuse(key, inner, f"stands here again; it is on line {first} already")
                continue
            self._document.lines[inner] = key.start_mark.line + 1
            mapping[name] = self.value(item, inner)
        return mapping

    def _scalar(self, node: ScalarNode, place: Place) -> Any:
        tag = str(node.tag)
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind in {"timestamp", "merge", "value"}:  # YAML 1.1's ideas of what plain text may mean
            return str(node.value)
        if kind not in _SCALARS:
            self._refuse(node, place, f"has the tag {tag}; only plain values are read")
            return None
        if kind == "str":
            return self._text(node, place)
        self._document.texts[place] = str(node.value)
        try:
            return self._yaml.constructor.construct_object(node)
        except (ValueError, LookupError):  # ruamel.yaml raises whatever its conversion did: 0x_, !!int "", !!bool so
            self._refuse(node, place, f"is not what YAML writes as {_SCALARS[kind]}; quote it if it is a text")
            return None

    def _text(self, node: ScalarNode, place: Place) -> str:
        """JSON writes a character beyond 16 bits as two escapes, which YAML reads as two halves."""
        text = str(node.value)
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._refuse(node, place, "has half of a character (a lone surrogate)")
            return ""

    def _refuse(self, node: Node, place: Place, message: str) -> None:
        self._document.problems.append(Problem(path_of(place), message, node.start_mark.line + 1))
