"""Records the answers that tests/answers/test_answers.py compares.

    python -m tests.answers.record

asks all questions anew. Run it only when answers change on purpose, and state in the commit message why they differ. A
file has one cluster: `items` as a file for `--cluster`, `settings`, `now`, the manifests that are `asked` about, and
the `answers` by question. A new cluster is a file without answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.answers.questions import Scenario, answers

RECORDED: Final = Path(__file__).parent / "recorded"
COMMAND: Final = "python -m tests.answers.record"
WIDTH: Final = 160
"""Characters of a line, where a value can be divided."""


def names() -> list[str]:
    """The names of all clusters that are recorded."""
    return sorted(path.stem for path in RECORDED.glob("*.json"))


def read(name: str) -> tuple[Scenario, dict[str, Any]]:
    """A cluster, and the answers about it."""
    whole = json.loads((RECORDED / f"{name}.json").read_text())
    return Scenario(*(whole[key] for key in Scenario._fields)), whole.get("answers", {})


def write(name: str, scenario: Scenario, answered: Mapping[str, Any]) -> None:
    """Writes a file; equal answers give equal files."""
    whole = scenario._asdict() | {"answers": answered}
    (RECORDED / f"{name}.json").write_text("".join(_lines(whole, "")) + "\n")


def _lines(value: Any, indent: str) -> Iterator[str]:
    """JSON with sorted keys: what fits on a line stays on it, so that a difference shows a small part."""
    short = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(indent) + len(short) <= WIDTH:
        yield short
        return
    inner = indent + " "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    parts = sorted(value.items()) if isinstance(value, dict) else [("", part) for part in value]
    yield opening
    for number, (key, part) in enumerate(parts):
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        yield f"{',' if number else ''}\n{inner}{name}"
        yield from _lines(part, inner)
    yield f"\n{indent}{closing}"


def main() -> None:
    """Records the answers about all clusters, and prints how many there are."""
    total = 0
    for name in names():
        scenario, _ = read(name)
        answered = answers(scenario)
        write(name, scenario, answered)
        total += len(answered)
        print(f"{name}: {len(answered)}")
    print(f"{total} answers")


if __name__ == "__main__":
    main()
