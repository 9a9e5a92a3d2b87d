"""Entries of advance reservations: what is read, and why an entry is none."""

from __future__ import annotations

import json
import random

import pytest

from extender.objects.advance import LONGEST, MOST_ENTRIES, MOST_KEYS, WantedRoom, entries, starts_at
from tests.objects.test_quotas import pod_of
from tests.world import WALL, rfc3339, workload

DATES = 'from: "2026-12-01T08:00:00Z"\nuntil: "2026-12-01T12:00:00Z"\n'


def test_a_shape_and_a_node() -> None:
    found, faults = entries(
        {
            "big": f"for: 4x8\nmodel: H100\ndomain: rack=r2\nnamespaces: [ml, lab]\npriorityClass: urgent\n{DATES}",
            "fan": json.dumps({"node": "n7", "from": "2026-12-01T08:00:00+02:00", "until": "2026-12-01T08:00:00Z"}),
        }
    )
    assert not faults
    assert found[0].room == WantedRoom(4, 8, "rack", "r2", "H100", "urgent")
    assert found[0].namespaces == ("lab", "ml")
    assert found[0].until - found[0].since == 4 * 3600
    assert (found[1].name, found[1].room.node, found[1].until - found[1].since) == ("fan", "n7", 2 * 3600)


@pytest.mark.parametrize("name", ["0123", "0x1f", "1_0", "12e3", "true"])
def test_a_name_is_what_is_written(name: str) -> None:
    """To YAML these are numbers, and the node 0123 would be the node 123."""
    ((entry,), faults) = entries({"a": f"node: {name}\n{DATES}"})
    assert (entry.room.node, faults) == (name, {})


def test_times_of_yaml_are_read_too() -> None:
    text = "for: 8\nnamespaces: [ml]\nfrom: 2026-12-01T08:00:00Z\nuntil: 2026-12-01T10:00:00+01:00\n"
    ((entry,), faults) = entries({"a": text})
    assert (entry.until - entry.since, faults) == (3600, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not one mapping"),
        ("- for: 8", "not one mapping"),
        ("for: 8\n---\nfor: 8", "not one mapping"),
        ("for: [", "neither YAML nor JSON"),
        ("a: &a [1]\nb: *a", "neither YAML nor JSON"),
        (f"for: 8\nshape: 8\n{DATES}", "unknown: shape"),
        (f"for: 8x8x8\nnamespaces: [ml]\n{DATES}", "is not GPUS or PODSxGPUS"),
        (f"for: 0\nnamespaces: [ml]\n{DATES}", "is not GPUS or PODSxGPUS"),
        (f"for: 8\nnode: n7\n{DATES}", "state a shape"),
        (f"node: n7\nmodel: H100\n{DATES}", "belong to a shape"),
        (f"node: n7\nnamespaces: [ml]\n{DATES}", "no pod uses a node that is emptied"),
        (f"for: 8\n{DATES}", "no pod could use the GPUs"),
        (f"for: 8\nnamespaces: ml\n{DATES}", "not a list of names"),
        (f"for: 8\nnamespaces: ['']\n{DATES}", "not the name of a namespace"),
        (f"for: 8\nnamespaces: [ML]\n{DATES}", "'ML' is not the name of a namespace"),
        (f"for: 8\nnamespaces: ['ml ']\n{DATES}", "not the name of a namespace"),
        (f"for: 0x8\nnamespaces: [ml]\n{DATES}", "is not GPUS or PODSxGPUS"),  # to YAML it is the number 8
        (f"for: 8\ndomain: =r2\nnamespaces: [ml]\n{DATES}", "without its level"),
        (f"for: 8\nnamespaces: {['n'] * 65}\n{DATES}", "more than 64"),
        ("for: 8\nnamespaces: [ml]\nfrom: 2026-12-01T08:00:00\nuntil: 2026-12-01T09:00:00Z", "with its offset"),
        ("for: 8\nnamespaces: [ml]\nfrom: tomorrow\nuntil: 2026-12-01T09:00:00Z", "with its offset"),
        ("for: 8\nnamespaces: [ml]\nuntil: 2026-12-01T09:00:00Z", "with its offset"),
        ("for: 8\nnamespaces: [ml]\nfrom: 2026-12-01T09:00:00Z\nuntil: 2026-12-01T09:00:00Z", "not after from"),
        ("x" * (LONGEST + 1), "longer than"),
        ("for: true", "is not GPUS or PODSxGPUS"),
        ("for: [8]", "not a text"),
        ("\ud800", "neither YAML nor JSON"),
        ("a: " * 300, "neither YAML nor JSON"),
        ("[" * 2000, "neither YAML nor JSON"),
    ],
)
def test_an_entry_that_cannot_be_used_states_why_and_stops_no_other(text: str, why: str) -> None:
    found, faults = entries({"bad": text, "good": f"for: 8\nnamespaces: [ml]\n{DATES}"})
    assert [entry.name for entry in found] == ["good"]
    assert why in faults["bad"]


def test_of_very_many_entries_the_first_are_read() -> None:
    found, faults = entries({f"e{at:04}": f"for: 8\nnamespaces: [ml]\n{DATES}" for at in range(MOST_ENTRIES + 2)})
    assert (len(found), len(faults)) == (MOST_ENTRIES, 2)


def test_a_config_map_with_very_many_keys_is_read_in_part() -> None:
    found, faults = entries({f"e{at:06}": "x" for at in range(20_000)})
    assert (len(found), len(faults)) == (0, MOST_KEYS + 1)


def test_random_texts_are_entries_or_faults() -> None:
    chance = random.Random(4)
    words = [*"{}[]:,&*!|>-'\"\n\t #", "for", "from", "node", "2026-12-01T08:00:00Z", "8", "\x00", "é", "~", "<<"]
    for _ in range(3000):
        text = "".join(chance.choice(words) for _ in range(chance.randrange(24)))
        found, faults = entries({"a": text})
        assert len(found) + len(faults) == 1


def test_the_date_of_a_gang() -> None:
    noted = workload("p", 8, annotations={"gpu-extender.io/start-at": rfc3339(WALL)})
    assert starts_at(pod_of(noted)) == WALL
    for text in (
        "",
        "soon",
        "2026-12-01T08:00:00",
        "9" * 5000,
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00+14:00",
    ):
        assert starts_at(pod_of(workload("p", 8, annotations={"gpu-extender.io/start-at": text}))) is None
