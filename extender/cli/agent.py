"""Report on this node how its GPUs are linked (annotation gpu-extender.io/topology) and, where kubelet does not report
it, on pods which GPUs they hold. Runs on the GPU node."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from extender.cli.options import add_node, api_endpoint, node_name, probe_address, say, stop_by_signal
from extender.errors import BadInput, BadTopology
from extender.node import amdsmi, commands, nvml, probe
from extender.topologies.topology import Topology

EXAMPLES = (
    "gpu-extender agent --node node-1 --once",
    "gpu-extender agent --product NVIDIA-H100-80GB-HBM3",
)
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SOURCES = ("auto", "nvml", "amdsmi", "nvidia-smi", "rocm-smi", "file")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--source",
        choices=SOURCES,
        default="auto",
        help="auto (the default): NVML, AMD SMI, else the command that is there",
    )
    parser.add_argument(
        "--text", metavar="FILE", type=Path, help="with --source file: what nvidia-smi or rocm-smi printed"
    )
    parser.add_argument("--product", help="the GPU's name, for what its text does not state")
    parser.add_argument("--gbps", type=float, help="GB/s of one link in one direction, for what nothing states")
    parser.add_argument(
        "--resource", default="nvidia.com/gpu", help="what the device plugin calls the GPUs (default: %(default)s)"
    )
    parser.add_argument(
        "--pod-resources", metavar="SOCKET", type=Path, default=POD_RESOURCES, help="kubelet's (default: %(default)s)"
    )
    parser.add_argument(
        "--held",
        choices=("auto", "always", "never"),
        default="auto",
        help="write on pods what they hold (default: auto, where kubelet is older than 1.36)",
    )
    parser.add_argument("--topology-file", metavar="FILE", type=Path, help="leave the view here for the relay")
    parser.add_argument("--mode-file", metavar="FILE", type=Path, help="where the relay states whether it holds plans")
    parser.add_argument(
        "--interval", type=float, default=10.0, metavar="SECONDS", help="between looks (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="look once, and end")
    add_node(parser)


def run(options: argparse.Namespace) -> int:
    """Until SIGTERM."""
    try:
        from extender.node.agent import Agent, AgentOptions
        from extender.node.kubelet_api import Kubelet
    except ImportError as error:
        raise BadInput(f"{error}: install gpu-extender[node]") from error

    has_folder = options.pod_resources.parent.is_dir()  # the socket itself may come later
    agent = Agent(
        AgentOptions(node_name(options), options.resource, options.held, options.topology_file, options.mode_file),
        api_endpoint(options),
        _view(options),
        say=say,
        kubelet=Kubelet(options.pod_resources) if has_folder else None,
    )
    if options.once:
        agent.look()
        return int(any(name.startswith("errors") for name in agent.counts))
    stopping = stop_by_signal()
    if (address := probe_address(options)) is not None:
        probe.serve(*address, lambda: "", lambda: agent.counts, "agent")
    while not stopping.is_set():
        agent.look()
        stopping.wait(options.interval)
    return 0


def _view(options: argparse.Namespace) -> Callable[[], Topology]:
    def from_command() -> Topology:
        vendor = "" if options.source == "auto" else options.source
        return commands.read(options.product, options.gbps, vendor=vendor)

    def from_file() -> Topology:
        if options.text is None:
            raise BadTopology("give the file with --text", path="text")
        try:
            text = options.text.read_text(errors="replace")
        except OSError as error:
            raise BadTopology(str(error), path="text") from error
        return commands.from_text(text, options.product, options.gbps)

    def from_amdsmi() -> Topology:
        return commands.complete(amdsmi.read(product=options.product), options.product, options.gbps)

    def best() -> Topology:
        errors = []
        for view in (nvml.read, from_amdsmi):
            try:
                return view()
            except (nvml.NoDriver, BadTopology) as error:
                errors.append(str(error))
        try:
            return from_command()
        except BadTopology as error:
            raise BadTopology("; ".join([*errors, str(error)]), code=error.code) from error

    views = {"auto": best, "nvml": nvml.read, "amdsmi": from_amdsmi, "file": from_file}
    return views.get(options.source, from_command)
