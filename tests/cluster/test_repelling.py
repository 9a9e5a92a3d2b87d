"""Which nodes the required anti-affinity of bound pods may keep a pod off: counted against a look at every pod."""

from __future__ import annotations

import json
import random

import pytest

from extender.cluster.pods import MOST_TESTS, Repelling
from extender.objects import records
from extender.objects.records import PodRecord
from extender.objects.selectors import Labels, PodTerm, Requirement

NODES = ("a", "b", "c")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def made(rng: random.Random, uid: str) -> PodRecord:
    """A bound pod with two terms at most, drawn from few values: pods share them."""
    terms = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": rng.choice("xyz")}},
            "namespaces": [rng.choice(["one", "two"])],
        }
        for _ in range(rng.randrange(3))
    ]
    pod = {
        "metadata": {
            "uid": uid,
            "name": uid,
            "namespace": rng.choice(["one", "two"]),
            "labels": {"app": rng.choice("xyz")},
        },
        "spec": {"nodeName": rng.choice(NODES), "affinity": {"podAntiAffinity": {REQUIRED: terms}}},
    }
    return records.pod(json.dumps(pod).encode(), frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_as_every_pod_looked_at(seed: int) -> None:
    rng = random.Random(seed)
    repelling, bound = Repelling(), dict[str, PodRecord]()
    for step in range(60):
        if bound and rng.random() < 0.4:
            uid = rng.choice(sorted(bound))
            del bound[uid]
            repelling.remove(uid)
        else:
            pod = made(rng, f"u{step}")
            bound[pod.uid] = pod
            repelling.add(pod)
        new, names = made(rng, "new"), rng.sample(NODES, rng.randrange(4))
        expected = {
            pod.node
            for pod in bound.values()
            for term in pod.anti_affinity_terms
            if pod.node in names and term.may_match(new.namespace, new.labels)
        }
        assert repelling.nodes(new, names) == expected
        assert len(repelling) == sum(1 for pod in bound.values() if pod.anti_affinity_terms)
    for uid in bound:
        repelling.remove(uid)
    assert not repelling
    assert not repelling.nodes(made(rng, "last"), NODES)


def test_the_same_terms_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, repelling = random.Random(1), Repelling()
    for i in range(300):
        repelling.add(made(rng, f"u{i}"))
    compared: list[PodTerm] = []
    whole = PodTerm.may_match

    def counted(term: PodTerm, namespace: str, labels: Labels) -> bool:
        compared.append(term)
        return whole(term, namespace, labels)

    monkeypatch.setattr(PodTerm, "may_match", counted)
    repelling.nodes(made(rng, "new"), NODES)
    assert 0 < len(compared) <= 6 + 2 * 6 * 6  # 6 terms can be drawn, alone or as one of 36 pairs; 300 pods have some


def hostile(uid: str, namespace: str = "evil", terms: int = 60, keys: int = 20) -> PodRecord:
    """A bound pod of many terms that look into every namespace, and match no pod that has a label `app`."""
    tests = [{"key": f"{uid}-{i}", "operator": "NotIn", "values": ["x"]} for i in range(keys)]
    wire = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [*tests, {"key": "app", "operator": "DoesNotExist"}]},
        }
    ] * terms
    pod = {
        "metadata": {"uid": uid, "name": uid, "namespace": namespace, "labels": {"app": "x"}},
        "spec": {"nodeName": "a", "affinity": {"podAntiAffinity": {REQUIRED: wire}}},
    }
    return records.pod(json.dumps(pod).encode(), frozenset())


def test_the_terms_of_a_namespace_cost_others_a_bounded_number_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server lets one pod state thousands of tests. Beyond the limit each term counts as matching."""
    rng, repelling = random.Random(1), Repelling()
    new = made(rng, "new")
    for i in range(3):
        repelling.add(hostile(f"u{i}"))
    assert repelling.nodes(new, NODES) == set()
    tested: list[Requirement] = []
    whole = Requirement.matches

    def counted(test: Requirement, labels: Labels) -> bool:
        tested.append(test)
        return whole(test, labels)

    monkeypatch.setattr(Requirement, "matches", counted)
    for i in range(3, 100):
        repelling.add(hostile(f"u{i}"))
    assert repelling.nodes(new, NODES) == {"a"}
    assert len(tested) <= MOST_TESTS
    assert len(set(repelling.terms("one"))) == 1
    for i in range(3, 100):
        repelling.remove(f"u{i}")
    assert repelling.nodes(new, NODES) == set()
