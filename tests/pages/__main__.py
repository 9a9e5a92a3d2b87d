"""`python -m tests.pages` writes the pages of docs/ that the code prints; with a NAME it prints that page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import rights
from tests.pages import commands, machines, reference

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "commands": commands.page,
    "metrics": reference.metrics_page,
    "policy": reference.policy_page,
    "reasons": reference.reasons_page,
    "rights": rights.page,
    "settings": reference.settings_page,
}


def main(names: list[str]) -> None:
    """Prints the pages with these names; without one writes all, and those of the machines."""
    os.environ.pop("NODE_NAME", None)  # a default of `agent`
    for name in names:
        print(PAGES[name](), end="")
    if not names:
        for name, page in PAGES.items():
            (DOCS / f"{name}.md").write_text(page())
        machines.write(DOCS)


if __name__ == "__main__":
    main(sys.argv[1:])
