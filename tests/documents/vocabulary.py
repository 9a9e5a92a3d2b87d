"""The texts that users read, and what must not occur in them.

    python -m tests.documents.vocabulary [--worst 20]

prints the longest sentences of README.md and docs/, their share by document, and the words that must not occur.
"""

from __future__ import annotations

import argparse
import ast
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LONG = 25
"""Words of a sentence; a longer one tires readers who are not native speakers."""

VERBATIM = (
    r"proves it \(at the limit of the search",
    r"Without Go they are skipped, as those of the page",
    r"largest pod \d",
    r"linked sets left: (\d+) of (?!\1\b)",
    r"(?<![\d.,])(?<!of )1 (GPUs|nodes|pods|gangs)\b",
    r"given_up \d",
    r"nodes \d+, gpus \d+",
    r"\d seen, \d+ admit the pod",
    r"highest_victim_priority \d",
    r"victims \d+ pods",
    r"verified each on the tables as they would be",
    r"What if nodes or pods were others",
    r"apart by spaces",
    r"None of it is carried out",
    r"bind: bound on",
    r"404: not-found",
    r"/ generation \d",
    r"Links: annotation",
    r"states as of when it is",
    r"Of a frozen one nothing is written",
    r"Of several replicas only the one that schedules",
    r"retries a pod that met us dead",
    r"no use to their like",
    r"\(hopeless\)",
    r"(?<![\w-])\d+(\.\d+)?[eE][+-]\d+\b",
)
"""What readers of the first release stumbled over, and its like: numbers without a noun, wrong plurals, keys of the
code, scientific notation."""

WORDS = {
    r"\b[Ss]o many\b": "the number, or `each`",
    r"\bof ours\b": "`our`, or the name",
    r"\bthat one(?=[.,;:)]|$| is\b| of\b| has\b)": "the noun",
    r"(?:^|[.:;] )Of (?!course)": "the sentence in plain order",
    r"(?:^|[.;] )What (?:is|are|was) [^?]*?[.;]": "the sentence in plain order, its subject a noun",
    r"\b[Cc]an not\b": "cannot",
    r"\bto be had\b": "is available",
    r"\b(?<!-)(?:[Ss]omebody|[Nn]obody)\b": "the account, user or component",
    r"\b(?:is|are) dear(?:er|est)?\b": "costs more",
    r"\bhas to go\b": "is evicted",
    r"\b(?:[Ss]ays?|[Tt]ells?)\b|\b(?:is|are|as|not) (?:told|said)\b": "states, reports or returns",
}
"""What must not occur, by what to write instead."""

MAINTAINERS = ("docs/architecture.md", "docs/internals/")
CODE = re.compile(r"^```.*?^```|^<!--.*?-->|^    .*?$", re.MULTILINE | re.DOTALL)
END = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z`\"(*\[\d]|kube|gpu-extender|filter|preempt|prioritize|bind|p\d\d)")
"""Names that begin with a small letter begin sentences too."""
ITEM = re.compile(r"\n(?=\s*(?:[-*]|\d+\.) )|\n\s*\n")


def documents() -> dict[str, str]:
    """README.md and each document below docs/, by path."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(page.relative_to(ROOT)): page.read_text() for page in pages}


def prose(text: str) -> str:
    """The text without code blocks, headings, comments and tables; links as their words, code as one word."""
    text = CODE.sub("", text)
    text = re.sub(r"^(#|\||!\[|\s*<).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "`code`", text)


def sentences(text: str) -> list[str]:
    """The sentences of a document: an item of a list begins one, and so does a paragraph."""
    blocks = (" ".join(block.split()) for block in ITEM.split(prose(text)))
    return [sentence for block in blocks for sentence in END.split(block) if words(sentence)]


def words(sentence: str) -> int:
    """The tokens with a letter or a digit."""
    return sum(any(map(str.isalnum, token)) for token in sentence.split())


def messages() -> dict[str, str]:
    """The strings of the program, less docstrings (`--help` prints those of commands: docs/commands.md)."""
    return {
        str(file.relative_to(ROOT)): "\n".join(_strings(file)) for file in sorted((ROOT / "extender").rglob("*.py"))
    }


def _strings(file: Path) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def templates() -> dict[str, str]:
    """The text of the page's templates."""
    folder = ROOT / "extender/web/templates"
    return {str(file.relative_to(ROOT)): re.sub(r"<[^>]*>", " ", file.read_text()) for file in folder.glob("*.html")}


def manifests() -> dict[str, str]:
    """The manifests with their comments, and the texts of alerts and chart."""
    files = (file for file in sorted((ROOT / "manifests").rglob("*")) if file.suffix in (".yaml", ".md", ".txt"))
    return {str(file.relative_to(ROOT)): re.sub(r"\n\s*# ?", " ", file.read_text()) for file in files}


def answers() -> dict[str, str]:
    """What the commands and pages printed for the recorded clusters, and the scenes of the demo."""
    found = {}
    for file in sorted((ROOT / "tests/answers/recorded").glob("*.json")):
        found[str(file.relative_to(ROOT))] = "\n".join(_texts(json.loads(file.read_text())))
    demo = ROOT / "docs/page/demo.svg"
    found[str(demo.relative_to(ROOT))] = html.unescape(re.sub(r"<[^>]*>", " ", demo.read_text()))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def plain(text: str) -> str:
    """A document without code, where each sentence, cell and item begins a line."""
    text = re.sub(r"`[^`\n]*`", "`code`", CODE.sub("", text))
    return END.sub("\n", re.sub(r"\n(?![-*|#\n ]|\d+\.)", " ", text).replace("| ", "\n"))


def occurrences(patterns: tuple[str, ...], texts: dict[str, str]) -> list[str]:
    """`FILE: the words and what is around them` for each match."""
    return [
        f"{name}: {text[max(0, match.start() - 30) : match.end() + 30]!r}"
        for name, text in texts.items()
        for pattern in patterns
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]


def long_sentences(texts: dict[str, str]) -> tuple[list[tuple[int, str, str]], int]:
    """((words, document, sentence), longest first; the number of all sentences)."""
    found = [(words(sentence), name, sentence) for name, text in texts.items() for sentence in sentences(text)]
    return sorted((entry for entry in found if entry[0] > LONG), reverse=True), len(found)


def report(worst: int) -> str:
    """What the command prints."""
    texts = documents()
    found, count = long_sentences(texts)
    lines = [f"{count} sentences, {len(found)} longer than {LONG} words: {100 * len(found) / count:.1f} %"]
    for name, text in texts.items():
        more, of = long_sentences({name: text})
        lines.append(f"  {name}: {len(more)} of {of}, {len(text.split())} words")
    lines += [f"{length} words, {name}: {sentence}" for length, name, sentence in found[:worst]]
    lines += occurrences(tuple(WORDS), everything())
    return "\n".join(lines)


@cache
def everything() -> dict[str, str]:
    """All texts of users, by file; not the documents of maintainers."""
    users = {name: plain(text) for name, text in documents().items() if not name.startswith(MAINTAINERS)}
    return users | messages() | templates() | manifests() | answers()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.documents.vocabulary", description=__doc__.splitlines()[0])
    parser.add_argument("--worst", type=int, default=20, help="sentences to print (default %(default)s)")
    print(report(parser.parse_args().worst))
