"""The seats in their ConfigMaps: written before they count for others, read by the next holder of the Lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.act.document import MOST_BYTES
from extender.act.queue.seat_store import SHARDS, SeatEntries, SeatStore, key
from extender.kube.client import ApiError, ApiServer
from extender.kube.own_objects import ConfigMap, StoredTexts, VersionConflict
from extender.metrics import Metrics
from extender.reservations.seats import Seat, Seats
from tests.act.test_reservations import connected
from tests.kube.objects import Objects

RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu")
SEAT = Seat("u1", "d/a", "job:d/g", "n1", (1000, 5, 1, 4), 0b1111, 5, 10.0)


def store(
    seats: Seats, server: ApiServer, metrics: Metrics | None = None, clock: Callable[[], float] = lambda: 20.0
) -> SeatStore:
    maps = [ConfigMap(server, "kube-system", f"seats-{i}") for i in range(SHARDS)]
    return SeatStore(seats, SeatEntries(RESOURCES, lambda: 1_000_000.0), maps, metrics or Metrics(), clock)


def path(shard: int) -> str:
    return f"/api/v1/namespaces/kube-system/configmaps/seats-{shard}"


def stored(objects: Objects) -> dict[str, str]:
    """All keys of all maps."""
    return {name: text for shard in range(SHARDS) for name, text in _data(objects, shard).items()}


def _data(objects: Objects, shard: int) -> dict[str, str]:
    return {k: v for k, v in (objects.stored.get(path(shard), {}).get("data") or {}).items() if v is not None}


@asynccontextmanager
async def served() -> AsyncIterator[tuple[SeatStore, Seats, Objects]]:
    objects, seats = Objects(), Seats()
    async with connected(objects) as server:
        yield store(seats, server), seats, objects


async def test_seats_are_kept_and_taken_over() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT, SEAT._replace(uid="u2"), SEAT._replace(uid="u3", gang="job:d/h")])
        assert await kept.keep(["job:d/g", "job:d/h"]) == ""
        assert stored(objects).keys() == {key("job:d/g"), key("job:d/h")}
        again = Seats()
        again.reserve([SEAT._replace(uid="old")])
        async with connected(objects) as server:
            await store(again, server).take_over()
        assert {seat.uid: seat for seat in again} == {seat.uid: seat for seat in seats}


async def test_seats_without_room_are_named_with_how_much_they_take() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT._replace(uid=f"{n:0200}") for n in range(5_000)])
        size = len(SeatEntries(RESOURCES, lambda: 1_000_000.0).text(seats.gang(SEAT.gang)).encode())
        assert await kept.keep([SEAT.gang]) == (
            f"the seats of 5,000 pods ({size:,} bytes) do not fit into {SHARDS} ConfigMaps of {MOST_BYTES:,} bytes "
            "beside those of other gangs; those of one gang have to fit into one"
        )
        assert not stored(objects)


async def test_what_is_kept_already_is_not_written_again() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT])
        await kept.keep([SEAT.gang])
        before = len(objects.said)
        await kept.keep([SEAT.gang])
        await kept.flush()
        assert len(objects.said) == before


async def test_bound_seats_leave_the_map() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT, SEAT._replace(uid="u2")])
        await kept.keep([SEAT.gang])
        seats.drop("u1")
        await kept.flush()
        assert [seat[0] for seat in json.loads(stored(objects)[key(SEAT.gang)])["seats"]] == ["u2"]
        seats.drop("u2")
        await kept.flush()
        assert stored(objects) == {}


async def test_many_gangs_are_spread_over_the_maps_and_none_is_too_large() -> None:
    async with served() as (kept, seats, objects):
        gangs = [f"job:d/{i}" for i in range(20)]
        for gang in gangs:  # 100 kB each
            seats.reserve(SEAT._replace(uid=f"{gang} {i:0200}", gang=gang) for i in range(400))
        assert await kept.keep(gangs) == ""
        sizes = [sum(len(text) for text in _data(objects, shard).values()) for shard in range(SHARDS)]
        assert sum(size > 0 for size in sizes) == 3
        assert all(size <= MOST_BYTES for size in sizes)
        seats.reserve(SEAT._replace(uid=f"{i:0200}", gang="huge") for i in range(20_000))
        assert "do not fit" in await kept.keep(["huge"])
        assert key("huge") not in stored(objects)


async def test_names_in_another_alphabet_count_with_all_their_bytes() -> None:
    """The API server counts bytes. A write that it rejects for its size would stop the queue."""
    async with served() as (kept, seats, objects):
        name = "volcano:d/" + 900 * "\u6a5f"
        gangs = [f"{name}{i}" for i in range(1_000)]
        seats.reserve(SEAT._replace(uid=f"u{i}", gang=gang) for i, gang in enumerate(gangs))
        assert await kept.keep(gangs) == ""
        sizes = [sum(len(text.encode()) for text in _data(objects, shard).values()) for shard in range(SHARDS)]
        assert sum(sizes) > MOST_BYTES * 3
        assert all(size <= MOST_BYTES for size in sizes)
        more = [f"{name}{i}" for i in range(1_000, 1_400)]
        seats.reserve(SEAT._replace(uid=f"v{i}", gang=gang) for i, gang in enumerate(more))
        assert "do not fit" in await kept.keep(more)


async def test_another_writer_is_a_conflict() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT])
        await kept.keep([SEAT.gang])
        async with connected(objects) as server:
            other = Seats()
            late = store(other, server)
            await late.take_over()
            other.reserve([SEAT._replace(uid="u9", gang="job:d/other")])
            for shard in range(SHARDS):  # it changes every map
                objects.put(path(shard), objects.stored.get(path(shard), {"metadata": {}, "data": {}}))
            with pytest.raises(VersionConflict):
                await late.keep(["job:d/other"])
            await late.take_over()
            other.reserve([SEAT._replace(uid="u9", gang="job:d/other")])
            assert await late.keep(["job:d/other"]) == ""


async def test_what_cannot_be_read_is_dropped_and_counted() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT])
        await kept.keep([SEAT.gang])
        shard = next(shard for shard in range(SHARDS) if _data(objects, shard))
        found: Any = objects.stored[path(shard)]
        objects.put(path(shard), {**found, "data": {**found["data"], "broken": "{"}})
        again, metrics = Seats(), Metrics()
        async with connected(objects) as server:
            taken = store(again, server, metrics)
            await taken.take_over()
            assert [seat.uid for seat in again] == ["u1"]
            assert metrics.reservations_damaged._value.get() == 1
            await taken.flush()  # it leaves the map, too
        assert stored(objects).keys() == {key(SEAT.gang)}


async def test_no_api_server_is_an_error() -> None:
    async with served() as (kept, seats, objects):
        objects.fail = lambda request: 500
        seats.reserve([SEAT])
        with pytest.raises(ApiError):
            await kept.keep([SEAT.gang])


async def test_seats_of_a_newer_version_stay_in_the_maps_for_a_while() -> None:
    async with served() as (_, seats, objects):
        theirs, now, metrics = {"k": '{"format": 3, "places": []}'}, [20.0], Metrics()
        objects.put(path(1), {"metadata": {}, "data": theirs})
        async with connected(objects) as server:
            kept = store(seats, server, metrics, lambda: now[0])
            assert kept.is_readable()
            for _turn in range(2):
                await kept.take_over()
                assert not kept.is_readable()
            seats.reserve([SEAT])
            assert await kept.keep([SEAT.gang]) == ""
            await kept.flush()
            assert stored(objects).keys() == {"k", key(SEAT.gang)}
            now[0] += 600.0
            await kept.take_over()
            assert kept.is_readable()
            await kept.flush()
            assert stored(objects).keys() == {key(SEAT.gang)}
        assert metrics.reservations_damaged._value.get() == 0


async def test_a_reading_that_fails_in_part_changes_neither_the_seats_nor_the_version() -> None:
    async with served() as (kept, seats, objects):
        seats.reserve([SEAT])
        await kept.keep([SEAT.gang])
        async with connected(objects) as server:
            other = Seats()
            follower = store(other, server)
            objects.fail = lambda request: 503 if request.path == path(SHARDS - 1) else 0
            with pytest.raises(ApiError):
                await follower.take_over()
            assert (len(other), follower.version) == (0, 0)
            objects.fail = lambda request: 0
            await follower.take_over()
            assert (len(other), follower.version) == (1, kept.version)


async def test_a_write_that_fails_in_part_does_not_change_the_version() -> None:
    """The seats are given up then: an instance that states the new version would lack those that were written."""
    async with served() as (kept, seats, objects):
        for gang in ("job:d/a", "job:d/b"):  # one in each of two maps
            seats.reserve(SEAT._replace(uid=f"{gang} {i:0200}", gang=gang) for i in range(2500))
            assert await kept.keep([gang]) == ""
        shards = [shard for shard in range(SHARDS) if _data(objects, shard)]
        before = kept.version
        seats.reserve(seat._replace(node="n2") for seat in list(seats))
        objects.fail = lambda request: 503 if request.path == path(shards[-1]) else 0
        with pytest.raises(ApiError):
            await kept.keep(["job:d/a", "job:d/b"])
        assert len(shards) == 2
        assert kept.version == before < int(objects.stored[path(shards[0])]["metadata"]["resourceVersion"])


class _Maps:
    """Maps with one version number for all. `reading`: called after a map was read, before its answer comes."""

    def __init__(self) -> None:
        self.version = 0
        self.kept = [StoredTexts({}, "") for _ in range(SHARDS)]
        self.reading: Callable[[int], None] = lambda shard: None

    def put(self, shard: int, text: str) -> None:
        self.version += 1
        self.kept[shard] = StoredTexts({**self.kept[shard].data, f"k{self.version}": text}, str(self.version))


class _Map(ConfigMap):
    def __init__(self, maps: _Maps, shard: int) -> None:
        self._maps, self._shard = maps, shard

    async def read(self) -> StoredTexts:
        answer = self._maps.kept[self._shard]
        self._maps.reading(self._shard)
        return answer

    async def change(self, changes: Any, version: str) -> str:
        raise AssertionError

    async def put(self, changes: Any) -> StoredTexts:
        raise AssertionError


def _of_maps(seats: Seats, maps: _Maps) -> SeatStore:
    entries = SeatEntries(RESOURCES, lambda: 1_000_000.0)
    return SeatStore(seats, entries, [_Map(maps, i) for i in range(SHARDS)], Metrics(), lambda: 20.0)


def _text(number: int, size: int = 1) -> str:
    of_gang = [SEAT._replace(uid=f"{number}-{i}", gang=f"job:d/{number}") for i in range(size)]
    return SeatEntries(RESOURCES, lambda: 1_000_000.0).text(of_gang)


@pytest.mark.parametrize("changing", [1, 2, 50])
async def test_a_version_is_stated_only_with_all_seats_up_to_it(changing: int) -> None:
    """The maps are read one by one. Each time the first has been read, a gang is written to it, then one to the last;
    `changing`: so often."""
    maps, seats, left = _Maps(), Seats(), [changing]

    def write(shard: int) -> None:
        if shard == 0 and left[0]:
            left[0] -= 1
            maps.put(0, _text(maps.version))
            maps.put(SHARDS - 1, _text(maps.version))

    maps.reading = write
    follower = _of_maps(seats, maps)
    for _ in range(changing + 1):
        await follower.take_over()
        assert {seat.uid for seat in seats} >= {f"{number}-0" for number in range(follower.version)}
    assert (follower.version, len(seats)) == (2 * changing, 2 * changing)


async def test_maps_that_were_restored_from_a_backup_count_as_they_are() -> None:
    maps, seats = _Maps(), Seats()
    for number in range(9):
        maps.put(0, _text(number))
    follower = _of_maps(seats, maps)
    await follower.take_over()
    assert follower.version == 9
    maps.version, maps.kept[0] = 4, StoredTexts({"k": _text(0)}, "4")
    await follower.take_over()
    assert (follower.version, len(seats)) == (4, 1)


async def test_others_run_while_the_maps_are_taken_over_and_no_text_is_read_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    whole = SeatEntries.seats

    def count(entries: SeatEntries, text: str, now: float) -> list[Seat]:
        read.append(len(text))
        return whole(entries, text, now)

    monkeypatch.setattr(SeatEntries, "seats", count)
    maps, seats, turns = _Maps(), Seats(), [0]
    for number in range(200):
        maps.put(number % SHARDS, _text(number, 50))
    follower = _of_maps(seats, maps)

    async def tick() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(tick())
    await follower.take_over()
    assert (len(seats), turns[0] > 100) == (10_000, True)
    texts = _text(0, 50), _text(1, 49)
    maps.put(0, texts[0])
    maps.kept[1].data["k2"] = texts[1]
    read.clear()
    turns[0] = 0
    await follower.take_over()
    assert read == [len(text) for text in texts]
    assert (len(seats), turns[0] > 100) == (9_999, True)
    read.clear()
    await follower.take_over()
    assert not read
    beside.cancel()
