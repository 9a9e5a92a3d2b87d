"""Answer a kube-scheduler. Without --cluster the cluster is the one that the service account (in a pod) or the
kubeconfig names. Nothing is answered before all of it is known. Over a file nothing is written."""

from __future__ import annotations

import argparse
from pathlib import Path

from extender.cli import sources
from extender.cli.options import (
    add_address,
    add_config,
    add_logging,
    configure_logging,
    host_and_port,
    port,
    settings_of,
)

EXAMPLES = (
    "gpu-extender serve --config settings.yaml",
    "gpu-extender serve --cluster cluster.json --port 18888",
    "gpu-extender serve --host 0.0.0.0 --tls-self-signed --client-ca-file ca.crt",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_config(parser)
    add_address(parser)
    source = parser.add_mutually_exclusive_group()
    sources.add_kubeconfig(source)
    sources.add_cluster(parser, source)
    parser.add_argument(
        "--record", metavar="DIR", type=Path,
        help="record requests, and what changes between them, for the command replay (settings: record)",
    )  # fmt: skip
    parser.add_argument(
        "--probe", metavar="HOST:PORT", default="",
        help="serve /livez there, in plain HTTP, as the liveness probe of a kube-scheduler in the same pod: it passes "
        "while both live; without HOST on all addresses",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler-port", type=port, metavar="PORT", default=10259,
        help="with --probe: where kube-scheduler serves its own /livez (default: %(default)s)",
    )  # fmt: skip
    add_logging(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; 1 when the server could not start."""
    configure_logging(options)
    settings = settings_of(options)
    from extender.server import garbage  # here: --help, a wrong option or a refused file need not load a server

    garbage.begin()  # what is imported next stays: collections take a tenth of the start, and find nothing
    from extender.server import serve

    probe = serve.Probe(*host_and_port(options.probe, "probe"), options.scheduler_port) if options.probe else None
    kubeconfig = str(options.kubeconfig) if options.kubeconfig else None
    return serve.run(
        settings,
        kubeconfig=kubeconfig,
        cluster_file=options.cluster,
        config_file=options.config,
        record=options.record,
        probe=probe,
    )
