"""A view holds up no verb: its pieces are short, and the cluster may change between any two.

GPU_EXTENDER_SLICE_NODES=5000 measures a cluster of so many nodes; the default is a thousand.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable

import pytest

from extender.verdict.explain import Times
from extender.web.page.live import Live
from extender.web.page.site import Content, Site
from tests.verdict.test_slices import explainer, filled
from tests.world import WALL, World, pairs

NODES = int(os.environ.get("GPU_EXTENDER_SLICE_NODES", "1000"))
RUNS = 3
MOST_SECONDS = 0.005
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
    times = Times(lambda: world.now, lambda: world.wall)
    content = Content(world.verbs, explainer(world), times, lambda: None)
    return Site(content, Live(lambda: 0, world.server.connections.stopping), world.server.pages)


def made(site: Site, path: str, between: Callable[[], None] = lambda: None) -> tuple[bytes, list[float]]:
    """The HTML of a view, and the CPU seconds of each piece."""
    view = next(one for one in site.views if one.path == path)
    pieces, spent, found = site.pieces(view, VIEWS[path], as_json=False), list[float](), list[bytes]()
    while True:
        began = time.process_time()
        piece = next(pieces, None)
        spent.append(time.process_time() - began)
        if piece is None:
            return b"".join(found), spent
        found.append(piece)
        between()


def test_every_view_is_here() -> None:
    assert [view.path for view in site(World()).views] == list(VIEWS)


def test_slices_are_short() -> None:
    world = filled(NODES)
    for n in range(8):
        world.filter(world.pod(f"asked{n}", 2))
    gc.collect()
    gc.freeze()
    try:
        for path in VIEWS:
            runs = [made(site(world), path)[1] for _ in range(RUNS)]  # a new one: no answer is kept
            least = [min(run[at] for run in runs) for at in range(min(map(len, runs)))]
            assert max(least) < MOST_SECONDS, (path, least.index(max(least)), max(least))
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("path", VIEWS)
def test_the_cluster_may_change_between_any_two(path: str) -> None:
    world, rng = filled(40), random.Random(5)
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        if number % 7:
            return
        names = sorted(world.cluster.nodes)
        running = sorted(one.name for one in world.cluster.pods.values() if one.node)
        match rng.randint(0, 3):
            case 0 if len(names) > 20 and "n7" in names:
                gone = rng.choice([name for name in names if name != "n7"])
                world.drop("Node", {"metadata": {"name": gone, "uid": f"uid-{gone}"}})
            case 1:
                world.node(f"new{number}", 8, links=pairs(8))
            case 2 if running:
                world.gone(rng.choice(running))
            case _:
                world.filter(world.pod(f"late{number}", 1, start=WALL))

    text, _ = made(site(world), path, change)
    assert text.endswith(b"</html>")
