"""What a pod asks for, summed as Kubernetes sums it.

Source: component-helpers ``resource.PodRequests`` and the defaults of core/v1 (Kubernetes 1.37). Of all resources only
``cpu`` (thousandths of a core), ``memory`` (bytes) and the GPU resources are looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, Final

import msgspec

from extender.objects import schema
from extender.objects.schema import MOST_ENTRIES, RecordError

Amounts = dict[str, int]
GpuCounts = tuple[tuple[str, int], ...]

OF_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the resource that the class always serves."""
_BYTE_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_POD_LEVEL: Final[frozenset[str]] = frozenset()
"""No GPU may be asked for at the level of the pod."""


def cpus(milli: int) -> str:
    """Thousandths of a core for people: "1.5 CPUs"."""
    return f"{milli / 1000:g} CPU{'' if milli == 1000 else 's'}"


def byte_unit(number: int) -> tuple[str, int]:
    """(the largest unit of which these bytes are one or more, its bytes): GiB, MiB or KiB; of 0 bytes GiB."""
    return next((unit for unit in _BYTE_UNITS if number >= unit[1]), _BYTE_UNITS[-1 if number else 0])


def in_unit(number: int, of: int) -> str:
    """Bytes for people, without their unit. `of`: the bytes of the unit."""
    value = number / of
    return f"{value:.4g}" if value < 1_000 else f"{value:,.0f}"


def size(number: int) -> str:
    """Bytes for people: "20 GiB"."""
    unit, of = byte_unit(number)
    return f"{in_unit(number, of)} {unit}"


def quantity(resources: Mapping[str, schema.Quantity], name: str, path: str) -> int:
    """CPU in thousandths, all else in whole units, LARGEST at most; absent and null are 0. Devices must be asked
    for whole, and no node has as many as that."""
    text = resources.get(name)
    if text is None:
        return 0
    try:
        if name == "cpu":
            return milli(text)
        count = value(text)
        if "/" in name and count == LARGEST:
            raise QuantityError(f"more devices than any node has: {text!r}")
        if "/" in name and milli(text) not in (count * 1000, LARGEST):
            raise QuantityError(f"not a whole number: {text!r}")
        return count
    except QuantityError as error:
        raise RecordError(f"{path}.{name}", str(error)) from error


def pod_requests(spec: schema.PodSpec, status: schema.PodStatus, gpus: frozenset[str]) -> tuple[int, int, GpuCounts]:
    """(CPU, memory, GPUs): what the scheduler counts for the pod on its node.

    The sum of the containers (see _aggregate); while a resize in place is under way, the largest of what is wanted,
    allocated and in effect; then the pod-level CPU and memory instead, where given; then the overhead.
    """
    wanted = _asked_each(spec.containers, gpus, "containers")
    wanted_first = _asked_each(spec.init_containers, gpus, "initContainers")
    total = _aggregate(spec, wanted, wanted_first)
    if not _as_specified(spec, status):
        total = _resized(spec, status, total, wanted, wanted_first, gpus)
    if spec.resources is not None:
        _apply_pod_level(total, spec.resources, status)
    for name, count in _listed(spec.overhead, gpus, "spec.overhead").items():
        total[name] = total.get(name, 0) + count
    counts = tuple(sorted([(intern(name), count) for name, count in total.items() if name in gpus and count]))
    return total.get("cpu", 0), total.get("memory", 0), counts


MOST_AMOUNTS: Final = 4_096
"""Requests and limits of all containers of a pod."""


