"""A cluster without some pods, three ways: they are deleted; `without` of one node; `ended` of many.

`without` is exact: its tables are those that the deletion leaves, whatever is known of the GPUs. `ended` does not read
ledgers again: it is exact where the positions of all other pods are seen, else what it leaves uncertain includes what
the deletion does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from ext_core.rows import NodeRow
from extender.ask.suppose import SupposedCluster
from extender.cluster.cluster import Cluster
from extender.objects.records import Event, PodRecord
from tests.metamorphic.answers import events
from tests.metamorphic.clusters import drawn, with_claims
from tests.world import World, pairs

CASES = 150
SEEN = {"observed", "enforced"}


def columns(cluster: Cluster, name: str) -> NodeRow:
    return cluster.tables.nodes.node(cluster.row(name))


def uncertain(node: NodeRow) -> int:
    """How many of its GPUs are held at positions that are not sure."""
    return node.likely.bit_count() + node.unknown


def world(rng: random.Random) -> World:
    """Nodes of eight GPUs. Of some pods it is seen which they hold, others state planned GPUs, possible or not, and of
    others nothing is known."""
    made = World()
    for n in range(2):
        made.node(f"n{n}", 8, links=pairs(8))
        free = rng.sample(range(8), 8)
        while free and rng.random() < 0.85:
            gpus = sorted(free.pop() for _ in range(min(len(free), rng.choice([1, 1, 2, 4]))))
            how = rng.choice(["held", "held", "planned", "wrong", ""])
            stated = gpus if how == "planned" else sorted(rng.sample(range(8), len(gpus)))
            notes = {"gpu-extender.io/gpus": ",".join(map(str, stated))} if how in ("planned", "wrong") else {}
            made.pod(
                f"p{n}-{len(free)}", len(gpus), f"n{n}", annotations=notes, held=gpus if how == "held" else ()
            )  # fmt: skip
    return made


def chosen(rng: random.Random, cluster: Cluster) -> Iterator[tuple[str, list[PodRecord]]]:
    """Nodes, each with some of its pods."""
    for name in sorted(cluster.nodes):
        if pods := sorted(cluster.pods_on(name), key=lambda pod: pod.uid):
            yield name, rng.sample(pods, rng.randint(1, len(pods)))


def test_what_without_and_ended_show_is_what_a_deletion_leaves() -> None:
    counts: Counter[str] = Counter()
    for seed in range(CASES):
        rng = random.Random(seed)
        made = world(rng)
        cluster = made.cluster
        for name, gone in list(chosen(rng, cluster)):
            uids = {pod.uid for pod in gone}
            others = [holding for holding in cluster.gpus.ledgers[name].holdings if holding.uid not in uids]
            seen = all(holding.how in SEEN for holding in others)
            deduced = any(holding.how not in SEEN and not holding.unsure for holding in others)
            before = columns(cluster, name)
            with cluster.without(uids, name):
                without = columns(cluster, name)
            with cluster.ended(uids):
                ended = columns(cluster, name)
            assert columns(cluster, name) == before
            made.gone(*(pod.name for pod in gone))
            deleted = columns(cluster, name)
            assert without == deleted, seed
            assert ended.used == deleted.used, seed
            assert ended == deleted or not seen, seed
            assert deduced or uncertain(ended) >= uncertain(deleted), seed
            counts["equal" if ended == deleted else "uncertain"] += 1
    assert min(counts.values()) > CASES / 10, counts


def test_what_with_bound_shows_is_what_the_bindings_leave() -> None:
    for seed in range(CASES // 3):
        rng = random.Random(seed)
        made = world(rng)
        cluster = made.cluster
        for name in sorted(cluster.nodes):
            for number in range(rng.randint(1, 2)):
                made.pod(f"{name}-new-{number}", rng.choice([1, 2]))
            coming = [pod for uid, pod in cluster.pods.items() if uid.startswith(f"uid-{name}-new")]
            before = columns(cluster, name), dict(cluster.pods)
            placed = [replace(pod, node=name) for pod in coming]
            with cluster.with_bound(placed, made.now):
                bound = columns(cluster, name)
                assert {pod.uid for pod in coming} <= {pod.uid for pod in cluster.pods_on(name)}
            assert (columns(cluster, name), dict(cluster.pods)) == before
            assert not any(pod.uid in cluster.placements.settling for pod in coming), seed
            cluster.apply([Event("Pod", "set", pod) for pod in placed], made.now)
            assert columns(cluster, name) == bound, seed


def test_of_nodes_with_claims_too() -> None:
    pods = 0
    for seed in range(6):
        stated = with_claims(drawn(seed))
        supposed = SupposedCluster.of(stated.settings, events(stated))
        for name, gone in list(chosen(random.Random(seed), supposed.cluster)):
            with supposed.cluster.without({pod.uid for pod in gone}, name):
                without = columns(supposed.cluster, name)
            supposed.evict(gone)
            assert columns(supposed.cluster, name) == without, (seed, name)
            pods += len(gone)
    assert pods > 10
