"""Which pods belong together, and how many of them must run: the one file that knows who says so, and how.

Sources, the first that a pod names counts:

| source | the pods of a gang | how many must run |
|---|---|---|
| gpu-extender | label (or annotation) `gpu-extender.io/gang` | label (or annotation) `gpu-extender.io/gang-min` |
| kubernetes | `spec.schedulingGroup`, before 1.36 `spec.workloadRef` | `gang.minCount` of it; 0 with `basic` |
| coscheduling | label `scheduling.x-k8s.io/pod-group` | PodGroup `minMember` |
| volcano | annotation `scheduling.k8s.io/group-name` | PodGroup `minMember` |
| kueue | label `kueue.x-k8s.io/pod-group-name` | annotation `kueue.x-k8s.io/pod-group-total-count` |
| leaderworkerset | labels `leaderworkerset.sigs.k8s.io/name`, `group-index` | annotation `size`, or the object's size |
| jobset | label `jobset.sigs.k8s.io/jobset-name`, or the owners | the JobSet's replicas x parallelism, summed |
| training | label `training.kubeflow.org/job-name`, or the owners | minAvailable, minReplicas, or all replicas |
| ray | label `ray.io/cluster`, or the owners | the head and all workers; with the autoscaler the least of them |
| job | the owner, a batch Job | parallelism, at most the completions that are left |

The owners are followed upwards as far as their objects are known: of a pod of a Job of a JobSet the JobSet counts.
`gpu-extender.io/gang-min` on the pods overrides the minimum of any source (0: they are independent). A minimum that can
not be read is all members. A Job of one pod is no gang: nothing else ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from extender.objects.records import GroupRecord, Owner, PodRecord

OURS: Final = "gpu-extender.io/gang"
OUR_MINIMUM: Final = "gpu-extender.io/gang-min"
COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
KUEUE: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
LWS: Final = "leaderworkerset.sigs.k8s.io/"
JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
TRAINING: Final = "training.kubeflow.org/job-name"
TRAINING_API: Final = "kubeflow.org"
TRAINING_KINDS: Final = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob")
RAY: Final = "ray.io/cluster"
OWNERS: Final = {("batch", "Job"): "job", ("jobset.x-k8s.io", "JobSet"): "jobset", ("ray.io", "RayCluster"): "ray"}
SAYS: Final = {
    "gpu-extender": "label gpu-extender.io/gang-min",
    "kubernetes": "podgroups.scheduling.k8s.io, workloads.scheduling.k8s.io",
    "coscheduling": "podgroups.scheduling.x-k8s.io",
    "volcano": "podgroups.scheduling.volcano.sh",
    "kueue": f"annotation {KUEUE_COUNT}",
    "leaderworkerset": "leaderworkersets.leaderworkerset.x-k8s.io",
    "jobset": "jobsets.jobset.x-k8s.io",
    "training": "pytorchjobs.kubeflow.org, mpijobs.kubeflow.org ...",
    "ray": "rayclusters.ray.io",
    "job": "jobs.batch",
}  # by source: who says how many pods must run
HIGHEST: Final = 4  # owners of owners; nobody has more, and a circle ends here
MOST: Final = 1_000_000  # pods of a gang; a number beyond is not one

ObjectKey = tuple[str, str, str, str]  # API group, kind, namespace, name


class Ref(NamedTuple):
    """The gang that a pod names. `part`: which of several gangs of that name (group index, replica key)."""

    source: str
    namespace: str
    name: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + (f"/{self.part}" if self.part else "")


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run together. `minimum` of its running `members` must stay, 0: it can not break (`annotation_limits`);
    `known`: False when all members was taken because no minimum could be read."""

    ref: Ref
    members: tuple[PodRecord, ...]
    minimum: int
    known: bool

    @property
    def name(self) -> str:
        return str(self.ref)

    @property
    def allowance(self) -> int:
        """How many of its members may go before it breaks; below 0 when too few run already."""
        return len(self.members) - self.minimum


