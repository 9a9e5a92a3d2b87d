"""kubectl's own flags: those that the user gave the plugin, for the kubectl that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
    """What the user gave. `namespace`: None where none was given; `others`: `--NAME=VALUE` each."""

    namespace: str | None = None
    others: tuple[str, ...] = ()

    def but(self, name: str) -> Flags:
        """Without one flag."""
        return self._replace(others=tuple(one for one in self.others if not one.startswith(f"--{name}=")))


def split(words: Sequence[str]) -> tuple[Flags, list[str]]:
    """kubectl's flags, wherever they stand, and all other words in order. What follows `--` is no flag. WrongUsage."""
    namespace: str | None = None
    others: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
            break
        found = _flag(word, left)
        if found is None:
            rest.append(word)
        elif found[0] == "namespace":
            namespace = found[1]
        else:
            others.append(f"--{found[0]}={found[1]}")
    return Flags(namespace, tuple(others)), rest


def value_of(word: str) -> str | None:
    """The name of the flag whose value comes with the word after this one; None: no value is missing."""
    name, given = _named(word)
    return name if name in VALUES and given is None else None


def _flag(word: str, left: Iterator[str]) -> tuple[str, str] | None:
    """(name, value); None: the word is no flag of kubectl. The value may be the next one `left`."""
    name, given = _named(word)
    if name in SWITCHES:
        return name, "true" if given is None else given
    if name not in VALUES:
        return None
    value = next(left, None) if given is None else given
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
