"""What the agent writes, and when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from extender.errors import BadTopology, Unreachable
from extender.node import commands, nvml
from extender.node.agent import Agent, AgentOptions, Switch, as_annotations
from extender.node.apiserver import ApiEndpoint
from extender.node.kubelet_api import HeldDevices, Kubelet
from extender.sim.machines import gpu_uuid, machine, topology_annotation
from extender.topologies import annotation
from extender.topologies.annotation import RELAY, STALE
from extender.topologies.topology import NearNic, Topology
from tests.e2e.device_manager import pod
from tests.node.fake_api import FakeApi
from tests.node.fake_nvml import FakeNvml

SAMPLES = Path(__file__).parent.parent / "topologies" / "samples"
V100 = machine("dgx1-v100")
UUIDS = tuple(gpu_uuid("node-1", gpu) for gpu in range(8))
GPU = "nvidia.com/gpu"


class FakeKubelet(Kubelet):
    """`works`: the devices that work; `holds`: what pods hold."""

    def __init__(self) -> None:
        self.works = list(UUIDS)
        self.holds: list[HeldDevices] = []
        self.away = False

    def held(self) -> list[HeldDevices]:
        return self.holds

    def healthy(self, resource: str) -> frozenset[str]:
        if self.away:
            raise Unreachable("no socket")
        return frozenset(self.works) if resource == GPU else frozenset()


class Scene:
    """An agent of node-1, which has the kubelet of this release."""

    def __init__(self, api: FakeApi, kubelet: str = "v1.37.0", **options: object) -> None:
        self.api = api
        api.put("nodes", {"metadata": {"name": "node-1"}, "status": {"nodeInfo": {"kubeletVersion": kubelet}}})
        self.nvml = FakeNvml(V100)
        self.devices = FakeKubelet()
        self.now = 1_000_000.0
        self.said: list[str] = []
        self.agent = Agent(
            AgentOptions("node-1", **options),  # type: ignore[arg-type]
            ApiEndpoint(api.url),
            lambda: self.view(),
            say=self.said.append,
            kubelet=self.devices,
            clock=lambda: self.now,
        )

    def view(self) -> Topology:
        return nvml.read(self.nvml, Path("/none"))

    def node(self) -> dict[str, str]:
        """The node's annotations."""
        found = ApiEndpoint(self.api.url).get("/api/v1/nodes/node-1")["metadata"].get("annotations")
        return dict(found or {})

    def stated(self) -> Topology:
        return annotation.decode(self.node()[annotation.KEY])


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as made:
        yield made


def test_the_view_is_written_once(api: FakeApi) -> None:
    scene = Scene(api)
    for _ in range(3):
        scene.agent.look()
        scene.now += 10
    assert len(api.patches) == 1
    stated = scene.stated()
    assert stated.links == V100.links
    assert stated.pcie == V100.pcie
    assert (stated.uuids, stated.health, stated.gbps, stated.kind) == (UUIDS, (True,) * 8, 25.0, "nvlink")
    assert scene.nvml.open == 0


def test_health_and_links_are_changes(api: FakeApi) -> None:
    scene = Scene(api)
    scene.agent.look()
    scene.nvml.failed_rows.add(5)
    scene.agent.look()
    assert scene.stated().health == (True,) * 5 + (False,) + (True,) * 2
    scene.nvml.down.add((0, 0))  # the first link of GPU 0 goes to 1
    scene.agent.look()
    links = scene.stated().links
    assert links is not None
    assert (links[0][1], links[1][0], links[0][3]) == (0, 0, 2)
    assert len(api.patches) == 3


def test_what_the_plugin_calls_unhealthy_is(api: FakeApi) -> None:
    """While no plugin is registered (it restarts) the last word stands, and nothing is written."""
    scene = Scene(api)
    scene.devices.works = [uuid for uuid in UUIDS if uuid != UUIDS[2]]
    scene.agent.look()
    expected = (True, True, False, True, True, True, True, True)
    assert scene.stated().health == expected
    scene.devices.works = []
    scene.agent.look()
    scene.devices.away = True
    scene.agent.look()
    assert scene.stated().health == expected
    assert len(api.patches) == 1


def test_a_restart_of_the_agent_while_the_plugin_restarts_too(api: FakeApi) -> None:
    """The health that the plugin told last stands on the node: a new agent takes it from there, and writes nothing."""
    scene = Scene(api)
    scene.devices.works = [uuid for uuid in UUIDS if uuid != UUIDS[2]]
    scene.agent.look()
    again = Scene(api)
    api.node("node-1", api.patches[0][1]["metadata"]["annotations"])
    again.devices.works = []
    again.agent.look()
    assert len(api.patches) == 1


