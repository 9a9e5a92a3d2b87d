"""The functions that Kubernetes 1.37 gives to CEL, as far as expressions about devices use them: those of CEL itself,
strings (version 2), lists (version 3), sets, regular expressions, quantities, semantic versions and optional values.

Types are "bool", "int", "double", "string", "null", "quantity", "semver", "dyn" (known at evaluation only), "any" (of
no value: the elements of an empty list), or ("list", element), ("map", key, value), ("optional", value); "A" in a
signature is any one type. A value is a Python bool, int, float, str, None, tuple, dict, Quantity, Semver or Optional.

Where Kubernetes fails the function raises EvaluationError, where we do not know Unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final, NamedTuple

from extender.objects.cel.values import (
    NONE,
    EvaluationError,
    Optional,
    Quantity,
    Semver,
    Unsupported,
    added,
    as_integer,
    is_int64,
    quantity,
    semver,
)

Type = Any
LONGEST_PATTERN: Final = 512  # characters of a regular expression
LONGEST_MATCHED: Final = 4096  # characters that one is matched against
_MEMORY: Final = 1 << 20  # bytes of a compiled regular expression
_ORDERED: Final = ("bool", "int", "double", "string")
_FLOAT: Final = re.compile(r"[+-]?[0-9]{1,17}(?:\.[0-9]{1,17})?", re.ASCII)
_INT: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "false", "FALSE", "False"), False),
}


class Overload(NamedTuple):
    """A function for these types. `member`: called on its first argument; `free`: called by name alone."""

    parameters: tuple[Type, ...]
    result: Type
    function: Callable[..., Any]
    member: bool = True
    free: bool = False


def type_of(value: Any) -> str:
    """The name of the type of a value, of a list, map or optional value without its elements."""
    return _NAMES.get(type(value), "dyn")


_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    float: "double",
    str: "string",
    type(None): "null",
    tuple: "list",
    dict: "map",
    Quantity: "quantity",
    Semver: "semver",
    Optional: "optional",
}


# -- operators ---------------------------------------------------------------------------------------------------------


def equal(first: Any, second: Any) -> bool:
    """CEL's `==`: numbers by value, other types each for itself."""
    kinds = type(first), type(second)
    if kinds[0] is Quantity or kinds[0] is Semver:
        if kinds[0] is not kinds[1] or (kinds[0] is Quantity and second.result):
            if second is None:
                return False
            raise EvaluationError("no such overload: ==")
        return bool(first.nano == second.nano if kinds[0] is Quantity else first == second)
    if kinds[0] is bool or kinds[1] is bool:
        return kinds[0] is kinds[1] and first == second
    if kinds[0] is tuple or kinds[0] is dict or kinds[0] is Optional:
        return _equal_parts(first, second)
    if kinds[0] in (int, float):
        return kinds[1] in (int, float) and not _compared(first, second)
    return kinds[0] is kinds[1] and first == second


