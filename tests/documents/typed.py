"""A reader at a terminal: writes a cluster into a file, and asks the commands about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cli import main
from tests.world import JSON, WALL, machine, rfc3339, workload

YAML = Path(__file__).parent / "yaml"
HOUR = 3600
NVSWITCH = [[12 if a != b else 0 for b in range(8)] for a in range(8)]
"""Eight GPUs that an NVSwitch joins."""


def document(name: str) -> list[JSON]:
    """The objects of a text's YAML."""
    return [made for made in yaml.safe_load_all((YAML / f"{name}.yaml").read_text()) if made]


def node(name: str, gpus: int = 8, **facts: Any) -> JSON:
    """A node of eight GPUs behind an NVSwitch, unless other `links` are given."""
    facts.setdefault("links", NVSWITCH if gpus == 8 else None)
    return {"apiVersion": "v1", "kind": "Node"} | machine(name, gpus, **facts)


def running(name: str, on: str, gpus: list[int], *, hours: float = 1, cls: str = "", **facts: Any) -> JSON:
    """A pod that has run for so many hours and holds these GPUs."""
    spec = {"priorityClassName": cls} if cls else {}
    start = WALL - hours * HOUR
    made = workload(name, len(gpus), node=on, phase="Running", start=start, held=gpus, spec=spec, **facts)
    return {"apiVersion": "v1", "kind": "Pod"} | made


def pod(name: str, gpus: int, *, cls: str = "", **facts: Any) -> JSON:
    """A pod that waits, or is asked about."""
    spec = {"priorityClassName": cls} if cls else {}
    made = workload(name, gpus, spec=spec | facts.pop("spec", {}), **facts)
    return {"apiVersion": "v1", "kind": "Pod"} | made


def without_priority(made: JSON) -> JSON:
    """As a user types it: the API server writes the number of the class."""
    del made["spec"]["priority"], made["spec"]["preemptionPolicy"]
    return made


class Reader:
    """Asks by the commands. `now` is fixed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.cluster_file = folder / "cluster.json"

    def cluster(self, *items: JSON) -> None:
        """What `kubectl get -o json` would print of the cluster."""
        self.cluster_file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))

    def text(self, command: str, *words: str, code: int | None = None) -> str:
        """What the command prints, to both streams where it is for people; `code`: its exit code, if it matters."""
        where = ["--cluster", str(self.cluster_file), "--now", rfc3339(WALL)]
        ended = main([command, *words, *where])
        printed = self._capsys.readouterr()
        assert code is None or ended == code, printed.out + printed.err
        assert ended != 1, printed.err
        return printed.out if "json" in words else printed.out + printed.err

    def answer(self, command: str, *words: str, code: int | None = None) -> JSON:
        """The same as JSON."""
        made: JSON = json.loads(self.text(command, *words, "-o", "json", code=code))
        return made

    def whatif(self, *manifests: JSON | str, words: tuple[str, ...] = (), code: int | None = None) -> JSON:
        """`whatif -f`: objects, or names of the texts' YAML."""
        return self.answer("whatif", *self.files(*manifests), *words, code=code)

    def files(self, *manifests: JSON | str) -> list[str]:
        """The options that name these manifests."""
        paths = []
        for number, manifest in enumerate(manifests):
            if isinstance(manifest, str):
                paths.append(str(YAML / f"{manifest}.yaml"))
            else:
                path = self._folder / f"manifest-{number}.yaml"
                path.write_text(yaml.safe_dump(manifest))
                paths.append(str(path))
        return ["-f", *paths] if paths else []

    def findings(self, *words: str) -> dict[str, list[JSON]]:
        """What `check` finds, by code."""
        found: dict[str, list[JSON]] = {}
        for finding in self.answer("check", *words)["findings"]:
            found.setdefault(finding["code"], []).append(finding)
        return found


def cost(result: JSON) -> dict[str, Any]:
    """The cost of an answer, by term."""
    return {term["term"]: term["value"] for term in result["cost"]}


def victims(result: JSON) -> list[str]:
    return sorted(victim["name"] for victim in result["victims"])


def missing(result: JSON) -> list[str]:
    """What the nearest node lacks."""
    return [lack["what"] for lack in result["nearest"]["missing"]]