def test_the_relay_has_the_view_though_the_api_server_is_away(api: FakeApi, tmp_path: Path) -> None:
    scene = Scene(api, topology_file=tmp_path / "topology.json")
    api.down = True
    scene.agent.look()
    assert annotation.decode((tmp_path / "topology.json").read_text()).links == V100.links


def test_a_view_that_cannot_be_renewed_is_marked_once(api: FakeApi) -> None:
    scene = Scene(api)
    scene.agent.look()
    scene.view = lambda: nvml.read(FakeNvml(machine(None, 0)))  # type: ignore[method-assign]
    for _ in range(5):
        scene.now += 60
        scene.agent.look()
    assert scene.node()[STALE] == "1970-01-12T13:46:40Z"
    assert len(api.patches) == 2
    scene.view = lambda: nvml.read(scene.nvml, Path("/none"))  # type: ignore[method-assign]
    scene.agent.look()
    assert STALE not in scene.node()


def test_an_api_server_that_is_away(api: FakeApi) -> None:
    scene = Scene(api)
    api.down = True
    scene.agent.look()
    assert scene.agent.counts["errors API server"] == 1
    api.down = False
    scene.agent.look()
    assert annotation.KEY in scene.node()


def test_the_relay_is_declared_as_long_as_it_holds_plans(api: FakeApi, tmp_path: Path) -> None:
    mode, left = tmp_path / "mode", tmp_path / "topology.json"
    scene = Scene(api, mode_file=mode, topology_file=left)
    scene.agent.look()
    assert RELAY not in scene.node()
    mode.write_text("plans\n")
    scene.agent.look()
    assert scene.node()[RELAY] == "1"
    assert left.read_text() == scene.node()[annotation.KEY]
    mode.write_text("pass-through\n")
    scene.agent.look()
    assert RELAY not in scene.node()


@pytest.mark.parametrize(
    ("kubelet", "held", "written"),
    [("v1.35.2", "auto", True), ("v1.36.0", "auto", False), ("v1.37.0", "always", True), ("v1.20.1", "never", False),
     ("odd", "auto", True)],
)  # fmt: skip
def test_what_pods_hold(api: FakeApi, kubelet: str, held: Switch, written: bool) -> None:
    scene = Scene(api, kubelet, held=held)
    api.put("pods", pod("a", 2))
    scene.devices.holds = [HeldDevices("default", "a", "main", GPU, (UUIDS[3], UUIDS[0]))]
    for _ in range(2):
        scene.agent.look()
    patches = [change for path, change in api.patches if path.endswith("/pods/a")]
    expected = {"metadata": {"uid": "a", "annotations": {"gpu-extender.io/held-gpus": "0,3"}}}
    assert patches == ([expected] if written else [])


def test_holdings_as_annotations() -> None:
    """Several containers by name; other resources, replicas and MIG say nothing."""
    held = [
        HeldDevices("n", "a", "c2", GPU, (UUIDS[5],)),
        HeldDevices("n", "a", "c1", GPU, (UUIDS[1], UUIDS[0])),
        HeldDevices("n", "a", "c1", "vendor.com/nic", ("nic0",)),
        HeldDevices("n", "b", "c", GPU, (f"{UUIDS[2]}::1",)),
        HeldDevices("n", "c", "c", GPU, ("MIG-1",)),
        HeldDevices("n", "c", "d", GPU, (UUIDS[6],)),
    ]
    assert as_annotations(held, GPU, UUIDS) == {("n", "a"): "c1=0,1;c2=5"}


def test_nics_are_written_beside_the_topology_and_taken_back(api: FakeApi) -> None:
    scene = Scene(api)
    seen = nvml.read(FakeNvml(V100), Path("/none"))
    scene.view = lambda: replace(seen, nics=(NearNic("mlx5_0", (0, 1)),))  # type: ignore[method-assign]
    scene.agent.look()
    assert annotation.decode_nics(scene.node()[annotation.NICS]) == (8, (NearNic("mlx5_0", (0, 1)),))
    assert scene.agent.counts["node writes"] == 1
    scene.agent.look()
    assert scene.agent.counts["node writes"] == 1  # the same is not written again
    scene.view = lambda: seen  # type: ignore[method-assign]
    scene.agent.look()
    assert annotation.NICS not in scene.node()
    assert scene.stated().links == V100.links


# ---- where the view comes from


