"""YAML of files and texts as plain values, by the parser of the server: libyaml's, 20 times as fast as ruamel.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extender.objects import yaml_documents


def objects_in(source: Path | str) -> list[Any]:
    """The documents of a file (a Path) or a text."""
    return list(yaml_documents.documents(source.read_bytes() if isinstance(source, Path) else source.encode()))
