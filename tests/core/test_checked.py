"""`make checked` runs the core tests on the build that finds faults: here are faults that it must find."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from array import array
from pathlib import Path
from types import ModuleType

import pytest

from tests.core.test_twins import COMPILED

CHECKED = os.environ.get("EXT_CORE_CHECKED", "")
pytestmark = pytest.mark.skipif(not CHECKED, reason="make checked runs these on the checked build")


@pytest.fixture
def probe() -> ModuleType:
    return importlib.import_module("ext_core._probe")


@pytest.mark.parametrize("module", COMPILED)
def test_every_kernel_is_of_the_checked_build(module: str) -> None:
    path = importlib.import_module(f"ext_core.{module}").__file__
    assert path is not None
    assert Path(path).is_relative_to(CHECKED)


def test_an_index_beyond_a_column_raises(probe: ModuleType) -> None:
    column = array("q", [5, 6])
    assert probe.item(column, 1) == 6
    for at in (2, -1):  # negative indices do not count from the end, as in the build of the server
        with pytest.raises(IndexError):
            probe.item(column, at)


def test_a_product_beyond_64_bits_raises(probe: ModuleType) -> None:
    assert probe.product(3, -4) == -12
    with pytest.raises(OverflowError):
        probe.product(2**40, 2**40)


@pytest.mark.skipif(
    not os.environ.get("EXT_CORE_SANITIZED"), reason="needs the checked build with the address sanitizer"
)
def test_the_address_sanitizer_ends_a_process_that_reads_beyond_its_memory(probe: ModuleType) -> None:
    program = "import ext_core._probe as probe; probe.beyond(24)"
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in run.stderr