def too_many(spec: schema.PodSpec) -> str:
    """Which list is too long to be read in full, for people; "" for none. An entry takes 2 to 10 us: a MB of them would
    hold the event loop for 0.1 s."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if len(containers) > MOST_ENTRIES:
        return f"spec.containers: they are more than {MOST_ENTRIES:,}, those of initContainers counted"
    stated = [container.resources for container in containers if container.resources is not None]
    amounts = sum([len(asked.requests or ()) + len(asked.limits or ()) for asked in stated], len(spec.overhead or ()))
    return f"spec.containers: they state more than {MOST_AMOUNTS:,} amounts" if amounts > MOST_AMOUNTS else ""


NOTHING: Final[frozenset[schema.Quantity]] = frozenset(["0", 0, None])
"""Quantities that ask for nothing, as the API server writes them."""


def gpus_alone(spec: schema.PodSpec, gpus: frozenset[str]) -> schema.PodSpec:
    """The specification with the containers alone that ask for devices that may be GPUs, and with nothing else of what
    they ask for."""

    def asked(resources: schema.Resources) -> dict[str, schema.Quantity]:
        return {name: text for name, text in (resources or {}).items() if name in gpus or name.startswith(OF_CLASS)}

    def asking(containers: Sequence[schema.Container] | None) -> list[schema.Container]:
        found = []
        for container in containers or ():
            if (stated := container.resources) is not None:
                requests, limits = asked(stated.requests), asked(stated.limits)
                if not NOTHING.issuperset((*requests.values(), *limits.values())):
                    only = schema.Requirements(requests, limits)
                    found.append(msgspec.structs.replace(container, resources=only, ports=None))
        return found

    containers, init_containers = asking(spec.containers), asking(spec.init_containers)
    return msgspec.structs.replace(
        spec, containers=containers, init_containers=init_containers, overhead=asked(spec.overhead), resources=None
    )


def resize_status(spec: schema.PodSpec, status: schema.PodStatus) -> tuple[Any, ...] | None:
    """All of the status that has a part in `pod_requests`; None while no resize in place is under way."""
    if _as_specified(spec, status):
        return None
    statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    of_containers = [(state.name, state.allocated_resources, state.resources) for state in statuses]
    return _infeasible(status), status.allocated_resources, status.resources, of_containers


def _as_specified(spec: schema.PodSpec, status: schema.PodStatus) -> bool:
    """Whether every container has what it asks for, to the letter. The usual case, and a cheap test for it."""
    if status.resources:
        return False
    asked: dict[str | None, schema.Resources] | None = None
    for statuses in (status.container_statuses, status.init_container_statuses):
        for container_status in statuses or ():
            in_effect = None if container_status.resources is None else container_status.resources.requests
            for had in (container_status.allocated_resources, in_effect):
                if not had:
                    continue
                if asked is None:
                    asked = _asked_by_name(spec)
                if had != asked.get(container_status.name):
                    return False
    return True


def gpu_containers(spec: schema.PodSpec, gpus: frozenset[str]) -> tuple[tuple[str, str, int], ...]:
    """(container, resource, count) with counts above 0, in the order in which kubelet admits them."""
    asks: list[tuple[str, str, int]] = []
    for where, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in _numbered(containers):
            asked = _asked(container.resources, gpus, _path(where, index))
            asks += [(intern(container.name or ""), intern(gpu), asked[gpu]) for gpu in sorted(gpus) if asked.get(gpu)]
    return tuple(asks)


def asks_others(spec: schema.PodSpec, gpus: frozenset[str]) -> bool:
    """Whether anything but CPU, memory, GPUs and devices of a class is asked for, by a container, the pod or its
    overhead."""
    others = (_names(spec) | set(spec.overhead or ())) - gpus - {"cpu", "memory"}
    return any(not name.startswith(OF_CLASS) for name in others)


def class_requests(spec: schema.PodSpec, status: schema.PodStatus) -> GpuCounts:
    """(DeviceClass, count) of the devices that are asked for as the resource that each class serves."""
    names = frozenset([name for name in _names(spec) if name.startswith(OF_CLASS)])
    if not names:
        return ()
    return tuple([(name.removeprefix(OF_CLASS), count) for name, count in pod_requests(spec, status, names)[2]])


def asks_devices(spec: schema.PodSpec, gpus: frozenset[str]) -> bool:
    """Whether extended resources other than GPUs are asked for: device plugins hand them out, as a rule."""
    return any("/" in name and "kubernetes.io/" not in name for name in _names(spec) - gpus)


MOST_OTHERS: Final = 64
"""Resources other than CPU, memory, pod slots and GPUs that are read of a node, the first by name."""


def other_amounts(resources: schema.Resources, gpus: frozenset[str]) -> tuple[tuple[str, int], ...]:
    """(resource, amount) of what a node offers besides CPU, memory, pod slots and GPUs, by name, amounts above 0. What
    is no quantity counts as absent; pods do not ask for volumes to attach."""
    if not resources:
        return ()
    others = {
        name: text
        for name, text in resources.items()
        if name not in gpus and name not in _COUNTED and not name.startswith("attachable-volumes-")
    }
    return tuple([entry for entry in sorted(_readable(others).items()) if entry[1]][:MOST_OTHERS])


_COUNTED: Final = frozenset({"cpu", "memory", "pods"})


def quota_amounts(
    spec: schema.PodSpec, gpus: frozenset[str]
) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], bool]:
    """(what ResourceQuotas count besides requests of CPU, memory and GPUs; the amounts of CPU and memory that a quota
    misses because a container does not state them; whether the QoS class is BestEffort).

    Source: pkg/quota/v1/evaluator/core/pods.go and component-helpers ``resource.PodLimits`` (Kubernetes 1.37). What is
    no quantity counts as absent.
    """
    stated = [_stated(container.resources) for container in spec.containers or ()]
    first = [_stated(container.resources) for container in spec.init_containers or ()]
    totals = [
        _aggregate(spec, [amounts[kind] for amounts in stated], [amounts[kind] for amounts in first])
        for kind in (REQUESTS, LIMITS)
    ]
    stated += first
    whole = _stated(spec.resources)
    overhead = _readable(spec.overhead)
    totals[REQUESTS].update(whole[REQUESTS])
    totals[LIMITS].update(whole[LIMITS])
    for name, count in overhead.items():
        for kind in (REQUESTS, LIMITS):
            if kind == REQUESTS or totals[kind].get(name):
                totals[kind][name] = totals[kind].get(name, 0) + count
    counted = {f"limits.{name}": count for name, count in totals[LIMITS].items() if name in _LIMITED and count}
    for name, count in totals[REQUESTS].items():
        if count and name not in gpus and name not in ("cpu", "memory"):
            counted[f"requests.{name}"] = count
    return tuple(sorted(counted.items())), () if any(whole) else _unstated(stated), _best_effort([*stated, whole])


REQUESTS, LIMITS = 0, 1
_LIMITED: Final = ("cpu", "memory", "ephemeral-storage")
"""The resources of which quotas count limits, too."""
_KINDS: Final = (
    ("requests.cpu", REQUESTS, "cpu"),
    ("requests.memory", REQUESTS, "memory"),
    ("limits.cpu", LIMITS, "cpu"),
    ("limits.memory", LIMITS, "memory"),
)
_Stated = tuple[Amounts, Amounts]
"""Requests and limits, requests with the API server's defaults."""


