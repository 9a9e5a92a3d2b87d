"""JSON of any depth: both twins cut the same, whatever the bytes; and what is left is what a decoder can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ext_core import prune
from tests.reference import prune as reference

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.text('a"\\[]{},: ', max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text('a"[', max_size=2), inner, max_size=3)
    ),
    max_leaves=20,
)
PIECES = st.lists(st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b" ", b"1", b"a", b"null"]))


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError:
        return ValueError


def cut(value: Any, deepest: int) -> Any:
    """The obvious meaning: what lies in `deepest` others is None."""
    if not isinstance(value, (dict, list)):
        return value
    if deepest == 0:
        return None
    if isinstance(value, dict):
        return {key: cut(one, deepest - 1) for key, one in value.items()}
    return [cut(one, deepest - 1) for one in value]


@given(VALUES, st.integers(1, 5), st.sampled_from([None, 1]))
def test_what_is_nested_deeper_is_null(value: Any, deepest: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert orjson.loads(prune.prune(text, deepest)) == cut(value, deepest)
    assert prune.prune(text, deepest) == reference.prune(text, deepest)


@given(VALUES)
def test_values_lie_where_they_are_said_to(value: Any) -> None:
    text = json.dumps({"a": value, "items": [value, 1, value]}).encode()
    found = prune.members(text)
    assert {key: orjson.loads(text[a:b]) for key, (a, b) in found.items()} == {
        b"a": value,
        b"items": [value, 1, value],
    }
    spans = prune.elements(text, *found[b"items"])
    assert [orjson.loads(text[a:b]) for a, b in spans] == [value, 1, value]


@given(PIECES.map(b"".join), st.integers(1, 3))
@example(b'{"a":1,}', 1)
@example(b'["\\"]', 1)
@example(b'["\\\\"]', 1)
@example(b"[1,]", 1)
@example(b"[,1]", 1)
@example(b'{"a":}', 1)
def test_twins_agree_on_any_bytes(text: bytes, deepest: int) -> None:
    for name, arguments in (("prune", (deepest,)), ("members", ()), ("elements", (0, len(text)))):
        ours, theirs = (outcome(getattr(module, name), text, *arguments) for module in (prune, reference))
        assert ours == theirs, name


@pytest.mark.parametrize("depth", [1_500, 200_000])
def test_no_depth_is_too_deep(depth: int) -> None:
    """An object that ends msgspec, orjson and json alike."""
    text = b'{"name":"p","deep":' + b'{"a":' * depth + b"1" + b"}" * depth + b',"after":[[]]}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    assert orjson.loads(prune.prune(text, 2)) == {"name": "p", "deep": {"a": None}, "after": [None]}
    assert list(prune.members(text)) == [b"name", b"deep", b"after"]


def test_a_range_outside_of_the_text_is_refused() -> None:
    for start, end in ((-1, 1), (0, 9), (2, 1)):
        with pytest.raises(ValueError, match="range"):
            prune.elements(b"[]", start, end)
    with pytest.raises(ValueError, match="at least 1"):
        prune.prune(b"[]", 0)
