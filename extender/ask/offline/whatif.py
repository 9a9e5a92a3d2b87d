"""What would happen to pods in a frozen cluster: what stands in its file is looked at, too. A file has no assumed pods:
what it does not state is unknown, and no device plugin is restarting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from extender.ask.offline import invalid_metadata
from extender.ask.whatif import engine
from extender.ask.whatif.question import Question
from extender.ask.whatif.snapshot import WhatIfSnapshot


def answer(
    snapshot: WhatIfSnapshot, question: Question, wall: float, items: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    """`kind: WhatIf`. `wall`: the time at which it is asked, seconds since 1970; `items`: the cluster's objects as they
    stand in the file, to find what stands there twice. NotFound, BadInput."""
    warnings = [*engine.about_cluster(snapshot.cluster), *invalid_metadata.found(snapshot.cluster, items, wall)]
    answered = engine.answer(snapshot, question, wall, invalid_metadata.of_pod)
    answered.warnings = [*warnings, *(warning for warning in answered.warnings if warning not in warnings)]
    return answered.as_json()
