"""Kubernetes' three ways to choose objects by their labels and taints, decoded once and asked often.

``Selector`` is metav1.LabelSelector (PodDisruptionBudgets, pod affinity), ``NodeTerm`` a node selector term (node
affinity), ``Toleration``/``Taint`` the pair that keeps pods off nodes. All are immutable values without a link back to
the object they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Final, Literal, NamedTuple

from extender.objects import schema
from extender.objects.parts import strings
from extender.objects.schema import RecordError

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Labels = Mapping[str, str]
MOST_VALUES: Final = 64
"""Of one requirement, that are looked through. An object of 1.5 MB has room for 150,000, and tenants write some."""


class ManyValues(tuple[str, ...]):
    """Values of a requirement that are looked up, not looked through."""

    def __init__(self, values: Iterable[str]) -> None:
        self._set = frozenset(self)  # `values` may have been read

    def __contains__(self, value: object) -> bool:
        return value in self._set


class Requirement(NamedTuple):
    """One test of one label. A label that is absent satisfies NotIn and DoesNotExist, and nothing else."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether these labels pass."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        # As apimachinery's labels.Requirement: both sides must be int64, else no match.
        bound = integer(self.values[0]) if len(self.values) == 1 else None
        number = None if value is None else integer(value)
        if bound is None or number is None:
            return False
        return number > bound if self.operator == "Gt" else number < bound


class Selector(NamedTuple):
    """A label selector. ``nothing`` is the null selector, which matches no object; no requirement matches all."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    @property
    def empty(self) -> bool:
        """Present but without a requirement: Kubernetes' "everything"."""
        return not self.nothing and not self.requirements

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is chosen."""
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)


NOTHING = Selector(nothing=True)


class PodTerm(NamedTuple):
    """One required pod (anti-)affinity term.

    ``namespaces`` are the namespaces it looks into; None when it chooses them by their labels, which we do not watch.
    ``match_keys`` and ``mismatch_keys``: labels of the pod itself that count in the selector. The API server adds them
    to the selector of each pod that it creates.
    """

    topology_key: str
    selector: Selector
    namespaces: frozenset[str] | None
    match_keys: tuple[str, ...] = ()
    mismatch_keys: tuple[str, ...] = ()

    def may_match(self, namespace: str, labels: Labels) -> bool:
        """Whether the term speaks of such a pod. Of an unknown set of namespaces, every namespace may be one."""
        return (self.namespaces is None or namespace in self.namespaces) and self.selector.matches(labels)

    def with_keys(self, labels: Labels) -> PodTerm:
        """The term of a pod with these labels as the API server writes it. A label that the pod does not have adds
        nothing."""
        own = [Requirement(key, "In", (labels[key],)) for key in self.match_keys if key in labels]
        own += [Requirement(key, "NotIn", (labels[key],)) for key in self.mismatch_keys if key in labels]
        return self._replace(selector=self.selector._replace(requirements=(*self.selector.requirements, *own)))


class NodeTerm(NamedTuple):
    """One node selector term: labels and fields (only metadata.name exists). An empty term matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether the node passes every requirement."""
        if not self.labels and not self.fields:
            return False
        named = {"metadata.name": name}
        return all(test.matches(labels) for test in self.labels) and all(test.matches(named) for test in self.fields)


class Taint(NamedTuple):
    """What a node asks pods to tolerate."""

    key: str
    value: str
    effect: Effect


class Toleration(NamedTuple):
    """What a pod tolerates. An empty key with Exists tolerates all keys; an empty effect all effects."""

    key: str
    operator: Literal["Equal", "Exists", "Lt", "Gt"]
    value: str
    effect: Effect | Literal[""]

    def tolerates(self, taint: Taint) -> bool:
        """As core/v1 ``Toleration.ToleratesTaint``; Lt and Gt compare the taint's value with ours as integers."""
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        if self.operator == "Exists":
            return True
        if self.operator == "Equal":
            return self.value == taint.value
        ours, theirs = _canonical(self.value), _canonical(taint.value)
        if ours is None or theirs is None:
            return False
        return theirs < ours if self.operator == "Lt" else theirs > ours


