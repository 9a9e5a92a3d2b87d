"""The verdict on one pod, put together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from extender.ask import explanation, fleet, making_room, pending, place, warn
from extender.ask import nodes as judged_nodes
from extender.ask.capacity import advice, capacity, example, nodes_wanted
from extender.ask.explanation import Explanation, Verdict, before, latest, runs
from extender.ask.fleet import FleetCounts, FleetPoint
from extender.ask.judge import Judge, over
from extender.ask.machines import Look, read
from extender.ask.nodes import JudgedNodes
from extender.ask.pending import WaitingCounts, WaitingPods, pods_that_wait
from extender.ask.place import GangCase, QueueLook, by_itself
from extender.ask.spared import why_spared
from extender.ask.suppose import SupposedCluster
from extender.ask.text import count, gpu_hours, named_gpus, no_gpus, no_such_pod, result_text, seconds
from extender.ask.warn import warning
from extender.ask.ways import Way, gang, in_order
from extender.ask.ways.pod import above_ceiling, helping, search_victims
from extender.ask.whatif import admission
from extender.ask.whatif.admission import Absent
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import finish
from extender.cluster.statements import PLAN, gpus_of, stated_mask
from extender.decide.decisions import Decision
from extender.decide.evicted import EvictedPod
from extender.decide.verbs import Verbs
from extender.errors import BadInput, NotFound
from extender.objects.advance import WantedRoom
from extender.objects.annotations import typos_of_pod
from extender.objects.gangs import Ref
from extender.objects.queueing import GATE, PINNED, opened
from extender.objects.records import PodRecord
from extender.objects.save_request import requested
from extender.preemption import certificate
from extender.preemption.draining import leaves
from extender.preemption.search import Preemptor, SearchResult, price_alone
from extender.queue.gang import together
from extender.queue.report import QueueLeader, QueueReport, Why, first_names, not_the_leader
from extender.reservations.seats import Seat
from extender.times import Clock, deadline

ABSENT: Final = "claim-absent"
"""The reason of a pod with claims alone of which an object does not exist."""
WAYS_SECONDS: Final = 5
"""CPU time after which a server looks for no further way out of a gang."""


class Explainer:
    """Explains the pods of one cluster."""

    def __init__(
        self,
        verbs: Verbs,
        clock: Clock,
        report: Callable[[], QueueReport | None],
        *,
        live: bool = True,
        leader: QueueLeader | None = None,
        queue: QueueLook | None = None,
    ) -> None:
        """`report`: the latest look at the queue; None where it is not known here; `live`: of a server that answers
        verbs; `leader`: which instance knows the queue, None where there is none to ask; `queue`: the look itself,
        where what starts has no seats yet."""
        self._leader, self._queue = leader, queue or QueueLook()
        self._judge = over(verbs)
        self._decisions, self._evicted, self._live = verbs.decisions, verbs.evicted, live
        self._clock, self._report = clock, report

    def pod(self, namespace: str, name: str) -> PodRecord:
        """The pod, or what is kept of one that was evicted. NotFound: it is not in the cluster, or has ended. BadInput:
        it asks for no GPU, has no node, and waits in no gang with GPUs."""
        pod = self._judge.cluster.pod(namespace, name)
        path = f"{namespace}/{name}"
        if pod is None or pod.finished:
            victim = self._evicted.latest(namespace, name)
            if victim is not None and (pod is None or victim.pod.uid == pod.uid):
                return victim.pod
            missing = no_such_pod(self._judge.cluster, namespace, name)
            has_ended = f"the pod has ended ({pod.phase})" if pod else missing
            raise NotFound(f"{has_ended}; {self._unknown_eviction(namespace, name)}", path=path)
        if not pod.node and self._judged_by(pod) is None and not place.no_answer(self._judge.cluster, pod):
            raise BadInput(no_gpus(self._judge.cluster, pod), path=path)
        return pod

    def _judged_by(self, pod: PodRecord) -> PodRecord | None:
        """The pod whose place decides: itself; of one without GPUs behind our gate the first with GPUs that waits in
        its gang. None: none asks for GPUs."""
        cluster = self._judge.cluster
        gang = finish(together(cluster, [pod.uid])) if GATE in pod.gates else None
        pods = (pod, *(gang.pods if gang is not None else ()))
        return next((other for other in pods if place.asks_gpus(cluster, other)), None)

    def _unknown_eviction(self, namespace: str, name: str) -> str:
        """Whether it was evicted is not known."""
        if not self._live:
            return "whether it was evicted is known to a running server alone"
        return (
            "this server has seen no eviction of it since it started, or has forgotten it; others may stand in its "
            f"Events: kubectl get events -n {namespace} --field-selector involvedObject.name={name}"
        )

    def fleet(
        self,
        pods: WaitingPods | None = None,
        names: Iterable[str] | None = None,
        namespace: str = "",
    ) -> dict[str, Any]:
        """`kind: Fleet`: what is left of each GPU model, why pods wait, and whose pods ignore requests to save.
        `pods`: of what the method `waiting` has just returned; None: not asked for yet; `names`: of nodes, None: all;
        `namespace`: of gangs and owners, "": any."""
        waiting = self.waiting() if pods is None else pods
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Fleet",
            "warnings": [*self._queue_unknown(), *self._silent([pod for pod, _ in waiting])],
            "models": self.models(names),
            "waiting": pending.by_reason(waiting),
            **pending.partial_fields([gang for gang in self.partial_gangs() if namespace in ("", gang.ref.namespace)]),
            **self.ignoring(namespace),
        }

    def ignoring(self, namespace: str = "") -> dict[str, Any]:
        """`fleet.ignoring_fields`; None in place of the owners where there is no memory, as over a file."""
        fields = fleet.ignoring_fields(self._judge.cluster, namespace)
        return fields if self._live else fields | {"ignores_requests": None}

    def fleet_counts(self) -> FleetCounts:
        """The fleet now, for metrics and the trend: nothing is judged."""
        models = self.models()
        gpus, held = (sum(model[field] for model in models) for field in ("gpus", "held_gpus"))
        waiting = [pod.gpu_count for pod in pending.pods_that_wait(self._judge.cluster) if pod.gpus]
        return FleetCounts(models, FleetPoint(self._clock.wall(), gpus, held, len(waiting), sum(waiting)))

    def _queue_unknown(self) -> list[dict[str, str]]:
        """The warning that the order of the queue is not known here, where pods wait in it."""
        unknown = self._report() is None and self._judge.cluster.placements.queued
        return [not_the_leader(self._leader)] if unknown else []

    def _silent(self, pods: Sequence[PodRecord]) -> Iterator[dict[str, str]]:
        """The warnings of schedulers of these pods that seem not to ask us."""
        asked = {decision.request.uid for decision in self._decisions.latest()}
        return warn.silent_schedulers(self._judge.cluster, asked, pods)

    def partial_gangs(self) -> list[pending.PartialGang]:
        """The gangs whose pods wait for others of them."""
        return pending.partial_gangs(self._judge.cluster, self._clock.wall())

    def pending(self) -> Mapping[str, pending.Pending]:
        """The pods that wait, by PriorityClass."""
        return pending.by_class(self._judge.cluster, self._clock.wall())

    def models(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """What is left of each GPU model, as `fleet` has it."""
        return fleet.models(self._judge, self._clock.monotonic(), names)

    def waiting(self) -> list[tuple[PodRecord, Why]]:
        """Each pod that waits, with the reason that `fleet` counts it for."""
        now, wall = self._moment()
        return pending.reasons(
            self._judge,
            lambda pod: Preemptor(self._judge.claims.request(pod, now), pod, now, wall),
            self._report(),
        )

    def _moment(self) -> tuple[float, float]:
        """The time on both clocks, at which the cluster is judged from now on."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        self._judge.cluster.tick(now)
        self._judge.cluster.at(wall)
        return now, wall

    def waiting_pods(self) -> WaitingCounts:
        """How many pods wait, and which of them kube-scheduler has passed over."""
        waiting, until = self.waiting(), self._clock.wall() - pending.LONGEST_BACKOFF
        fit = {pod.uid for pod, why in waiting if why.reason == pending.FITS}
        last: dict[str, Decision] = {}
        for decision in self._decisions.latest() if fit else ():
            if decision.verb == "filter" and decision.request.uid in fit:
                last.setdefault(decision.request.uid, decision)
        refused = {uid: call.at for uid, call in last.items() if call.result == "refused" and call.at <= until}
        return WaitingCounts(pending.by_size(waiting), refused)

    def capacity(self) -> dict[str, Any]:
        """`kind: Capacity`: what could start now, what would start the first that wait, and advice."""
        now, _ = self._moment()
        shown = capacity(self._judge, now, self._report(), self.waiting(), self.explain)
        return shown | {"warnings": [*shown["warnings"], *self._queue_unknown()]}

    def moves(self, asked: WantedRoom) -> dict[str, Any]:
        """`kind: Moves`: the cheapest moves that make the room. The cluster serves no second question. BadInput,
        NotFound."""
        shown = self.room(asked).shown
        return shown | {"warnings": [*shown["warnings"], *self._queue_unknown()]}

    def room(self, asked: WantedRoom) -> making_room.Room:
        """As `moves`, with its records."""
        now, wall = self._moment()
        return making_room.room(self._supposed(now), asked, wall)

    def examples(self, largest: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
        """For each entry of `largest`, a field of `capacity`: (a node where such a pod fits, "" without one; its GPUs
        there, empty where they are not known)."""
        now, _ = self._moment()
        look = Look(self._judge, read(self._judge), now)
        shown = [example(look, pod["model"], pod["links"], pod["gpus"]) if pod["gpus"] else ("", 0) for pod in largest]
        return [(node, gpus_of(mask)) for node, mask in shown]

    def advice(self) -> dict[str, Any]:
        """The advice of `capacity` alone."""
        return advice(self._judge, self._report(), self.waiting())

    def nodes_wanted(self) -> dict[str, int]:
        """How many more nodes of each GPU model the pods that wait would need, by model."""
        return nodes_wanted(self._judge, self._report(), self.waiting())

    def gpus_after(self, pod: PodRecord, node: str, evicted: set[str]) -> tuple[int, ...]:
        """The GPUs that a pod without a node gets there once these pods (uids) have terminated; empty where they are
        not known."""
        return gpus_of(self._judge.planned_after(self._asked(pod), node, evicted & set(self._judge.cluster.pods)))

    def because(self, shown: Explanation) -> str:
        """Why the best node is before the second; "" where there is no second."""
        room = shown.verdict == "fits" and len(shown.best) > 1
        kept = (
            explanation.kept_sets(self._judge, self._asked(shown.pod), [best.node for best in shown.best])
            if room
            else ()
        )
        return explanation.because(shown.best, kept)

    def _supposed(self, now: float) -> SupposedCluster:
        """The cluster for one question, of which a server looks for ways out for WAYS_SECONDS."""
        until = time.process_time() + WAYS_SECONDS
        return SupposedCluster(
            self._judge, now, live=self._live, over=lambda: self._live and time.process_time() > until
        )

    def _asked(self, pod: PodRecord) -> Preemptor:
        now, wall = self._moment()
        return Preemptor(self._judge.claims.request(pod, now), pod, now, wall)

    def explain(self, pod: PodRecord) -> Explanation:
        """The verdict, with what is unknown on the pod, and its claims that do not count as written. `pod`: as the
        method `pod` gives it."""
        wall, cluster = self._clock.wall(), self._judge.cluster
        victim = self._evicted.of(pod.namespace, pod.uid)
        if victim is not None and victim.is_evicted and pod.uid not in cluster.pods:
            return Explanation(pod, "evicted", eviction_text(victim, wall), evicted=victim.as_json())
        with self._queue.seated(self._judge.claims, [pod.uid] if pod.gated else ()):
            shown = self._explain(pod)
        if pod.unread and not pod.node and pod.unread_text not in shown.sentence:
            shown = replace(shown, sentence=f"{shown.sentence}; {pod.unread_text}")
        if leaving := leaves(cluster, pod, wall):
            shown = replace(shown, sentence=f"{shown.sentence}; {leaving}")
        if victim is not None and victim.is_evicted:
            text = f"{eviction_text(victim, wall, gone=False)}; {shown.sentence}"
            shown = replace(shown, verdict="evicted", sentence=text, evicted=victim.as_json())
        elif pod.node and cluster.gpu_amount(pod):
            above = evictable_by(cluster, pod)
            cost = cost_now(self._judge, pod, wall)
            why_not = why_spared(cluster, pod, wall) if cost is None else None
            shown = replace(shown, evictable_by=[] if why_not else above, cost_now=cost, spared=why_not)
        if asked := asked_to_save(pod, wall):
            shown = replace(shown, asked=asked)
        elif shown.why is not None and shown.why.reason == pending.SAVING and not _waits_for(shown):
            shown = replace(shown, sentence=f"{shown.sentence}; {shown.why.text}")
        earlier = self._evicted.latest(pod.namespace, pod.name)
        if earlier is not None and earlier.pod.uid != pod.uid:
            shown = replace(shown, warnings=[*shown.warnings, evicted_before(earlier, wall)])
        misspelt = typos_of_pod(pod, cluster.settings.topology_levels)
        unknown = [warning(typo.code, typo.text) for typo in misspelt]
        bounded = [bounded_gang.warning(pod) for bounded_gang in cluster.gangs.bounded(pod, int(wall * 1000))]
        shown = replace(shown, warnings=[*shown.warnings, *unknown, *bounded])
        devices = None if pod.node else _devices_of(pod, cluster)
        if devices is None:
            return shown
        return replace(shown, devices=devices, sentence=f"{shown.sentence}; {devices['text']}")

    def _explain(self, pod: PodRecord) -> Explanation:
        judge = self._judge
        decision, placing = latest(self._decisions.latest(), pod)
        if pod.node:
            shown = runs(pod, judge.cluster, placing, {} if placing is None else placing.scored.stamp.weights)
            return replace(shown, sentence=f"{shown.sentence}{_made_room(self._decisions.latest(), pod)}")
        decides = self._judged_by(pod)
        if decides is not None and decides is not pod:
            return _of_gang_alone(replace(self._explain(decides), pod=pod))
        if decides is None:
            text = place.no_answer(judge.cluster, pod)
            return Explanation(pod, "waits", f"waits: {text}", why=Why(ABSENT, text), warnings=[warning(ABSENT, text)])
        now, wall = self._moment()
        released = opened(pod)  # what the rules state of it, not that its gate is closed
        asked = Preemptor(judge.claims.request(released, now), released, now, wall)
        refused = admission.absent_of_gang(judge.cluster, pod, wall)
        if pod.unread:
            nodes = judged_nodes.read(judge, asked)
            shown = Explanation(
                pod, "never", pod.unread_text, funnel=nodes.funnel, reasons=nodes.reasons, rejected=nodes.named
            )
        else:
            shown = self._of_nodes(pod, asked, decision, refused)
        if pod.gated:
            shown = self._gated(pod, asked, shown, refused)
        else:
            last = f"; {_latest_call(decision, wall)}" if self._live else ""
            more = last if shown.best else _not_evicted(decision, wall)
            shown = replace(shown, sentence=f"{_with_verdict(shown)}{more}", why=pending.of_nodes(judge, asked))
        return _with_quotas(shown, refused)

    def _of_nodes(self, pod: PodRecord, asked: Preemptor, decision: Decision | None, refused: Absent) -> Explanation:
        """Where it fits, or why nowhere, whatever gates hold it back. `asked`: about the pod without them; `decision`:
        the latest about it; `refused`: as of `_waits`."""
        judge = self._judge
        nodes = judged_nodes.read(judge, asked)
        best = judge.best(asked, nodes.fits, 2)
        missing = warn.not_checked(judge.cluster, pod)
        shown = Explanation(
            pod,
            "fits",
            funnel=nodes.funnel,
            reasons=nodes.reasons,
            rejected=nodes.named,
            best=best,
            not_checked=missing,
            warnings=[
                *warn.not_all_checked([(f"{pod.namespace}/{pod.name}", missing)]),
                *warn.skipped_slices(judge.cluster, [pod]),
                *warn.preference_not_counted(pod, judge.cluster.settings),
                *warn.other_schedulers([pod] if decision is None else [], judge.cluster.settings),
                *(self._silent([pod]) if decision is None else ()),
            ],
        )
        gang_alone = None if pod.gated else place.ungated(judge.cluster, pod)
        if gang_alone is not None and (text := place.no_gate(judge.cluster, gang_alone)):
            shown = replace(shown, warnings=[*shown.warnings, warning("no-gate", text)])
        if best:
            gpus = gpus_of(judge.planned(asked, best[0].node))
            shown = replace(shown, node=best[0].node, gpus=gpus or None)
            shown = replace(shown, sentence=_fits(shown))
            notes = warn.shared_gpus(judge.cluster, asked.pod, asked.request, best[0].node)
            shown = replace(shown, warnings=[*shown.warnings, *notes])
            if gang_alone is not None and (lacks := place.not_whole(judge, asked, gang_alone)):
                named = warning("gang-not-whole", lacks)
                shown = replace(shown, sentence=f"{shown.sentence}; {lacks}", warnings=[*shown.warnings, named])
            return shown
        return self._waits(asked, nodes, shown, refused)

    def _waits(self, asked: Preemptor, nodes: JudgedNodes, shown: Explanation, refused: Absent) -> Explanation:
        """Why it fits nowhere, and what helps. `refused`: pods of its gang that no eviction brings into being."""
        judge = self._judge
        search = SearchResult() if refused.excess or asked.request.never else search_victims(judge, asked, nodes)
        helped = helping(self._supposed(asked.now), asked, nodes, search)
        why = (
            explanation.cause(asked, nodes, helped.ways)
            if helped.fits
            else explanation.never(judge.cluster, asked, nodes)
        )
        verdict: Verdict = "waits" if helped.fits else "never"
        denied = may_not_evict(judge, asked, nodes) if helped.fits else None
        more = above_ceiling(judge, search) if denied is None else f"it may not evict: {denied['why']}"
        text = explanation.whole(f"{why}; {more}" if more else why, helped.nearest, helped.ways, nodes)
        if any(way.kind == "evict" for way in helped.ways) and search.best is not None:
            unsure = certificate.warnings(judge.cluster, certificate.important(search.best.pods))
            shown = replace(shown, warnings=[*shown.warnings, *unsure])
        return replace(
            shown, verdict=verdict, sentence=text, nearest=helped.nearest, ways=helped.ways, preemption=denied
        )

    def _gated(self, pod: PodRecord, asked: Preemptor, shown: Explanation, refused: Absent) -> Explanation:
        """What holds the gate, and what is behind it. `asked`: about the pod as it is once it is released."""
        report = self._report()
        others = [gate for gate in pod.gates if gate != GATE]
        holds = [f"another controller opens the gate {gate}" for gate in others]
        if len(others) == len(pod.gates):
            text = f"waits behind a gate: {' and '.join(holds)}; then it {_with_verdict(shown)}"
            return replace(shown, verdict="gated", sentence=text, why=pending.meaning(pending.GATED))
        entry, starting = _entry(report, pod), self._starting(pod)
        if starting and not others:
            text = f"waits behind a gate: the queue starts {Ref.of(starting[0].gang)} now, on {place.where(starting)}"
            pods = self._judge.cluster.pods
            places = [(pods[seat.uid], seat.node) for seat in starting if seat.uid in pods]
            notes = warn.several_models(self._judge.cluster, str(Ref.of(starting[0].gang)), places)
            shown = replace(shown, warnings=[*shown.warnings, *notes])
            seat = next((seat for seat in starting if seat.uid == pod.uid), starting[0])
            return replace(
                shown, verdict="gated", sentence=text, ways=[], why=pending.meaning(pending.GATED), node=seat.node,
                gpus=gpus_of(seat.gpus) or None, best=[], nearest=None,
            )  # fmt: skip
        ways, over, alone = self._ways_of_gang(asked, shown, refused)
        holds.insert(0, explanation.queued(entry, over, len(() if report is None else report.waiting)))
        if pod.unread:
            pass  # `explain` states it
        elif alone:
            base = _with_verdict(shown).removesuffix(explanation.helped(shown.ways))
            holds.append(
                f"by itself it {_with_verdict(shown) if ways == shown.ways else f'{base}{explanation.cheapest(ways)}'}"
            )
        else:  # the verdict on one pod is not that on its gang
            holds.append(f"it starts with its gang{explanation.cheapest(ways, caused=False)}")
        return replace(
            shown,
            verdict="gated",
            sentence=f"waits behind a gate: {'; '.join(holds)}",
            ways=ways,
            queue=entry,
            why=pending.meaning(pending.GATED) if entry is None else Why(f"queue: {entry['reason']}", entry["text"]),
            warnings=[*shown.warnings, *([not_the_leader(self._leader)] if report is None else [])],
        )

    def _starting(self, pod: PodRecord) -> Sequence[Seat]:
        """The seats of its gang, where the queue starts it now."""
        start, seats = self._queue.start([pod.uid]), self._judge.claims.seats
        if start is not None:
            return start.seats
        own = seats.of(pod.uid)
        return () if own is None else [seat for seat in seats if seat.gang == own.gang]

    def _ways_of_gang(self, asked: Preemptor, shown: Explanation, refused: Absent) -> tuple[Sequence[Way], str, bool]:
        """(the ways out of the gang of a pod behind our gate, why its queue may not hold it, whether it is the only pod
        of it), as what-if has them."""
        supposed = self._supposed(asked.now)
        waiting = finish(together(self._judge.cluster, [asked.pod.uid]))
        if waiting is None or by_itself(supposed, waiting):
            return shown.ways, "", True
        case = GangCase.of(supposed, waiting, asked.wall, self._report())
        outcome = place.outcome(case)
        over = "" if outcome.over is None else outcome.over.text
        ways = [] if refused.excess or outcome.starts else gang.ways(case, outcome)
        return ways, over, len(waiting.pods) + len(waiting.members) == 1


def _of_gang_alone(shown: Explanation) -> Explanation:
    """Without what holds for one of its pods by itself."""
    return replace(
        shown, node=None, gpus=None, funnel=(), reasons={}, rejected={}, nearest=None, best=(), preemption=None
    )


def _with_quotas(shown: Explanation, refused: Absent) -> Explanation:
    """With what the quotas refuse: the gang does not start without these pods."""
    if not refused.excess:
        return shown
    lacks = f"{count(refused.pods, 'pod')} of its gang {'does' if refused.pods == 1 else 'do'} not exist and cannot"
    text = f"{lacks}{' all' if refused.pods > 1 else ''} be created: {admission.quota_sentence(refused.excess)}"
    ways = in_order([*shown.ways, admission.raise_limits(refused.excess, None)])
    return replace(
        shown,
        sentence=f"{shown.sentence}; {text}",
        ways=ways,
        warnings=[*shown.warnings, warning(admission.QUOTA_REASON, text)],
    )


def _entry(report: QueueReport | None, pod: PodRecord) -> dict[str, Any] | None:
    """The pod's gang in the queue."""
    if report is None:
        return None
    for position, entry in enumerate(report.waiting, 1):
        if any(other.uid == pod.uid for other in entry.gang.pods):
            return report.entry(position)
    return None


def _fits(shown: Explanation) -> str:
    """Where it fits, and why there."""
    gpus = "" if shown.gpus is None else f", {named_gpus(shown.gpus)}"
    why = f", {before(list(shown.best))}" if len(shown.best) > 1 else ", the only node"
    return f"fits on {shown.node}{gpus}{why}"


def _waits_for(shown: Explanation) -> bool:
    """Whether the sentence begins with what the pod waits for."""
    return shown.verdict == "waits" and bool(shown.ways) and shown.ways[0].kind == "wait"


def _with_verdict(shown: Explanation) -> str:
    """The sentence with its verdict."""
    return {"waits": "waits: ", "never": "never fits: "}.get(shown.verdict, "") + shown.sentence


def _made_room(decisions: Iterable[Decision], pod: PodRecord) -> str:
    """Which pods were evicted for a pod that has a node now."""
    about = (decision for decision in decisions if decision.request.uid == pod.uid and decision.detail.get("victims"))
    decision = next(about, None)
    if decision is None or decision.error or decision.detail.get("node") != pod.node:
        return ""
    evicted = decision.detail["victims"]
    names = [f"{victim['namespace']}/{victim['name']}" for victim in evicted if not isinstance(victim, str)]
    what = first_names(names, 3) if names else count(len(evicted), "pod")
    return f"; {what} {'was' if len(evicted) == 1 else 'were'} evicted for it"


def _not_evicted(decision: Decision | None, wall: float) -> str:
    """Why its latest preemption evicted no pod, where the preemption itself failed."""
    if decision is None or not decision.error or decision.verb not in ("preempt", "evict"):
        return ""
    return f"; its preemption {seconds(max(0.0, wall - decision.at))} ago evicted no pod: {decision.error}"


def _latest_call(decision: Decision | None, wall: float) -> str:
    """What kube-scheduler did about it."""
    if decision is None:
        return "kube-scheduler has not asked about it since this server started, or the record was dropped"
    age, result = max(0.0, wall - decision.at), result_text(decision.verb, decision.result)
    last = f"kube-scheduler asked last {seconds(age)} ago ({decision.verb}: {result})"
    if decision.verb not in ("filter", "prioritize") or not decision.feasible:
        return last
    return f"{last}{', and binds it next' if age <= pending.LONGEST_BACKOFF else ', and has not bound it since'}"


# -- what allocates the devices of its claims, and which ones (`queue.plannedAllocation`)


def _devices_of(pod: PodRecord, cluster: ClusterView) -> dict[str, Any] | None:
    """Of a pod without a node; None where it has no claims for GPUs, or the queue allocates nothing."""
    if pod.left_devices:
        text = f"kube-scheduler allocates its devices by first fit: {pod.left_devices}"
        return _devices("kube-scheduler", text, why=pod.left_devices)
    if not pod.planned:
        return None
    node = pod.nominated_node or pod.annotations.get(PINNED, "")
    names = _device_names(pod, cluster, node)
    if not names:
        return _devices("queue", "the queue chooses its devices, and writes the allocation before it opens the gate")
    listed = f"{', '.join(names)} of {node}"
    claims = cluster.dra.claims.named(pod.uid)
    if not claims or not all(claim.allocated for claim in claims):
        text = f"the queue plans {listed}, and writes the allocation before it opens the gate"
        return _devices("queue", text, node=node, names=names)
    return _devices("queue", f"the queue has allocated {listed}", node=node, names=names, allocated=True)


def _device_names(pod: PodRecord, cluster: ClusterView, node: str) -> list[str]:
    """The planned devices of the node; none where they are not known."""
    record = cluster.nodes.get(node)
    if record is None or record.devices is None:
        return []
    indices, planned = cluster.gpus.indices(node), set(gpus_of(stated_mask(pod, PLAN)))
    return [gpu.id.rpartition("/")[2] for gpu in record.devices.gpus if indices.get(gpu.id, -1) in planned]


def _devices(
    by: str, text: str, *, why: str | None = None, node: str | None = None, names: list[str] | None = None,
    allocated: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The JSON form, of which `text` is for people."""
    return {"allocated_by": by, "why": why, "node": node, "names": names or [], "allocated": allocated, "text": text}


# -- evictions: what may evict a pod that runs, and what is known of a pod that was evicted


def cost_now(judge: Judge, pod: PodRecord, wall: float) -> list[dict[str, Any]] | None:
    """What evicting this pod alone would cost now, by term; None where it cannot be a victim."""
    eviction = price_alone(judge.cluster, judge.policy, pod, wall)
    return None if eviction is None else certificate.cost_of(judge.policy, eviction)


def evictable_by(cluster: ClusterView, pod: PodRecord) -> list[dict[str, Any]]:
    """The PriorityClasses whose pods may evict this one, the lowest first, and how many of their pods wait."""
    waiting: Counter[tuple[int, str]] = Counter()
    for other in pods_that_wait(cluster):
        if other.priority > pod.priority and not other.never:
            waiting[other.priority, other.priority_class] += 1
    classes = {
        (priority_class.value, name)
        for name, priority_class in cluster.priority_classes.items()
        if not priority_class.never
    }
    above = sorted(class_key for class_key in {*classes, *waiting} if class_key[0] > pod.priority)
    return [{"priority_class": name or None, "priority": value, "pods": waiting[value, name]} for value, name in above]


def eviction_text(entry: EvictedPod, wall: float, *, gone: bool = True) -> str:
    """What happened to a pod that is evicted. `gone`: it does not run any more."""
    cause, verb = entry.cause, "was evicted" if gone else "is being evicted"
    place = f" from {entry.pod.node}" if entry.pod.node else ""
    ago = "" if cause.at is None else f" (decided {seconds(max(0.0, wall - cause.at))} ago)"
    with_others = "" if (cause.victims or 1) < 2 else f", with {count((cause.victims or 1) - 1, 'other pod')}"
    return f"{verb}{place}{ago}{with_others}: {cause.why}; {_lost_work(entry)}"


def _lost_work(entry: EvictedPod) -> str:
    gpus = count(entry.gpu_count, "GPU")
    if entry.lost is None:
        return f"it held {gpus}, how much work it lost is not known"
    return f"it held {gpus} and lost {gpu_hours(entry.lost)} of work"


def evicted_before(entry: EvictedPod, wall: float) -> Mapping[str, str]:
    """The warning on a pod that has the name of one that was evicted."""
    pod = entry.pod
    text = f"an earlier pod {pod.namespace}/{pod.name} (uid {pod.uid}) {eviction_text(entry, wall)}"
    return warning("evicted-before", text)


def may_not_evict(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """`preemption` of an Explanation; None where the pod may preempt, or where no pod holds GPUs that it asks for."""
    cluster, request = judge.cluster, asked.request
    lower = others = 0
    for name in nodes.open:
        for pod in cluster.pods_on(name):
            amounts = cluster.amounts(pod)
            if not pod.terminating and any(amounts[r] for r, _ in request.gpus):
                lower += pod.priority < request.priority
                others += pod.priority >= request.priority
    if not lower + others or (lower and not request.never):
        return None
    if request.never:
        held = f"{count(lower, 'pod')} of lower priority {'holds' if lower == 1 else 'hold'} GPUs that it could use"
        why = f"its preemptionPolicy is Never ({held})"
    else:
        why = f"no pod of a priority below {request.priority:,} holds GPUs that it could use"
    return {"allowed": False, "why": why, "lower": lower}


def asked_to_save(pod: PodRecord, wall: float) -> str:
    """That a pod is asked to save its work before it is evicted; "": it is not. `wall`: seconds since 1970."""
    request = requested(pod)
    if request is None:
        return ""
    return f"it is asked to save its work until {deadline(request.until, wall)}, before it is evicted for {request.by}"
