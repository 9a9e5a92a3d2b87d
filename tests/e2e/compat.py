"""The core scenarios on every Kubernetes release that we support, as a table of releases and scenarios.

    make compat                                    all; the first time each release is built, 10 to 30 minutes
    make compat RELEASES=1.36.3 SCENARIOS=queue    these cells alone
    make compat TABLE=1                            only prints the table of what has run

Each cell is one run of pytest; its results stay in build/compat, so cells can be run one by one. Exit status 1 where a
test failed. Builds are of the lowest priority and use one processor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.build import MODULE_FILES

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE.parents[1] / "build" / "compat"
BUILD: Final = "from tests.e2e.build import build; build()"

SCENARIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "placement": ("test_placement.py", "test_order.py"),
    "preemption": ("test_preemption.py", "test_budgets_and_owners.py"),
    "evictions": ("test_evictions.py",),
    "faults": ("test_faults.py",),
    "queue": ("test_queue.py", "test_gates.py"),
    "nominations": ("test_nominations.py",),
    "gate-policy": ("test_queue_policy.py",),
    "annotation-policy": ("test_node_policy.py",),
    "podgroups": ("test_queue_podgroups.py",),
    "dra": ("test_dra.py", "test_dra_prediction.py"),
    "upgrade": ("test_versions.py",),
}
"""What an installation rests on, by name; the files of its tests."""


@dataclass
class Cell:
    """What became of one scenario on one release. `skipped`: how many tests, by reason; `failed`: their names."""

    passed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """As the table has it."""
        if self.failed:
            return f"{len(self.failed)} FAILED"
        if not self.passed:
            return "skipped" if self.skipped else "not run"
        left_out = sum(self.skipped.values())
        return f"{self.passed} passed" + (f", {left_out} skipped" if left_out else "")


def read(file: Path) -> Cell:
    """The results that pytest has written as JUnit's XML; of a file that does not exist: not run."""
    cell = Cell()
    if not file.exists():
        return cell
    for test in ElementTree.parse(file).iter("testcase"):
        skipped = test.find("skipped")
        if test.find("failure") is not None or test.find("error") is not None:
            cell.failed.append(test.get("name", ""))
        elif skipped is not None:
            reason = skipped.get("message", "")
            cell.skipped[reason] = cell.skipped.get(reason, 0) + 1
        else:
            cell.passed += 1
    return cell


def table(cells: Mapping[tuple[str, str], Cell], releases: Sequence[str], scenarios: Sequence[str]) -> Iterable[str]:
    """Markdown: a row for each scenario, a column for each release; below it why tests were skipped, and which
    failed."""
    width = max(map(len, scenarios))
    columns = {one: max([len(one), *(len(cells[one, name].text) for name in scenarios)]) for one in releases}
    yield f"| {'':{width}} | " + " | ".join(f"{one:{columns[one]}}" for one in releases) + " |"
    yield f"|{'-' * (width + 2)}|" + "|".join("-" * (columns[one] + 2) for one in releases) + "|"
    for name in scenarios:
        texts = (f"{cells[one, name].text:{columns[one]}}" for one in releases)
        yield f"| {name:{width}} | " + " | ".join(texts) + " |"
    notes: dict[str, None] = {}
    for (release, name), cell in cells.items():
        notes |= dict.fromkeys(f"{release}, {name}: {reason}" for reason in cell.skipped)
        notes |= dict.fromkeys(f"{release}, {name}: FAILED {test}" for test in cell.failed)
    if notes:
        yield ""
    yield from notes


def run(release: str, scenario: str) -> None:
    """Run one cell; its results replace those before."""
    file = result(release, scenario)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={file}"]
    tests = [str(HERE / name) for name in SCENARIOS[scenario]]
    print(f"\nKubernetes {release}: {scenario}", flush=True)
    subprocess.run([*command, *tests], env=environment(release), check=False, cwd=HERE.parents[1])
    if not file.exists():
        raise SystemExit(f"compat: pytest has left no results of {scenario} on {release}")


def result(release: str, scenario: str) -> Path:
    """Where the results of a cell are."""
    return RESULTS / f"{release}-{scenario}.xml"


def environment(release: str) -> dict[str, str]:
    """Of a run and of a build. CI: what cannot be built is an error."""
    return {**os.environ, "GPU_EXTENDER_KUBERNETES": release, "CI": "true"}


def build(release: str) -> None:
    """Build the control plane where it is not in the cache."""
    subprocess.run(
        [sys.executable, "-c", BUILD],
        env={**environment(release), "GOMAXPROCS": "1"}, check=True, cwd=HERE.parents[1],
        preexec_fn=lambda: os.nice(19) and None,
    )  # fmt: skip


def chosen(text: str, known: Iterable[str]) -> list[str]:
    """The words of a list with commas, all of them known ones; without one: all."""
    names = list(known)
    wanted = [word for word in text.split(",") if word] or names
    if strange := set(wanted) - set(names):
        raise SystemExit(f"compat: {', '.join(sorted(strange))}: not one of {', '.join(names)}")
    return wanted


def main() -> int:
    """Builds, runs, prints; 1 where a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.compat", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--releases", default="", metavar="LIST", help=f"of {', '.join(MODULE_FILES)}")
    parser.add_argument("--scenarios", default="", metavar="LIST", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--table", action="store_true", help="run nothing: print what has run")
    options = parser.parse_args()
    releases, scenarios = chosen(options.releases, MODULE_FILES), chosen(options.scenarios, SCENARIOS)
    for release in () if options.table else releases:
        build(release)
        for name in scenarios:
            run(release, name)
    cells = {(release, name): read(result(release, name)) for release in releases for name in scenarios}
    print()
    print("\n".join(table(cells, releases, scenarios)))
    return int(any(cell.failed for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
