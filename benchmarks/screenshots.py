"""Makes the pictures of docs/page.md in the distribution's Chromium.

    python -m benchmarks.screenshots [--folder docs/page]

The cluster is that of the tests of the page: the same objects, names and times each time.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from playwright.sync_api import ViewportSize

from extender import log
from tests.browser import chromium
from tests.web.page.scene import WAITS, scene
from tests.web.page.served import served

FOLDER: Final = Path(__file__).parents[1] / "docs" / "page"
WIDTH: Final = 1_200
MOST_BYTES: Final = 150_000
WAIT_MS: Final = 60_000


MANIFEST: Final = """\
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: vision}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 8}}
"""


class Picture(NamedTuple):
    """One picture. `height`: pixels from the top of the page."""

    path: str
    height: int
    scheme: Literal["light", "dark"] = "light"
    manifest: str = ""
    """What is asked in the form that asks what if."""


PICTURES: Final = {
    "fleet": Picture("/?colour=gang", 880),
    "pod": Picture(f"/pod?pod={WAITS}", 860),
    "queue": Picture("/queue", 540),
    "preemption": Picture("/preemptions", 600),
    "node": Picture("/node?node=v100-0", 760, "dark"),
    "whatif": Picture(f"/whatif?pod={WAITS}", 1_200, manifest=MANIFEST),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    installed = chromium.installed()
    if installed is None:
        print(f"none of {', '.join(chromium.NAMES)} is installed", file=sys.stderr)
        return 1
    log.configure(level=logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    worst = 0
    with served(scene()) as url, chromium.browser(installed) as browser:
        for name, one in PICTURES.items():
            size = ViewportSize(width=WIDTH, height=one.height)
            context = browser.new_context(base_url=url, viewport=size, color_scheme=one.scheme)
            page = context.new_page()
            page.goto(one.path)
            if page.locator("[data-late]").count():
                page.locator("#late-advice time").wait_for(timeout=WAIT_MS)
            if one.manifest:
                page.get_by_label("Manifest").fill(one.manifest)
                page.get_by_role("button", name="Ask").click()
                page.locator("#answer section").first.wait_for(timeout=WAIT_MS)
                page.evaluate("scrollTo(0, 0)")
            content = page.screenshot(path=folder / f"{name}.png")
            context.close()
            print(f"{folder / name}.png: {len(content):,} bytes")
            worst = max(worst, len(content))
    return 0 if worst < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
