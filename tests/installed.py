"""The programs that the wheel installs, as launchers in a folder: tests need no installation of their own."""

from __future__ import annotations

import stat
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def scripts() -> dict[str, str]:
    """Program -> MODULE:FUNCTION, as pyproject.toml names them."""
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return found


def install(folder: Path) -> None:
    """Writes a launcher for each."""
    for name, target in scripts().items():
        module, _, function = target.partition(":")
        made = folder / name
        made.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        made.chmod(made.stat().st_mode | stat.S_IXUSR)