def _stated(resources: schema.Requirements | None) -> _Stated:
    limits = _readable(resources.limits if resources else None)
    return limits | _readable(resources.requests if resources else None), limits


def _readable(resources: schema.Resources) -> Amounts:
    amounts: Amounts = {}
    for name, text in (resources or {}).items():
        try:
            if text is not None:
                amounts[intern(name)] = milli(text) if name == "cpu" else value(text)
        except QuantityError:
            pass
    return amounts


def _unstated(stated: Sequence[_Stated]) -> tuple[str, ...]:
    every = len(stated)
    return tuple([text for text, kind, name in _KINDS if sum([name in part[kind] for part in stated]) < every])


def _best_effort(stated: Sequence[_Stated]) -> bool:
    return not any(part[kind].get(name) for part in stated for _, kind, name in _KINDS)


def _names(spec: schema.PodSpec) -> set[str]:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    parts = [*(container.resources for container in containers), spec.resources]
    return {name for part in parts if part for listed in (part.requests, part.limits) for name in listed or ()}


def _aggregate(spec: schema.PodSpec, containers: Sequence[Amounts], init_containers: Sequence[Amounts]) -> Amounts:
    """max(all containers + all sidecars, the largest step of initialisation), resource by resource.

    A step is one init container together with the sidecars that were started before it. The start of a sidecar need not
    be looked at: it is never more than all containers and all sidecars.
    """
    total: Amounts = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: Amounts = {}
    largest: Amounts = {}
    for container, amounts in zip(spec.init_containers or (), init_containers, strict=True):
        if container.restart_policy == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
        else:
            step = dict(amounts)
            _add(step, sidecars)
            _raise_to(largest, step)
    _raise_to(total, largest)
    return total


