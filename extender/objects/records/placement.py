"""Where a pod may run: affinity, tolerations, label selectors, host ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import Any, Final

from extender.objects import schema
from extender.objects.records.parts import strings
from extender.objects.schema import RecordError
from extender.objects.selectors import NOTHING, NodeTerm, Operator, PodTerm, Requirement, Selector, Toleration

_SHARED_TOLERATIONS: Final = 16  # of one pod, that are kept for other pods with the same
_SHARED: Final = 1024  # characters of their keys and values


def asks_host_ports(spec: schema.PodSpec) -> bool:
    """Whether any container uses a port of the node."""
    for containers in (spec.containers, spec.init_containers):
        for one in containers or ():
            if one.ports and (spec.host_network or any(port.host_port for port in one.ports)):
                return True
    return False


def requirements(wire: Iterable[schema.Expression] | None, path: str) -> Iterator[Requirement]:
    """The tests of labels; RecordError, at `path`, for a number of values that the operator does not allow."""
    for index, one in enumerate(wire or ()):
        values = tuple(one.values or ())
        # An empty In matches nothing and an empty NotIn everything: the API refuses them, so do we.
        wrong = not values if one.operator in ("In", "NotIn") else bool(values) if "Exist" in one.operator else False
        if wrong:
            raise RecordError(f"{path}[{index}].values", f"{len(values)} values for operator {one.operator}")
        yield Requirement(intern(one.key), intern(one.operator), values)  # type: ignore[arg-type]


def selector(wire: schema.LabelSelector | None, path: str) -> Selector:
    """A label selector; null selects nothing."""
    if wire is None:
        return NOTHING
    equal: Operator = "In"
    found = [Requirement(key, equal, (text,)) for key, text in sorted(strings(wire.match_labels).items())]
    for one in requirements(wire.match_expressions, f"{path}.matchExpressions"):
        if one.operator in ("Gt", "Lt"):
            raise RecordError(f"{path}.matchExpressions", f"operator {one.operator} is for nodes only")
        found.append(one)
    return Selector(tuple(found))


def affinity(
    wire: schema.Affinity | None, namespace: str
) -> tuple[bool, tuple[PodTerm, ...], tuple[PodTerm, ...], tuple[NodeTerm, ...] | None]:
    """(any preferred term, required anti-affinity, required pod affinity, required node affinity)."""
    if wire is None:
        return False, (), (), None
    nodes, near, apart = wire.node_affinity, wire.pod_affinity, wire.pod_anti_affinity
    repelling, attracting = (
        tuple(
            pod_term(one, namespace, f"spec.affinity.{field}.requiredDuringScheduling[{index}]")
            for index, one in enumerate((part and part.required) or ())
        )
        for field, part in (("podAntiAffinity", apart), ("podAffinity", near))
    )
    preferred = any(part is not None and part.preferred for part in (nodes, near, apart))
    terms: tuple[NodeTerm, ...] | None = None
    if nodes is not None and nodes.required is not None:
        path = "spec.affinity.nodeAffinity"
        terms = tuple(
            NodeTerm(
                tuple(requirements(one.match_expressions, f"{path}.matchExpressions")),
                tuple(requirements(one.match_fields, f"{path}.matchFields")),
            )
            for one in nodes.required.node_selector_terms or ()
        )
    return preferred, repelling, attracting, terms


def crosses_namespaces(wire: schema.Affinity | None) -> bool:
    """Whether a term of pod affinity or anti-affinity, required or preferred, names namespaces."""
    for part in (wire.pod_affinity, wire.pod_anti_affinity) if wire is not None else ():
        for term in (part and part.required) or ():
            if term.namespaces or term.namespace_selector is not None:
                return True
        for weighted in (part and part.preferred) or ():
            named = weighted.term if isinstance(weighted.term, dict) else {}
            if named.get("namespaces") or named.get("namespaceSelector") is not None:
                return True
    return False


def pod_term(wire: schema.PodAffinityTerm, namespace: str, path: str) -> PodTerm:
    """A required term of pod affinity or anti-affinity. `namespace`: the pod's own."""
    # Neither namespaces nor a selector of them: the pod's own. Both: their union, of which we know a part only.
    named = None if wire.namespace_selector is not None else frozenset(wire.namespaces or (namespace,))
    return PodTerm(
        intern(wire.topology_key),
        selector(wire.label_selector, f"{path}.labelSelector"),
        named,
        tuple(wire.match_label_keys or ()),
        tuple(wire.mismatch_label_keys or ()),
    )


def tolerations(wire: Iterable[schema.Toleration] | None) -> tuple[Toleration, ...]:
    """The tolerations of a pod; short ones are shared among pods."""
    found = tuple([(one.key, one.operator, one.value, one.effect) for one in wire or ()])
    if len(found) <= _SHARED_TOLERATIONS and sum([len(one[0] or "") + len(one[2] or "") for one in found]) <= _SHARED:
        return shared_tolerations(found)
    return _made(found)


def _made(all_of_one_pod: tuple[tuple[Any, Any, Any, Any], ...]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(key or "", operator or "Equal", text or "", effect or "")
        for key, operator, text, effect in all_of_one_pod
    )


# Nearly every pod has the same two, so nearly all share one tuple. Tenants write them: what one pod may leave here is
# short (16 tolerations of 1,024 characters in all, below 10 kB), so all together are below 10 MB.
shared_tolerations = lru_cache(maxsize=1024)(_made)
