"""kubectl as a child process: it knows contexts, credentials, impersonation and proxies as the user has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
        """The call. `namespace`: instead of the one that the user states."""
        where = self._flags.namespace if namespace is None else namespace
        return [self._program, *words, *self._flags.others, *([f"--namespace={where}"] if where else [])]

    def get(self, *words: str, namespace: str | None = None) -> KubectlCall:
        """Begins a call that prints something and ends. Unreachable: there is no kubectl."""
        argv = self.argv(*words, namespace=namespace)
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise Unreachable(f"{error.strerror}: is kubectl on PATH?", path=self._program) from None
        return KubectlCall(child, " ".join(words[:2]))


@dataclass(frozen=True, slots=True)
class KubectlCall:
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


# -- kubectl's own flags: those that the user gave the plugin, for the kubectl that it calls


VALUES: Final = frozenset({
    "as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority", "client-certificate",
    "client-key", "cluster", "context", "kubeconfig", "kuberc", "log-flush-frequency", "namespace", "password",
    "profile", "profile-output", "proxy-url", "request-timeout", "server", "tls-server-name", "token", "user",
    "username", "v", "vmodule",
})  # fmt: skip
"""Those with a value: `--context=x`, or `--context x`."""
SWITCHES: Final = frozenset({
    "disable-compression", "insecure-skip-tls-verify", "match-server-version", "warnings-as-errors",
})  # fmt: skip
"""Those without one, or with `=true`, `=false`."""
SHORT: Final = {"n": "namespace", "s": "server", "v": "v"}


class WrongUsage(Exception):
    """A flag without its value."""


class Flags(NamedTuple):
    """What the user gave."""

    namespace: str | None = None  # None where none was given
    others: tuple[str, ...] = ()  # `--NAME=VALUE` each

    def but(self, name: str) -> Flags:
        """Without one flag."""
        return self._replace(others=tuple(flag for flag in self.others if not flag.startswith(f"--{name}=")))


def split(words: Sequence[str]) -> tuple[Flags, list[str]]:
    """kubectl's flags, wherever they stand, and all other words in order. What follows `--` is no flag. WrongUsage."""
    namespace: str | None = None
    others: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
            break
        flag = _flag(word, remaining)
        if flag is None:
            rest.append(word)
        elif flag[0] == "namespace":
            namespace = flag[1]
        else:
            others.append(f"--{flag[0]}={flag[1]}")
    return Flags(namespace, tuple(others)), rest


def value_of(word: str) -> str | None:
    """The name of the flag whose value comes with the word after this one; None: no value is missing."""
    name, given = _named(word)
    return name if name in VALUES and given is None else None


def _flag(word: str, following: Iterator[str]) -> tuple[str, str] | None:
    """(name, value); None: the word is no flag of kubectl. The value may be the first of `following`."""
    name, given = _named(word)
    if name in SWITCHES:
        return name, "true" if given is None else given
    if name not in VALUES:
        return None
    value = next(following, None) if given is None else given
    if value is None:
        raise WrongUsage(f"{word} needs a value")
    return name, value


def _named(word: str) -> tuple[str, str | None]:
    """The flag's long name ("" for none), and its value where the word has it."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals else None
    if word[:1] == "-" and word[1:2] in SHORT:
        value = word[2:].removeprefix("=")
        return SHORT[word[1]], value if len(word) > 2 else None
    return "", None
