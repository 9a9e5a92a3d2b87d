"""What each field means, read from its source; docs/settings.md, which `python -m extender.settings` prints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from extender.settings import fields
from extender.settings.fields import Settings

HEAD: Final = """# Settings

`gpu-extender serve --config FILE` reads YAML or JSON. Every field has a default. A field that is unknown, repeated, of
a wrong type or out of range rejects the file, with its line, its path and a suggestion. This page is printed by
`python -m extender.settings`. `gpu-extender config explain FIELD` prints a part of it.

```yaml
apiVersion: gpu-extender.io/v1
kind: GpuExtenderConfiguration
```

Name GPU resources both in `resources` and in the scheduler's `managedResources`. MIG instances of strategy mixed are
named one by one (`nvidia.com/mig-1g.5gb` ...), replicas as `nvidia.com/gpu.shared`
([details](operations.md#other-gpu-resources)).

| field | default | unit, range | meaning |
|---|---|---|---|
"""
UNITS: Final = {"seconds": "seconds", "milliseconds": "milliseconds", "bytes": "bytes"}
"""By the last word of a field's name."""
_KEYS: Final = {"byNamespace": "NAMESPACE", "byPriorityClass": "CLASS", "ceilings": "CLASS", "queues": "QUEUE"}
_AS_ABOVE: Final = ("`claims.byPriorityClass.", "`claims.byNamespace.")
"""Fields with the meaning of those of `claims` itself, which the page does not list."""
_SHOWN: Final = 3  # items of a default with more than _LONGEST
_LONGEST: Final = 10
_Meanings = dict[str, dict[str, str]]


def page() -> str:
    """docs/settings.md."""
    fields_of: dict[tuple[str, ...], list[str]] = {}
    for field, *cells in rows():  # parts of one class, such as the TLS of each listener, share their rows
        if field.startswith(_AS_ABOVE):
            continue
        fields_of.setdefault((field.rpartition(".")[2], *cells), []).append(field)
    return HEAD + "".join(f"| {', '.join(same)} | {' | '.join(cells)} |\n" for (_, *cells), same in fields_of.items())


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(field, default, unit and range, meaning) of each field, in the order of the file."""
    return _rows(Settings, "", _meanings())


def _rows(
    part: type[BaseModel], prefix: str, meanings: dict[str, dict[str, str]]
) -> Iterator[tuple[str, str, str, str]]:
    for name, field in part.model_fields.items():
        path = f"{prefix}{field.alias}"
        inner = _part_of(field.annotation)
        if inner is not None and get_origin(field.annotation) is None:
            yield from _rows(inner, f"{path}.", meanings)
            continue
        yield f"`{path}`", _default(field), _unit(name, field), meanings[part.__name__][name]
        if inner is not None:
            step = f".{_KEYS[str(field.alias)]}." if get_origin(field.annotation) is dict else "[]."
            yield from _rows(inner, path + step, meanings)


def _part_of(annotation: Any) -> type[BaseModel] | None:
    """The part of the file that the field holds, alone, in a list or in a mapping."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return "none"
    if isinstance(value, tuple):
        texts = [_item(element) for element in value]
        shown = texts if len(texts) <= _LONGEST else texts[:_SHOWN]
        more = f", and {len(texts) - len(shown)} more" if len(shown) < len(texts) else ""
        return ", ".join(shown) + more if texts else "`[]`"
    return f"`{_text(value)}`"


def _item(value: Any) -> str:
    """Of a list: a part of the file by its first two fields."""
    if isinstance(value, BaseModel):
        name, other = list(value.model_dump().values())[:2]
        return f"`{name}: {_text(other)}`"
    return f"`{value}`"


def _text(value: Any) -> str:
    """As in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return f'"{value}"' if isinstance(value, str) and value[0].isdigit() and value.count(".") == 1 else str(value)


def _unit(name: str, field: FieldInfo) -> str:
    bounds = {key: getattr(bound, key) for bound in field.metadata for key in ("ge", "gt", "le") if hasattr(bound, key)}
    least = f"{bounds['ge']:,}" if "ge" in bounds else f"above {bounds['gt']:,}" if "gt" in bounds else ""
    span = f"{least} to {bounds['le']:,}" if "le" in bounds else ""
    literals = [literal for literal in get_args(field.annotation) if isinstance(literal, str)]
    return ", ".join(
        text for text in (UNITS.get(name.rpartition("_")[2], ""), span, *map("`{}`".format, literals)) if text
    )


def _meanings() -> _Meanings:
    """By class and field: the first paragraph of the string below the field."""
    meanings: _Meanings = {}
    for part in ast.parse(Path(fields.__file__).read_text()).body:
        if not isinstance(part, ast.ClassDef):
            continue
        for field, text in zip(part.body, part.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                doc = text.value.value if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) else ""
                paragraph = str(doc).partition("\n\n")[0]
                meanings.setdefault(part.name, {})[field.target.id] = " ".join(paragraph.split())
    return meanings


if __name__ == "__main__":
    print(page(), end="")
