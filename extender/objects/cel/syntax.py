"""Expressions of CEL to trees, by the grammar of cel-go.

Left out are bytes, unsigned integers, messages and escaped identifiers: an expression with one of them is Unsupported,
as is one that no grammar has, since a future grammar may have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from extender.objects.cel.values import Unsupported, is_int64

LONGEST: Final = 10 * 1024  # characters of an expression, as the API server accepts them; they take 6 ms
_DEEPEST: Final = 72  # levels of a tree, one of brackets counts as 3: Python's stack has 1,000 frames
_TOKEN: Final = re.compile(
    r"""(?:[\t \r\n\f]+|//[^\n]*)*(?:
    (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?![uU.\w])
    |(?P<raw>[rR](?:\"\"\"(?:(?!\"\"\").)*\"\"\"|'''(?:(?!''').)*'''|"[^"\n\r]*"|'[^'\n\r]*'))
    |(?P<text>\"\"\"(?:\\.|(?!\"\"\")[^\\])*\"\"\"|'''(?:\\.|(?!''')[^\\])*'''
        |"(?:\\.|[^"\\\n\r])*"|'(?:\\.|[^'\\\n\r])*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?!['"])
    |(?P<sign>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])
    |(?P<end>\Z))""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    '"': '"', "'": "'", "\\": "\\", "?": "?", "`": "`",
}  # fmt: skip
_RESERVED: Final = frozenset(
    (
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
        "package", "namespace", "null", "return", "true", "var", "void", "while",
    )
)  # fmt: skip
_RELATIONS: Final = frozenset(("<", "<=", ">=", ">", "==", "!=", "in"))


class Literal(NamedTuple):
    """A bool, int, float, string or None."""

    value: Any


class Identifier(NamedTuple):
    """A variable."""

    name: str


class Select(NamedTuple):
    """`operand.field`, or `operand.?field`."""

    operand: Node
    field: str
    optional: bool


class Index(NamedTuple):
    """`operand[key]`, or `operand[?key]`."""

    operand: Node
    key: Node
    optional: bool


class Call(NamedTuple):
    """`target.function(...)`, or `function(...)` without a target. An operator is the function with its sign."""

    target: Node | None
    function: str
    arguments: tuple[Node, ...]


class ListOf(NamedTuple):
    """`[...]`."""

    items: tuple[Node, ...]


class MapOf(NamedTuple):
    """`{...}`."""

    entries: tuple[tuple[Node, Node], ...]


Node = Literal | Identifier | Select | Index | Call | ListOf | MapOf


