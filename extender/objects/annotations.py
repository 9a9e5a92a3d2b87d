"""The annotations, labels and other names of ours on Kubernetes objects, and which of them are misspelled.

docs/annotations.md states what each name means; each is defined beside the code that reads or writes it. Tests compare
the three."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, NamedTuple

from extender.objects import advance, gangs, progress, queueing
from extender.objects.records import NodeRecord, PodRecord

PREFIX: Final = "gpu-extender.io/"
Place = Literal["annotation", "label", "gate"]
"""Where a name is read on an object."""


class Name(NamedTuple):
    """One name."""

    name: str
    on: str = "pod"  # the kind of object; pod and node are in lower case, as people write them
    places: tuple[Place, ...] = ("annotation",)  # where it is read
    words: tuple[str, ...] = ()  # all its values, () where they are not a list of words


_MODES: Final = ("required", "preferred", "ignore")
_LABEL_TOO: Final = ("annotation", "label")
NAMES: Final = (
    Name("links", words=_MODES),
    Name("nics", words=_MODES),
    Name("placement", words=("pack", "spread")),
    Name("gpu-models", words=("one", "any")),
    Name("gang", places=_LABEL_TOO),
    Name("gang-min", places=_LABEL_TOO),
    Name("queue", places=("label", "gate")),
    *map(
        Name,
        ("gang-size", "domain", "duration", "start-at", "wants-nodes", "pinned", "protect-for", "last-checkpoint",
         "checkpoint-interval", "restart-seconds", "saves-on-termination", "saves-on-request", "saves-for-gang",
         "save-requested", "saved", "gpus", "held-gpus"),
    ),
    *[
        Name(name, "node")
        for name in ("topology", "topology-stated", "topology-nics", "topology-stale-since", "relay", "drain")
    ],
    Name("topology-manager", "node", words=("none", "best-effort", "restricted", "single-numa-node")),
    Name("device-plugin-version", "node", _LABEL_TOO),
    Name("planned-node", "ResourceClaim"),
    Name("queueing", "Namespace", ("label",)),
    Name("queue-age-limit", "Namespace"),
    Name("rank", "PriorityClass", ("label",)),
)  # fmt: skip


# -- what is misspelled: names with our prefix that nothing reads, and values that nothing understands. People write
# -- them by hand, and Kubernetes accepts any: each is reported with the nearest valid word


MOST: Final = 16
"""Of one object; the others are left out."""
LONGEST_WORD: Final = 63
"""Characters that are compared: a longer word is near to none of ours."""
LONGEST_SHOWN: Final = 80
WAYS: Final = ("required", "preferred")
LEVELS: Final = ("node", "clique", "rack", "block", "zone")
"""Short names of the levels of domains."""
Code = Literal["unknown-name", "unknown-value"]


class Typo(NamedTuple):
    """A name or value that is probably misspelled."""

    code: Code
    key: str  # the name as it is written, cut
    text: str  # what is wrong, for people, without the object's name
    suggestion: str | None  # the nearest valid word, None where none is near


class Form(NamedTuple):
    """Values that are not a list of words: whether one is valid, and what is expected, for people."""

    valid: Callable[[str], bool]
    expected: str


DURATION: Final = Form(lambda text: progress.duration(text) is not None, "a duration such as 45m")
A_TIME: Final = "a time with a zone, such as 2026-11-21T15:00:00Z"
NUMBER: Final = Form(lambda text: gangs.number(text) is not None, "a whole number")
FORMS: Final[Mapping[str, Form]] = {
    progress.PROTECT: DURATION,
    progress.CHECKPOINT: Form(lambda text: progress.checkpoint(text) > 0, A_TIME),
    advance.START_AT: Form(lambda text: advance.moment(text) > 0, A_TIME),
    progress.INTERVAL: Form(lambda text: bool(progress.whole(text)), "a whole number of seconds above 0"),
    progress.RESTART: Form(lambda text: progress.whole(text) is not None, "a whole number of seconds"),
    progress.SAVES_ON_TERMINATION: DURATION,
    progress.SAVES_ON_REQUEST: DURATION,
    queueing.DURATION: Form(lambda text: bool(progress.duration(text)), "a duration above 0, such as 45m"),
    gangs.OUR_MINIMUM: NUMBER,
    gangs.OUR_SIZE: NUMBER,
}
EFFECTS: Final[Mapping[str, str]] = {
    PREFIX + "links": "it counts as required",
    PREFIX + "nics": "it counts as required",
    progress.CHECKPOINT: "ignored, so its work counts as not saved",
    progress.RESTART: "it counts as 0",
    gangs.OUR_MINIMUM: "all pods of the gang count as needed",
    PREFIX + "topology-manager": "it counts as a policy that withholds GPUs",
}
"""What counts instead of an invalid value; of all others: it is ignored."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    PREFIX + name.name: name.words for name in NAMES if name.words and name.on == "pod"
}
_BY_NAME: Final[Mapping[str, Name]] = {PREFIX + name.name: name for name in NAMES}
_READ: Final = {
    (kind, place): frozenset(PREFIX + name.name for name in NAMES if name.on == kind and place in name.places)
    for kind in ("pod", "node")
    for place in ("annotation", "label", "gate")
}
_WITHOUT_VALUES: Final = _READ["pod", "annotation"] - WORDS.keys() - FORMS.keys() - {queueing.DOMAIN}
"""Annotations whose values are not judged here."""
_WORDS_OF_NODE: Final = frozenset(PREFIX + name.name for name in NAMES if name.words and name.on == "node")
_PLAIN_OF_NODE: Final = _READ["node", "annotation"] - _WORDS_OF_NODE


