"""The demand that the tables expect: the kinds of the demand mix as types of slots."""

from __future__ import annotations

from collections.abc import Sequence

from extender.cluster.amounts import FIRST_GPU, MOST_AMOUNT
from extender.cluster.demand.kinds import Kind, kind_of
from extender.cluster.demand.mix import DemandMix
from extender.cluster.demand.models import ANYWHERE, MachineModels
from extender.cluster.demand.weights import Weigher
from extender.cluster.gpus.statements import MOST
from extender.cluster.tables import ExpectedTypes, SlotType
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
            [one for one, _ in self._types.values()],
            self._weigher.weights([count for _, count in came]),
            self._weigher.sizes,
            [name for _, name in self._types.values()],
        )

    def _type(self, kind: Kind) -> SlotType:
        cpu, memory = min(kind.cpu, MOST_AMOUNT), min(kind.memory, MOST_AMOUNT)
        models = self.models.mask(kind.where) if kind.where else ANYWHERE
        devices = min(kind.devices, MOST)
        return self._resources.index(kind.resource), devices, kind.share, cpu, memory, models, kind.linked
