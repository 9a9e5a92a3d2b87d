"""The pods of a gang as roles: classes of pods that are equal for every rule, judged once each.

Labels may differ between the pods of a role (their index), as far as no required anti-affinity tells them apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ext_core import columns
from ext_core.rows import Role
from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.cluster.slices import Sliced, finish, pauses
from extender.cluster.tables import MOST_OTHERS, by_name, named
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import PodTerm, Taint, untolerated
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy

NODE: Final = "kubernetes.io/hostname"
"""The topology level of single nodes, whether or not they have the label."""
CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
MOST_ROLES: Final = 64
REPELLED: Final = 255  # no reason of a rule: those are below


class Unplaceable(ValueError):
    """The gang cannot be judged; the text says why."""


@dataclass(frozen=True, slots=True)
class PodRole:
    """Equal pods. `at`: their places among the gang's pods, ascending; `pod` and `request`: those of the first."""

    at: tuple[int, ...]
    pod: PodRecord
    request: PodRequest


class LabelClasses:
    """Which labels the required anti-affinity of bound pods tells apart, and that of further terms."""

    def __init__(self, cluster: ClusterView, more: Iterable[PodTerm] = ()) -> None:
        self._repelling, self._more = cluster.placements.repelling, tuple(more)
        self._terms: dict[str, tuple[PodTerm, ...]] = {}  # by namespace of the pods that they may match
        self._keys: dict[str, list[str]] = {}  # of the labels that they test, by the same
        self._known: dict[Hashable, tuple[int, ...]] = {}

    def __bool__(self) -> bool:
        """Whether any labels are told apart."""
        return bool(self._repelling or self._more)

    def of(self, pod: PodRecord) -> tuple[int, ...]:
        """Equal for pods of a namespace that the same terms may match."""
        if not self:
            return ()
        namespace = pod.namespace
        terms = self._terms.get(namespace)
        if terms is None:
            terms = tuple(dict.fromkeys((*self._repelling.terms(namespace), *self._more)))
            self._terms[namespace] = terms
            self._keys[namespace] = sorted({test.key for term in terms for test in term.selector.requirements})
        read = namespace, *map(pod.labels.get, self._keys[namespace])
        matching = self._known.get(read)
        if matching is None:
            matches = [term.may_match(namespace, pod.labels) for term in terms]
            matching = self._known[read] = tuple([at for at, match in enumerate(matches) if match])
        return matching


def roles_of(cluster: ClusterView, pods: Sequence[PodRecord], requests: Sequence[PodRequest]) -> list[PodRole]:
    """The roles, the largest pods first. Unplaceable: there are too many."""
    return finish(roles_in_slices(cluster, pods, requests))


def roles_in_slices(
    cluster: ClusterView, pods: Sequence[PodRecord], requests: Sequence[PodRequest]
) -> Sliced[list[PodRole]]:
    """As `roles_of`, in slices."""
    classes = LabelClasses(cluster, [term for terms in {pod.anti_affinity_terms for pod in pods} for term in terms])
    pods_of: dict[object, list[int]] = {}
    for at, ((pod, request), pause) in enumerate(pauses(zip(pods, requests, strict=True))):
        if pause:
            yield
        key = (
            (request.amounts, request.others, request.share, request.containers),
            (request.planned, request.links, request.nics),
            (request.priority, request.namespace),
            (pod.claimed, pod.claim_numbers, pod.claim_node, cluster.dra.fits.of(pod)),
            (pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms),
            classes.of(pod),
        )
        pods_of.setdefault(key, []).append(at)
    names = named({request.others for request in requests})
    if len(names) > MOST_OTHERS:
        raise Unplaceable(f"its pods ask for {len(names)} other resources, {MOST_OTHERS} are looked at together")
    if len(pods_of) > MOST_ROLES:
        raise Unplaceable(f"the gang has {len(pods_of)} different kinds of pods, {MOST_ROLES} can be placed together")
    roles = [PodRole(tuple(at), pods[at[0]], requests[at[0]]) for at in pods_of.values()]
    return sorted(roles, key=lambda role: (role.request.share, role.request.wanted, role.request.amounts), reverse=True)