def _equal_parts(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, Optional):
        return first.some == second.some and (not first.some or equal(first.value, second.value))
    if len(first) != len(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    for pair in zip(first, second, strict=True):
        if type_of(pair[0]) in ("quantity", "semver"):
            raise Unsupported("lists of quantities are compared")
        if not equal(*pair):
            return False
    return True


def unequal(first: Any, second: Any) -> bool:
    """CEL's `!=`, which never fails."""
    try:
        return not equal(first, second)
    except EvaluationError:
        return True


def contained(value: Any, of: Any) -> bool:
    """CEL's `in`."""
    if isinstance(of, dict):
        if not isinstance(value, str):
            raise Unsupported("a key that is no string")
        return value in of
    if type(value) is Semver:
        raise Unsupported("a version is searched")  # cel-go 0.29 panics where all elements are literals
    for item in of:
        if type_of(item) in ("quantity", "semver"):
            raise Unsupported("a list of quantities is searched")
        if equal(item, value):
            return True
    return False


def _compared(first: Any, second: Any) -> int:
    """-1, 0 or 1. An integer is compared with a floating-point number as one."""
    if type(first) is not type(second):
        first, second = float(first), float(second)
    if first != first or second != second:  # NaN
        raise Unsupported("NaN is compared")
    return int(first > second) - int(first < second)


def _int(number: int) -> int:
    if not is_int64(number):
        raise EvaluationError("integer overflow")
    return number


def _divide(first: int, second: int) -> int:
    if not second:
        raise EvaluationError("division by zero")
    quotient = abs(first) // abs(second)
    return _int(quotient if (first < 0) == (second < 0) else -quotient)


def _modulo(first: int, second: int) -> int:
    return first - second * _divide(first, second)


def _float_divide(first: float, second: float) -> float:
    if not second:
        raise Unsupported("a division by zero of floating-point numbers")
    return first / second


def _finite(number: float) -> float:
    if not isfinite(number):
        raise Unsupported("a floating-point number without bound")
    return number


def _concat(first: Any, second: Any) -> Any:
    return first + second


# -- conversions -------------------------------------------------------------------------------------------------------


def _int_of_text(text: str) -> int:
    if not _INT.fullmatch(text):
        raise EvaluationError("not an integer")
    return _int(int(text))


def _int_of_float(number: float) -> int:
    if not isfinite(number) or not -(2.0**63) < number < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(number)


def _float_of_text(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise Unsupported("a text that may be a floating-point number")
    return float(text)


def _bool_of_text(text: str) -> bool:
    value = _BOOLS.get(text)
    if value is None:
        raise EvaluationError("not a boolean")
    return value


# -- strings -----------------------------------------------------------------------------------------------------------


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationError("index out of range")
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise EvaluationError("index out of range")
    if not part:
        return min(start, len(text))
    return text.find(part, start)


def _last_index_from(text: str, part: str, start: int) -> int:
    if start < 0:
        raise EvaluationError("index out of range")
    if not part:
        return min(start, len(text))
    return -1 if start >= len(text) else text.rfind(part, 0, start + len(part))


def _replace(text: str, old: str, new: str, times: int = -1) -> str:
    count = len(text) + 1 if not old else text.count(old)
    if count * len(new) > LONGEST_TEXT:
        raise Unsupported("a text that is too long")
    return text.replace(old, new, max(times, -1))


LONGEST_TEXT: Final = 1 << 16  # characters of a text, elements of a list, that a function returns


def _split(text: str, separator: str, most: int = -1) -> tuple[str, ...]:
    if most == 0:
        return ()
    if separator:
        return tuple(text.split(separator, most - 1 if most > 0 else -1))
    if most < 0 or most > len(text):
        return tuple(text)
    return (*text[: most - 1], text[most - 1 :])


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= len(text) or not start <= end <= len(text):
        raise EvaluationError("index out of range")
    return text[start:end]


_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_UPPER: Final = str.maketrans(ascii_lowercase, ascii_uppercase)


def _join(texts: tuple[Any, ...], separator: str = "") -> str:
    if any(type(text) is not str for text in texts):
        raise EvaluationError("no such overload: join")
    if sum(map(len, texts)) + len(separator) * len(texts) > LONGEST_TEXT:
        raise Unsupported("a text that is too long")
    return separator.join(texts)


# -- regular expressions -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def pattern(text: str) -> Any:
    """The regular expression, matched in linear time. Unsupported where it is too large, or RE2 rejects it."""
    import re2  # few selectors have any

    if len(text) > LONGEST_PATTERN:
        raise Unsupported(f"a regular expression of more than {LONGEST_PATTERN} characters")
    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY, False
    try:
        return re2.compile(text, options)
    except re2.error:
        raise Unsupported("a regular expression that RE2 rejects") from None


def _searched(text: str, regex: str, at: int = 0) -> Any:
    if len(text) > LONGEST_MATCHED:
        raise Unsupported("a text that is too long for a regular expression")
    return pattern(regex).search(text, at)


def _matches(text: str, regex: str) -> bool:
    return _searched(text, regex) is not None


def _find(text: str, regex: str) -> str:
    match = _searched(text, regex)
    return match.group(0) if match is not None else ""


def _find_all(text: str, regex: str, most: int = -1) -> tuple[str, ...]:
    """As Go's FindAllString: an empty match that abuts the one before it does not count."""
    parts: list[str] = []
    at, before = 0, -1
    while at <= len(text) and (most < 0 or len(parts) < most):
        match = _searched(text, regex, at)
        if match is None:
            break
        start, end = match.span()
        if end > start or start != before:
            parts.append(match.group(0))
        before, at = end, end if end > at else at + 1
        if end == start:
            at = max(at, end + 1)
    return tuple(parts)


# -- lists and sets ----------------------------------------------------------------------------------------------------


def _same_kind(items: Iterable[Any]) -> None:
    """Kubernetes' own errors for other lists are not modelled."""
    kinds = {type_of(item) for item in items}
    if len(kinds) > 1 or not kinds <= set(_ORDERED):
        raise Unsupported("elements of a list that are not of one ordered type")


def _sorted(items: tuple[Any, ...]) -> tuple[Any, ...]:
    _same_kind(items)
    return tuple(sorted(items))


def _is_sorted(items: tuple[Any, ...]) -> bool:
    _same_kind(items)
    return all(first <= second for first, second in pairwise(items))


def _extreme(choose: Callable[[tuple[Any, ...]], Any]) -> Callable[[tuple[Any, ...]], Any]:
    def of(items: tuple[Any, ...]) -> Any:
        if not items:
            raise EvaluationError("an empty list has none")
        _same_kind(items)
        return choose(items)

    return of


def _sum(items: tuple[Any, ...]) -> Any:
    _same_kind(items)
    if items and type_of(items[0]) != "int":
        raise Unsupported("a sum of other than integers")
    total = 0
    for item in items:
        total = _int(total + item)
    return total


def _position(items: tuple[Any, ...], value: Any) -> int:
    return next((at for at, item in enumerate(items) if not unequal(item, value)), -1)


def _last_position(items: tuple[Any, ...], value: Any) -> int:
    return next((at for at in reversed(range(len(items))) if not unequal(items[at], value)), -1)


def _includes(target: Any, value: Any) -> bool:
    if isinstance(target, dict):
        raise Unsupported("a map is searched")
    items = target if isinstance(target, tuple) else (target,)
    return any(not unequal(item, value) for item in items)


def _slice(items: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    if not 0 <= start <= end <= len(items):
        raise EvaluationError("index out of range")
    return items[start:end]


def _flatten(items: tuple[Any, ...], depth: int = 1) -> tuple[Any, ...]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    for item in items:
        if isinstance(item, tuple) and type(item) is tuple and depth:
            flat += _flatten(item, min(depth, 64) - 1)
        else:
            flat.append(item)
    return tuple(flat)


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(items) > 256:
        raise Unsupported("a list that is too long for distinct")
    kept: list[Any] = []
    for item in items:
        if not contained(item, kept):
            kept.append(item)
    return tuple(kept)


def _range(number: int) -> tuple[int, ...]:
    if number < 0:
        raise EvaluationError("size must be non-negative")
    if number > 4096:
        raise Unsupported("a long range")
    return tuple(range(number))


def _present(items: tuple[Any, ...], others: tuple[Any, ...]) -> Iterator[bool]:
    """Of each of the others, whether the items have it."""
    if len(items) * len(others) > LONGEST_TEXT:
        raise Unsupported("lists that are too long for sets")
    return (contained(other, items) for other in others)


def _has_all(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(_present(items, others))


# -- quantities, optional values ---------------------------------------------------------------------------------------


def _integer(of: Quantity) -> int:
    number = as_integer(of)
    if number is None:
        raise EvaluationError("cannot convert value to integer")
    return number


def _approximate(of: Quantity) -> float:
    if of.small is None:
        raise Unsupported("a quantity beyond int64 as floating-point number")
    value, scale = of.small
    return float(value) * float(f"1e{scale}") if scale else float(value)


def _plus(sign: int) -> Callable[[Quantity, Quantity | int], Quantity]:
    def of(first: Quantity, second: Quantity | int) -> Quantity:
        other = second if isinstance(second, Quantity) else Quantity(second * 10**9, (second, 0))
        return added(first, other, sign)

    return of


def _is_read(read: Callable[..., Any]) -> Callable[..., bool]:
    def of(*arguments: Any) -> bool:
        try:
            read(*arguments)
        except EvaluationError:
            return False
        return True

    return of


def _semver(text: str, normalize: bool = False) -> Semver:
    return semver(text, normalize=normalize)


def _value(of: Optional) -> Any:
    if not of.some:
        raise EvaluationError("optional.none() dereference")
    return of.value


def _non_zero(value: Any) -> Optional:
    if type_of(value) not in ("bool", "int", "double", "string", "list", "map", "null"):
        raise Unsupported("optional.ofNonZeroValue of another type")
    return Optional(some=True, value=value) if value else NONE


# -- by name -----------------------------------------------------------------------------------------------------------

_A_LIST: Final = ("list", "A")
_STRINGS: Final = ("list", "string")
_A_OPTIONAL: Final = ("optional", "A")
_NUMBERS: Final = (("int", "int"), ("double", "double"), ("int", "double"), ("double", "int"))


def _orders(holds: Callable[[int], bool]) -> list[Overload]:
    """An order between bools, strings or numbers."""

    def of(first: Any, second: Any) -> bool:
        return holds(_compared(first, second))

    pairs = (("bool", "bool"), ("string", "string"), *_NUMBERS)
    return [Overload(pair, "bool", of, member=False, free=True) for pair in pairs]


def _free(*overloads: tuple[tuple[Type, ...], Type, Callable[..., Any]]) -> list[Overload]:
    return [Overload(*overload, member=False, free=True) for overload in overloads]


def _member(*overloads: tuple[tuple[Type, ...], Type, Callable[..., Any]]) -> list[Overload]:
    return [Overload(*overload) for overload in overloads]


def _of_each(result: Type, function: Callable[..., Any]) -> list[Overload]:
    """For lists of each ordered type. `result`: "A" stands for the type of the elements."""
    of = {kind: {"A": kind, ("list", "A"): ("list", kind)}.get(result, result) for kind in _ORDERED}
    return [Overload((("list", kind),), of[kind], function) for kind in _ORDERED]


def _comparisons(kind: str, compared: Callable[[Any, Any], int]) -> dict[str, list[Overload]]:
    return {
        "compareTo": _member(((kind, kind), "int", compared)),
        "isGreaterThan": _member(((kind, kind), "bool", lambda first, second: compared(first, second) > 0)),
        "isLessThan": _member(((kind, kind), "bool", lambda first, second: compared(first, second) < 0)),
    }


_BY_QUANTITY: Final = _comparisons("quantity", lambda first, second: _compared(first.nano, second.nano))
_BY_VERSION: Final = _comparisons("semver", lambda first, second: (first > second) - (first < second))

FUNCTIONS: Final[dict[str, list[Overload]]] = {
    "==": _free((("A", "A"), "bool", equal)),
    "!=": _free((("A", "A"), "bool", unequal)),
    "in": _free((("A", _A_LIST), "bool", contained), (("A", ("map", "A", "B")), "bool", contained)),
    "<": _orders(lambda order: order < 0),
    "<=": _orders(lambda order: order <= 0),
    ">": _orders(lambda order: order > 0),
    ">=": _orders(lambda order: order >= 0),
    "+": _free(
        (("int", "int"), "int", lambda first, second: _int(first + second)),
        (("double", "double"), "double", lambda first, second: _finite(first + second)),
        (("string", "string"), "string", _concat),
        ((_A_LIST, _A_LIST), _A_LIST, _concat),
    ),
    "-": _free(
        (("int", "int"), "int", lambda first, second: _int(first - second)),
        (("double", "double"), "double", lambda first, second: _finite(first - second)),
    ),
    "*": _free(
        (("int", "int"), "int", lambda first, second: _int(first * second)),
        (("double", "double"), "double", lambda first, second: _finite(first * second)),
    ),
    "/": _free((("int", "int"), "int", _divide), (("double", "double"), "double", _float_divide)),
    # No value is a uint here: it makes the type of what is computed of two dyn values dyn, as in cel-go.
    "%": _free((("int", "int"), "int", _modulo), (("uint", "uint"), "uint", _modulo)),
    "!_": _free((("bool",), "bool", lambda value: not value)),
    "-_": _free((("int",), "int", lambda value: _int(-value)), (("double",), "double", lambda value: -value)),
    "size": [Overload((kind,), "int", len, member=True, free=True) for kind in ("string", _A_LIST, ("map", "A", "B"))],
    "int": _free((("int",), "int", int), (("double",), "int", _int_of_float), (("string",), "int", _int_of_text)),
    "double": _free(
        (("double",), "double", float), (("int",), "double", float), (("string",), "double", _float_of_text)
    ),
    "string": _free(
        (("string",), "string", str),
        (("int",), "string", str),
        (("bool",), "string", lambda value: "true" if value else "false"),
    ),
    "bool": _free((("bool",), "bool", bool), (("string",), "bool", _bool_of_text)),
    "dyn": _free((("A",), "dyn", lambda value: value)),
    # -- strings
    "contains": _member((("string", "string"), "bool", lambda text, part: part in text)),
    "startsWith": _member((("string", "string"), "bool", str.startswith)),
    "endsWith": _member((("string", "string"), "bool", str.endswith)),
    "matches": [Overload(("string", "string"), "bool", _matches, member=True, free=True)],
    "find": _member((("string", "string"), "string", _find)),
    "findAll": _member((("string", "string"), _STRINGS, _find_all), (("string", "string", "int"), _STRINGS, _find_all)),
    "charAt": _member((("string", "int"), "string", _char_at)),
    "indexOf": _member(
        (("string", "string"), "int", _index_of),
        (("string", "string", "int"), "int", _index_of),
        ((_A_LIST, "A"), "int", _position),
    ),
    "lastIndexOf": _member(
        (("string", "string"), "int", str.rfind),
        (("string", "string", "int"), "int", _last_index_from),
        ((_A_LIST, "A"), "int", _last_position),
    ),
    "lowerAscii": _member((("string",), "string", lambda text: text.translate(_LOWER))),
    "upperAscii": _member((("string",), "string", lambda text: text.translate(_UPPER))),
    "replace": _member(
        (("string", "string", "string"), "string", _replace),
        (("string", "string", "string", "int"), "string", _replace),
    ),
    "split": _member((("string", "string"), _STRINGS, _split), (("string", "string", "int"), _STRINGS, _split)),
    "substring": _member((("string", "int"), "string", _substring), (("string", "int", "int"), "string", _substring)),
    "trim": _member((("string",), "string", lambda text: text.strip(_SPACES))),
    "join": _member(((_STRINGS,), "string", _join), ((_STRINGS, "string"), "string", _join)),
    # -- lists and sets
    "isSorted": _of_each("bool", _is_sorted),
    "sum": _member(((("list", "int"),), "int", _sum), ((("list", "double"),), "double", _sum)),
    "min": _of_each("A", _extreme(min)),
    "max": _of_each("A", _extreme(max)),
    "sort": _of_each(_A_LIST, _sorted),
    "includes": _member((("dyn", "dyn"), "bool", _includes)),
    "slice": _member(((_A_LIST, "int", "int"), _A_LIST, _slice)),
    "flatten": _member(
        ((("list", _A_LIST),), _A_LIST, _flatten), ((("list", "dyn"), "int"), ("list", "dyn"), _flatten)
    ),
    "distinct": _member(((_A_LIST,), _A_LIST, _distinct)),
    "reverse": _member(((_A_LIST,), _A_LIST, lambda items: items[::-1])),
    "lists.range": _free((("int",), ("list", "int"), _range)),
    "sets.contains": _free(((_A_LIST, _A_LIST), "bool", _has_all)),
    "sets.intersects": _free(((_A_LIST, _A_LIST), "bool", lambda items, others: any(_present(items, others)))),
    "sets.equivalent": _free(
        ((_A_LIST, _A_LIST), "bool", lambda first, second: _has_all(first, second) and _has_all(second, first))
    ),
    # -- quantities and versions
    "quantity": _free((("string",), "quantity", quantity)),
    "isQuantity": _free((("string",), "bool", _is_read(quantity))),
    "sign": _free((("quantity",), "int", lambda of: _compared(of.nano, 0))),
    "asInteger": _member((("quantity",), "int", _integer)),
    "isInteger": _member((("quantity",), "bool", lambda of: as_integer(of) is not None)),
    "asApproximateFloat": _member((("quantity",), "double", _approximate)),
    "add": _member((("quantity", "quantity"), "quantity", _plus(1)), (("quantity", "int"), "quantity", _plus(1))),
    "sub": _member((("quantity", "quantity"), "quantity", _plus(-1)), (("quantity", "int"), "quantity", _plus(-1))),
    "semver": _free((("string",), "semver", _semver), (("string", "bool"), "semver", _semver)),
    "isSemver": _free((("string",), "bool", _is_read(_semver)), (("string", "bool"), "bool", _is_read(_semver))),
    "major": _member((("semver",), "int", lambda of: _int(of.major))),
    "minor": _member((("semver",), "int", lambda of: _int(of.minor))),
    "patch": _member((("semver",), "int", lambda of: _int(of.patch))),
    **{name: [*_BY_QUANTITY[name], *_BY_VERSION[name]] for name in _BY_QUANTITY},
    # -- optional values
    "optional.of": _free((("A",), _A_OPTIONAL, lambda value: Optional(some=True, value=value))),
    "optional.none": _free(((), ("optional", "any"), lambda: NONE)),
    "optional.ofNonZeroValue": _free((("A",), _A_OPTIONAL, _non_zero)),
    "hasValue": _member(((_A_OPTIONAL,), "bool", lambda of: of.some)),
    "value": _member(((_A_OPTIONAL,), "A", _value)),
    "first": _member(((_A_LIST,), _A_OPTIONAL, lambda items: Optional(some=True, value=items[0]) if items else NONE)),
    "last": _member(((_A_LIST,), _A_OPTIONAL, lambda items: Optional(some=True, value=items[-1]) if items else NONE)),
}
"""The overloads of each function and operator but `&&`, `||`, `?:`, `or` and `orValue`, which do not evaluate all
arguments. Of an operator with one operand the name ends in "_"."""
