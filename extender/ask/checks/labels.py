"""Names and values with our prefix that nothing reads, node labels that state where a node stands and are no level,
and gangs that require a level of no node."""

from __future__ import annotations

from collections.abc import Iterator

from extender.ask.checks.finding import Finding, Posture
from extender.cluster.slices import finish
from extender.objects.annotations import Typo, typos_of_node, typos_of_pod
from extender.objects.queueing import domain_of
from extender.queue.levels import Layout, unread


def findings(posture: Posture) -> Iterator[Finding]:
    """One for each object and name; equal ones are grouped."""
    yield from _typos(posture)
    yield from _levels(posture)


def _typos(posture: Posture) -> Iterator[Finding]:
    """One for each object and name; equal ones are grouped."""
    cluster = posture.cluster
    for name in sorted(cluster.nodes):
        yield from (_finding(f"Node/{name}", typo) for typo in typos_of_node(cluster.nodes[name]))
    for pod in posture.pods:
        typos = typos_of_pod(pod, cluster.settings.topology_levels)
        yield from (_finding(f"Pod/{pod.namespace}/{pod.name}", typo) for typo in typos)


def _finding(about: str, typo: Typo) -> Finding:
    remedy = f"Write {typo.suggestion}." if typo.suggestion is not None else "docs/annotations.md lists all names."
    return Finding("warning", typo.code, about, typo.text, remedy, repeats=True)


def _levels(posture: Posture) -> Iterator[Finding]:
    """One for each label, and one for each pod; equal ones are grouped."""
    cluster = posture.cluster
    labels = finish(unread(cluster))
    for key, nodes in labels.items():
        yield Finding(
            "warning", "label-not-a-level", f"label/{key}",
            "node label looks like a level of the topology, and is read as none: no gang is kept inside its domains",
            f"Add {key} to topologyLevels of the settings, at its place from the closest level to the largest; a gang "
            f"can also state gpu-extender.io/domain: required:{key}.", (("nodes", nodes),),
        )  # fmt: skip
    layout = Layout(cluster)
    nowhere = "Label the nodes, or add the label that they have to topologyLevels of the settings."
    domains: dict[str, int] = {}
    for pod in posture.pods:
        domain = None if pod.node or pod.finished or not cluster.nodes else domain_of(pod)
        if domain is None:
            continue
        if domain.level not in domains:
            domains[domain.level] = layout.asked(domain.level).domains
        if not domains[domain.level]:
            effect = "its gang cannot start" if domain.required else "this has no effect"
            yield Finding(
                "warning", "domain-of-no-node", f"Pod/{pod.namespace}/{pod.name}",
                f"asks for one domain of level {domain.level}, which no node has: {effect}", nowhere, repeats=True,
            )  # fmt: skip
