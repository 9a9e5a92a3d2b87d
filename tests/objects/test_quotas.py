"""What ResourceQuotas count, beside a plain re-implementation over JSON (tests/oracles/quotas.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extender.objects import limits, records
from extender.objects.quotas import QuotaUse, counts, counts_pods, unit
from tests.objects import quota_cases
from tests.oracles import quotas as oracle
from tests.world import GPU, JSON, WALL

GPUS = frozenset({GPU})


def pod_of(item: JSON) -> records.PodRecord:
    return records.pod(item, GPUS)


@pytest.mark.parametrize("seed", range(40))
def test_random_quotas_refuse_what_the_plain_form_refuses(seed: int) -> None:
    """Pods come one after the other; those that pass stay."""
    chance = random.Random(seed)
    quotas = [quota_cases.quota(chance, f"q{at}", chance.choice("ab")) for at in range(chance.randint(1, 4))]
    use = QuotaUse(map(limits.resource_quota, quotas))
    there: list[JSON] = []
    refused = 0
    for number in range(12):
        item = quota_cases.pod(chance, f"p{number}", chance.choice("ab"))
        pod = pod_of(item)
        for quota in quotas:
            assert counts(limits.resource_quota(quota), pod) == oracle.is_counted(quota, item), (quota, item)
        expected = oracle.exceeded(quotas, there, item)
        assert {(one.quota.name, one.resource) for one in use.excess([pod])} == expected, item
        wanted = {one["metadata"]["name"]: missing for one in quotas if (missing := oracle.unstated(one, item))}
        assert {quota.name: set(names) for quota, names in use.unstated(pod)} == wanted, item
        refused += bool(expected)
        if not expected:
            there.append(item)
            use.add(pod)
    assert refused < 12


@pytest.mark.parametrize("seed", range(20))
def test_pods_together_exceed_what_their_sum_exceeds(seed: int) -> None:
    chance = random.Random(seed)
    quotas = [quota_cases.quota(chance, f"q{at}", "a") for at in range(2)]
    items = [quota_cases.pod(chance, f"p{at}", "a") for at in range(4)]
    there = [quota_cases.pod(chance, f"t{at}", "a") | {"status": {"phase": phase}} for at, phase in
             enumerate(chance.choices(("Pending", "Running", "Succeeded", "Failed"), k=4))]  # fmt: skip
    use = QuotaUse(map(limits.resource_quota, quotas))
    for one in there:
        use.count(pod_of(one), WALL)
    excess = use.excess([*map(pod_of, items)])
    found = {(one.quota.name, one.resource): (one.used, one.hard, one.asked) for one in excess}
    for quota in quotas:
        for name, text in quota["spec"]["hard"].items():
            scale = 1000 if name.endswith("cpu") else 1
            asked = sum(oracle.hard_amount(one, name) for one in items if oracle.is_counted(quota, one))
            used = sum(
                oracle.hard_amount(one, name)
                for one in there
                if oracle.is_counted(quota, one) and oracle.counts(one, name)
            )
            limit = oracle.number(text)
            row = found.pop((quota["metadata"]["name"], name), None)
            expected: Any = (used * scale, limit * scale, asked * scale) if asked and used + asked > limit else None
            assert row == expected, (quota, name)
    assert not found


def test_what_is_used_is_the_larger_of_the_count_and_the_status() -> None:
    """The API server admits pods by the status; pods of an input that its status does not have count, too."""
    quota = {"metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"pods": "5", "count/pods": "9"}},
             "status": {"used": {"pods": "1", "count/pods": "7"}}}  # fmt: skip
    record = limits.resource_quota(quota)
    use = QuotaUse([record])
    for name in ("x", "y"):
        use.count(pod_of({"metadata": {"name": name, "namespace": "a"}, "spec": {"containers": []}}), WALL)
    use.take_status()
    assert use.used(record) == {"pods": 2, "count/pods": 7}


def test_a_pod_that_is_stuck_in_its_end_counts_as_one_that_has_ended() -> None:
    record = limits.resource_quota({"metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"pods": "1"}}})
    meta = {
        "name": "p",
        "namespace": "a",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 30,
    }
    pod = pod_of({"metadata": meta, "spec": {"containers": []}})
    assert pod.deletion_at is not None
    for wall, number in ((pod.deletion_at, 1), (pod.deletion_at + 30, 1), (pod.deletion_at + 31, 0)):
        use = QuotaUse([record])
        use.count(pod, wall)
        assert use.used(record).get("pods", 0) == number


def test_pod_level_resources_and_overhead() -> None:
    spec = {
        "overhead": {"cpu": "250m", "memory": "64Mi"},
        "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "3"}},
        "containers": [{"name": "c", "resources": {"limits": {GPU: 1, "memory": "1Gi"}}}],
    }
    pod = pod_of({"metadata": {"name": "p", "namespace": "a"}, "spec": spec})
    facts = pod.quota_facts
    assert dict(facts.amounts) == {"limits.cpu": 4250, "limits.memory": 1088 << 20}
    assert (pod.cpu_milli, pod.memory) == (3250, 1088 << 20)
    assert not facts.unstated  # the pod states its own
    assert not facts.best_effort


def test_a_pod_with_gpus_alone_is_best_effort() -> None:
    spec = {"containers": [{"name": "c", "resources": {"limits": {GPU: 8, "cpu": "0"}}}]}
    assert pod_of({"metadata": {"name": "p"}, "spec": spec}).quota_facts.best_effort


def test_amounts_that_cannot_be_read_end_nothing() -> None:
    spec = {"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "much", GPU: 1}}}]}
    assert pod_of({"metadata": {"name": "p"}, "spec": spec}).quota_facts.amounts == ()
    record = limits.resource_quota({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "many", "cpu": "1"}}})
    assert (record.hard, record.unreadable) == ((("cpu", 1000),), (("pods", "many"),))


@pytest.mark.parametrize("name", ["example.com/vcpu", "example.com/cpu"])
def test_a_device_whose_name_ends_as_cpu_does(name: str) -> None:
    """Its amount is a number of devices, and no number of cores."""
    pod = pod_of({"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": {name: "4"}}}]}})
    record = limits.resource_quota({"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{name}": "3"}}})
    (excess,) = QuotaUse([record]).excess([pod])
    assert (excess.hard, excess.asked) == (3, 4)


@pytest.mark.parametrize(
    ("name", "is_counted", "of"),
    [
        (f"requests.{GPU}", True, "GPUs"),
        (GPU, False, "GPUs"),
        (f"limits.{GPU}", False, "GPUs"),
        ("hugepages-2Mi", True, "bytes"),
        ("requests.hugepages-1Gi", True, "bytes"),
        ("requests.example.com/vcpu", True, "devices"),
        ("requests.storage", False, "devices"),
        ("gold.storageclass.storage.k8s.io/requests.storage", False, "devices"),
        ("gpu.example.com.deviceclass.resource.k8s.io/devices", False, "devices"),
        ("count/jobs.batch", False, "devices"),
        ("limits.cpu", True, "millicores"),
        ("count/pods", True, "pods"),
    ],
)
def test_which_names_count_pods(name: str, is_counted: bool, of: str) -> None:
    assert counts_pods(name) is is_counted
    if is_counted:
        assert unit(name) == of
