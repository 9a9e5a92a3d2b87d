"""`python -m extender.objects` prints docs/annotations.md."""

from __future__ import annotations

from typing import Final

from extender.objects.annotations import NAMES, PREFIX

HEAD: Final = """# Annotations

The annotations of pods and nodes that gpu-extender reads and writes, all with the prefix `gpu-extender.io/`. An invalid
value is ignored, and `whatif` and `check` warn of it; `check` and `explain` find [typos](capacity.md#typos). This page
is printed by `python -m extender.objects`.

| annotation | on | written by | values | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """docs/annotations.md."""
    return HEAD + "".join(
        f"| `{PREFIX}{one.name}` | {one.on} | {one.writer} | {one.values} | {one.meaning} |\n" for one in NAMES
    )


if __name__ == "__main__":
    print(page(), end="")
