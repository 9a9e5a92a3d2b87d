"""What a running server has decided about a pod, or about all pods: its latest decision records, newest first."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from extender.cli.asking import add_server, ask, pod_of
from extender.cli.decision_text import lines
from extender.cli.output import add_output, write
from extender.errors import BadInput, NotFound


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", nargs="?", help="the pod (default: all)")
    add_server(parser)
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions shown (default: %(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what the server has kept; NotFound when it has kept nothing."""
    if options.most < 1:
        raise BadInput(f"{options.most} is less than 1", path="--most")
    only = "" if options.pod is None else f"pod={quote('/'.join(pod_of(options.pod)))}&"
    answer = ask(options.server, f"/debug/decisions?{only}most={options.most}")
    if not answer.get("decisions"):
        raise NotFound(
            "the server has kept no decision about this pod: it was not asked since it started, or has dropped the "
            "record (decisions.maxBytes). Does the pod ask for GPUs and name this scheduler? Of several replicas only "
            "the one that schedules is asked",
            path=options.pod or options.server,
        )
    if options.output != "text":
        write(answer, options.output)
    else:
        for decision in answer["decisions"]:
            print("\n".join(lines(decision)), end="\n\n")
    return 0
