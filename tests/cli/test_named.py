"""Commands that documents and messages name exist, with their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from extender import cli
from extender.cli import kubectl
from tests.installed import ROOT

NAMED = re.compile(r"(kubectl )?gpu-extender ([a-z]+)((?:[ \n][^ \n`|#;?'\"()]+)*)")
"""A command behind the name of the program, and its words up to the end of the code."""
FILES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "extender").rglob("*.py"),
                *(ROOT / "manifests").rglob("*.yaml")])  # fmt: skip


def commands(text: str) -> Iterator[tuple[bool, str, list[str]]]:
    """(of the plugin, the command, its options) of each."""
    for plugin, name, rest in NAMED.findall(text):
        if name in cli.COMMANDS:
            options = re.findall(r"(?:^|\s)(-[-a-zA-Z][-a-z]*)", rest)
            yield bool(plugin), name, options


def known(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def test_commands_and_options_exist() -> None:
    number = 0
    for file in FILES:
        for plugin, name, options in commands(file.read_text()):
            number += 1
            assert not plugin or name in kubectl.OFFERED, (file, name)
            there = known(kubectl.parser_of(name) if plugin else cli.parser_of(name)) if options else set()
            missing = [option for option in options if option not in there and not (plugin and option == "-n")]
            assert not missing, (file, name, missing)
    assert number > 100


def test_the_search_finds_commands() -> None:
    found = list(
        commands("`gpu-extender top -o json`, kubectl gpu-extender check --live # x --no, gpu-extender decides")
    )
    assert found == [(False, "top", ["-o"]), (True, "check", ["--live"])]
