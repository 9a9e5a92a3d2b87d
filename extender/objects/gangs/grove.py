"""Grove: the PodGangs of a PodCliqueSet.

A replica of the set has a base PodGang: its cliques, and of each scaling group as many replicas as must be available.
Each further replica of a scaling group is a PodGang of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extender.objects.gangs import templates
from extender.objects.gangs.roles import MOST, OwnerObject, OwnerRoles, Role, Section
from extender.objects.gangs.source import GangSource, Ref
from extender.objects.records import PodRecord
from extender.objects.schema import RecordError

PREFIX: Final = "grove.io/"
GANG: Final = f"{PREFIX}podgang"
CLIQUE: Final = f"{PREFIX}podclique"
INDEX: Final = f"{PREFIX}podclique-pod-index"
POD_GANG: Final = ("scheduler.grove.io", "PodGang")
MOST_GANGS: Final = 2_000
"""PodGangs of one set; of more none is read."""


class Grove(GangSource):
    """Pods with the label of the PodGang."""

    name = "grove"
    states = "podgangs.scheduler.grove.io"
    kinds = (POD_GANG,)
    creates = False

    def named(self, pod: PodRecord) -> Ref | None:
        """By the label."""
        name = pod.labels.get(GANG)
        return Ref(self.name, pod.namespace, name) if name else None

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """The minima of its pod groups, and all pods that they name."""
        groups = owner.spec.sections("podgroups")
        if not groups:
            return OwnerRoles()
        least = sum(group.number("minReplicas") or 0 for group in groups)
        size = sum(len(group.sections("podReferences")) for group in groups)
        return OwnerRoles(minimum=least, size=max(size, least))


def pod_clique_set(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """Each PodGang of the set. Its minimum counts pods: that of each clique is not kept apart."""
    template = owner.spec.section("template")
    cliques = {clique.text("name"): clique for clique in template.sections("cliques")}
    groups = template.sections("podCliqueScalingGroups")
    members = {group.text("name"): _members(group, cliques) for group in groups}
    grouped = {name for names in members.values() for name in names}
    alone = [clique for name, clique in cliques.items() if name not in grouped]
    priority = template.text("priorityClassName")
    replicas = owner.spec.number("replicas") or 0
    if replicas * (1 + sum(group.count("replicas") for group in groups)) > MOST_GANGS:
        raise RecordError(owner.spec.at("replicas"), f"it has more than {MOST_GANGS} PodGangs, and none is read")
    for replica in range(replicas):
        base = f"{owner.name}-{replica}"
        roles = [_role(clique, f"{base}-{clique.text('name')}", priority) for clique in alone]
        scaled: list[OwnerRoles] = []
        for group in groups:
            least = group.number("minAvailable")
            least = 1 if least is None else least
            for number in range(group.count("replicas")):
                prefix = f"{base}-{group.text('name')}-{number}"
                inner = [_role(cliques[name], f"{prefix}-{name}", priority) for name in members[group.text("name")]]
                if number < least:
                    roles += inner
                else:
                    scaled.append(_gang(f"{base}-{group.text('name')}-{number - least}", inner))
        yield _gang(base, roles)
        yield from scaled


def _members(group: Section, cliques: dict[str, Section]) -> list[str]:
    names = group.texts("cliqueNames")
    for name in names:
        if name not in cliques:
            raise RecordError(group.at("cliqueNames"), f"there is no clique {name!r}")
    return names


def _role(clique: Section, name: str, priority: str) -> tuple[Role, int]:
    """(the pods of a clique, how many of them must run)."""
    spec = clique.section("spec")
    pod_spec = spec.section("podSpec")
    template = templates.of_spec(spec.raw("podSpec"), clique.raw("labels"), clique.raw("annotations"))
    if priority and not pod_spec.text("priorityClassName"):
        template["spec"] = {**pod_spec.fields, "priorityClassName": priority}
    count = min(spec.count("replicas"), MOST + 1)
    least = spec.number("minAvailable")
    role = Role(template, spec.at("podSpec"), count, name=name, index_label=INDEX, labels={CLIQUE: name})
    return role, count if least is None else min(least, count)


def _gang(name: str, roles: list[tuple[Role, int]]) -> OwnerRoles:
    labelled = tuple(role.with_labels({GANG: name}) for role, _ in roles)
    least = sum(least for _, least in roles)
    size = sum(role.count for role, _ in roles)
    return OwnerRoles(labelled, minimum=least, size=size, stated_in=POD_GANG, name=name)