def _asked_by_name(spec: schema.PodSpec) -> dict[str | None, schema.Resources]:
    return {
        container.name: None if container.resources is None else container.resources.requests
        for containers in (spec.containers, spec.init_containers)
        for container in containers or ()
    }


def _resized(
    spec: schema.PodSpec,
    status: schema.PodStatus,
    total: Amounts,
    wanted: Sequence[Amounts],
    wanted_first: Sequence[Amounts],
    gpus: frozenset[str],
) -> Amounts:
    """The largest of what is wanted, set aside by kubelet and in effect. A wish that is infeasible does not count."""
    infeasible = _infeasible(status)
    had = [] if infeasible else [total]
    in_effect = None if status.resources is None else status.resources.requests
    if in_effect is not None and status.allocated_resources is not None:
        had.append(_listed(status.allocated_resources, gpus, "status.allocatedResources"))
        had.append(_listed(in_effect, gpus, "status.resources.requests"))
    else:
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        known = {container_status.name: container_status for container_status in statuses}
        for choose in (_allocated, _in_effect):
            by_container = [
                [
                    _found(known.get(container.name), choose, {} if infeasible else asked, gpus)
                    for container, asked in zip(containers or (), amounts, strict=True)
                ]
                for containers, amounts in ((spec.containers, wanted), (spec.init_containers, wanted_first))
            ]
            had.append(_aggregate(spec, *by_container))
    largest: Amounts = {}
    for amounts in had:
        _raise_to(largest, amounts)
    return largest


def _infeasible(status: schema.PodStatus) -> bool:
    for condition in status.conditions or ():
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _allocated(status: schema.ContainerStatus) -> schema.Resources:
    return status.allocated_resources


def _in_effect(status: schema.ContainerStatus) -> schema.Resources:
    requests = None if status.resources is None else status.resources.requests
    return status.allocated_resources if requests is None else requests


def _found(
    status: schema.ContainerStatus | None,
    choose: Callable[[schema.ContainerStatus], schema.Resources],
    otherwise: Amounts,
    gpus: frozenset[str],
) -> Amounts:
    chosen = None if status is None else choose(status)
    if status is None or chosen is None:
        return otherwise
    return _listed(chosen, gpus, f"status of container {status.name}")


def _apply_pod_level(total: Amounts, resources: schema.Requirements, status: schema.PodStatus) -> None:
    asked = _listed(resources.requests, _POD_LEVEL, "spec.resources.requests")
    limits = _listed(resources.limits, _POD_LEVEL, "spec.resources.limits")
    for name, count in limits.items():
        # A limit alone: the API takes what the containers ask for, and without that the limit.
        asked.setdefault(name, total.get(name, count))
    if asked and status.resources is not None:
        if _infeasible(status):
            asked = {}
        for more in (status.resources.requests, status.allocated_resources):
            _raise_to(asked, _listed(more, _POD_LEVEL, "status.resources"))
    total.update(asked)


def _asked_each(containers: Sequence[schema.Container] | None, gpus: frozenset[str], where: str) -> list[Amounts]:
    return [_asked(container.resources, gpus, _path(where, index)) for index, container in _numbered(containers)]


