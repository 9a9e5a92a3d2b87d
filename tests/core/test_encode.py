"""Replies: both twins write the same bytes, which are what orjson writes for the same dict or list."""

from array import array

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import encode
from ext_core.rows import Rejections
from tests.reference import encode as reference

# Every character that JSON escapes is likely, and so are neighbours of the limits: 0x1f, DEL, 2, 3 and 4 UTF-8 bytes.
TEXT = st.text(
    st.one_of(
        st.sampled_from('"\\/\b\t\n\f\r\x00\x1f\x20\x7f\u0080\u07ff\u0800\uffff\U00010000'),
        st.characters(codec="utf-8"),
    )
)
NAMES = st.lists(TEXT, unique=True, max_size=30)
TEXTS = ["gpu: too few", 'quote " and \\ and \n', "", "späte Antwort 🐢"]
EMPTY = array("i")
NO_ROWS = (EMPTY, array("B"))


def both_heads(names: list[str]) -> tuple[encode.Heads, reference.Heads]:
    fast, slow = encode.Heads(), reference.Heads()
    for row, name in enumerate(names):
        fast.set(2 * row, name)  # rows with gaps
        slow.set(2 * row, name)
    return fast, slow


@st.composite
def verdicts(draw: st.DrawFn) -> tuple[list[str], list[int], list[tuple[str, int]]]:
    """Names; for each a verdict: -1 passes, 0-3 failed with that code, 4-7 unresolvable; and some unknown names."""
    names = draw(NAMES)
    cut = draw(st.integers(0, len(names)))
    verdict = draw(st.lists(st.integers(-1, 7), min_size=cut, max_size=cut))
    return names[:cut], verdict, [(name, draw(st.integers(0, 3))) for name in names[cut:]]


def columns(verdict: list[int], unknown: list[tuple[str, int]]) -> tuple["array[int]", Rejections]:
    def which(low: int, high: int) -> list[int]:
        return [i for i, v in enumerate(verdict) if low <= v <= high]

    failed, lost = which(0, 3), which(4, 7)
    return (
        array("i", [2 * i for i in which(-1, -1)]),
        Rejections(
            (array("i", [2 * i for i in failed]), array("B", [verdict[i] for i in failed])),
            (array("i", [2 * i for i in lost]), array("B", [verdict[i] - 4 for i in lost])),
            TEXTS,
            unknown,
        ),
    )


@given(verdicts())
def test_filter_result(case: tuple[list[str], list[int], list[tuple[str, int]]]) -> None:
    names, verdict, unknown = case
    fast, slow = both_heads(names)
    passed, rejections = columns(verdict, unknown)
    reply = encode.filter_result(fast, passed, rejections)
    assert reply == reference.filter_result(slow, passed, rejections)
    assert orjson.loads(reply)["NodeNames"] == [name for name, v in zip(names, verdict, strict=True) if v == -1]


@given(verdicts(), st.lists(st.dictionaries(TEXT, TEXT, max_size=3), max_size=5))
def test_filter_result_nodes(
    case: tuple[list[str], list[int], list[tuple[str, int]]], nodes: list[dict[str, str]]
) -> None:
    names, verdict, unknown = case
    fast, slow = both_heads(names)
    body, ranges = b"[", []
    for node in nodes:
        ranges.append((len(body), len(body) + len(orjson.dumps(node))))
        body += orjson.dumps(node) + b" ,"
    _, rejections = columns(verdict, unknown)
    reply = encode.filter_result_nodes(fast, body, ranges, rejections)
    assert reply == reference.filter_result_nodes(slow, body, ranges, rejections)
    assert orjson.loads(reply)["Nodes"] == {"metadata": {}, "items": nodes}


@given(NAMES, st.data(), st.sampled_from(["b", "i"]), NAMES)
def test_priorities(names: list[str], data: st.DataObject, typecode: str, unknown: list[str]) -> None:
    fast, slow = both_heads(names)
    low, high = (-128, 127) if typecode == "b" else (-(2**31), 2**31 - 1)
    point = st.one_of(st.integers(0, 11), st.sampled_from([low, high, -1, 99, 100]), st.integers(low, high))
    points = array(typecode, data.draw(st.lists(point, min_size=len(names), max_size=len(names))))
    rows = array("i", data.draw(st.permutations([2 * i for i in range(len(names))])))
    assert encode.priorities(fast, rows, points, unknown) == reference.priorities(slow, rows, points, unknown)


@given(st.text(st.characters(), min_size=1))  # lone surrogates, too
def test_filter_error(message: str) -> None:
    reply = encode.filter_error(message)
    assert reply == reference.filter_error(message)
    assert orjson.loads(reply)["NodeNames"] is None
    assert orjson.loads(reply)["Error"] != ""


def test_filter_error_needs_a_message() -> None:
    with pytest.raises(ValueError, match="must have a message"):
        encode.filter_error("")