def parse(text: str) -> Node:
    """The tree. Unsupported where it cannot be read."""
    if len(text) > LONGEST:
        raise Unsupported(f"it has more than {LONGEST} characters")
    if not text:
        raise Unsupported("it is not stated, or its claim has too many selectors")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._kind, self._token = "", ""
        self._next()

    def whole(self) -> Node:
        node = self._expression()
        if self._kind != "end":
            raise self._unreadable()
        return node

    # -- tokens

    def _next(self) -> str:
        """Go on by one token; the one before."""
        before = self._token
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise self._unreadable()
        self._kind, self._token, self._at = match.lastgroup, match[match.lastgroup], match.end()
        return before

    def _unreadable(self) -> Unsupported:
        return Unsupported(f"it cannot be read at character {self._at}")

    def _deeper(self, levels: int) -> None:
        self._depth += levels
        if self._depth > _DEEPEST:
            raise Unsupported("it is nested too deeply")

    def _is(self, *signs: str) -> bool:
        return self._token in signs and self._kind in ("sign", "name")

    def _takes(self, sign: str) -> bool:
        if self._token == sign and self._kind == "sign":
            self._next()
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unreadable()

    # -- grammar, the weakest operator first

    def _expression(self) -> Node:
        self._deeper(3)
        node = self._chain("||", self._and)
        if self._takes("?"):
            then = self._chain("||", self._and)
            self._expect(":")
            node = Call(None, "?:", (node, then, self._expression()))
        self._depth -= 3
        return node

    def _and(self) -> Node:
        return self._chain("&&", self._relation)

    def _chain(self, sign: str, operand: Callable[[], Node]) -> Node:
        nodes = [operand()]
        while self._takes(sign):
            nodes.append(operand())
        return nodes[0] if len(nodes) == 1 else Call(None, sign, tuple(nodes))

    def _relation(self) -> Node:
        return self._binary(_RELATIONS, self._sum)

    def _sum(self) -> Node:
        return self._binary(frozenset("+-"), self._product)

    def _product(self) -> Node:
        return self._binary(frozenset("*/%"), self._unary)

    def _binary(self, signs: frozenset[str], operand: Callable[[], Node]) -> Node:
        """A chain of left-associative operators is a tree as deep as it is long: each counts as a level."""
        node, depth = operand(), self._depth
        while self._is(*signs):
            sign = self._next()
            node = Call(None, sign, (node, operand()))
            self._deeper(1)
        self._depth = depth
        return node

    def _unary(self) -> Node:
        sign = self._token
        if not self._is("!", "-"):
            return self._member()
        times = 0
        while self._takes(sign):
            times += 1
        if sign == "-" and self._kind in ("int", "float"):
            text = self._next()
            number = Literal(_number(text, negative=True))
            node, times = self._members(number), times - 1
        else:
            node = self._member()
        # An even number of them is none, as in cel-go.
        return Call(None, "!_" if sign == "!" else "-_", (node,)) if times % 2 else node

    def _member(self) -> Node:
        return self._members(self._primary())

    def _members(self, node: Node) -> Node:
        depth = self._depth
        while True:
            if self._takes("."):
                node = self._selected(node)
            elif self._takes("["):
                optional = self._takes("?")
                node = Index(node, self._expression(), optional)
                self._expect("]")
            else:
                self._depth = depth
                return node
            self._deeper(1)

    def _selected(self, node: Node) -> Node:
        optional = self._takes("?")
        if self._kind != "name" or self._token in ("in", "true", "false", "null"):
            raise self._unreadable()
        name = self._next()
        if not optional and self._takes("("):
            return Call(node, name, self._list(")"))
        return Select(node, name, optional)

    def _list(self, end: str) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while not self._takes(end):
            nodes.append(self._expression())
            if not self._takes(","):
                self._expect(end)
                break
            if end == ")" and self._is(")"):
                raise self._unreadable()
        return tuple(nodes)

    def _primary(self) -> Node:
        kind, token = self._kind, self._token
        if kind in ("int", "float"):
            self._next()
            return Literal(_number(token, negative=False))
        if kind in ("raw", "text"):
            self._next()
            return Literal(_string(token, raw=kind == "raw"))
        if kind == "name":
            return self._named()
        if self._takes("("):
            node = self._expression()
            self._expect(")")
            return node
        if self._takes("["):
            return ListOf(self._list("]"))
        if self._takes("{"):
            return MapOf(self._entries())
        raise self._unreadable()

    def _named(self) -> Node:
        name = self._next()
        if name in ("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[name])
        if name in _RESERVED:
            raise self._unreadable()
        return Call(None, name, self._list(")")) if self._takes("(") else Identifier(name)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        entries: list[tuple[Node, Node]] = []
        while not self._takes("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._takes(","):
                self._expect("}")
                break
        return tuple(entries)


def _number(text: str, *, negative: bool) -> int | float:
    signed = "-" + text if negative else text
    if "." in text or ("x" not in text and "e" in text.lower()):
        return float(signed)
    if len(text) > 20:
        raise Unsupported("an integer beyond 64 bits")
    number = int(signed, 16 if "x" in text else 10)
    if not is_int64(number):
        raise Unsupported("an integer beyond 64 bits")
    return number


def _string(token: str, *, raw: bool) -> str:
    body = token[1:] if raw else token
    quotes = 3 if body.startswith(('"""', "'''")) and len(body) >= 6 else 1
    body = body[quotes:-quotes]
    return body if raw else _ESCAPE.sub(_unescaped, body)


def _unescaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits:
        code = int(digits, 16)
    elif match[4]:
        code = int(match[4], 8)
    elif match[5] in _ESCAPES:
        return _ESCAPES[match[5]]
    else:
        raise Unsupported(f"an escape \\{match[5]}")
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise Unsupported("an escape of no character")
    return chr(code)
