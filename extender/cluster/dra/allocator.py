"""Which devices of a node kube-scheduler's allocator takes for the claims of a pod.

Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating, which kube-scheduler 1.36 and 1.37
use with their defaults. Depth first, in the order of claims, requests, alternatives and devices; the first full
solution is taken. `tests/e2e/test_allocator.py` compares with the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from extender.cluster.dra.resource_slices import Candidate, Pool
from extender.objects.cel import Verdict
from extender.objects.devices import Attribute, Capacity, ClaimSpec, Constraint, DeviceChoice, DeviceRequest
from extender.objects.resources import LARGEST, QuantityError, nano
from extender.objects.selectors import tolerates

MOST_RESULTS: Final = 32
"""Devices that the allocation of a claim may have."""
MOST_DEVICES: Final = 256
"""Devices of a pod that are looked for; of more the answer is not known."""
MOST_STEPS: Final = 8_000
"""Devices that are looked at for a request, or tried; beyond it the answer is not known."""
Judge = Callable[[DeviceChoice, Candidate], Verdict]
"""Whether the selectors of the class and of the request select a device."""
Amounts = Mapping[str, int]
"""Of a device's capacity, in billionths."""
NOTHING: Final[Amounts] = MappingProxyType({})


class Taken(Protocol):
    """What claims hold of devices (GpuDevice.id)."""

    def alone(self, device: str) -> bool:
        """Whether a claim has the device alone."""

    def parts(self, device: str) -> Amounts | None:
        """What claims that have a part of the device have together, None where none has."""


class Result(NamedTuple):
    """A device for a request. `request`: REQUEST or REQUEST/ALTERNATIVE; `amounts`: its part of the device, None where
    it gets it alone."""

    request: str
    candidate: Candidate
    admin: bool
    amounts: Amounts | None


class Allocation(NamedTuple):
    """`results`: of each claim, where all are allocated. Else `claim` and `request`: for which no device was left, by
    number and by name, and `why`; `unknown`: they may be allocated or not, and why that is not known."""

    results: tuple[tuple[Result, ...], ...] | None
    claim: int = 0
    request: str = ""
    why: str = ""
    unknown: bool = False
    steps: int = 0


class _End(Exception):
    """The attempt ends without devices: kube-scheduler's allocator ends with an error, or what it does is not known."""

    def __init__(self, at: tuple[int, str], why: str, *, unknown: bool = False) -> None:
        super().__init__(why)
        self.at, self.why, self.unknown = at, why, unknown


class _TooMany(Exception):
    """The alternatives so far leave no room in the allocation of the claim."""


def allocate(
    pools: Sequence[Pool], taken: Taken, claims: Sequence[ClaimSpec], judge: Judge, most: int = MOST_STEPS
) -> Allocation:
    """The devices for these claims together, which must not be allocated yet, in so many steps at most."""
    search = _Search(pools, taken, claims, judge, most)
    return search.result()._replace(steps=most - max(0, search.steps))


class _Option(NamedTuple):
    """A device that a request may get as far as the device alone is concerned. `end`: the attempt ends if the device is
    looked at."""

    pool: int
    candidate: Candidate
    end: _End | None


@dataclass(slots=True)
class _Wanted:
    """A request, or one alternative of it. `options`: the devices in order, once they are known; where all are wanted,
    these."""

    request: str
    choice: DeviceChoice
    number: int
    options: list[_Option] | None = None
    ends: bool = False  # whether an option ends the attempt

    @property
    def name(self) -> str:
        return f"{self.request}/{self.choice.name}" if self.choice.name else self.request


