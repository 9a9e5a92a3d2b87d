"""A browser, and the server of a scene that its pages ask.

Playwright keeps an event loop running in this thread, so the browser ends with its module: other tests run their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.browser import chromium
from tests.needs import lacking
from tests.web.page.scene import scene
from tests.web.page.served import served
from tests.world import World

UNAVAILABLE = pytest.StashKey[str]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's own last line: a green run without these tests must not look like one with them."""
    if reason := config.stash.get(UNAVAILABLE, None):
        print(f"\nthe tests in a browser were SKIPPED: {reason}")


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Without Chromium: skipped, but a failure when ``CI`` is set."""
    path = chromium.installed()
    if path is None:
        reason = f"none of {', '.join(chromium.NAMES)} is installed"
        request.config.stash[UNAVAILABLE] = reason
        lacking(reason)
    with chromium.browser(path) as started:
        yield started


@pytest.fixture(scope="module")
def world() -> World:
    return scene()


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with served(world) as address:
        yield address


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page at the server's address. What the browser rejects by our policy, or cannot load, fails the test."""
    context = browser.new_context(base_url=url)
    opened = context.new_page()
    faults: list[str] = []

    def noted(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(message.text)

    opened.on("console", noted)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    context.close()
    assert faults == []