def _asked(resources: schema.Requirements | None, gpus: frozenset[str], path: str) -> Amounts:
    """What one container asks for; a limit stands for a request that is missing, as the API defaults it."""
    if resources is None:
        return {}
    amounts = _listed(resources.limits, gpus, f"{path}.limits")
    amounts.update(_listed(resources.requests, gpus, f"{path}.requests"))
    return amounts


def _listed(resources: schema.Resources, gpus: frozenset[str], path: str) -> Amounts:
    if not resources:
        return {}
    return {
        name: quantity(resources, name, path) for name in resources if name == "cpu" or name == "memory" or name in gpus
    }


def _add(into: Amounts, more: Amounts) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


def _raise_to(into: Amounts, least: Amounts) -> None:
    for name, count in least.items():
        if into.get(name, -1) < count:
            into[name] = count


def _numbered(containers: Sequence[schema.Container] | None) -> list[tuple[int, schema.Container]]:
    return list(enumerate(containers or ()))


def _path(where: str, index: int) -> str:
    return f"spec.{where}[{index}].resources"


# -- quantities (``500m``, ``16Gi``, ``2e3``) as exact integers
#
# The grammar is that of apimachinery's ``resource.Quantity``: a decimal number and one suffix, which is binary (Ki to
# Ei), decimal (n u m k M G T P E) or a decimal exponent (e3, E-3). Rounding is always up, as in ``Value()`` and
# ``MilliValue()``. What is beyond int64 counts as 2^63 - 1, as Kubernetes clamps it: the API server accepts ``1e30``
# bytes of memory, so a pod may have them.


_GRAMMAR: Final = re.compile(
    r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([KMGTPE]i)|([eE][+-]?[0-9]+)|([numkMGTPE]))?", re.ASCII
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LONGEST: Final = 64  # characters: longer texts are not worth their arithmetic
_LARGEST_EXPONENT: Final = 200  # beyond it, with 64 digits, every result is 0, 1 or the largest anyway
LARGEST: Final = 2**63 - 1
UNKNOWN_COUNT: Final = 100_000
"""GPUs of a pod whose number cannot be read: more than any node has."""


class QuantityError(ValueError):
    """The text is no quantity that Kubernetes would accept for a resource, or it is negative."""


def total(first: int, second: int) -> int:
    """The sum of two amounts, LARGEST at most: JSON for programs has no larger integers."""
    return min(first + second, LARGEST)


@lru_cache(maxsize=2048)
def value(text: str | int | float) -> int:
    """The quantity in whole units (bytes, GPUs, pods), rounded up, LARGEST at most. A number is read as its text."""
    return _scaled(text, 0)


@lru_cache(maxsize=2048)
def nano(text: str | int | float) -> int:
    """The quantity in billionths, rounded up, as exact as Kubernetes keeps it."""
    return _exact(text, 9)


@lru_cache(maxsize=2048)
def milli(text: str | int | float) -> int:
    """The quantity in thousandths (CPU), rounded up, LARGEST at most."""
    return _scaled(text, 3)


def _scaled(text: str | int | float, scale: int) -> int:
    return min(_exact(text, scale), LARGEST)


def _exact(text: str | int | float, scale: int) -> int:
    written = text if isinstance(text, str) else repr(text)
    match = _GRAMMAR.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None:
        raise QuantityError(f"not a quantity: {written[:_LONGEST]!r}")
    sign, number, binary, exponent, decimal = match.groups()
    whole, _, fraction = number.partition(".")
    mantissa = int(whole + fraction)
    power = scale - len(fraction)
    if exponent:
        power += max(-_LARGEST_EXPONENT, min(int(exponent[1:]), _LARGEST_EXPONENT))
    elif decimal:
        power += _DECIMAL[decimal]
    elif binary:
        mantissa <<= _BINARY[binary]
    if sign == "-" and mantissa:
        raise QuantityError(f"negative quantity: {written!r}")
    result: int = mantissa * 10**power if power >= 0 else -(-mantissa // 10**-power)
    return result
