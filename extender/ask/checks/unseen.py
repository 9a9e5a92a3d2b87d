"""What is not seen: pods about which we are not asked (of other schedulers, other resource names, and resource claims
alone); names and values with our prefix that nothing reads; node labels that state where a node stands and are no
level, and gangs that require a level of no node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from extender.ask import warn
from extender.ask.checks.finding import Finding, Item, Posture, at, listed, mapping, verb
from extender.ask.text import count
from extender.cluster.slices import finish
from extender.objects.annotations import Typo, typos_of_node, typos_of_pod
from extender.objects.queueing import QUEUEING, domain_of, is_queued
from extender.objects.records import PodRecord
from extender.queue.levels import Layout, unread

LOOKS_LIKE_GPU: Final = ("gpu", "nvidia.com/", "amd.com/", "mig-", "xpu", "habana.ai/", "neuron")

REMEDY: Final = (
    "Write the schedulerName of a profile that has gpu-extender among its extenders, and leave the other one out of "
    "`schedulers` of the settings; or add the extender to it."
)


def findings(posture: Posture) -> Iterator[Finding]:
    """Of each kind; equal ones are grouped."""
    yield from _resources(posture)
    yield from _schedulers(posture)
    yield from _typos(posture)
    yield from _levels(posture)


def _resources(posture: Posture) -> Iterator[Finding]:
    """Resource names that look like GPUs and are not managed, and pods with claims alone."""
    managed = posture.cluster.gpu_names
    users: Counter[str] = Counter()
    claims = 0
    for item in posture.of("Pod"):
        spec = mapping(at(item, "spec"))
        names = _asked(spec)
        claims += bool(spec.get("resourceClaims")) and not any(name in managed for name in names)
        users.update(name for name in names if name not in managed and _looks_like_gpu(name))
    offered: Counter[str] = Counter()
    for item in posture.of("Node"):
        names = set(mapping(at(item, "status", "allocatable")))
        offered.update(name for name in names if name not in managed and _looks_like_gpu(name))
    for name in sorted(users.keys() | offered.keys()):
        yield Finding(
            "warning", "resource-not-managed", f"resource/{name}",
            f"{count(users[name], 'pod')} {verb(users[name], 'asks', 'ask')} for it and "
            f"{count(offered[name], 'node')} {verb(offered[name], 'offers', 'offer')} it, but it is none of our "
            "resources: such pods are placed without us, and count nothing here",
            "Add it to `resources` of the settings and to `managedResources` of the scheduler's configuration.",
            (("pods", users[name]), ("nodes", offered[name])),
        )  # fmt: skip
    if claims:
        yield Finding(
            "info", "claims-not-shown", "cluster", f"{count(claims, 'pod')} {verb(claims, 'uses', 'use')} resource "
            "claims (DRA) and none of our resources: kube-scheduler does not show such pods to an extender that has "
            "managedResources", "Leave managedResources out of the scheduler's configuration, or ask for the resource "
            "name that the DeviceClass serves (extendedResourceName): docs/dra.md.", (("pods", claims),),
        )  # fmt: skip


def _asked(spec: Item) -> set[str]:
    return {
        name
        for part in ("containers", "initContainers")
        for container in listed(spec.get(part))
        for kind in ("requests", "limits")
        for name in mapping(at(container, "resources", kind))
    }


def _looks_like_gpu(name: str) -> bool:
    return "/" in name and any(part in name for part in LOOKS_LIKE_GPU)


def _schedulers(posture: Posture) -> Iterator[Finding]:
    """One for each pod that waits and each owner; equal ones are grouped."""
    for pod in posture.pods:
        if pod.gpus and not pod.node and not pod.finished:
            yield from _other_scheduler(posture, f"Pod/{pod.namespace}/{pod.name}", pod)
    for owner, item in posture.owners():
        for pod in {pod.scheduler_name: pod for pod in posture.pods_of(item) if pod.gpus}.values():
            yield from _other_scheduler(posture, "/".join(owner), pod)
    using = [pod for pod in posture.pods if pod.gpus and not pod.finished]
    for warning in warn.silent_schedulers(posture.cluster, (), using):
        yield Finding("warning", warning["code"], "cluster", warning["message"], REMEDY)


def _other_scheduler(posture: Posture, about: str, pod: PodRecord) -> Iterator[Finding]:
    text = warn.foreign_scheduler(pod, posture.settings)
    if text is not None:
        yield Finding(
            "warning", "other-scheduler", about, text,
            f"Write schedulerName: {posture.settings.schedulers[0]}, or add the name to schedulers of the settings if "
            "that profile has gpu-extender among its extenders.", repeats=True,
        )  # fmt: skip


def _typos(posture: Posture) -> Iterator[Finding]:
    """One for each object and name; equal ones are grouped."""
    cluster = posture.cluster
    for name in sorted(cluster.nodes):
        yield from (_typo(f"Node/{name}", typo) for typo in typos_of_node(cluster.nodes[name]))
    for pod in posture.pods:
        typos = typos_of_pod(pod, cluster.settings.topology_levels)
        yield from (_typo(f"Pod/{pod.namespace}/{pod.name}", typo) for typo in typos)


def _typo(about: str, typo: Typo) -> Finding:
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
        if domain.required and not (is_queued(pod) or pod.gates or pod.nominated_node):
            yield Finding(
                "warning", "domain-without-gate", f"Pod/{pod.namespace}/{pod.name}",
                f"requires one domain of level {domain.level}, which only the gate of the queue enforces: it has none",
                f"Label its namespace {QUEUEING}=enabled, and create the pods again.", repeats=True,
            )  # fmt: skip
        if not domains[domain.level]:
            effect = "its gang cannot start" if domain.required else "this has no effect"
            yield Finding(
                "warning", "domain-of-no-node", f"Pod/{pod.namespace}/{pod.name}",
                f"asks for one domain of level {domain.level}, which no node has: {effect}", nowhere, repeats=True,
            )  # fmt: skip
