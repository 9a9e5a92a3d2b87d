"""Mermaid reads each diagram of the documents.

Mermaid comes from npm, once, into the cache of the tests; nothing else uses it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.build import cache_root
from tests.needs import lacking

VERSION = "12.3.0"
SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"
MEMBER = "package/dist/mermaid.min.js"
ROOT = Path(__file__).parents[2]
DIAGRAMS = {
    f"{path.relative_to(ROOT)}:{number}": text
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for number, text in enumerate(re.findall(r"^```mermaid\n(.*?)^```$", path.read_text(), re.M | re.S), 1)
}
READ = "text => mermaid.parse(text).then(() => '', error => String(error))"


def script() -> Path:
    """Mermaid in one file."""
    kept = cache_root() / "mermaid" / VERSION / "mermaid.min.js"
    if kept.exists():
        return kept
    npm = shutil.which("npm")
    if npm is None:
        lacking("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            [npm, "pack", "--silent", f"mermaid@{VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if packed.returncode:
            lacking(f"npm does not serve Mermaid: {packed.stderr.strip()[-200:]}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None
            content = member.read()
    assert hashlib.sha256(content).hexdigest() == SHA256
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".part")
    partial.write_bytes(content)
    partial.rename(kept)
    return kept


@pytest.fixture(scope="module")
def mermaid(browser: Browser) -> Page:
    opened = browser.new_page()
    opened.add_script_tag(path=script())
    return opened


@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_mermaid_reads_each_diagram(mermaid: Page, diagram: str) -> None:
    assert mermaid.evaluate(READ, DIAGRAMS[diagram]) == ""


def test_a_fault_is_found(mermaid: Page) -> None:
    assert len(DIAGRAMS) >= 4
    assert "rror" in mermaid.evaluate(READ, 'flowchart TD\n  a["no end --> b')
