"""Pod templates of owners that state less than a template: a specification alone, the resources of one container, or a
patch of another template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CONTAINER: Final = "main"
POD_FIELDS: Final = ("nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName", "resourceClaims")


def of_spec(spec: Any, labels: Any = None, annotations: Any = None) -> dict[str, Any]:
    """The template with this specification of a pod."""
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def of_container(
    resources: Any, fields: Mapping[str, Any] | None = None, name: str = CONTAINER, **more: Any
) -> dict[str, Any]:
    """A template with one container of these resources; `fields`: an object that has some of POD_FIELDS; `name`: of the
    container."""
    return of_spec({**pod_fields(fields or {}), "containers": [{"name": name, "resources": resources}]}, **more)


def pod_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of POD_FIELDS that it has."""
    return {name: fields[name] for name in POD_FIELDS if fields.get(name) is not None}


def patched(base: Any, patch: Any) -> Any:
    """The base with a patch as kubectl's strategic merge applies it: objects by field, lists of objects with a `name`
    by that name, all else replaced; null removes."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = dict(base)
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = patched(base.get(name), value)
        return merged
    if _named(base) and _named(patch):
        by_name = {entry["name"]: entry for entry in base}
        for entry in patch:
            by_name[entry["name"]] = patched(by_name.get(entry["name"]), entry)
        return list(by_name.values())
    return patch


def _named(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in value)
