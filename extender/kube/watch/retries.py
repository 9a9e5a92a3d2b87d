"""How long to wait before the next try, and the wait itself.

The delay is short where no answer came: the next try costs nothing, and the state must be current soon after the server
returns. It is long where an answer was useless.
"""

from __future__ import annotations

import asyncio

from extender.kube.watch.pace import Pace, Timing


class Retries:
    """The failures of one reflector in a row."""

    def __init__(self, pace: Pace, timing: Timing) -> None:
        self._pace, self._sleep, self._chance = pace, timing.sleep, timing.chance
        self._unanswered = self._useless = self._absences = 0
        self._woken = asyncio.Event()
        self.told_to_wait = False
        """The server itself asked for the wait."""

    def watch_seconds(self, prompt: bool) -> int:
        """How long the next watch is to last."""
        spread = 0.0 if prompt else self._chance.random()  # so that not all of them end together
        return max(1, int(self._pace.watch_for * (1.0 + spread)))

    def healthy(self) -> None:
        """A watch lived: the row of failures ends."""
        self._unanswered = self._useless = 0

    def expired(self) -> bool:
        """A version is too old. True where that is the first failure: nothing is wrong, a server that was started anew
        has no old versions."""
        if self._useless:
            return False
        self._useless = 1
        return True

    def after_failure(self, answered: bool, retry_after: float) -> float:
        """Seconds to wait. `retry_after`: what the server asks for."""
        if answered:
            self._useless += 1
            delay = self._pace.backoff.delay(self._useless, self._chance)
        else:
            self._unanswered += 1
            delay = self._pace.unanswered.delay(self._unanswered, self._chance)
        return max(delay, retry_after)

    def after_absence(self) -> float:
        """Seconds to wait before an API that is not served is asked for again."""
        delay = min(self._pace.absent_first * 2.0 ** min(self._absences, 32), self._pace.absent_retry)
        self._absences += 1
        self.healthy()
        return delay * (0.5 + self._chance.random())

    def served(self) -> None:
        """The API is served."""
        self._absences = 0

    def hurry(self) -> None:
        """End the wait now, unless the server itself asked for it."""
        if not self.told_to_wait:
            self._woken.set()

    async def wait(self, delay: float) -> None:
        """Until the delay is over, or `hurry` is called."""
        if not delay:
            return
        self._woken.clear()
        both = [asyncio.ensure_future(self._sleep(delay)), asyncio.ensure_future(self._woken.wait())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
