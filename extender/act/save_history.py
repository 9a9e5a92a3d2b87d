"""How the owners of pods have answered requests to save their work: who ignores them is believed less.

Theory of operation
-------------------
1. A request that ends counts once for the owner (`gangs.top_owner`) and once for its namespace, as saved or as ignored;
   a late answer is ignored. Members of a gang are asked together: the first one that ends counts.
2. Each count halves in HALF_LIFE_SECONDS. A namespace that is never asked is forgotten in time, and so is an owner.
3. An owner ignores a request as likely as it did before, and as OWN more requests would that are answered as its
   namespace answers. A namespace starts with NAMESPACE answers that are saved. So a new name is worth no more than its
   namespace: once that has ignored twelve requests in a week, and saved none, no pod with a new owner is asked.
4. What follows is applied to the cluster as records, which all prices read (`AnnotationLimits.saving`), and which `top`
   and the page show (`ask/fleet.py`).
5. A namespace keeps MOST_OWNERS, those that say most: with more names a tenant displaces its own. With MOST_NAMESPACES
   a further one is not remembered until one is forgotten: none displaces another.
6. It is stored as a text (dump, load): of each namespace as many owners as SAVE_ANSWERS_BYTES have room for. Two
   instances may both have learned: of each count the latest is kept.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

import msgspec

from extender.act.document import LearnedStore, Seconds
from extender.cluster.cluster import Cluster
from extender.kube.own_objects import ConfigMap
from extender.objects.records import Event, SaveAnswersRecord
from extender.objects.stored_texts import SAVE_ANSWERS_BYTES, decoded, is_newer, shortened
from extender.times import Clock

HALF_LIFE_SECONDS: Final = 7 * 86_400.0
OWN: Final = 0.5
NAMESPACE: Final = 4.0
FORGOTTEN: Final = 0.05  # answers: who has fewer by now is forgotten
MOST_OWNERS: Final = 16  # of a namespace
MOST_NAMESPACES: Final = 200
TOGETHER_SECONDS: Final = 60.0  # requests to one owner within this time are one
REFRESH_SECONDS: Final = 3_600.0
STEP: Final = 10  # thousandths: a smaller change is not applied
EVERY_SECONDS: Final = 60.0  # it is stored
KEY: Final = "save-answers"
FORMAT: Final = 1
MOST_TEXT: Final = 900_000  # characters
C = TypeVar("C", bound="Counts")


class Counts(msgspec.Struct):
    """Answers, each counting less as it ages."""

    saved: Seconds = 0.0
    ignored: Seconds = 0.0
    at: Seconds = 0.0
    """As of when, seconds since 1970."""
    asked: Seconds = 0.0
    """When the latest of these requests was written."""

    def since(self, now: float) -> float:
        """The part of it that counts at `now`."""
        return float(0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS))

    def weight(self, now: float) -> float:
        """How many answers it still is."""
        return (self.saved + self.ignored) * self.since(now)

    def note(self, asked: float, now: float, *, saved: bool) -> None:
        """One more answer."""
        part = self.since(now)
        self.saved, self.ignored = self.saved * part + saved, self.ignored * part + (not saved)
        self.at, self.asked = now, asked

    def share(self, now: float, prior: float, weight: float) -> float:
        """Of what is ignored, with `weight` answers more of which the share `prior` is."""
        part = self.since(now)
        return (self.ignored * part + prior * weight) / ((self.saved + self.ignored) * part + weight)


class Answers(Counts):
    """Those of a namespace, and of its owners."""

    owners: dict[str, Counts] = {}


class _Stored(msgspec.Struct):
    format: int
    namespaces: dict[str, Answers]


_READ: Final = msgspec.json.Decoder(_Stored)


class SaveHistory:
    """What one server has learned, and what another one had stored."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self._now, self.wall = cluster, clock.monotonic, clock.wall
        self._namespaces: dict[str, Answers] = {}
        self._refreshed = 0.0

    def note(self, namespace: str, owner: str, asked: float, *, saved: bool) -> None:
        """A request has ended that was written at `asked`, in seconds since 1970."""
        now = self.wall()
        if namespace not in self._namespaces and len(self._namespaces) >= MOST_NAMESPACES:
            self._bound(now)
            if len(self._namespaces) >= MOST_NAMESPACES:
                return
        of = self._namespaces.setdefault(namespace, Answers())
        counts = of.owners.setdefault(owner, Counts())
        if counts.asked and abs(asked - counts.asked) < TOGETHER_SECONDS:
            return
        counts.note(asked, now, saved=saved)
        of.note(asked, now, saved=saved)
        of.owners = _most(of.owners, MOST_OWNERS, now)
        self._apply([namespace], now)

    def refresh(self) -> None:
        """Apply what has changed with time, now and then."""
        now = self.wall()
        if abs(now - self._refreshed) >= REFRESH_SECONDS:
            self._bound(now)
            self._apply([*self._namespaces, *(self._cluster.save_answers.keys() - self._namespaces.keys())], now)
            self._refreshed = now

    def dump(self) -> str:
        """The text to store."""
        now = self.wall()

        def most(owners: int) -> str:
            namespaces = {
                name: Answers(of.saved, of.ignored, of.at, of.asked, _most(of.owners, owners, now))
                for name, of in sorted(self._namespaces.items())
            }
            return msgspec.json.encode(_Stored(FORMAT, namespaces), order="sorted").decode()

        return shortened(most, MOST_OWNERS, SAVE_ANSWERS_BYTES)

    def load(self, text: str) -> None:
        """Take over what is stored; what a clock that was ahead has written counts as of now. Raises Damaged."""
        now = self.wall()
        for namespace, stored in decoded(text, _READ, FORMAT, MOST_TEXT).namespaces.items():
            for counts in (stored, *stored.owners.values()):
                counts.at, counts.asked = min(counts.at, now), min(counts.asked, now)
            known = self._namespaces.get(namespace)
            if known is None:
                self._namespaces[namespace] = stored
                continue
            newest = stored if stored.at > known.at else known
            known.saved, known.ignored, known.at, known.asked = newest.saved, newest.ignored, newest.at, newest.asked
            for owner, counts in stored.owners.items():
                if owner not in known.owners or counts.at > known.owners[owner].at:
                    known.owners[owner] = counts
        self._refreshed = 0.0
        self.refresh()

    def _bound(self, now: float) -> None:
        """Forget what counts no more, and what is beyond the bounds: what says least, then by name."""
        for answers in self._namespaces.values():
            answers.owners = _most(answers.owners, MOST_OWNERS, now)
        self._namespaces = _most(self._namespaces, MOST_NAMESPACES, now)

    def _apply(self, namespaces: list[str], now: float) -> None:
        records = (self._record(namespace, now) for namespace in sorted(namespaces))
        events = [event for event in map(self._event, records) if event is not None]
        if events:
            self._cluster.apply(events, self._now())

    def _event(self, record: SaveAnswersRecord) -> Event | None:
        known = self._cluster.save_answers.get(record.name)
        if record.ignores or any(record.owners.values()):
            return Event("SaveAnswers", "set", record) if record != known else None
        return Event("SaveAnswers", "delete", record) if known is not None else None

    def _record(self, namespace: str, now: float) -> SaveAnswersRecord:
        of = self._namespaces.get(namespace, Answers())
        all_of_it = of.share(now, 0.0, NAMESPACE)
        owners = {owner: _steps(counts.share(now, all_of_it, OWN)) for owner, counts in sorted(of.owners.items())}
        return SaveAnswersRecord(uid="", name=namespace, resource_version="", ignores=_steps(all_of_it), owners=owners)


class SaveHistoryStore(LearnedStore):
    """Keeps it, beside the demand mix. What other instances have stored meanwhile is taken over first, also by those
    that learn nothing: they answer verbs by it."""

    def __init__(self, configmap: ConfigMap, history: SaveHistory) -> None:
        super().__init__(
            configmap, history.dump, history.load, newer=partial(is_newer, known=FORMAT), key=KEY, every=EVERY_SECONDS
        )
        self._refresh = history.refresh

    async def save(self) -> None:
        """Merge and write it, and let time pass."""
        self._refresh()
        await self._take_over()
        await super().save()


def _steps(share: float) -> int:
    return round(share * 1000 / STEP) * STEP


def _most(counts: dict[str, C], most: int, now: float) -> dict[str, C]:
    """Those that are not forgotten, `most` at most."""
    kept = {name: of for name, of in counts.items() if of.weight(now) >= FORGOTTEN}
    if len(kept) > most:
        kept = dict(sorted(kept.items(), key=lambda item: (-item[1].weight(now), item[0]))[:most])
    return kept
