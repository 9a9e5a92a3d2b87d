"""`make compat`: what a cell of its table says, by the results that pytest leaves."""

from __future__ import annotations

from pathlib import Path

from tests.e2e import compat
from tests.e2e.build import DEFAULT_RELEASE, MODULE, MODULE_FILES

RESULTS = """<testsuites><testsuite>
<testcase name="test_a"/><testcase name="test_b"><skipped message="no policy"/></testcase>{more}
</testsuite></testsuites>"""


def cell(folder: Path, more: str = "") -> compat.Cell:
    file = folder / "results.xml"
    file.write_text(RESULTS.format(more=more))
    return compat.read(file)


def test_what_a_cell_says(tmp_path: Path) -> None:
    assert compat.read(tmp_path / "none.xml").text == "not run"
    assert cell(tmp_path).text == "1 passed, 1 skipped"
    assert cell(tmp_path, '<testcase name="test_c"><failure/></testcase>').text == "1 FAILED"
    assert cell(tmp_path, '<testcase name="test_c"><error/></testcase>').failed == ["test_c"]
    assert compat.Cell(skipped={"no policy": 9}).text == "skipped"


def test_the_table_has_reasons_and_failures_below_it() -> None:
    cells = {
        ("1.37.0", "queue"): compat.Cell(passed=13),
        ("1.34.4", "queue"): compat.Cell(passed=1, skipped={"no policy": 2}, failed=["test_c"]),
    }
    assert list(compat.table(cells, ["1.37.0", "1.34.4"], ["queue"])) == [
        "|       | 1.37.0    | 1.34.4   |",
        "|-------|-----------|----------|",
        "| queue | 13 passed | 1 FAILED |",
        "",
        "1.34.4, queue: no policy",
        "1.34.4, queue: FAILED test_c",
    ]


def test_every_scenario_has_tests_and_every_release_a_module() -> None:
    files = [name for names in compat.SCENARIOS.values() for name in names]
    assert [name for name in files if not (compat.HERE / name).exists()] == []
    assert len(files) == len(set(files))
    assert {release.rpartition(".")[0] for release in MODULE_FILES} == {"1.34", "1.35", "1.36", "1.37"}
    assert next(iter(MODULE_FILES)) == DEFAULT_RELEASE
    for release, file in MODULE_FILES.items():
        assert f"k8s.io/kubernetes v{release}\n" in (MODULE / file).read_text()
