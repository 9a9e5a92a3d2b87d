"""The option --cluster, and the one command that writes such a file from a live cluster."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Final

KINDS: Final = (
    "nodes", "pods", "poddisruptionbudgets.policy", "priorityclasses.scheduling.k8s.io", "resourcequotas",
    "deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io", "devicetaintrules.resource.k8s.io", "jobs.batch", "deployments.apps",
    "replicasets.apps", "statefulsets.apps",
    "podgroups.scheduling.k8s.io", "podgroups.scheduling.x-k8s.io", "podgroups.scheduling.volcano.sh",
    "workloads.scheduling.k8s.io", "jobsets.jobset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io",
    "rayclusters.ray.io", "pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org", "mpijobs.kubeflow.org",
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
