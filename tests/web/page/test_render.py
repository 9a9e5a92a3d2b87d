"""Small parts of the page: numbers for people, letters, addresses, what is drawn, and that all files are packaged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from extender.web import drawing, render

ROOT = Path(__file__).parents[3]


def test_every_file_is_in_the_package() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["extender"]
    found = {path for pattern in packaged for path in (ROOT / "extender").glob(pattern)}
    files = {path for path in render.HERE.rglob("*.*") if path.suffix != ".py" and path.parent.name != "__pycache__"}
    assert files
    assert files <= found


def test_a_hidden_link_is_shown_while_it_has_the_focus() -> None:
    css = render.assets()["page.css"].content.decode()
    assert re.findall(r"^(\.vh\S*) {", css, re.M) == [".vh:not(:focus)"]


def test_letters() -> None:
    signs = {0: "A", 25: "Z", 26: "AA", 51: "AZ", 52: "BA", 701: "ZZ", 702: "AAA"}
    assert {key: render.letters(key) for key in signs} == signs


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0, "0"), (1_234, "1,234"), (0.12345, "0.123"), (2.0, "2"), (12_345.6, "12,346"), (-3, "-3")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert render.number(value) == text


def test_addresses_leave_out_what_is_not_asked_for() -> None:
    assert render.link("/nodes", by="rack", in_="a b/c&d", page=None, colour="") == "/nodes?by=rack&in=a+b%2Fc%26d"
    assert render.link("/") == "/"


def test_the_parts_of_a_bar_fill_it() -> None:
    bars = drawing.bars([("held", 3), ("reserved", 0), ("free", 1)])
    assert [one["name"] for one in bars] == ["held", "free"]
    assert bars[0]["width"] == pytest.approx(drawing.BAR * 0.75)
    assert bars[-1]["x"] + bars[-1]["width"] == pytest.approx(drawing.BAR)
    assert drawing.bars([("held", 0)]) == []
    assert drawing.bars([("held", 1)], 4)[0]["width"] == pytest.approx(drawing.BAR / 4)


def test_differences_go_to_both_sides() -> None:
    more, less = drawing.split([{"term": "a", "points": 2.0}, {"term": "b", "points": -1.0}])
    assert (more["x"], more["width"]) == (drawing.BAR / 2, drawing.BAR / 2)
    assert (less["x"], less["width"]) == (drawing.BAR / 4, drawing.BAR / 4)
    assert [one["width"] for one in drawing.split([{"term": "a", "points": 0.0}])] == [0.0]


def test_a_timeline_counts_each_decision_once() -> None:
    decisions = [{"at": 100.0 - n, "verb": "filter" if n % 2 else "bind"} for n in range(50)]
    columns: dict[int, float] = {}
    drawn = drawing.strip(decisions)
    for one in drawn["parts"]:
        columns[one["column"]] = columns.get(one["column"], 0.0) + one["height"]
    assert min(columns) == 0
    assert max(columns) == drawing.STRIP - 1
    assert max(columns.values()) == pytest.approx(1.0)
    assert (drawn["most"], drawn["seconds"]) == (1, pytest.approx(49 / drawing.STRIP))  # what its axis states
    assert len(drawing.strip(decisions[:1])["parts"]) == 1


def test_links_are_drawn_once_or_to_the_switch() -> None:
    ring = [[int(abs(a - b) in (1, 3)) for b in range(4)] for a in range(4)]
    paired = drawing.graph({"links": ring, "link_scope": "pair", "numa": None})
    switched = drawing.graph({"links": ring, "link_scope": "gpu-total", "numa": None})
    assert paired is not None
    assert switched is not None
    assert (len(paired["lines"]), paired["hub"]) == (4, None)
    assert (len(switched["lines"]), switched["hub"]) == (4, drawing.SIZE / 2)
    assert drawing.graph({"links": None, "link_scope": None, "numa": None}) is None
    assert drawing.graph({"links": [[0, 0], [0, 0]], "link_scope": "pair", "numa": None}) is None


def test_each_width_of_a_line_is_explained() -> None:
    cube = {"links": [[0, 1, 2], [1, 0, 1], [2, 1, 0]], "link_scope": "pair"}
    assert drawing.widths(cube) == [{"links": 1, "width": 3.0}, {"links": 2, "width": 5.0}]
    assert {line["width"] for line in (drawing.graph(cube) or {})["lines"]} == {3.0, 5.0}
    assert drawing.widths(cube | {"link_scope": "gpu-total"}) == [
        {"links": 1, "width": drawing.INTO_SWITCH}, {"links": 2, "width": drawing.INTO_SWITCH}
    ]  # fmt: skip
    assert drawing.widths({"links": None, "link_scope": None}) == []
