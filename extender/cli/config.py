"""The settings file. `validate FILE` names all that is wrong, with lines (exit code 1). `explain [FIELD]` states what
fields mean, their defaults and ranges; a FIELD such as `queue` names all fields in it. `defaults` prints a file
with every field at its default. No cluster and no server is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from extender.cli.options import add_output, known, show, warned, write
from extender.errors import BadInput, NotFound
from extender.settings import Settings, read_settings
from extender.settings.checks import did_you_mean

EXAMPLES = (
    "gpu-extender config validate settings.yaml",
    "gpu-extender config explain preemption",
    "gpu-extender config defaults > settings.yaml",
)


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
    from extender.settings.__main__ import rows  # it reads the source of the fields: only this action pays for it

    names = ("field", "default", "range", "meaning")
    all_of_them = [dict(zip(names, (cell.replace("`", "") for cell in row), strict=True)) for row in rows()]
    wanted = (field or "").removesuffix(".")
    fields = [field_row for field_row in all_of_them if not wanted or _is_in(field_row["field"], wanted)]
    if not fields:
        choice = did_you_mean(wanted, [field_row["field"] for field_row in all_of_them])
        raise NotFound(f"is not a field of the settings{choice}", path=wanted)
    return _head("SettingsFields", []) | {"fields": fields}


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
        yield from map(_field, answer["fields"])
        return
    yield from warned(answer)
    yield (
        f"{answer['file']} is valid: mode {answer['mode']}, settings {answer['settings_hash']}, "
        f"policy {answer['policy_hash']}"
    )


def _field(field_row: dict[str, str]) -> str:
    allowed = f", {field_row['range']}" if field_row["range"] else ""
    return f"{field_row['field']}  (default {field_row['default']}{allowed})\n    {field_row['meaning']}"
