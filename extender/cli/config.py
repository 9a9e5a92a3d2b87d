"""The settings file. `validate FILE` names all that is wrong, with lines (exit code 1). `explain [FIELD]` states what
fields mean, their defaults and ranges. `defaults` prints a file with every field at its default."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from extender.cli.options import add_output, known, show, warned, write
from extender.errors import BadInput, NotFound
from extender.settings import Settings, fields, read_settings
from extender.settings.fields import did_you_mean

EXAMPLES = (
    "gpu-extender config validate settings.yaml",
    "gpu-extender config explain preemption",
    "gpu-extender config defaults > settings.yaml",
)
ALONE: Final = re.compile(r"\(\[[^]]+\]\(([^)]+)\)\)")
"""A link in brackets: its page says all."""
LINK: Final = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("action", choices=("validate", "explain", "defaults"), help="what to do")
    parser.add_argument("subject", metavar="FILE|FIELD", nargs="?", help="of validate: a file; of explain: a field")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the answer. BadSettings: the file is wrong. NotFound: there is no such field."""
    if options.action == "validate":
        answer = _validated(options.subject)
    elif options.action == "explain":
        answer = _explained(options.subject)
    else:
        return _defaults(options)
    show(answer, options.output, _lines)
    return 0


def _validated(file: str | None) -> dict[str, Any]:
    if file is None:
        raise BadInput("validate needs a file: gpu-extender config validate FILE", path="FILE")
    settings = read_settings(Path(file), known())
    warnings = []
    if settings.scheduler_weight is not None and not settings.only_the_best_class_wins:
        message = (
            "schedulerWeight has no effect: it is not more than 10 x schedulerScoreWeights, so other nodes can win"
        )
        warnings.append({"code": "scheduler-weight", "message": message})
    return _head("Validation", warnings) | {
        "file": file,
        "mode": settings.mode,
        "settings_hash": settings.hash,
        "policy_hash": settings.policy_hash,
    }


def _explained(field: str | None) -> dict[str, Any]:
    names = ("field", "default", "range", "meaning")
    all_of_them = [dict(zip(names, (cell.replace("`", "") for cell in row), strict=True)) for row in rows()]
    wanted = (field or "").removesuffix(".")
    explained = [field_row for field_row in all_of_them if not wanted or _is_in(field_row["field"], wanted)]
    if not explained:
        choice = did_you_mean(wanted, [field_row["field"] for field_row in all_of_them])
        raise NotFound(f"is not a field of the settings{choice}", path=wanted)
    for field_row in explained:  # links of the reference page
        field_row["meaning"] = LINK.sub(r"\1 (docs/\2)", ALONE.sub(r"(docs/\1)", field_row["meaning"]))
    return _head("SettingsFields", []) | {"fields": explained}


def _is_in(field: str, wanted: str) -> bool:
    return field == wanted or field.startswith((f"{wanted}.", f"{wanted}[]"))


def _defaults(options: argparse.Namespace) -> int:
    """As `serve --config` reads it, so without the head of other answers."""
    write(
        Settings().model_dump(mode="json", by_alias=True, exclude_none=True),
        "json" if options.output == "json" else "yaml",
    )
    return 0


def _head(kind: str, warnings: list[dict[str, str]]) -> dict[str, Any]:
    return {"apiVersion": "gpu-extender.io/v1", "kind": kind, "warnings": warnings}


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if "fields" in answer:
        for field_row in answer["fields"]:
            allowed = f", {field_row['range']}" if field_row["range"] else ""
            yield f"{field_row['field']}  (default {field_row['default']}{allowed})"
            yield f"    {field_row['meaning']}"
        return
    yield from warned(answer)
    yield (
        f"{answer['file']} is valid: mode {answer['mode']}, settings {answer['settings_hash']}, "
        f"policy {answer['policy_hash']}"
    )


# ---- what each field means, read from its source


UNITS: Final = {"seconds": "seconds", "milliseconds": "milliseconds", "bytes": "bytes"}
"""By the last word of a field's name."""
_KEYS: Final = {"byNamespace": "NAMESPACE", "byPriorityClass": "CLASS", "ceilings": "CLASS", "queues": "QUEUE"}
_SHOWN: Final = 3  # items of a default with more than _LONGEST
_LONGEST: Final = 10
_Meanings = dict[str, dict[str, str]]


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
