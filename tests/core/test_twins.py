"""Every public function and class of every compiled module has a twin of the same name and signature."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

import ext_core

COMPILED = [
    module.name
    for module in pkgutil.iter_modules(ext_core.__path__)
    if not module.name.startswith("_")
    and any((Path(ext_core.__path__[0]) / f"{module.name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
]


# Structs without a loop: the twins take the compiled ones.
PLAIN = {"ask", "reasons"}
# Modules that are one with another for a reader; the twin of both is one file, and one class where a kernel inherits.
TWIN_OF = {"slot_counts": "slots", "name_index": "scan", "joint_search": "joint", "candidates": "victims"}
SAME = {"SlotCounts": "Slots"}


def public(module: str) -> dict[str, Any]:
    """What a compiled module defines itself, without what it imports."""
    compiled = importlib.import_module(f"ext_core.{module}")
    return {
        name: value
        for name, value in vars(compiled).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == compiled.__name__
    }


PAIRS = [(module, name) for module in COMPILED if module not in PLAIN for name in public(module)]


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}


def test_there_are_kernels_to_compare() -> None:
    assert {"table", "gather", "fit", "score", "links"} <= set(COMPILED)
    assert ("fit", "count") in PAIRS
    assert ("table", "NodeTable") in PAIRS


@pytest.mark.parametrize("module", [module for module in COMPILED if public(module)])
def test_a_stub_describes_the_module(module: str) -> None:
    """`make types` compares the two."""
    assert (Path(ext_core.__path__[0]) / f"{module}.pyi").exists()


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_the_twin_has_the_same_face(module: str, name: str) -> None:
    kernel = public(module)[name]
    file = importlib.import_module(f"tests.reference.{TWIN_OF.get(module, module)}")
    twin = getattr(file, SAME.get(name, name))
    if not isinstance(kernel, type):
        assert parameters(twin) == parameters(kernel)
        return
    for method, function in methods(kernel).items():
        assert parameters(methods(twin)[method]) == parameters(function), method
