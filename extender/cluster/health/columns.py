"""Node health as columns of the tables, and to the listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extender.cluster.faults import Faults
from extender.cluster.health.node_health import NodeHealth
from extender.cluster.health.verdicts import Change, Standing
from extender.cluster.listener import Listener
from extender.cluster.nodes.rows import NodeRows
from extender.cluster.tables import Tables
from extender.log import get_log

log = get_log()


class HealthColumns:
    """Writes the health of the nodes on which pods failed lately, and calls the listeners for each change."""

    def __init__(
        self, health: NodeHealth, tables: Tables, rows: NodeRows, listeners: Sequence[Listener], faults: Faults
    ) -> None:
        self._health, self._tables, self._rows = health, tables, rows
        self._listeners, self._faults = listeners, faults

    def write(self, now: float) -> bool:
        """Write what has changed; whether a node is rejected from now on, or accepted again."""
        health = self._health
        changes = health.tick(now)
        for change in changes:
            self._announce(change, now)
        for name in health.stale:
            row = self._rows.row(name)
            if row >= 0:
                self._tables.places.set_health(row, health.doubt(name, now), health.failing(name, now))
        health.stale.clear()
        for namespace in health.verdicts.stale_tenants:
            self._write_standings(namespace)
        health.verdicts.stale_tenants.clear()
        return bool(changes)

    def _announce(self, change: Change, now: float) -> None:
        if change.namespace:  # one tenant's own doing: reported to that tenant, and as information here
            log.info(
                "a node is rejected for a namespace" if change.refused else "a node is open to a namespace again",
                node=change.node,
                namespace=change.namespace,
                why=change.text,
            )
        else:
            log.warning(
                "a node is refused" if change.refused else "a node is trusted again", node=change.node, why=change.text
            )
        for listener in self._listeners:
            try:
                _call(listener, change)
            except Exception as error:
                self._faults.note("Node", change.node, error, now)

    def _write_standings(self, namespace: str) -> None:
        """What counts for one namespace's pods alone: a short list, by row."""
        self._set_own(namespace, self._health.standings(namespace))

    def _set_own(self, namespace: str, held: Mapping[str, Standing]) -> None:
        rows = {row: one for name, one in held.items() if (row := self._rows.row(name)) >= 0}
        known = sorted(rows.items(), key=lambda pair: pair[0])
        self._tables.places.set_own(
            namespace,
            [row for row, _ in known],
            [one.doubt for _, one in known],
            [int(one.rejected) for _, one in known],
        )


def _call(listener: Listener, change: Change) -> None:
    if not change.namespace:
        (listener.node_rejected if change.refused else listener.node_accepted)(change.node, change.text)
    elif change.refused:
        listener.node_rejected_for(change)
