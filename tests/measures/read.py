"""Reads a source tree and returns its measures. Nothing is imported: two states of the tree can be compared."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TOP_LEVEL = {"__init__", "__main__", "settings", "times", "errors", "log", "metrics"}
LIMITS = {
    "lines of a kernel": 900,
    "lines of a function": 60,
    "parameters of a function": 6,
}


@dataclass(frozen=True, slots=True, order=True)
class Measure:
    """One number about one place. `what`: a key of LIMITS, or what is counted without a limit."""

    what: str
    value: int
    place: str


@dataclass(frozen=True, slots=True)
class Tree:
    """All measures of a tree. `lines`: of each Python file of the server."""

    measures: tuple[Measure, ...]
    lines: dict[str, int]

    @property
    def median(self) -> float:
        """Lines of the median file."""
        return median(self.lines.values())

    def beyond(self) -> list[Measure]:
        """What is over its limit, or has no right to be there at all."""
        return sorted(one for one in self.measures if one.value > LIMITS.get(one.what, 0))

    def largest(self, what: str) -> Measure | None:
        """The largest of one kind."""
        found = [one for one in self.measures if one.what == what]
        return max(found, key=lambda one: one.value) if found else None


def read(root: Path) -> Tree:
    """The measures of `extender/` and `ext_core/` below `root`."""
    measures: list[Measure] = []
    lines: dict[str, int] = {}
    for path in sorted((root / "extender").rglob("*.py")):
        name = str(path.relative_to(root))
        lines[name] = len(path.read_text().splitlines())
        measures += _python(path.read_text(), name)
    measures += _packages(root)
    for path in sorted((root / "ext_core").rglob("*.py[xi]")) + sorted((root / "ext_core").rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(root))
        if path.suffix == ".pyx":
            measures.append(Measure("lines of a kernel", len(text.splitlines()), name))
        elif path.suffix == ".pyi":
            measures += [one for one in _python(text, name) if one.what == "parameters of a function"]
        elif path.suffix == ".py":
            measures += _python(text, name)
    return Tree(tuple(measures), lines)


def _packages(root: Path) -> Iterator[Measure]:
    top = root / "extender"
    for path in sorted(top.glob("*.py")):
        if path.stem not in TOP_LEVEL:
            yield Measure("modules at top level beyond the six", 1, str(path.relative_to(root)))


def _python(text: str, name: str) -> Iterator[Measure]:
    tree = ast.parse(text)
    if not ast.get_docstring(tree) and tree.body:
        yield Measure("public names without a docstring", 1, name)
    yield from _body(tree.body, name, public=True)


def _body(body: list[ast.stmt], name: str, *, public: bool) -> Iterator[Measure]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            shown = public and not node.name.startswith("_")
            if shown and not ast.get_docstring(node):
                yield Measure("public names without a docstring", 1, f"{name}:{node.name}")
            yield from _body(node.body, f"{name}:{node.name}", public=shown)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            place = f"{name}:{node.name}"
            last = node.end_lineno or node.lineno
            yield Measure("lines of a function", last - node.lineno + 1, place)
            yield Measure("parameters of a function", _parameters(node), place)
            said = ast.get_docstring(node) or name.endswith(".pyi")
            if public and not node.name.startswith("_") and not said and not _overload(node):
                yield Measure("public names without a docstring", 1, place)
        elif isinstance(node, ast.If | ast.Try):
            yield from _body(node.body, name, public=public)


def _overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).split(".")[-1] in ("overload", "override", "setter") for one in node.decorator_list)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """All but self and cls."""
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return (
        len(names) - (names[:1] in (["self"], ["cls"], ["mcs"])) + (args.vararg is not None) + (args.kwarg is not None)
    )
