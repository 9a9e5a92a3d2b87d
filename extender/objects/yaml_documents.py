"""YAML documents of a file as plain values, through libyaml: a dump of a cluster has megabytes.

Strict where YAML is lax: a tag that changes a value's type is an error, and so is a repeated key, unless the caller
takes the last one, as kubectl does. Scalars mean what they mean
in YAML 1.2 (`yes` is a text), as `ruamel.yaml` reads them. The parser gives events and not nodes, since PyYAML's
composer of nodes overflows the C stack on deep nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any, Final

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError as ScalarError
from ruamel.yaml.nodes import ScalarNode

DEEPEST: Final = 200  # levels; Kubernetes' own objects have below 30
_MERGE: Final = "<<"
_COLLECTIONS: Final = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_TEXTS: Final = frozenset({f"tag:yaml.org,2002:{kind}" for kind in ("str", "value", "merge")})
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Error = yaml.YAMLError


def malformed(error: Exception) -> str:
    """What is wrong with a text in YAML, and on which line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"malformed YAML{where}: {' '.join(str(problem or error).split())}"


def documents(
    raw: bytes, *, aliases: bool = True, repeated: list[str] | None = None, typed: bool = True
) -> Iterator[Any]:
    """Each document's value; None for an empty one. `aliases`: whether it may repeat parts by `*name`: a short text can
    then stand for very much. `repeated`: the list to which repeated keys are added; of each the last one counts then.
    `typed`: whether plain scalars are numbers, times and so on; else each is its text: the node 0123 is not the number.
    Error with its line, RecursionError beyond DEEPEST levels."""
    reader = _Reader(aliases, repeated, typed)
    for event in yaml.parse(raw, _PARSER):
        if isinstance(event, yaml.DocumentStartEvent):
            reader = _Reader(aliases, repeated, typed)
        elif isinstance(event, yaml.DocumentEndEvent):
            yield reader.value
        else:
            reader.take(event)


class _Open:
    """A mapping or sequence that has not ended. `key_event` is the key that waits for its value."""

    __slots__ = ("anchor", "key", "key_event", "merged", "start", "value")

    def __init__(self, event: Any, value: dict[Hashable, Any] | list[Any]) -> None:
        self.value = value
        self.start = event.start_mark
        self.anchor = event.anchor
        self.key_event: Any = None
        self.key: Hashable = None
        self.merged: dict[Hashable, Any] = {}

    def add(self, event: Any, value: Any, repeated: list[str] | None) -> None:
        """The next item, key or value. Error for a key that is no scalar, or is repeated; `repeated`: as for
        `documents`."""
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key_event is None:
            if not isinstance(event, yaml.ScalarEvent):
                raise self._wrong("found a key that is no scalar", event)
            if value in self.value:
                if repeated is None:
                    raise self._wrong(f'found duplicate key "{value}"', event)
                repeated.append(f"line {event.start_mark.line + 1} repeats the key {value}: the last one counts")
            self.key, self.key_event = value, event
        else:
            if self.key == _MERGE and not self.key_event.style:
                self._merge(event, value)
            else:
                self.value[self.key] = value
            self.key_event = None

    def _merge(self, event: Any, value: Any) -> None:
        for mapping in value if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                raise self._wrong("expected a mapping or list of mappings for merging", event)
            self.merged = mapping | self.merged  # the first of several counts

    def ended(self) -> Any:
        """The whole value: what is merged counts where the mapping itself has no such key."""
        return self.merged | self.value if isinstance(self.value, dict) and self.merged else self.value

    def _wrong(self, problem: str, event: Any) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError("while constructing a mapping", self.start, problem, event.start_mark)


class _Reader:
    """Builds the value of one document from its events, without recursion."""

    def __init__(self, aliases: bool, repeated: list[str] | None, typed: bool) -> None:
        self.value: Any = None
        self._aliases, self._repeated, self._typed = aliases, repeated, typed
        self._open: list[_Open] = []
        self._anchors: dict[str, Any] = {}
        self._take: dict[type[Any], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
        }

    def take(self, event: Any) -> None:
        """The next event; those of the stream are left out."""
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def _add(self, event: Any, value: Any) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        if self._open:
            self._open[-1].add(event, value, self._repeated)
        else:
            self.value = value

    def _scalar(self, event: Any) -> None:
        if self._typed and (event.implicit[0] or event.tag not in (None, "!")):
            try:
                value = _meaning(event.value, event.tag if not event.implicit[0] else None)
            except (ScalarError, ValueError, IndexError) as error:  # the last: an empty text with the tag of a number
                problem = str(getattr(error, "problem", None) or error).splitlines()[0]
                raise yaml.MarkedYAMLError(None, None, problem, event.start_mark) from error
        else:
            value = event.value
        self._add(event, value)

    def _start(self, event: Any) -> None:
        if event.tag not in _COLLECTIONS:
            raise yaml.MarkedYAMLError(None, None, f"found the tag {event.tag}", event.start_mark)
        if len(self._open) >= DEEPEST:
            raise RecursionError
        self._open.append(_Open(event, {} if isinstance(event, yaml.MappingStartEvent) else []))

    def _end(self, event: Any) -> None:
        ended = self._open.pop()
        event.anchor = ended.anchor
        event.start_mark = ended.start
        self._add(event, ended.ended())

    def _alias(self, event: Any) -> None:
        if not self._aliases:
            raise yaml.MarkedYAMLError(None, None, "aliases are not accepted here", event.start_mark)
        if event.anchor not in self._anchors:
            raise yaml.MarkedYAMLError(None, None, f"found undefined alias {event.anchor!r}", event.start_mark)
        self._add(event, self._anchors[event.anchor])


_SCALARS: Final = YAML(typ="safe", pure=True)


@lru_cache(maxsize=1 << 14)
def _meaning(text: str, tag: str | None) -> Any:
    """What a plain scalar, or one with a tag, stands for. `tag`: None where the text decides."""
    tag = tag or str(_SCALARS.resolver.resolve(ScalarNode, text, (True, False)))
    if tag in _TEXTS:
        return text
    return _SCALARS.constructor.construct_object(ScalarNode(tag, text))
