"""The cheapest eviction for a gang by brute force: every set of victims of a domain, and every way to place the gang.

Nothing of the search is used. What a set costs is computed from the pods as a case states them, in the default terms of
the settings without leftover_fragmentation, which is not priced for a gang. Whether a node takes some pods of the gang
is asked of filter's rules, with the other pods as claims.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from tests.world import WALL, World

NONE = -(2**63)  # the highest priority of no victims
TERMINATING = -(2**31) - 1  # and of those that go anyway


@dataclass(slots=True)
class Running:
    """A pod on a node. `gang`: "" = none; `ending`: seconds from now when its grace ends, None: it is not deleted."""

    name: str
    node: str
    gpus: int
    cpu: int
    held: tuple[int, ...] = ()
    priority: int = 0
    gang: str = ""
    role: str = ""  # in its gang
    labels: tuple[str, ...] = ()
    age: int = 600
    restart: int = 0
    saves: int = -1  # on termination, within its grace
    asked: int = -1  # on request
    grace: int = 30
    ending: float | None = None
    spared: bool = False

    @property
    def ends(self) -> bool:
        """It is terminating, and will have terminated soon."""
        return self.ending is not None and self.ending >= -30

    def work(self, wait: int) -> int:
        """GPU-seconds, for a preemptor that waits so long until its victims have saved."""
        ways = [self.age]
        if 0 <= self.saves <= self.grace:
            ways.append(self.saves)
        if 0 <= self.asked <= wait > 0:
            ways.append(self.asked)
        return 0 if self.ending is not None else self.gpus * (min(ways) + self.restart)


@dataclass(slots=True)
class Wanted:
    """Equal pods of the gang."""

    count: int
    gpus: int
    cpu: int
    links: str = ""


@dataclass(slots=True)
class Case:
    """`nodes`: name -> (GPUs, CPUs, rack, links); `minimum`: of gangs, by name; `budgets`: label -> disruptions
    allowed; `roles`: minima of roles by gang; `borrowers`: names of pods, None: it is no reclaim; `regardless`: of
    their priority."""

    nodes: dict[str, tuple[int, int, str, list[list[int]] | None]]
    pods: list[Running]
    gang: list[Wanted]
    priority: int = 5
    minimum: dict[str, int] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    roles: dict[str, dict[str, int]] = field(default_factory=dict)
    borrowers: frozenset[str] | None = None
    regardless: bool = False
    wait: int = 0  # seconds for which the gang waits until victims have saved

    def world(self, world: World) -> list[str]:
        """Fill the cluster; the names of the gang's pods."""
        for name, (gpus, cpus, rack, links) in self.nodes.items():
            world.node(name, gpus, cpu=str(cpus), labels={"rack": rack}, links=links)
        for pod in self.pods:
            labels = dict.fromkeys(pod.labels, "yes")
            notes = {"gpu-extender.io/restart-seconds": str(pod.restart)} if pod.restart else {}
            if pod.saves >= 0:
                notes["gpu-extender.io/saves-on-termination"] = f"{pod.saves}s"
            if pod.asked >= 0:
                notes["gpu-extender.io/saves-on-request"] = f"{pod.asked}s"
            if pod.gang in self.roles:
                labels |= {"grove.io/podgang": pod.gang, "grove.io/podclique": pod.role}
            elif pod.gang:
                labels["gpu-extender.io/gang"] = pod.gang
                notes["gpu-extender.io/gang-min"] = str(self.minimum[pod.gang])
            world.pod(
                pod.name, pod.gpus, pod.node, cpu=str(pod.cpu), priority=pod.priority, held=pod.held, labels=labels,
                annotations=notes, start=WALL - pod.age, grace=pod.grace, owner="DaemonSet" if pod.spared else "",
                terminating=None if pod.ending is None else WALL + pod.ending,
            )  # fmt: skip
        for label, allowed in self.budgets.items():
            world.budget(label, allowed, {label: "yes"})
        for gang, roles in self.roles.items():
            podgroups = [{"name": role, "minReplicas": least, "podReferences": []} for role, least in roles.items()]
            named = {"name": gang, "namespace": "default"}
            kind = {"apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang"}
            world.set("Group", {**kind, "metadata": named, "spec": {"podgroups": podgroups}})
        names: list[str] = []
        for c, role in enumerate(self.gang):
            for i in range(role.count):
                names.append(f"gang-{c}-{i}")
                spec = {"priorityClassName": "prod"} if self.wait else {}
                world.pod(names[-1], role.gpus, cpu=str(role.cpu), priority=self.priority, links=role.links, spec=spec)
        return names

    def may_go(self, pod: Running) -> bool:
        """Whether it may be a victim, or goes by itself. A DaemonSet replaces its pods."""
        if pod.spared or pod.ending is not None:
            return not pod.spared and pod.ends
        lent = self.borrowers is not None and pod.name in self.borrowers
        return pod.priority < self.priority or (self.regardless and lent)


