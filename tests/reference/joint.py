"""Twin of `ext_core.joint` and `ext_core.joint_search`: all ways are tried, and all placements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from math import floor, prod

from ext_core.ask import Ask
from ext_core.rows import Role
from tests.reference.hazard import PANICS_KNOWN, Hazards
from tests.reference.link_sets import LinkSets
from tests.reference.slots import Room, Slots, _room
from tests.reference.table import MOST_GPUS, SCHEDULABLE, NodeTable, check_ask

CERTAIN = 2
MOST_ROLES, MOST_PODS, MOST_WAYS = 64, 32_000, 4096
Counts = Sequence[int]


class _Node:
    """One node as it was read."""

    def __init__(self, nodes: NodeTable, hazards: Hazards, row: int, allowed: int) -> None:
        at = nodes.node(row)
        self.nodes, self.row, self.allowed, self.at = nodes, row, allowed, at
        self.room = _room(nodes, row)
        self.free = at.healthy & ~at.sure
        self.unknown, self.named, self.panics = 0, False, False
        if at.gpu >= 0:
            hidden = max(0, at.healthy.bit_count() - at.alloc[at.gpu])
            likely = (at.likely & ~at.sure).bit_count()
            named = nodes.named(at.gpu, row)
            self.free &= ~named
            self.unknown = at.unknown + likely + min(at.claim[at.gpu], 1 << 28) - named.bit_count() + hidden
            self.named = at.healthy != 0 and at.unknown == 0
            seen = self.named and at.claim[at.gpu] == 0 and self.free.bit_count() == self.room.spare[at.gpu]
            self.panics = bool(hazards.get(row) & PANICS_KNOWN) and seen

    def follows(self, ask: Ask) -> bool:
        """Whether it hands out what is planned to the pod."""
        return self.named and self.unknown == 0 and self.nodes.shapes.follows_plans(self.at.shape, ask.planned)

    def whole(self, room: Room) -> int:
        return sum(1 << gpu for gpu in room.whole(self.at.units))


class Joint:
    def __init__(
        self,
        nodes: NodeTable,
        slots: Slots,
        sets: LinkSets,
        roles: list[Role],
        fullness: float,
        others: list[tuple[int, ...]] | None = None,
    ) -> None:
        self.others = {id(role): asked for role, asked in zip(roles, others or [()] * len(roles), strict=True)}
        self.left: list[tuple[int, ...]] = []
        if not 1 <= len(roles) <= MOST_ROLES:
            raise ValueError(f"{len(roles)} roles: 1 to {MOST_ROLES}")
        for c, role in enumerate(roles):
            check_ask(nodes, role.ask)
            if not 1 <= role.pods <= MOST_PODS or not 0 <= role.against < 2**64 or min(role.ask.amounts) < 0:
                raise ValueError(f"role {c} is out of range")
        self.shapes, self.slots, self.sets, self.roles, self.fullness = nodes.shapes, slots, sets, roles, fullness
        self.nodes: list[_Node] = []
        self._refused: dict[int, list[Counts]] = {}
        self._prices: list[float] = []

    @property
    def height(self) -> int:
        return len(self.nodes)

    def read(
        self,
        nodes: NodeTable,
        hazards: Hazards,
        rows: Sequence[int],
        judged: list[tuple[Sequence[int], Sequence[int]]],
        others: Sequence[int] | None = None,
    ) -> None:
        others = others or ()
        width = len(others) // len(rows) if rows else 0
        for i, row in enumerate(rows):
            self.left.append(tuple(others[i * width : (i + 1) * width]))
            allowed = 0
            for c, (codes, bits) in enumerate(judged):
                cordoned = not nodes.columns["flags"][row] & SCHEDULABLE and not self.roles[c].cordoned
                eligible = row // 64 < len(bits) and bits[row // 64] >> row % 64 & 1
                allowed |= (codes[i] == 0 and bool(eligible) and not cordoned) << c
            self.nodes.append(_Node(nodes, hazards, row, allowed))

    def refuse(self, at: Sequence[int], refused: list[Counts]) -> None:
        for node in at:
            self._refused.setdefault(node, []).extend(refused)

    def refuse_nothing(self) -> None:
        self._refused.clear()

    def row(self, at: int) -> int:
        return self.nodes[at].row

    def most_of(self, at: int) -> tuple[int, ...]:
        most = []
        for c, role in enumerate(self.roles):
            one = [0] * len(self.roles)
            while one[c] < role.pods and self._fits(at, [n + (d == c) for d, n in enumerate(one)]):
                one[c] += 1
            most.append(one[c])
        return tuple(most)

    def sums(self, domain: Sequence[int], domains: int) -> list[int]:
        made = [0] * (domains * len(self.roles))
        for at, number in enumerate(domain):
            for c, most in enumerate(self.most_of(at)):
                if number >= 0:
                    made[number * len(self.roles) + c] += most
        return made

    def members(self, domain: Sequence[int], which: int) -> list[int]:
        return [at for at, number in enumerate(domain) if number == which and any(self.most_of(at))]

    def work(self, at: Sequence[int]) -> int:
        ways = [prod(most + 1 for most in self.most_of(node)) for node in at]
        return 0 if any(number > MOST_WAYS for number in ways) else 1 + sum(ways)

    def set_prices(self, prices: list[float]) -> None:
        self._prices = prices

    def priced(self) -> bool:
        return True

    def ways(self, at: int) -> list[tuple[tuple[int, ...], int]] | None:
        every = product(*(range(role.pods + 1) for role in self.roles))
        return [(counts, self._price(at, counts)) for counts in every if any(counts) and self._fits(at, counts)]

    def alone(self, first: int, last: int, domain: Sequence[int]) -> tuple[int, int] | None:
        counts = [role.pods for role in self.roles]
        found = [at for at in range(first, last) if domain[at] >= 0 and self._fits(at, counts)]
        best = min(found, key=lambda at: (self._price(at, counts), at), default=None)
        return None if best is None else (best, self._price(best, counts))

    def _check_role(self, role: int) -> None:
        if not 0 <= role < len(self.roles):
            raise IndexError(f"role {role} of {len(self.roles)}")

    def more(self, at: int, counts: Counts, role: int) -> int:
        self._check_role(role)
        most = self.roles[role].pods - counts[role]
        fit = (n for n in range(1, most + 1) if not self._fits(at, [k + n * (c == role) for c, k in enumerate(counts)]))
        return next(fit, most + 1) - 1

    def price(self, at: int, counts: Counts) -> int | None:
        return self._price(at, counts) if self._fits(at, counts) else None

    def needed(self) -> tuple[int, ...]:
        return tuple(sum(amounts) for amounts in zip(*(self._total(role) for role in self.roles), strict=True))

    @staticmethod
    def _total(role: Role) -> list[int]:
        return [amount * role.pods for amount in role.ask.amounts]

    def rooms(self, at: Sequence[int], role: int) -> list[int]:
        self._check_role(role)
        return [self.most_of(node)[role] for node in at]

    def spare(self, at: Sequence[int], resource: int) -> list[int]:
        return [node.room.spare[resource] if node.allowed else 0 for node in map(self.nodes.__getitem__, at)]

    def gpus(self, at: int, counts: Counts) -> list[int] | None:
        return self._chosen(at, counts)[0] if self._fits(at, counts) else None

    def holds(self, at: int, counts: Counts, masks: Sequence[int]) -> bool:
        node = self.nodes[at]
        if len(masks) != sum(counts) or not self._fits(at, counts):
            return False
        left = dict(node.room.left)
        for role, gpus in zip(self._pods(counts), masks, strict=True):
            follows = node.follows(role.ask)
            required = role.ask.links == "required" and role.ask.wanted >= 2 and follows
            rails = role.ask.nics == "required" and role.ask.wanted > 0 and follows
            if not gpus:
                if required or rails:
                    return False
                continue
            held = [gpu for gpu in range(MOST_GPUS) if gpus >> gpu & 1]
            if len(held) != role.ask.wanted or any(left.get(gpu, 0) < role.ask.share for gpu in held):
                return False
            if role.ask.share == node.at.units and any(left[gpu] < node.at.units for gpu in held):
                return False
            if required and not self.shapes.linked(node.at.shape, gpus):
                return False
            if rails and not self._aligned(node, role, gpus):
                return False
            for gpu in held:
                left[gpu] -= role.ask.share
        return True

    def _pods(self, counts: Counts) -> Iterator[Role]:
        for role, count in zip(self.roles, counts, strict=True):
            yield from [role] * count

    def _fits(self, at: int, counts: Counts) -> bool:
        node = self.nodes[at]
        there = [c for c, count in enumerate(counts) if count]
        if any(all(n >= least for n, least in zip(counts, some, strict=True)) for some in self._refused.get(at, ())):
            return False
        if any(not node.allowed >> c & 1 for c in there):
            return False
        for r, free in enumerate(node.room.spare):
            wanted = sum(role.ask.amounts[r] for role in self._pods(counts))
            if wanted > max(free, 0):
                return False
        for r, free in enumerate(self.left[at]):
            if sum(self.others[id(role)][r] for role in self._pods(counts)) > max(free, 0):
                return False
        for c in there:
            if any(self.roles[c].against >> d & 1 and (d != c or counts[c] > 1) for d in there):
                return False
        return self._certain(node, counts) and self._chosen(at, counts)[1] is not None

    def _certain(self, node: _Node, counts: Counts) -> bool:
        """Whether links that are required are certain."""
        asks = [role.ask for role in self._pods(counts)]
        if not self._with_nics(node, asks):
            return False
        required = [ask for ask in asks if ask.links == "required" and ask.wanted >= 2]
        if not required:
            return True
        units = sum(ask.amounts[node.at.gpu] for ask in asks)
        sizes = sorted((ask.wanted for ask in required if node.follows(ask)), reverse=True)
        if sizes:
            whole = node.whole(node.room)
            if whole.bit_count() < units or self.sets.sets(node.at.shape, whole, sizes) is None:
                return False
        return all(
            self.shapes.certain(
                node.at.shape, node.free, ask.wanted, node.unknown + units - ask.wanted, ask.containers, ask.planned
            )
            == CERTAIN
            for ask in required
            if not node.follows(ask)
        )

    def _with_nics(self, node: _Node, asks: list[Ask]) -> bool:
        """Whether NICs that are required are certain, where the node does not hand out what is planned."""
        units = sum(ask.amounts[node.at.gpu] for ask in asks) if node.at.gpu >= 0 else 0
        return all(
            self.shapes.certain_nics(node.at.shape, node.free, ask, node.unknown + units - ask.wanted) == CERTAIN
            for ask in asks
            if ask.nics == "required" and ask.wanted and not node.follows(ask)
        )

    def _chosen(self, at: int, counts: Counts) -> tuple[list[int], Room | None]:
        """(the GPUs of each pod, what is left then); None: the GPUs do not do."""
        node, pods = self.nodes[at], list(self._pods(counts))
        gpu, units = node.at.gpu, node.at.units
        sum_of = sum(role.ask.amounts[gpu] for role in pods) if gpu >= 0 else 0
        named = node.named and (units > 1 or node.whole(node.room).bit_count() >= sum_of)
        masks, room = [0] * len(pods), node.room
        linked = self._sets(node, pods) if named and units == 1 else {}
        for turn in (0, 1):
            for i, role in enumerate(pods):
                if role.ask.resource != gpu or gpu < 0 or (i in linked) != (turn == 0):
                    continue
                alone = node.panics and role.ask.containers == 1
                if alone and self.shapes.crash(node.at.shape, node.whole(room), role.ask.wanted):
                    return masks, None
                gpus = linked[i] if turn == 0 else self._any(node, room, role) if named or role.ask.share > 1 else 0
                if not gpus and role.ask.share > 1 and node.at.healthy:
                    return masks, None
                if (
                    role.ask.nics == "required"
                    and role.ask.wanted
                    and node.follows(role.ask)
                    and not self._aligned(node, role, gpus)
                ):
                    return masks, None
                masks[i] = gpus if node.named else 0
                left = tuple((one, have - role.ask.share if gpus >> one & 1 else have) for one, have in room.left)
                room = replace(room, left=left)
        for role in pods:
            amounts = role.ask.amounts
            spare = tuple(have - amount for have, amount in zip(room.spare, amounts, strict=True))
            room = replace(
                room, spare=spare, cpu=room.cpu - amounts[0], memory=room.memory - amounts[1], slots=room.slots - 1
            )
        return masks, room

    def _aligned(self, node: _Node, role: Role, gpus: int) -> bool:
        return self.shapes.nics(node.at.shape, gpus) == role.ask.wanted == gpus.bit_count()

    def _sets(self, node: _Node, pods: list[Role]) -> dict[int, int]:
        """By place: linked sets for all pods with several GPUs, or else for those that require them."""
        every = [i for i, role in enumerate(pods) if role.ask.resource == node.at.gpu and role.ask.wanted >= 2]
        must = [i for i in every if pods[i].ask.links == "required" and node.follows(pods[i].ask)]
        for some in (every, must):
            sizes = [pods[i].ask.wanted for i in some]
            nics = [pods[i].ask.nics for i in some]
            known = node.at.shape and some
            sets = self.sets._chosen(node.at.shape, node.whole(node.room), sizes, nics) if known else None
            if sets is not None:
                return dict(zip(some, sets, strict=True))
        return {}

    def _any(self, node: _Node, room: Room, role: Role) -> int:
        units, wanted, share = node.at.units, role.ask.wanted, role.ask.share
        if share == units:
            free = room.whole(units)
            if len(free) < wanted:
                return 0
            gpus = (
                self.shapes.with_nics(node.at.shape, node.whole(room), wanted, role.ask.nics) if node.at.shape else None
            )
            return gpus if gpus else sum(1 << gpu for gpu in free[:wanted])
        fit = [(left if wanted == 1 else -left, gpu) for gpu, left in room.left if left >= share]
        return sum(1 << gpu for _, gpu in sorted(fit)[:wanted]) if len(fit) >= wanted and share < units else 0

    @cached_property
    def _sizes(self) -> tuple[int, float]:
        """The most CPU and the most GPUs of a node with GPUs."""
        nodes = self.nodes[0].nodes
        rows = [row for at in range(nodes.height) if (row := nodes.node(at)).gpu >= 0]
        most_cpu = max((row.alloc[0] for row in rows), default=0)
        return most_cpu, max((row.alloc[row.gpu] / row.units for row in rows), default=0)

    def _price(self, at: int, counts: Counts) -> int:
        node = self.nodes[at]
        room = self._chosen(at, counts)[1]
        assert room is not None
        before = self.slots._count(node.nodes, node.row, node.room)
        after = self.slots._count(node.nodes, node.row, room)
        lost = 0.0
        for price, b, a in zip(self._prices, before, after, strict=True):
            lost += price * (b - a)
        most_cpu, most_gpus = self._sizes
        left = room.cpu / most_cpu if most_cpu > 0 else 0.0
        if most_gpus > 0 and node.at.gpu >= 0:
            left += room.spare[node.at.gpu] / node.at.units / most_gpus
        return min(max(0, floor((lost + self.fullness * (0.5 * left)) * 1e6 + 0.5)), 1 << 36)


def states(joint: Joint) -> int:
    made = prod(role.pods + 1 for role in joint.roles)
    return made if made <= 1 << 16 else 0


Placement = tuple[tuple[int, tuple[int, ...], int], ...]
"""(node, pods of each role, price)."""


class Search:
    def __init__(
        self, joint: Joint, at: Sequence[int], partial: bool = False, sizes: Sequence[int] = (), most: int = -1
    ) -> None:
        self.joint = joint
        none = (0,) * len(joint.roles)
        every = product(*([(node, none, 0), *((node, *way) for way in joint.ways(node) or ())] for node in at))
        self.every: list[Placement] = [one for one in every if most < 0 or _taken(one, sizes) <= most]

    def advance(self, steps: int) -> bool:
        return True

    def _costs(self, pods: int) -> list[tuple[int, int]]:
        """(nodes, price) of each placement of so many pods."""
        return [self._cost(one) for one in self.every if self._placed(one) == pods]

    def _placed(self, one: Placement) -> int:
        """Pods of a placement; -1 where a role has more pods than there are."""
        sums = [sum(counts[c] for _, counts, _ in one) for c in range(len(self.joint.roles))]
        return -1 if any(n > role.pods for n, role in zip(sums, self.joint.roles, strict=True)) else sum(sums)

    def cost_of(self) -> tuple[int, int] | None:
        return min(self._costs(sum(role.pods for role in self.joint.roles)), default=None)

    def placement(self) -> list[tuple[int, tuple[int, ...]]]:
        most = max(self._placed(one) for one in self.every)
        best = min((one for one in self.every if self._placed(one) == most), key=self._cost)
        return [(at, counts) for at, counts, _ in best if any(counts)]

    @staticmethod
    def _cost(one: Placement) -> tuple[int, int]:
        return sum(any(counts) for _, counts, _ in one), sum(price for _, _, price in one)


class Union(Search):
    advance, cost_of, placement = Search.advance, Search.cost_of, Search.placement

    def __init__(self, searches: list[Search]) -> None:
        self.joint = searches[0].joint
        self.every = [tuple(chain(*parts)) for parts in product(*(search.every for search in searches))]


def _taken(one: Placement, sizes: Sequence[int]) -> int:
    """GPUs that a placement takes."""
    return sum(size * count for _, counts, _ in one for size, count in zip(sizes, counts, strict=True))
