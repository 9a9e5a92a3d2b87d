"""A cluster that admits critical priorities outside kube-system only where a quota names them, as GKE does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.kustomize import built, kubectl, overlay, templates
from tests.e2e.queueing import refusal, tried
from tests.waiting import wait_for

CRITICAL = ("system-node-critical", "system-cluster-critical")


@pytest.fixture
def limited(binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane(binaries, limited_priorities=CRITICAL) as running:
        yield running


def test_the_pods_of_every_critical_workload_are_admitted(limited: ControlPlane, tmp_path: Path) -> None:
    objects = built(overlay(tmp_path / "site", ("gke", "queue", "node")))
    wanted = templates(objects)
    critical = {pod["metadata"]["name"]: pod["spec"]["priorityClassName"] for pod in wanted}
    assert set(critical.values()) == set(CRITICAL)
    first = [made for made in objects if made["kind"] == "Namespace"]
    quotas = [made for made in objects if made["kind"] == "ResourceQuota"]
    admin = limited.kubeconfig()
    api: Api = limited.api
    kubectl("apply", "-f", "-", kubeconfig=admin, stdin="\n---\n".join(map(json.dumps, first)))
    for pod in wanted:
        assert "insufficient quota to match these scopes" in refusal(tried, api, pod)
    kubectl("apply", "-f", "-", kubeconfig=admin, stdin="\n---\n".join(map(json.dumps, quotas)))

    def refused() -> dict[str, str]:
        found: list[Object] = [pod for pod in wanted if refusal(tried, api, pod)]
        return {pod["metadata"]["name"]: refusal(tried, api, pod) for pod in found}

    wait_for(lambda: not refused(), 60, lambda: f"all are admitted: {refused()}")