class Oracle:
    """Of one case in a world that it has filled."""

    def __init__(self, case: Case, world: World) -> None:
        self.case, self._world, self._policy = case, world, Policy.of(world.settings)
        self._roles = [self._request(c) for c, _ in enumerate(case.gang)]
        self._known: dict[tuple[str, frozenset[str], tuple[int, ...]], bool] = {}

    def _request(self, role: int) -> PodRequest:
        record = next(pod for pod in self._world.cluster.pods.values() if pod.name == f"gang-{role}-0")
        return pod_request.read(record, self._world.cluster)

    def best(self, rack: str, most: int | None = None) -> tuple[int, ...] | None:
        """The least cost in a rack; None: the gang cannot start there. Of no victims: all terms are 0, or NONE. `most`:
        GPU-seconds of work that the victims may lose."""
        nodes = [name for name, facts in self.case.nodes.items() if facts[2] == rack]
        victims = [pod for pod in self.case.pods if pod.node in nodes and self.case.may_go(pod)]
        costs: list[tuple[int, ...]] = []
        for n in range(len(victims) + 1):
            for chosen in combinations(victims, n):
                cost = (*self.cost(chosen, rack), n)
                if most is not None and cost[3 if self.case.borrowers is None else 4] > most:
                    continue
                if (not costs or cost < min(costs)) and self.starts(nodes, {pod.name for pod in chosen}):
                    costs.append(cost)
        return min(costs, default=None)

    def starts(self, nodes: Sequence[str], gone: set[str]) -> bool:
        """Whether all pods of the gang may be placed together."""
        left = {tuple(role.count for role in self.case.gang)}
        for node in nodes:
            left |= {
                tuple(a - b for a, b in zip(state, counts, strict=True))
                for state in left
                for counts in product(*(range(n + 1) for n in state))
                if any(counts) and self.takes(node, gone, counts)
            }
        return (0,) * len(self.case.gang) in left

    def takes(self, node: str, gone: set[str], counts: tuple[int, ...]) -> bool:
        here = {pod.name for pod in self.case.pods if pod.node == node}
        ways = {frozenset(here & gone)}
        if any(role.links == "required" for role in self.case.gang):
            ending = {pod.name for pod in self.case.pods if pod.node == node and pod.ends}
            ways.add(frozenset(here & gone | ending))
        return all(self._takes(node, way, counts) for way in ways)

    def _takes(self, node: str, gone: frozenset[str], counts: tuple[int, ...]) -> bool:
        if (node, gone, counts) not in self._known:
            self._known[node, gone, counts] = self._judged(node, gone, counts)
        return self._known[node, gone, counts]

    def _judged(self, node: str, gone: frozenset[str], counts: tuple[int, ...]) -> bool:
        cluster, policy = self._world.cluster, self._policy
        row = cluster.row(node)
        with cluster.without({f"uid-{name}" for name in gone}, node):
            for role, count in zip(self._roles, counts, strict=True):
                if not count:
                    continue
                for other, n in zip(self._roles, counts, strict=True):
                    for _ in range(n - (other is role)):
                        cluster.tables.nodes.add_claim(row, other.amounts, 0, False)
                free = cluster.tables.nodes.free_of(row)
                fits = all(a <= b for a, b in zip(role.amounts, free, strict=True) if a)
                fits = fits and not policy.judge(cluster.tables, role, array("i", [row]))[0]
                cluster.tables.nodes.drop_claims()
                if not fits:
                    return False
        return True

    def lacking(self, rack: str) -> int:
        """GPUs that the gang asks for and that are neither free in the rack nor become free there."""
        free = 0
        for name, (gpus, _, where, _) in self.case.nodes.items():
            if where == rack:
                free += gpus - sum(pod.gpus for pod in self.case.pods if pod.node == name)
                free += sum(pod.gpus for pod in self.case.pods if pod.node == name and pod.ends and not pod.spared)
        return max(0, sum(role.count * role.gpus for role in self.case.gang) - free)

    def cost(self, victims: Sequence[Running], rack: str) -> tuple[int, ...]:
        """By term, in the default order of the settings; first of a reclaim's, behind the budgets."""
        pods = [pod for pod in victims if pod.ending is None]
        lost = {id(pod): pod.work(self.case.wait) for pod in pods}
        broken = 0
        for gang, minimum in self.case.minimum.items():
            members = [pod for pod in self.case.pods if pod.gang == gang and pod.ending is None]
            needed = min(minimum, len(members))
            gone = sum(pod.gang == gang for pod in pods)
            short = 0 < needed > len(members) - gone
            for role, least in self.case.roles.get(gang, {}).items():
                of_role = [pod for pod in members if pod.role == role]
                leaving = sum(pod.gang == gang and pod.role == role for pod in pods)
                short |= len(of_role) - leaving < least and leaving > 0
            if gone and len(members) > 1 and short:
                broken += 1
                lost |= {id(pod): pod.work(self.case.wait) for pod in members}
        beside: tuple[int, ...] = ()
        if self.case.borrowers is not None:
            beside = (sum(pod.name not in self.case.borrowers for pod in pods),)
        return (
            self._violations(pods),
            *beside,
            max((pod.priority if pod.ending is None else TERMINATING for pod in victims), default=NONE),
            broken,
            sum(lost.values()),
            max((pod.grace if pod.ending is None else 0 for pod in victims), default=NONE),
            len(pods),
            sum(pod.gpus for pod in pods) - self.lacking(rack),
            0,
            sum(map(self._stranded, pods)),
        )

    def _violations(self, pods: Sequence[Running]) -> int:
        left, found = dict(self.case.budgets), 0
        for pod in sorted(pods, key=lambda pod: (-pod.priority, -pod.age, self._rank(pod))):
            over = False
            for label in pod.labels:
                left[label] -= 1
                over |= left[label] < 0
            found += over
        return found

    def _rank(self, pod: Running) -> float:
        return self._world.cluster.pod_rows[f"uid-{pod.name}"]

    def _stranded(self, pod: Running) -> bool:
        for name, (gpus, cpus, _, _) in self.case.nodes.items():
            there = [other for other in self.case.pods if other.node == name]
            free = (gpus - sum(other.gpus for other in there), cpus - sum(other.cpu for other in there))
            if name != pod.node and free[0] >= pod.gpus and free[1] >= pod.cpu:
                return False
        return True
