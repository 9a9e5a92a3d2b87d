"""Where a command that looks at a cluster gets it: a running server, the API server, or a file."""

from __future__ import annotations

import argparse
import textwrap
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from extender.cli.asking import add_server, ask
from extender.cli.options import add_config, settings_of
from extender.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.objects.records import Event
    from extender.objects.tolerant import Invalid
    from extender.settings import Settings

    Read = Callable[[Settings, list[Event], float], dict[str, Any]]
    """The answer by settings and the objects of a cluster, at a time in seconds since 1970."""


def add_sources(parser: argparse.ArgumentParser) -> None:
    """--server, --kubeconfig or --cluster, and --config for the two that need settings."""
    source = parser.add_mutually_exclusive_group()
    add_server(source)
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="list the cluster that the file names")
    add_cluster(parser, source)
    add_config(parser)


def add_now(parser: argparse.ArgumentParser) -> None:
    """--now, for what is not a running server."""
    parser.add_argument(
        "--now", metavar="RFC3339", help="without a server: the time at which it is asked (default: the clock)"
    )


def answer_of(options: argparse.Namespace, page: str, read: Read) -> dict[str, Any]:
    """The JSON object at `page` of the server; else what `read` makes of a cluster that is read once: invalid objects
    come first in its `warnings`. BadInput, BadSettings, BadCluster, Unreachable, or the server's own error."""
    if of_server(options):
        return ask(options.server, page)
    from extender.objects import tolerant  # here: --help need not load the core

    settings, wall = settings_of(options), moment(getattr(options, "now", None))
    cluster_events, invalid = events(options, settings)
    answer = read(settings, cluster_events, wall)
    return answer | {"warnings": [*tolerant.warnings(invalid), *answer["warnings"]]}


def of_server(options: argparse.Namespace) -> bool:
    """Whether a running server is to be asked."""
    return options.cluster is None and options.kubeconfig is None


def events(options: argparse.Namespace, settings: Settings) -> tuple[list[Event], list[Invalid]]:
    """The objects of the API server or the file, and what is wrong with some of them. Unreachable, BadCluster."""
    from extender.ask import frozen  # here: --help need not load the core

    gpus = frozenset(resource.name for resource in settings.resources)
    invalid: list[Invalid] = []
    if options.cluster is not None:
        return list(frozen.read(options.cluster, gpus, invalid)), invalid
    import asyncio

    from extender.cli.listed import listed

    return asyncio.run(listed(options.kubeconfig, gpus, invalid)), invalid


def moment(text: str | None) -> float:
    """Seconds since 1970 of an RFC 3339 time with its zone; of now without one. BadInput for anything else."""
    if text is None:
        return time.time()
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        given = None
    if given is None or given.tzinfo is None:
        raise BadInput(f"{text!r} is not a time like 2026-11-21T15:00:00Z", path="--now")
    return given.timestamp()


# -- the option --cluster, and the one command that writes such a file from a live cluster


KINDS: Final = (
    "nodes", "pods", "poddisruptionbudgets.policy", "priorityclasses.scheduling.k8s.io", "resourcequotas",
    "deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io", "devicetaintrules.resource.k8s.io", "jobs.batch", "deployments.apps",
    "replicasets.apps", "statefulsets.apps",
    "podgroups.scheduling.k8s.io", "podgroups.scheduling.x-k8s.io", "podgroups.scheduling.volcano.sh",
    "workloads.scheduling.k8s.io", "jobsets.jobset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io",
    "rayclusters.ray.io", "podgangs.scheduler.grove.io", "pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org",
    "mpijobs.kubeflow.org",
    "xgboostjobs.kubeflow.org", "paddlejobs.kubeflow.org", "jaxjobs.kubeflow.org",
)  # fmt: skip
_LINES: Final = textwrap.wrap(" ".join(f"-e_{kind}" for kind in KINDS), 84, break_on_hyphens=False)
_NAMES: Final = " \\\n".join("    " + line.replace("-e_", "-e ") for line in _LINES)
EXAMPLE: Final = f"""\
Everything that is read, of the kinds that a cluster has, as a FILE for --cluster (JSON or YAML):

  kubectl get "$(kubectl api-resources --verbs=list -o name | grep -xF \\
{_NAMES} |
    paste -sd, -)" -A -o json > cluster.json
"""


def add_cluster(parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None) -> None:
    """--cluster, in `group` where it is one of several choices; the help ends with how to get such a file."""
    (group or parser).add_argument(
        "--cluster", metavar="FILE", type=Path, required=group is None, help="a frozen cluster: its objects (see below)"
    )
    parser.epilog = EXAMPLE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
