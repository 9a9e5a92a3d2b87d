"""CEL selectors of DeviceClasses and of requests of ResourceClaims: which devices they select, as kube-scheduler 1.37
evaluates them (k8s.io/dynamic-resource-allocation/cel).

No library is used. common-expression-language 0.10.0 and cel-python 0.5.0 were measured: neither reads `?.` and
`cel.bind`, checks types, or bounds the time of an evaluation (seven nested loops over ten elements hold the
interpreter's lock for 2.8 s in the one, four for 0.9 s in the other), and the first converts the whole device for each
evaluation. cel-expr-python 0.1.3 does these, but lets functions have no types of their own (`semver`, `quantity`), and
bounds loops alone: a string that is doubled 28 times takes 3.4 s. Regular expressions are RE2's, whose time is linear.

A selector is `True`, `False`, or fails: a property that a device does not state is an error, unless `||`, `&&` or the
like absorbs it. kube-scheduler's allocator evaluates the selectors of a device when it looks at the device, and an
error ends the attempt to schedule the pod, on every node. It does not look at devices after those that it chose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from extender.objects.cel.program import ABSORBED, FIRST_SLOT, MOST_SPENT, SPENT, Program, program_of
from extender.objects.cel.syntax import parse
from extender.objects.cel.values import EVERYTHING, DeviceKind, DeviceProperties, EvaluationError, Place, Unsupported

__all__ = ["DeviceKind", "DeviceProperties", "Selector", "Verdict", "judge", "selector", "selects"]

_MOST_SPENT_IN_ALL: Final = 50_000  # what the evaluations of one expression may spend, ...
_USUAL: Final = 64  # ... unless they spend less than that on average
_MOST_ANSWERS: Final = 256  # remembered for an expression
_MOST_KEPT: Final = 512  # expressions that stay compiled, ...
_MOST_TEXT: Final = 1 << 18  # ... and their characters together


class Verdict(NamedTuple):
    """`selected`: whether the device is selected, None where that is not known or the evaluation fails."""

    selected: bool | None
    fails: bool = False  # kube-scheduler's allocator ends with an error if it looks at the device
    reason: str = ""  # why it is not known, or fails


SELECTED: Final = Verdict(True)
NOT_SELECTED: Final = Verdict(False)


class Selector:
    """An expression, which is compiled, and what it answered."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.unsupported = ""
        """Why no device is judged, "" where devices are."""
        self._program: Program | None = None
        self._reads: frozenset[Place] = frozenset()
        self._places: tuple[Place, ...] = ()
        self._answers: dict[Any, Verdict] = {}
        self._spent, self._evaluations = 0, 0
        try:
            self._program = program_of(parse(expression))
        except Unsupported as error:
            self.unsupported = str(error)
        except RecursionError:
            self.unsupported = "it is nested too deeply"

    @property
    def reads(self) -> frozenset[Place]:
        """What its answers so far depend on, beside the driver and whether several claims may share the device."""
        return self._reads

    def judge(self, device: DeviceProperties) -> Verdict:
        """Evaluated once for the devices that have the same values of what it reads."""
        key = self._key(device)
        verdict = self._answers.get(key)
        if verdict is None:
            reads = self._reads
            verdict = self._evaluate(device)
            if reads is not self._reads or len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
                key = self._key(device)
            self._answers[key] = verdict
        return verdict

    def _key(self, device: DeviceProperties) -> Any:
        stated = device.stated
        if EVERYTHING in self._reads:
            return (device.driver, device.multiple, device.partial, *stated.items())
        return (device.driver, device.multiple, device.partial, device.readable, *map(stated.get, self._places))

    def _evaluate(self, device: DeviceProperties) -> Verdict:
        if self._program is None:
            return Verdict(None, reason=self.unsupported)
        if not device.readable:
            return Verdict(None, reason="the device has a property that cannot be read")
        if self._spent > max(_MOST_SPENT_IN_ALL, _USUAL * self._evaluations):
            return Verdict(None, reason="it is too costly")
        reads = set(self._reads)
        state: list[Any] = [MOST_SPENT, device, reads, False, *[None] * (self._program.slots - FIRST_SLOT)]
        try:
            value = self._program.run(state)
            if state[ABSORBED] and self._program.panics:
                raise Unsupported("an error beside distinct() or sort()")
            verdict = _VERDICTS.get(value) if value is True or value is False else None
            verdict = verdict or Verdict(None, fails=True, reason="its value is no boolean")
        except EvaluationError as error:
            verdict = Verdict(None, fails=not device.partial, reason=str(error))
        except Unsupported as error:
            verdict = Verdict(None, reason=str(error))
        except RecursionError:
            verdict = Verdict(None, reason="it is nested too deeply")
        self._evaluations += 1
        self._spent += MOST_SPENT - state[SPENT]
        if len(reads) > len(self._reads):
            self._reads = frozenset(reads)
            self._places = tuple(reads)
        return verdict


_VERDICTS: Final = {True: SELECTED, False: NOT_SELECTED}


class _Selectors:
    """Those that were used last. A program takes up to 60 times the memory of its text."""

    def __init__(self) -> None:
        self.kept: dict[str, Selector] = {}
        self._length = 0

    def __call__(self, expression: str) -> Selector:
        kept = self.kept.pop(expression, None)
        if kept is None:
            kept = Selector(expression)
            self._length += len(expression)
        self.kept[expression] = kept
        while len(self.kept) > _MOST_KEPT or (self._length > _MOST_TEXT and len(self.kept) > 1):
            oldest = next(iter(self.kept))
            del self.kept[oldest]
            self._length -= len(oldest)
        return kept


_SELECTORS: Final = _Selectors()


def selector(expression: str) -> Selector:
    """The expression, compiled once as long as it is in use."""
    return _SELECTORS(expression)


def judged(selectors: Iterable[Selector], device: DeviceProperties) -> Verdict:
    """What the selectors together say of a device: as kube-scheduler, up to the first that does not select it."""
    for part in selectors:
        verdict = part.judge(device)
        if verdict.selected is not True:
            return verdict
    return SELECTED


def judge(selectors: Iterable[str], device: DeviceProperties) -> Verdict:
    """As `judged`."""
    return judged(map(selector, selectors), device)


def selects(selectors: Iterable[str], device: DeviceProperties) -> bool | None:
    """Whether all selectors select the device; None where that is not known, or kube-scheduler fails at it."""
    return judge(selectors, device).selected
