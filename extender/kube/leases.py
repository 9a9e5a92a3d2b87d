"""A Lease of coordination.k8s.io: of several instances one holds it, as client-go's leader election has it.

Clocks of machines are not compared: a Lease that was not renewed, as seen from here, for its whole duration is free.
The holder stops acting earlier than that, when it could not renew for two thirds of the duration.

The official client's `kubernetes.aio.leaderelection` is not used: it measures by the wall clock, releases no Lease, and
still leads while a renewal hangs.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.kube.events import micro_time
from extender.times import Clock

DURATION: Final = 15.0  # seconds, kube-scheduler's own
DEADLINE: Final = 2 / 3  # of the duration: the holder acts no longer without a renewal
RETRY: Final = 2 / 15  # of the duration: between two attempts


class _Spec(msgspec.Struct, omit_defaults=True):
    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None


class _Meta(msgspec.Struct, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    apiVersion: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class Lease:
    """One candidate for one Lease."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Clock | None = None,
        duration: float = DURATION,
    ) -> None:
        """``identity``: of this process alone; ``duration``: whole seconds for which the Lease is kept for a holder
        that is silent."""
        self._server = server
        self._where = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self._path = f"{self._where}/{quote(name, safe='')}"
        self._meta = _Meta(name, namespace)
        clock = clock or Clock()
        self.identity, self._clock, self._wall = identity, clock.monotonic, clock.wall
        self._duration, self.retry = duration, duration * RETRY
        self._seen: tuple[str, str] | None = None  # holder and renewTime, as last read
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def held(self) -> bool:
        """Whether we may act."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._duration * DEADLINE

    async def step(self) -> bool:
        """Take the Lease if it is free, renew it if it is ours; whether we hold it. Raises ApiError, NoAnswer."""
        began = self._clock()
        lease, holder = await self._current(began)
        spec = lease.spec if lease is not None else _Spec()
        if holder not in ("", self.identity):
            self._renewed_at = None
            return False
        now = micro_time(self._wall())
        again = spec.holderIdentity == self.identity
        wanted = _Spec(
            self.identity,
            int(self._duration),
            spec.acquireTime if again and spec.acquireTime else now,
            now,
            (spec.leaseTransitions or 0) + (not again and lease is not None),
        )
        if not await self._write(wanted, lease):
            self._renewed_at = None
            return False
        self._seen, self._seen_at = (self.identity, now), began
        self._renewed_at = began
        return True

    async def look(self) -> str:
        """Which instance holds it, "" for none, without taking part. A holder that is silent counts until its duration
        has passed between two looks. Raises ApiError, NoAnswer."""
        return (await self._current(self._clock()))[1]

    async def _current(self, began: float) -> tuple[_Lease | None, str]:
        """The Lease as it is, and its holder: "" where that was silent for its whole duration, as seen from here."""
        try:
            lease = _read(await self._server.get(self._path))
        except ApiError as error:
            if error.status != 404:
                raise
            return None, ""
        spec = lease.spec
        seen = (spec.holderIdentity or "", spec.renewTime or "")
        if self._seen != seen:
            self._seen, self._seen_at = seen, self._clock()  # the renewal may be as late as the answer
        silent = began - self._seen_at >= float(spec.leaseDurationSeconds or DURATION)
        return lease, "" if silent and seen[0] != self.identity else seen[0]

    async def resign(self) -> None:
        """Let the next one have it at once."""
        self._renewed_at = None
        lease = _read(await self._server.get(self._path))
        if lease.spec.holderIdentity == self.identity:
            now = micro_time(self._wall())
            await self._write(_Spec("", 1, now, now, lease.spec.leaseTransitions), lease)

    async def _write(self, spec: _Spec, lease: _Lease | None) -> bool:
        version = lease.metadata.resourceVersion if lease is not None else ""
        meta = _Meta(self._meta.name, self._meta.namespace, version)
        body = msgspec.json.encode(_Lease(meta, spec))
        try:
            if lease is None:
                await self._server.post(self._where, body)
            else:
                await self._server.put(self._path, body)
        except ApiError as error:
            if error.status == 409:  # another instance was faster
                return False
            raise
        return True


def _read(body: bytes) -> _Lease:
    try:
        return msgspec.json.decode(body, type=_Lease)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoAnswer(f"no Lease came: {error}") from error
