"""Where this process runs: whose credentials it uses, and in which namespace its objects are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def default_kubeconfig() -> str | None:
    """None in a pod (its service account is used), else the file that kubectl reads."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def own_namespace(setting: str) -> str:
    """The namespace of the settings; else, in a pod, its own; else kube-system, which exists everywhere."""
    if setting:
        return setting
    try:
        return ACCOUNT.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"
