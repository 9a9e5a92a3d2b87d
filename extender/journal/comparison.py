"""Two answers to one request: whether they are the same, and what the second would have changed.

No file is read here and no server is known: replay compares what was recorded with what is answered now; shadow mode
compares in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from extender.cluster.view import ClusterView
from extender.decide.answer import Answer
from extender.decide.bind import BindIntent
from extender.decide.decisions import Decision
from extender.journal.entries import Choice, Reply
from extender.policy.rules import REASONS, UNKNOWN_NODE

SMALL: Final = 512
"""Bytes of an answer that is kept as it is; of a larger one the check sum is."""


NAMED: Final = 3
"""Nodes of an answer that are kept by name, the best first; all are in its bytes or its check sum."""


def choice_of(result: str, decision: Decision | None, cluster: ClusterView) -> Choice:
    """What an answer came to. `decision`: its record, None for a pod without GPUs."""
    if decision is None:
        return Choice(result)
    detail, judged, scored = decision.detail, decision.judged, decision.scored
    ranked = scored.ranked[:NAMED]
    if decision.generation == cluster.generation:
        nodes = [*map(cluster.names.__getitem__, ranked)]
    else:
        nodes = [cluster.rows.name_at(row, decision.generation) for row in ranked]
    reasons = {REASONS[code].key: count for code, count in judged.reasons.items()}
    if judged.unknown_count:
        reasons[UNKNOWN_NODE.key] = judged.unknown_count
    answered = decision.answered or len(scored.ranked)
    gpus = scored.gpus[0] if scored.gpus else 0
    if not detail:  # nearly always
        return Choice(result, nodes, answered, gpus, reasons)
    if not nodes and detail.get("node"):
        nodes, answered = [detail["node"]], 1
    victims = [victim if isinstance(victim, str) else victim["uid"] for victim in detail.get("victims", ())]
    return Choice(
        result,
        nodes,
        answered,
        gpus,
        reasons,
        victims,
        [(entry["term"], entry["value"]) for entry in detail.get("cost", ())],
    )


def reply_of(answer: Answer | BindIntent, cluster: ClusterView, *, whole: bool = False) -> Reply:
    """The reply of a verb as it is kept. `whole`: it may have whole Node objects, of which the names count."""
    if isinstance(answer, BindIntent):
        text = orjson.dumps(answer.annotations, option=orjson.OPT_SORT_KEYS)
        node = answer.binding.node
        return _reply(text, Choice("write", [node], 1, answer.gpus))
    text = b"" if answer.result == "untouched" else names_only(answer.body) if whole else answer.body
    return _reply(text, choice_of(answer.result, answer.decision, cluster))


def _reply(text: bytes, choice: Choice) -> Reply:
    return Reply(len(text), zlib.crc32(text), text if len(text) <= SMALL else None, choice)


def names_only(text: bytes) -> bytes:
    """A filter answer with the name of each whole Node object in its place."""
    answer = orjson.loads(text)
    if isinstance(answer, dict) and isinstance(answer.get("Nodes"), dict):
        answer["Nodes"] = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
    return orjson.dumps(answer)


def same(was: Reply, now: Reply) -> bool:
    """Whether two replies have the same bytes."""
    return (was.size, was.check) == (now.size, now.check) and was.text == now.text


def shown(reply: Reply) -> dict[str, Any]:
    """A reply for people and programs."""
    choice = reply.choice
    fields: dict[str, Any] = {"result": choice.result, "bytes": reply.size, "crc32": f"{reply.check:08x}"}
    if reply.text is not None:
        fields["text"] = reply.text.decode("utf-8", "replace")
    if choice.nodes:
        fields |= {"nodes": choice.nodes, "answered": choice.answered}
    if choice.gpus:
        fields["gpus"] = [gpu for gpu in range(choice.gpus.bit_length()) if choice.gpus >> gpu & 1]
    if choice.reasons:
        fields["reasons"] = dict(sorted(choice.reasons.items()))
    if choice.victims:
        fields["victims"] = sorted(choice.victims)
    if choice.cost:
        fields["cost"] = [{"term": term, "value": value} for term, value in choice.cost]
    return fields


def difference(was: Choice, now: Choice) -> str:
    """What differs in two answers, in words: the first of result, nodes, victims, GPUs, reasons; "" for nothing that
    a choice shows."""
    if was.result != now.result:
        return f"the result was {was.result} and is {now.result}"
    if was.nodes != now.nodes or was.answered != now.answered:
        return f"the nodes were {_some(was)} and are {_some(now)}"
    if sorted(was.victims) != sorted(now.victims):
        return f"the victims were {', '.join(was.victims) or 'none'} and are {', '.join(now.victims) or 'none'}"
    if was.gpus != now.gpus:
        return f"the GPUs were {_gpus(was.gpus)} and are {_gpus(now.gpus)}"
    if was.reasons != now.reasons:
        return f"the rejected nodes were {_counts(was.reasons)} and are {_counts(now.reasons)}"
    return ""


def _some(choice: Choice) -> str:
    if not choice.nodes:
        return "none"
    more = choice.answered - len(choice.nodes)
    return ", ".join(choice.nodes) + (f" and {more} more" if more > 0 else "")


def _gpus(mask: int) -> str:
    return ",".join(str(gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1) or "none"


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {key}" for key, count in sorted(reasons.items())) or "none"


def work_lost(choices: Iterable[Choice]) -> int:
    """GPU-seconds of work that these evictions lose, as far as that is a term of their cost."""
    return sum(value or 0 for choice in choices for term, value in choice.cost if term == "work_lost_gpu_seconds")
