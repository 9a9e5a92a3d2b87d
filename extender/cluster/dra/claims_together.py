"""How many pods of several roles the devices of a node meet together.

kube-scheduler allocates the claims of one pod after the other, to each the first devices that do. So what a node takes
depends on the order of the pods, which nothing fixes: all orders are tried, and orders after which the same devices are
taken count as one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from extender.cluster.dra.allocator import Allocation, Amounts, Taken, added
from extender.cluster.dra.claim_fits import ClaimFits, PodClaims, Specs
from extender.cluster.dra.node_gpus import tolerances
from extender.cluster.dra.pools import Pool
from extender.objects.records import NodeRecord, PodRecord

MOST_TRIED: Final = 512
"""Allocations that are tried for nodes with equal devices; of more pods the answer is not known."""
MOST_COUNTS: Final = 8_192
"""Numbers of pods that are looked at for one answer."""
Counts = tuple[int, ...]
"""A number of pods of each role."""


class RefusedCounts(NamedTuple):
    """Numbers of pods of each role that a node does not take together. `claims`, `at`: of the pod that is not met, and
    why; `unknown`: it may take them."""

    counts: Counts
    claims: PodClaims
    at: Allocation
    unknown: bool = False


class _Beside:
    """As `allocator.Taken`: what is allocated, and what pods before this one take."""

    def __init__(self, taken: Taken, before: Iterable[tuple[str, Amounts | None]]) -> None:
        self._taken = taken
        self._alone = {device for device, amounts in before if amounts is None}
        self._parts: dict[str, list[Amounts]] = {}
        for device, amounts in before:
            if amounts is not None:
                self._parts.setdefault(device, []).append(amounts)

    def alone(self, device: str) -> bool:
        """A claim has it alone."""
        return device in self._alone or self._taken.alone(device)

    def parts(self, device: str) -> Amounts | None:
        """What claims have of it."""
        own, others = self._parts.get(device), self._taken.parts(device)
        if own is None:
            return others
        return added(own if others is None else [*own, others])


class _State(NamedTuple):
    """What pods before have taken. `key`: equal where that is the same."""

    key: Hashable
    taken: tuple[tuple[str, Amounts | None], ...]


_NOTHING: Final = _State(frozenset(), ())


class _Devices:
    """The devices of one node, and what was tried on them."""

    def __init__(self, fits: ClaimFits, pools: Sequence[Pool], taken: Taken) -> None:
        self._fits, self._pools, self._taken = fits, pools, taken
        self._after: dict[tuple[Hashable, Specs], tuple[Allocation, _State]] = {}

    @property
    def tried(self) -> int:
        """How many allocations were tried."""
        return len(self._after)

    def after(self, state: _State, specs: Specs) -> tuple[Allocation, _State] | None:
        """(the devices of one more pod, what is taken then); None: too many were tried."""
        known = self._after.get((state.key, specs))
        if known is None:
            if len(self._after) >= MOST_TRIED:
                return None
            at = self._fits.allocate(self._pools, _Beside(self._taken, state.taken), specs)
            more = [
                (result.candidate.id, result.amounts)
                for of_claim in at.results or ()
                for result in of_claim
                if not result.admin
            ]
            taken = (*state.taken, *more)
            parts = sorted((device, sorted(amounts.items())) for device, amounts in taken if amounts is not None)
            key = frozenset(device for device, amounts in taken if amounts is None), str(parts)
            known = self._after[state.key, specs] = at, _State(key, taken)
        return known


class ClaimsTogether:
    """The roles of a gang. `pods`: one of each."""

    def __init__(self, fits: ClaimFits, taken: Taken, pods: Sequence[PodRecord]) -> None:
        self._fits, self._taken, self._pods = fits, taken, pods
        self._claims: dict[str, list[PodClaims]] = {}  # by resource that a class serves: of each role
        self._devices: dict[Hashable, _Devices] = {}
        self._answers: dict[Hashable, tuple[RefusedCounts, ...]] = {}
        self._tried = 0
        # Where a role tolerates taints, their GPUs are counted for all roles: one pod of another is looked at too.
        self._least = 1 if any(tolerances(pod.claim_specs) for pod in pods) else 2

    @property
    def tried(self) -> int:
        """How many allocations were tried."""
        return self._tried

    def read(self, node: NodeRecord) -> None:
        """Read the devices of the node once for all roles."""
        for of in self._of(node)[1]:
            if of.specs:
                self._fits.kind(node, of)

    def _of(self, node: NodeRecord) -> tuple[str, list[PodClaims]]:
        """(the resource that a class serves on the node, the claims of each role there)."""
        served = self._fits.serves(node)
        claims = self._claims.get(served)
        if claims is None:
            claims = self._claims[served] = [self._fits.all_of(pod, served) for pod in self._pods]
        return served, claims

    def refused(self, node: NodeRecord, most: Counts, *, in_any_order: bool) -> Sequence[RefusedCounts]:
        """The smallest numbers of pods up to `most` that the node does not take together; none where it takes all.
        `in_any_order`: it takes what it takes in whatever order the pods come, else in one."""
        served, claims = self._of(node)
        if sum(bool(of.specs) and number for of, number in zip(claims, most, strict=True)) < self._least:
            return ()
        kind = served, tuple([self._fits.kind(node, of) if of.specs else 0 for of in claims])
        if -1 in kind[1]:
            kind = node.name, ()
        if kind not in self._devices:
            self._devices[kind] = _Devices(self._fits, self._fits.pools(node), self._taken)
        asking = tuple([number if of.specs else 0 for of, number in zip(claims, most, strict=True)])
        answer = self._answers.get((kind, asking, in_any_order))
        if answer is None:
            devices = self._devices[kind]
            before = devices.tried
            answer = tuple(_search(devices, claims, asking, in_any_order=in_any_order))
            self._tried += devices.tried - before
            self._answers[kind, asking, in_any_order] = answer
        return answer


def _search(
    devices: _Devices, claims: Sequence[PodClaims], most: Counts, *, in_any_order: bool
) -> Iterator[RefusedCounts]:
    """Layer by layer, each with one pod more: all that may be taken by then."""
    layer: Mapping[Counts, Mapping[Hashable, _State]] = {(0,) * len(most): {_NOTHING.key: _NOTHING}}
    refused: list[Counts] = []
    looked_at = 0
    while layer:
        grown: dict[Counts, dict[Hashable, _State]] = {}
        failed: dict[Counts, RefusedCounts] = {}
        for counts, states in layer.items():
            for c, of in enumerate(claims):
                more = (*counts[:c], counts[c] + 1, *counts[c + 1 :])
                if counts[c] == most[c] or any(covers(more, other) for other in refused):
                    continue
                looked_at += 1
                for state in states.values():
                    tried = devices.after(state, of.specs)
                    if tried is None or looked_at > MOST_COUNTS:
                        yield RefusedCounts(more, of, Allocation(None, why="it takes too long"), unknown=True)
                        return
                    at, then = tried
                    if at.results is not None:
                        grown.setdefault(more, {})[then.key] = then
                    elif more not in failed or (failed[more].unknown and not at.unknown):
                        failed[more] = RefusedCounts(more, of, at, at.unknown)
        for more, refusal in failed.items():
            if in_any_order or more not in grown:
                grown.pop(more, None)
                refused.append(more)
                yield refusal
        layer = grown


def covers(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether no number of `a` is below that of `b`."""
    return all(x >= y for x, y in zip(a, b, strict=True))
