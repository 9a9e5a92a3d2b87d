"""What the API server would not write of a question's objects, and why: its validation of what our answer depends on.

The messages are those of Kubernetes 1.37 (pkg/apis/core/validation, pkg/apis/resource/validation). Values that cannot
be read at all are for the readers of the objects to name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from extender.objects.resources import QuantityError, nano

MOST_SHOWN: Final = 80
_PLAIN: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_FIXED: Final = "hugepages-"
_NATIVE: Final = "kubernetes.io"
CLAIM_KEYS: Final = ("resourceClaimName", "resourceClaimTemplateName")
_MODES: Final = ("All", "ExactCount")


Reason = tuple[str, str]
"""A field, and what is wrong with it."""


def of_pod(spec: Any, path: str, *, written: bool = True) -> Reason | None:
    """Why the API server rejects a pod with this specification, or what creates it: the first reason. `path`: of the
    specification; `written`: whether it stands in the object so, and is not made of its fields."""
    return next(_of_pod(spec, path, written), None) if isinstance(spec, Mapping) else None


def of_claim(spec: Any, path: str) -> Reason | None:
    """As `of_pod`, of the specification of a ResourceClaim."""
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    return next(_of_devices(devices, f"{path}.devices"), None) if isinstance(devices, Mapping) else None


def of_selector(spec: Any, path: str) -> Reason | None:
    """Where the selector of an owner does not match its own template."""
    labels = _inner(_inner(_inner(spec, "template"), "metadata"), "labels")
    wanted = _inner(_inner(spec, "selector"), "matchLabels")
    if all(labels.get(key) == label for key, label in wanted.items()):
        return None
    at = f"{path}.template.metadata.labels"
    return at, f"{_invalid(dict(labels))}: `selector` does not match template `labels`"


def _inner(value: Any, key: str) -> Mapping[str, Any]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _of_pod(spec: Mapping[str, Any], path: str, written: bool) -> Iterator[Reason]:
    if written and not spec.get("containers"):
        yield f"{path}.containers", "Required value"
    claims: list[str] = []
    for number, claim in enumerate(_objects(spec, "resourceClaims")):
        at = f"{path}.resourceClaims[{number}]"
        if claim.get("name") in claims:
            yield f"{at}.name", f"Duplicate value: {_shown(claim.get('name'))}"
        claims.append(str(claim.get("name")))
        stated = [key for key in CLAIM_KEYS if claim.get(key)]
        keys = ", ".join(f"`{key}`" for key in CLAIM_KEYS)
        if not stated:
            yield at, f"{_invalid(dict(claim))}: must specify one of: {keys}"
        elif len(stated) > 1:
            yield at, f"{_invalid(dict(claim))}: at most one of {keys} may be specified"
    names: set[str] = set()
    for where in ("initContainers", "containers"):
        for number, container in enumerate(_objects(spec, where)):
            at = f"{path}.{where}[{number}]"
            name = container.get("name")
            if not name and written:
                yield f"{at}.name", "Required value"
            elif name and str(name) in names:
                yield f"{at}.name", f"Duplicate value: {_shown(name)}"
            names.add(str(name))
            yield from _of_resources(_inner(container, "resources"), f"{at}.resources", claims)


def _of_resources(resources: Mapping[str, Any], path: str, claims: list[str]) -> Iterator[Reason]:
    limits, requests = _inner(resources, "limits"), _inner(resources, "requests")
    for which, amounts in (("limits", limits), ("requests", requests)):
        for name in map(str, amounts):
            if "/" not in name and name not in _PLAIN and not name.startswith(_FIXED):
                yield f"{path}.{which}[{name}]", f"{_invalid(name)}: must be a standard resource for containers"
    for name, amount in requests.items():
        fixed, asked, limit = _is_fixed(str(name)), _amount(amount), _amount(limits.get(name))
        if fixed and name not in limits:
            yield f"{path}.limits", f"Required value: Limit must be set for non overcommitable resources: {name}"
        elif asked is None or limit is None:
            continue
        elif fixed and asked != limit:
            yield f"{path}.requests", f"{_invalid(amount)}: must be equal to {name} limit of {limits[name]}"
        elif asked > limit:
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            yield f"{path}.requests", f"{_invalid(amount)}: {text}"
    for number, claim in enumerate(_objects(resources, "claims")):
        if claim.get("name") not in claims:
            which = f": {', '.join(claims)}" if claims else " which is empty"
            text = f"must be one of the names in pod.spec.resourceClaims{which}"
            yield f"{path}.claims[{number}]", f"Not found: {_shown(claim.get('name'))}: {text}"


def _is_fixed(name: str) -> bool:
    """Whether its request and limit must be equal: huge pages and extended resources."""
    domain, slash, _ = name.partition("/")
    return name.startswith(_FIXED) or (bool(slash) and not domain.endswith(_NATIVE))


def _of_devices(devices: Mapping[str, Any], path: str) -> Iterator[Reason]:
    names: set[str] = set()
    for number, request in enumerate(_objects(devices, "requests")):
        at = f"{path}.requests[{number}]"
        name, choices = request.get("name"), _objects(request, "firstAvailable")
        if not name:
            yield f"{at}.name", "Required value"
        elif str(name) in names:
            yield f"{at}.name", f"Duplicate value: {_shown(name)}"
        names.update([str(name), *(f"{name}/{choice.get('name')}" for choice in choices)])
        exactly, flat = request.get("exactly"), request.get("deviceClassName")  # flat in v1beta1
        if sum(map(bool, (exactly, choices, flat))) != 1:
            yield at, "Required value: exactly one of `exactly` or `firstAvailable` is required"
        for index, choice in enumerate(choices):
            yield from _of_request(choice, f"{at}.firstAvailable[{index}]")
        if isinstance(exactly, Mapping):
            yield from _of_request(exactly, f"{at}.exactly")
        elif flat:
            yield from _of_request(request, at)
    for number, constraint in enumerate(_objects(devices, "constraints")):
        asked = constraint.get("requests")
        for index, name in enumerate(asked if isinstance(asked, list) else ()):
            if name not in names:
                at = f"{path}.constraints[{number}].requests[{index}]"
                yield at, f"{_invalid(name)}: must be the name of a request in the claim"


def _of_request(request: Mapping[str, Any], path: str) -> Iterator[Reason]:
    count, mode = request.get("count"), request.get("allocationMode") or "ExactCount"
    if not request.get("deviceClassName"):
        yield f"{path}.deviceClassName", "Required value"
    if mode not in _MODES:
        yield f"{path}.allocationMode", f"Unsupported value: {_shown(mode)}: supported values: {', '.join(_MODES)}"
    elif mode == "All" and count:
        yield f"{path}.count", f"{_invalid(count)}: must not be specified when allocationMode is 'All'"
    elif isinstance(count, int) and count < 0:
        yield f"{path}.count", f"{_invalid(count)}: must be greater than zero"


def _objects(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = holder.get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _amount(amount: Any) -> int | None:
    """Comparable; None for what is no quantity."""
    if isinstance(amount, str | int | float):
        with suppress(QuantityError):
            return nano(amount)
    return None


def _invalid(value: Any) -> str:
    return f"Invalid value: {_shown(value)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, skipkeys=True)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
