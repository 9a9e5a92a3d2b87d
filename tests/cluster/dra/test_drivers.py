"""Drivers whose devices count as GPUs by the settings, and slices that do not count."""

from __future__ import annotations

import json

import pytest

from extender.ask import frozen, warn
from extender.ask.suppose import SupposedCluster
from extender.cluster.cluster import Cluster
from extender.settings import Settings
from extender.settings.fields import ResourceSettings
from tests.ask.whatif.asking import ask
from tests.world import JSON, machine, workload


def published(
    driver: str, devices: list[JSON], name: str = "s", pool: str = "n", generation: int = 1, count: int = 1
) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": driver, "nodeName": "n", "devices": devices,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        },
    }  # fmt: skip


def device(name: str, **attributes: str) -> JSON:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def cluster_of(*items: JSON, settings: Settings | None = None) -> Cluster:
    used = settings or Settings()
    raw = json.dumps({"kind": "List", "items": [{"kind": "Node"} | machine("n", 0), *items]}).encode()
    return SupposedCluster.of(used, frozen.parse(raw, frozenset(one.name for one in used.resources))).cluster


def test_whole_gpus_of_amd_count_and_partitions_do_not() -> None:
    devices = [device("gpu-0-128", type="amdgpu"), device("gpu-1-129", type="amdgpu-partition")]
    node = cluster_of(published("gpu.amd.com", devices)).nodes["n"]
    assert node.gpus == {"amd.com/gpu": 1}
    assert node.devices is not None
    assert node.devices.others == 1


def test_every_device_of_intel_counts_for_a_resource_of_its_domain() -> None:
    settings = Settings(resources=(ResourceSettings(name="gpu.intel.com/xe", device_plugin="arbitrary"),))
    devices = [device("0000-03-00-0-0x56c0", model="Flex 170"), device("0000-08-00-0-0x56c0", model="Flex 170")]
    assert cluster_of(published("gpu.intel.com", devices), settings=settings).nodes["n"].gpus == {"gpu.intel.com/xe": 2}


@pytest.mark.parametrize(("attribute", "count"), [("class=gpu", 1), ("example.com/class=gpu", 1), ("", 2), (None, 2)])
def test_the_settings_name_a_driver_and_its_attribute(attribute: str | None, count: int) -> None:
    stated = "class" if attribute != "example.com/class=gpu" else "example.com/class"
    devices = [device("a", **{stated: "gpu"}), device("b", **{stated: "encoder"})]
    resource = ResourceSettings(
        name="example.com/gpu", device_plugin="arbitrary", dra_driver="gpu.example.com", dra_attribute=attribute
    )
    settings = Settings(resources=(resource,))
    assert cluster_of(published("gpu.example.com", devices), settings=settings).nodes["n"].gpus == {
        "example.com/gpu": count
    }


def test_a_class_of_all_devices_of_such_a_driver_asks_for_gpus() -> None:
    resource = ResourceSettings(name="example.com/gpu", device_plugin="arbitrary", dra_driver="gpu.example.com")
    settings = Settings(resources=(resource,))
    device_class = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
    }  # fmt: skip
    claim = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}},
    }  # fmt: skip
    spec = {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}]}
    pods = [{"kind": "Pod"} | workload(name, 0, spec=spec) for name in ("a", "b")]
    nodes = [{"kind": "Node"} | machine("n", 0), published("gpu.example.com", [device("gpu-0")]), device_class, claim]
    answer = ask(nodes, pods, settings=settings)
    assert [result["node"] for result in answer["results"]] == ["n", None]


def test_what_does_not_count_of_slices_is_said_with_its_number() -> None:
    gpu = device("gpu-0", type="gpu", uuid="GPU-0")
    cluster = cluster_of(
        published("gpu.nvidia.com", [gpu], "old", "n", 1),
        published("gpu.nvidia.com", [gpu, {"attributes": {}}], "new", "n", 2),
        published("gpu.nvidia.com", [gpu], "half", "m", 1, 2),
        published("gpu.nvidia.com", [gpu, gpu], "twice", "o"),
        published("gpu.nvidia.com", [device("gpu-0", type="gpu")], "bare", "p"),
        *(published("fpga.example.com", [], f"other-{i}", f"q-{i}") for i in range(3)),
    )
    assert cluster.dra.published.skipped() == {
        "ResourceSlices of an older generation of their pool": 1,
        "devices without a name": 1,
        "ResourceSlices of incomplete pools, such as gpu.nvidia.com/m": 1,
        "ResourceSlices of pool gpu.nvidia.com/o, in which two devices have the name gpu-0": 1,
        "GPUs without the attribute uuid (no topology by uuid finds them)": 1,
        "ResourceSlices of driver fpga.example.com (no draDriver of the settings)": 3,
    }
    assert warn.skipped_slices(cluster, []) == []