def tolerates(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Whether these tolerate each of the taints of a device."""
    return all(any(toleration.tolerates(taint) for toleration in tolerations) for taint in taints)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps the pod off the node (NoSchedule and NoExecute do), or None."""
    held = tuple(tolerations)
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(toleration.tolerates(taint) for toleration in held):
            return taint
    return None


def _canonical(text: str) -> int | None:
    number = integer(text)
    return number if str(number) == text else None  # "007" and "+7" are no numbers to core/v1's comparison


def integer(text: str) -> int | None:
    """The int64 that the text is to strconv.ParseInt, None when it is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    # strconv.ParseInt takes ASCII digits and a sign only; int() would take blanks, underscores and other scripts.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


# -- from the API's form: affinity, tolerations, label selectors, host ports


_SHARED_TOLERATIONS: Final = 16  # of one pod, that are kept for other pods with the same
_SHARED: Final = 1024  # characters of their keys and values


def asks_host_ports(spec: schema.PodSpec) -> bool:
    """Whether any container uses a port of the node."""
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.ports and (spec.host_network or any(port.host_port for port in container.ports)):
                return True
    return False


def requirements(wire: Iterable[schema.Expression] | None, path: str) -> Iterator[Requirement]:
    """The tests of labels; RecordError, at `path`, for a number of values that the operator does not allow."""
    for index, test in enumerate(wire or ()):
        stated = test.values or ()
        values = ManyValues(stated) if len(stated) > MOST_VALUES else tuple(stated)
        # An empty In matches nothing and an empty NotIn everything: the API refuses them, so do we.
        wrong = not values if test.operator in ("In", "NotIn") else bool(values) if "Exist" in test.operator else False
        if wrong:
            raise RecordError(f"{path}[{index}].values", f"{len(values)} values for operator {test.operator}")
        yield Requirement(intern(test.key), intern(test.operator), values)  # type: ignore[arg-type]


def selector(wire: schema.LabelSelector | None, path: str) -> Selector:
    """A label selector; null selects nothing."""
    if wire is None:
        return NOTHING
    equal: Operator = "In"
    tests = [Requirement(key, equal, (text,)) for key, text in sorted(strings(wire.match_labels).items())]
    for test in requirements(wire.match_expressions, f"{path}.matchExpressions"):
        if test.operator in ("Gt", "Lt"):
            raise RecordError(f"{path}.matchExpressions", f"operator {test.operator} is for nodes only")
        tests.append(test)
    return Selector(tuple(tests))


def affinity(
    wire: schema.Affinity | None, namespace: str
) -> tuple[bool, tuple[PodTerm, ...], tuple[PodTerm, ...], tuple[NodeTerm, ...] | None]:
    """(any preferred term, required anti-affinity, required pod affinity, required node affinity)."""
    if wire is None:
        return False, (), (), None
    nodes, near, apart = wire.node_affinity, wire.pod_affinity, wire.pod_anti_affinity
    repelling, attracting = (
        tuple(
            pod_term(term, namespace, f"spec.affinity.{field}.requiredDuringScheduling[{index}]")
            for index, term in enumerate((part and part.required) or ())
        )
        for field, part in (("podAntiAffinity", apart), ("podAffinity", near))
    )
    preferred = any(part is not None and part.preferred for part in (nodes, near, apart))
    terms: tuple[NodeTerm, ...] | None = None
    if nodes is not None and nodes.required is not None:
        path = "spec.affinity.nodeAffinity"
        terms = node_terms(nodes.required, path)
    return preferred, repelling, attracting, terms


def node_terms(wire: schema.NodeSelector, path: str) -> tuple[NodeTerm, ...]:
    """The terms of a node selector, of which one must match."""
    return tuple(
        [
            NodeTerm(
                tuple(requirements(term.match_expressions, f"{path}.matchExpressions")),
                tuple(requirements(term.match_fields, f"{path}.matchFields")),
            )
            for term in wire.node_selector_terms or ()
        ]
    )


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
    fields = tuple([(entry.key, entry.operator, entry.value, entry.effect) for entry in wire or ()])
    size = sum([len(key or "") + len(value or "") for key, _, value, _ in fields])
    if len(fields) <= _SHARED_TOLERATIONS and size <= _SHARED:
        return shared_tolerations(fields)
    return _made(fields)


def _made(all_of_one_pod: tuple[tuple[Any, Any, Any, Any], ...]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(key or "", operator or "Equal", text or "", effect or "")
        for key, operator, text, effect in all_of_one_pod
    )


# Nearly every pod has the same two, so nearly all share one tuple. Tenants write them: what one pod may leave here is
# short (16 tolerations of 1,024 characters in all, below 10 kB), so all together are below 10 MB.
shared_tolerations = lru_cache(maxsize=1024)(_made)
