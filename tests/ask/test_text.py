"""Numbers and names for people."""

from __future__ import annotations

from extender.ask.text import count, named_gpus, short


def test_plurals() -> None:
    assert [count(n, "pod") for n in (0, 1, 2, 1234)] == ["0 pods", "1 pod", "2 pods", "1,234 pods"]


def test_long_names_lose_their_middle() -> None:
    assert short("a-name") == "a-name"
    assert short("x" * 48) == "x" * 48
    cut = short("begin" + "x" * 100_000 + "end")
    assert (len(cut), cut[:5], cut[-3:], "…" in cut) == (48, "begin", "end", True)
    assert short("red\x1b[31m") == "red?[31m"


def test_gpus_that_are_not_known() -> None:
    assert (named_gpus([3]), named_gpus([0, 1, 3])) == ("GPU 3", "GPUs 0-1,3")
