"""Random but legitimate clusters for the recordings: nodes, the pods that run on them, gangs, disruption budgets.

All that is made here is Kubernetes JSON. The same seed gives the same cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from extender.sim import machines
from extender.sim.machines import SimNode
from tests.world import AMD, GPU, JSON, WALL, machine, rfc3339, workload

OURS = "gpu-extender.io/"
SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
APPS = ("train", "serve", "batch", "notebook")
TOLERATED = [{"key": "team", "operator": "Exists"}]

RESOURCES = [
    {"name": GPU, "devicePlugin": "nvidia"},
    {"name": AMD, "devicePlugin": "amd"},
    {"name": SHARED, "devicePlugin": "nvidia"},
    {"name": MIG, "devicePlugin": "nvidia"},
]
SETTINGS: JSON = {
    "resources": RESOURCES,
    # The budget in sets alone ends a search: time must not change an answer.
    "preemption": {"budgetMilliseconds": 60_000, "searchBudget": 2_000},
    "decisions": {"maxBytes": 1 << 20},
}

FIVE = machines.SimMachine(
    links=tuple(tuple(18 * (a != b) for b in range(5)) for a in range(5)),
    pcie=tuple(tuple("X" if a == b else "PIX" if {a, b} == {0, 1} else "SYS" for b in range(5)) for a in range(5)),
    scope="gpu-total",
    kind="nvlink",
    gbps=25.0,
)
"""Five GPUs, two of them on one PCIe switch: NVIDIA's device plugin may crash on it (go-gpuallocator#80)."""


@dataclass(frozen=True)
class Fleet:
    """A kind of cluster. `kinds`: catalogue ids, "shared", "mig" or "plain:GPUS"; `nodes`: how many of them at most;
    `unhealthy`: the share of the nodes that have lost a GPU."""

    kinds: tuple[str, ...]
    nodes: int = 7
    resource: str = GPU
    sizes: tuple[int, ...] = (1, 1, 2, 2, 4, 8)
    settings: Mapping[str, Any] = field(default_factory=dict)
    unhealthy: float = 0.1


NEW: JSON = {"schedulerVersion": "1.38"}
FLEETS: dict[str, Fleet] = {
    "nvswitch": Fleet(("dgx-h100", "hgx-a100-8"), settings=NEW),
    "cube-mesh": Fleet(("dgx1-v100", "v100-8-permuted"), sizes=(1, 2, 2, 3, 4, 4, 8)),
    "pairs": Fleet(("a100-pcie-4", "h100-nvl-8", "rtxa6000-8"), sizes=(1, 1, 2, 2, 2, 4)),
    "pcie": Fleet(("l4-8", "t4-4", "pcie-8-pix", "rtxa6000-3"), sizes=(1, 1, 2, 3, 4)),
    "amd": Fleet(("mi300x-8", "mi250x-8gcd", "mi210-8"), resource=AMD, settings=NEW),
    "cliques": Fleet(("gb200-nvl72-tray", "gh200-quad"), 12, sizes=(1, 2, 4, 4)),
    "shares": Fleet(("shared", "mig", "hgx-a100-8"), resource=SHARED, sizes=(1, 1, 2, 3, 4)),
    "large-machines": Fleet(("dgx2", "gcp-a2-mega", "plain:32"), 5, sizes=(1, 2, 4, 8, 16)),
    "mixed": Fleet(("dgx1-v100", "dgx-h100", "t4-4", "plain:4", "power9-ac922-6gpu", "p3.8xlarge"), 8),
    "few-in-the-shortlist": Fleet(("plain:8", "p3.8xlarge"), 30, settings={"shortlist": {"size": 4}}),
    "spread": Fleet(("plain:8", "dgx1-v100"), 8, settings={"placement": {"default": "spread"}} | NEW),
    "no-holds": Fleet(("dgx1-p100", "plain:4"), 6, settings={"hold": {"seconds": 0}}),
    "bounded-claims": Fleet(
        ("dgx1-v100", "plain:8"),
        settings={
            "claims": {"protectForSeconds": 60, "gangMin": 2, "byNamespace": {"team-b": {"restartSeconds": 0}}},
            "preemption": SETTINGS["preemption"] | {"minimumRunSeconds": {"guarded": 900}, "leaveFreedSeconds": 60},
        },
    ),
    "costs": Fleet(
        ("dgx1-v100", "a100-pcie-4"),
        settings={"costs": ["highest_victim_priority", "work_lost_gpu_seconds", "pdb_violations", "victims"]},
    ),
    "plugin-faults": Fleet(
        ("five", "five", "dgx1-v100"),
        sizes=(1, 3, 3),
        unhealthy=0.3,
        settings={"resources": [{"name": GPU, "devicePlugin": "nvidia", "pluginVersion": "0.20.0"}]},
    ),
    "many-nodes": Fleet(("plain:4",), 150, sizes=(1, 2, 4)),
}

