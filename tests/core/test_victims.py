"""The victim search against its twin, which tries every set."""

from array import array
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ext_core import victims
from ext_core.candidates import Candidates
from tests.reference import victims as twin

BUDGET = 200_000
Term = tuple[Any, ...]


@dataclass
class Case:
    """The columns of one call, as lists."""

    start: list[int]
    short: list[list[int]]
    amounts: list[list[int]]
    masks: list[int]
    free: list[int]
    unknown: list[int]
    unsure: list[int]
    table: list[int]
    ok: list[bytes]
    forced: list[int]
    terms: list[Term]

    @property
    def n(self) -> int:
        return len(self.start) - 1


def packed(term: Term) -> Any:
    form, *columns = term
    if form == "below":
        return form, columns[0], packed(columns[1])
    if form == "mask":
        return form, [array("q", table) for table in columns[0]]
    codes = "qq" if form in ("sum", "max") else "iiqqq"
    return form, *(array(code, column) for code, column in zip(codes, columns, strict=False))


def candidates(case: Case) -> Candidates:
    made = Candidates(array("i", case.start), len(case.short))
    for column in ("free", "unknown", "table", "masks", "unsure", "forced"):
        for i, value in enumerate(getattr(case, column)):
            getattr(made, column)[i] = value
    for r, (short, amounts) in enumerate(zip(case.short, case.amounts, strict=True)):
        for i, value in enumerate(short):
            made.short[r, i] = value
        for pod, value in enumerate(amounts):
            made.amounts[r, pod] = value
    made.ok.extend(case.ok)
    return made


def solve(case: Case, budget: int = BUDGET, skip: bool = False, nanoseconds: int = 0, stop: int = 0) -> victims.Victims:
    terms = [packed(term) for term in case.terms]
    return victims.cheapest(candidates(case), terms, budget, skip, nanoseconds, stop)


def listed(case: Case) -> twin.Candidates:
    made = twin.Candidates(case.start, len(case.short))
    for name in ("short", "amounts", "free", "unknown", "table", "masks", "unsure", "forced", "ok"):
        setattr(made, name, getattr(case, name))
    return made


def slow(case: Case, skip: bool = False) -> twin.Victims:
    return twin.cheapest(listed(case), case.terms, BUDGET, skip)


def answer(found: victims.Victims | twin.Victims) -> tuple[list[int], list[int], list[int]]:
    return list(found.status), list(found.chosen), list(found.cost)


# --- random cases -----------------------------------------------------------------------------------------------------


def random_groups(rng: Random, pods: int, form: str) -> Term:
    groups = rng.randint(0, 4)
    most = 1 if rng.random() < 0.5 else 3
    roles = rng.choice([0, 1, 2, 3]) if form == "gang" else 0  # of each gang
    start, member = [0], []
    for _ in range(pods):
        if form == "group":
            member += rng.sample(range(groups), rng.randint(0, min(most, groups)))
        elif groups and rng.random() < 0.6:
            gang = rng.randrange(groups)
            member += [gang, *rng.sample([groups + gang + groups * role for role in range(roles)], min(roles, 1))]
            if rng.random() < 0.1:  # neither of a role
                del member[start[-1] + 1 :]
        start.append(len(member))
    groups *= 1 + roles
    allowance = [rng.choice([-1, 0, 0, 1, 2, 4]) for _ in range(groups)]
    price = [1] * groups if rng.random() < 0.4 else [rng.randint(0, 5) for _ in range(groups)]
    if form == "group" or rng.random() < 0.4:
        return form, start, member, allowance, price
    column = [rng.randint(0, rng.choice([1, 6])) for _ in range(pods)]
    for pod in range(pods):
        for gang in member[start[pod] : start[pod + 1]][:1]:
            price[gang] += column[pod]
    return form, start, member, allowance, price, column


