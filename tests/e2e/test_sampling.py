"""The signal that kube-scheduler samples: true with its default in a large cluster, false at 100 % in a busy one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import httpx
import pytest

from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.conftest import ExtenderFactory, SchedulerFactory
from tests.e2e.scene import scheduler_config
from tests.waiting import wait_for

NODES = 130
"""Without a percentage kube-scheduler stops at 100 feasible nodes here."""
FULL = 8
SAMPLED = "gpu_extender_sampled_requests_total"
CALLS = 'gpu_extender_decisions_total{reason="fits",verb="filter"}'


@pytest.mark.parametrize(("percentage", "sampled"), [(100, False), (None, True)])
def test_only_a_scheduler_that_samples_is_counted(
    api: Api,
    namespace: str,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
    percentage: int | None,
    sampled: bool,
) -> None:
    """Eight nodes are full, so that each call names fewer nodes than there are; the next pods take more of them."""
    names = [f"n{at:03}" for at in range(NODES)]
    try:
        api.create_many([builders.node(name, 1) for name in names])
        for name in names[:FULL]:
            api.bind(api.create(builders.pod(f"on-{name}", namespace, 1)), name)
        process = extender_process()
        config = scheduler_config(process.url)
        config.pop("percentageOfNodesToScore")
        scheduler(config | ({"percentageOfNodesToScore": percentage} if percentage else {}))
        for at in range(4):
            pod = api.create(builders.pod(f"p{at}", namespace, 1))
            name = pod["metadata"]["name"]
            wait_for(partial(_node, api, namespace, name), 60, f"{name} is bound")
        text = httpx.get(f"{process.url}/metrics").text
    finally:
        with suppress(Exception):
            api.delete_all("Pod", namespace)
        api.delete_all("Node")
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}
    assert values[CALLS] >= 4
    assert (values[SAMPLED] > 0) is sampled


def _node(api: Api, namespace: str, name: str) -> str:
    return str(api.get("Pod", name, namespace)["spec"].get("nodeName") or "")
