"""The manifests of the observer: valid, with the rights to list and watch alone, and in shadow mode."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from extender.settings import Known, read_settings
from tests.test_manifests import MANIFESTS, documents

OBJECTS = documents("shadow/observer.yaml")
OURS = documents("deployment.yaml")


def rules(objects: list[Any], name: str) -> list[dict[str, Any]]:
    [found] = [one["rules"] for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name]
    return list(found)


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid(made: dict[str, Any]) -> None:
    kubernetes_validate.validate(made, "1.37", strict=True)


def test_the_observer_may_list_and_watch_what_the_server_watches_and_nothing_else() -> None:
    observed = rules(OBJECTS, "gpu-extender-observer")
    assert all(set(rule["verbs"]) == {"list", "watch"} for rule in observed)
    watched = [rule for rule in rules(OURS, "gpu-extender") if "watch" in rule["verbs"]]
    assert [(rule["apiGroups"], rule["resources"]) for rule in observed] == [
        (rule["apiGroups"], rule["resources"]) for rule in watched
    ]


def test_its_settings_are_in_shadow_mode() -> None:
    assert read_settings(MANIFESTS / "shadow" / "gpu-extender.yaml", Known(scorers=set(), costs=set())).shadow
