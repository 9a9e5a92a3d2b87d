"""Real outputs against what was read off them by hand, and damaged ones: a clear word, never a shifted row."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.errors import BadTopology
from extender.topologies import load
from extender.topologies.reading import Reading, with_product

SAMPLES = Path(__file__).parent / "samples"
INDEX: list[dict[str, Any]] = json.loads((SAMPLES / "index.json").read_text())["samples"]
FILES = [sample["file"] for sample in INDEX]
NVIDIA = [name for name in FILES if not name.endswith("showtopo.txt")]


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def read(text: str) -> Reading:
    return load.read(text.encode())


def codes(reading: Reading) -> list[str]:
    return [warned.code for warned in reading.warnings]


@pytest.mark.parametrize("entry", INDEX, ids=FILES)
def test_every_sample_as_it_was_read_by_hand(entry: dict[str, Any]) -> None:
    found = read(sample(entry["file"]))
    expect = entry["expect"]
    pairs = list(combinations(range(found.gpus), 2))
    assert found.gpus == entry["gpus"]
    assert all(found.links[gpu][gpu] == 0 and found.pcie[gpu][gpu] == "X" for gpu in range(found.gpus))
    if "nv" in expect:
        number = int(expect["nv"].split()[0][2:])
        assert {found.links[a][b] for a, b in pairs} == {number}
        assert (found.kind, found.scope) == ("nvlink", "gpu-total")
    if "nvlink_edges" in expect:
        assert sorted([a, b, found.links[a][b]] for a, b in pairs if found.links[a][b] != 0) == sorted(
            expect["nvlink_edges"]
        )
        assert (found.kind, found.scope) == ("nvlink" if expect["nvlink_edges"] else None, "pair")
    if "numa" in expect:
        said = {gpu: int(node) for node, gpus in expect["numa"].items() for gpu in gpus}
        known = [node[0] if isinstance(node, tuple) else node for node in found.numa]
        bad = [int(row[3:]) for row in expect.get("must_reject_or_flag", ()) if row.startswith("GPU")]
        assert known == [None if gpu in bad else said[gpu] for gpu in range(found.gpus)]
    if "pcie_groups" in expect:
        near = [[a, b] for a, b in pairs if found.pcie[a][b] in ("PIX", "PXB")]
        assert near == expect["pcie_groups"]
    if "pcie_nic" in expect:
        assert {nic.name: list(nic.nearest or ()) for nic in found.nics} == expect["pcie_nic"]
    if expect.get("pcie_only"):
        assert {found.links[a][b] for a, b in pairs} == {None}
        assert (found.kind, found.scope, found.source_format) == (None, None, "nvidia-smi topo -mp")
    for row in expect.get("must_reject_or_flag", ()):
        assert any(w.code == "row-damaged" and w.message.startswith(f"row {row}: ") for w in found.warnings)
    if expect.get("xgmi") == "all pairs":
        assert all(found.links[a][b] for a, b in pairs)
        assert found.kind == "xgmi"


def test_only_samples_with_something_odd_are_warned_of() -> None:
    warned = {name: codes(read(sample(name))) for name in FILES}
    assert {name: found for name, found in warned.items() if found} == {
        "amd-mi300a-4gpu.showtopo.txt": ["link-count-unknown"],
        "dgx1-topo-mp-8gpu-4nic.txt": ["links-hidden"],
        "dgx2-16gpu-10nic.partial.txt": ["rows-missing", "links-derived"],
        "hgx-nv18-8gpu-12nic-malformed.txt": ["row-damaged", "row-damaged"],
        "l4-8gpu-phb.txt": ["no-legend"],
        "rtxpro6000-6gpu-pix-pairs.txt": ["no-legend"],
    }


def test_numa_lists_and_what_a_shape_takes_of_them() -> None:
    tray = read(sample("gb200-tray-4gpu-8nic.txt"))
    assert tray.numa[0] == (0, *range(3, 10), *range(11, 18))
    assert tray.known_numa() == (0, 0, 1, 1)
    machine = read(sample("v100-8gpu-vm-phb.txt"))
    assert machine.numa == ((0, 1),) * 8
    assert machine.known_numa() is None  # the virtual machine hides it


def test_nics_have_their_devices_names() -> None:
    names = [nic.name for nic in read(sample("hgx-b300-8gpu-9nic-ansi-header.txt")).nics]
    assert names == [f"mlx5_{number}" for number in range(10, 18)] + ["mlx5_bond_0"]
    twelve = read(sample("dgx-a100-8gpu-12nic.txt")).nics
    assert [nic.name for nic in twelve] == [f"mlx5_{number}" for number in range(12)]
    assert twelve[4].nearest == tuple(range(8))  # SYS to all: all are as near


def test_nics_where_a_row_is_gone() -> None:
    nics = {nic.name: nic.nearest for nic in read(sample("hgx-nv18-8gpu-12nic-malformed.txt")).nics}
    assert nics["mlx5_8"] == (6,)
    assert nics["mlx5_7"] is None  # of GPU5 and NIC7 both rows are damaged
    assert nics["mlx5_5"] == (3,)  # GPU5's own row is gone, the NIC's row tells


# ---- variants of a good text


def test_commented_quoted_and_windows_lines() -> None:
    text = sample("dgx1-v100-8gpu-4ib.txt")
    expected = read(text)
    for mark in ("# ", "#", "> ", "; ", "// "):
        assert read("".join(f"{mark}{line}\n" for line in text.splitlines())) == expected
    assert read(text.replace("\n", "\r\n")) == expected
    assert load.read(b"\xff\xfe" + text.encode("utf-16-le")) == expected
    assert read(text.expandtabs()) == expected
    assert read(re.sub(r"[ \t]+", " ", text)) == expected


def test_one_space_between_the_last_cells() -> None:
    text = sample("hgx-h200-8gpu-8nic.txt")
    assert read(text.replace("\t\tN/A", " N/A")).numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert read(re.sub(r"\t+(\d)\t\tN/A", r"   \1 N/A", text.expandtabs())).numa == (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize("name", ["hgx-h200-8gpu-8nic.txt", "hgx-b300-8gpu-9nic-ansi-header.txt"])
def test_an_empty_affinity_cell_shifts_nothing(name: str) -> None:
    text = re.sub(r"\t[\d,-]+\t(\d)\t\tN/A", r"\t\t\1\t\tN/A", sample(name))
    for variant in (text, text.expandtabs()):
        found = read(variant)
        assert found.numa == (0, 0, 0, 0, 1, 1, 1, 1)
        assert found.links == read(sample(name)).links


def test_columns_in_any_order() -> None:
    text = "\tmlx5_0\tGPU1\tGPU0\tCPU Affinity\nGPU0\tPIX\tNV2\t X \t0-9\nGPU1\tSYS\t X \tNV2\t0-9\n"
    found = read(text)
    assert found.links == ((0, 2), (2, 0))
    assert [(nic.name, nic.nearest) for nic in found.nics] == [("mlx5_0", (0,))]


@pytest.mark.parametrize("gpus", range(1, 17))
def test_one_to_sixteen_gpus(gpus: int) -> None:
    header = "\t".join(f"GPU{i}" for i in range(gpus))
    rows = "".join(
        f"GPU{i}\t" + "\t".join(" X " if i == j else "NODE" for j in range(gpus)) + "\t0-9\t0\n" for i in range(gpus)
    )
    text = f"\t{header}\tCPU Affinity\tNUMA Affinity\n{rows}"
    for variant in (text, text.expandtabs()):
        found = read(variant)
        assert (found.gpus, found.numa) == (gpus, (0,) * gpus)
        assert found.known_pcie() is not None


def test_lines_of_nvidia_smi_l_give_uuids_and_the_speed() -> None:
    text = sample("a100-4gpu-degraded-nv10.txt")
    listed = "".join(f"GPU {i}: NVIDIA A100 80GB PCIe (UUID: GPU-0000000{i}-aaaa)\n" for i in range(4))
    found = with_product(read(listed + text), None)
    assert found.uuids == tuple(f"GPU-0000000{i}-aaaa" for i in range(4))
    assert (found.product, found.gbps) == ("NVIDIA-A100-80GB-PCIe", 25.0)
    assert codes(read(listed.replace("GPU 3:", "GPU 4:") + text)) == ["uuids-unclear"]
    assert codes(read(listed.replace("A100", "H100", 1) + text)) == ["mixed-products"]


def test_lines_of_nvlink_s_give_the_speed() -> None:
    text = sample("rtxa6000-3gpu.txt")
    status = "\t Link 0: 14.062 GB/s\n\t Link 1: 14.062 GB/s\n"
    assert read(status + text).gbps == 14.062
    assert read(status.replace("14", "25", 1) + text).gbps is None  # of two speeds none is the links' speed


def test_prose_that_names_gpus_is_no_header() -> None:
    text = sample("rtxa6000-3gpu.txt")
    assert read("GPU0 GPU1 are bridged\nGPU2 is alone\nfree: GPU0\n" + text) == read(text)


def test_links_and_paths_in_one_text() -> None:
    links, paths = sample("dgx1-v100-8gpu-4ib.txt"), sample("dgx1-topo-mp-8gpu-4nic.txt")
    both = read(links + paths)
    assert both.links == read(links).links
    assert both.known_pcie() == read(paths).known_pcie()
    assert both.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    with pytest.raises(BadTopology, match="2 GPU matrices"):
        read(links + links)
    with pytest.raises(BadTopology, match="2 GPU matrices"):
        read(links + sample("perlmutter-a100-4gpu-nonic.txt"))


def test_a_table_of_peer_access_beside_it_is_not_read() -> None:
    peers = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tOK\n GPU1\tOK\tX\tCNS\n GPU2\tOK\tCNS\tX\n"
    text = sample("rtxa6000-3gpu.txt")
    assert read(peers + text) == read(text + peers) == read(text)
    with pytest.raises(BadTopology, match="no line of it"):
        read(peers)


def test_a_gpu_off_the_fabric_and_mixed_models() -> None:
    rows = [["X" if i == j else "SYS" if 2 in (i, j) else "NV18" for j in range(4)] for i in range(4)]
    off = read(matrix(rows))
    assert (off.scope, codes(off)) == ("gpu-total", ["off-fabric"])
    assert off.groups() == ([[0, 1, 3]], [[0, 1, 3], [2]])
    mixed = read(matrix([["X", "NV12", "PHB"], ["NV12", "X", "PHB"], ["PHB", "PHB", "X"]]))
    assert (mixed.scope, codes(mixed)) == ("pair", [])


def test_what_a_number_means_where_two_machines_are_possible() -> None:
    text = matrix([["X" if i == j else "NV6" for j in range(4)] for i in range(4)])
    found = read(text)  # HGX H100 with 4 GPUs, or 4 GPUs of a DGX-2
    assert (found.scope, codes(found)) == ("pair", ["link-scope-assumed"])
    pair = with_product(found, "NVIDIA H100 80GB HBM3")
    assert (pair.scope, codes(pair)) == ("pair", [])
    switch = with_product(found, "Tesla-V100-SXM3-32GB")
    assert (switch.scope, codes(switch)) == ("gpu-total", [])


def test_a_product_with_links_that_shows_none() -> None:
    found = with_product(read(sample("pcie-8gpu-pix-pairs.txt")), "NVIDIA-A100-SXM4-80GB")
    assert (codes(found), found.gbps) == (["links-down"], None)
    with pytest.raises(BadTopology, match="did you mean"):
        with_product(found, "A100-SXM4-80G")


# ---- damage


def matrix(rows: list[list[str]]) -> str:
    header = "\t" + "\t".join(f"GPU{i}" for i in range(len(rows)))
    return "\n".join([header, *(f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(rows))]) + "\n"


def never_shifted(found: Reading, whole: Reading, *, numa: bool = True) -> None:
    """Whatever was saved is what the whole text says; the rest is unknown."""
    assert found.gpus == whole.gpus
    for mine, true in ((found.links, whole.links), (found.pcie, whole.pcie)):
        for a in range(whole.gpus):
            for b in range(whole.gpus):
                assert mine[a][b] in (None, true[a][b])
    if numa:
        assert all(mine in (None, true) for mine, true in zip(found.numa, whole.numa, strict=True))


@pytest.mark.parametrize("name", NVIDIA)
def test_truncated_at_every_line_and_inside_lines(name: str) -> None:
    text = sample(name)
    whole = read(text)
    ends = [found.end() for found in re.finditer(r"\n", text)]
    for end in sorted({*ends, *range(0, len(text), 37)}):
        try:
            found = read(text[:end])
        except BadTopology:
            continue
        if found.gpus != whole.gpus or (found.links, found.pcie) != (whole.links, whole.pcie):
            assert found.warnings or found.gpus < whole.gpus
        if found.gpus == whole.gpus and "no-legend" not in codes(found):
            never_shifted(found, whole, numa=end in ends)  # half a list of nodes looks like a list


@pytest.mark.parametrize("name", NVIDIA)
@pytest.mark.parametrize("glue", ["gone", "glued"])
def test_a_cell_that_is_lost_or_glued_is_refused_by_the_rows_name(name: str, glue: str) -> None:
    text = sample(name)
    whole = read(text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        words = list(re.finditer(r"\S+", line))
        if not words or not re.fullmatch(r"GPU\d+", words[0][0]) or words[1][0].startswith("GPU"):
            continue
        row = words[0][0]
        for place in range(1, whole.gpus):
            start, end = words[place].span()
            cut = line[:start] + line[end:].lstrip() if glue == "gone" else line[:end] + line[end:].lstrip()
            found, error = attempt("\n".join([*lines[:number], cut, *lines[number + 1 :]]).encode())
            if found is None:
                assert row in error
                continue
            assert any(w.message.startswith(f"row {row}: ") for w in found.warnings), cut
            never_shifted(found, whole)


def attempt(raw: bytes) -> tuple[Reading | None, str]:
    """The reading, or why there is none. Any other exception is a defect."""
    try:
        return load.read(raw), ""
    except BadTopology as error:
        return None, str(error)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_end_in_a_traceback(data: st.DataObject) -> None:
    raw = bytearray((SAMPLES / data.draw(st.sampled_from(FILES))).read_bytes())
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    found, error = attempt(bytes(raw))
    assert error if found is None else found.as_json()


@given(st.binary(max_size=300))
def test_any_bytes_at_all(raw: bytes) -> None:
    with pytest.raises(BadTopology):
        load.read(raw)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it is empty"),
        ("No devices were found", "no line of it is the header"),
        ("\tGPU0\tGPU1\n", "no row of a GPU can be used"),
        ("\tGPU0\tGPU2\nGPU0\tX\tNV1\n", "header: GPU1 is missing among 2 GPUs"),
        ("\tGPU0\tGPU0\nGPU0\tX\tNV1\n", "header: two columns are called GPU0"),
        ("\tGPU0\tGPU1\tSome Title\nGPU0\tX\tNV1\n", "header: 'Some' is not a column that is known"),
        (matrix([["X", "NV1"], ["NV2", "X"]]), "row GPU1: NV2 to GPU0, but row GPU0 has NV1 back"),
        (matrix([["X", "NV1"], ["SYS", "X"]]), "row GPU1: SYS to GPU0, but row GPU0 has NV1 back"),
        ("\tGPU0\nGPU0\tX\nGPU1\tNV1\n", "row GPU1: the header has no such column"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU0\tX\tNV2\n", "row GPU0: stands twice"),
        ("\t" + "\t".join(f"GPU{i}" for i in range(17)) + "\nGPU0\tX\n", "header: 17 GPUs; from 1 to 16 are read"),
        ("\tGPU0\tGPU1\nGPU0\tNV1\tX\nGPU1\tX\tNV1\n", "row GPU0: NV1 under GPU0"),
    ],
)
def test_refused_with_a_clear_word(text: str, error: str) -> None:
    with pytest.raises(BadTopology) as refused:
        read(text)
    assert error in str(refused.value)


def test_paths_that_differ_by_direction_are_unknown() -> None:
    found = read(matrix([["X", "PIX", "SYS"], ["PHB", "X", "SYS"], ["SYS", "SYS", "X"]]))
    assert found.pcie[0][1] is None
    assert found.links[0][1] == 0
    assert "asymmetric" in codes(found)


def test_pairs_without_a_row_are_unknown_unless_a_switch_joins_them() -> None:
    text = sample("h100-nvl-8gpu-4pairs.txt")
    cut = read(text[: text.index("GPU5 ", text.index("\nGPU4 "))])
    assert cut.links[6][7] is None
    assert cut.links[4][5] == 12
    assert cut.groups() == (None, None)
    assert codes(cut) == ["rows-missing"]
