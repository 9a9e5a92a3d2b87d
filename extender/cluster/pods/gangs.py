"""The gangs of bound pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from extender.cluster.faults import Faults
from extender.cluster.pods.annotation_limits import AnnotationLimits
from extender.objects import gangs
from extender.objects.records import GroupRecord, NodeRecord, PodRecord


class Gangs:
    """The gangs that bound pods name, by number. `objects`: the PodGroups, Jobs and so on that are known; `by_number`:
    the gang of each number, None where its pods do not depend on each other; `strays`: by number, the running members
    on nodes that are not known."""

    def __init__(
        self,
        pods: Mapping[str, PodRecord],
        nodes: Mapping[str, NodeRecord],
        limits: AnnotationLimits,
        faults: Faults,
    ) -> None:
        """`pods`: by uid; `nodes`: by name."""
        self.objects: dict[gangs.ObjectKey, GroupRecord] = {}
        self.by_number: list[gangs.Gang | None] = [None]  # number 0: no gang
        self.strays: dict[int, tuple[PodRecord, ...]] = {}
        self._pods, self._nodes, self._limits, self._faults = pods, nodes, limits, faults
        self._of_name: dict[gangs.Ref, int] = {}
        self._named: dict[tuple[str, str], dict[int, None]] = {}  # (namespace, name) -> the numbers of its gangs
        self._names: list[gangs.Ref | None] = [None]  # by number
        self._members: list[dict[str, None]] = [{}]  # by number: uids of the bound pods that name it
        self._numbers: dict[str, int] = {}  # by uid
        self._free: list[int] = []
        self._stale: set[int] = set()  # numbers of gangs whose members or objects have changed

    # -- what is read ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many gangs bound pods name."""
        return len(self._of_name)

    def number(self, uid: str) -> int:
        """The number of the gang that breaks without enough of its pods; 0 where the pod is in none."""
        number = self._numbers.get(uid, 0)
        return number if self.by_number[number] is not None else 0

    def of(self, pod: PodRecord) -> gangs.Gang | None:
        """The gang that a bound pod is in, None when no other pod depends on it."""
        return self.by_number[self._numbers.get(pod.uid, 0)]

    def running(self, pod: PodRecord) -> list[PodRecord]:
        """The running members of the gang that a bound pod names, itself among them; none where it names none."""
        members = self._members[self._numbers.get(pod.uid, 0)]
        return [member for uid in members if not (member := self._pods[uid]).terminating]

    def members(self) -> dict[gangs.Ref, set[str]]:
        """The uids of the bound pods that name each gang."""
        return {name: set(self._members[number]) for name, number in self._of_name.items()}

    # -- what is written ------------------------------------------------------------------------------------------

    def add(self, pod: PodRecord) -> None:
        """A pod is bound, and not known yet."""
        named = gangs.ref(pod, self.objects)
        if named is None:
            return
        number = self._of_name.get(named) or self._take(named)
        self._members[number][pod.uid] = None
        self._numbers[pod.uid] = number
        self._stale.add(number)

    def _take(self, named: gangs.Ref) -> int:
        number = self._free.pop() if self._free else len(self._names)
        if number == len(self._names):
            self._names.append(None)
            self._members.append({})
            self.by_number.append(None)
        self._of_name[named] = number
        self._named.setdefault((named.namespace, named.name), {})[number] = None
        self._names[number] = named
        return number

    def remove(self, uid: str) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        number = self._numbers.pop(uid, 0)
        if number:
            self._members[number].pop(uid, None)
            self._stale.add(number)

    def set(self, record: GroupRecord, change: str) -> None:
        """An object that states how many pods must run is "set", or there is a "delete"."""
        key = (record.api, record.kind, record.namespace, record.name)
        if change == "set":
            self.objects[key] = record
        else:
            self.objects.pop(key, None)
        self._stale.update(self._named.get((record.namespace, record.name), ()))

    def touch(self, uids: Iterable[str]) -> None:
        """The node of these bound pods has come, or does not exist any more."""
        self._stale.update(self._numbers[uid] for uid in uids if uid in self._numbers)

    def refresh(self, now: float) -> Iterator[str]:
        """Bring the gangs that have changed up to date. Yields the uids of the pods whose number may be another one."""
        for number in self._stale:
            try:
                self._read(number)
            except Exception as error:  # that gang stays as it was
                self._faults.note("Group", str(self._names[number]), error, now)
            yield from self._members[number]
        self._stale.clear()

    def _read(self, number: int) -> None:
        named, members = self._names[number], self._members[number]
        if named is None:
            return
        if not members:
            self._drop(number, named)
            return
        running = [pod for uid in members if not (pod := self._pods[uid]).terminating]
        found = gangs.gang(named, running, self.objects) if running else None
        self.by_number[number] = self._limits.gang(found)
        self.strays.pop(number, None)
        if strays := tuple(pod for pod in running if pod.node not in self._nodes):
            self.strays[number] = strays

    def _drop(self, number: int, named: gangs.Ref) -> None:
        del self._of_name[named]
        numbers = self._named[(named.namespace, named.name)]
        del numbers[number]
        if not numbers:
            del self._named[(named.namespace, named.name)]
        self._names[number] = self.by_number[number] = None
        self.strays.pop(number, None)
        self._free.append(number)
