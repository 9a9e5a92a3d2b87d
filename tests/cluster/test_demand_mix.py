"""The mix of requests: what is counted, for how long, how it is kept over a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.demand import ANYWHERE, OTHERS, DemandMix, Kind, MachineModels, Weigher, kind_of, where_of
from extender.objects import records
from extender.objects.selectors import Requirement
from extender.objects.stored_texts import MIX_BYTES
from tests.cluster.dra.world import DraWorld
from tests.world import AMD, GPU, PRODUCT, World, workload

H100 = (Requirement(PRODUCT, "In", ("H100",)),)
DAY = 86_400.0


def kind(devices: int = 1, cpu: int = 1000, memory: int = 1 << 30, where: Any = (), linked: int = 0) -> Kind:
    return Kind(GPU, devices, 1, cpu, memory, where, linked)


def record(**facts: Any) -> records.PodRecord:
    return records.pod(workload("p", **facts), frozenset((GPU, AMD)))


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


# ---- what a pod asks for


@pytest.mark.parametrize(
    ("facts", "linked"),
    [
        ({"gpus": 1}, 0),
        ({"gpus": 2}, 1),
        ({"gpus": 2, "links": "required"}, 2),
        ({"gpus": 2, "links": "ignore"}, 0),
        ({"gpus": 2, "links": "soon"}, 2),
    ],
)
def test_kind_of_a_pod(facts: dict[str, Any], linked: int) -> None:
    made = kind_of(record(cpu="4", memory="2Gi", **facts), (GPU, AMD), (PRODUCT,))
    assert made == Kind(GPU, facts["gpus"], 1, 4000, 2 << 30, (), linked)


def test_without_gpus_there_is_no_kind() -> None:
    assert kind_of(record(), (GPU, AMD), ()) is None
    assert kind_of(record(gpus=2), (AMD,), ()) is None


H100_OR_A100 = {"key": PRODUCT, "operator": "In", "values": ["H100", "A100"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({}, ()),
        ({"nodeSelector": {PRODUCT: "H100", "zone": "a"}}, (H100,)),
        ({"nodeSelector": {"zone": "a"}}, ()),
        (affinity([H100_OR_A100, ZONE]), ((Requirement(PRODUCT, "In", ("A100", "H100")),),)),
        (affinity([H100_OR_A100], [ZONE]), ()),  # any machine in zone a will do
        (
            {"nodeSelector": {PRODUCT: "H100"}} | affinity([H100_OR_A100], [ZONE]),
            ((Requirement(PRODUCT, "In", ("A100", "H100")), *H100), H100),
        ),
    ],
)
def test_where_a_pod_may_run(spec: dict[str, Any], where: Any) -> None:
    assert where_of(record(gpus=1, spec=spec), (PRODUCT,)) == tuple(sorted(where))


def test_models() -> None:
    models = MachineModels((PRODUCT, "type"))
    h100, h100_large, plain = {PRODUCT: "H100"}, {PRODUCT: "H100", "type": "large", "zone": "b"}, {"zone": "c"}
    assert [models.of(labels) for labels in (h100, h100_large, plain, h100)] == [0, 1, 2, 0]
    assert models.mask(()) == ANYWHERE
    assert models.mask((H100,)) == 0b011
    assert models.mask(((Requirement(PRODUCT, "DoesNotExist"),),)) == 0b100
    assert models.mask((H100, (Requirement(PRODUCT, "NotIn", ("H100",)),))) == 0b111
    for i in range(100):
        models.of({PRODUCT: str(i)})
    assert models.of({PRODUCT: "99"}) == OTHERS
    assert not models.mask(((Requirement(PRODUCT, "Exists"),),)) >> OTHERS & 1  # nobody knows


def test_whole_machines() -> None:
    models = MachineModels(())
    models.set("a", (0, GPU, 8), (100_000, 1000))
    models.set("b", (0, GPU, 8), (90_000, 2000))
    models.set("c", (0, GPU, 1), (90_000, 2000))
    assert models.whole() == [Kind(GPU, 8, 1, 72_000, 800, (), 1)]  # four fifths of the least
    before = models.revision
    models.set("d", (0, GPU, 8), (95_000, 3000))
    assert models.revision == before


def test_machines_that_do_not_exist_any_more_are_not_expected() -> None:
    models = MachineModels(())
    models.set("a", (0, GPU, 8), (100_000, 1000))
    models.set("b", (0, GPU, 8), (90_000, 1000))
    models.set("b", (0, GPU, 4), (90_000, 1000))
    assert [(kind.devices, kind.cpu) for kind in models.whole()] == [(4, 72_000), (8, 80_000)]
    before = models.revision
    models.drop("b")
    assert [(kind.devices, kind.cpu) for kind in models.whole()] == [(8, 80_000)]
    assert models.revision > before


# ---- counting


def test_half_after_the_half_life() -> None:
    mix = DemandMix(7 * DAY)
    mix.see(kind(1), "a", 0.0)
    mix.see(kind(1), "b", 0.0)
    mix.see(kind(2), "c", 7 * DAY)
    mix.see(kind(4), "d", 0.0)  # told late
    assert mix.weights() == [(kind(1), 1.0), (kind(2), 1.0), (kind(4), 0.5)]


def test_years_go_by() -> None:
    mix = DemandMix(DAY)
    mix.see(kind(1), "a", 0.0)
    mix.see(kind(2), "b", 5000 * DAY)
    mix.see(kind(2), "c", 5001 * DAY)
    assert mix.weights() == [(kind(2), 1.5)]


def test_without_a_time_it_came_just_now() -> None:
    mix = DemandMix(DAY)
    for _ in range(3):
        mix.see(kind(1))
    assert mix.weights() == [(kind(1), 3.0)]


def test_beyond_the_bound_the_rare_count_for_the_nearest() -> None:
    mix = DemandMix(DAY, most=2)
    for cpu in (1000, 1000, 9000, 9000):
        mix.see(kind(1, cpu))
    mix.see(kind(1, 8000))  # nearer to 9000
    mix.see(kind(8))  # nothing like it
    assert mix.weights() == [(kind(1, 1000), 2.0), (kind(1, 9000), 3.0)]
    for _ in range(4):
        mix.see(kind(8))  # five: more than twice the two of the least
    assert mix.weights() == [(kind(1, 9000), 5.0), (kind(8), 5.0)]


def test_memory_is_bounded() -> None:
    mix = DemandMix(DAY, most=2)
    for cpu in range(100):
        mix.see(kind(1, cpu))
    assert len(json.loads(mix.dump())["kinds"]) <= 8


def test_long_kinds_of_a_tenant_are_left_out_of_the_text_first() -> None:
    mix = DemandMix(DAY)
    for number in range(200):
        for _ in range(3):
            mix.see(kind(1, number), f"uid-{number}", 100.0)
    for number in range(700):
        label = Requirement("model", "NotIn", tuple(f"{number:04}{value:03}".ljust(63, "x") for value in range(16)))
        for _ in range(4):  # they weigh more, each, but not for their length
            mix.see(kind(2, number, where=((label,),)), f"late-{number}".ljust(36, "x"), 100.0)
    text = mix.dump()
    stored = DemandMix.load(text, DAY)
    assert len(text.encode()) <= MIX_BYTES
    assert sum(not one.where for one in stored._mass) == 200
    assert 0 < sum(bool(one.where) for one in stored._mass) < 700


def test_bad_bounds() -> None:
    for half_life, most in ((0.0, 1), (-1.0, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="a mix has"):
            DemandMix(half_life, most)


# ---- over a restart


def test_a_loaded_mix_counts_nobody_twice() -> None:
    mix = DemandMix(DAY)
    mix.see(kind(1), "a", 100.0)
    mix.see(kind(2, where=(H100,)), "b", 200.0)
    loaded = DemandMix.load(mix.dump(), DAY)
    assert loaded.weights() == mix.weights()
    for uid, at in (("a", 100.0), ("b", 200.0)):
        loaded.see(kind(1), uid, at)  # the watch brings them again
    assert loaded.weights() == mix.weights()
    for one in (mix, loaded):
        one.see(kind(1), "c", 200.0)  # made in the same second, not yet counted
        one.see(kind(1), "d", 300.0)
    assert dict(loaded.weights()) == pytest.approx(dict(mix.weights()))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 3 * 86_400)), max_size=30))
def test_dump_and_load_agree(pods: list[tuple[int, int, int]]) -> None:
    mix = DemandMix(DAY, most=4)
    for i, (devices, cpu, at) in enumerate(pods):
        mix.see(kind(devices, cpu), f"uid-{i}", float(at))
    loaded = DemandMix.load(mix.dump(), DAY, most=4)
    assert loaded.dump() == mix.dump()
    assert [one for one, _ in loaded.weights()] == [one for one, _ in mix.weights()]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"apiVersion": "v2", "kind": "Mix", "until": null, "uids": [], "kinds": []}',
        '{"apiVersion": "gpu-extender.io/v1", "kind": "Mix", "until": null, "uids": [], "kinds": [["a"]]}',
        '{"apiVersion": "gpu-extender.io/v1", "kind": "Mix", "until": 1, "uids": [],'
        ' "kinds": [["a", 0, 1, 0, 0, [], 0, 1.0, true]]}',
    ],
)
def test_what_is_no_mix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a mix of requests"):
        DemandMix.load(text, DAY)


# ---- what it weighs


def weighed(counts: dict[Kind, float], expected: list[Kind], most: int = 256) -> list[tuple[Kind, float, float]]:
    """(kind, weight, size)."""
    asked = sorted(counts)
    weigher = Weigher(asked, expected, most)
    weights = weigher.weights([counts[kind] for kind in asked])
    return list(zip(weigher.kinds, weights, weigher.sizes, strict=True))


def test_weights() -> None:
    lean, fat, large, expected = kind(1, 1000), kind(1, 9000), kind(8), kind(4)
    pulls = weighed({large: 1.0, fat: 1.0, lean: 1.0}, [expected, large])
    # Three of weight 1; the leanest single GPU weighs as much again as all of them.
    assert pulls == [
        (lean, 4.0, 1.0),
        (fat, 1.0, 1.0),
        (expected, 0.01**0.6, 1.0),
        (large, 1.0, 8.0),
    ]
    assert len(weighed({large: 1.0, lean: 1.0}, [expected], 2)) == 2  # no room for what is only expected


def test_the_leanest_is_one_that_comes_often_and_may_run_anywhere() -> None:
    often, rare, bound = kind(1, 1000), kind(1, 10), kind(1, 20, where=(H100,))
    pulls = {kind: weight for kind, weight, _ in weighed({often: 1000.0, rare: 1.0, bound: 500.0}, [])}
    assert pulls[rare] == 1.0
    assert pulls[bound] == 500.0**0.6
    assert pulls[often] == pytest.approx(2 * 1000.0**0.6 + 1.0 + 500.0**0.6)


@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from([0, 500, 700, 1000, 2000, 2500, 4000, 9000])), max_size=80)
)
def test_what_was_counted_in_between_changes_nothing(pods: list[tuple[int, int]]) -> None:
    """What is kept of the order and of who is near whom is what a mix finds that is asked only once."""
    asked, once = DemandMix(3600.0, 3), DemandMix(3600.0, 3)
    for at, (devices, cpu) in enumerate(pods):
        for mix in (asked, once):
            mix.see(kind(devices, cpu), str(at), 60.0 * at)
        asked.weights()
    assert asked.weights() == once.weights()


# ---- from the watch to the tables


def test_the_cluster_learns_each_pod_once(world: World) -> None:
    world.node("n", 8)
    for _ in range(3):
        world.pod("p", 2)
    world.pod("q", 2, "n")
    world.pod("q", 2, "n")
    world.pod("none", 0)
    two = [count for one, count in world.cluster.demand.mix.weights() if one.devices == 2]
    assert two == [2.0]
    demand = world.cluster.tables.demand
    demand.renew()
    assert len(demand.names) == len(demand.types) == 2  # what came, and the pod that takes the whole machine
    assert [one[1] for one in demand.types] == [2, 8]


@pytest.mark.parametrize("pod_first", [False, True])
def test_the_cluster_learns_a_pod_that_comes_before_its_claim(pod_first: bool) -> None:
    world = DraWorld()
    world.dra_class()
    if pod_first:
        world.claimant("p", "two")
    world.claim("two", 2)
    world.claimant("p", "two")
    assert [(one.devices, count) for one, count in world.cluster.demand.mix.weights()] == [(2, 1.0)]


def test_a_machine_stays_the_same_while_some_of_its_gpus_are_not_offered(world: World) -> None:
    """Unhealthy ones, and those of a claim whose pod is not known yet."""
    world.node("n", 8)
    world.node("n", 5, capacity=8)
    assert [one.devices for one in world.cluster.demand.models.whole()] == [8]


def test_what_a_pod_says_of_machines_at_great_length_is_not_kept() -> None:
    """1,024 kinds are kept and written to a ConfigMap of 1 MiB: no pod may fill it with the names of machines."""

    def where(values: list[str], terms: int = 1) -> object:
        expression = {"key": "nvidia.com/gpu.product", "operator": "In", "values": values}
        required = {"nodeSelectorTerms": [{"matchExpressions": [expression]} for _ in range(terms)]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        made = records.pod(json.dumps(workload("p", 1, spec={"affinity": affinity})).encode(), frozenset({GPU}))
        return where_of(made, ["nvidia.com/gpu.product"])

    assert where(["H100", "A100"]) == ((Requirement("nvidia.com/gpu.product", "In", ("A100", "H100")),),)
    assert where([f"{i:010d}" for i in range(64)]) != ()
    assert where(["H100"] * 65) == ()
    assert where(["x" * 1025]) == ()
    assert where(["H100"], 65) == ()
