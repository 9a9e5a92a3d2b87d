"""Answer a kube-scheduler. Without --cluster the cluster is the one that the service account (in a pod) or the
kubeconfig names; it is watched, and nothing is answered before all of it is known."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn

from extender import app, frozen
from extender.cli import options as shared
from extender.cluster import Cluster
from extender.errors import ExtenderError
from extender.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_config(parser)
    shared.add_address(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: in a pod its account, else kubectl's")
    source.add_argument(
        "--cluster",
        metavar="FILE",
        type=Path,
        help="a frozen cluster: what kubectl get nodes,pods,pdb,priorityclasses -A -o json prints (JSON or YAML)",
    )
    shared.add_logging(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    shared.configure_logging(options)
    settings = shared.settings_of(options)
    server = _frozen(settings, options.cluster) if options.cluster else _live(settings, options.kubeconfig)
    uvicorn.Server(app.config(app.create(server), settings)).run()
    return 0


def _frozen(settings: Settings, file: Path) -> app.Server:
    cluster = Cluster(settings)
    cluster.apply(frozen.read(file, frozenset(resource.name for resource in settings.resources)))
    return app.Server(settings, cluster)


def _live(settings: Settings, kubeconfig: Path | None) -> app.Server:
    raise ExtenderError("serving a live cluster is not written yet; use --cluster FILE", code="not-implemented")
