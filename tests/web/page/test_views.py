"""Each view over a cluster in which pods run and wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from extender.times import Clock
from extender.web.pages import Content, Pages
from extender.web.site import VIEWS as SERVED
from extender.web.site import Live, Site
from tests.ask.test_nothing_changes import explainer, filled
from tests.world import World

COSTLY = ("/capacity", "/advice")
VIEWS: dict[str, dict[str, str]] = {
    "/": {},
    "/nodes": {"by": "zone", "in": ""},
    "/node": {"node": "n7"},
    "/waiting": {},
    "/pod": {"pod": "default/links"},
    "/queue": {},
    "/capacity": {},
    "/advice": {"pod": "default/links"},
    "/whatif": {},
    "/preemptions": {},
    "/prices": {},
    "/decisions": {},
}


def site(world: World) -> Site:
    clock = Clock(lambda: world.now, lambda: world.wall)
    content = Content(world.verbs, explainer(world), clock, lambda: None)
    return Site(content, Live(lambda: 0, world.server.connections.stopping), list, Pages(world.server.asks))


def made(site: Site, path: str, query: Mapping[str, str]) -> bytes:
    """The HTML of a view."""
    shared = site.shared(path) if path in COSTLY else b""
    return site.rendered(path, query, False, shared)


def test_every_view_is_here_and_in_the_document() -> None:
    document = (Path(__file__).parents[3] / "docs" / "page.md").read_text()
    addresses = re.findall(r"^\| [a-z ]+ \| `(/[a-z]*)", document, re.MULTILINE)
    assert [view.path for view in SERVED] == list(VIEWS) == addresses


@pytest.mark.parametrize("path", VIEWS)
def test_each_view_is_a_page(path: str) -> None:
    world = filled(40)
    for n in range(8):
        world.filter(world.pod(f"asked{n}", 2))
    assert made(site(world), path, VIEWS[path]).endswith(b"</html>")
