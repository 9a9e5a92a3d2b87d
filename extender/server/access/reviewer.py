"""The API server's answers on tokens and rights, remembered for a short time and in bounded numbers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from extender.errors import Busy
from extender.kube.client import ApiError, Unreachable
from extender.kube.reviews import ListPods, PathRight, User
from extender.log import Allowance, get_log
from extender.metrics import Metrics

USER_SECONDS: Final = 60.0
"""How long a token counts that was accepted, also when it is revoked meanwhile."""
ALLOWED_SECONDS: Final = 30.0
REJECTED_SECONDS: Final = 5.0
"""How long a rejection counts, of a token or of a right."""
MOST_REMEMBERED: Final = 1_024
MOST_AT_ONCE: Final = 8
REVIEWS_PER_SECOND: Final = 50.0
"""On average over two seconds. A client with ever new tokens costs the API server no more."""
REVIEW_SECONDS: Final = 10.0
log = get_log()
Value = TypeVar("Value")


class Asks(Protocol):
    """What `kube.reviews.Reviews` answers."""

    async def user(self, token: str) -> User | None:
        """Whose token it is."""
        ...

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        """Whether the user has the right."""
        ...


class ReviewFailed(Exception):
    """The API server gave no answer: nobody is let in."""


class Reviewer:
    """The questions of one server. Busy: too many new tokens and rights are asked about; ReviewFailed."""

    def __init__(self, asks: Asks, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._asks, self._metrics, self._clock = asks, metrics, clock
        self._users: _Remembered[User | None] = _Remembered(clock)
        self._rights: _Remembered[bool] = _Remembered(clock)
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._allowance = Allowance(2 * REVIEWS_PER_SECOND, REVIEWS_PER_SECOND)

    async def user(self, token: str) -> User | None:
        """Whose token it is; None: the API server does not accept it."""
        key = hashlib.sha256(token.encode()).digest()  # no token stays in memory
        known, user = self._users.get(key)
        if not known:
            user = await self._review("token", lambda: self._asks.user(token))
            self._users.put(key, user, USER_SECONDS if user else REJECTED_SECONDS)
        return user

    async def may(self, user: User, right: PathRight | ListPods) -> bool:
        """Whether the user has the right."""
        key = (user, right)
        known, allowed = self._rights.get(key)
        if not known or allowed is None:
            allowed = await self._review("access", lambda: self._asks.may(user, right))
            self._rights.put(key, allowed, ALLOWED_SECONDS if allowed else REJECTED_SECONDS)
        return allowed

    async def _review(self, kind: str, ask: Callable[[], Awaitable[Value]]) -> Value:
        if self._allowance.take(self._clock()) is None:
            raise Busy("too many new tokens and rights are asked about")
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._at_once:
                answer = await ask()
        except (ApiError, Unreachable, TimeoutError) as error:
            self._metrics.reviews.labels(kind, "failed").inc()
            log.warning("the API server does not review a request: it is rejected", kind=kind, err=str(error)[:300])
            raise ReviewFailed from error
        self._metrics.reviews.labels(kind, "accepted" if answer else "rejected").inc()
        return answer


class _Remembered(Generic[Value]):
    """Values with an end; the one that was used longest ago makes room."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[bool, Value | None]:
        """(whether it is known, the value)."""
        found = self._kept.get(key)
        if found is None or found[0] <= self._clock():
            return False, None
        self._kept.move_to_end(key)
        return True, found[1]

    def put(self, key: Hashable, value: Value, seconds: float) -> None:
        """It counts for so long."""
        self._kept[key] = (self._clock() + seconds, value)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)
