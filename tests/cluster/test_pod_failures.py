"""Failures that are remembered: who is independent of whom, for whom each counts, and that memory is bounded."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from extender.cluster import pod_failures as book
from extender.cluster.pod_failures import Failure, FailureLimits, Failures, Party, What

ONE = Party("one", "job-1", frozenset({"image-1"}), "default")
TWO = Party("two", "job-2", frozenset({"image-2"}), "default")
THREE = Party("three", "job-3", frozenset({"image-3"}), "default")


def failed(number: int, party: Party = ONE, at: float = 0.0, what: What = "died") -> Failure:
    return Failure(at, f"uid-{number}", f"pod-{number}", party, what)


def own(made: Failures, namespace: str, now: float) -> list[Failure]:
    """What counts for the namespace's pods."""
    return made.for_tenant("n", namespace, made.for_all("n", now))


def filled(*added: Failure, node: str = "n", limits: FailureLimits | None = None) -> Failures:
    made = Failures(limits or FailureLimits())
    for one in added:
        made.add(node, one)
    return made


@pytest.mark.parametrize(
    "other",
    [
        replace(TWO, namespace="one"),
        replace(TWO, owner="job-1"),
        replace(TWO, images=frozenset({"image-2", "image-1"})),
        replace(TWO, images=frozenset()),  # not known: it may be the same
    ],
)
def test_what_two_parties_have_in_common_makes_them_one(other: Party) -> None:
    assert ONE.independent(TWO)  # a service account `default` stands in each namespace
    assert TWO.independent(ONE)
    assert not ONE.independent(other)
    assert not other.independent(ONE)


def test_one_tenant_with_many_owners_images_and_accounts_is_one_party() -> None:
    many = [Party("one", f"job-{i}", frozenset({f"image-{i}"}), f"account-{i}") for i in range(20)]
    made = filled(*(failed(i, party) for i, party in enumerate(many)))
    assert made.for_all("n", 0.0) == []
    assert made.enough(own(made, "one", 0.0), 0.0)
    assert own(made, "two", 0.0) == []


def test_failures_of_two_parties_count_for_all_within_the_window() -> None:
    made = filled(failed(1, at=0.0), failed(2, at=100.0), failed(3, TWO, at=200.0))
    assert [one.uid for one in made.for_all("n", 200.0)] == ["uid-1", "uid-2", "uid-3"]
    assert made.enough(made.for_all("n", 599.0), 599.0)
    assert [one.uid for one in made.for_all("n", 600.0)] == ["uid-2", "uid-3"]
    assert made.for_all("n", 700.0) == []  # of one party alone from here on
    assert [one.uid for one in own(made, "two", 700.0)] == ["uid-3"]


def test_as_many_parties_as_the_settings_ask_for() -> None:
    limits = FailureLimits(parties=3)
    two = [failed(1), failed(2, TWO), failed(3, TWO)]
    assert filled(*two, limits=limits).for_all("n", 0.0) == []
    assert len(filled(*two, failed(4, THREE), limits=limits).for_all("n", 0.0)) == 4


def test_what_kubelet_reports_counts_for_all_of_whatever_party() -> None:
    made = filled(failed(1, what="admission"), failed(2, what="runtime"), failed(3))
    assert [one.what for one in made.for_all("n", 0.0)] == ["admission", "runtime"]
    assert [one.what for one in own(made, "one", 0.0)] == ["admission", "runtime", "died"]


def test_a_sound_pod_clears_its_own_tenant_and_what_kubelet_reports() -> None:
    made = filled(failed(1), failed(2, TWO), failed(3, THREE, what="admission"))
    assert len(made.for_all("n", 10.0)) == 3
    assert made.sound("n", "one", 5.0)
    assert [one.uid for one in made.on("n")] == ["uid-2"]
    assert made.for_all("n", 10.0) == []
    assert [one.uid for one in own(made, "two", 10.0)] == ["uid-2"]


def test_a_sound_pod_of_a_third_clears_no_tenant_but_the_suspicion() -> None:
    made = filled(failed(1), failed(2, TWO))
    assert made.sound("n", "three", 5.0)
    assert made.for_all("n", 10.0) == []
    assert [one.uid for one in made.on("n")] == ["uid-1", "uid-2"]
    made.add("n", failed(3, at=6.0))
    made.add("n", failed(4, TWO, at=7.0))  # both again, after it: the node is suspected anew
    assert [one.uid for one in made.for_all("n", 10.0)] == ["uid-3", "uid-4"]
    assert not made.sound("other", "one", 5.0)


def test_a_pod_counts_once_on_a_node() -> None:
    made = filled(failed(1), failed(1, at=5.0))
    assert len(made) == 1


def test_one_tenants_flood_pushes_out_nobody_else() -> None:
    made = filled(failed(1, TWO), failed(2, THREE, what="admission"))
    for i in range(50):
        made.add("n", failed(100 + i, at=float(i)))
    assert len(made.held("n", "one")) == book.KEPT
    for i in range(5_000):
        made.add(f"node-{i}", failed(1_000 + i, at=float(i)))
    assert len(made) == book.KEPT_OF_TENANT + 2
    assert sorted(one.uid for one in made.on("n")) == ["uid-1", "uid-2"]
    assert made.held("node-4999", "one")  # its own oldest went first


def test_memory_is_bounded_under_random_churn() -> None:
    chance = random.Random(7)
    made = Failures()
    for i in range(30_000):
        party = Party(f"ns-{chance.randrange(400)}", f"o-{i}", frozenset({f"i-{i}"}), f"a-{i}")
        what: What = "admission" if chance.random() < 0.3 else "died"
        made.add(f"node-{chance.randrange(3_000)}", failed(i, party, float(i) / 100, what))
        if i % 1_000 == 0:
            made.sound(f"node-{chance.randrange(3_000)}", party.namespace, float(i) / 100)
            made.forget(f"node-{chance.randrange(3_000)}")
    assert len(made) <= book.KEPT_OF_TENANTS + book.KEPT_OF_NODES
    assert len(made) == sum(len(made.on(node)) for node in made.nodes())
    assert sum(len(list(made.keys(node))) for node in made.nodes()) == sum(
        len(list(made.nodes_of(key))) for key in {key for node in made.nodes() for key in made.keys(node)}
    )
    for node in list(made.nodes()):
        made.fade(node, 1e6)
    assert len(made) == 0
    assert not list(made.nodes())


def test_what_the_failed_pods_have_in_common_is_named() -> None:
    same = [failed(1), failed(2, replace(ONE, owner="job-9"))]
    assert book.common(same) == "namespace one, image image-1, service account default"
    assert book.common([failed(1), failed(2)]) == "namespace one, owner, image image-1, service account default"
    assert book.common([failed(1), failed(2, replace(TWO, images=ONE.images))]) == "image image-1"
    assert book.common([failed(1), failed(2, TWO)]) == "nothing"
