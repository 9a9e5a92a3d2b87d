"""Manifests in the style of each project's API reference: how many pods and GPUs they ask for, and their gangs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from extender.ask import frozen
from extender.ask.whatif import question
from extender.ask.whatif.question import Question
from extender.errors import ExtenderError
from extender.objects import gangs
from extender.objects.records import PodRecord

FILES = sorted((Path(__file__).parents[2] / "manifests").glob("*.yaml"))
GPUS = frozenset({"nvidia.com/gpu", "amd.com/gpu"})
CASE = re.compile(r"^# case (?P<name>.*?): (?P<expected>(?:pods|error) .*)$", re.MULTILINE)


class Case(NamedTuple):
    name: str
    expected: str
    text: str


def cases() -> Iterator[Case]:
    for path in FILES:
        text = path.read_text()
        starts = [*CASE.finditer(text)]
        for start, end in zip(starts, [match.start() for match in starts[1:]] + [len(text)], strict=True):
            yield Case(f"{path.stem}: {start['name']}", start["expected"], text[start.end() : end])


def described(asked: Question) -> str:
    """What a question asks for, in the words of a case."""
    objects = {(group.api, group.kind, group.namespace, group.name): group for group in asked.groups}
    members: dict[gangs.Ref, list[PodRecord]] = {}
    for pod in asked.pods:
        if (ref := gangs.ref(pod, objects)) is not None:
            members.setdefault(ref, []).append(pod)
    parts = [f"pods {len(asked.pods)}", f"gpus {sum(number for pod in asked.pods for _, number in pod.gpus)}"]
    for ref, pods in sorted(members.items()):
        counted = gangs.Members(pods)
        size = gangs.size(ref, counted, objects)
        owner = gangs.owner_of(ref, objects)
        domain = owner.domain if owner is not None else None
        where = "" if domain is None else f" {'in' if domain[1] else 'near'} {domain[0]}"
        parts.append(
            f"gang {ref} {gangs.minimum(ref, counted, objects)} of {len(pods) if size is None else size}{where}"
        )
    return ", ".join(parts + ([f"assumed {len(asked.assumed)}"] if asked.assumed else []))


VALUES: list[Any] = [
    None, 0, -1, 2**40, 2**70, 1.5, True, "", "8", [], {}, [None], [{"name": "x"}], {"containers": [{}]},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def spoiled(document: Any, rng: Random) -> None:
    """One value of the document is left out, or is another one of it, or one that nobody expects."""
    paths = [path for path in places(document) if path]
    at, source = rng.choice(paths), rng.choice(paths)
    holder = reduce(lambda value, key: value[key], at[:-1], document)
    if rng.random() < 0.25 and isinstance(holder, dict):
        del holder[at[-1]]
    else:
        copied = reduce(lambda value, key: value[key], source, document)
        holder[at[-1]] = deepcopy(rng.choice([copied, *VALUES]))


def test_a_spoiled_manifest_is_read_or_refused() -> None:
    rng = Random(29)
    originals = [frozen.documents(case.text.encode(), "manifest") for case in cases()]
    for _ in range(3_000):
        documents = deepcopy(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            spoiled(rng.choice(documents).item, rng)
        with suppress(ExtenderError):
            question.read(documents, GPUS)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_manifest(case: Case) -> None:
    documents = frozen.documents(case.text.encode(), "manifest")
    if case.expected.startswith("error "):
        with pytest.raises(ExtenderError, match=re.escape(case.expected.removeprefix("error "))):
            question.read(documents, GPUS)
    else:
        assert described(question.read(documents, GPUS)) == case.expected
