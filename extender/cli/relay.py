"""Stand between kubelet and the vendor's device plugin, so that each pod gets the GPUs that were planned for it.
Runs on the GPU node; the plugin's DaemonSet mounts the folder --plugins instead of kubelet's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from extender.cli.options import add_node, api_endpoint, node_name, probe_address, say, stop_by_signal
from extender.errors import BadInput

EXAMPLES = (
    "gpu-extender relay --plugins /var/lib/gpu-extender/plugins",
    "gpu-extender relay --plugins /var/lib/gpu-extender/plugins --pass-through",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--plugins",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="where the vendor's plugins find kubelet.sock",
    )
    parser.add_argument(
        "--kubelet",
        metavar="FOLDER",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="kubelet's own (default: %(default)s)",
    )
    parser.add_argument("--topology-file", metavar="FILE", type=Path, help="the topology as the agent writes it here")
    parser.add_argument(
        "--mode-file", metavar="FILE", type=Path, help="write the mode there: the agent reports it on the node"
    )
    parser.add_argument("--pass-through", action="store_true", help="choose nothing: pass everything on as it is")
    add_node(parser)


def run(options: argparse.Namespace) -> int:
    """Until SIGTERM; 1 when something is wrong that a restart may mend."""
    try:
        from extender.node.relay import Relay  # here: it needs what only this command needs
    except ImportError as error:
        raise BadInput(f"{error}: install gpu-extender[node]") from error
    from extender.node import plans, probe

    address = probe_address(options)
    followed = None
    if not options.pass_through:
        node, server = node_name(options), api_endpoint(options)
        followed = plans.LivePlans(server, node, say, options.topology_file)
    relay = Relay(options.plugins, options.kubelet, followed, say=say)
    stopping = stop_by_signal()

    def trouble() -> str:
        return relay.trouble() or (plans.trouble(followed) if followed is not None else "")

    if options.mode_file:
        options.mode_file.write_text("pass-through\n" if followed is None else "plans\n")
    if followed is not None:
        followed.start()
    relay.start()
    if address is not None:
        port = probe.serve(*address, trouble, lambda: relay.counts, "relay")
        say(f"probe at port {port}")
    say(f"relay of {options.plugins} to {options.kubelet}{'' if followed else ': passing everything through'}")
    sys.stderr.flush()
    wrong = ""
    while not stopping.wait(2.0):
        if wrong := trouble():
            say(wrong)
            break
    relay.stop()
    if followed is not None:
        followed.stop()
    return 1 if wrong else 0
