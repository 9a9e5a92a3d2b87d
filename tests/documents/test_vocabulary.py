"""Messages, help, page and documents speak plainly. `python -m tests.documents.vocabulary` prints what does not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.documents import vocabulary
from tests.documents.vocabulary import (
    MAINTAINERS,
    VERBATIM,
    WORDS,
    documents,
    everything,
    long_sentences,
    occurrences,
    plain,
    sentences,
    words,
)

SHARE = 0.05
"""Of the sentences of README.md and docs/, how many may be longer than 25 words."""

ISSUE = """proves it (at the limit of the search the answer says that it is not proved)
Without Go they are skipped, as those of the page without Chromium, and the last line says so
largest pod 0 any links (0 nodes), 0 linked (0 nodes)
linked sets left: 3 of 2
1 GPUs
ask for 2 GPUs instead of 4 (it fits on dgx1): given_up 2 GPUs
nodes 1, gpus 8
6 seen, 4 admit the pod, 4 offer its GPUs, 1 have enough free, 0 linked, 0 not reserved, 0 left
highest_victim_priority 10, seconds 30, victims 1 pods
Our filter verified each on the tables as they would be.
What if nodes or pods were others?
apart by spaces
None of it is carried out.
bind: bound on hgx, 0 of 1 nodes fit
404: not-found / generation 0
Links: annotation gpu-extender.io/topology (annotation).
it states as of when it is
Of a frozen one nothing is written
Of several replicas only the one that schedules is asked
retries a pod that met us dead
no use to their like
a cost of 1e-09 or 2.5e+06"""
"""The list of the issue, to be found by the patterns."""


@pytest.mark.parametrize("phrase", ISSUE.splitlines())
def test_each_phrase_of_the_issue_would_be_found(phrase: str) -> None:
    assert occurrences(VERBATIM, {"a text": f"words before\n{phrase} and after"})


@pytest.mark.parametrize(
    "phrase",
    [
        "It waits so many seconds.", "A choice of ours.", "The server asks that one.", "None is to be had.",
        "It waits. Of a gang it has two.", "What is left is free.", "It waits; what is left. What are bounds is set.",
        "It can not be.", "Nobody knows.", "It is dear.", "It has to go.",
        "The log says why.", "It is told.",
    ],
)  # fmt: skip
def test_each_of_the_words_would_be_found(phrase: str) -> None:
    assert occurrences(tuple(WORDS), {"a text": plain(f"A sentence.\n{phrase}\n")})


def test_plain_sentences_are_no_occurrence() -> None:
    text = "Of course it waits. What is a gang? It reports that one pod waits. 1 GPU and 21 GPUs, 3 of 3 linked sets."
    assert occurrences((*VERBATIM, *WORDS), {"a text": plain(text)}) == []


def test_the_phrases_of_the_issue_are_gone() -> None:
    assert occurrences(VERBATIM, everything()) == []


def test_the_words_do_not_occur() -> None:
    assert occurrences(tuple(WORDS), everything()) == []


def test_the_texts_are_all_read() -> None:
    """Messages with their placeholders, help, templates, answers and the demo, each by a text that it has."""
    texts = everything()
    kinds = Counter(name.split("/")[0] if name.endswith(".md") else Path(name).suffix for name in texts)
    assert min(kinds["docs"], kinds[".py"], kinds[".html"], kinds[".json"], kinds[".svg"]) >= 1
    assert len(texts) > 200
    assert "GPUs" in texts["docs/page/demo.svg"]
    assert "Only the holder of this Lease evicts." in texts["manifests/evictions/rights.yaml"]
    assert "is unknown, and no name" in texts["extender/objects/annotations.py"]
    assert "What could start now" in texts["docs/commands.md"]


def test_sentences_are_short() -> None:
    found, count = long_sentences(documents())
    shown = "\n".join(f"{length} words, {name}: {sentence}" for length, name, sentence in found[:15])
    assert count > 1000
    assert len(found) / count <= SHARE, f"{len(found)} of {count} sentences:\n{shown}"


def test_what_counts_as_a_sentence() -> None:
    text = """# A heading of many words

One `code with words` and [a link](to/a.md#place). Two: it goes on (e.g. here), 3.5 GB too.
- an item
- another item
  that goes on

| a | table |
|---|---|

    code
```
more code
```
Last one
"""
    assert sentences(text) == [
        "One `code` and a link.", "Two: it goes on (e.g. here), 3.5 GB too.", "- an item",
        "- another item that goes on", "Last one",
    ]  # fmt: skip
    assert words("- One `code`, and 3.5 GB - too.") == 6
    long = f"{' '.join(['word'] * 26)}. {' '.join(['Word'] * 25)}."
    assert [length for length, _, _ in long_sentences({"a": long})[0]] == [26]


def test_documents_of_users_name_no_tests() -> None:
    users = [name for name in documents() if not name.startswith(MAINTAINERS)]
    named = {name: re.findall(r"\btests/[\w/.]+\.py\b", vocabulary.documents()[name]) for name in users}
    assert {name: tests for name, tests in named.items() if tests} == {}
