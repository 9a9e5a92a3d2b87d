"""A run of mixed GPU pods through the real kube-scheduler, and what the pods got in the end.

`set share`: pods that hold the set that bind planned. `linked share`: pods of several GPUs whose set has a ring over
links. `ring share`: the sum of the rings that the pods hold, over the sum of the best rings. The best ring of a pod is
that of the GPUs which were free on its node when it was bound. GPUs that come free between bind and admission do not
count, as the plan is fixed by then. Nor do GPUs that came free less than KNOWN_SECONDS before the bind.

Prediction: the sets that the stock plugin's model gave the planned set a probability are compared with how often it
came (only where the stock plugin chooses).
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ext_core.links import LinkShapes
from extender.sim.kubelet import AllocationEvent
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from extender.topologies import annotation
from tests.e2e import builders
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.scene import Scene
from tests.e2e.trace import Trace

# Job sizes as MAPA draws them (1 to 5 GPUs, alike), and whole machines.
SIZES = (1, 2, 3, 4, 5, 2, 4, 8)
KNOWN_SECONDS = 0.5  # so long the server may need to see that a pod has ended


@dataclass
class Got:
    """What one run gave."""

    pods: int = 0
    planned: int = 0
    kept: int = 0
    several: int = 0
    linked: int = 0
    ring: int = 0
    best: int = 0
    worse: list[str] = field(default_factory=list)  # pods whose ring is not the best, for people
    refused: int = 0
    buckets: dict[float, list[bool]] = field(default_factory=lambda: defaultdict(list))

    @property
    def set_share(self) -> float:
        return self.kept / max(1, self.planned)

    @property
    def linked_share(self) -> float:
        return self.linked / max(1, self.several)

    @property
    def ring_share(self) -> float:
        return self.ring / max(1, self.best)

    def calibration(self) -> list[tuple[float, float, int]]:
        """(mean probability that the model gave the planned set, share that came true, pods), by tenths."""
        by_tenth: dict[int, list[tuple[float, bool]]] = defaultdict(list)
        for probability, came in self.buckets.items():
            by_tenth[min(9, int(probability * 10))] += [(probability, one) for one in came]
        return [
            (sum(p for p, _ in pairs) / len(pairs), sum(one for _, one in pairs) / len(pairs), len(pairs))
            for _, pairs in sorted(by_tenth.items())
        ]

    def text(self, name: str) -> str:
        """Lines for people."""
        said = (
            f"{name:14} pods {self.pods}, refused by kubelet {self.refused}, "
            f"got the planned set {self.set_share:.3f} of {self.planned}, "
            f"linked {self.linked_share:.3f} of {self.several}, ring {self.ring_share:.3f} of the best free at bind"
        )
        rows = [f"  planned set given {p:.2f}: came {share:.2f} of {count}" for p, share, count in self.calibration()]
        return "\n".join([said, *rows, *self.worse])


def run(cluster: Scene, pods: int, at: dict[int, Callable[[], None]], *, seed: int = 3, pace: float = 0.05) -> Trace:
    """Creates the pods, each with a time to run, and waits for all of them. `at`: what happens before which pod."""
    with Trace(cluster.api, cluster.namespace, cluster.extender.url, builders.GPU) as trace:
        _create(cluster, pods, at, random.Random(seed), pace)
        cluster.kubelets.settle()
    return trace


def _create(cluster: Scene, pods: int, at: dict[int, Callable[[], None]], rng: random.Random, pace: float) -> None:
    names = []
    for number in range(pods):
        if number in at:
            at[number]()
        size = rng.choice(SIZES)
        names.append(f"job-{number:04d}")
        runs = {RUN_SECONDS: str(rng.choice((1, 2, 3)))}
        cluster.pod(names[-1], size, links="preferred", annotations=runs, cpu="100m", memory="1Mi")
        time.sleep(pace)
    deadline = time.monotonic() + 60 + pods
    late = set(names)
    while late and time.monotonic() < deadline:
        time.sleep(0.5)
        phases = {p["metadata"]["name"]: p["status"].get("phase") for p in cluster.api.list("Pod", cluster.namespace)}
        late = {name for name in late if phases[name] not in ("Succeeded", "Failed")}
    assert not late, f"{len(late)} pods did not end: {sorted(late)[:5]}"


def judge(events: list[AllocationEvent], trace: Trace, machines: dict[str, str], *, stock: bool) -> Got:
    """From the kubelets' log: what each pod got; against what was free on its node when it was bound."""
    got = Got()
    shapes = LinkShapes()
    shape_of = {}
    free: dict[str, int] = {}
    for node, name in machines.items():
        what = machine(name)
        uuids = gpu_uuids(node, what)
        stated = annotation.decode(topology_annotation(what, uuids))
        shape_of[node] = stated.intern(shapes, "nvidia")
        free[node] = (1 << what.gpus) - 1
    masks = {event.uid: sum(1 << gpu for gpu in event.gpus) for event in events if event.what == "admitted"}
    at_bind = free_at_bind(trace, masks, free)
    for event in events:
        if event.what == "refused":
            got.pods, got.refused = got.pods + 1, got.refused + 1
            continue
        held = sum(1 << gpu for gpu in event.gpus)
        if event.what != "admitted":
            free[event.node] |= held
            continue
        shape, size = shape_of[event.node], len(event.gpus)
        got.pods += 1
        if event.planned is not None:
            got.planned += 1
            got.kept += event.planned == event.gpus
            mask = sum(1 << gpu for gpu in event.planned)
            if stock and (sets := shapes.handed_out(shape, free[event.node], size)):
                got.buckets[round(dict(sets).get(mask, 0.0), 4)].append(event.planned == event.gpus)
        if size > 1:
            got.several += 1
            got.linked += bool(shapes.linked(shape, held))
            ring, best = shapes.ring(shape, held) or 0, shapes.top(shape, at_bind[event.uid], size) or 0
            got.ring += min(ring, best)
            got.best += best
            if ring < best:
                got.worse.append(
                    f"  {event.pod} on {event.node}: ring {ring} of {sorted(event.gpus)}, best {best}"
                    f" of the free {at_bind[event.uid]:b}"
                )
        free[event.node] &= ~held
    return got


def free_at_bind(trace: Trace, held: Mapping[str, int], gpus: Mapping[str, int]) -> dict[str, int]:
    """uid -> the GPUs of its node that were free when it was bound, and known to be. `held`: by uid; `gpus`: by node.

    A pod has its GPUs from the time at which the server decided to bind it, before its kubelet knows of it."""
    decided = {
        uid: at for (at, verb, uid), one in trace.decisions.items() if verb == "bind" and one["result"] == "bound"
    }
    begun = {uid: decided.get(uid, pod.bound or 0.0) for uid, pod in trace.pods.items()}
    free = {}
    for uid, pod in trace.pods.items():
        free[uid] = gpus.get(pod.node, 0)
        for other, mask in held.items():
            there = trace.pods[other]
            known = there.gone + KNOWN_SECONDS if there.gone is not None else float("inf")
            if other != uid and there.node == pod.node and begun[other] <= begun[uid] < known:
                free[uid] &= ~mask
    return free
