"""YAML (or JSON) into plain values that remember their lines.

Strict where YAML is lax: a repeated key, an alias, a tag or a second document is a problem, not a surprise. All
problems of a text are found in one pass; only a syntax error ends it early.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from extender.errors import Problem

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
class Document:
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


def parse_document(text: str) -> Document:
    """Never raises for what stands in the text: see `problems`. No text, or only comments, has the value None."""
    document = Document()
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
    return max(accumulate(1 if one in "[{" else -1 for one in text if one in "[]{}"), default=0)


class _Builder:
    """Walks YAML's nodes; one is made for one document."""

    def __init__(self, yaml: YAML, document: Document) -> None:
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
        made: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, ScalarNode):
                self._refuse(key, place, "has a key that is not a word")
                continue
            name = self._text(key, place)
            inner = (*place, name)
            if name in made:
                first = self._document.lines[inner]
                self._refuse(key, inner, f"stands here again; it is on line {first} already")
                continue
            self._document.lines[inner] = key.start_mark.line + 1
            made[name] = self.value(item, inner)
        return made

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