@pytest.mark.parametrize("name", ["dgx1-v100", "hgx-h200-8", "a100-pcie-4", "l4-8", "hgx-b200-8"])
def test_nvml_tells_what_the_catalogue_has(name: str) -> None:
    what = machine(name)
    seen = nvml.read(FakeNvml(what), Path("/none"))
    assert seen.links == what.links
    assert seen.gpu_total == (what.scope == "gpu-total")
    assert seen.pcie == what.pcie
    assert annotation.decode(annotation.encode(seen)).links == what.links


def test_nvml_of_a_gpu_that_is_lost() -> None:
    """It stays in the list, without links and not healthy."""
    seen = nvml.read(FakeNvml(V100, lost={4}), Path("/none"))
    assert seen.health == (True,) * 4 + (False,) + (True,) * 3
    assert seen.links is not None
    assert not any(seen.links[4])
    assert seen.links[0][3] == 2


def test_numa_is_the_kernels(tmp_path: Path) -> None:
    for gpu in range(8):
        folder = tmp_path / f"0000:{16 + gpu:02x}:00.0"
        folder.mkdir()
        (folder / "numa_node").write_text(f"{-1 if gpu == 7 else gpu // 4}\n")
    assert nvml.read(FakeNvml(V100), tmp_path).numa == (0, 0, 0, 0, 1, 1, 1, None)


def test_no_driver() -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver Not Loaded")

    with pytest.raises(nvml.NoDriver, match="Driver Not Loaded"):
        nvml.read(Broken(V100))
    with pytest.raises(nvml.NoDriver, match="no GPU"):
        nvml.read(FakeNvml(machine(None, 0)))


def listed(count: int) -> str:
    return "\n".join(f"GPU {i}: Tesla V100-SXM2-16GB (UUID: {gpu_uuid('n', i)})" for i in range(count))


def test_the_text_of_nvidia_smi() -> None:
    """Four commands; their outputs make one view."""
    answers = {
        ("nvidia-smi", "topo", "-m"): (SAMPLES / "dgx1-v100-8gpu-4ib.txt").read_text(),
        ("nvidia-smi", "-L"): listed(8),
    }
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        asked.append(command)
        return answers.get(tuple(command), "")

    seen = commands.read(run=run, vendor="nvidia-smi")
    assert (seen.links, seen.gbps) == (V100.links, 25.0)
    assert seen.uuids == tuple(gpu_uuid("n", gpu) for gpu in range(8))
    assert len(asked) == 4


def test_the_text_of_rocm_smi() -> None:
    text = (SAMPLES / "amd-mi300a-4gpu.showtopo.txt").read_text()
    buses = "".join(f"GPU[{gpu}]\t\t: PCI Bus: 0000:{gpu + 1:02X}:00.0\n" for gpu in range(4))
    seen = commands.from_text(f"{text}\n{buses}", "AMD_Instinct_MI300A")
    assert seen.kind == "xgmi"
    assert seen.uuids == tuple(f"0000:{gpu + 1:02x}:00.0" for gpu in range(4))
    assert commands.from_text(text, "AMD_Instinct_MI300A").uuids is None


def viewed(text: str) -> Topology | str:
    """The view, or why there is none."""
    try:
        return commands.from_text(text, gbps=25.0)
    except BadTopology as error:
        return str(error)


@pytest.mark.parametrize(
    "name", [sample["file"] for sample in json.loads((SAMPLES / "index.json").read_text())["samples"]]
)
def test_every_recorded_text_is_a_view_or_a_reason(name: str) -> None:
    """No text may end in anything but a view that can be written, or an error with a sentence."""
    seen = viewed((SAMPLES / name).read_text())
    if isinstance(seen, str):
        assert len(seen) > 10
        assert "mp" in name or "malformed" in name or "partial" in name or "abbreviated" in name, seen
    else:
        assert replace(annotation.decode(annotation.encode(seen)), nics=seen.nics) == seen
        stated = annotation.encode_nics(seen)
        assert (stated is None) == (seen.nics is None)
        assert stated is None or annotation.decode_nics(stated) == (seen.gpus, seen.nics)


def test_commands_that_are_not_there() -> None:
    with pytest.raises(BadTopology, match="prints nothing"):
        commands.read(run=lambda command: "", vendor="rocm-smi")
    with pytest.raises(BadTopology):
        commands.run(["/nowhere/nvidia-smi"])
    assert commands.run(["false"]) == ""


def test_the_annotation_is_the_one_that_tests_use() -> None:
    """The simulated kubelets write what the agent writes."""
    seen = nvml.read(FakeNvml(V100), Path("/none"))
    theirs = annotation.decode(topology_annotation(V100, UUIDS))
    assert (seen.links, seen.uuids, seen.pcie, seen.gbps) == (theirs.links, theirs.uuids, theirs.pcie, theirs.gbps)
