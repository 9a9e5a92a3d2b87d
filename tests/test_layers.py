"""What import-linter cannot see: what the compiled files import, that decisions never wait, and who writes."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from extender.cluster.budgets import Budgets
from extender.cluster.cluster import Cluster
from extender.cluster.dra.claims import ResourceClaims
from extender.cluster.dra.resource_slices import Slices
from extender.cluster.dra.store import DraStore
from extender.cluster.eligibility import Eligibility
from extender.cluster.gangs import Gangs, Workloads
from extender.cluster.gpus import GpuStore
from extender.cluster.node_health import NodeHealth
from extender.cluster.nodes import NodeRows
from extender.cluster.numbered import Requirements
from extender.cluster.pods import Placements, PodRows, Repelling

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
        ("from extender.decide.wire import read_args", "extender"),
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


DECIDING = ("decide", "queue", "preemption", "reservations", "policy", "cluster")


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


# -- only `extender/cluster` writes to the parts of a cluster ----------------------------------------------------------

PARTS: dict[str, type] = {
    "rows": NodeRows,
    "gpus": GpuStore,
    "eligibility": Eligibility,
    "health": NodeHealth,
    "dra": DraStore,
    "planned": ResourceClaims,
    "published": Slices,
    "pod_rows": PodRows,
    "placements": Placements,
    "repelling": Repelling,
    "gangs": Gangs,
    "budgets": Budgets,
    "requirements": Requirements,
    "workloads": Workloads,
}
"""By the name of the attribute of `ClusterView`, or of a part of it, that readers get."""
CHANGES = {
    "add", "append", "appendleft", "clear", "discard", "drop", "extend", "insert", "move_to_end", "pop", "popitem",
    "popleft", "put", "remove", "setdefault", "update",
}  # fmt: skip
"""Methods of containers and components that change them."""

CACHES = {"program", "_asked_by"}
"""Reading methods that remember their answer."""


def chain(node: ast.AST) -> list[str]:
    """`a.b[c].d` as ["a", "b", "d"]; [] where it does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else []), *reversed(names)]


def changed(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """(line, chain) of all that is assigned to, deleted or called as a method that changes its object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        else:
            continue
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                yield part.lineno, chain(part)


def writers(part: type) -> set[str]:
    """The public methods of a component that change it, or call one of its methods that does."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    methods = [node for node in getattr(body, "body", []) if isinstance(node, ast.FunctionDef)]
    found = {method.name for method in methods if any(names[:1] == ["self"] for _, names in changed(method))}
    found -= CACHES
    calls = {
        method.name: {chain(node)[1] for node in ast.walk(method) if chain(node)[:1] == ["self"] and chain(node)[1:]}
        for method in methods
    }
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")}


@cache
def part_writers(name: str) -> set[str]:
    """`writers` of the part of this name; none where there is no such part."""
    return writers(PARTS[name]) if name in PARTS else set()


def writes(source: str) -> list[int]:
    """The lines that write to a part of a cluster. A variable that stands for a part is not followed."""
    tree = ast.parse(source)
    lines = [line for line, names in changed(tree) if len(names) > 2 and set(names[1:-1]) & PARTS.keys()]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        names = chain(node)
        if len(names) > 2 and names[-1] in part_writers(names[-2]):
            lines.append(node.lineno)
    return sorted(set(lines))


def test_components_have_methods_that_write() -> None:
    assert {"apply", "tick"} <= writers(Cluster)
    assert {"add", "remove"} <= part_writers("rows")
    assert {"bind", "wait"} <= part_writers("placements")
    assert {"set", "pod"} <= part_writers("dra")
    assert "away" not in part_writers("gpus")


def test_only_the_cluster_writes() -> None:
    files = [path for path in (CORE.parent / "extender").rglob("*.py") if "cluster" not in path.parts]
    assert files
    assert {str(path): lines for path in files if (lines := writes(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "cluster.gpus.ledgers[name] = ledger",
        "del self._cluster.placements.bound[name]",
        "cluster.placements.waiting.pop(uid)",
        "view.cluster.rows.add(name)",
        "cluster.placements.repelling.remove(uid)",
    ],
)
def test_a_write_is_caught(line: str) -> None:
    assert writes(line) == [1]


@pytest.mark.parametrize(
    "line", ["x = cluster.gpus.ledgers[name]", "cluster.rows.row(name)", "self.health = 1", "gpus.add(3)"]
)
def test_a_read_passes(line: str) -> None:
    assert writes(line) == []
