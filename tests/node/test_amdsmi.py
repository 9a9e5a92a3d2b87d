"""The view of a node with AMD's GPUs, from a library that is played."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import pytest

from extender.cli import agent as cli
from extender.errors import BadTopology
from extender.node import amdsmi, commands
from extender.node.nvml import NoDriver
from extender.sim.machines import machine
from extender.topologies import annotation
from extender.topologies.topology import Topology
from tests.node.fake_amdsmi import AmdSmiIoLinkType, FakeAmdsmi

MI250X = machine("mi250x-8gcd")


def view(library: FakeAmdsmi, product: str | None = None, gbps: float | None = None) -> Topology:
    seen = commands.complete(amdsmi.read(library, product), product, gbps)
    assert library.open == 0
    return seen


@pytest.mark.parametrize("name", ["mi250x-8gcd", "mi300x-8", "mi210-8", "mi250-16gcd"])
@pytest.mark.parametrize("all_one_hop", [False, True])
def test_it_tells_what_the_catalogue_has(name: str, all_one_hop: bool) -> None:
    """Also where the driver calls every path one hop: no bandwidth, no link."""
    what = machine(name)
    seen = view(FakeAmdsmi(what, all_one_hop=all_one_hop))
    assert (seen.links, seen.gbps, seen.kind, seen.gpu_total) == (what.links, what.gbps, "xgmi", False)
    assert seen.numa == what.numa
    assert seen.uuids == tuple(f"0000:{16 + gpu:02x}:00.0" for gpu in range(what.gpus))
    assert seen.health == (True,) * what.gpus
    assert annotation.decode(annotation.encode(seen)) == seen


def test_without_bandwidths_the_product_counts_the_links() -> None:
    """By its name in the library, if the catalogue knows that; else a view needs a word."""
    known = FakeAmdsmi(MI250X, bandwidth=False)
    assert (view(known).links, view(known).gbps) == (MI250X.links, 50.0)
    nameless = FakeAmdsmi(machine({"gpus": 8, "links": MI250X.links, "link_kind": "xgmi"}), bandwidth=False)
    assert [warned.code for warned in amdsmi.read(nameless).warnings] == ["link-count-unknown"]
    with pytest.raises(BadTopology, match="--gbps"):
        view(nameless)
    assert view(nameless, gbps=40).links == tuple(tuple(map(bool, row)) for row in MI250X.links)


def test_the_products_speed_comes_before_the_drivers() -> None:
    library = FakeAmdsmi(machine("mi300x-8"))
    library.speed = 50.0
    assert view(library).gbps == 64.0
    nameless = FakeAmdsmi(machine({"gpus": 8, "links": MI250X.links, "link_kind": "xgmi"}))
    nameless.speed = 50.0
    assert (view(nameless).links, view(nameless).gbps) == (MI250X.links, 50.0)
    assert view(nameless, "AMD_Instinct_MI300X_OAM").gbps == 64.0
    assert view(nameless, gbps=40).gbps == 40


def test_the_older_names_of_link_types() -> None:
    library = FakeAmdsmi(MI250X)
    library.AmdSmiIoLinkType = AmdSmiIoLinkType  # type: ignore[attr-defined]
    # In these releases the other list has other numbers, and is not meant.
    library.AmdSmiLinkType = {}  # type: ignore[assignment]
    assert view(library).links == MI250X.links


def test_what_fails() -> None:
    """A GPU that is lost stays, without links; a link that one side does not see is none."""
    library = FakeAmdsmi(MI250X)
    library.down.add((0, 1))
    library.lost.add(4)
    seen = view(library)
    assert seen.health == (True,) * 4 + (False,) + (True,) * 3
    assert seen.links is not None
    assert (seen.links[0][1], seen.links[1][0], seen.links[2][3]) == (0, 0, MI250X.links[2][3])
    assert not any(seen.links[4])
    fewer = [list(row) for row in MI250X.links]
    fewer[0][1] = fewer[1][0] = MI250X.links[0][1] - 1
    assert view(FakeAmdsmi(replace(MI250X, links=tuple(map(tuple, fewer))))).links == tuple(map(tuple, fewer))
    assert seen.numa is not None
    assert (seen.numa[4], seen.numa[5]) == (None, 0)


def test_partitions_have_no_ids() -> None:
    library = FakeAmdsmi(MI250X)
    library.buses = [f"0000:{16 + gpu // 4:02x}:00.{gpu % 4}" for gpu in range(8)]
    assert view(library).uuids is None


def test_gpus_without_links_and_numa() -> None:
    seen = view(FakeAmdsmi(machine(None, 4)))
    assert (seen.links, seen.kind, seen.numa) == (((0,) * 4,) * 4, None, None)


def test_no_driver() -> None:
    class Broken(FakeAmdsmi):
        def amdsmi_init(self) -> None:
            raise self.AmdSmiException("driver not loaded")

    with pytest.raises(NoDriver, match="not loaded"):
        amdsmi.read(Broken(MI250X))
    with pytest.raises(NoDriver, match="no GPU"):
        amdsmi.read(FakeAmdsmi(machine(None, 0)))
    with pytest.raises(NoDriver, match="amdsmi"):
        amdsmi.read()  # not installed here


@pytest.mark.parametrize("works", [True, False])
def test_auto_asks_the_library_and_then_the_command(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine is neither driver: AMD's library is played, or not there."""
    asked: list[str] = []

    def command(product: str | None, gbps: float | None, *, vendor: str) -> Topology:
        asked.append(vendor)
        return Topology(1, ((0,),), detail="from the text")

    def absent(name: str) -> object:
        raise ImportError(name)

    def there(names: Sequence[str]) -> FakeAmdsmi:
        return FakeAmdsmi(MI250X)

    monkeypatch.setattr(amdsmi, "import_module", there if works else absent)
    monkeypatch.setattr(commands, "read", command)
    parser = argparse.ArgumentParser()
    cli.arguments(parser)
    seen = cli._view(parser.parse_args([]))()
    assert (seen.gpus, asked) == ((8, []) if works else (1, [""]))
    if works:
        assert cli._view(parser.parse_args(["--source", "amdsmi"]))().gpus == 8
