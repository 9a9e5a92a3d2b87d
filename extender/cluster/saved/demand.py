"""What was learned of the demand, as data."""

from __future__ import annotations

import msgspec

from extender.cluster.demand.forecast import Forecast
from extender.cluster.demand.kinds import Kind


class SavedDemand(msgspec.Struct, frozen=True, array_like=True):
    """The demand mix and the known machines. Unlike a dump of the mix it is exact: no number is rounded or scaled."""

    mass: list[tuple[Kind, float]]
    used: list[Kind]
    base: float
    latest: float | None
    latest_uids: list[str]
    until: float
    until_uids: list[str]
    models: list[tuple[str | None, ...]]
    machines: list[tuple[tuple[int, str, int], tuple[int, int]]]


def save(forecast: Forecast) -> SavedDemand:
    """What the forecast has learned."""
    mix, models = forecast.mix, forecast.models
    return SavedDemand(
        list(mix._mass.items()),
        sorted(mix._used),
        mix._base,
        mix._latest,
        sorted(mix._latest_uids),
        mix._until,
        sorted(mix._until_uids),
        list(models._known),
        list(models.machines.items()),
    )


def restore(forecast: Forecast, saved: SavedDemand) -> None:
    """Have the forecast know this and nothing else."""
    mix, models = forecast.mix, forecast.models
    mix._mass, mix._used = dict(saved.mass), set(saved.used)
    mix._base, mix._latest, mix._latest_uids = saved.base, saved.latest, set(saved.latest_uids)
    mix._until, mix._until_uids = saved.until, frozenset(saved.until_uids)
    mix._order = None
    mix._near.clear()
    mix.revision += 1
    models._known = {values: number for number, values in enumerate(saved.models)}
    models.machines = dict(saved.machines)
    models.revision += 1
