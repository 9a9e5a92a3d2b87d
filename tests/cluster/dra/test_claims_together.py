"""What nodes meet of the claims of several pods, against all orders of the pods on stores of their own."""

from __future__ import annotations

import os
import random
from itertools import product

from extender.cluster.dra.allocator import Allocation
from extender.cluster.dra.claims_together import ClaimsTogether, covers
from extender.objects.decode import record
from extender.objects.records import PodRecord
from extender.sim import claims as dra
from tests.cluster.dra import drawn_claims as drawn

CASES = int(os.environ.get("CLAIM_CASES", "60"))
MOST = 4


def test_a_node_refuses_what_it_does_not_meet_in_any_order_or_in_one() -> None:
    rng = random.Random(3)
    differ = several = 0
    for _ in range(CASES):
        roles = rng.choice((1, 2, 2, 3))
        objects = [*drawn.nodes(rng, ["n1"]), *(drawn.template(rng, f"t{c}") for c in range(roles))]
        made, known = drawn.store(objects)
        kinds: list[PodRecord] = [record("Pod", drawn.pod(f"p{c}", f"t{c}"), drawn.GPUS) for c in range(roles)]  # type: ignore[misc]
        together = ClaimsTogether(made.fits, made._claims, kinds)
        alone = [made.fits.on(known["n1"], made.fits.all_of(kind)).results is not None for kind in kinds]
        most = (MOST,) * roles
        refused = {
            in_any_order: [of.counts for of in together.refused(known["n1"], most, in_any_order=in_any_order)]
            for in_any_order in (True, False)
        }
        for counts in product(range(MOST + 1), repeat=roles):
            if not 0 < sum(counts) <= MOST or not all(ok for ok, number in zip(alone, counts, strict=True) if number):
                continue
            at = [c for c, number in enumerate(counts) for _ in range(number)]
            pods: list[PodRecord] = [
                record("Pod", drawn.pod(f"q{i}", f"t{c}"), drawn.GPUS)  # type: ignore[misc]
                for i, c in enumerate(at)
            ]
            in_any, in_one = drawn.orders(objects, "n1", pods, at)
            taken = {key: not any(covers(counts, other) for other in some) for key, some in refused.items()}
            assert taken == {True: in_any, False: in_one}, (counts, refused)
            differ += in_any != in_one
            several += not in_one
    assert differ
    assert several


def shown(at: Allocation) -> object:
    devices = [[(result.request, result.candidate.id) for result in of] for of in at.results or ()]
    return devices, at.results is None, at.request, at.why, at.unknown


def test_nodes_with_devices_of_one_kind_allocate_as_each_does_by_itself() -> None:
    rng = random.Random(5)
    names = [f"n{number}" for number in range(12)]
    shared = 0
    for _ in range(CASES):
        objects = [*drawn.nodes(rng, names), drawn.template(rng, "t")]
        if rng.random() < 0.5:
            name = rng.choice(("uuid", "productName", "resource.kubernetes.io/pcieRoot", "absent"))
            attribute = name if "/" in name else f"{dra.DRIVER}/{name}"
            constraint = {rng.choice(("matchAttribute", "distinctAttribute")): attribute}
            objects[-1]["spec"]["spec"]["devices"]["constraints"] = [constraint]
        made, known = drawn.store(objects)
        asking: PodRecord = record("Pod", drawn.pod("p", "t"), drawn.GPUS)  # type: ignore[assignment]
        claims = made.fits.all_of(asking)
        for node in known.values():
            alone = made.fits.allocate(made.fits.pools(node), made._claims, claims.specs)
            assert shown(made.fits.on(node, claims)) == shown(alone)
        shared += len(names) - len({made.fits.kind(node, claims) for node in known.values()})
    assert shared
