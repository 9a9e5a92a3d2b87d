"""`python -m tests.measures` prints the measures; `--check` fails where a limit is exceeded; `--before REV` compares
with an earlier revision."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tests.measures.read import LIMITS, read
from tests.measures.sums import sums

ROOT = Path(__file__).parents[2]
COUNTED = ("modules at top level beyond the six", "public names without a docstring")


def rows(root: Path) -> dict[str, str]:
    """What is printed, by name: the sums, then what has a limit."""
    tree = read(root)
    beyond = tree.beyond()
    shown = {name: f"{value:g}" if value < 1000 else f"{value:,.0f}" for name, value in sums(root).items()}
    shown["lines of the median file"] = f"{tree.median:.0f}"
    for what, limit in LIMITS.items():
        most = tree.largest(what)
        over = sum(one.what == what for one in beyond)
        shown[f"{what} (at most {limit})"] = f"{most.value if most else 0}, {over} over"
    for what in COUNTED:
        shown[what] = str(sum(one.what == what for one in beyond))
    return shown


def rows_of_revision(revision: str) -> dict[str, str]:
    """The same of an earlier revision."""
    packed = subprocess.run(
        ["git", "archive", revision, "extender", "ext_core", "tests"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return rows(Path(folder))


def main() -> int:
    """0; 1 where `--check` finds something."""
    parser = argparse.ArgumentParser(prog="tests.measures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print what is over its limit, and fail if anything is")
    parser.add_argument("--before", metavar="REV", help="print this revision's measures beside today's")
    chosen = parser.parse_args()
    if chosen.check:
        tree = read(ROOT)
        for one in tree.beyond():
            limit = f", at most {LIMITS[one.what]}" if one.what in LIMITS else ""
            print(f"{one.place}: {one.what}: {one.value}{limit}", file=sys.stderr)
        return 1 if tree.beyond() else 0
    now, before = rows(ROOT), rows_of_revision(chosen.before) if chosen.before else None
    for what, value in now.items():
        print(f"{what:44}", f"{before[what]:>14}" if before else "", f"{value:>14}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
