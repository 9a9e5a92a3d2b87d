"""The annotations, labels and other names of ours on Kubernetes objects, for docs/annotations.md.

Each name is defined beside the code that reads or writes it; a test compares this list with the code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from extender.objects import advance, gangs, progress, queueing
from extender.objects.records import NodeRecord, PodRecord

PREFIX: Final = "gpu-extender.io/"
Place = Literal["annotation", "label", "gate"]
"""Where a name is read on an object."""


class Name(NamedTuple):
    """One name."""

    name: str
    on: str  # the kind of object
    writer: str  # "you" or the program that writes it
    values: str  # examples or all
    meaning: str
    places: tuple[Place, ...] = ("annotation",)  # where it is read
    words: tuple[str, ...] = ()  # all its values, () where they are not a list of words

    @property
    def kind(self) -> str:
        """The kind of object, in lower case."""
        return self.on.partition(" ")[0].lower()


NAMES: Final = (
    Name("links", "pod", "you", "`required`, `preferred` (default), `ignore`",
         "Whether the GPUs of all its containers must be joined in one ring of links.",
         words=("required", "preferred", "ignore")),
    Name("nics", "pod", "you", "`required`, `preferred` (default for pods of a gang), `ignore` (default for others)",
         "Whether each of its GPUs must have a [NIC of its own](nics.md) under the GPU's PCIe switch.",
         words=("required", "preferred", "ignore")),
    Name("gang", "pod", "you", "a name",
         "Pods that are useful only together; a label works too. Other systems' gangs are [read too](preemption.md).",
         ("annotation", "label")),
    Name("gang-min", "pod", "you", "a number",
         "How many pods of the gang must run; a label works too. An invalid number counts as all.",
         ("annotation", "label")),
    Name("gang-size", "pod", "you", "a number",
         "How many pods the gang has, those that do not exist yet included. It overrides what the pods' owner states."),
    Name("domain", "pod", "you", "`required:rack`, `preferred:block`",
         "Where the pods of a queued gang are together: a node label of `topologyLevels`, or its short name (clique, "
         "rack, block, zone)."),
    Name("duration", "pod", "you", "`45m`, `1h30m`",
         "How long the pod runs at most. The queue plans with it; no pod is stopped by it."),
    Name("start-at", "pod", "you", "RFC 3339 time",
         "The gang waits in the queue until then, and [GPUs are held for it](advance.md#a-gang-with-a-date) before."),
    Name("queue", "pod (label, scheduling gate)", "you; the gate also `manifests/queue`",
         "the name of a queue; the gate has no value",
         "The label names the [queue](queue.md), without it the namespace does. Behind the gate the pod waits until "
         "its gang starts.", ("label", "gate")),
    Name("wants-nodes", "pod", "the queue", "RFC 3339 time",
         "Since then the gate is open so that an autoscaler [sees the pod](queue.md#autoscalers). The pod waits in the "
         "queue all the same."),
    Name("pinned", "pod", "the queue", "the name of a node",
         "The released pod may run on this node alone ([hard pins](queue.md#hard-pins))."),
    Name("planned-node", "ResourceClaim", "the queue", "the name of a node",
         "The queue allocates the devices of the claim, on this node "
         "([planned allocation](dra.md#planned-allocation))."),
    Name("queueing", "Namespace (label)", "you", "`enabled`",
         "New GPU pods of the namespace wait in the [queue](queue.md#which-pods-are-gated).", ("label",)),
    Name("queue-age-limit", "Namespace", "you", "`30m`, `24h`, `never`",
         "For how long pods may wait behind the gate; then `gpu-extender gates open` [removes it](queue.md)."),
    Name("placement", "pod", "you", "`pack`, `spread`",
         "Fill nodes, or keep replicas of one controller (or `app.kubernetes.io/name`) on different nodes and racks. "
         "Default: the settings (`placement`).", words=("pack", "spread")),
    Name("gpu-models", "pod", "you", "`one`, `any`",
         "Whether the pods of the gang are on nodes of [one GPU model](queue.md#gpu-models) where one has room, or of "
         "any. Default: the settings (`placement.gpuModels`).", words=("one", "any")),
    Name("protect-for", "pod", "you", "`90s`, `45m`, `1h30m`",
         "The pod is never a victim for so long after its start, `claims.protectForSeconds` at most."),
    Name("last-checkpoint", "pod", "you", "RFC 3339 time",
         "Work before it is not lost by an eviction. A time before the pod's start counts as the start."),
    Name("checkpoint-interval", "pod", "you", "seconds",
         "How often the pod saves its work. `gpu-extender check` reports such pods apart from those without it."),
    Name("restart-seconds", "pod", "you", "seconds",
         "What a restart costs on top of the lost work, `claims.restartSeconds` at most."),
    Name("saves-on-termination", "pod", "you", "`90s`, `10m`",
         "Once its containers are told to end (SIGTERM), the pod saves its work within this time. It counts where the "
         "grace period is as long, and up to `claims.savesOnTerminationSeconds`."),
    Name("saves-on-request", "pod", "you", "`90s`, `10m`",
         "Once it is [asked](saving-operators.md), the pod saves its work within this time, up to "
         "`claims.savesOnRequestSeconds`."),
    Name("saves-for-gang", "pod", "you", "`true`",
         "The answer of this pod counts for its whole gang. Without it that of the pod of rank 0 does."),
    Name("save-requested", "pod", "the server", """`{"id", "by", "at", "until"}`""",
         "The pod is asked to save its work, for the preemptor `by`, until the time `until`."),
    Name("saved", "pod", "you", "the id of the request", "The answer: the work is saved, and the pod may be evicted."),
    Name("gpus", "pod", "bind, the queue", "`0,3`; `c1=0,3;c2=5` with several GPU containers",
         "The planned GPUs, as indices. Only the relay enforces them."),
    Name("held-gpus", "pod", "agent", "as `gpus`",
         "The GPUs that the pod holds, where kubelet does not report them. They count as observed where an "
         "[admission policy](security.md) guards the annotation (`claims.heldGpus`)."),
    Name("topology", "node", "agent", "JSON; `gpu-extender topo -o annotation` prints it",
         "The node's GPU links as its agent sees them. It is the most trusted source."),
    Name("topology-stated", "node", "you", "as `topology`",
         "The same by an administrator, used where the agent reports nothing valid. The next source is the "
         "[catalogue](machines.md). A disagreement is reported: `/debug/topologies`, the log, "
         "`gpu_extender_topology_disagreements`."),
    Name("topology-nics", "node", "agent", "JSON; `gpu-extender topo -o annotation-nics` prints it",
         "Which NICs are under the PCIe switches of which GPUs ([NICs](nics.md)). You may write it where no "
         "agent runs."),
    Name("topology-stale-since", "node", "agent", "RFC 3339 time",
         "The agent cannot renew its view of the GPUs since then."),
    Name("relay", "node", "agent", "`1`", "A relay enforces planned GPUs on the node, so they are certain there."),
    Name("topology-manager", "node", "you", "`none`, `best-effort`, `restricted`, `single-numa-node`",
         "The Topology Manager policy of the node's kubelet. By every one but `none` kubelet may offer the plugin the "
         "GPUs of one NUMA node alone: every free GPU may be handed out, and no [relay](relay.md) counts."),
    Name("device-plugin-version", "node", "you", "`0.20.0`",
         "The version of the node's device plugin; a label works too. The rule `hazard` knows faults of versions.",
         ("annotation", "label")),
    Name("drain", "node", "you", "RFC 3339 time; empty: at once",
         "The GPU pods of the cordoned node are asked to save and evicted, so that it is empty at that time "
         "([recipe](cookbook.md#drain-a-node)). It needs `evictions.enabled`."),
    Name("rank", "PriorityClass (label)", "you", "a whole number",
         "The intended order of the classes, higher = more important. `gpu-extender check` compares their values.",
         ("label",)),
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
}
"""What counts instead of an invalid value; of all others: it is ignored."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {PREFIX + name.name: name.words for name in NAMES if name.words}
_BY_NAME: Final[Mapping[str, Name]] = {PREFIX + name.name: name for name in NAMES}
_READ: Final = {
    (kind, place): frozenset(PREFIX + name.name for name in NAMES if name.kind == kind and place in name.places)
    for kind in ("pod", "node")
    for place in ("annotation", "label", "gate")
}
_WITHOUT_VALUES: Final = _READ["pod", "annotation"] - WORDS.keys() - FORMS.keys() - {queueing.DOMAIN}
"""Annotations whose values are not judged here."""