GANGS = ("coscheduling", "job", "jobset", "ours", "ours", "kueue", "leaderworkerset", "mpi", "kubernetes", "volcano")


def group(api: str, kind: str, name: str, spec: JSON) -> JSON:
    """An object that states how many pods of a gang must run."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{kind}-{name}"}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec, "status": {}}


@dataclass(frozen=True)
class Gang:
    """What the pods of a gang carry, and the object that states their minimum, if any."""

    labels: JSON = field(default_factory=dict)
    annotations: JSON = field(default_factory=dict)
    owner: tuple[str, str] = ("", "")  # apiVersion and kind
    spec: JSON = field(default_factory=dict)
    stated: JSON | None = None
    name: str = ""


def gang(source: str, name: str, size: int) -> Gang:
    """A gang of `size` pods as `source` declares it. One of them may be missing."""
    least = max(1, size - 1)
    made: dict[str, Gang] = {
        "coscheduling": Gang(
            {"scheduling.x-k8s.io/pod-group": name},
            stated=group("scheduling.x-k8s.io/v1alpha1", "PodGroup", name, {"minMember": least}),
        ),
        "volcano": Gang(
            annotations={"scheduling.k8s.io/group-name": name},
            stated=group("scheduling.volcano.sh/v1beta1", "PodGroup", name, {"minMember": least}),
        ),
        "job": Gang(owner=("batch/v1", "Job"), stated=group("batch/v1", "Job", name, {"parallelism": least})),
        "jobset": Gang(
            {"jobset.sigs.k8s.io/jobset-name": name},
            stated=group(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                name,
                {"replicatedJobs": [{"replicas": 1, "template": {"spec": {"parallelism": least}}}]},
            ),
        ),
        "ours": Gang({OURS + "gang": name, OURS + "gang-min": str(least)}),
        "kueue": Gang({"kueue.x-k8s.io/pod-group-name": name}, {"kueue.x-k8s.io/pod-group-total-count": str(least)}),
        "leaderworkerset": Gang(
            {"leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": "0"},
            {"leaderworkerset.sigs.k8s.io/size": str(least)},
        ),
        "mpi": Gang(
            owner=("kubeflow.org/v2beta1", "MPIJob"),
            stated=group("kubeflow.org/v2beta1", "MPIJob", name, {"mpiReplicaSpecs": {"Worker": {"replicas": least}}}),
        ),
        "kubernetes": Gang(
            spec={"schedulingGroup": {"podGroupName": name}},
            stated=group(
                "scheduling.k8s.io/v1alpha2", "PodGroup", name, {"schedulingPolicy": {"gang": {"minCount": least}}}
            ),
        ),
    }
    found = made[source]
    return Gang(found.labels, found.annotations, found.owner, found.spec, found.stated, name)


def join(pod: JSON, to: Gang) -> JSON:
    """Makes the pod a member of the gang."""
    meta = pod["metadata"]
    meta["labels"] |= to.labels
    meta["annotations"] |= to.annotations
    pod["spec"] |= to.spec
    if to.owner[0]:
        api, kind = to.owner
        meta["ownerReferences"] = [
            {"apiVersion": api, "kind": kind, "name": to.name, "uid": f"uid-{to.name}", "controller": True}
        ]
    return pod


def node(chance: random.Random, fleet: Fleet, number: int) -> JSON:
    """Node `number` of a fleet."""
    kind = chance.choice(fleet.kinds)
    name = f"n{number:03}"
    labels = {
        "kubernetes.io/hostname": name,
        "network.topology.nvidia.com/leaf": f"leaf-{number // 2}",
        "network.topology.nvidia.com/spine": f"spine-{number // 5}",
        "pool": chance.choice(("blue", "green")),
    }
    if kind.startswith("plain:"):
        return machine(name, int(kind.partition(":")[2]), labels=labels)
    if kind in ("shared", "mig"):
        return divided(name, kind, labels)
    what = FIVE if kind == "five" else machines.machine(kind)
    if kind.startswith("gb200"):
        labels["nvidia.com/gpu.clique"] = f"clique-{number // 4}"
    taints = [{"key": "team", "value": "b", "effect": "NoSchedule"}] if chance.random() < 0.08 else []
    resource = AMD if fleet.resource == AMD else GPU
    made = SimNode(
        name, what, annotate=chance.random() < 0.85, resource=resource, labels=labels, taints=taints
    ).object()
    made["metadata"]["uid"] = f"uid-{name}"
    if chance.random() < fleet.unhealthy:  # the last GPU is not healthy
        notes = made["metadata"]["annotations"]
        if machines.TOPOLOGY in notes:
            notes[machines.TOPOLOGY] = notes[machines.TOPOLOGY].replace("true]", "false]")
        made["status"]["allocatable"][resource] = str(what.gpus - 1)
    return made


def divided(name: str, kind: str, labels: JSON) -> JSON:
    """A node whose GPUs are handed out in parts: four GPUs of four replicas, or MIG beside whole GPUs."""
    what = machines.machine("a100-4-sxm")
    notes = {machines.TOPOLOGY: machines.topology_annotation(what, machines.gpu_uuids(name, what))}
    nvidia = {"nvidia.com/gpu.product": what.product, "nvidia.com/gpu.count": "4"}
    if kind == "shared":
        labels |= nvidia | {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
        return machine(name, 16, resource=SHARED, labels=labels, annotations=notes)
    made = machine(name, 6, resource=MIG, labels=labels | nvidia | {"nvidia.com/mig.strategy": "mixed"})
    for amounts in (made["status"]["allocatable"], made["status"]["capacity"]):
        amounts[GPU] = "1"
    return made


def offers(of: JSON, resource: str) -> int:
    """How many of a resource the node has."""
    return int(of["status"]["allocatable"].get(resource, 0))


def newcomer(chance: random.Random, fleet: Fleet, name: str, **facts: Any) -> JSON:
    """A pending pod as it may come to a cluster of this fleet. `facts`: as for tests.world.workload."""
    gpus = chance.choice(fleet.sizes)
    resource = chance.choice((SHARED, SHARED, MIG, GPU)) if fleet.resource == SHARED else fleet.resource
    if resource in (GPU, MIG) and fleet.resource == SHARED:
        gpus = min(gpus, 2)
    notes: JSON = dict(facts.pop("annotations", {}))
    if chance.random() < 0.2:
        notes[OURS + "placement"] = chance.choice(("pack", "spread"))
    spec: JSON = dict(facts.pop("spec", {}))
    if chance.random() < 0.1:
        spec["nodeSelector"] = {"pool": chance.choice(("blue", "green"))}
    if chance.random() < 0.3:
        spec["tolerations"] = TOLERATED
    facts = {
        "priority": chance.choice((0, 10, 10, 100, 100, 1000)),
        "links": chance.choice(("", "required", "required", "preferred", "ignore")),
        "never": chance.random() < 0.08,
        "cpu": chance.choice(("1", "4", "8")),
        "memory": chance.choice(("1Gi", "32Gi")),
        "namespace": chance.choice(("default", "default", "default", "team-b")),
        "grace": chance.choice((0, 30, 30, 60, 120)),
        "labels": {"app": chance.choice(APPS)},
    } | facts
    made = workload(name, gpus, resource=resource, annotations=notes, spec=spec, **facts)
    made["spec"]["priorityClassName"] = "guarded" if chance.random() < 0.1 else "usual"
    if resource == fleet.resource and gpus > 1 and chance.random() < 0.15:
        several(made, gpus, resource)
    return made


def several(pod: JSON, gpus: int, resource: str) -> None:
    """Divides the pod's GPUs over two containers."""
    first, second = (
        {"name": name, "resources": {"requests": {"cpu": "1", resource: str(part)}, "limits": {resource: str(part)}}}
        for name, part in (("a", gpus // 2), ("b", gpus - gpus // 2))
    )
    pod["spec"]["containers"] = [first, {"name": "log", "resources": {}}, second]


def asked(pod: JSON) -> dict[str, int]:
    """What the pod's containers ask for: GPUs by resource, CPU in cores, memory in GiB."""
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for key, text in container["resources"].get("requests", {}).items():
            found[key] = found.get(key, 0) + int(str(text).removesuffix("Gi"))
    return found


def aged(chance: random.Random, pod: JSON) -> JSON:
    """Makes the pod one that has run for a while, and may have written checkpoints."""
    start = WALL - chance.choice((30, 300, 3_000, 3_000, 30_000)) - chance.choice((0, 0, 7))
    pod["status"] = {"phase": "Running", "startTime": rfc3339(start)}
    notes = pod["metadata"]["annotations"]
    if chance.random() < 0.3:
        notes[OURS + "last-checkpoint"] = rfc3339(WALL - chance.randrange(20, 4_000))
    if chance.random() < 0.3:
        notes[OURS + "restart-seconds"] = str(chance.choice((60, 600, 90_000)))
    if chance.random() < 0.1:
        notes[OURS + "checkpoint-interval"] = "900"
    if chance.random() < 0.1:
        notes[OURS + "protect-for"] = chance.choice(("5m", "1h", "600s"))
    return pod


def holds(chance: random.Random, pod: JSON, on: JSON, free: list[int]) -> None:
    """Puts the pod on a node: it takes GPUs of `free`, and some source states which, or none does."""
    pod["spec"]["nodeName"] = on["metadata"]["name"]
    resource, wanted = next(((key, n) for key, n in asked(pod).items() if "/" in key), ("", 0))
    if resource not in (GPU, AMD) or len(free) < wanted:
        return
    taken = sorted(chance.sample(free, wanted) if chance.random() < 0.5 else free[:wanted])
    for gpu in taken:
        free.remove(gpu)
    how = chance.random()
    if how < 0.45:
        pod["metadata"]["annotations"][OURS + "held-gpus"] = ",".join(map(str, taken))
    elif how < 0.75:
        pod["metadata"]["annotations"][OURS + "gpus"] = ",".join(map(str, taken))
    elif how < 0.9:
        ids = [machines.gpu_uuid(on["metadata"]["name"], gpu) for gpu in taken]
        devices = [{"resourceID": identity, "health": "Healthy"} for identity in ids]
        resources = [{"name": resource, "resources": devices}]
        first = pod["spec"]["containers"][0]["name"]
        pod["status"]["containerStatuses"] = [{"name": first, "allocatedResourcesStatus": resources}]


def objects(chance: random.Random) -> Iterator[tuple[str, JSON]]:
    """What has no place on a node: classes and disruption budgets. Kind and object each."""
    for name, value in (("usual", 0), ("guarded", 10)):
        yield "PriorityClass", {"metadata": {"name": name, "uid": f"uid-{name}"}, "value": value}
    for app in chance.sample(APPS, 2):
        yield (
            "PodDisruptionBudget",
            {
                "metadata": {"name": f"keep-{app}", "namespace": "default", "uid": f"uid-keep-{app}"},
                "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": chance.choice((0, 0, 1, 2))},
            },
        )
