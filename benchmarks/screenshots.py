"""Pictures of the page in the distribution's Chromium, of the cluster that the tests of the page use.

    python -m benchmarks.screenshots                   the pictures of docs/page.md
    python -m benchmarks.screenshots --every FOLDER    every view, 1440 and 390 px wide, light and dark

The cluster has the same objects, names and times each time.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Final, Literal, NamedTuple

from playwright.sync_api import Browser, FloatRect, Page, ViewportSize

from extender import log
from tests.browser import chromium
from tests.web.page.scene import WAITS, scene
from tests.web.page.served import served
from tests.web.page.views import VIEWS

FOLDER: Final = Path(__file__).parents[1] / "docs" / "page"
WIDTH: Final = 1_200
MARGIN: Final = 8
"""Pixels below the last part that is shown."""
MOST_BYTES: Final = 320_000
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
Scheme = Literal["light", "dark"]
ASKED: Final = "whatif-answered"


class Picture(NamedTuple):
    """One picture. `width`: pixels."""

    name: str
    path: str
    until: str
    """The selector of the last part that is shown, whole: what comes after it is cut off. "": the whole page."""
    width: int = WIDTH
    scheme: Scheme = "light"
    manifest: str = ""
    """What is asked in the form that asks what if."""


DOCUMENTED: Final = (
    Picture("fleet", "/?holder=gang", ".chart"),
    Picture("pod", f"/pod?pod={WAITS}", ".side"),
    Picture("queue", "/queue", ".plan h3:first-of-type + ul"),
    Picture("preemption", "/preemptions", ".card"),
    Picture("node", "/node?node=v100-0", ".halves", scheme="dark"),
    Picture("whatif", f"/whatif?pod={WAITS}", "#answer .card:nth-of-type(2)", manifest=MANIFEST),
)


def every() -> Iterator[Picture]:
    """Each view in each size and scheme; the form that asks what if also answered."""
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for width in (1_440, 390):
        for scheme in schemes:
            for name, path in VIEWS.items():
                yield Picture(f"{name}-{width}-{scheme}", path, "", width, scheme)
            yield Picture(f"{ASKED}-{width}-{scheme}", VIEWS["whatif"], "", width, scheme, MANIFEST)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.screenshots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the pictures of the documents")
    parser.add_argument("--every", type=Path, metavar="FOLDER", help="pictures of every view go here")
    parser.add_argument("--only", default="", metavar="TEXT", help="of every view those whose name begins so")
    asked = parser.parse_args(arguments)
    installed = chromium.installed()
    if installed is None:
        print(f"none of {', '.join(chromium.NAMES)} is installed", file=sys.stderr)
        return 1
    log.configure(level=logging.ERROR)
    folder = asked.every or asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [picture for picture in (every() if asked.every else DOCUMENTED) if picture.name.startswith(asked.only)]
    worst = 0
    with served(scene()) as url, chromium.browser(installed) as browser:
        for picture in pictures:
            content = taken(browser, url, picture, folder / f"{picture.name}.png")
            print(f"{folder / picture.name}.png: {len(content):,} bytes")
            worst = max(worst, len(content))
    return 0 if asked.every or worst < MOST_BYTES else 1


def taken(browser: Browser, url: str, picture: Picture, path: Path) -> bytes:
    """Takes a picture."""
    size = ViewportSize(width=picture.width, height=900)
    context = browser.new_context(base_url=url, viewport=size, color_scheme=picture.scheme)
    page = context.new_page()
    page.goto(picture.path)
    _complete(page, picture.manifest)
    content = page.screenshot(path=path, full_page=True, clip=_clip(page, picture))
    context.close()
    return content


def _clip(page: Page, picture: Picture) -> FloatRect | None:
    """The part of the page that is taken; None: all."""
    if not picture.until:
        return None
    box = page.locator(picture.until).first.bounding_box()
    assert box is not None
    return FloatRect(x=0, y=0, width=picture.width, height=ceil(box["y"] + box["height"]) + MARGIN)


def _complete(page: Page, manifest: str) -> None:
    """Waits until all of the view is there; asks what the form is to be asked."""
    if page.locator("[data-late]").count():
        page.locator("#late-advice p.dim").first.wait_for(timeout=WAIT_MS)
    if manifest:
        page.get_by_label("Manifest").fill(manifest)
        page.get_by_role("button", name="Ask").click()
        page.locator("#answer section").first.wait_for(timeout=WAIT_MS)
        page.evaluate("scrollTo(0, 0); document.querySelector('textarea').scrollTo(0, 0)")


if __name__ == "__main__":
    sys.exit(main())
