"""NICs by DRA: those of the same PCIe root as a GPU, where both drivers publish it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.sim import claims as dra
from extender.topologies.annotation import NICS as KEY
from extender.topologies.topology import NearNic
from tests.cluster.dra.world import MACHINE, DraWorld
from tests.world import JSON


def network(node: str, nics: Mapping[str, str], *, driver: str = "dra.net", rdma: bool = True) -> JSON:
    """What DraNet publishes: name -> PCIe root, "" for none."""
    own: JSON = {"dra.net/rdma": {"bool": rdma}}
    devices = [
        {"name": name, "attributes": own | ({"resource.kubernetes.io/pcieRoot": {"string": root}} if root else {})}
        for name, root in nics.items()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def root_of(gpu: int) -> str:
    """As the simulated driver publishes it."""
    (found,) = dra.resource_slices("n1", MACHINE)
    return str(found["spec"]["devices"][gpu]["attributes"]["resource.kubernetes.io/pcieRoot"]["string"])


def world(**published: Any) -> DraWorld:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1", **published)
    return made


def nics(made: DraWorld) -> tuple[NearNic, ...] | None:
    return made.cluster.gpus.topologies["n1"].nics


def test_nics_of_the_same_root() -> None:
    made = world(order=[5, 1, 0, 7, 6, 2, 4, 3])
    assert nics(made) is None
    made.set(
        "ResourceSlice", network("n1", {"mlx5-0": root_of(0), "mlx5-3": root_of(3), "far": "pci0000:ff", "no": ""})
    )
    assert nics(made) == (NearNic("mlx5-0", (0,)), NearNic("mlx5-3", (3,)))
    made.drop("ResourceSlice", network("n1", {}))
    assert nics(made) is None


def test_the_order_of_events_does_not_matter() -> None:
    made = DraWorld()
    made.set("ResourceSlice", network("n1", {"mlx5-0": root_of(0)}))
    made.dra_class()
    made.dra_node("n1")
    assert nics(made) == (NearNic("mlx5-0", (0,)),)
    assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 8}
    assert made.cluster.nodes["n1"].devices is not None
    assert made.cluster.nodes["n1"].devices.others == 0  # a NIC is no part of a GPU


def test_what_cannot_be_mapped_is_unknown() -> None:
    for slices in (
        network("n1", {"eth0": root_of(0)}, rdma=False),
        network("n1", {"eth0": root_of(0)}, driver="example.com"),
        network("n2", {"mlx5-0": root_of(0)}),
    ):
        made = world()
        made.set("ResourceSlice", slices)
        assert nics(made) is None
    made = world()
    (rootless,) = dra.resource_slices("n1", MACHINE)
    del rootless["spec"]["devices"][5]["attributes"]["resource.kubernetes.io/pcieRoot"]
    made.set("ResourceSlice", rootless)
    made.set("ResourceSlice", network("n1", {"mlx5-0": root_of(0)}))
    assert nics(made) is None


def test_a_list_of_roots_is_not_read() -> None:
    made = world()
    many = network("n1", {"mlx5-0": ""})
    attributes = many["spec"]["devices"][0]["attributes"]
    attributes["resource.kubernetes.io/pcieRoot"] = {"strings": [root_of(0), root_of(1)]}
    made.set("ResourceSlice", many)
    assert nics(made) is None


def test_a_device_plugin_node_has_no_roots() -> None:
    made = DraWorld()
    made.node("n1", 8, links=[[0 if a == b else 2 for b in range(8)] for a in range(8)])
    made.set("ResourceSlice", network("n1", {"mlx5-0": root_of(0)}))
    assert nics(made) is None
    assert made.cluster.nodes["n1"].gpus == {"nvidia.com/gpu": 8}


def test_the_annotation_comes_first() -> None:
    made = world()
    stated = made.cluster.nodes["n1"].annotations | {KEY: '{"v":1,"gpus":8,"nics":{"mlx5_0":[7]}}'}
    made.set("ResourceSlice", network("n1", {"mlx5-0": root_of(0)}))
    made.node("n1", 0, annotations=stated)
    assert nics(made) == (NearNic("mlx5_0", (7,)),)


def test_without_known_links_nothing_is_placed_by_nics() -> None:
    made = world(annotated=False)
    made.set("ResourceSlice", network("n1", {"mlx5-0": root_of(0)}))
    assert nics(made) is None
