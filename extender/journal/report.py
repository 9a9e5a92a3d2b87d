"""`gpu-extender replay`: all files of a record answered again, and what is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.errors import BadInput
from extender.journal import comparison, entries
from extender.journal.entries import Choice
from extender.journal.files import BadRecord, Header, Input, Torn, files
from extender.journal.player import Played, Player
from extender.journal.totals import Both
from extender.settings import Settings

MOST_CHANGED: Final = 1_000
"""Changed answers that are listed; all are counted."""


@dataclass(slots=True)
class Requests:
    """What became of the requests. A second look, and the outcome of the write that one asked for, are no requests."""

    number: int = 0
    different: set[int] = field(default_factory=set)
    _latest: dict[tuple[str, str], int] = field(default_factory=dict)  # verb and uid -> the number of the request

    def place(self, played: Played) -> int:
        """The number of the request that a call belongs to, from 0."""
        asked = played.asked
        key = ("bind" if asked.verb == "written" else asked.verb, asked.pod)
        if not (asked.again or asked.verb == "written") or key not in self._latest:
            self._latest[key] = self.number
            self.number += 1
        return self._latest[key]


class ReplayReport:
    """Answers a record again. `other`: settings to answer by instead of the recorded ones."""

    def __init__(self, folder: Path, other: Settings | None = None) -> None:
        self._folder, self._other = folder, other
        self._requests = Requests()
        self._first: dict[str, Any] | None = None
        self._changed: list[dict[str, Any]] = []
        self._totals = Both()
        self._warnings: list[dict[str, str]] = []

    def make(self) -> dict[str, Any]:
        """The report as JSON. BadInput: there is no record, or one that cannot be answered again by this version."""
        paths = files(self._folder)
        if not paths:
            raise BadInput("there is no record in it: no file NUMBER.record", path=str(self._folder))
        for path in paths:
            file = self._open(path)
            if file is not None:
                with file:
                    self._file(file)
        requests = self._requests
        body: dict[str, Any] = {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Replay",
            "warnings": self._warnings,
            "files": len(paths),
            "requests": requests.number,
            "identical": requests.number - len(requests.different),
            "first_difference": self._first,
        }
        if self._other is not None:
            body |= {
                "policy_hash": self._other.policy_hash,
                "changed": self._changed,
                "changed_count": len(requests.different),
                "totals": self._totals.as_json(),
            }
        return body

    def _open(self, path: Path) -> Input | None:
        """The file; None where it was cut off before anything was in it."""
        try:
            return Input(path)
        except OSError as error:
            raise BadRecord(f"it cannot be read: {error.strerror}", path=str(path)) from error
        except Torn as error:
            self._warn("torn", f"{path.name}: {error.message}; it is left out")
            return None

    def _file(self, file: Input) -> None:
        header = file.header
        settings = self._settings(file)
        if header.lost:
            why = {"memory": "the queue was full (record.queueBytes)", "disk": "the disk could not be written"}
            cause = why.get(header.cause, "a defect")
            self._warn("gap", f"{file.path.name}: {header.lost} entries before it are lost: {cause}")
        for played in Player(settings, _recorded(header), live=header.live).play(file):
            self._count(played, header, file.path)
        if file.torn:
            self._warn("torn", f"{file.path.name}: {file.torn}; what follows is lost")

    def _settings(self, file: Input) -> Settings:
        """Those to answer by. BadRecord: the file cannot be answered again."""
        header = file.header
        if header.form != entries.form():
            raise BadRecord(
                f"it is a record of gpu-extender {header.version}, whose records have other fields than those of this "
                f"version ({version('gpu-extender')}): replay it with that version", path=str(file.path),
            )  # fmt: skip
        try:
            own = _recorded(header)
        except ValueError as error:
            raise BadRecord(f"its settings cannot be read: {error}"[:300], path=str(file.path)) from error
        if self._other is None:
            return own
        if self._other.resources != own.resources:
            raise BadInput(
                "it has other resources than the record: what pods ask for of them was not recorded", path="--config"
            )
        return self._other

    def _count(self, played: Played, header: Header, path: Path) -> None:
        asked, now = played.asked, played.reply
        at = self._requests.place(played)
        cluster = played.verbs.cluster
        if self._other is not None:
            self._totals.was.count(asked.verb, asked.reply.choice, cluster)
            if now is not None:
                self._totals.now.count(asked.verb, now.choice, cluster)
        if now is not None and comparison.same(asked.reply, now):
            return
        known = at in self._requests.different
        self._requests.different.add(at)
        if self._first is None:
            self._first = _difference(played, header, path)
        if self._other is not None and not known and len(self._changed) < MOST_CHANGED:
            self._changed.append(_change(played))

    def _warn(self, code: str, message: str) -> None:
        self._warnings.append({"code": code, "message": message})


def _recorded(header: Header) -> Settings:
    """The settings of the server. ValueError: this version has others."""
    return Settings.model_validate_json(msgspec.json.encode(header.settings))


def _difference(played: Played, header: Header, path: Path) -> dict[str, Any]:
    asked = played.asked
    return {
        "at": _moment(asked.wall or header.began),
        "request": {"verb": asked.verb, "pod": played.pod, "uid": asked.pod, "file": path.name},
        "was": comparison.shown(asked.reply),
        "is": comparison.shown(played.reply) if played.reply is not None else None,
        "cause": _cause(played, header),
    }


def _cause(played: Played, header: Header) -> str:
    if played.reply is None:
        return f"it cannot be answered again: {played.error}"
    difference = comparison.difference(played.asked.reply.choice, played.reply.choice)
    difference = difference or "the nodes and reasons are the same, and the bytes are not"
    notes = []
    if played.verbs.settings.policy_hash != header.policy_hash:
        notes.append(f"policy {played.verbs.settings.policy_hash} instead of {header.policy_hash}")
    if header.version != version("gpu-extender"):
        notes.append(f"version {version('gpu-extender')} instead of {header.version}")
    return "; ".join([difference, *notes])


def _change(played: Played) -> dict[str, Any]:
    asked, now = played.asked, played.reply
    return {
        "pod": played.pod,
        "verb": asked.verb,
        "at": _moment(asked.wall) if asked.wall else None,
        "was": _brief(asked.reply.choice),
        "is": _brief(now.choice) if now is not None else {"error": played.error},
    }


def _brief(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {"result": choice.result, "node": choice.nodes[0] if choice.nodes else None}
    fields["gpus"] = [gpu for gpu in range(choice.gpus.bit_length()) if choice.gpus >> gpu & 1] or None
    if choice.victims:
        fields["victims"] = sorted(choice.victims)
    return fields


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    for warning in report["warnings"]:
        yield f"warning: {warning['message']}"
    yield f"{report['identical']} of {report['requests']} requests have the same answer"
    first = report["first_difference"]
    if first is not None:
        asked = first["request"]
        yield f"the first that differs: {asked['verb']} of {asked['pod']} at {first['at']}: {first['cause']}"
    for name, both in report.get("totals", {}).items():
        yield f"  {name.replace('_', ' '):24} was {both['was']}, is {both['is']}"
