"""Checks of single fields; each raises `fault(sentence)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, Literal

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

OLDEST_SCHEDULER: Final = (1, 28)


@dataclass(frozen=True, slots=True)
class Known:
    """The names that a settings file may use, from the registries."""

    scorers: Collection[str]
    costs: Collection[str]


def fault(message: str) -> PydanticCustomError:
    """An error of a field's value, in one sentence."""
    # The sentence is a value, not the template: what a user wrote may hold braces.
    return PydanticCustomError("ours", "{sentence}", {"sentence": message})


def did_you_mean(given: str, allowed: Collection[str]) -> str:
    """A suggestion, or nothing where no name is near."""
    folded = {name.lower().replace("_", ""): name for name in sorted(allowed)}
    near = get_close_matches(given.lower().replace("_", "").replace("-", ""), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def in_registry(registry: Literal["scorers", "costs"]) -> Callable[[str, ValidationInfo], str]:
    """A check that the registry (of the caller's `Known`) has the name."""

    def check(name: str, info: ValidationInfo) -> str:
        known = info.context
        if isinstance(known, Known) and name not in (names := getattr(known, registry)):
            choice = did_you_mean(name, names) or f"; there are: {', '.join(sorted(names))}"
            raise fault(f"{name[:80]!r} is not one of the {registry}{choice}")
        return name

    return check


def no_repeats(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items, none of which may stand twice."""
    names = [getattr(item, "name", item) for item in items]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise fault(f"has {', '.join(map(repr, repeated))} more than once")
    return items


def not_empty(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items, of which there is at least one."""
    if not items:
        raise fault("is empty")
    return items


_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_EXTENDED = re.compile(rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def extended_resource(name: str) -> str:
    """kube-scheduler's own rule for managedResources."""
    domain = name.partition("/")[0]
    if not _EXTENDED.fullmatch(name) or len(domain) > 253:
        raise fault(f"{name[:80]!r} is not the name of an extended resource, as in nvidia.com/gpu")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
        raise fault(f"{name!r} is a name that Kubernetes keeps for itself")
    return name


def attribute_value(text: str) -> str:
    """`NAME=VALUE` of an attribute of a device, or nothing."""
    name, equals, value = text.partition("=")
    if text and not (name and equals and value and len(text) <= 128):
        raise fault(f"{text[:80]!r} is not NAME=VALUE, as in type=gpu")
    return text


_LABEL_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def label_key(key: str) -> str:
    """The key of a label, as the API server accepts it."""
    if not _LABEL_KEY.fullmatch(key):
        raise fault(f"{key[:80]!r} is not the key of a label, as in topology.kubernetes.io/zone")
    return key


def label_rule(rule: str) -> str:
    """`key` or `key=value` of a label."""
    label_key(rule.partition("=")[0])
    return rule


def supported_scheduler(text: str) -> str:
    """MAJOR.MINOR or MAJOR.MINOR.PATCH of a kube-scheduler that is not too old."""
    if not re.fullmatch(r"1\.[0-9]{1,3}(\.[0-9]{1,3})?", text):
        raise fault(f"{text[:80]!r} is neither MAJOR.MINOR, as in 1.37, nor MAJOR.MINOR.PATCH")
    if version(text) < OLDEST_SCHEDULER:
        raise fault(f"{text} is older than {OLDEST_SCHEDULER[0]}.{OLDEST_SCHEDULER[1]}, the oldest that we know")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine, or this pod, reaches an address. A name other than `localhost` may be any address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@lru_cache(maxsize=8)
def version(text: str) -> tuple[int, int]:
    """(major, minor) of a checked version."""
    major, minor, *_ = text.split(".")
    return int(major), int(minor)
