"""What would let a pod (`pod.py`) or a gang (`gang.py`) start; each way is verified by our own filter. The cheapest
comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

Kind = Literal["wait", "uncordon", "quota", "evict", "relax-domain", "relax-links", "smaller", "add-nodes"]
"""What is asked of whom, the least first: nothing but time; a word of the administrator; the work of other pods; then
less for the pod itself; at last new machines."""
ORDER: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Way:
    """A change that makes the pod fit."""

    kind: Kind
    change: str
    """For people, an order."""
    spec: Mapping[str, Any]
    """The same for programs."""
    cost: Sequence[Mapping[str, Any]] | None = None
    """Terms with value and unit, None where nothing is counted."""
    price: tuple[float, ...] = ()
    """Compares ways of one kind; less is better."""
    needs: tuple[str, ...] = field(default=())
    """Settings without which nothing carries it out by itself."""

    def as_json(self) -> dict[str, Any]:
        """The JSON form. Only verified ways are made."""
        return {
            "kind": self.kind,
            "change": self.change,
            "spec": {**self.spec, **({"needs": list(self.needs)} if self.needs else {})},
            "cost": None if self.cost is None else [dict(term) for term in self.cost],
            "verified": True,
        }


def term(name: str, value: float | None, unit: str) -> dict[str, Any]:
    """One term of a cost; None: not known."""
    return {"term": name, "value": value, "unit": unit}


def in_order(ways: Sequence[Way]) -> list[Way]:
    """The ways, the cheapest first."""
    return sorted(ways, key=lambda way: (ORDER.index(way.kind), way.price))
