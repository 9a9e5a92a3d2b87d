"""Kinds of pods: what a GPU pod asks for, as far as the price of slots depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from extender.objects.records import PodRecord
from extender.objects.resources import cpus, gib
from extender.objects.selectors import Requirement

LINKS: Final = "gpu-extender.io/links"
NICS: Final = "gpu-extender.io/nics"
MODES: Final = ("ignore", "preferred", "required")
MOST_WHERE: Final = 1024
"""Characters of the labels that one pod asks for; a pod that asks for more counts as one for any node."""
MOST_TERMS: Final = 64
"""Terms, requirements and values that one pod asks for; more count as any node."""

Where = tuple[tuple[Requirement, ...], ...]
"""Labels that a node must have: all requirements of one of these; () is any node."""


class Kind(NamedTuple):
    """Pods that ask for the same. `devices` GPUs of `resource`, `share` units of each; `linked`: 0 links do not
    matter, 1 preferred, 2 required."""

    resource: str
    devices: int
    share: int
    cpu: int
    memory: int
    where: Where
    linked: int

    def __str__(self) -> str:
        parts = [f"{self.devices} x {self.resource}"]
        if self.share > 1:
            parts.append(f"{self.share} units")
        if self.linked:
            parts.append(f"links {MODES[self.linked]}")
        parts += [cpus(self.cpu), gib(self.memory)]
        if self.where:
            parts.append(" or ".join(" and ".join(_text(requirement) for requirement in term) for term in self.where))
        return ", ".join(parts)


def _text(requirement: Requirement) -> str:
    return " ".join((requirement.key, requirement.operator.lower(), "|".join(requirement.values))).strip()


def links_of(pod: PodRecord) -> str:
    """required, preferred or ignore. An invalid value counts as required."""
    stated = pod.annotations.get(LINKS)
    if stated is None:
        return "preferred"
    word = stated.strip().lower()
    return word if word in MODES else "required"


def nics_of(pod: PodRecord) -> str:
    """required, preferred or ignore; "" where the pod states nothing. An invalid value counts as required."""
    stated = pod.annotations.get(NICS)
    if stated is None:
        return ""
    word = stated.strip().lower()
    return word if word in MODES else "required"


def is_particular(pod: PodRecord) -> bool:
    """Whether it matters to the pod which GPUs of a node it gets: it requires links or NICs."""
    return links_of(pod) == "required" or nics_of(pod) == "required"


def kind_of(pod: PodRecord, resources: Iterable[str], labels: Iterable[str]) -> Kind | None:
    """What a pod asks for; None without GPUs. `resources`: those that count; `labels`: those that distinguish machines.

    With several GPU resources: the one it asks most of, among equals the first.
    """
    order = {name: i for i, name in enumerate(resources)}
    asked = [(-count, order[name], name) for name, count in pod.gpus if name in order]
    if not asked:
        return None
    count, _, name = min(asked)
    linked = MODES.index(links_of(pod)) if -count > 1 else 0
    return Kind(name, -count, 1, pod.cpu_milli, pod.memory, where_of(pod, labels), linked)


def where_of(pod: PodRecord, labels: Iterable[str]) -> Where:
    """What nodeSelector and required node affinity ask of these labels; requirements on other labels are left out."""
    known = frozenset(labels)
    if not _short(pod, known):
        return ()  # kinds are kept for long, and written to a ConfigMap
    chosen = [Requirement(key, "In", (value,)) for key, value in pod.node_selector if key in known]
    terms = {
        tuple(sorted({*chosen, *(_sorted(requirement) for requirement in term.labels if requirement.key in known)}))
        for term in pod.node_terms or ()
    } or {tuple(sorted(chosen))}
    return () if () in terms else tuple(sorted(terms))


def _short(pod: PodRecord, known: frozenset[str]) -> bool:
    """Whether what the pod asks of these labels is short enough to be kept."""
    terms = pod.node_terms or ()
    if len(terms) > MOST_TERMS or sum(len(term.labels) for term in terms) > MOST_TERMS:
        return False
    asked = [requirement.values for term in terms for requirement in term.labels if requirement.key in known]
    if sum(map(len, asked)) > MOST_TERMS:
        return False
    return sum(len(value) for values in asked for value in values) <= MOST_WHERE


def _sorted(requirement: Requirement) -> Requirement:
    return Requirement(requirement.key, requirement.operator, tuple(sorted(set(requirement.values))))
