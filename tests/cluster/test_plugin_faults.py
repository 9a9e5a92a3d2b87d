"""What is known against a node's device plugin, and that the cluster writes it down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extender.cluster import device_plugins
from extender.cluster.cluster import Cluster
from extender.objects.records import Event, node
from extender.policy.reasons import REASONS
from extender.settings import ResourceSettings, Settings
from extender.topologies import Topology
from extender.topologies.annotation import RELAY, encode
from tests.world import World, machine, workload

PANICS, PANICS_KNOWN, LOST, LOST_KNOWN = 1, 2, 4, 8
FOUR = ((0,) * 4,) * 4


def flags(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **more: Any) -> int:
    given: dict[str, Any] = {"plugin": "nvidia", "settings_version": None, "allocatable": 4, "capacity": 4}
    given |= {"topology": Topology(4, FOUR)} | more
    plugin = device_plugins.StatedPlugin(given.pop("plugin"), given.pop("settings_version"))
    return device_plugins.hazards(annotations or {}, labels or {}, plugin, **given)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.20.0", (0, 20, 0)),
        ("v0.18.1", (0, 18, 1)),
        (" v0.17.1-ubi9 ", (0, 17, 1)),
        ("0.20", None),
        ("latest", None),
        ("", None),
        ("0.20.0.1", None),
    ],
)
def test_versions(text: str, numbers: tuple[int, int, int] | None) -> None:
    assert device_plugins.version(text) == numbers


@pytest.mark.parametrize(
    ("text", "known"),
    [("0.11.9", False), ("0.12.0", True), ("v0.20.0", True), ("0.20.1", False), ("1.0.0", False), (None, False)],
)
def test_affected(text: str | None, known: bool) -> None:
    assert device_plugins.affected(text) is known


def test_where_the_version_is_said() -> None:
    assert flags() == PANICS
    assert flags(settings_version="0.20.0") == PANICS_KNOWN
    assert flags(labels={device_plugins.PLUGIN_VERSION: "0.18.1"}) == PANICS_KNOWN
    assert (
        flags(
            {device_plugins.PLUGIN_VERSION: "9.0.0"},
            {device_plugins.PLUGIN_VERSION: "0.18.1"},
            settings_version="0.18.1",
        )
        == PANICS
    )
    # the node's own word stands
    assert flags({device_plugins.PLUGIN_VERSION: "latest"}, settings_version="0.18.1") == PANICS


def test_who_does_not_go_that_way() -> None:
    known: dict[str, Any] = {"settings_version": "0.20.0", "allocatable": 3}
    assert flags(plugin="amd", **known) == 0
    assert flags({RELAY: "1"}, topology=Topology(4, FOUR, uuids=("a", "b", "c", "d")), **known) == 0
    assert flags({RELAY: "1"}, **known) != 0  # no ids: the relay has nothing to choose by, and asks the plugin
    assert flags(labels={"nvidia.com/gpu.sharing-strategy": "mps"}, **known) == 0
    assert flags(labels={"nvidia.com/gpu.sharing-strategy": "none"}, **known) != 0


def test_a_lost_gpu() -> None:
    lost = Topology(4, FOUR, health=(True, True, False, True))
    assert flags(topology=lost) == PANICS | LOST
    assert flags(topology=lost, settings_version="0.20.0") == PANICS_KNOWN | LOST_KNOWN
    # Fewer allocatable: an illness that may or may not be a lost GPU, whatever the version.
    assert flags(allocatable=3, settings_version="0.20.0") == PANICS_KNOWN | LOST
    assert flags(allocatable=0) == PANICS  # the plugin itself is away


def test_the_cluster_writes_it_down() -> None:
    settings = Settings(
        resources=(ResourceSettings(name="nvidia.com/gpu", device_plugin="nvidia", plugin_version="v0.20.0"),)
    )
    cluster = Cluster(settings)

    def event(allocatable: int, **annotations: str) -> Event:
        said = {f"gpu-extender.io/{key}": value for key, value in annotations.items()}
        made = {
            "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "annotations": said},
            "status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": str(allocatable)}},
        }
        return Event("Node", "set", node(made, cluster.gpu_names))

    cluster.apply([event(4)], 0.0)
    assert cluster.tables.hazards.get(cluster.row("n")) == PANICS_KNOWN
    cluster.apply([event(3, relay="1")], 0.0)
    assert cluster.tables.hazards.get(cluster.row("n")) != 0  # no ids
    ids = '{"v":1,"gpus":4,"links":[],"uuids":["a","b","c","d"]}'
    cluster.apply([event(3, relay="1", topology=ids)], 0.0)
    assert cluster.tables.hazards.get(cluster.row("n")) == 0
    health = '{"v":1,"gpus":4,"links":[],"health":[true,true,true,false]}'
    cluster.apply([event(3, topology=health)], 0.0)
    assert cluster.tables.hazards.get(cluster.row("n")) == PANICS_KNOWN | LOST_KNOWN
    assert cluster.tables.nodes.healthy_of(cluster.row("n")) == 0b0111  # it counts only its healthy ones


def node_of(
    near: tuple[int, int], health: tuple[bool, ...] = (True,) * 5, *, uuids: bool = True, **annotations: str
) -> dict[str, Any]:
    """Five GPUs behind a switch; `near`: the two that share a PCIe switch."""
    ids = range(5)
    pcie = tuple(tuple("X" if a == b else "PIX" if {a, b} == {*near} else "SYS" for b in ids) for a in ids)
    links = tuple(tuple(18 * (a != b) for b in ids) for a in ids)
    whole = Topology(5, links, gpu_total=True, kind="nvlink", gbps=25.0, pcie=pcie, health=health)
    known = tuple(f"GPU-{gpu}" for gpu in ids) if uuids else None
    text = encode(replace(whole, uuids=known))
    made = machine("n", sum(health), capacity=5)
    made["metadata"]["annotations"] = {"gpu-extender.io/topology": text} | {
        f"gpu-extender.io/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return made


@pytest.mark.parametrize(
    ("node", "gpus", "key"),
    [
        (node_of((0, 1), device_plugin_version="0.20.0"), 3, "plugin-panics"),
        (node_of((0, 1), (True, True, True, True, False), device_plugin_version="0.20.0"), 1, "plugin-lost-gpu"),
        (node_of((0, 1), device_plugin_version="0.20.0"), 2, None),
        (node_of((0, 1)), 3, None),
        (node_of((0, 1), device_plugin_version="0.20.0", relay="1"), 3, None),
        (node_of((0, 1), device_plugin_version="0.20.0", relay="1", uuids=False), 3, "plugin-panics"),
    ],
)
def test_filter(world: World, node: dict[str, Any], gpus: int, key: str | None) -> None:
    world.set("Node", node)
    world.node("safe", 8)
    answer = world.filter(workload("p", gpus), ["n", "safe"])
    wanted = next((reason.text for reason in REASONS.values() if reason.key == key), None)
    assert answer["FailedAndUnresolvableNodes"] == ({"n": wanted} if wanted else {})
    assert answer["FailedNodes"] == {}


def test_a_node_that_may_fail_the_pod_comes_last(world: World) -> None:
    world.set("Node", node_of((0, 1)))
    world.node("safe", 8)  # empty, and its links are unknown: worse in every other way
    for links in ("preferred", "ignore"):
        pod = workload(f"p-{links}", 3, links=links)
        assert world.filter(pod, ["n", "safe"])["NodeNames"] == ["safe", "n"]
        world.verbs.assumed.forget(pod["metadata"]["uid"])
    world.set("Node", node_of((0, 1), relay="1"))
    assert world.filter(workload("q", 3), ["n", "safe"])["NodeNames"] == ["n", "safe"]


def test_a_relay_makes_the_plan_hold() -> None:
    # One linked pair among four: NVIDIA's plugin, its PCIe paths unknown, may hand out any two; the relay does not.
    text = '{"v":1,"gpus":4,"links":[[0,3,4]],"kind":"nvlink","gbps":25,"uuids":["GPU-a","GPU-b","GPU-c","GPU-d"]}'
    world = World()
    for name, more in (("stock", {}), ("relay", {RELAY: "1"})):
        world.set("Node", machine(name, 4, annotations={"gpu-extender.io/topology": text} | more))
    answer = world.filter(workload("p", 2, links="required"), ["stock", "relay"])
    assert answer["NodeNames"] == ["relay"]
    scores = world.decision()["nodes"][0]["scores"]
    assert scores["links"]["raw"] == 1.0
    answer = world.filter(workload("q", 3, links="required"), ["stock", "relay"])
    assert not answer["NodeNames"]  # three have no ring, whoever chooses
