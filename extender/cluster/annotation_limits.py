"""What counts of the claims that pods make in annotations. Whoever creates a pod writes them, and each of them makes
other pods likelier victims; so the settings bound each by PriorityClass and by namespace.

| annotation | what counts |
|---|---|
| protect-for | `protectForSeconds` at most, after the start |
| restart-seconds | `restartSeconds` at most |
| saves-on-termination | up to `savesOnTerminationSeconds`, and to the pod's grace period |
| saves-on-request | up to `savesOnRequestSeconds`; less where pods of its owner or namespace ignored requests |
| last-checkpoint | not before the start, and not after now (extender.objects.progress) |
| gang, gang-min, and any other source of a gang | `gangMin` at most; one running pod is no gang |
| the name of a gang | among the pods of one team alone: `gangTeam` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple, get_args

from ext_core.rows import NOT_ASKED
from extender.objects import gangs, progress
from extender.objects.gangs import OUR_MINIMUM, Gang, number
from extender.objects.records import PodRecord
from extender.settings import ClaimBounds, Settings
from extender.times import rfc3339

MOST_SHOWN: Final = 80  # characters of an annotation
Field = Literal[
    "protect_for_seconds", "restart_seconds", "gang_min", "saves_on_termination_seconds", "saves_on_request_seconds"
]
FIELDS: Final[tuple[Field, ...]] = get_args(Field)
Team = Literal["namespace", "serviceAccount", "owner"]
TEAMS: Final[tuple[Team, ...]] = get_args(Team)
"""Whose pods of one name are one gang; each keeps more pods apart than the one before."""


class Bounds(NamedTuple):
    """What a pod may claim at most: seconds, pods, and with whose pods it may be one gang."""

    protect_for_seconds: int
    restart_seconds: int
    gang_min: int
    saves_on_termination_seconds: int
    saves_on_request_seconds: int
    gang_team: Team = "namespace"


class Bounded(NamedTuple):
    """A claim that does not count as written."""

    annotation: str
    """Its name, or `gang`, which labels and owners name too."""
    value: str
    """As written."""
    counts: str
    """What it counts as, and why; for people."""

    def warning(self, pod: PodRecord) -> dict[str, str]:
        """As the commands print it."""
        where = f"pod {pod.namespace}/{pod.name}"
        value = self.value if len(self.value) <= MOST_SHOWN else self.value[:MOST_SHOWN] + "..."
        part = "gang" if self.annotation == "gang" else f"metadata.annotations[{self.annotation}]"
        return {
            "code": "claim-bounded",
            "path": f"{where}: {part}",
            "message": f"{where}: {self.annotation} {value!r} {self.counts}",
        }


class AnnotationLimits:
    """The bounds of the settings, and what counts under them. `common`: the bounds of most pods."""

    def __init__(self, settings: Settings) -> None:
        self._claims = settings.claims
        self._minimum_run = settings.preemption.minimum_run_seconds
        asks = settings.evictions.enabled and not settings.shadow
        self._most_wait = settings.preemption.most_wait_seconds if asks else {}
        self.ignores: Callable[[PodRecord], int] = lambda _: 0
        """How likely a pod ignores a request to save, in thousandths; the cluster gives it."""
        self.common = Bounds(**{field: getattr(settings.claims, field) for field in Bounds._fields})

    def of(self, pod: PodRecord) -> Bounds:
        """The lower of what its PriorityClass and its namespace allow; what neither names is as for all pods."""
        claims = self._claims
        if pod.priority_class not in claims.by_priority_class and pod.namespace not in claims.by_namespace:
            return self.common
        return Bounds(**{field: self._bound(pod, field)[0] for field in FIELDS}, gang_team=self._team(pod)[0])

    def _bound(self, pod: PodRecord, field: Field) -> tuple[int, str]:
        """(the bound, the path of the setting that gives it)."""
        name = ClaimBounds.model_fields[field].alias  # as the settings have it
        stated = ((getattr(bounds, field), f"{path}.{name}") for path, bounds in self._of(pod))
        common = getattr(self._claims, field), f"claims.{name}"
        return min((bound for bound in stated if bound[0] is not None), default=common)

    def _team(self, pod: PodRecord) -> tuple[Team, str]:
        """(with whose pods it may be one gang, the path of the setting that says so)."""
        teams = ((bounds.gang_team, f"{path}.gangTeam") for path, bounds in self._of(pod))
        stated = [(team, path) for team, path in teams if team is not None]
        return max(stated, key=lambda pair: TEAMS.index(pair[0]), default=(self._claims.gang_team, "claims.gangTeam"))

    def _of(self, pod: PodRecord) -> Iterator[tuple[str, ClaimBounds]]:
        """The bounds that name its namespace or its PriorityClass, with their paths."""
        claims = self._claims
        if (bounds := claims.by_namespace.get(pod.namespace)) is not None:
            yield f"claims.byNamespace.{pod.namespace}", bounds
        if (bounds := claims.by_priority_class.get(pod.priority_class)) is not None:
            yield f"claims.byPriorityClass.{pod.priority_class}", bounds

    def ref(self, pod: PodRecord, objects: gangs.Objects) -> gangs.Ref | None:
        """The gang that the pod names, among the pods of its team; None when it names none. `objects`: as for
        gangs.ref."""
        named = gangs.ref(pod, objects)
        if named is None:
            return None
        team = self.of(pod).gang_team
        return named if team == "namespace" else named._replace(team=_team_of(pod, team, objects))

    def protected_ms(self, pod: PodRecord) -> int:
        """Until when the pod is never a victim, as progress.protected_ms returns it."""
        if progress.PROTECT not in pod.annotations and pod.priority_class not in self._minimum_run:
            return 0
        return progress.protected_ms(pod, self._minimum_run, self.of(pod).protect_for_seconds)

    def restart_seconds(self, pod: PodRecord) -> int:
        """Seconds that the pod's restart counts as."""
        if progress.RESTART not in pod.annotations:  # nearly always
            return 0
        return progress.restart_seconds(pod, self.of(pod).restart_seconds)

    def saving(self, pod: PodRecord) -> progress.Saving:
        """In how many seconds the pod saves its work, as far as that counts."""
        if pod.annotations.keys().isdisjoint(progress.SAVES):  # nearly always
            return progress.NOT_SAVING
        bounds = self.of(pod)
        stated = progress.saving(pod, bounds.saves_on_termination_seconds, bounds.saves_on_request_seconds)
        if stated.on_request < 0 or not (ignores := self.ignores(pod)):
            return stated
        return stated._replace(ignores=ignores)

    def most_wait(self, pod: PodRecord) -> int:
        """Seconds for which the pod waits at most until its victims have saved their work; 0: it asks none."""
        return self._most_wait.get(pod.priority_class, 0)

    def gang(self, gang: Gang, gang_min: int) -> Gang:
        """The gang with the minimum that counts; 0, so that no eviction breaks it, while one pod of it runs.
        `gang_min`: the lowest bound of its running pods.

        One running pod is no gang, whatever minimum is stated: nothing else stops with it. A gang of which one pod is
        left, or has come, does no work together, and a pod alone must not seem dearer for naming a gang. A minimum
        beyond the running members counts as all of them: the first eviction breaks it.
        """
        most = gang_min if gang.running > 1 else 0
        return gang if gang.minimum <= most else replace(gang, minimum=most)

    def bounded(
        self, pod: PodRecord, running: Sequence[PodRecord] = (), *, apart: bool = False, now_ms: int = 0
    ) -> Iterator[Bounded]:
        """The claims of a pod that do not count as written. `running`: the running members of its gang; `apart`:
        whether pods of other teams name the same gang; `now_ms`: milliseconds since 1970, 0 where it is not known."""
        if pod.annotations:
            yield from self._times(pod, now_ms)
        yield from self._gang_min(pod, running)
        if apart and (named := gangs.ref(pod, {})) is not None:
            yield self._apart(pod, named)

    def _times(self, pod: PodRecord, now_ms: int) -> Iterator[Bounded]:
        notes = pod.annotations
        protect, restart = progress.duration(notes.get(progress.PROTECT, "")), notes.get(progress.RESTART, "")
        most, setting = self._bound(pod, "protect_for_seconds")
        if protect is not None and protect > most:
            yield Bounded(
                progress.PROTECT, notes[progress.PROTECT], _counts(progress.duration_text(most), most, setting)
            )
        most, setting = self._bound(pod, "restart_seconds")
        if (progress.whole(restart) or 0) > most:
            yield Bounded(progress.RESTART, restart, _counts(str(most), most, setting))
        yield from self._saves(pod)
        text = notes.get(progress.CHECKPOINT, "")
        saved, start = progress.checkpoint(text), progress.start_ms(pod)
        if 0 < saved < start and pod.start is not None:
            yield Bounded(progress.CHECKPOINT, text, f"counts as {rfc3339(pod.start)}, the pod's start")
        elif saved > now_ms > 0:
            yield Bounded(progress.CHECKPOINT, text, f"counts as {rfc3339(now_ms / 1000)}, now: it is in the future")

    def _saves(self, pod: PodRecord) -> Iterator[Bounded]:
        """A longer time does not count as the bound: a pod that ends within the bound would lose its work."""
        fields: tuple[Field, Field] = "saves_on_termination_seconds", "saves_on_request_seconds"
        for name, field in zip(progress.SAVES, fields, strict=True):
            seconds, (most, setting) = progress.duration(pod.annotations.get(name, "")), self._bound(pod, field)
            ignores = self.ignores(pod) if name == progress.SAVES_ON_REQUEST else 0
            if seconds is not None and (seconds > most or not most):
                longest = f", which allows {progress.duration_text(most)}" if most else ""
                yield Bounded(name, pod.annotations[name], f"does not count (settings: {setting}{longest})")
            elif seconds is not None and ignores:
                yield Bounded(name, pod.annotations[name], ignored_text(ignores))

    def _gang_min(self, pod: PodRecord, running: Sequence[PodRecord]) -> Iterator[Bounded]:
        text = pod.labels.get(OUR_MINIMUM) or pod.annotations.get(OUR_MINIMUM) or ""
        minimum = number(text)
        if not minimum:
            return
        most, setting = self._bound(pod, "gang_min")
        if minimum > most:
            yield Bounded(OUR_MINIMUM, text, _counts(str(most), most, setting))
        elif len(running) == 1:
            yield Bounded(OUR_MINIMUM, text, "does not count: one pod of the gang runs, and one pod is no gang")

    def _apart(self, pod: PodRecord, named: gangs.Ref) -> Bounded:
        """The name of a gang that pods of other teams name too."""
        team, setting = self._team(pod)
        of = "service account" if team == "serviceAccount" else "owner and service account"
        counts = f"counts among the pods of its own {of} alone, which others name too (settings: {setting})"
        return Bounded("gang", named.name, counts)


def ignored_text(ignores: int) -> str:
    """What the annotation saves-on-request counts as, and why, for people. `ignores`: in thousandths, above 0."""
    share = "does not count" if ignores >= NOT_ASKED else f"counts to {100 - ignores / 10:.0f} %"
    return f"{share}: pods of its owner, or of its namespace, were asked to save lately and did not in time"


def _team_of(pod: PodRecord, team: Team, objects: gangs.Objects) -> str:
    """Whose pod it is, as the gangs of a team are told apart."""
    above = list(gangs.owners(pod.namespace, pod.owner, objects)) if team == "owner" else []
    return "/".join((pod.service_account, *((above[-1][1], above[-1][3]) if above else ())))


def _counts(text: str, most: int, setting: str) -> str:
    return f"counts as {text} (settings: {setting})" if most else f"does not count (settings: {setting})"
