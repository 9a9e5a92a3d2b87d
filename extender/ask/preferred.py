"""Why the best node for a pod is before the second, in words: the term that decides, or linked sets that stay free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ext_core import survey
from ext_core.link_sets import LinkSets
from extender.ask.explanation import decisive
from extender.ask.fleet import SIZES
from extender.ask.judge import Judge, Ranked
from extender.ask.text import count
from extender.preemption.candidates import Preemptor

ROOM: Final = ("fragmentation", "leftover")
"""Terms that count what stays free."""
Kept = Mapping[int, tuple[int, int]]
"""By size: the linked sets that are free on a node without the pod and with it."""


def because(best: Sequence[Ranked], kept: Sequence[Kept] = ()) -> str:
    """The sentence; "" without a second node. `kept`: of the two nodes, where that is known."""
    if len(best) < 2:
        return ""
    first, second = best[0].node, best[1].node
    if (decided := decisive(best)) is None:
        return f"{first} is as good as {second}, and first by name."
    term, why = decided
    for size in sorted(SIZES, reverse=True) if term in ROOM and len(kept) == 2 else ():
        (before, after), (other_before, other_after) = kept[0].get(size, (0, 0)), kept[1].get(size, (0, 0))
        broken, other_broken = before - after, other_before - other_after
        if broken < other_broken:
            sets = f"{count(broken, 'linked set')}" if broken else "no linked set"
            why = f"it takes {sets} of {size} GPUs from later pods, {second} would take {other_broken}"
            break
    return f"{first} beat {second}: {why}."


def kept_sets(judge: Judge, asked: Preemptor, names: Sequence[str]) -> list[Kept]:
    """Of each node; empty where its links, or the positions of held GPUs, are not known."""
    sets, rows = LinkSets(judge.cluster.tables.shapes), judge.rows(names)
    masks = [judge.planned(asked, name) for name in names]
    with judge.claims.of(asked.request, asked.now):
        _, _, shapes, free = survey.stock(judge.cluster.tables.nodes, rows)
    return [
        {size: (sets.most(shape, mask, size), sets.most(shape, mask & ~taken, size)) for size in SIZES if shape}
        for shape, mask, taken in zip(shapes, free, masks, strict=True)
    ]
