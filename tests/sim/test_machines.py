"""Machines of the catalogue as nodes: what the server reads from them is what they are."""

from __future__ import annotations

import pytest

from extender.sim.machines import SimNode, gpu_uuid, machine
from extender.topologies import resolve

USED = ("dgx1-v100", "dgx-h100", "a100-pcie-4", "gb200-nvl72-tray")


@pytest.mark.parametrize("topology", USED)
@pytest.mark.parametrize("annotate", [True, False])
def test_the_server_reads_the_graph_that_the_machine_has(topology: str, annotate: bool) -> None:
    what = machine(topology)
    made = SimNode("n", what, annotate=annotate).object()
    read = resolve(made["metadata"]["annotations"], made["metadata"]["labels"], what.gpus)
    assert read.links == what.links
    assert read.gpu_total == (what.scope == "gpu-total")
    assert read.source == ("annotation" if annotate else "catalogue")
    if annotate:
        assert read.uuids == tuple(gpu_uuid("n", index) for index in range(what.gpus))


@pytest.mark.parametrize(
    ("gpus", "linked"),
    [
        ({0, 1, 2, 3}, True),  # a fully linked half
        ({0, 2, 4, 5}, False),  # 2-0-4-5 is a chain: 2 and 5 are not joined
        ({0, 1, 4, 5}, True),  # 0-1-5-4-0
        ({0, 5}, False),
        ({0, 4}, True),
        ({6}, True),
        (set(range(8)), True),
    ],
)
def test_rings_of_a_dgx_1v(gpus: set[int], linked: bool) -> None:
    assert machine("dgx1-v100").linked(frozenset(gpus)) is linked


def test_bridged_pairs_have_no_ring_of_four() -> None:
    pairs = machine("a100-pcie-4")
    assert pairs.linked(frozenset({0, 1}))
    assert not pairs.linked(frozenset({0, 1, 2, 3}))


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(KeyError):
        machine("abacus")
