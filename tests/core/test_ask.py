"""The request and the reason codes as the kernels read them."""

from __future__ import annotations

import pytest

from ext_core.ask import Ask
from ext_core.reasons import CountCodes, FailingCodes, HazardCodes, LinkCodes, ResourceCodes


def test_the_resource_with_most_units_counts_for_links() -> None:
    ask = Ask((4000, 1 << 30, 1, 2, 4), priority=7, links="required", namespace="team")
    assert (ask.resource, ask.wanted, ask.share, ask.containers) == (4, 4, 1, 1)
    assert (ask.amounts, ask.priority, ask.links, ask.namespace) == ((4000, 1 << 30, 1, 2, 4), 7, "required", "team")


def test_of_two_resources_with_as_many_units_the_first_counts() -> None:
    assert Ask((0, 0, 1, 2, 2)).resource == 3


def test_a_share_counts_gpus_and_not_units() -> None:
    assert Ask((0, 0, 1, 1000), share=250).wanted == 4  # 4 GPUs, 250 units of each


def test_no_gpus() -> None:
    ask = Ask((100, 1, 1, 0, 0))
    assert (ask.resource, ask.wanted) == (-1, 0)


def test_a_number_that_no_machine_has_is_cut() -> None:
    assert Ask((0, 0, 1, 2**60)).wanted == 2**31 - 1


@pytest.mark.parametrize("links", ["required", "preferred", "ignore"])
def test_links_keep_their_word(links: str) -> None:
    assert Ask((0, 0, 1), links=links).links == links


def test_an_ask_that_no_table_fits_is_an_error() -> None:
    for amounts, share, links in (((0, 0), 1, "ignore"), ((0, 0, 1), 0, "ignore"), ((0, 0, 1), 1, "strict")):
        with pytest.raises(ValueError, match="Ask"):
            Ask(amounts, share, links=links)
    for too_much, priority in ((2**63, 0), (0, 2**31)):
        with pytest.raises(OverflowError):
            Ask((too_much, 0, 1), priority=priority)


def test_codes_are_kept_by_name() -> None:
    count, links = CountCodes(10, 11, 12, 13, 14, 15), LinkCodes(20, 21, 22, 23, 24)
    assert (count.few, count.assumed, count.reserved, count.releasing, count.busy, count.held) == (*range(10, 16),)
    assert (links.unknown, links.never, links.pending, links.busy, links.held) == (20, 21, 22, 23, 24)
    resource, hazard, failing = ResourceCodes(2, 3), HazardCodes(60, 61), FailingCodes(4, 5)
    assert (resource.none, resource.away, hazard.panics, hazard.lost) == (2, 3, 60, 61)
    assert (failing.node, failing.namespace) == (4, 5)


def test_code_0_is_no_reason() -> None:
    for kind, size in ((ResourceCodes, 2), (CountCodes, 6), (LinkCodes, 5), (HazardCodes, 2), (FailingCodes, 2)):
        for zero in range(size):
            with pytest.raises(ValueError, match="1 to 255"):
                kind(*(0 if i == zero else 1 for i in range(size)))
        with pytest.raises(OverflowError):
            kind(*[256] * size)


def test_how_long_it_waits() -> None:
    asked = Ask((4000, 1 << 30, 1, 8), priority=7).with_nics("required").waiting(600).as_planned()
    assert (asked.most_wait, asked.nics, asked.planned, asked.priority) == (600, "required", True, 7)
    assert (Ask((0, 0, 1)).most_wait, asked.with_nics("ignore").most_wait) == (0, 600)


@pytest.mark.parametrize("nics", ["required", "preferred", "ignore"])
def test_nics(nics: str) -> None:
    plain = Ask((4000, 1 << 30, 1, 8), 2, 3, 7, "required", "team")
    asked = plain.with_nics(nics)
    assert (plain.nics, asked.nics) == ("ignore", nics)
    assert (asked.amounts, asked.share, asked.containers) == (plain.amounts, 2, 3)
    assert (asked.priority, asked.links, asked.namespace, asked.wanted) == (7, "required", "team", 4)
    with pytest.raises(ValueError, match="of NICs"):
        plain.with_nics("some")
