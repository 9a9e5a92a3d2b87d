"""Grove: the PodGangs of a PodCliqueSet.

A replica of the set has a base PodGang: its cliques, and of each scaling group as many replicas as must be available.
Each further replica of a scaling group is a PodGang of its own. `reuseReservationRef` is a suggestion to the scheduler,
and is named as not read: the pods of the PodGang that it names hold their GPUs until they are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from extender.objects.gangs.roles import MOST, GangSource, OwnerObject, OwnerRoles, Role, Section, of_spec
from extender.objects.records import PartDomain
from extender.objects.schema import RecordError

PREFIX: Final = "grove.io/"
GANG: Final = f"{PREFIX}podgang"
CLIQUE: Final = f"{PREFIX}podclique"
INDEX: Final = f"{PREFIX}podclique-pod-index"
POD_GANG: Final = ("scheduler.grove.io", "PodGang")
MOST_GANGS: Final = 2_000
"""PodGangs of one set; of more none is read."""


Place = tuple[str, bool]
"""A level, and whether pods must be together there."""
Inner = tuple[Place | None, tuple[str, ...]]
"""The place of a part of a PodGang, and its PodCliques."""


class Grove(GangSource):
    """Pods with the label of the PodGang."""

    name = "grove"
    states = "podgangs.scheduler.grove.io"
    kinds = (POD_GANG,)
    marks = (GANG,)
    creates = False

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """The minima of its pod groups, and all pods that they name."""
        spec = owner.spec
        groups = spec.sections("podgroups")
        if not groups:
            return OwnerRoles()
        minima = tuple((group.text("name"), group.number("minReplicas") or 0) for group in groups)
        least = sum(number for _, number in minima)
        size = sum(len(group.sections("podReferences")) for group in groups)
        configs = spec.sections("topologyConstraintGroupConfigs")
        inner = [
            *((_packed(config), tuple(config.texts("podGroupNames"))) for config in configs),
            *((_packed(group), (group.text("name"),)) for group in groups),
        ]
        domain, parts = _together(_packed(spec), inner, len(groups))
        before = spec.section("reuseReservationRef").text("name")
        unchecked = (f"reuse of the places of PodGang {before}",) if before else ()
        return OwnerRoles((), least, minima, max(size, least), domain=domain, part_domains=parts, unchecked=unchecked)


def _packed(section: Section) -> Place | None:
    """The level at which a PodGang or a part of it is together, and whether it must be."""
    stated = section.section("topologyConstraint").section("packConstraint")
    required, preferred = stated.text("required"), stated.text("preferred")
    return (required or preferred, bool(required)) if required or preferred else None


def _together(whole: Place | None, inner: Iterable[Inner], groups: int) -> tuple[Place | None, tuple[PartDomain, ...]]:
    """(the domain of a PodGang, those that are required of its parts). A part that is all of it counts as it.
    `groups`: how many PodCliques it has."""
    parts: list[PartDomain] = []
    for place, names in inner:
        if place is not None and len(names) == groups:
            whole = place  # the closest comes last
        elif place is not None and place[1] and names:
            parts.append(PartDomain(names, place[0]))
    return whole, tuple(parts)


SHORT_LEVELS: Final = {
    "region": "topology.kubernetes.io/region", "zone": "zone", "block": "block", "rack": "rack", "host": "node",
}  # fmt: skip
"""Levels of Grove that stand for a node label without a ClusterTopology in the question."""


def _level(owner: OwnerObject, section: Section) -> Place | None:
    """The level that a set, a scaling group or a clique states, which its pods must share: a node label by the
    ClusterTopology in the question."""
    stated = section.section("topologyConstraint")
    if not (level := stated.text("packDomain")):
        return None
    name = stated.text("topologyName") or "grove-topology"
    topologies = [owner.beside("grove.io", kind, name) for kind in ("ClusterTopologyBinding", "ClusterTopology")]
    keys = {
        entry.text("domain"): entry.text("key")
        for topology in topologies
        if topology is not None
        for entry in topology.spec.sections("levels")
    }
    return keys.get(level) or SHORT_LEVELS.get(level, level), True


def pod_clique_set(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """Each PodGang of the set."""
    template = owner.spec.section("template")
    cliques = {clique.text("name"): clique for clique in template.sections("cliques")}
    groups = template.sections("podCliqueScalingGroups")
    members = {group.text("name"): _members(group, cliques) for group in groups}
    grouped = {name for names in members.values() for name in names}
    alone = [clique for name, clique in cliques.items() if name not in grouped]
    places = {name: _level(owner, section) for name, section in [("", template), *cliques.items()]}
    replicas = owner.spec.number("replicas") or 0
    if replicas * (1 + sum(max(0, group.count("replicas")) for group in groups)) > MOST_GANGS:
        raise RecordError(owner.spec.at("replicas"), f"it has more than {MOST_GANGS} PodGangs, and none is read")
    for replica in range(replicas):
        base = f"{owner.name}-{replica}"
        roles = [_role(clique, f"{base}-{clique.text('name')}") for clique in alone]
        inner: list[Inner] = [(places[clique.text("name")], (f"{base}-{clique.text('name')}",)) for clique in alone]
        scaled: list[OwnerRoles] = []
        for group in groups:
            least, place = group.number("minAvailable"), _level(owner, group)
            least = 1 if least is None else least
            for number in range(group.count("replicas")):
                prefix = f"{base}-{group.text('name')}-{number}"
                names = members[group.text("name")]
                of_group = [_role(cliques[name], f"{prefix}-{name}") for name in names]
                of_cliques: list[Inner] = [(places[name], (f"{prefix}-{name}",)) for name in names]
                if number < least:
                    roles += of_group
                    inner += [(place, tuple(role.name for role, _ in of_group)), *of_cliques]
                else:
                    name = f"{base}-{group.text('name')}-{number - least}"
                    scaled.append(_gang(name, of_group, place or places[""], of_cliques))
        yield _gang(base, roles, places[""], inner)
        yield from scaled


def _members(group: Section, cliques: dict[str, Section]) -> list[str]:
    names = group.texts("cliqueNames")
    for name in names:
        if name not in cliques:
            raise RecordError(group.at("cliqueNames"), f"there is no clique {name!r}")
    return names


def _role(clique: Section, name: str) -> tuple[Role, int]:
    """(the pods of a clique, how many of them must run). The operator writes the priority of the set on PodGangs alone:
    for kube-scheduler that of the clique's pods counts."""
    spec = clique.section("spec")
    template = of_spec(spec.raw("podSpec"), clique.raw("labels"), clique.raw("annotations"))
    count = min(spec.count("replicas"), MOST + 1)
    least = spec.number("minAvailable")
    role = Role(template, spec.at("podSpec"), count, name=name, index_label=INDEX, labels={CLIQUE: name})
    return role, count if least is None else min(least, count)


def _gang(name: str, roles: list[tuple[Role, int]], whole: Place | None, inner: Iterable[Inner]) -> OwnerRoles:
    labelled = tuple(role.with_labels({GANG: name}) for role, _ in roles)
    minima = tuple((role.name, least) for role, least in roles)
    size, least = sum(role.count for role, _ in roles), sum(least for _, least in roles)
    domain, parts = _together(whole, inner, len(roles))
    return OwnerRoles(labelled, least, minima, size, stated_in=POD_GANG, name=name, domain=domain, part_domains=parts)
