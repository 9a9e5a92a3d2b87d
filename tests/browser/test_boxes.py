"""Rendered boxes of every view: within the window, or within an element that scrolls and shows that it does. No word is
broken where it would fit into its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.web.page.views import VIEWS

WIDTHS = (320, 390, 1440)
SCRIPT = Path(__file__).with_name("boxes.js").read_text()


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


def test_why_a_node_is_before_another_does_not_scroll(window: Page) -> None:
    window.goto(VIEWS["pod-fits"])
    assert window.locator("[aria-labelledby=scores].scroll").evaluate("box => box.scrollWidth - box.clientWidth") == 0


@pytest.mark.parametrize("width", [700, 1000, 1200])
def test_what_is_left_of_the_fleet_does_not_scroll(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/")
    assert page.locator("[aria-labelledby=left].scroll").evaluate("box => box.scrollWidth - box.clientWidth") == 0


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