def kernel_roles(roles: Sequence[PodRole]) -> list[Role]:
    """The roles as the kernel reads them."""
    return [
        Role(
            role.request.ask,
            len(role.at),
            against=sum(1 << c for c, other in enumerate(roles) if _repel(role, other)),
            cordoned=untolerated((CORDON,), role.pod.tolerations) is None,
        )
        for role in roles
    ]


@dataclass(frozen=True, slots=True)
class RoleOthers:
    """What the pods of some roles ask for of resources that are no columns of the tables."""

    names: tuple[str, ...]
    asked: list[tuple[int, ...]]
    """For each role how much one pod asks for of each."""

    @classmethod
    def of(cls, roles: Sequence[PodRole]) -> RoleOthers:
        """Of these roles."""
        names = named({role.request.others for role in roles})
        return cls(names, [by_name(role.request.others, names) for role in roles])

    def left(self, cluster: ClusterView, rows: Sequence[int]) -> array[int] | None:
        """What is left on the rows, as `Joint.read` takes it."""
        if not self.names:
            return None
        nodes = (cluster.nodes[cluster.names[row]] for row in rows)
        return cluster.placements.others.column(nodes, self.names)


def _repel(role: PodRole, other: PodRole) -> bool:
    """Whether pods of the two roles may not be on one node."""
    return any(term.may_match(other.pod.namespace, other.pod.labels) for term in _terms(role.pod)) or any(
        term.may_match(role.pod.namespace, role.pod.labels) for term in _terms(other.pod)
    )


def _terms(pod: PodRecord) -> list[PodTerm]:
    return [term for term in pod.anti_affinity_terms if term.topology_key == NODE]


def judged(
    cluster: ClusterView, policy: Policy, role: PodRole, rows: array[int], apart: Collection[int]
) -> tuple[array[int], array[int]]:
    """(a reason code for each row, 0 = one pod passes the rules of filter; uint64, one bit a row of the table that its
    node selector, node affinity and tolerations admit). `apart`: rows that reject it too, as `repelled` finds them.
    Unplaceable: the pod asks for more than can be looked at."""
    admits = _admits(cluster, role.pod)
    codes = policy.judge(cluster.tables, role.request, rows)
    if apart:
        for i, row in enumerate(rows):
            if row in apart:
                codes[i] = REPELLED
    return codes, admits


def admitted(cluster: ClusterView, pod: PodRecord, rows: array[int]) -> array[int]:
    """The rows that the pod's node selector, node affinity and tolerations, cordons, and required anti-affinity of and
    against the bound pods of the node leave. Unplaceable: the selector has too many parts."""
    passing = columns.kept(rows, _admits(cluster, pod))
    apart = repelled(cluster, pod)
    if untolerated((CORDON,), pod.tolerations) is not None:
        apart.update(cluster.row(name) for name in cluster.restricted if cluster.nodes[name].unschedulable)
    return array("i", [row for row in passing if row not in apart]) if apart else passing


def takes(node: NodeRecord, pod: PodRecord) -> bool:
    """Whether the node is not closed to the pod by a cordon or a taint, and the pod's node selector and required node
    affinity let it onto the node."""
    if node.unschedulable and untolerated((CORDON,), pod.tolerations) is not None:
        return False
    return pod.accepts(node) and untolerated(node.taints, pod.tolerations) is None


def _admits(cluster: ClusterView, pod: PodRecord) -> array[int]:
    try:
        program = cluster.eligibility.program(pod.node_selector, pod.node_terms, pod.tolerations, MOST_PARTS)
    except TooLong:
        raise Unplaceable(f"the node selector of pod {pod.namespace}/{pod.name} has too many parts") from None
    return cluster.eligibility.rows(program)


def repelled(cluster: ClusterView, pod: PodRecord) -> set[int]:
    """Rows of the nodes where a bound pod keeps the pod off by required anti-affinity, its own or the pod's."""
    names = cluster.placements.repelling.nodes(pod, cluster.nodes.keys())
    terms = _terms(pod)
    if terms:
        names.update(
            other.node
            for other in cluster.pods.values()
            if other.node
            and not other.finished
            and any(term.may_match(other.namespace, other.labels) for term in terms)
        )
    return {cluster.row(name) for name in names}