def random_case(rng: Random, candidates: int, most_pods: int) -> Case:
    """Small numbers, so that ties, exact fits and useless pods are common."""
    gpus = rng.choice([0, 1, 2, 4, 4, 8])
    tables = rng.randint(1, 2)
    ok = []
    for _ in range(tables):
        if rng.random() < 0.5:  # as a links rule: some sets, and all that contain one
            wanted = [rng.getrandbits(gpus) & rng.getrandbits(gpus) for _ in range(rng.randint(1, 3))]
            ok.append(bytes(any(mask & want == want for want in wanted) for mask in range(1 << gpus)))
        else:  # anything: a device plugin that picks badly makes more free GPUs worse
            share = rng.choice([0.1, 0.3, 0.8])
            ok.append(bytes(rng.random() < share for _ in range(1 << gpus)))
    resources = rng.randint(0, 3)
    counts = [min(most_pods, rng.choice([0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 9, 10])) for _ in range(candidates)]
    start = [sum(counts[:i]) for i in range(candidates + 1)]
    pods = start[-1]
    table = [rng.randint(-1, tables - 1) for _ in range(candidates)]
    masks, unsure = [0] * pods, [0] * pods
    free, unknown = [], []
    for i in range(candidates):
        left = [gpu for gpu in range(gpus) if rng.random() < 0.8]
        for pod in range(start[i], start[i + 1]):
            if rng.random() < 0.2:
                unsure[pod] = rng.randint(0, 2)
            elif rng.random() < 0.7:
                held = rng.sample(left, min(len(left), rng.choice([1, 1, 1, 2, 4])))
                masks[pod] = sum(1 << gpu for gpu in held)
                if rng.random() < 0.9:  # the rest share their GPUs
                    left = [gpu for gpu in left if gpu not in held]
        free.append(sum(1 << gpu for gpu in left if rng.random() < 0.5))
        most = sum(unsure[start[i] : start[i + 1]])
        unknown.append(rng.choice([0, 0, min(most, 1), most, most + rng.randint(0, 1)]))
    amounts: list[list[int]] = []
    short: list[list[int]] = []
    for r in range(resources):
        top = rng.choice([1, 3, 10, 1 << 44])
        if r == 0:
            amounts.append([mask.bit_count() + extra for mask, extra in zip(masks, unsure, strict=True)])
        else:
            amounts.append([rng.randint(0, top) for _ in range(pods)])
        short.append([])
        for i in range(candidates):
            total = sum(amounts[r][start[i] : start[i + 1]])
            short[r].append(rng.choice([-3, 0, total // 4, total // 2, total // 2 + 1, rng.randint(0, total + 1)]))
    terms: list[Term] = []
    for _ in range(rng.randint(0, 5)):
        form = rng.choice(["sum", "max", "group", "group", "gang", "gang", "mask"])
        if form in ("sum", "max"):
            low = 0 if form == "sum" else rng.choice([-5, 0, -(1 << 63)])
            column = [rng.randint(low, rng.choice([1, 4, 1 << 40])) for _ in range(pods)]
            lacking = [[rng.randint(0, 3) for _ in range(candidates)]] if form == "sum" and rng.random() < 0.4 else []
            terms.append((form, column, *lacking))
        elif form == "mask":
            terms.append((form, [[rng.randint(-2, 4) for _ in range(1 << gpus)] for _ in range(tables)]))
        else:
            terms.append(random_groups(rng, pods, form))
        if form in ("sum", "max", "gang") and rng.random() < 0.25:
            terms[-1] = ("below", rng.choice([0, 1, 3, 6, 1 << 39]), terms[-1])
    forced = [int(rng.random() < 0.08) for _ in range(pods)]
    return Case(start, short, amounts, masks, free, unknown, unsure, table, ok, forced, terms)


# --- exactness --------------------------------------------------------------------------------------------------------


seeds = st.integers(0, 2**32)


@settings(max_examples=min(2500, 8 * settings().max_examples))
@given(seeds, st.integers(0, 3))
def test_the_twin_finds_the_same(seed: int, nodes: int) -> None:
    case = random_case(Random(seed), nodes, most_pods=10)
    assert answer(solve(case)) == answer(slow(case))


@settings(max_examples=5 * settings().max_examples)
@given(seeds, st.integers(0, 6))
@example(186, 4)  # a candidate without a table, where the price of masks is 0, after two that have prices
def test_leaving_early_what_cannot_win_is_as_in_the_twin(seed: int, nodes: int) -> None:
    case = random_case(Random(seed), nodes, most_pods=4)
    fast = solve(case, skip=True)
    assert answer(fast) == answer(slow(case, skip=True))
    every = solve(case)
    assert all(kept == 4 or kept == known for kept, known in zip(fast.status, every.status, strict=True))


def test_time_that_is_up_gives_a_set_that_is_not_proved() -> None:
    rng = Random(3)
    weights = [rng.randint(1000, 2000) for _ in range(24)]
    case = counted([1] * 24, 12, [("sum", weights), ("sum", [weight * weight % 997 for weight in weights])])
    case.masks[:] = [0] * 24
    late = solve(case, budget=10**9, nanoseconds=1)
    assert late.status[0] in (1, 2)
    assert sum(late.chosen) >= 12


def test_a_search_stops_where_another_one_stopped_for_its_time() -> None:
    case = random_case(Random(5), candidates=96, most_pods=8)
    late = solve(case, nanoseconds=1)
    assert late.stopped == 1
    assert solve(case, stop=1) == late
    whole, later = solve(case), solve(case, stop=3)
    assert (whole.stopped, later.stopped) == (0, 3)
    assert sum(late.examined) < sum(later.examined) < sum(whole.examined)
    assert solve(case, nanoseconds=10**12) == whole


def test_a_budget_that_ends_gives_a_sufficient_set_and_says_that_nothing_is_proved() -> None:
    rng = Random(21)
    statuses = [0, 0, 0, 0]
    for _ in range(1500):
        case = random_case(rng, candidates=1, most_pods=10)
        budget = rng.choice([1, 2, 5, 20])
        found = solve(case, budget)
        status = found.status[0]
        statuses[status] += 1
        assert 1 <= found.examined[0] <= budget
        plain, chosen = listed(case), [pod for pod, mark in enumerate(found.chosen) if mark]
        if status in (1, 2):
            assert plain.suffices(0, chosen)
            assert tuple(found.cost) == plain.costs(0, chosen, case.terms)
        if status in (0, 1):
            assert answer(found) == answer(slow(case))
        if status == 2:
            assert found.examined[0] == budget
        if status == 3:
            assert not chosen
    assert min(statuses) > 5, "the cases no longer show all outcomes"


# --- what the answers are ---------------------------------------------------------------------------------------------


def counted(amounts: list[int], short: int, terms: list[Term], forced: list[int] | None = None) -> Case:
    """One node, one resource, no link rule."""
    zeros = [0] * len(amounts)
    pods = len(amounts)
    return Case([0, pods], [[short]], [amounts], zeros, [0], [0], zeros, [-1], [], forced or zeros, terms)


def test_nothing_short_costs_nothing() -> None:
    found = solve(counted([1, 1], 0, [("sum", [5, 5]), ("max", [1, 2])]))
    assert (list(found.chosen), list(found.cost), list(found.status)) == ([0, 0], [0, -(1 << 63)], [1])


def test_one_large_pod_against_two_small_ones() -> None:
    # Work lost: one pod of 2 GPUs with 10, or two pods of 1 GPU with 1 each: 1 + 1 = 2 < 10.
    found = solve(counted([2, 1, 1], 2, [("sum", [10, 1, 1])]))
    assert (list(found.chosen), list(found.cost)) == ([0, 1, 1], [2])
    # By the number of victims it is the large one.
    assert list(solve(counted([2, 1, 1], 2, [("sum", [1, 1, 1]), ("sum", [10, 1, 1])])).chosen) == [1, 0, 0]


def test_equals_spare_the_more_important_and_take_few() -> None:
    assert list(solve(counted([1, 1, 1], 2, [])).chosen) == [0, 1, 1]
    assert list(solve(counted([2, 1, 1], 2, [])).chosen) == [1, 0, 0]


def test_a_forced_pod_counts_and_pays() -> None:
    found = solve(counted([2, 1, 1], 3, [("sum", [10, 1, 2])], forced=[1, 0, 0]))
    assert (list(found.chosen), list(found.cost)) == ([1, 1, 0], [11])


def test_a_broken_gang_is_paid_once_and_its_members_not_again() -> None:
    # Gang 0 (pods 0, 1) may lose none and costs 100 with its members elsewhere; pod 2 is alone and costs 60.
    gang = ("gang", [0, 1, 2, 2], [0, 0], [0], [100], [30, 40, 60])
    assert list(solve(counted([1, 1, 1], 1, [gang])).cost) == [60]
    assert list(solve(counted([1, 1, 1], 2, [gang])).cost) == [100]
    # May it lose one, then pod 0's own 30 is all.
    spare = ("gang", [0, 1, 2, 2], [0, 0], [1], [100], [30, 40, 60])
    assert list(solve(counted([1, 1, 1], 1, [spare])).cost) == [30]


def test_a_role_below_its_minimum_breaks_the_whole_gang() -> None:
    # Gang 0 may lose two of its pods; of role 1 (pod 0, the head) none, of role 2 (pods 1 to 3) two.
    groups = [0, 2, 4, 6, 8], [0, 1, 0, 2, 0, 2, 0, 2], [2, 0, 2]
    broken, work = ("gang", *groups, [1, 0, 0]), ("gang", *groups, [100, 0, 0], [1, 20, 20, 20])
    assert list(solve(counted([1, 1, 1, 1], 1, [broken, work])).cost) == [0, 20]
    assert list(solve(counted([1, 1, 1, 1], 2, [broken, work])).cost) == [0, 40]
    assert list(solve(counted([1, 1, 1, 1], 2, [broken, work], forced=[1, 0, 0, 0])).cost) == [1, 100]


def test_where_a_pod_stands_in_the_walk_decides_who_violates() -> None:
    # Budget 0 allows one disruption, budget 1 none. Pod 1, in both, must go. With pod 0 it alone violates (both
    # budgets, counted once); with pod 2, which alone costs as much as pod 0, pod 1 violates 1 and pod 2 violates 0.
    budgets = ("group", [0, 1, 3, 4], [0, 0, 1, 0], [1, 0], [1, 1])
    found = solve(counted([1, 1, 1], 2, [budgets], forced=[0, 1, 0]))
    assert (list(found.chosen), list(found.cost)) == ([1, 1, 0], [1])


def test_the_mask_decides_which_gpus() -> None:
    # 4 one-GPU pods; the preemptor wants GPUs {0, 1} or {2, 3}. Cheapest pods are 1 and 2, but no pair joins them.
    ok = bytes(mask & 3 == 3 or mask & 12 == 12 for mask in range(16))
    case = Case([0, 4], [[2]], [[1] * 4], [1, 2, 4, 8], [0], [0], [0] * 4, [0], [ok], [0] * 4, [("sum", [5, 1, 1, 4])])
    found = solve(case)
    assert (list(found.chosen), list(found.cost)) == ([0, 0, 1, 1], [5])


def test_unknown_gpus_must_be_gone() -> None:
    ok = bytes(mask == 3 for mask in range(4))
    case = Case([0, 2], [[1]], [[1, 1]], [2, 0], [1], [1], [0, 1], [0], [ok], [0, 0], [])
    assert list(solve(case).chosen) == [1, 1]
    case.table = [-1]
    assert sum(solve(case).chosen) == 1
    case.table, case.unknown = [0], [2]
    assert list(solve(case).status) == [0]


def test_a_mask_price_may_ask_for_more_victims() -> None:
    # Leaving GPUs 0 and 1 free together is worth more than the second pod costs.
    ok = bytes([0, 1, 1, 1])
    masks: Term = ("mask", [[9, 9, 9, 0]])
    case = Case([0, 2], [[1]], [[1, 1]], [1, 2], [0], [0], [0, 0], [0], [ok], [0, 0], [masks, ("sum", [1, 1])])
    assert (list(solve(case).chosen), list(solve(case).cost)) == ([1, 1], [0, 2])
    case.terms.reverse()
    assert sum(solve(case).chosen) == 1


@pytest.mark.parametrize("seed", range(4))
def test_sixteen_one_gpu_pods_are_proved_within_the_budget(seed: int) -> None:
    rng = Random(seed)
    quads = [0x000F, 0x00F0, 0x0F00, 0xF000, 0x3333, 0x5A5A]
    if seed < 2:
        ok = bytes(any(mask & quad == quad for quad in quads) for mask in range(1 << 16))
    else:  # a rule without any order in it
        ok = bytes(mask.bit_count() >= 7 and rng.random() < 0.001 for mask in range(1 << 16))
    work = [rng.randint(1, 1000) if seed % 2 else 1 for _ in range(16)]
    groups: Term = ("group", list(range(17)), [pod % 5 for pod in range(16)], [1, 0, 2, 0, 1], [1] * 5)
    case = Case(
        [0, 16], [[4]], [[1] * 16], [1 << gpu for gpu in range(16)], [0], [0], [0] * 16, [0], [ok], [0] * 16,
        [groups, ("max", [rng.randint(0, 3) for _ in range(16)]), ("sum", work)],
    )  # fmt: skip
    found = solve(case)
    assert found.status[0] == 1
    key = []
    for mask in range(1 << 16):
        if ok[mask] and mask.bit_count() >= 4:
            pods = [pod for pod in range(16) if mask >> pod & 1]
            over = [max(0, sum(pod % 5 == g for pod in pods) - [1, 0, 2, 0, 1][g]) for g in range(5)]
            key.append((sum(over), max(case.terms[1][1][pod] for pod in pods), sum(work[pod] for pod in pods)))
    assert tuple(found.cost) == min(key)


# --- kube-scheduler's count -------------------------------------------------------------------------------------------


def test_a_pod_in_two_budgets_violates_once() -> None:
    # Budgets 0 and 1 allow one disruption each. Pod 0 uses up both; pods 1 and 2 find one used up; pod 3 has none.
    memberships: list[list[int]] = [[0, 1], [0], [0, 1], []]
    assert victims.kube_pdb_violations([0, 1, 2, 3], memberships, [1, 1]) == 2
    # In another order: pod 1 uses up 0, pod 0 finds 0 used up and takes 1, pod 2 finds both used up.
    assert victims.kube_pdb_violations([1, 0, 2], memberships, [1, 1]) == 2
    assert victims.kube_pdb_violations([], memberships, [1, 1]) == 0


@given(st.data())
def test_kube_count_is_the_twin_and_the_group_term(data: st.DataObject) -> None:
    allowance = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    pod = st.lists(st.integers(0, len(allowance) - 1), unique=True)
    memberships = data.draw(st.lists(pod, max_size=8))
    order = sorted(data.draw(st.sets(st.sampled_from(range(len(memberships)))))) if memberships else []
    count = victims.kube_pdb_violations(order, memberships, allowance)
    assert count == twin.kube_pdb_violations(order, memberships, allowance)
    start = [sum(map(len, memberships[:i])) for i in range(len(memberships) + 1)]
    member = [group for groups in memberships for group in groups]
    forced = [int(i in order) for i in range(len(memberships))]
    term = ("group", start, member, allowance, [1] * len(allowance))
    assert list(solve(counted([0] * len(memberships), 0, [term], forced)).cost) == [count]


# --- bad input --------------------------------------------------------------------------------------------------------


def broken_case(**changes: Any) -> Case:
    case = counted([1, 2], 1, [("sum", [1, 1])])
    for name, value in changes.items():
        setattr(case, name, value)
    return case


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (broken_case(start=[]), "begin with 0"),
        (broken_case(start=[1, 2]), "begin with 0"),
        (broken_case(start=[0, 3, 2]), "falls"),
        (broken_case(amounts=[[1, -2]]), "negative at pod 1"),
        (broken_case(unsure=[0, -1]), "unsure is negative"),
        (broken_case(unknown=[-1]), "unknown is negative"),
        (broken_case(table=[0]), "table 0 of 0"),
        (broken_case(ok=[b"\0\1\1"]), "3 items"),
        (broken_case(ok=[b"\2"]), "neither 0 nor 1"),
        (broken_case(ok=[b"\1\1"], table=[0], masks=[2, 0]), "beyond"),
        (broken_case(terms=[("cheap", [1, 1])]), "not a cost term"),
        (broken_case(terms=[("sum", [1])]), "has 1 items, not 2"),
        (broken_case(terms=[("sum", [1, -1])]), "negative"),
        (broken_case(terms=[("group", [0, 1, 2], [0, 1], [0], [1])]), "group 1 of 1"),
        (broken_case(terms=[("group", [0, 2, 2], [0, 0], [0], [1])]), "twice"),
        (broken_case(terms=[("group", [0, 2, 1], [0], [0], [1])]), "falls"),
        (broken_case(terms=[("group", [0, 0, 0], [0], [0], [1])]), "does not span"),
        (broken_case(terms=[("group", [0, 0, 0], [], [0], [-1])]), "negative price"),
        (broken_case(terms=[("gang", [0, 2, 4], [0, 2, 1, 2], [0, 0, 0], [9, 9, 9])]), "more than one gang"),
        (broken_case(terms=[("gang", [0, 2, 3], [0, 1, 1], [0, 0], [9, 9])]), "more than one gang"),
        (broken_case(terms=[("gang", [0, 1, 2], [0, 0], [0], [3], [2, 2])]), "less than its members"),
        (broken_case(terms=[("mask", [[0]])]), "list of tables has 1"),
    ],
)
def test_columns_that_do_not_fit_are_rejected(case: Case, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        solve(case)


def test_columns_keep_their_lengths() -> None:
    made = candidates(broken_case())
    with pytest.raises(ValueError, match="resources"):
        Candidates(array("i", [0]), -1)
    for name in ("start", "free", "unknown", "table", "masks", "unsure", "forced"):
        with pytest.raises(BufferError):
            getattr(made, name).append(0)
    made.start[1] = 1  # it may be written, so the search looks again
    with pytest.raises(ValueError, match="does not span"):
        victims.cheapest(made, [], BUDGET)


def test_sums_beyond_64_bits_are_rejected() -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        solve(broken_case(terms=[("sum", [1 << 62, 1 << 62])]))
    with pytest.raises(OverflowError, match="64 bits"):
        solve(broken_case(terms=[("group", [0, 1, 2], [0, 0], [0], [1 << 62])]))


def test_a_budget_below_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="budget"):
        solve(broken_case(), 0)


def test_no_candidates() -> None:
    found = solve(Case([0], [[]], [[]], [], [], [], [], [], [], [], [("sum", [])]))
    assert (list(found.chosen), list(found.cost), list(found.status)) == ([], [], [])
