"""The manifests of the observer: valid, their account may list, watch and have tokens reviewed, in shadow mode."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from extender.settings import Known, read_settings
from tests.test_manifests import MANIFESTS, REVIEWS, documents

OBJECTS = documents("shadow/observer.yaml")
OURS = documents("deployment.yaml")


def rules(objects: list[Any], name: str) -> list[dict[str, Any]]:
    [found] = [one["rules"] for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name]
    return list(found)


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid(made: dict[str, Any]) -> None:
    kubernetes_validate.validate(made, "1.37", strict=True)


def test_the_observer_may_list_and_watch_what_the_server_watches_and_ask_whose_a_token_is() -> None:
    observed = rules(OBJECTS, "gpu-extender-observer")
    asked = [rule for rule in observed if set(rule["verbs"]) != {"list", "watch"}]
    assert asked == [rule for rule in rules(OURS, "gpu-extender") if set(rule["resources"]) & set(REVIEWS)]
    assert {resource for rule in asked for resource in rule["resources"]} == set(REVIEWS)
    observed = [rule for rule in observed if rule not in asked]
    watched = [rule for rule in rules(OURS, "gpu-extender") if "watch" in rule["verbs"]]
    assert [(rule["apiGroups"], rule["resources"]) for rule in observed] == [
        (rule["apiGroups"], rule["resources"]) for rule in watched
    ]


def test_its_settings_are_in_shadow_mode() -> None:
    assert read_settings(MANIFESTS / "shadow" / "gpu-extender.yaml", Known(scorers=set(), costs=set())).shadow
