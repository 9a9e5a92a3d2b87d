"""Request bodies: both twins find the same ranges, rows and names, and refuse the same bytes."""

import json
import random
from array import array
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ext_core import scan
from ext_core.name_index import NameIndex
from ext_core.scan import ScanError
from tests.reference import scan as reference

# Characters that need an escape, that may have one, and of 2, 3 and 4 UTF-8 bytes; 7 to 9 bytes is where words end.
CHARACTERS = st.one_of(
    st.sampled_from('"\\/\b\t\n\f\r\x00\x1f\x20\x7f{}[],:\u0080\u07ff\u0800\uffff\U00010000'),
    st.characters(codec="utf-8"),
)
TEXT = st.one_of(st.text(CHARACTERS, max_size=20), st.text("ab-", min_size=6, max_size=20))
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
SPACE = st.text(" \t\n\r", max_size=2)
BODY = orjson.dumps(
    {
        "Pod": {"metadata": {"name": 'p "q" \\', "labels": {"ä": "𝄞"}}, "n": [1, -2.5e-7, True, False, None, [], {}]},
        "Nodes": {"metadata": {}, "items": [{"metadata": {"name": "n1"}}, {"metadata": {"uid": "u", "name": "n2"}}]},
        "NodeNames": ["n1", "", 'n"2', "knödel", "a-name-of-24-bytes-or-so"],
    }
)