def typos_of_pod(pod: PodRecord, levels: Collection[str] = ()) -> list[Typo]:
    """What is unknown on a pod, MOST at most. `levels`: node labels of the settings' topologyLevels."""
    return [] if _plain(pod) else _first(_typos_of_pod(pod, levels))


def typos_of_node(node: NodeRecord) -> list[Typo]:
    """What is unknown on a node, MOST at most."""
    if node.annotations.keys() <= _READ["node", "annotation"] and PREFIX not in "\n".join(node.labels):
        return []
    return _first(_names("node", {"annotation": node.annotations, "label": node.labels}))


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
    if known is not None and known.kind == kind:
        text = f"{shown} is not read as {_article(place)}: write it as {_article(known.places[0])}"
        return Typo("unknown-name", key, text, known.places[0])
    if known is not None:
        return Typo("unknown-name", key, f"{place} {shown} is read on a {known.on.partition(' ')[0]} only", None)
    words = [known_name.name for known_name in NAMES if known_name.kind == kind and place in known_name.places]
    others = [known_name.name for known_name in NAMES if known_name.kind == kind and place not in known_name.places]
    word = key.removeprefix(PREFIX)
    near, where = nearest(word, words), ""
    if near is None and (near := nearest(word, others)) is not None:
        where = f"the {_BY_NAME[PREFIX + near].places[0]} "
    if near is None:
        return Typo("unknown-name", key, f"{place} {shown} is unknown, and no name of gpu-extender is similar", None)
    near = PREFIX + near
    return Typo("unknown-name", key, f"{place} {shown} is unknown: did you mean {where}{near}?", near)


def _value(key: str, text: str, levels: Collection[str]) -> Iterator[Typo]:
    if key in WORDS:
        words = WORDS[key]
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