def typos_of_pod(pod: PodRecord, levels: Collection[str] = ()) -> list[Typo]:
    """What is unknown on a pod, MOST at most. `levels`: node labels of the settings' topologyLevels."""
    return [] if _plain(pod) else _first(_typos_of_pod(pod, levels))


def typos_of_node(node: NodeRecord) -> list[Typo]:
    """What is unknown on a node, MOST at most."""
    notes = node.annotations
    if notes.keys() <= _PLAIN_OF_NODE and PREFIX not in "\n".join(node.labels):
        return []
    values = (typo for key in _WORDS_OF_NODE & notes.keys() for typo in _value(key, notes[key], ()))
    return _first(chain(_names("node", {"annotation": notes, "label": node.labels}), values))


def _plain(pod: PodRecord) -> bool:
    """Whether there is nothing to look at, as on most pods: all are looked at again and again."""
    for key, text in pod.annotations.items():
        if key not in _WITHOUT_VALUES and text not in WORDS.get(key, ()):
            return False
    return pod.gates in ((), (queueing.GATE,)) and PREFIX not in "\n".join(pod.labels)


def _first(typos: Iterator[Typo]) -> list[Typo]:
    return [typo for typo, _ in zip(typos, range(MOST), strict=False)]


def _typos_of_pod(pod: PodRecord, levels: Collection[str]) -> Iterator[Typo]:
    places: dict[Place, Collection[str]] = {"annotation": pod.annotations, "label": pod.labels, "gate": pod.gates}
    yield from _names("pod", places)
    for key, text in pod.annotations.items():
        if key in WORDS or key in FORMS or key == queueing.DOMAIN:
            yield from _value(key, text, levels)
    minimum = pod.labels.get(gangs.OUR_MINIMUM, "")
    if minimum:
        yield from _value(gangs.OUR_MINIMUM, minimum, levels)


def _names(kind: str, places: Mapping[Place, Collection[str]]) -> Iterator[Typo]:
    for place, keys in places.items():
        known = _READ[kind, place]
        for key in keys:
            if key not in known and key.startswith(PREFIX):
                yield _unknown(kind, place, key[: len(PREFIX) + LONGEST_SHOWN])


@lru_cache(maxsize=256)
def _unknown(kind: str, place: Place, key: str) -> Typo:
    """A name that is not read there."""
    known, shown = _BY_NAME.get(key), shown_of(key)
    if known is not None and known.on == kind:
        text = f"{shown} is not read as {_article(place)}: write it as {_article(known.places[0])}"
        return Typo("unknown-name", key, text, known.places[0])
    if known is not None:
        return Typo("unknown-name", key, f"{place} {shown} is read on a {known.on} only", None)
    words = [known_name.name for known_name in NAMES if known_name.on == kind and place in known_name.places]
    others = [known_name.name for known_name in NAMES if known_name.on == kind and place not in known_name.places]
    word = key.removeprefix(PREFIX)
    near, where = nearest(word, words), ""
    if near is None and (near := nearest(word, others)) is not None:
        where = f"the {_BY_NAME[PREFIX + near].places[0]} "
    if near is None:
        return Typo("unknown-name", key, f"{place} {shown} is unknown, and no name of gpu-extender is similar", None)
    near = PREFIX + near
    return Typo("unknown-name", key, f"{place} {shown} is unknown: did you mean {where}{near}?", near)


def _value(key: str, text: str, levels: Collection[str]) -> Iterator[Typo]:
    if words := _BY_NAME[key].words:
        if text.strip().lower() not in words:
            yield _unknown_value(key, text, f"none of {', '.join(words)}", nearest(text, words))
    elif key == queueing.DOMAIN:
        yield from _domain(text, levels)
    elif not FORMS[key].valid(text):
        yield _unknown_value(key, text, f"not {FORMS[key].expected}", None)


def _domain(text: str, levels: Collection[str]) -> Iterator[Typo]:
    """A level may be any node label; one that is near to a short name, and no label that is known, is taken for it."""
    way, colon, level = (part.strip() for part in text[: 2 * LONGEST_WORD + 1].partition(":"))
    if way not in WAYS or not level:
        near = nearest(way, WAYS)
        whole = f"{near}:{level or 'rack'}" if near is not None and colon else None
        yield _unknown_value(queueing.DOMAIN, text, "neither required:LEVEL nor preferred:LEVEL", whole)
    elif level not in LEVELS and level not in levels and "/" not in level:
        near = nearest(level, LEVELS)
        if near is not None:
            why, whole = "of a level that is not known", f"{way}:{near}"
            shown = f"{queueing.DOMAIN} is {shown_of(text)!r}, which is {why}: did you mean {whole}?"
            yield Typo("unknown-value", queueing.DOMAIN, shown, whole)


def _unknown_value(key: str, text: str, why: str, near: str | None) -> Typo:
    hint = "" if near is None else f"; did you mean {near}?"
    effect = EFFECTS.get(key, "ignored")
    return Typo("unknown-value", key, f"{key} is {shown_of(text)!r}, which is {why}: {effect}{hint}", near)


def nearest(word: str, words: Collection[str]) -> str | None:
    """The word that is most like this one; None where none is."""
    if len(word) > LONGEST_WORD:
        return None
    matches = get_close_matches(word.strip().lower().replace("_", "-"), list(words), 1)
    return matches[0] if matches else None


def shown_of(text: str) -> str:
    """A text of a tenant, for people: at most LONGEST_SHOWN characters, those that cannot be shown as `?`."""
    cut = "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_SHOWN])
    return cut if len(text) <= LONGEST_SHOWN else f"{cut}..."


def _article(place: Place) -> str:
    return {"annotation": "an annotation", "label": "a label", "gate": "a scheduling gate"}[place]
