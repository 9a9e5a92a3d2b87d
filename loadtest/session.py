"""One run of the load test in one locust process: its servers, what it asks, and what it has measured."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serving import Connection, request
from loadtest import target as targets
from loadtest.asks import Ask, Asks
from loadtest.figures import Figures, Row
from loadtest.servers import Own
from loadtest.stub import pending
from loadtest.target import Pod, Target, Unusable

PENDING = 2_000
SLICE = 2.0
"""Seconds at one rate of events before the next: arms take turns, so that neighbours hit them alike. In a short run
less, so that each rate has a turn."""
SETTLE = 0.15
"""The share of a slice, after a change of the rate, that belongs to no arm."""


class Session:
    """What users share. `target`: None while there is nothing to ask."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.figures = Figures()
        self.own: Own | None = None
        self.target: Target | None = None
        self.churn: int | None = None
        self.settled_at = 0.0
        self.churning: Any = None
        self.sent: dict[int, tuple[int, float]] = {}
        self._asks: Asks | None = None
        self._kept: dict[tuple[str | int, ...], Ask] = {}
        self._canned: dict[str, bool] = {}
        self._put: Connection | None = None
        self._pods = int(time.time()) % 1_000_000 * 1_000  # the server takes a known pod as a retry
        self._to_bind = 0

    # ---- what is asked

    def start_own(self) -> str:
        """Starts our own servers; the URL. Unusable: not with these options."""
        options = self.options
        if options.test_namespace or options.pods or options.names_file:
            raise Unusable("--test-namespace, --pods and --names-file are for a deployment: they need --host")
        sizes = targets.numbers(options.names, "--names") if options.names else list(targets.OWN_SIZES)
        rates = self.rates()
        if options.bind and not rates:
            raise Unusable("--bind: a frozen fleet binds nothing; add --churn 0, or --host with its flags")
        self.own = own = Own()
        try:
            if rates:
                own.start_live(max(sizes), min(PENDING, max(sizes)) if options.bind else 0, Path(options.recording))
            else:
                own.start_frozen(max(sizes))
        except (OSError, ValueError, RuntimeError) as error:
            own.close()
            raise Unusable(str(error)) from error
        except BaseException:
            own.close()
            raise
        assert own.ours is not None
        assert own.null is not None
        host = f"http://127.0.0.1:{own.ours.port}"
        self.target = targets.own(host, f"http://127.0.0.1:{own.null.port}", sizes, bool(rates))
        self.target.bind = options.bind
        if options.bind:
            self.target.pods = [pending(i) for i in range(min(PENDING, max(sizes)))]
        self._put = Connection(own.null.port)
        self._asks = Asks(self.target)
        return host

    def use(self, host: str) -> None:
        """Ask the deployment at `host`: our own server, or one that was there before. Unusable: it cannot be asked."""
        if self.target is not None and host == self.target.host:
            return
        self.target, self._asks = None, None
        self._kept.clear()
        self._canned.clear()
        if self.rates():
            raise Unusable("--churn is for our own server: it starts a stub of an API server; leave out --host")
        self.target = targets.deployed(host, self.options)
        self._asks = Asks(self.target)

    def rates(self) -> list[int]:
        """The rates of events in turn; none: a frozen fleet."""
        return targets.numbers(self.options.churn, "--churn") if self.options.churn else []

    def unreached(self) -> list[int]:
        """The rates of events that had no whole turn."""
        return [rate for rate in self.rates() if rate not in self.sent]

    @property
    def asks(self) -> Asks:
        """The requests to the target."""
        assert self._asks is not None
        return self._asks

    def kept(self, what: str, *sizes: int) -> Ask:
        """A request that is the same in each turn but for its holes: a method of Asks and its arguments."""
        key: tuple[str | int, ...] = (what, *sizes)
        if key not in self._kept:
            made = getattr(self.asks, what)(*sizes)
            if made is None:
                raise RuntimeError(f"{what} of {sizes}: there is nothing to ask about")
            self._kept[key] = made
        return self._kept[key]

    # ---- pods

    def next_pod(self) -> int:
        """A number that no pod had before, nor in a run some seconds ago."""
        self._pods += 1
        return self._pods

    def latest_pod(self) -> str:
        """NAMESPACE/NAME of the pod that was asked about last."""
        assert self.target is not None
        return f"{self.target.namespace}/loadtest-{self._pods}"

    def pod_to_bind(self) -> Pod | None:
        """The next pod that waits; each is bound once."""
        assert self.target is not None
        if self._to_bind >= len(self.target.pods):
            return None
        self._to_bind += 1
        return self.target.pods[self._to_bind - 1]

    def preemptor(self) -> Pod:
        """A pod of the test namespace that waits; all of them in turn."""
        assert self.target is not None
        return self.target.pods[self.next_pod() % len(self.target.pods)]

    # ---- the null

    def answered(self, key: str, body: bytes) -> None:
        """Our first right answer of a kind is what the null answers from now on."""
        if self._put is not None and self.has_null_beside and not self._canned.get(key):
            self._put.send(request("PUT", f"/canned/{key}", body))
            self._canned[key] = True

    @property
    def has_null_beside(self) -> bool:
        """Whether the target is our own server, with the null beside it."""
        return self.target is not None and self.target.null is not None

    def has_null(self, key: str) -> bool:
        """Whether the null can answer that."""
        return self._canned.get(key, False)

    def null_first(self, call: int, key: str) -> bool:
        """Whether it is asked before ours, this time."""
        return call % 2 == 0 and self.has_null(key)

    # ---- figures

    def context(self, ask: Ask, server: str, cold: bool) -> dict[str, Any]:
        """What `note` gets to know about a call."""
        row = Row(ask.verb, ask.names, self.churn)
        return {"session": self, "row": row, "server": server, "cold": cold}

    def note(self, context: dict[str, Any], spent: float, error: BaseException | None, name: str) -> None:
        """A call has ended after `spent` ms."""
        if error is not None:
            self.figures.fail(f"{name}: {error}")
        row = context.get("row")
        if row is None or error is not None or context["cold"] or row.churn != self.churn:
            return
        if time.monotonic() >= self.settled_at:
            self.figures.add(row, context["server"], spent)

    # ---- watch events

    def turn(self, rate: int, wait: Callable[[float], object]) -> None:
        """One slice at this rate of events. `wait`: lets other users run for so many seconds."""
        assert self.own is not None
        run = float(self.options.run_time or 0) or float("inf")
        length = min(SLICE, run / (len(self.rates()) + 1))
        settle = SETTLE * length
        self.settled_at = time.monotonic() + settle
        self.churn = rate
        self.own.rate(rate)
        wait(settle)
        before, began = self.own.sent()["events"], time.monotonic()
        wait(length - settle)
        events, seconds = self.sent.get(rate, (0, 0.0))
        spent = time.monotonic() - began
        self.sent[rate] = (events + self.own.sent()["events"] - before, seconds + spent)

    def close(self) -> None:
        """Ends what was started."""
        if self._put is not None:
            self._put.close()
        if self.own is not None:
            self.own.close()
