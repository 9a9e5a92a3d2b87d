"""Quantities against the official client's parser, and against what Kubernetes rounds to."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, localcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from extender.objects.resources import QuantityError, milli, value

MOST = 2**63 - 1

numbers = st.one_of(
    st.from_regex(r"[0-9]{1,12}(\.[0-9]{0,6})?", fullmatch=True),
    st.from_regex(r"\.[0-9]{1,6}", fullmatch=True),
)
suffixes = st.sampled_from(
    ["", *"numkMGTPE", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e0", "e3", "E2", "e+2", "e-3", "E-1"]
)


@given(numbers, suffixes, st.sampled_from(["", "+"]))
@example("1.0000000001", "", "")
@example("0", "E", "")
def test_agrees_with_the_official_client_rounded_up(number: str, suffix: str, sign: str) -> None:
    """Exact: the client's Decimal, times the scale, rounded up."""
    text = sign + number + suffix
    with localcontext() as context:
        context.prec = 100
        exact = parse_quantity(text)  # type: ignore[no-untyped-call]
        for parse, scale in ((value, 1), (milli, 1000)):
            expected = int((exact * scale).to_integral_value(ROUND_CEILING))
            assert parse(text) == min(expected, MOST)


@pytest.mark.parametrize(
    ("text", "in_milli", "in_units"),
    [
        ("500m", 500, 1),  # 0.5 -> 1
        ("1", 1000, 1),
        ("1.5", 1500, 2),
        ("100u", 1, 1),  # 0.1 milli -> 1
        ("1n", 1, 1),
        ("0n", 0, 0),
        ("1Ki", 1024_000, 1024),
        ("1.5Gi", 1610612736_000, 1610612736),  # 1.5 * 2^30
        ("1E", MOST, 10**18),
        ("8Ei", MOST, MOST),  # 2^63
        ("1e19", MOST, MOST),
        ("1e30", MOST, MOST),  # of memory: the API server accepts it
        ("1e999999999999", MOST, MOST),
        ("1e3", 1_000_000, 1000),
        ("1E3", 1_000_000, 1000),
        ("12E-1", 1200, 2),
        ("0.1Ki", 102_400, 103),  # 102.4
        ("7Ei", MOST, 7 * 2**60),
        ("9223372036854775807", MOST, MOST),
        ("9223372036854775", 9223372036854775000, 9223372036854775),
        ("9223372036854776", MOST, 9223372036854776),
        ("-0", 0, 0),
        ("5.", 5000, 5),
        ("1e-999999999999", 1, 1),
        ("0e999999999999", 0, 0),
        (4, 4000, 4),  # a number in YAML
        (0.5, 500, 1),
        (1e-07, 1, 1),
    ],
)
def test_values(text: str | int | float, in_milli: int, in_units: int) -> None:
    """What is beyond int64 counts as its largest number, as in Kubernetes."""
    assert value(text) == in_units
    assert milli(text) == in_milli


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 ", " 1", "1\n", ".", "+", "e3", "1e", "1e+", "1kk", "1ki", "1mi", "1K", "1i", "1_000", "0x1", "١", "½",
     "nan", "inf", "Infinity", "1,5", "--1", "1e3Ki", "-1", "-1n", "-1e30", "9" * 65,
     float("nan"), float("inf"), -1, -0.5],
)  # fmt: skip
def test_refused(text: str | float) -> None:
    """Not in the grammar of resource.Quantity, or negative."""
    with pytest.raises(QuantityError):
        value(text)


@given(st.text(max_size=80))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    """Nothing but QuantityError comes out, and never a negative."""
    for parse in (value, milli):
        try:
            assert 0 <= parse(text) <= MOST
        except QuantityError:
            continue


@given(st.decimals(min_value=0, max_value=10**12, places=9))
def test_rounding_is_up_and_by_less_than_one(number: Decimal) -> None:
    """ceil: never below the number, never a whole unit above."""
    assert 0 <= value(f"{number:f}") - number < 1
