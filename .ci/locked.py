#!/usr/bin/env python3
"""Prints what pip installs for parts of pyproject.toml: their packages in requirements.lock and all that these need.

    .ci/locked.py PART ...           exact versions with hashes
    .ci/locked.py --ranges PART ...  the ranges of pyproject.toml instead

A part is `build` (what compiles the core), `project` (what it imports), an extra or a dependency group; `all` is each.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==")
NEEDED_BY = re.compile(r"^ +#(?: +via)? +(?P<name>[\w.-]+)$", re.MULTILINE)


def normalized(requirement: str) -> str:
    """The name in a requirement, as the lock writes it."""
    found = re.match(r"[\w.-]+", requirement)
    if found is None:
        raise SystemExit(f"locked: {requirement!r} names no package")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def parts() -> dict[str, list[str]]:
    """Each part with its requirements."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = read["project"]
    return {
        "build": read["build-system"]["requires"],
        "project": project["dependencies"],
        **project["optional-dependencies"],
        **read["dependency-groups"],
    }


def entries() -> list[tuple[str, str]]:
    """The packages of the lock with their lines. One that differs between Pythons has an entry for each."""
    found: list[tuple[str, str]] = []
    for line in (ROOT / "requirements.lock").read_text().splitlines(keepends=True):
        entry = ENTRY.match(line)
        if entry:
            found.append((entry["name"], line))
        elif found:
            name, text = found[-1]
            found[-1] = (name, text + line)
    return found


def closure(wanted: set[str]) -> set[str]:
    """`wanted`, and all that these need: the lock states under each package which ones need it."""
    needs: dict[str, set[str]] = {}
    for name, text in entries():
        for parent in NEEDED_BY.findall(text):
            needs.setdefault(parent, set()).add(name)
    found, look = set(wanted), list(wanted)
    while look:
        new = needs.get(look.pop(), set()) - found
        found |= new
        look += new
    return found


def main(words: list[str]) -> int:
    """0; 2 for an unknown part, 1 where the lock lacks a package."""
    known = parts()
    ranges = words[:1] == ["--ranges"]
    chosen = words[1:] if ranges else words
    chosen = list(known) if chosen == ["all"] else chosen
    if not chosen or not set(chosen) <= set(known):
        print(f"locked: name one or more of {', '.join(known)}, or all", file=sys.stderr)
        return 2
    requirements = [requirement for part in chosen for requirement in known[part]]
    if ranges:
        print("\n".join(requirements))
        return 0
    wanted = {normalized(requirement) for requirement in requirements}
    if missing := wanted - {name for name, _ in entries()}:
        print(f"locked: requirements.lock lacks {', '.join(sorted(missing))}; run `make lock`", file=sys.stderr)
        return 1
    needed = closure(wanted)
    print("".join(text for name, text in entries() if name in needed), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
