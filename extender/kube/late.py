"""Long events about the objects of one namespace take a tenth of the time at most.

The time that an event takes grows with its bytes, and tenants write the objects. After a long event the namespace
rests: its next long events wait. Only the latest event of each object is kept, and until it is read the version before
counts. What decides which GPUs are held does not wait: an event that shows a pod on a node, terminated or being deleted
for the first time is read at once. So is each event about a claim: the API server limits how long claims are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from extender.kube.lists import WatchedKind
from extender.log import Allowance, get_log
from extender.objects import decode
from extender.objects.records import Identity, Key, PodRecord, Record, key_of
from extender.times import Rests

LONG: Final = 2**14  # bytes: what is shorter takes 2 ms at most
MOST_BYTES: Final = 2**25  # of the events that wait: further ones are read at once
LATE_KINDS: Final = frozenset({"Pod", "FailedPod", "PodDisruptionBudget", "Group", "ResourceQuota"})
log = get_log()


class LateEvents:
    """The events of one kind that wait."""

    def __init__(
        self,
        watched: WatchedKind,
        known: Callable[[Key], Record | None],
        rests: Rests,
        allowance: Allowance,
        clock: Callable[[], float],
    ) -> None:
        """`known`: the record of a namespace and name; `rests`: of all kinds; `allowance`: of log lines; `clock`:
        seconds."""
        self._watched, self._known, self._rests, self._allowance, self._clock = watched, known, rests, allowance, clock
        self._lines: dict[str, dict[str, bytes]] = {}  # by namespace and name; none is empty
        self._size = 0  # bytes of all of them

    def take(self, line: bytes) -> tuple[str, Identity] | None:
        """None: the event is to be read now. Else what counts in its place: of an event that waits its version, as a
        bookmark; of a deletion the identity of the object, whose last state is not read."""
        if len(line) < LONG or self._watched.kind not in LATE_KINDS:
            return None
        event = decode.brief(line)
        if event is None or not self._rests.rests(event.identity.namespace, self._clock()):
            return None
        which = event.identity
        waits = self._lines.get(which.namespace, {}).get(which.name, b"")
        if self._moves(event) or self._size - len(waits) + len(line) > MOST_BYTES:
            return None
        if event.type == "DELETED":
            self.forget(which)
            return event.type, which
        names = self._lines.get(which.namespace)
        if names is None:
            names = self._lines[which.namespace] = {}
            self._warn(which.namespace)
        names[which.name] = line  # in the turn of an earlier event of the object, which is not read
        self._size += len(line) - len(waits)
        return "BOOKMARK", which

    def _moves(self, event: decode.BriefChange) -> bool:
        """Whether it shows a pod at another place than before."""
        if self._watched.kind not in ("Pod", "FailedPod"):
            return False
        known = self._known(key_of(event.identity))
        if isinstance(known, PodRecord):
            return event.place != decode.place(known)
        return event.place[:3] != (event.identity.uid, "", False)

    def took(self, which: Record | Identity, line: bytes, seconds: float) -> None:
        """An event was read, in so many seconds. An event of the same object that waits is older, and is dropped."""
        self.forget(which)
        if len(line) >= LONG and self._watched.kind in LATE_KINDS:
            self._rests.took(key_of(which)[0], seconds, self._clock())

    def due(self) -> Iterator[bytes]:
        """The events that are to be read now. `took` is called for each before the next is asked for."""
        for namespace in list(self._lines):
            while namespace in self._lines and not self._rests.rests(namespace, self._clock()):
                yield self._pop(namespace, next(iter(self._lines[namespace])))

    def forget(self, which: Record | Identity) -> None:
        """Drop the event of this object that waits, if there is one."""
        namespace, name = key_of(which)
        if name in self._lines.get(namespace, ()):
            self._pop(namespace, name)

    def _pop(self, namespace: str, name: str) -> bytes:
        names = self._lines[namespace]
        line = names.pop(name)
        self._size -= len(line)
        if not names:
            del self._lines[namespace]
        return line

    def clear(self) -> None:
        """Drop all: a list shows the latest versions."""
        self._lines.clear()
        self._size = 0

    def _warn(self, namespace: str) -> None:
        left_out = self._allowance.take(self._clock())
        if left_out is not None:
            log.warning(
                "long events about a namespace wait: they get a tenth of the time",
                kind=self._watched.name,
                namespace=namespace[:63],
                bytes=LONG,
                left_out=left_out or None,
            )
