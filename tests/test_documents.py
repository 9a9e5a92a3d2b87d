"""The documents: links lead somewhere, files and tests that they name exist, the README stays short."""

from __future__ import annotations

import csv
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
FAULTS = (ROOT / "docs" / "reliability.md").read_text().split("## What no test shows")[0].splitlines()
TESTED = (ROOT / "docs" / "internals" / "tested.md").read_text()
NAMED = re.compile(r"`((?:tests|extender|ext_core|benchmarks|manifests|docs)/[\w./-]+\.\w+)(?:::(\w+))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    found = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in found if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Those of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
    inside = [(page.parent / target if target else page, name) for target, name in links if "://" not in target]
    lost = [f"{to.name}#{name}" for to, name in inside if to.suffix == ".md" and name not in anchors(to)]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    missing = []
    for path, test in NAMED.findall(page.read_text()):
        file = ROOT / path
        if not file.exists() or (test and f"def {test}(" not in file.read_text()):
            missing.append(f"{path}::{test}")
    assert missing == []


def test_documents_that_the_code_names_exist() -> None:
    """In messages, comments and manifests."""
    files = [
        path for top in ("extender", "manifests") for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".yaml")
    ]
    named = {name for path in files for name in re.findall(r"docs/[\w/]+\.md", path.read_text())}
    assert len(named) > 9
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_each_invariant_names_its_test() -> None:
    """docs/internals/invariants.md: a numbered list, each with the name of its test."""
    text = (ROOT / "docs" / "internals" / "invariants.md").read_text()
    items = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(items) >= 12
    assert [item.split(".")[0] for item in items if not NAMED.search(item)] == []


def cells(section: str) -> dict[str, str]:
    """docs/internals/tested.md: the table of a section, as its first column to its second."""
    lines = TESTED.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")][1:]
    return {first.strip(): second for first, second in rows}


def test_each_defence_names_what_tests_it() -> None:
    """A test that exists, which is checked above, or a module that can be run."""
    defences = cells("Defences")
    assert len(defences) > 40
    assert [defence for defence, guards in defences.items() if "`" not in guards] == []
    modules = {module for guards in defences.values() for module in re.findall(r"`python -m ([\w.]+)`", guards)}
    assert all(map(find_spec, modules))


@pytest.mark.parametrize("title", [" ".join(line.split()[1:]) for line in FAULTS if line.startswith("## ")])
def test_each_fault_states_what_holds_what_was_seen_and_its_tests(title: str) -> None:
    """docs/reliability.md, up to what no test shows."""
    section = "\n".join(FAULTS).split(f"## {title}\n")[1].split("\n## ")[0]
    assert re.findall(r"^- \*\*(\w+)\*\*:", section, re.MULTILINE) == ["Promised", "Observed"]
    assert NAMED.search(cells("Faults")[title])


def test_each_result_names_its_command_and_is_a_table() -> None:
    """docs/results: README.md has each file; each row has as many cells as the head."""
    folder = ROOT / "docs" / "results"
    rows = [line.strip("| ").split(" | ") for line in (folder / "README.md").read_text().splitlines() if "| `" in line]
    listed = sorted(name for files, _ in rows for name in re.findall(r"`([\w.-]+\.csv)`", files))
    assert listed == sorted(path.name for path in folder.glob("*.csv"))
    modules = {module for _, command in rows for module in re.findall(r"python -m ([\w.]+)", command)}
    assert [module for module in modules if not find_spec(module)] == [
        "benchmarks.transport"
    ]  # removed with its subject
    for path in folder.glob("*.csv"):
        with path.open(newline="") as file:
            assert len({len(row) for row in csv.reader(file)}) == 1, path.name


def test_the_index_has_every_document() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    documents = {page for page in PAGES if page not in (ROOT / "README.md", index)}
    assert documents <= linked
