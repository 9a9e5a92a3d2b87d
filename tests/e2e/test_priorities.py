"""The PriorityClasses of manifests/priorities, as the real API server takes and enforces them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.queueing import refusal, tried
from tests.waiting import wait_for
from tests.yaml_text import objects_in

PRIORITIES = Path(__file__).parents[2] / "manifests" / "priorities"
SETS = sorted(path.parent for path in PRIORITIES.glob("*/classes.yaml"))
GPU = f"requests.{builders.GPU}"


def pod(name: str, namespace: str, gpus: int, cls: str) -> Object:
    made: dict[str, Any] = builders.pod(name, namespace, gpus=gpus)
    for field in ("priority", "preemptionPolicy"):
        made["spec"].pop(field, None)
    made["spec"]["priorityClassName"] = cls
    return made


def limits(api: Api, wanted: Object) -> bool:
    """Whether the pod exceeds a quota, as admission knows by now."""
    return "exceeded quota" in refusal(tried, api, wanted)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
def test_classes_give_their_priority_and_quotas_count_by_class(api: Api, namespace: str, path: Path) -> None:
    files = (path / "classes.yaml", path / "quotas" / "quotas.yaml")
    items = [item for file in files for item in objects_in(file)]
    classes = {item["metadata"]["name"]: item for item in items if item["kind"] == "PriorityClass"}
    quotas = {item["spec"]["scopeSelector"]["matchExpressions"][0]["values"][0]: item for item in items[len(classes) :]}
    assert classes.keys() == quotas.keys()
    for item in items:
        if item["kind"] == "ResourceQuota":
            item["metadata"]["namespace"] = namespace
        api.create(item)
    for name, item in classes.items():
        limit = int(quotas[name]["spec"]["hard"][GPU])
        # The quota controller counts, and then admission learns it: no pod is stored meanwhile.
        wait_for(partial(limits, api, pod(f"{name}-probe", namespace, limit + 1, name)), 60, f"{name} is counted")
        made = api.create(pod(f"{name}-fits", namespace, limit, name))
        assert made["spec"]["priority"] == item["value"]
        assert made["spec"]["preemptionPolicy"] == item["preemptionPolicy"]
        with pytest.raises(ApiError) as refused:
            api.create(pod(f"{name}-too-many", namespace, 1, name))
        assert refused.value.status == 403
        assert f"exceeded quota: gpus-{name}" in refused.value.message
    with pytest.raises(ApiError) as unknown:
        api.create(pod("strange", namespace, 1, "no-such-class"))
    assert unknown.value.status == 403
