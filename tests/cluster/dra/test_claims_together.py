"""What nodes meet of the claims of several pods, against all orders of the pods on stores of their own."""

from __future__ import annotations

import random
from itertools import product

from extender.cluster.dra.allocator import Allocation
from extender.cluster.dra.claim_fits import ClaimsTogether, covers
from extender.objects.decode import record
from extender.objects.records import PodRecord
from extender.sim import claims as dra
from tests.cases import cases
from tests.cluster.dra import drawn_claims as drawn

CASES = cases(30)
MOST = 4


def test_a_node_refuses_what_it_does_not_meet_in_any_order_or_in_one() -> None:
    rng = random.Random(3)
    differ = several = 0
    for _ in range(CASES):
        roles = rng.choice((1, 2, 2, 3))
        objects = [*drawn.nodes(rng, ["n1"]), *(drawn.template(rng, f"t{c}") for c in range(roles))]
        made, known = drawn.store(objects)
        kinds: list[PodRecord] = [record("Pod", drawn.pod(f"p{c}", f"t{c}"), drawn.GPUS) for c in range(roles)]  # type: ignore[misc]
        together = ClaimsTogether(made.fits, made.claims, kinds)
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
    of = f"device.attributes['{dra.DRIVER}']"
    expressions = (
        f"{of}.productName != 'other'", f"'uuid' in {of} && 'absent' in {of}", f"{of}.exists(name, name == 'uuid')",
        f"{of}.index % 2 == 0", f"{of}.index > 0 || {of}.uuid.matches('[0-7]$')", f"{of}.absent == 1", "true",
        f"device.driver == '{dra.DRIVER}' && device.capacity['{dra.DRIVER}'].memory.isGreaterThan(quantity('1Gi'))",
    )  # fmt: skip
    shared = 0
    for _ in range(CASES):
        objects = [*drawn.nodes(rng, names), *(drawn.template(rng, f"t{number}") for number in range(3))]
        for made in objects[-3:]:
            devices = made["spec"]["spec"]["devices"]
            if rng.random() < 0.5:
                name = rng.choice(("uuid", "productName", "resource.kubernetes.io/pcieRoot", "absent"))
                attribute = name if "/" in name else f"{dra.DRIVER}/{name}"
                devices["constraints"] = [{rng.choice(("matchAttribute", "distinctAttribute")): attribute}]
            if "exactly" in devices["requests"][0] and rng.random() < 0.7:
                devices["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": rng.choice(expressions)}}]
        store, known = drawn.store(objects)
        for turn in range(6):
            asking: PodRecord = record("Pod", drawn.pod("p", f"t{turn % 3}"), drawn.GPUS)  # type: ignore[assignment]
            claims = store.fits.all_of(asking)
            for node in known.values():
                alone = store.fits.allocate(store.fits.pools(node), store.claims, claims.specs)
                assert shown(store.fits.on(node, claims)) == shown(alone)
                ids = [one.candidate.id for one in sum(alone.results or (), ()) if not one.admin]
                assert (store.fits.given(node, claims.specs) or []) == ids
            shared += len(names) - len({store.fits.kind(node, claims) for node in known.values()})
            held = drawn.held(rng.choice(names), rng.randrange(4))
            store.set(record("ResourceClaim", held, drawn.GPUS), rng.choice(("set", "delete")))  # type: ignore[arg-type]
    assert shared
