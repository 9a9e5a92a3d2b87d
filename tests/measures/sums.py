"""The sums of a source tree: how much there is to read, and how often one name means two things."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
EMPTY_NAMES = {"one", "found", "there", "made", "said", "left"}  # local names that name nothing
SCHEMAS = "objects/schema.py"  # its classes are named as Kubernetes names them


def sums(root: Path) -> dict[str, float]:
    """Each sum by its name; a share is a percentage."""
    server = _sources(root / "extender")
    trees = {path: ast.parse(text) for path, text in server.items()}
    lines = {path: code_lines(text) for path, text in server.items()}
    total = sum(lines.values())
    imports = sum(_import_lines(tree) for tree in trees.values())
    core = _sources(root / "ext_core", "*.py[xi]") | _sources(root / "ext_core")
    return {
        "code lines of extender/": total,
        "code lines of ext_core/": sum(code_lines(text) for text in core.values()),
        "code lines of tests/": sum(code_lines(text) for text in _sources(root / "tests").values()),
        "files of extender/": len(server),
        "packages of extender/": sum(path.name == "__init__.py" for path in server),
        "imports, % of the code lines": round(100 * imports / total, 1) if total else 0,
        "file names of two or more files": _repeated(path.stem for path in server if path.stem != "__init__"),
        "class names of two or more classes": _repeated(
            node.name
            for path, tree in trees.items()
            if not str(path).endswith(SCHEMAS)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ),
        "files with one importer": _with_one_importer(trees, root),
        "Protocols with one implementation": _protocols_with_one(trees.values()),
        "local names that name nothing": sum(_empty_names(tree) for tree in trees.values()),
    }


def _sources(folder: Path, pattern: str = "*.py") -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob(pattern))}


def code_lines(text: str) -> int:
    """Lines that have code: no blank lines, comments or docstrings. Cython is counted without its docstrings too."""
    counted: set[int] = set()
    begins_statement = True
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in SILENT:
                begins_statement = begins_statement or token.type != tokenize.COMMENT
                continue
            if not (token.type == tokenize.STRING and begins_statement):
                counted.update(range(token.start[0], token.end[0] + 1))
            begins_statement = False
    except tokenize.TokenError:  # a Cython file that Python's tokens do not fit
        return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
    return len(counted)


def _import_lines(tree: ast.Module) -> int:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def _repeated(names: Iterable[str]) -> int:
    return sum(count > 1 for count in Counter(names).values())


def _with_one_importer(trees: dict[Path, ast.Module], root: Path) -> int:
    importers: Counter[str] = Counter()
    for tree in trees.values():
        importers.update(set(_imported(tree)))
    modules = (".".join(path.relative_to(root).with_suffix("").parts) for path in trees if path.name != "__init__.py")
    return sum(importers[module] == 1 for module in modules)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Each module that may be meant: `from a import b` names a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _protocols_with_one(trees: Iterable[ast.Module]) -> int:
    """Protocols whose methods exactly one other class has, by their names."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    members = [(_is_protocol(node), _methods(node)) for node in classes]
    concrete = [methods for protocol, methods in members if not protocol]
    wanted = [methods for protocol, methods in members if protocol and methods]
    return sum(sum(methods <= other for other in concrete) == 1 for methods in wanted)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0].split(".")[-1] == "Protocol" for base in node.bases)


def _methods(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(member.name for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef))


def _empty_names(tree: ast.Module) -> int:
    """How many bindings of a function's local names have such a name."""
    stores = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return sum(node.id in EMPTY_NAMES for node in stores)