@dataclass(slots=True)
class _Values:
    """A constraint, with the values of the devices that are chosen."""

    constraint: Constraint
    values: list[Attribute]

    def binds(self, wanted: _Wanted) -> bool:
        of = self.constraint.requests
        return not of or wanted.request in of or wanted.name in of

    def allows(self, candidate: Candidate) -> Attribute | None:
        """The value of the device, None where the constraint does not allow it."""
        value = value_of(candidate, self.constraint.attribute)
        if value is None or not self.values:
            return value
        if not value.kind:
            return None
        same = value in self.values if self.constraint.distinct else value == self.values[0]
        return value if same != self.constraint.distinct else None


def value_of(candidate: Candidate, name: str) -> Attribute | None:
    """The value of an attribute as constraints read it, None where the device states none."""
    stated = candidate.device.attributes
    for attribute, value in stated:
        if attribute == name:
            return value
    domain, slash, own = name.partition("/")
    if slash and domain == candidate.driver:
        return next((value for attribute, value in stated if attribute == own), None)
    return None


class _Search:
    """The state of one attempt. Methods that search return whether everything from there on is allocated."""

    def __init__(
        self, pools: Sequence[Pool], taken: Taken, claims: Sequence[ClaimSpec], judge: Judge, most: int
    ) -> None:
        self.results: list[list[Result]] = [[] for _ in claims]
        self._deepest = (0, 0)
        self._pools, self._taken, self._claims, self._judge = pools, taken, claims, judge
        self._wanted: list[list[list[_Wanted]]] = []
        self._constraints = [[_Values(constraint, []) for constraint in spec.constraints] for spec in claims]
        self._chosen: dict[str, list[int]] = {}  # by device: the claims that it is chosen for
        self._parts: dict[str, list[Amounts]] = {}  # by device: the parts of it that are chosen
        self._left: dict[int, dict[tuple[str, str], int]] = {}  # by pool: what is left of its counters
        self._open = [(at, pool) for at, pool in enumerate(pools) if not pool.closed]
        self.steps = most

    def result(self) -> Allocation:
        """The whole search."""
        try:
            self.prepare()
            if self.claim(0):
                return Allocation(tuple([tuple(results) for results in self.results]))
        except _TooMany:
            return Allocation(None, *self.deepest(), f"a claim gets {MOST_RESULTS} devices at most")
        except QuantityError as error:
            return Allocation(None, *self.deepest(), str(error), unknown=True)
        except _End as end:
            return Allocation(None, *end.at, end.why, end.unknown)
        claim, request = self.deepest()
        bound = self._constraints[claim] if claim < len(self._constraints) else ()
        attributes = sorted({values.constraint.attribute for values in bound})
        beside = f" and meets the constraint on {', '.join(attributes)}" if attributes else ""
        return Allocation(None, claim, request, f"no device is left that matches{beside}")

    def deepest(self) -> tuple[int, str]:
        """The last claim and request for which a device was looked for."""
        claim, request = self._deepest
        requests = self._claims[claim].requests if claim < len(self._claims) else ()
        return claim, requests[request].name if request < len(requests) else ""

    # -- requests

    def prepare(self) -> None:
        """Read the requests. _End."""
        total = 0
        for number, spec in enumerate(self._claims):
            requests = [self._read(number, request) for request in spec.requests]
            least = sum(min((wanted.number for wanted in wanteds), default=0) for wanteds in requests)
            if least > MOST_RESULTS:
                raise _End((number, ""), f"it asks for more than {MOST_RESULTS} devices, which no claim gets")
            self._wanted.append(requests)
            total += sum(max((wanted.number for wanted in wanteds), default=0) for wanteds in requests)
        if total > MOST_DEVICES:
            raise _End((0, ""), f"more than {MOST_DEVICES} devices are asked for", unknown=True)

    def _read(self, claim: int, request: DeviceRequest) -> list[_Wanted]:
        at = (claim, request.name)
        if not request.choices:
            raise _End(at, "what it asks for is not known", unknown=True)
        return [self._read_choice(at, request, choice) for choice in request.choices]

    def _read_choice(self, at: tuple[int, str], request: DeviceRequest, choice: DeviceChoice) -> _Wanted:
        if choice.derived:
            raise _End(at, "derived attributes are not evaluated", unknown=True)
        wanted = _Wanted(request.name, choice, choice.number)
        if choice.number:
            return wanted
        wanted.options = []
        for index, pool in enumerate(self._pools):
            if pool.closed:
                raise _End(at, f"it asks for all devices, and of pool {pool.driver}/{pool.name} {pool.closed}")
            for candidate in pool.devices:
                if self._is_usable(at, wanted, candidate):
                    wanted.options.append(_Option(index, candidate, None))
        wanted.number = len(wanted.options)
        return wanted

    def _options(self, claim: int, wanted: _Wanted) -> list[_Option]:
        """The devices that a number of devices is chosen of."""
        if wanted.options is not None:
            return wanted.options
        options, at, choice = [], (claim, wanted.request), wanted.choice
        for index, pool in self._open:
            for candidate in pool.devices:
                if self._taken.alone(candidate.id) and not choice.admin:
                    continue
                end = None
                try:
                    if not self._is_usable(at, wanted, candidate):
                        continue
                except _End as error:
                    end, wanted.ends = error, True
                if end is not None or tolerates(choice.tolerations, candidate.taints):
                    options.append(_Option(index, candidate, end))
        wanted.options = options
        return options

    def claim(self, number: int) -> bool:
        """From a claim on."""
        return number >= len(self._claims) or self._request(number, 0)

    def _request(self, claim: int, number: int) -> bool:
        requests = self._wanted[claim]
        if number >= len(requests):
            try:
                return self.claim(claim + 1)
            except _TooMany:
                return False
        wanteds = requests[number]
        if len(wanteds) == 1 and not wanteds[0].choice.name:
            return self._device(claim, number, wanteds[0], 0, 0)
        all_too_many = True
        for wanted in wanteds:
            try:
                if self._device(claim, number, wanted, 0, 0):
                    return True
            except _TooMany:
                continue
            all_too_many = False
        if all_too_many:
            raise _TooMany
        return False

    # -- devices

    def _device(self, claim: int, request: int, wanted: _Wanted, index: int, start: int) -> bool:
        """From the device with this index of a request on. `start`: the first option that is tried."""
        self._deepest = max(self._deepest, (claim, request))
        every = not wanted.choice.number
        if every and not wanted.number:
            return False
        if index >= wanted.number:
            return self._request(claim, request + 1)
        if len(self.results[claim]) + wanted.number - index > MOST_RESULTS:
            raise _TooMany
        options = self._options(claim, wanted)
        if every:
            return self._try(claim, request, wanted, index, index, options[index])
        chosen, admin, missing = self._chosen, wanted.choice.admin, wanted.number - index
        if not wanted.ends:
            if len(options) - start < missing:
                return False
            if not index and not admin and sum(not chosen.get(option.candidate.id) for option in options) < missing:
                return False
        for at in range(start, len(options)):
            option = options[at]
            users = chosen.get(option.candidate.id, ())
            if (claim in users) if admin else users:
                continue
            if option.end is not None:
                raise option.end
            if self._try(claim, request, wanted, index, at, option):
                return True
        return False

    def _try(self, claim: int, request: int, wanted: _Wanted, index: int, at: int, option: _Option) -> bool:
        """With this option, which has the number `at`. Undone where nothing comes of it."""
        self._step((claim, wanted.request))
        candidate, admin, every = option.candidate, wanted.choice.admin, not wanted.choice.number
        device, shared = candidate.id, candidate.device.shared
        if every:
            users = self._chosen.get(device, ())
            if (claim in users and not shared) if admin else (users or self._taken.alone(device)):
                return False
        before = self._parts.get(device, ()) if shared else ()
        parts = self._part(claim, wanted, candidate, before)
        if parts is None and not every:
            return False
        counted = bool(candidate.consumes) and not (shared and (before or self._taken.parts(device) is not None))
        if counted and not self._has_counters(option.pool, candidate):
            return False
        if every and not tolerates(wanted.choice.tolerations, candidate.taints):
            return False
        values = self._constrained(claim, wanted, candidate)
        if values is None:
            return False
        if parts is None:
            for entry in values:
                entry.values.pop()
            return False
        if counted:
            self._count(option.pool, candidate, -1)
        if shared:
            self._parts.setdefault(device, []).append(parts)
        else:
            self._chosen.setdefault(device, []).append(claim)
        self.results[claim].append(Result(wanted.name, candidate, admin, parts if shared else None))
        done = False
        try:
            done = self._device(claim, request, wanted, index + 1, at + 1)
        finally:
            if not done:
                self._undo(claim, option, values, counted=counted)
        return done

    def _undo(self, claim: int, option: _Option, values: list[_Values], *, counted: bool) -> None:
        candidate = option.candidate
        self.results[claim].pop()
        if candidate.device.shared:
            self._parts[candidate.id].pop()
        else:
            self._chosen[candidate.id].pop()
        for entry in values:
            entry.values.pop()
        if counted:
            self._count(option.pool, candidate, 1)

    def _step(self, at: tuple[int, str]) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise _End(at, "it takes too many steps", unknown=True)

    def _is_usable(self, at: tuple[int, str], wanted: _Wanted, candidate: Candidate) -> bool:
        """Whether the device is one of those that the request is for, and has as much as it asks for, be it taken or
        not. _End."""
        self._step(at)
        verdict = self._judge(wanted.choice, candidate)
        if verdict.selected is None:
            raise _End(at, f"its selectors: {verdict.reason}", unknown=not verdict.fails)
        if not (verdict.selected and candidate.here):
            return False
        return self._consumed(at, wanted, candidate, NOTHING) is not None

    def _constrained(self, claim: int, wanted: _Wanted, candidate: Candidate) -> list[_Values] | None:
        """The constraints that now have the value of the device, None where one does not allow it."""
        values: list[_Values] = []
        for entry in self._constraints[claim]:
            if not entry.binds(wanted):
                continue
            value = entry.allows(candidate)
            if value is None:
                for changed in values:
                    changed.values.pop()
                if not wanted.choice.number:
                    raise _End((claim, wanted.request), "a constraint does not allow all of the devices")
                return None
            entry.values.append(value)
            values.append(entry)
        return values

    # -- amounts

    def _part(self, claim: int, wanted: _Wanted, candidate: Candidate, before: Sequence[Amounts]) -> Amounts | None:
        """What the request takes of the device, None where that is not left of it."""
        used = self._taken.parts(candidate.id) if candidate.device.shared else None
        parts = [*before, used] if used else before
        return self._consumed((claim, wanted.request), wanted, candidate, added(parts) if parts else NOTHING)

    def _consumed(self, at: tuple[int, str], wanted: _Wanted, candidate: Candidate, used: Amounts) -> Amounts | None:
        try:
            return consumed(candidate.device.capacity, wanted.choice.capacity, used)
        except CapacityError as error:
            raise _End(at, str(error)) from error

    def _has_counters(self, pool: int, candidate: Candidate) -> bool:
        remaining = self._left.get(pool)
        if remaining is None:
            remaining = self._left[pool] = self._available(self._pools[pool])
        consumes = candidate.consumes
        return all(amount >= consumes.get(counter, 0) for counter, amount in remaining.items())

    def _available(self, pool: Pool) -> dict[tuple[str, str], int]:
        remaining, taken = dict(pool.counters), self._taken
        for candidate in (*pool.devices, *pool.others):
            if candidate.consumes and (taken.alone(candidate.id) or taken.parts(candidate.id) is not None):
                for counter, amount in candidate.consumes.items():
                    remaining[counter] -= amount
        return remaining

    def _count(self, pool: int, candidate: Candidate, sign: int) -> None:
        remaining = self._left[pool]
        for counter, amount in candidate.consumes.items():
            remaining[counter] += sign * amount


