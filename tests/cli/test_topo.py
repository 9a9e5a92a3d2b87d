"""`gpu-extender topo`: JSON keys, exit codes, the annotation, the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.cli import main
from extender.topologies import annotation
from tests.cli.canned import Cli

SAMPLES = Path(__file__).parent.parent / "topologies" / "samples"
FILES = sorted(path.name for path in SAMPLES.glob("*.txt"))
KEYS = {
    *("apiVersion", "kind", "warnings", "gpus", "links", "link_kind", "link_scope", "gbps_per_link_per_direction"),
    *("pcie", "numa", "nics", "uuids", "islands", "components", "source_format"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_sample(name: str, cli: Cli) -> None:
    said = cli.json(["topo", str(SAMPLES / name), "-o", "json"])
    assert set(said) == KEYS
    assert (said["apiVersion"], said["kind"]) == ("gpu-extender.io/v1", "Topology")
    count = len(said["gpus"])
    assert said["gpus"] == list(range(count))
    assert all(len(said[key]) == count for key in ("links", "pcie", "numa", "uuids"))
    assert said["gbps_per_link_per_direction"] is None  # no text tells it
    assert all(set(warned) == {"code", "message"} for warned in said["warnings"])
    assert f"{count} GPUs" in cli.out(["topo", str(SAMPLES / name), "-o", "text"])


def test_text_is_the_default_also_in_a_pipe(cli: Cli) -> None:
    assert cli.out(["topo", "catalogue:dgx1-v100"]) == cli.out(["topo", "catalogue:dgx1-v100", "-o", "text"])
    words = ["fit", "--topo", "catalogue:dgx1-v100", "--gpus", "2"]
    assert cli.out(words) == cli.out([*words, "-o", "text"])


def test_standard_input(cli: Cli) -> None:
    text = (SAMPLES / "h100-nvl-8gpu-4pairs.txt").read_bytes()
    status, out, err = cli.run(["topo", "-", "-o", "json"], text)
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert said["islands"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (said["link_kind"], said["link_scope"], said["links"][0][1]) == ("nvlink", "pair", 12)
    assert said["pcie"][0][:3] == ["X", None, "NODE"]


def test_the_annotation_is_what_a_node_can_carry(cli: Cli) -> None:
    file = str(SAMPLES / "hgx-h200-8gpu-8nic.txt")
    status, out, err = cli.run(["topo", file, "-o", "annotation", "--product", "NVIDIA-H200"])
    assert (status, err, out.count("\n")) == (0, "", 1)
    said = annotation.decode(out)
    assert (said.gpus, said.gpu_total, said.kind, said.gbps) == (8, True, "nvlink", 25.0)
    assert said.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    again, value, _ = cli.run(["topo", "-", "-o", "annotation"], out.encode())
    assert (again, value) == (0, out)


@pytest.mark.parametrize(
    ("words", "stdin", "code"),
    [
        (["-", "-o", "json"], b"", "bad-topology"),
        (["-", "-o", "json"], b"nvidia-smi: command not found", "bad-topology"),
        (["-", "-o", "json"], b'{"v": 1}', "bad-topology"),
        (["-", "-o", "json"], b'{"kind": "Topology"}', "bad-topology"),
        (["-", "-o", "json"], b"{", "bad-topology"),
        (["-", "-o", "json", "--product", "nothing"], b"\tGPU0\nGPU0\tX\n", "bad-topology"),
        (["/nowhere", "-o", "json"], b"", "unreadable"),
        ([str(SAMPLES), "-o", "json"], b"", "unreadable"),
    ],
)
def test_errors_are_json_on_standard_error(words: list[str], stdin: bytes, code: str, cli: Cli) -> None:
    status, out, err = cli.run(["topo", *words], stdin)
    assert (status, out) == (1, "")
    error = json.loads(err)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "path", "message"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dgx1-v100-8gpu-4ib.txt", "--product, or give --gbps"),
        ("dgx1-topo-mp-8gpu-4nic.txt", "not all links are known"),
    ],
)
def test_an_annotation_is_refused_where_something_is_unknown(name: str, said: str, cli: Cli) -> None:
    status, out, err = cli.run(["topo", str(SAMPLES / name), "-o", "annotation"])
    assert (status, out) == (1, "")
    assert said in err


def test_warnings_go_to_standard_error_where_people_read(cli: Cli) -> None:
    status, out, err = cli.run(["topo", str(SAMPLES / "hgx-nv18-8gpu-12nic-malformed.txt"), "-o", "text"])
    assert status == 0
    assert "warning: row GPU5: 'PIXNODE' under NIC7 is no path" in err
    assert "NVSwitch, NV18" in out


def test_a_dgx_1_is_drawn(cli: Cli) -> None:
    said = cli.out(["topo", "catalogue:dgx1-v100", "-o", "text"])
    assert "  3  ═══  0  ═══  4  ═══  7" in said
    assert "islands: {0,1,2,3}  {0,4}  {1,5}  {2,6}  {3,7}  {4,5,6,7}" in said


@pytest.mark.parametrize("words", [[], ["-", "-o", "xml"], ["-", "--gbps", "0"], ["-", "--gbps", "inf"], ["a", "b"]])
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["topo", *words])
    assert end.value.code == 2


def test_a_machine_of_the_catalogue_is_no_file(cli: Cli) -> None:
    assert "No such file or directory: write catalogue:dgx1-v100" in cli.err(["topo", "dgx1-v100"], 1)
