"""The measurement of pods with claims: both clusters are the same one, and losses are stated."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import claims, fleet
from extender.ask import frozen
from extender.cluster.cluster import Cluster
from extender.objects import records
from extender.settings import Settings

NODES, PODS = 20, range(12)


def read(*, by_driver: bool) -> Cluster:
    cluster = Cluster(Settings())
    cluster.apply(frozen.parse(claims.cluster(NODES, PODS, by_driver=by_driver), cluster.gpu_names), 0.0)
    return cluster


def held(cluster: Cluster) -> dict[str, set[tuple[str, int | None]]]:
    return {node: {(one.how, one.mask) for one in ledger.holdings} for node, ledger in cluster.gpus.ledgers.items()}


def test_device_plugin_and_driver_offer_the_same_gpus_and_the_same_ones_are_held() -> None:
    plugin, driver = read(by_driver=False), read(by_driver=True)
    assert held(plugin) == held(driver)
    assert (len(plugin.dra.claims.records), len(driver.dra.claims.records)) == (
        0,
        3 * len(PODS) + sum(map(fleet.taken, range(NODES))),
    )
    assert {how for one in held(driver).values() for how, _ in one} == {"observed"}
    assert {name: node.gpus for name, node in plugin.nodes.items()} == {
        n: node.gpus for n, node in driver.nodes.items()
    }
    assert all(node.devices is not None and node.devices.first_fit for node in driver.nodes.values())


def test_pods_ask_for_as_many_gpus_by_claims_as_by_limits() -> None:
    driver = read(by_driver=True)
    for number in PODS:
        found: list[Any] = []
        for pods in claims.PODS:
            pod = records.pod(json.dumps(claims.asking(number, pods)).encode(), driver.gpu_names)
            assert (pod.uid in driver.pods) == (number < len(PODS) // 2)
            asked = driver.dra.read(pod)
            assert bool(asked.claimed) == bool(pods.claims)
            assert ("gpu-extender.io/links" in asked.annotations) == pods.linked
            assert (driver.dra.fits.of(asked) is not None) == (pods is claims.CHOSEN)
            found.append(asked.gpus)
        assert {*found} == {(("nvidia.com/gpu", claims.SIZES[number % 3]),)}


def test_the_highest_ratio_of_a_verb_counts() -> None:
    found = claims.cases(20)
    for number, case in enumerate(found):
        for arm, values in case.cpu.items():
            values += [100.0 + 10 * number * (arm == "claims"), 100.0]
    lines = {line.measure: line for line in claims.targets(found)}
    assert lines["CPU of filter, pods of the arm `claims`"].got == "1.15 (1.00 to 1.30)"
    assert lines["CPU of prioritize, pods of the arm `claims`"].got == "1.25 (1.00 to 1.50)"
    assert all(line.met is not False for line in lines.values())
    found[-1].cpu["claims"][:] = [131.0, 131.0]
    found[0].cpu["no code"][:] = [80.0, 80.0]
    lost = [line.measure for line in claims.targets(found) if line.met is False]
    assert lost == ["CPU of prioritize, pods of the arm `claims`", "CPU of both verbs without DRA objects"]
    assert len(claims.report(found).splitlines()) == 2 + len(found)