def added(parts: Sequence[Amounts]) -> Amounts:
    """Their sum; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


# -- what a request takes of the capacity of a device
#
# Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/consumable_capacity.go. Amounts are
# integers, in billionths.


_UNIT: Final = 10**9
_MILLI: Final = 10**6


class CapacityError(ValueError):
    """kube-scheduler's allocator ends with an error, be there other devices or not."""


def consumed(
    capacity: tuple[tuple[str, Capacity], ...], asked: tuple[tuple[str, str], ...], used: Mapping[str, int]
) -> Mapping[str, int] | None:
    """What a request for these amounts takes of a device of which so much is used; None where the device does not have
    it. CapacityError, QuantityError."""
    taken = _taken(capacity, asked)
    if taken is None:
        return None
    for name, amount in taken.items():
        if name in used and amount + used[name] > _value(capacity, name):
            return None
    return taken


def _value(capacity: tuple[tuple[str, Capacity], ...], name: str) -> int:
    return next(nano(stated.value) for of, stated in capacity if of == name)


@lru_cache(maxsize=4096)
def _taken(capacity: tuple[tuple[str, Capacity], ...], asked: tuple[tuple[str, str], ...]) -> Mapping[str, int] | None:
    """As `consumed` of a device that is not used."""
    wanted = dict(asked)
    if not wanted.keys() <= dict(capacity).keys():
        return None
    taken = {name: _rounded(nano(wanted[name]), of) if name in wanted else _default(of) for name, of in capacity}
    if any(_violates(taken[name], of) or taken[name] > nano(of.value) for name, of in capacity):
        return None
    return taken