def dumped(value: Any, draw: st.DrawFn) -> bytes:
    """One of the many texts of a value: with or without space, escapes, and capital hexadecimal digits."""
    comma, colon = draw(SPACE) + "," + draw(SPACE), draw(SPACE) + ":" + draw(SPACE)
    indent = draw(st.sampled_from([None, 0, 1]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=(comma, colon), indent=indent)
    return (draw(SPACE) + text + draw(SPACE)).encode()


@st.composite
def texts(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    return dumped(draw(values), draw)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it answers; ScanError (and nothing else) if it refuses, with an offset in the body."""
    try:
        return function(*arguments)
    except ScanError as error:
        refusal = error
    assert 0 <= refusal.offset <= len(arguments[0])
    return ScanError


def same(body: bytes) -> Any:
    """What both twins say to `split`; the slices, decoded, must be what orjson reads in the whole."""
    found = outcome(scan.split, body)
    assert found == outcome(reference.split, body)
    if found is ScanError:
        return found
    assert list(found.values()) == sorted(found.values())
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        return found  # orjson looks deeper: UTF-8 and surrogates inside nested values
    assert {key: orjson.loads(body[start:end]) for key, (start, end) in found.items()} == whole
    return found


def both_indexes(names: list[str]) -> tuple[NameIndex, reference.NameIndex]:
    fast, slow = NameIndex(), reference.NameIndex()
    for row, name in enumerate(names):
        fast.add(name, row)
        slow.add(name, row)
    return fast, slow


def same_rows(body: bytes, names: list[str]) -> Any:
    fast, slow = both_indexes(names)
    found = outcome(scan.rows, body, 0, len(body), fast)
    assert found == outcome(reference.rows, body, 0, len(body), slow)
    assert found == outcome(scan.rows, body, 0, len(body), fast)  # one call leaves nothing behind for the next
    whole = b'{"Pod":{},"NodeNames": ' + body + b' ,"x":[1]}'
    for key in ("NodeNames", "x", "y"):
        split = outcome(scan.split_names, whole, key, fast)
        assert split == outcome(reference.split_names, whole, key, slow)
        if split is not ScanError and key == "NodeNames" and found is not ScanError:
            assert split == (scan.split(whole), None, found)
    return found


# --- split ---


@given(texts(st.dictionaries(TEXT, VALUES, max_size=5)))
def test_split_of_json_objects(body: bytes) -> None:
    found = same(body)
    assert found is not ScanError
    assert found.keys() == orjson.loads(body).keys()


@given(texts(VALUES), st.data())
def test_split_of_mutated_json(body: bytes, data: st.DataObject) -> None:
    raw = bytearray(b'{"a":' + body + b"}")
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        new = st.one_of(st.sampled_from(b'"\\{}[],: \n0129.eE+-tfnu\x1f\x80'), st.integers(0, 255))
        raw[at : at + data.draw(st.integers(0, 2))] = bytes(data.draw(st.lists(new, max_size=2)))
        raw = raw or bytearray(b"x")
    same(bytes(raw))


@given(st.text('"\\{}[],: 01.eE+-truefalsn\x1f', max_size=12))
@example('"\\')
@example('"\\u00')
@example("-")
@example("1.")
def test_split_of_what_looks_like_json(text: str) -> None:
    same(text.encode())
    same(b'{"a":' + text.encode() + b"}")


def test_split_of_random_byte_mutations() -> None:
    dice = random.Random(20)
    accepted = 0
    for _ in range(4000):
        raw = bytearray(BODY)
        for _ in range(dice.choice([1, 1, 1, 2, 5])):
            raw[dice.randrange(len(raw))] = dice.choice([dice.randrange(256), *b'"\\{}[],: 0a'])
        accepted += same(bytes(raw)) is not ScanError
        scanned_anyway(bytes(raw))
    assert 400 < accepted < 3600  # both sides were tried


def scanned_anyway(raw: bytes) -> None:
    """Every other function on the whole of it: the twins agree, and nothing but ScanError comes out."""
    end = len(raw)
    for name in ("items", "node_name"):
        assert outcome(getattr(scan, name), raw, 0, end) == outcome(getattr(reference, name), raw, 0, end)
    at = raw.find(b"[")
    if at >= 0:
        fast, slow = both_indexes(["n1", "knödel"])
        assert outcome(scan.rows, raw, at, end, fast) == outcome(reference.rows, raw, at, end, slow)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_every_byte_at_every_place_of_a_string(length: int) -> None:
    for at in range(length):
        for byte in range(256):
            raw = bytearray(b"-" * length)
            raw[at] = byte
            found = same(b'{"a":"' + raw + b'"}')
            assert (found is not ScanError) == (byte >= 0x20 and byte not in b'"\\')


def test_split_of_every_truncation() -> None:
    for length in range(len(BODY)):
        with pytest.raises(ScanError):
            scan.split(BODY[:length])
    assert scan.split(BODY).keys() == {"Pod", "Nodes", "NodeNames"}
    assert scan.split(BODY + b" \n").keys() == {"Pod", "Nodes", "NodeNames"}


@pytest.mark.parametrize(
    ("body", "offset", "message"),
    [
        (b"", 0, "not a JSON object"),
        (b"  ", 2, "not a JSON object"),
        (b"null", 0, "not a JSON object"),
        (b"[]", 0, "not a JSON object"),
        (b"\xef\xbb\xbf{}", 0, "not a JSON object"),
        (b"{", 1, "a key in quotes must follow"),
        (b'{"a":1,}', 7, "a key in quotes must follow"),
        (b"{a:1}", 1, "a key in quotes must follow"),
        (b'{"a" 1}', 5, "':' must follow"),
        (b'{"a":}', 5, "not a JSON value"),
        (b'{"a":nul}', 5, "not a JSON value"),
        (b'{"a":NaN}', 5, "not a JSON value"),
        (b'{"a":nullx}', 9, "',' or '}' must follow"),
        (b'{"a":01}', 6, "',' or '}' must follow"),
        (b'{"a":1.}', 7, "a digit must follow the decimal point"),
        (b'{"a":1e}', 7, "a digit must follow the exponent"),
        (b'{"a":[1 2]}', 8, "',' or the closing bracket must follow"),
        (b'{"a":[1}', 7, "',' or the closing bracket must follow"),
        (b'{"a":[1,]}', 8, "not a JSON value"),
        (b'{"a":"\n"}', 6, "control character in a string"),
        (b'{"a":"\\x"}', 7, "unknown escape in a string"),
        (b'{"a":"\\u12g4"}', 10, "not a hexadecimal digit"),
        (b'{"a":"b}', 8, "the text ends inside a string"),
        (b'{"a":1}x', 7, "more follows after the value"),
        (b"{}{}", 2, "more follows after the value"),
        (b'{"a":1,"\\u0061":2}', 7, "duplicate key 'a'"),
        (b'{"\xff":1}', 2, "a string is not UTF-8"),
        (b'{"\\ud800":1}', 2, "half a surrogate pair in a string"),
    ],
)
def test_refusals_say_where_and_what(body: bytes, offset: int, message: str) -> None:
    with pytest.raises(ScanError) as caught:
        scan.split(body)
    assert (caught.value.offset, caught.value.message) == (offset, message)
    assert str(caught.value) == f"byte {offset}: {message}"
    assert outcome(reference.split, body) is ScanError


def test_nesting() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * (depth // 2) + b"[" * (depth - depth // 2) + b"]" * (depth - depth // 2) + b"}" * (depth // 2)

    assert scan.split(nested(200)) == reference.split(nested(200))
    for body in (nested(201), b'{"a":' + b"[" * 100_000, b'{"a":' * 100_000, nested(100_000)):
        with pytest.raises(ScanError, match="nested too deep"):
            scan.split(body)
        assert outcome(reference.split, body) is ScanError
    assert scan.split(b'{"a":1}', 1) == {"a": (5, 6)}
    for body, max_depth in ((b'{"a":[]}', 1), (nested(1025), 1024)):
        with pytest.raises(ScanError, match="nested too deep"):
            scan.split(body, max_depth)
    assert scan.split(nested(1024), 1024)
    for wrong in (0, -1, 1025):
        with pytest.raises(ValueError, match="max_depth"):
            scan.split(b"{}", wrong)


# --- rows ---


@given(texts(st.lists(TEXT, max_size=12)), st.data())
def test_rows_of_json_arrays(body: bytes, data: st.DataObject) -> None:
    names = orjson.loads(body)
    known = data.draw(st.lists(st.one_of(TEXT, st.sampled_from(names)) if names else TEXT, unique=True, max_size=12))
    found, unknown = same_rows(body, known)
    assert found.tolist() == [known.index(name) if name in known else -1 for name in names]
    assert unknown == [(i, name) for i, name in enumerate(names) if name not in known]


@given(st.lists(st.sampled_from(["", "a", "b", "cc", "node-000001", "node-000002", "x"]), max_size=30))
def test_repeats_are_kept(names: list[str]) -> None:
    known = ["", "a", "b", "cc", "node-000001", "node-000002"]
    found, _ = same_rows(orjson.dumps(names), known)
    assert found.tolist() == [known.index(name) if name in known else -1 for name in names]


NAMES = ["n1", "node-000001", "node-000002", "\u00e9", "", 'q"', "back\\nslash", "line\n", "x" * 253, "x" * 254]


@given(
    st.lists(st.one_of(st.sampled_from(NAMES[:3]), st.sampled_from(NAMES)), max_size=70),
    st.sets(st.sampled_from(NAMES[:5]) | st.sampled_from(NAMES)),
    st.data(),
)
def test_known_names_among_others(names: list[str], known: set[str], data: st.DataObject) -> None:
    """Written as kube-scheduler writes them, or nearly so: runs of known names are read ahead."""
    raw = bytearray(orjson.dumps(names))
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 1] = data.draw(st.sampled_from([b"", b" ", b'"', b"\\", b"\n", b",", b"]", b"\\u00e9", b"\xff"]))
        raw = raw or bytearray(b"[")
    same_rows(bytes(raw), sorted(known))


def test_a_known_name_is_compared_as_it_is_written() -> None:
    names = ["a", "a\\nb", "a\nb"]  # the second one has a backslash and an n
    found, _ = same_rows(b'["a","a\\nb","a\\\\nb","a"]', names)
    assert found.tolist() == [0, 2, 1, 0]
    assert same_rows(b'["a","a\nb","a"]', names) is ScanError
    index, _ = both_indexes(names)
    for name in names[1:]:
        index.remove(name)
    assert scan.rows(b'["a","a\\nb","a"]', 0, 16, index) == (array("i", [0, -1, 0]), [(1, "a\nb")])


@given(texts(st.lists(st.one_of(TEXT, VALUES), max_size=5)), st.data())
def test_rows_of_anything_else(body: bytes, data: st.DataObject) -> None:
    raw = bytearray(body)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 1] = data.draw(st.binary(max_size=2))
        raw = raw or bytearray(b"]")
    same_rows(bytes(raw), ["a", "b"])


@given(st.text(st.characters(), max_size=6))  # lone surrogates, too
def test_surrogates(name: str) -> None:
    body = json.dumps([name]).encode()  # \ud83d\ude00 for a pair
    found = same_rows(body, [])
    joined = name.encode("utf-16-le", "surrogatepass")
    try:
        assert found == (array("i", [-1]), [(0, joined.decode("utf-16-le"))])
    except UnicodeDecodeError:
        assert found is ScanError


def test_rows_of_every_truncation() -> None:
    body = b'["n1", "\\u00e4\\ud83d\\ude00x", "a-longer-name-here" ]'
    for length in range(len(body)):
        assert same_rows(body[:length], ["n1"]) is ScanError
    assert same_rows(body, ["n1", "ä😀x"]) == (array("i", [0, 1, -1]), [(2, "a-longer-name-here")])


@pytest.mark.parametrize("body", [b"null", b"{}", b'"a"', b"[null]", b"[1]", b'[["a"]]', b'["a"]x', b'["\xff"]', b""])
def test_rows_takes_arrays_of_strings_only(body: bytes) -> None:
    assert same_rows(body, ["a"]) is ScanError


def test_ranges_must_lie_in_the_body() -> None:
    index = NameIndex()
    for start, end in [(-1, 2), (0, 3), (2, 1), (3, 3), (0, -1)]:
        with pytest.raises(ValueError, match="not inside"):
            scan.rows(b"[]", start, end, index)
        with pytest.raises(ValueError, match="not inside"):
            scan.items(b"[]", start, end)
        with pytest.raises(ValueError, match="not inside"):
            scan.node_name(b"[]", start, end)
    assert scan.rows(b'["a"],"b"]', 0, 5, index)[1] == [(0, "a")]  # nothing behind `end` is read


@pytest.mark.parametrize("count", [5_000, 100_000])
def test_large_clusters(count: int) -> None:
    names = [f"gpu-node-{row}" for row in range(count)]
    fast, _ = both_indexes(names)
    body = orjson.dumps({"Pod": {}, "Nodes": None, "NodeNames": [*reversed(names), "stranger"]})
    start, end = scan.split(body)["NodeNames"]
    found, unknown = scan.rows(body, start, end, fast)
    assert found.tolist() == [*reversed(range(count)), -1]
    assert unknown == [(count, "stranger")]


# --- offers ---


UUIDS = st.builds(lambda at, odd: ("0" * at + odd + "0" * 36)[:36], st.integers(0, 36), st.sampled_from(["", "é", '"']))
OFFERED = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"Pods": st.lists(st.fixed_dictionaries({"UID": st.one_of(TEXT, UUIDS)}), max_size=3),
                      "NumPDBViolations": st.integers(0, 2_000_000_000)}
    ),
    VALUES,
    st.fixed_dictionaries({"Pods": st.lists(VALUES, max_size=2), "NumPDBViolations": VALUES}),
)  # fmt: skip


@given(
    texts(st.dictionaries(st.sampled_from(["a", "b", "n1", "é", 'q"']), st.one_of(OFFERED, OFFERED), max_size=5)),
    st.data(),
)
def test_offers(body: bytes, data: st.DataObject) -> None:
    raw = bytearray(body)
    for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 1] = data.draw(st.binary(max_size=2))
        raw = raw or bytearray(b"}")
    text = bytes(raw)
    fast, slow = both_indexes(["a", "n1"])
    whole = b'{"Pod":{}, "Offers":' + text + b',"x":[]}'
    try:
        keys, pod, found = scan.split_offers(whole, "Offers", fast)
    except scan.ScanError:
        with pytest.raises(reference.ScanError):
            reference.split_offers(whole, "Offers", slow)
        return
    assert (keys, pod, found) == reference.split_offers(whole, "Offers", slow)
    assert (keys, pod, found) == scan.split_offers(whole, "Offers", fast)
    assert keys == scan.split(whole)
    if found is not None and text == body:
        rows, spans = found
        victims = [orjson.loads(whole[spans[2 * i] : spans[2 * i + 1]]) for i in range(len(rows))]
        assert victims == list(orjson.loads(body).values())


def test_offers_in_the_form_of_kube_scheduler() -> None:
    offered = {
        f"n{i}": {"Pods": [{"UID": f"u{i}-{j}"} for j in range(i % 3)], "NumPDBViolations": i} for i in range(200)
    }
    body = orjson.dumps({"Offers": offered})
    fast, _ = both_indexes([f"n{i}" for i in range(0, 200, 2)])
    found = scan.split_offers(body, "Offers", fast)[2]
    assert found is not None
    assert found[0].tolist() == [i // 2 if i % 2 == 0 else -1 for i in range(200)]
    assert scan.split_offers(body, "Others", fast) == ({"Offers": (10, len(body) - 1)}, None, None)
    twice = b'{"Offers":{"n0":{},"n0":{}}}'
    assert scan.split_offers(twice, "Offers", fast)[2] is None  # which of the two counts is not ours to say


# --- NameIndex ---


@given(st.lists(st.tuples(st.sampled_from("aarg"), st.integers(0, 40)), max_size=200))
def test_name_index(steps: list[tuple[str, int]]) -> None:
    fast, slow = NameIndex(), reference.NameIndex()
    for what, number in steps:
        name = "n" * (number % 3) + str(number)
        for index in (fast, slow):
            if what == "g" or (what == "a") == (index.get(name) >= 0):
                continue  # `get` is compared below
            if what == "a":
                index.add(name, number)
            else:
                index.remove(name)
        assert len(fast) == len(slow)
        assert [fast.get("n" * (n % 3) + str(n)) for n in range(42)] == [
            slow.get("n" * (n % 3) + str(n)) for n in range(42)
        ]
        names = ["n" * (n % 3) + str(n) for n in (7, *range(42), 7)]
        assert fast.rows(names) == slow.rows(names)


def test_name_index_grows_shrinks_and_keeps_every_name() -> None:
    dice = random.Random(3)
    index, truth = NameIndex(), dict[str, int]()
    for step in range(20_000):
        name = f"node-{dice.randrange(2_000)}"
        if name in truth:
            index.remove(name)
            del truth[name]
        else:
            index.add(name, step)
            truth[name] = step
        if step % 1_000 == 0:
            assert len(index) == len(truth)
            assert all(index.get(f"node-{i}") == truth.get(f"node-{i}", -1) for i in range(2_000))


def test_name_index_refuses() -> None:
    index = NameIndex()
    index.add("a", 3)
    with pytest.raises(ValueError, match="already, as row 3"):
        index.add("a", 4)
    with pytest.raises(ValueError, match="negative"):
        index.add("b", -1)
    with pytest.raises(KeyError):
        index.remove("b")
    with pytest.raises(TypeError):
        index.rows(["a", None])  # type: ignore[list-item]
    with pytest.raises(UnicodeEncodeError):
        index.add("\ud800", 1)
    assert (len(index), index.get("a"), index.get("b")) == (1, 3, -1)


# --- whole nodes ---


@given(st.data())
def test_items_and_node_names(data: st.DataObject) -> None:
    other = st.dictionaries(TEXT.filter(lambda key: key not in ("metadata", "name")), VALUES, max_size=2)
    names = data.draw(st.lists(TEXT, max_size=4))
    nodes = [{**data.draw(other), "metadata": {**data.draw(other), "name": name}} for name in names]
    nodes_value = {**data.draw(other.filter(lambda o: "items" not in o)), "items": nodes}
    body = b"..." + data.draw(texts(st.just(nodes_value))) + b"..."
    ranges = scan.items(body, 3, len(body) - 3)
    assert ranges == reference.items(body, 3, len(body) - 3)
    assert [json.loads(body[start:end]) for start, end in ranges] == nodes
    assert [scan.node_name(body, start, end) for start, end in ranges] == names
    assert [reference.node_name(body, start, end) for start, end in ranges] == names


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"Items":[]}',
        b'{"items":{}}',
        b'{"items":"[]"}',
        b'{"items":[null]}',
        b'{"items":[{},1]}',
        b'{"items":[[{}]]}',
        b'{"items":[],"items":[]}',
        b"null",
    ],
)
def test_items_refuses(body: bytes) -> None:
    assert outcome(scan.items, body, 0, len(body)) is outcome(reference.items, body, 0, len(body)) is ScanError


# What a decoder must not be handed: halves of pairs, as escapes and as bytes, too long forms, ends of characters alone.
BROKEN = [
    rb"\ud800", rb"\udfff", rb"\ud800\ud800", rb"\uD83D\u0041", rb"\ud83dx\ude00", rb"\\\udc00", rb"\ud83d\n\ude00",
    b"\xff", b"\xc3", b"\xc3(", b"\x80", b"\xc0\xaf", b"\xc1\x81", b"\xe0\x80\xaf", b"\xe2\x82", b"\xed\xa0\x80",
    b"\xed\xbf\xbf", b"\xf0\x80\x80\xaf", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xfe",
]  # fmt: skip
SOUND = [
    rb"\ud83d\ude00", rb"\\ud800", rb"\\\\ud800", rb"\uD7FF", rb"\uE000", rb"\"\\", rb"\\\ud83d\ude00",
    "\u00fc\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff".encode("utf-8", "surrogatepass"),
]  # fmt: skip


@pytest.mark.parametrize("length", range(10))  # where words of 8 bytes begin and end
def test_nodes_with_text_that_is_none_are_refused(length: int) -> None:
    for part in (*BROKEN, *SOUND):
        for form in (b'{"items":[{"a":"%s"}]}', b'{"items":[{"%s":[]}]}', b'{"items":[{"a":{"b":["%s"]},"a":""}]}'):
            body = form % (b"x" * length + part + b"y" * (9 - length))
            found = outcome(scan.items, body, 0, len(body))
            assert found == outcome(reference.items, body, 0, len(body)), body
            assert (found is ScanError) == (part in BROKEN), body


@given(st.lists(st.one_of(st.sampled_from([*BROKEN, *SOUND, b"a", b"\\\\"]), st.binary(max_size=3)), max_size=6))
def test_nodes_of_any_bytes(parts: list[bytes]) -> None:
    """What passes can be decoded by anybody, and both twins pass the same."""
    body = b'{"items":[{"metadata":{"name":"n"},"a":"' + b"".join(parts) + b'"}]}'
    found = outcome(scan.items, body, 0, len(body))
    assert found == outcome(reference.items, body, 0, len(body))
    if found is not ScanError:
        for start, end in found:
            orjson.loads(body[start:end])


def test_a_name_that_no_node_can_have_is_refused() -> None:
    """Nothing keeps it, so nothing can be filled with such names."""
    for name, fits in (("n" * 253, True), ("n" * 254, False), ("\u00fc" * 127, False), ("n" * 100_000, False)):
        for ascii_only in (True, False):
            text = json.dumps([name], ensure_ascii=ascii_only).encode()
            found = same_rows(text, ["n"])
            assert (same_rows(text[:-1] + b"," + text[1:], [name]) is ScanError) == (found is ScanError)
            assert (found is not ScanError) == fits
            whole = b'{"metadata":{"name":' + text[1:-1] + b"}}"
            for twin in (scan, reference):
                assert (outcome(twin.node_name, whole, 0, len(whole)) is not ScanError) == fits


def test_items_null_is_none() -> None:
    assert scan.items(b'{"items":null}', 0, 14) == reference.items(b'{"items":null}', 0, 14) == []


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"metadata":null}',
        b'{"metadata":{}}',
        b'{"metadata":{"name":1}}',
        b'{"metadata":{"name":null}}',
        b'{"metadata":{"name":"a","name":"b"}}',
        b'{"metadata":{"name":"a"},"metadata":{"name":"b"}}',
        b'{"metadata":{"name":"\\udfff"}}',
        b'{"metadata":{"name":"\xff"}}',
    ],
)
def test_node_name_refuses(body: bytes) -> None:
    assert outcome(scan.node_name, body, 0, len(body)) is outcome(reference.node_name, body, 0, len(body)) is ScanError


# --- Which object it is ---


def same_identity(body: bytes) -> Any:
    """What both say of a pod in a request; ScanError: it is no JSON."""
    fast, slow = both_indexes([])
    whole = b'{"Pod":' + body + b',"NodeNames":[]}'
    found = outcome(scan.split_names, whole, "NodeNames", fast)
    assert found == outcome(reference.split_names, whole, "NodeNames", slow), body
    return found if found is ScanError else found[1]


PARTS = [b'"uid":"u"', b'"resourceVersion":"7"', b'"uid":"v"', b'"uid":null', b'"uid":7', b'"\\u0075id":"v"']
PARTS += [b'"uid":"\\u0075"', b'"name":"n"', b'"labels":{"uid":"x"}', b'"uid":"\xff"', b'"uidx":"u"']
OTHERS = [
    b'"status":{"nominatedNodeName":"n"}',
    b'"status":{"nominatedNodeName":null}',
    b'"status":{}',
    b'"status":null',
]
OTHERS += [b'"metadata":null', b'"spec":{"metadata":{"uid":"z"}}', b'"\\u006detadata":{}', b'"status":[{}]', b'"x":"y"']


@given(st.data())
def test_identities(data: st.DataObject) -> None:
    """Keys that come twice, that are escaped, nested or of another type, in any order, and one byte that is wrong."""
    inner = [data.draw(st.lists(st.sampled_from(PARTS), max_size=4)) for _ in range(data.draw(st.integers(0, 2)))]
    inner += [PARTS[:2]]
    outer = [b'"metadata":{' + b",".join(one) + b"}" for one in inner]
    outer += data.draw(st.lists(st.sampled_from(OTHERS), max_size=2))
    space = data.draw(st.sampled_from([b"", b" "]))
    body = space + b"{" + (b"," + space).join(data.draw(st.permutations(outer))) + b"}" + space
    same_identity(body)
    at = data.draw(st.integers(0, len(body) - 1))
    same_identity(body[:at] + bytes([data.draw(st.sampled_from(b'"{}[],: x\\'))]) + body[at + 1 :])
    same_identity(body[:at])


def test_an_identity_is_stated_plainly_or_not_at_all() -> None:
    plain = b'{"spec":{"a":[1]},"metadata":{"name":"n","uid":"u-1","labels":{"uid":"x"},"resourceVersion":"7"},"x":1}'
    assert same_identity(plain) == ("u-1", "7", "")
    status = plain.replace(b'"x":1', b'"status":{"phase":"Pending","nominatedNodeName":"n-1"}')
    assert same_identity(status) == ("u-1", "7", "n-1")
    for wrong in (
        status.replace(b"phase", b"nominatedNodeName"),
        status.replace(b'"n-1"', b"null"),
        plain.replace(b'"x":1', b'"metadata":{}'),
        plain.replace(b'"name":"n"', b'"uid":"v"'),
        plain.replace(b'"name":"n"', b'"\\u0075id":"v"'),
        plain.replace(b'"x":1', b'"\\u006detadata":{}'),
        plain.replace(b'"u-1"', b"null"),
        plain.replace(b'"7"', b"7"),
        plain.replace(b'"u-1"', b'"u\\u002d1"'),
        plain.replace(b'"u-1"', b'"\xff"'),
        plain.replace(b'"metadata"', b'"Metadata"'),
        plain + b"}",
        b"null",
        b"",
    ):
        assert same_identity(wrong) in (None, ScanError), wrong
