"""The demand that the tables expect: the kinds of the demand mix as types of slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from extender.cluster.demand_mix import DemandMix
from extender.cluster.gpus.statements import MOST
from extender.cluster.pod_kinds import Kind, Where, kind_of
from extender.cluster.tables import FIRST_GPU, MOST_AMOUNT, ExpectedTypes, SlotType
from extender.objects.records import PodRecord
from extender.settings import Mix as MixSettings


class Forecast:
    """Learns the demand mix from the pods that come, and states what it makes expect. `models`: the machines that are
    known."""

    def __init__(self, settings: MixSettings, resources: Sequence[str]) -> None:
        """`resources`: by index; from FIRST_GPU the GPU resources."""
        self.mix = DemandMix(settings.half_life_seconds, settings.kinds)
        self.models = MachineModels(settings.model_labels)
        self._settings = settings
        self._resources = tuple(resources)
        self._stated: tuple[int, int] | None = None  # revisions of both that were returned last
        self._types: dict[Kind, tuple[SlotType, str]] = {}  # the kinds that were returned last, each with its text
        self._asked: list[Kind] = []  # those that `_weigher` weighs
        self._weigher = Weigher((), (), self.mix.most)

    def see(self, pod: PodRecord, before: PodRecord | None) -> None:
        """Count a pod whose GPUs are known for the first time: those by a claim when the claim is known. `before`: as
        it was known until now. Pods without GPUs, and those that a node brings along, do not count."""
        if not pod.gpus or pod.daemon or pod.mirror or pod.partial or (before is not None and before.gpus):
            return
        kind = kind_of(pod, self._resources[FIRST_GPU:], self.models.labels)
        if kind is not None:
            self.mix.see(kind, pod.uid, pod.created)

    def dump(self) -> str:
        """What was learned of the pods that came, as text."""
        return self.mix.dump()

    def load(self, text: str) -> None:
        """Start from what was learned before; ahead of the first pod. ValueError when the text is no demand mix."""
        self.mix = DemandMix.load(text, self._settings.half_life_seconds, self._settings.kinds)
        self._stated = None

    def changed(self) -> ExpectedTypes | None:
        """What is to be expected; None where it is the same as in the call before."""
        revisions = (self.mix.revision, self.models.revision)
        if revisions == self._stated:
            return None
        if self._stated is None or self._stated[1] != revisions[1]:
            self._types.clear()  # which models a kind may run on
        self._stated = revisions
        names = self._resources[FIRST_GPU:]
        came = [(kind, count) for kind, count in self.mix.weights() if count > 0 and kind.resource in names]
        asked = [kind for kind, _ in came]
        if asked != self._asked or not self._types:
            self._asked, self._weigher = asked, Weigher(asked, self.models.whole(), self.mix.most)
            before = self._types
            self._types = {kind: before.get(kind) or (self._type(kind), str(kind)) for kind in self._weigher.kinds}
        return ExpectedTypes(
            [expected for expected, _ in self._types.values()],
            self._weigher.weights([count for _, count in came]),
            self._weigher.sizes,
            [name for _, name in self._types.values()],
        )

    def _type(self, kind: Kind) -> SlotType:
        cpu, memory = min(kind.cpu, MOST_AMOUNT), min(kind.memory, MOST_AMOUNT)
        models = self.models.mask(kind.where) if kind.where else ANYWHERE
        devices = min(kind.devices, MOST)
        return self._resources.index(kind.resource), devices, kind.share, cpu, memory, models, kind.linked


# -- weights -----------------------------------------------------------------------------------------------------------


OFTEN: Final = 0.6
"""The power of a count: a kind that came twice as often weighs less than twice as much."""
EXPECTED: Final = 0.01
"""A pod that takes a whole machine counts as so many, before any has come."""
LEAN_PART: Final = 0.01
"""Of all GPU pods: a kind that fewer ask for is no rule."""


class WeightedKind(NamedTuple):
    """How much a kind weighs in the price of slots; `size`: GPUs, for the powers of the price."""

    kind: Kind
    weight: float
    size: float


class Weigher:
    """Weighs the same kinds again and again, as their counts change. `kinds`: of the weights, in their own order;
    `sizes`: of each, GPUs."""

    def __init__(self, asked: Sequence[Kind], expected: Iterable[Kind], most: int, units: int = 1) -> None:
        """`asked`: the kinds that came, each once, in their own order; the others as for `weighted`."""
        known = dict.fromkeys(asked)
        for kind in expected:
            if len(known) < most:
                known.setdefault(kind)
        self.kinds = sorted(known)
        index = {kind: i for i, kind in enumerate(asked)}
        self.sizes = [kind.devices * kind.share / units if kind in index else 1.0 for kind in self.kinds]
        self._order = [index.get(kind, -1) for kind in self.kinds]
        of: dict[str, list[int]] = {}
        for i, kind in enumerate(asked):
            of.setdefault(kind.resource, []).append(i)
        self._of = [
            (members, sorted(
                [i for i in members if (asked[i].devices, asked[i].share, asked[i].where) == (1, units, ())],
                key=lambda i: (asked[i].cpu, asked[i].memory),
            ))
            for members in of.values()
        ]  # fmt: skip

    def weights(self, counts: Sequence[float]) -> list[float]:
        """The weight of each of `kinds`. `counts`: how many pods of each kind of `asked` came, above 0."""
        weights = [count**OFTEN for count in counts]
        for members, lean in self._of:  # of one resource; lean: single GPUs, the leanest first
            every = 0.0
            for i in members:
                every += counts[i]
            leanest = next((i for i in lean if counts[i] >= LEAN_PART * every), -1)
            if leanest >= 0:
                weights[leanest] += sum([weights[i] for i in members])
        return [weights[i] if i >= 0 else EXPECTED**OFTEN for i in self._order]


def weighted(
    asked: Iterable[tuple[Kind, float]], expected: Iterable[Kind], most: int, units: int = 1
) -> list[WeightedKind]:
    """The kinds that came, and those that may come, with their weights; in their own order.

    `expected`: kinds that count a little before any has come, as long as there are fewer than `most` kinds. `units`:
    the share that is a whole GPU. Of each resource the leanest single GPU that at least one pod in a hundred asks for,
    on any machine, weighs as much again as all kinds together: a GPU is idle for good once its node has not even the
    CPU or memory left that such a pod needs.
    """
    counts = {kind: count for kind, count in asked if count > 0}
    kinds = sorted(counts)
    weigher = Weigher(kinds, expected, most, units)
    weights = weigher.weights([counts[kind] for kind in kinds])
    return [WeightedKind(*fields) for fields in zip(weigher.kinds, weights, weigher.sizes, strict=True)]


# -- machines ----------------------------------------------------------------------------------------------------------


OTHERS: Final = 63
"""The model of all machines beyond the first 63 models."""
MOST_MACHINES: Final = 1_024
"""Different (model, resource, GPUs); what comes later is expected as little as a machine that was never met."""
ANYWHERE: Final = 2**64 - 1
"""The mask of all models."""


class MachineModels:
    """Models of machines, distinguished by the values of a few labels: 0 to 62 in the order in which they come, 63 for
    all that come later.

    `revision` rises when a machine that was not known is met.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = tuple(labels)
        self.machines: dict[tuple[int, str, int], tuple[int, int]] = {}  # model, resource, GPUs: least CPU, memory
        self.revision = 0
        self._known: dict[tuple[str | None, ...], int] = {}

    def of(self, labels: Mapping[str, str]) -> int:
        """The model of a node with these labels."""
        values = tuple(labels.get(key) for key in self.labels)
        if values not in self._known and len(self._known) < OTHERS:
            self._known[values] = len(self._known)
            self.revision += 1
        return self._known.get(values, OTHERS)

    def meet(self, model: int, resource: str, gpus: int, cpu: int, memory: int) -> None:
        """Such a machine exists. CPU and memory of a model's machines differ a little: the least ones count."""
        key = (model, resource, gpus)
        if key not in self.machines and len(self.machines) >= MOST_MACHINES:
            return
        known = self.machines.get(key, (cpu, memory))
        least = (min(known[0], cpu), min(known[1], memory))
        if self.machines.get(key) != least:
            self.machines[key] = least
            self.revision += 1

    def whole(self) -> list[Kind]:
        """For each kind of machine with two GPUs or more, the pod that takes nearly all of it."""
        kinds = {
            Kind(resource, gpus, 1, cpu * 4 // 5, memory * 4 // 5, (), 1)
            for (_, resource, gpus), (cpu, memory) in self.machines.items()
            if gpus > 1
        }
        return sorted(kinds)

    def mask(self, where: Where) -> int:
        """The models that are allowed, as a bit mask. Models beyond 63 are not distinguished: all, or none."""
        if not where:
            return ANYWHERE
        mask = 0
        for values, model in self._known.items():
            labels = {key: value for key, value in zip(self.labels, values, strict=True) if value is not None}
            if any(all(requirement.matches(labels) for requirement in term) for term in where):
                mask |= 1 << model
        return mask
