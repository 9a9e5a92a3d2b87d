"""What documents show is what the program prints: each block behind `<!-- printed -->`, which has its commands.

After a change of words: GPU_EXTENDER_WRITE_DOCS=1 pytest tests/test_docs_example.py writes the blocks anew.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from extender import settings
from extender.cli import main
from extender.decide.evicted import OTHERS
from extender.reservations.reservations import CAUSES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "preemption.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = re.compile(r"(?<=<!-- printed -->\n```\n)\$ .*?(?=\n```\n)", re.DOTALL)


def run(block: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The commands of a block, each with what it prints now."""
    shown = []
    for command in re.findall(r"^\$ gpu-extender (.*)$", block, re.MULTILINE):
        assert main(shlex.split(command)) in (0, 10, 11), command
        shown.append(f"$ gpu-extender {command}\n{capsys.readouterr().out}".rstrip("\n"))
    return "\n".join(re.sub(r" +$", "", text, flags=re.MULTILINE) for text in shown)


@pytest.mark.parametrize(
    "page", [page for page in DOCUMENTS if COMMANDS.search(page.read_text())], ids=lambda page: page.name
)
def test_commands_of_a_page_print_what_it_shows(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    text = page.read_text()
    printed = COMMANDS.sub(lambda block: run(block[0], capsys), text)
    if os.environ.get("GPU_EXTENDER_WRITE_DOCS"):
        page.write_text(printed)
        text = printed
    assert text == printed, "GPU_EXTENDER_WRITE_DOCS=1 writes it anew"


def test_every_event_and_every_end_of_a_reservation_is_on_the_page() -> None:
    told = set(re.findall(r"`([\w-]+)`", PAGE.read_text()))
    code = "".join(path.read_text() for path in (ROOT / "extender").rglob("*.py"))
    reasons = set(re.findall(r'"((?:Chosen|Preemption|Eviction|GPUPods)[A-Z]\w+)"', code))
    reasons -= {*OTHERS, *settings.__all__, "EvictionRequest"}  # the last one is a kind
    assert len(reasons) >= 8
    assert reasons <= told
    assert set(CAUSES) <= told
