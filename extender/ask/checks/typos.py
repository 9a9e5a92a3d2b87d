"""Names and values with our prefix that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from extender.ask.checks.finding import Finding, Posture
from extender.objects.typos import Typo, of_node, of_pod


def findings(posture: Posture) -> Iterator[Finding]:
    """One for each object and name; equal ones are grouped."""
    cluster = posture.cluster
    for name in sorted(cluster.nodes):
        yield from (_finding(f"Node/{name}", typo) for typo in of_node(cluster.nodes[name]))
    pods = sorted(cluster.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))
    for pod in pods:
        typos = of_pod(pod, cluster.settings.topology_levels)
        yield from (_finding(f"Pod/{pod.namespace}/{pod.name}", typo) for typo in typos)


def _finding(about: str, typo: Typo) -> Finding:
    remedy = f"Write {typo.suggestion}." if typo.suggestion is not None else "docs/annotations.md lists all names."
    return Finding("warning", typo.code, about, typo.text, remedy, repeats=True)
