"""Answer a kube-scheduler. Without --cluster the cluster is the one that the service account (in a pod) or the
kubeconfig names; it is watched, and nothing is answered before all of it is known. Of a frozen one nothing is written:
no pod is bound or evicted, and `explain` shows which eviction would help."""

from __future__ import annotations

import argparse
from pathlib import Path

from extender.cli import cluster_file
from extender.cli.options import add_address, add_config, add_logging, configure_logging, settings_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_config(parser)
    add_address(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: in a pod its account, else kubectl's")
    cluster_file.add_cluster(parser, source)
    parser.add_argument(
        "--record", metavar="DIR", type=Path,
        help="record requests, and what changes between them, for the command replay (settings: record)",
    )  # fmt: skip
    add_logging(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; 1 when the server could not start."""
    configure_logging(options)
    settings = settings_of(options)
    from extender.server import serve  # here: --help, a wrong option or a refused file need not load a server

    kubeconfig = str(options.kubeconfig) if options.kubeconfig else None
    return serve.run(
        settings,
        kubeconfig=kubeconfig,
        cluster_file=options.cluster,
        config_file=options.config,
        record=options.record,
    )
