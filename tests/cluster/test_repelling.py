"""Which nodes the required anti-affinity of bound pods may keep a pod off: counted against a look at every pod."""

from __future__ import annotations

import json
import random

import pytest

from extender.cluster.pods import Repelling
from extender.objects import records
from extender.objects.records import PodRecord
from extender.objects.selectors import Labels, PodTerm

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
