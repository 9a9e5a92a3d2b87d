"""What import-linter cannot see: the compiled files import nothing but the core and the C world."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parent.parent / "ext_core"
ALLOWED = {"ext_core", "libc", "posix", "cython", "cpython", "Python.h"}
# The standard library where no number is crunched: a new name here is a decision to take knowingly.
ALLOWED |= {"array", "collections", "itertools", "math"}
IMPORT = re.compile(
    r"""^\s*(?:
        from\s+(?P<origin>[.\w]+)\s+c?import\b
      | c?import\s+(?P<names>[\w.,\s]+?)(?:\s+as\s+\w+)?\s*$
      | cdef\s+extern\s+from\s+["'<](?P<header>[^"'>]+)
      | include\s+["'](?P<file>[^"']+)
    )""",
    re.VERBOSE,
)


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import; a C header or an include as itself."""
    for number, raw in enumerate(source.splitlines(), 1):
        found = IMPORT.match(raw.split("#")[0].rstrip())
        if found is None:
            continue
        if found["origin"]:
            # A relative import stays in the package that the file is in.
            yield number, "ext_core" if found["origin"].startswith(".") else found["origin"].split(".")[0]
        elif found["names"]:
            for name in found["names"].split(","):
                yield number, name.split(" as ")[0].strip().split(".")[0]
        else:
            yield number, found["header"] or found["file"]


def strangers(folder: Path) -> list[str]:
    """file:line: package of every import that is not allowed."""
    return [
        f"{path.name}:{number}: {package}"
        for path in sorted([*folder.rglob("*.pyx"), *folder.rglob("*.pxd")])
        for number, package in imported(path.read_text())
        if package not in ALLOWED
    ]


def test_the_core_imports_only_the_core() -> None:
    assert list(CORE.glob("*.pyx")), "no .pyx file found: this test would see nothing"
    assert strangers(CORE) == []


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("import extender", "extender"),
        ("from extender.verbs.wire import read_args", "extender"),
        ("cimport numpy as np", "numpy"),
        ("cimport cython, numpy", "numpy"),
        ("from numpy cimport ndarray", "numpy"),
        ("    import json  # later", "json"),
        ("import os.path as path", "os"),
        ('cdef extern from "numpy/arrayobject.h":', "numpy/arrayobject.h"),
        ("cdef extern from <fenv.h> nogil:", "fenv.h"),
        ('include "more.pxi"', "more.pxi"),
    ],
)
def test_a_stranger_is_caught(tmp_path: Path, line: str, package: str) -> None:
    (tmp_path / "bad.pyx").write_text(f"# cython: language_level=3\n{line}\n")
    assert strangers(tmp_path) == [f"bad.pyx:2: {package}"]


@pytest.mark.parametrize(
    "line",
    [
        "cimport cython",
        "from libc.stdint cimport uint64_t",
        "from cpython.array cimport array",
        "from ext_core.ints cimport mask_t",
        "from .ints cimport mask_t",
        "from . cimport ints",
        "# import extender",
        "important = 1",
    ],
)
def test_a_friend_passes(tmp_path: Path, line: str) -> None:
    (tmp_path / "good.pxd").write_text(f"{line}\n")
    assert strangers(tmp_path) == []


DECIDING = ("verbs", "queue", "preemption", "reservations", "policy", "cluster")


def awaits(path: Path) -> list[str]:
    """file:line of every await, coroutine, generator of a coroutine, and thread in a file."""
    waits = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, waits) or threads(node)]
    return [f"{path.name}:{getattr(node, 'lineno', 0)}" for node in found]


def threads(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] in ("threading", "asyncio", "concurrent") for name in names)


@pytest.mark.parametrize("package", DECIDING)
def test_decisions_never_wait(package: str) -> None:
    """A request sees exactly one generation: nothing between its first and last read lets another task run."""
    files = sorted((CORE.parent / "extender" / package).rglob("*.py"))
    assert files
    assert [place for path in files for place in awaits(path)] == []


def test_a_decision_that_waits_is_caught(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import asyncio\n\n\nasync def f():\n    await g()\n")
    assert awaits(tmp_path / "x.py") == ["x.py:1", "x.py:4", "x.py:5"]
