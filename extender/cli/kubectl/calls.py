"""kubectl as a child process: it knows contexts, credentials, impersonation and proxies as the user has them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Final

from extender.cli.kubectl.flags import Flags
from extender.errors import Unreachable

SECONDS: Final = 30.0
"""So long an answer may take."""


class Kubectl:
    """The kubectl that called us, else the one on PATH, with the user's flags."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._program = os.environ.get("KUBECTL_PATH") or "kubectl"  # kubectl 1.37 and later names itself

    @property
    def flags(self) -> Flags:
        """The user's."""
        return self._flags

    def without(self, flag: str) -> Kubectl:
        """The same, but for one of the user's flags."""
        return Kubectl(self._flags.but(flag))

    def argv(self, *words: str, namespace: str | None = None) -> list[str]:
        """The call. `namespace`: where else than the user says."""
        where = self._flags.namespace if namespace is None else namespace
        return [self._program, *words, *self._flags.others, *([f"--namespace={where}"] if where else [])]

    def get(self, *words: str, namespace: str | None = None) -> Answer:
        """Begins a call that prints something and ends. Unreachable: there is no kubectl."""
        argv = self.argv(*words, namespace=namespace)
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise Unreachable(f"{error.strerror}: is kubectl on PATH?", path=self._program) from None
        return Answer(child, " ".join(words[:2]))


@dataclass(frozen=True, slots=True)
class Answer:
    """A call that was begun, so that several run at once."""

    child: subprocess.Popen[str]
    what: str

    def text(self, seconds: float = SECONDS) -> str:
        """Its output, once it has ended, within so many seconds. Unreachable with kubectl's own words."""
        try:
            out, err = self.child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            raise Unreachable(f"no answer within {seconds:.0f} s", path=f"kubectl {self.what}") from None
        if self.child.returncode:
            raise Unreachable(last_line(err) or f"exit code {self.child.returncode}", path=f"kubectl {self.what}")
        return out


def last_line(text: str) -> str:
    """What kubectl has to say in the end: the lines before are its log."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