def _default(of: Capacity) -> int:
    return nano(of.value if of.default is None else of.default)


def _rounded(amount: int, of: Capacity) -> int:
    """The amount that is asked for, rounded up to one that the device gives."""
    if of.least is not None:
        return _stepped(amount, of)
    if of.values is not None:
        return next((value for text in of.values if amount <= (value := nano(text))), amount)
    return amount


def _stepped(amount: int, of: Capacity) -> int:
    least = nano(of.least or "0")
    if amount < least:
        return least
    if of.step is None:
        return amount
    unit, first, step = _steps(of)
    if unit == _MILLI and (amount % _MILLI or amount // _MILLI > LARGEST):
        raise CapacityError("the amount that it asks for has no milli value")
    if amount > LARGEST * _UNIT:
        raise CapacityError("the amount that it asks for is too large")
    rounded = first + step * -(-(-(-amount // unit) - first) // step)
    if rounded > LARGEST:
        raise CapacityError("the amount that it asks for is too large")
    return rounded * unit


def _steps(of: Capacity) -> tuple[int, int, int]:
    """The unit that is counted in, the least amount and the step in it."""
    least, step = nano(of.least or "0"), nano(of.step or "0")
    stated = [least, step] + ([] if of.most is None else [nano(of.most)])
    exact = all(amount % _MILLI == 0 and amount // _MILLI <= LARGEST for amount in stated)
    unit = _MILLI if exact and step >= _MILLI else _UNIT
    if not step:
        raise CapacityError("a step of the device's capacity is 0")
    return unit, -(-least // unit), -(-step // unit)


def _violates(amount: int, of: Capacity) -> bool:
    if of.default is not None and amount == nano(of.default):
        return False
    if of.least is None and of.most is None and of.step is None:
        return bool(of.values) and amount not in [nano(text) for text in of.values or ()]
    if of.most is not None and amount > nano(of.most):
        return True
    if of.step is None:
        return False
    unit, first, step = _steps(of)
    if unit == _MILLI and (amount % _MILLI or amount // _MILLI > LARGEST):
        return True
    return (-(-amount // unit) - first) % step != 0
