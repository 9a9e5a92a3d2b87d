"""Why a pod is where it is, or why it waits, and the cheapest way out: the verdict on any pod, whether or not
kube-scheduler has asked about it. A running server answers by its live state, and adds its latest decisions; without
one the cluster is listed once, or read from a file: assumed pods and reservations are not known then."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from extender.cli import verdict_text
from extender.cli.asking import pod_of
from extender.cli.options import add_output, show
from extender.cli.sources import add_now, add_sources, answer_of
from extender.errors import BadInput

if TYPE_CHECKING:
    from extender.objects.records import Event
    from extender.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", help="the pod")
    add_sources(parser)
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions, 0: none (default: %(default)s)")
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the verdict, then the decisions."""
    pod = pod_of(options.pod)
    if options.most < 0:
        raise BadInput(f"{options.most} is less than 0", path="--most")
    page = f"/debug/explain?pod={quote('/'.join(pod))}&most={options.most}"
    show(answer_of(options, page, partial(_read, pod)), options.output, verdict_text.lines)
    return 0


def _read(pod: tuple[str, str], settings: Settings, events: list[Event], wall: float) -> dict[str, Any]:
    from extender.ask import offline  # here: --help need not load the core

    return offline.explain(settings, events, pod, wall)
