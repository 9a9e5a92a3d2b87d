"""The commands of a page of the documentation, and a shell that runs them as a reader does: one after the other.

A fenced block of the language `sh` has commands. A comment `# check` at the end of one states how the reader sees that
it has worked: it succeeds; `# check: TEXT`: TEXT is in its output; `# check: nothing`: it prints nothing.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.installed import ROOT
from tests.waiting import wait_for

CHECK_SECONDS = 90.0
COMMAND_SECONDS = 180.0
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CHECK = re.compile(r"\s+# check(?:: (.*))?$")
_HERE = re.compile(r"<<'(\w+)'")


class Step(NamedTuple):
    """`check`: None where the reader checks nothing, else the text after `# check: `, "" for none."""

    command: str
    check: str | None


def sections(page: Path) -> dict[str, list[Step]]:
    """The steps below each heading of the second level; "" has those before the first one."""
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
    texts = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return {title: [step for block in _BLOCK.findall(text) for step in _steps(block)] for title, text in texts.items()}


def _steps(block: str) -> Iterator[Step]:
    lines = iter(block.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        if here := _HERE.search(line):
            more = [line]
            while more[-1] != here[1]:
                more.append(next(lines))
            yield Step("\n".join(more), None)
            continue
        found = _CHECK.search(line)
        yield Step(_CHECK.sub("", line), (found[1] or "") if found else None)


def clone(folder: Path) -> Path:
    """A copy of the files that git tracks, in a new folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


class Shell:
    """One bash for all commands, so that variables and background jobs last. A context manager."""

    def __init__(self, folder: Path, files: Path, env: Mapping[str, str], enter: Sequence[str] = ()) -> None:
        """`folder`: where it begins; `files`: an empty folder for its own files; `enter`: words before the command."""
        self._script, self._out, self._errors = files / "command", files / "out", files / "errors"
        self._bash = subprocess.Popen(
            [*enter, "bash"], cwd=folder, env=dict(env), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.communicate("kill $(jobs -p) 2>/dev/null\n")

    def follow(self, step: Step) -> None:
        """Runs the command, and repeats it until its check passes. AssertionError with what it printed."""
        if step.check is None:
            status, _ = self._run(step.command)
            assert status == 0, self._said(step)
        else:
            wait_for(lambda: self._passes(step), CHECK_SECONDS, lambda: self._said(step), every=1)

    def _passes(self, step: Step) -> bool:
        status, out = self._run(step.command)
        if not step.check:
            return status == 0
        return not out if step.check == "nothing" else step.check in out

    def _run(self, command: str) -> tuple[int, str]:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._script.write_text(command + "\n")
        self._bash.stdin.write(f". {self._script} </dev/null >{self._out} 2>{self._errors}; echo $?\n")
        self._bash.stdin.flush()
        if not select.select([self._bash.stdout], [], [], COMMAND_SECONDS)[0]:
            os.killpg(self._bash.pid, signal.SIGKILL)
            raise AssertionError(f"not ended within {COMMAND_SECONDS} s: {command}\n{self._errors.read_text()}")
        return int(self._bash.stdout.readline()), self._out.read_text()

    def _said(self, step: Step) -> str:
        return f"$ {step.command}\n{self._out.read_text()}{self._errors.read_text()}# check: {step.check}"
