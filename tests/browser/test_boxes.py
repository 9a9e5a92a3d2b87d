"""Rendered boxes of every view: within the window, or within an element that scrolls and shows that it does. No word is
broken where it would fit into its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from extender.web import fleet_page
from tests.web.page.views import VIEWS

WIDTHS = (320, 390, 1440)
EVERY_WIDTH = (320, 390, 641, 660, 700, 768, 900, 1024, 1100, 1200, 1280, 1440)
SCRIPT = Path(__file__).with_name("boxes.js").read_text()
TABLES = Path(__file__).with_name("tables.js").read_text()


@pytest.fixture(scope="module", params=WIDTHS)
def window(request: pytest.FixtureRequest, browser: Browser, url: str) -> Iterator[Page]:
    context = browser.new_context(base_url=url, viewport={"width": request.param, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_box_is_inside(window: Page, view: str) -> None:
    window.goto(VIEWS[view])
    for details in window.locator("main details").all():
        details.evaluate("element => element.open = true")
    assert window.evaluate(SCRIPT) == []


@pytest.mark.parametrize("view", [view for view in VIEWS if not view.startswith("error")])
def test_no_table_of_a_view_scrolls(page: Page, view: str) -> None:
    """A table without room for its columns shows its rows as blocks, also wider than a phone."""
    page.goto(VIEWS[view])
    for details in page.locator("main details").all():
        details.evaluate("element => element.open = true")
    assert _table_faults(page) == {}


def test_the_table_of_racks_does_not_scroll(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in place of the map of each node where nodes are many."""
    monkeypatch.setattr(fleet_page, "FEW_NODES", 0)
    page.goto("/?by=rack&holder=queue")
    expect(page.locator("[aria-labelledby=racks] tbody tr")).to_have_count(3)
    assert _table_faults(page) == {}


def _table_faults(page: Page) -> dict[int, list[str]]:
    """By width of the window, where there are some."""
    faults = {}
    for width in EVERY_WIDTH:
        page.set_viewport_size({"width": width, "height": 900})
        if found := page.evaluate(TABLES):
            faults[width] = found
    return faults


def test_what_is_outside_is_found(window: Page) -> None:
    """The check on a page of its own: a wide box, an unmarked scroller and a word that is broken."""
    window.goto("/waiting")
    window.evaluate(
        """() => document.querySelector("main").replaceChildren(...new DOMParser().parseFromString(
        '<table class="wide" width="3000"><tr><td>wide</td></tr></table>' +
        '<p class="letters">unbroken</p><div class="unmarked"><table width="3000"><tr><td>x</td></tr></table></div>',
        "text/html").body.childNodes)"""
    )
    window.evaluate("document.querySelector('.letters').style.cssText = 'width: 3em; overflow-wrap: anywhere'")
    window.evaluate("document.querySelector('.unmarked').style.overflowX = 'auto'")
    faults = " ".join(window.evaluate(SCRIPT))
    assert "TABLE.wide" in faults
    assert "broken in" in faults
    assert "scrolls and does not show it" in faults
