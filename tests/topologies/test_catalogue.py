"""The catalogue: labels decide only where one graph is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_core.links import LinkShapes
from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, load, resolve
from extender.topologies.annotation import decode, encode

PRODUCT, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
MACHINE, TYPE = "nvidia.com/gpu.machine", "node.kubernetes.io/instance-type"
V100, A100, H100 = "Tesla-V100-SXM2-32GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("labels", "gpus", "ids"),
    [
        ({PRODUCT: V100, MACHINE: "DGX-1"}, 8, "dgx1-v100 (confirmed)"),
        ({PRODUCT: "Tesla-V100-SXM2-16GB", TYPE: "p3.16xlarge"}, 8, "dgx1-v100 (confirmed)"),
        ({PRODUCT: V100, TYPE: "Standard_ND40rs_v2"}, 8, "azure-nd40rs-v2 (partly confirmed)"),
        # One product, one count, four machines: all of them the same 8 x 12 links into switches.
        ({PRODUCT: A100}, 8, "dgx-a100, hgx-a100-8, p4d, azure-nd96-a100-v4 (confirmed)"),
        ({PRODUCT: A100, TYPE: "p4d.24xlarge"}, 8, "p4d (confirmed)"),
        ({PRODUCT: A100}, 4, "a100-4-sxm (confirmed)"),
        ({PRODUCT: H100, TYPE: "a3-megagpu-8g"}, 8, "dgx-h100 (confirmed)"),
        ({PRODUCT: "NVIDIA-H200", TYPE: "Standard_ND96isr_H200_v5"}, 8, "hgx-h200-8 (confirmed)"),
        ({PRODUCT: "NVIDIA-L4", COUNT: "8"}, 8, "l4-8 (confirmed)"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, 8, "mi300x-8 (confirmed)"),
    ],
)
def test_labels_that_leave_one_graph(labels: dict[str, str], gpus: int, ids: str) -> None:
    found = resolve({}, labels, gpus)
    assert (found.source, found.detail) == ("catalogue", f"catalogue: {ids}")
    assert found.links is not None
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("labels", "gpus", "reason"),
    [
        ({}, 8, "no topology annotation"),
        ({PRODUCT: V100}, 8, "(dgx1-v100, v100-8-permuted, azure-nd40rs-v2) and no label states which"),
        ({PRODUCT: V100, MACHINE: "unknown", TYPE: "other"}, 8, "no label states which"),
        ({PRODUCT: A100}, 7, "7 x NVIDIA-A100-SXM4-40GB: not in the catalogue"),
        ({PRODUCT: A100 + "-MIG-1g.5gb"}, 8, "not in the catalogue"),
        ({PRODUCT: A100, "amd.com/gpu.product-name": "x"}, 8, "two vendors"),
        ({"amd.com/gpu.product-name": "NVIDIA-H200"}, 8, "not in the catalogue"),
    ],
)
def test_what_the_labels_do_not_tell_is_unknown(labels: dict[str, str], gpus: int, reason: str) -> None:
    found = resolve({}, labels, gpus)
    assert (found.source, found.links, found.gpus) == ("unknown", None, gpus)
    assert reason in found.detail


def test_a_count_label_of_other_gpus_is_a_warning() -> None:
    found = resolve({}, {PRODUCT: "NVIDIA-H200", COUNT: "7"}, 8)
    assert found.source == "unknown"
    assert found.warnings == ("label nvidia.com/gpu.count is 7, the node has 8",)


def test_levels_and_numa_only_as_far_as_the_entries_agree() -> None:
    assert resolve({}, {PRODUCT: A100, TYPE: "p4d.24xlarge"}, 8).numa is not None
    assert resolve({}, {PRODUCT: A100}, 8).numa is None


def test_an_unverified_entry_says_so() -> None:
    found = resolve({}, {PRODUCT: "NVIDIA-H200-NVL"}, 4)
    assert found.source == "catalogue"
    assert found.warnings == ("catalogue: the output of h200-nvl-4way is not yet seen",)


def test_a_single_gpu_needs_no_catalogue() -> None:
    assert resolve({}, {}, 1).links == ((0,),)
    assert resolve({}, {}, 0).links is None


def test_every_entry_is_a_shape_and_can_be_stated() -> None:
    shapes = LinkShapes()
    assert len(catalogue.entries()) >= 50
    for entry in catalogue.entries():
        plugin = "amd" if entry.vendor == "amd" else "nvidia"
        shape = entry.topology.intern(shapes, plugin)  # type: ignore[arg-type]
        assert shapes.gpus(shape) == entry.topology.gpus, entry.id
        assert decode(encode(entry.topology)).links == entry.topology.links, entry.id
        assert entry.source, entry.id


# -- annotations and machines of the catalogue as input ----------------------------------------------------------------


SAMPLES = Path(__file__).parent / "samples"
IDS = [entry.id for entry in catalogue.entries()]


@pytest.mark.parametrize("name", IDS)
def test_every_machine_of_the_catalogue(name: str) -> None:
    found = load.from_catalogue(name)
    islands, components = found.groups()
    assert islands is not None
    assert components is not None
    assert sorted(gpu for group in components for gpu in group) == list(range(found.gpus))
    assert load.read(annotation.encode(found.topology()).encode()).links == found.links


def test_a_machine_that_is_not_in_the_catalogue() -> None:
    with pytest.raises(BadTopology, match="'dgx-9' is not in the catalogue; did you mean dgx"):
        load.from_catalogue("dgx-9")
    with pytest.raises(BadTopology, match="'dgx1' is not in the catalogue; did you mean dgx1-p100 or dgx1-v100"):
        load.from_catalogue("dgx1")


def test_an_unknown_machine_of_the_catalogue_names_the_nearest() -> None:
    with pytest.raises(BadTopology, match=r"'dgx1-v10' is not in the catalogue; did you mean dgx1-v100\b") as refused:
        load.from_catalogue("dgx1-v10")
    assert (refused.value.code, refused.value.path) == ("not-found", "catalogue")
    with pytest.raises(BadTopology, match="there are: dgx1-p100, "):
        load.from_catalogue("x" * 1000)


def test_too_large_and_other_encodings() -> None:
    with pytest.raises(BadTopology, match="at most"):
        load.read(b" " * (load.MOST_BYTES + 1))
    text = (SAMPLES / "rtxa6000-3gpu.txt").read_text()
    assert load.read(text.encode("utf-8-sig")) == load.read(text.encode("utf-16")) == load.read(text.encode())
