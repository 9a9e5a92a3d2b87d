"""What `check` finds of advance reservations."""

from __future__ import annotations

import pytest

from tests.ask.checks.test_check import checked
from tests.world import JSON, WALL, machine, rfc3339

DATES = f"from: {rfc3339(WALL + 60)}\nuntil: {rfc3339(WALL + 600)}\n"


def reserved(**data: str) -> JSON:
    meta = {"name": "gpu-extender-advance-reservations", "namespace": "gpu-extender-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def of_dates(*items: JSON) -> list[JSON]:
    return [one for one in checked(*items)["findings"] if one["code"].startswith("advance")]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("for: 8", "advance-invalid", "from: not a time"),
        (f"for: 2x8\nnamespaces: [ml]\n{DATES}", "", ""),
        (f"for: 3x8\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "2 of 3 pods"),
        (f"for: 9\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "0 of 1 pods"),
        (f"for: 8\nmodel: H9\nnamespaces: [ml]\n{DATES}", "advance-never-fits", "the model H9"),
        (f"node: n1\n{DATES}", "", ""),
        (f"node: n7\n{DATES}", "advance-never-fits", "no node n7"),
        ("node: n7\nfrom: 2020-01-01T00:00:00Z\nuntil: 2020-01-02T00:00:00Z", "advance-over", "has ended"),
    ],
)
def test_an_entry(text: str, code: str, why: str) -> None:
    items = [{"kind": "Node"} | machine(f"n{at}", 8) for at in range(2)]
    found = of_dates(*items, reserved(big=text))
    assert [one["code"] for one in found] == ([code] if code else [])
    assert not code or why in found[0]["message"]


def test_other_config_maps_and_strange_ones_are_left() -> None:
    strange = reserved() | {"data": ["for: 8"]}
    other = reserved(big="for") | {"metadata": {"name": "other"}}
    assert of_dates(strange, other) == []
