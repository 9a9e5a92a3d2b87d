"""Whom the real API server refuses because of ResourceQuotas, beside what we say of the same pods."""

from __future__ import annotations

import random
import re
from functools import partial

import pytest

from extender.objects import limits, records
from extender.objects.quotas import QuotaUse, counts_pods
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.conftest import Ask
from tests.e2e.queueing import refusal, tried
from tests.e2e.scene import SceneFactory
from tests.objects import quota_cases
from tests.waiting import wait_for

GPUS = frozenset({builders.GPU})
PROBE = "example.com/probe"
NAMED = re.compile(r"(?:exceeded|failed) quota: ([\w-]+)")


def is_counted(api: Api, name: str, namespace: str) -> bool:
    """Whether the quota controller has written what is used."""
    return "used" in api.get("ResourceQuota", name, namespace).get("status", {})


def bounded(api: Api, quotas: list[Object], namespace: str) -> None:
    """The quotas exist, and admission counts by them: it learns of a last one after all others."""
    for quota in quotas:
        api.create(quota)
    for quota in quotas:
        name = quota["metadata"]["name"]
        wait_for(partial(is_counted, api, name, namespace), 60, name)
    meta = {"name": "zz-probe", "namespace": namespace}
    spec = {"hard": {f"requests.{PROBE}": "0"}}
    api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})
    probe = builders.pod("probe", namespace)
    probe["spec"]["containers"][0]["resources"] = {"limits": {PROBE: "1"}}
    for resource in ("cpu", "memory"):  # what a quota may want stated
        probe["spec"]["containers"][0]["resources"]["limits"][resource] = "0"
    wait_for(lambda: "quota: zz-probe" in refusal(tried, api, probe), 60, "admission knows the quotas")


@pytest.mark.parametrize("seed", range(12))
def test_the_api_server_refuses_what_we_say(api: Api, namespace: str, seed: int) -> None:
    chance = random.Random(seed)
    for value, name in enumerate(quota_cases.CLASSES, 1):
        refusal(api.create, builders.priority_class(name, value * 100))
    quotas = [quota_cases.quota(chance, f"q{at}", namespace) for at in range(chance.randint(2, 4))]
    bounded(api, quotas, namespace)
    use = QuotaUse(map(limits.resource_quota, quotas))
    stored: list[Object] = []
    verdicts = set()
    for number in range(14):
        item = quota_cases.pod(chance, f"p{number}", namespace)
        pod = records.pod(item, GPUS)
        expected = {one.quota.name for one in use.excess([pod])} | {quota.name for quota, _ in use.unstated(pod)}
        answer = refusal(api.create, item)
        named = NAMED.search(answer)
        assert (named[1] if named else answer) in (expected or {""}), (answer, item)
        if not answer:
            stored.append(api.get("Pod", f"p{number}", namespace))
            use.add(pod)
        verdicts.add(bool(expected))
    assert False in verdicts or not stored
    counted = QuotaUse(map(limits.resource_quota, quotas))
    for item in stored:  # as the API server has written them, with its defaults
        counted.count(records.pod(item, GPUS), 0.0)
    for quota in quotas:
        record = limits.resource_quota(api.get("ResourceQuota", quota["metadata"]["name"], namespace))
        used = counted.used(record)
        assert {name: used.get(name, 0) for name, _ in record.used if counts_pods(name)} == {
            name: number for name, number in record.used if counts_pods(name)
        }


def test_the_live_what_if_says_what_the_api_server_does(scene: SceneFactory, ask: Ask, api: Api) -> None:
    """The first document's quota and job: 6 GPUs are allowed for the class, a pod asks for 8."""
    cluster = scene({"n1": {"topology": "dgx-h100"}})
    api.create(builders.priority_class("gpu-training", 1000))
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "training-gpu-quota", "namespace": cluster.namespace},
        "spec": {
            "hard": {f"requests.{builders.GPU}": "6"},
            "scopeSelector": {
                "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["gpu-training"]}]
            },
        },
    }
    bounded(api, [quota], cluster.namespace)

    def pod(gpus: int) -> Object:
        made = builders.pod(f"train-{gpus}", cluster.namespace, gpus=gpus)
        for field in ("priority", "preemptionPolicy"):
            made["spec"].pop(field, None)
        made["spec"]["priorityClassName"] = "gpu-training"
        return made

    def refused() -> bool:
        code, answer = ask(cluster, [pod(8)])
        return bool(code == 11 and answer["results"][0]["reasons"] == {"quota": 1})

    wait_for(refused, 60, "the server has seen the quota")
    _, answer = ask(cluster, [pod(8)])
    assert answer["results"][0]["nearest"]["missing"][0]["hard"] == 6
    assert {way["kind"] for way in answer["results"][0]["ways_out"]} == {"quota"}
    assert "exceeded quota: training-gpu-quota" in refusal(tried, api, pod(8))
    code, answer = ask(cluster, [pod(6)])
    assert (code, answer["results"][0]["verdict"]) == (0, "fits")
    assert not refusal(tried, api, pod(6))