def test_the_bytes_are_those_of_the_contract() -> None:
    heads, _ = both_heads(["n1", "n2", "n3"])
    reply = encode.filter_result(
        heads,
        array("i", [0]),
        Rejections(
            (array("i", [2]), array("B", [1])),
            (array("i", [4]), array("B", [0])),
            ["a", "b"],
            [("n4", 0)],
        ),
    )
    assert reply == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{"n2":"b"},'
        b'"FailedAndUnresolvableNodes":{"n3":"a","n4":"a"},"Error":""}'
    )
    assert encode.priorities(heads, array("i", [2, 0]), array("b", [10, 0]), ["x"]) == (
        b'[{"Host":"n2","Score":10},{"Host":"n1","Score":0},{"Host":"x","Score":0}]'
    )
    assert encode.priorities(heads, EMPTY, array("b"), []) == b"[]"


@pytest.mark.parametrize("count", [5_000, 100_000])
def test_large_clusters(count: int) -> None:
    heads, slow = encode.Heads(), reference.Heads()
    for row in range(count):
        heads.set(row, f"node-{row}")
        slow.set(row, f"node-{row}")
    rows, points = array("i", range(count)), array("b", [row % 11 for row in range(count)])
    assert encode.priorities(heads, rows, points, []) == reference.priorities(slow, rows, points, [])
    codes = array("B", [row % 4 for row in range(count)])
    for passed, failed, unresolvable in [
        (rows, NO_ROWS, NO_ROWS),
        (EMPTY, (rows, codes), NO_ROWS),
        (EMPTY, NO_ROWS, (rows, codes)),
    ]:
        rejections = Rejections(failed, unresolvable, TEXTS, [])
        assert encode.filter_result(heads, passed, rejections) == reference.filter_result(slow, passed, rejections)


@pytest.mark.parametrize("row", [-1, 1, 3, 4, 2**31 - 1])  # 0 and 2 have names; 4 lost its own
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_row_without_a_name_is_rejected(row: int, column: int) -> None:
    heads, _ = both_heads(["a", "b", "c"])
    heads.clear(4)
    rows = [array("i", [0, row] if i == column else []) for i in range(3)]
    codes = [array("B", [0] * len(r)) for r in rows]
    with pytest.raises(ValueError, match="entry 1 is a row without a name"):
        encode.filter_result(heads, rows[0], Rejections((rows[1], codes[1]), (rows[2], codes[2]), TEXTS, []))
    with pytest.raises(ValueError, match="entry 1 is a row without a name"):
        encode.priorities(heads, array("i", [0, row]), array("b", [1, 2]), [])
    assert encode.priorities(heads, array("i", [0]), array("b", [1]), []) == b'[{"Host":"a","Score":1}]'


def test_rows_are_renamed_and_cleared() -> None:
    heads = encode.Heads()
    heads.set(0, "old")
    heads.set(0, "new name")
    assert encode.priorities(heads, array("i", [0]), array("i", [7]), []) == b'[{"Host":"new name","Score":7}]'
    heads.clear(0)
    for row in (0, 1, -1):
        with pytest.raises(KeyError):
            heads.clear(row)
    with pytest.raises(ValueError, match="negative"):
        heads.set(-1, "a")
    with pytest.raises(UnicodeEncodeError):
        heads.set(0, "\ud800")


def test_columns_that_do_not_match_are_rejected() -> None:
    heads, _ = both_heads(["a", "b"])
    one, two = array("i", [0]), array("B", [0, 0])
    with pytest.raises(ValueError, match="1 rows but 2 codes"):
        encode.filter_result(heads, EMPTY, Rejections((one, two), NO_ROWS, TEXTS, []))
    with pytest.raises(ValueError, match="1 rows but 2 codes"):
        encode.filter_result(heads, EMPTY, Rejections(NO_ROWS, (one, two), TEXTS, []))
    with pytest.raises(ValueError, match="1 rows but 2 points"):
        encode.priorities(heads, one, array("b", [0, 0]), [])
    with pytest.raises(ValueError, match="array"):
        encode.priorities(heads, one, array("h", [0]), [])
    with pytest.raises(ValueError, match="code 4 has no text"):
        encode.filter_result(heads, EMPTY, Rejections((one, array("B", [4])), NO_ROWS, TEXTS, []))
    for code in (-1, 4, 256):
        with pytest.raises(ValueError, match=f"code {code}"):
            encode.filter_result(heads, EMPTY, Rejections(NO_ROWS, NO_ROWS, TEXTS, [("x", code)]))
    for bad in [(-1, 2), (0, 0), (2, 1), (0, 3)]:
        with pytest.raises(ValueError, match="range"):
            encode.filter_result_nodes(heads, b"{}", [bad], Rejections(NO_ROWS, NO_ROWS, TEXTS, []))
