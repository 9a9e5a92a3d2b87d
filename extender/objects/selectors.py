"""Kubernetes' three ways to choose objects by their labels and taints, decoded once and asked often.

``Selector`` is metav1.LabelSelector (PodDisruptionBudgets, pod affinity), ``NodeTerm`` a node selector term (node
affinity), ``Toleration``/``Taint`` the pair that keeps pods off nodes. All are immutable values without a link back to
the object they came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Labels = Mapping[str, str]


class Requirement(NamedTuple):
    """One test of one label. A label that is absent satisfies NotIn and DoesNotExist, and nothing else."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether these labels pass."""
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return self._compares(found)

    def _compares(self, found: str | None) -> bool:
        # As apimachinery's labels.Requirement: both sides must be int64, else no match.
        bound = integer(self.values[0]) if len(self.values) == 1 else None
        number = None if found is None else integer(found)
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
        return not self.nothing and all(one.matches(labels) for one in self.requirements)


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
        return all(one.matches(labels) for one in self.labels) and all(one.matches(named) for one in self.fields)


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


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps the pod off the node (NoSchedule and NoExecute do), or None."""
    held = tuple(tolerations)
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(one.tolerates(taint) for one in held):
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