def ref(pod: PodRecord, objects: Mapping[ObjectKey, GroupRecord]) -> Ref | None:
    """The gang that the pod names, None when it names none. `objects`: as for `gang`; of them only the owners count."""
    labels, notes, space = pod.labels, pod.annotations, pod.namespace
    if name := labels.get(OURS) or notes.get(OURS):
        return Ref("gpu-extender", space, name)
    if pod.group is not None:
        workload, group, replica = pod.group
        part = "/".join(text for text in (group, replica) if text)
        return Ref("kubernetes", space, workload, part) if workload else Ref("kubernetes", space, group)
    if name := labels.get(COSCHEDULING):
        return Ref("coscheduling", space, name)
    if name := notes.get(VOLCANO[0]) or notes.get(VOLCANO[1]):
        return Ref("volcano", space, name)
    if name := labels.get(KUEUE):
        return Ref("kueue", space, name)
    if name := labels.get(f"{LWS}name"):
        return Ref("leaderworkerset", space, name, labels.get(f"{LWS}group-index", ""))
    if name := labels.get(JOBSET):
        return Ref("jobset", space, name)
    if name := labels.get(TRAINING):
        return Ref("training", space, name)
    if name := labels.get(RAY):
        return Ref("ray", space, name)
    return owned(space, pod.owner, objects)


def owned(space: str, owner: Owner | None, objects: Mapping[ObjectKey, GroupRecord]) -> Ref | None:
    """The gang of what `owner` owns: the highest of its owners that stands for one."""
    found = None
    for api, kind, _, name in owners(space, owner, objects):
        source = OWNERS.get((api, kind)) or ("training" if api == TRAINING_API else "")
        if source:
            found = Ref(source, space, name)
    return found


def owners(space: str, owner: Owner | None, objects: Mapping[ObjectKey, GroupRecord]) -> Iterator[ObjectKey]:
    """The owner, its owner and so on, as far as the objects are known."""
    for _ in range(HIGHEST):
        if owner is None:
            return
        # Without apiVersion a Job is the built-in one; other groups have Jobs too (Volcano's pods name their PodGroup).
        api = "batch" if owner.kind == "Job" and not owner.api else owner.api
        key = (api, owner.kind, space, owner.name)
        yield key
        above = objects.get(key)
        owner = above.owner if above is not None else None


def gang(named: Ref, members: Sequence[PodRecord], objects: Mapping[ObjectKey, GroupRecord]) -> Gang | None:
    """The gang of the running `members` that name it; None when they do not depend on each other.

    `objects`: what is known of the cluster's PodGroups, Workloads, Jobs ..., by API group, kind, namespace and name.
    """
    pods = tuple(sorted(members, key=lambda pod: pod.uid))
    said = {pod.labels.get(OUR_MINIMUM) or pod.annotations.get(OUR_MINIMUM) for pod in pods} - {None}
    minimum = number(said.pop() or "") if len(said) == 1 else None
    if minimum is None and named.source != "gpu-extender":
        minimum = _stated(named, pods, objects)
        minimum = None if minimum is not None and not 0 <= minimum <= MOST else minimum
    if minimum == 0 or (named.source == "job" and len(pods) < 2 and minimum in (None, 1)):
        return None
    return Gang(named, pods, len(pods) if minimum is None else minimum, minimum is not None)


def _stated(named: Ref, pods: Sequence[PodRecord], objects: Mapping[ObjectKey, GroupRecord]) -> int | None:
    def of(api: str, kind: str) -> int | None:
        found = objects.get((api, kind, named.namespace, named.name))
        return None if found is None else found.minimum

    match named.source:
        case "kubernetes":
            workload = objects.get(("scheduling.k8s.io", "Workload", named.namespace, named.name))
            if pods[0].group is not None and pods[0].group[0]:
                return None if workload is None else dict(workload.parts).get(pods[0].group[1])
            return of("scheduling.k8s.io", "PodGroup")
        case "coscheduling":
            return of("scheduling.x-k8s.io", "PodGroup")
        case "volcano":
            return of("scheduling.volcano.sh", "PodGroup")
        case "kueue":
            return _agreed(pods, KUEUE_COUNT)
        case "leaderworkerset":
            size = _agreed(pods, f"{LWS}size")
            return size if size is not None else of("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
        case "jobset":
            return of("jobset.x-k8s.io", "JobSet")
        case "training":
            return next((found for kind in TRAINING_KINDS if (found := of(TRAINING_API, kind)) is not None), None)
        case "ray":
            return of("ray.io", "RayCluster")
        case "job":
            return of("batch", "Job")
    return None


def _agreed(pods: Sequence[PodRecord], key: str) -> int | None:
    """What all pods that carry the annotation say alike."""
    said = {pod.annotations[key] for pod in pods if key in pod.annotations}
    return number(said.pop()) if len(said) == 1 else None


def number(text: str) -> int | None:
    """A number of pods; None for anything else."""
    if not (text.isascii() and text.isdigit()) or len(text) > 7:
        return None
    return min(int(text), MOST)
