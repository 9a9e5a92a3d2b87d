"""The best class alone on a real kube-scheduler: the same nodes are chosen, and prioritize is not called."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.settings import Settings
from tests.chi_squared import p_value
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import ExtenderFactory, SchedulerFactory
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.scene import LINKS, Scene, scheduler_config
from tests.waiting import wait_for
from tests.yaml_text import objects_in

PODS = int(os.environ.get("GPU_EXTENDER_BEST_CLASS", "50"))
ROUND = 50  # pods until the cluster is emptied: two thirds of its GPUs
KINDS = {"h": "dgx-h100", "v": "dgx1-v100", "p": "a100-pcie-4", "l": "l4-8"}
PREPARED = "registry.example/prepared:1"
ZONE = "topology.kubernetes.io/zone"
SERVICE = "app.kubernetes.io/name"
CACHED_PODS = 'scheduler_cache_size{type="pods"}'
"""kube-scheduler counts them once a second."""
Arm = Callable[..., Any]


@pytest.fixture
def arm(api: Api, namespace: str, extender_process: ExtenderFactory, scheduler: SchedulerFactory) -> Arm:
    """`with arm(nodes, weight=150, stated=None) as scene`: new nodes whose kubelets draw the same GPUs in each arm, a
    server, and a scheduler with this `weight` that asks it. `stated`: schedulerWeight."""

    @contextmanager
    def start(
        nodes: Mapping[str, Mapping[str, Any]], *, weight: int = 150, stated: int | None = None
    ) -> Iterator[Scene]:
        with SimulatedKubelets(api) as kubelets:
            for name, options in nodes.items():
                add_node(kubelets, api, name, **options)
            process = extender_process({"schedulerWeight": stated} if stated else "")
            asks = scheduler(scheduler_config(process.url, weight=weight))
            scene = Scene(api, namespace, kubelets, process, asks)
            yield scene
            clear(scene)
            asks.kill()
            process.kill()
            api.delete_all("Node")

    return start


def add_node(kubelets: SimulatedKubelets, api: Api, name: str, *, image: bool = False, **options: Any) -> None:
    """`image`: kubelet reports the image PREPARED."""
    node = kubelets.node_object(name, **options)
    if image:
        node["status"]["images"] = [{"names": [PREPARED], "sizeBytes": 20 << 30}]
    api.create(node)


def clear(scene: Scene) -> None:
    """Delete all pods, and wait until kube-scheduler's view, the server's and the kubelets' are empty."""
    scene.api.delete_all("Pod", scene.namespace)
    wait_for(lambda: not scene.api.list("Pod", scene.namespace), 60, "the pods are gone", 0.02)
    wait_for(lambda: not scene.kubelets.truth.holdings(), 60, "the GPUs are free", 0.02)
    scene.server_sees_pods()
    wait_for(lambda: scene.scheduler.metrics().get(CACHED_PODS) == 0, 60, "kube-scheduler knows no pod on a node")


def fleet() -> dict[str, dict[str, Any]]:
    """24 nodes of four kinds in three zones."""
    return {
        f"{kind}{i}": {
            "topology": topology,
            "labels": {"pool": "ab"[i % 2], ZONE: f"z{i % 3}"},
            "image": i == 4,
        }
        for kind, topology in KINDS.items()
        for i in range(6)
    }


def prefers_pool(pool: str) -> Object:
    term = {"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]}
    return {
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
        }
    }


def soft_spread(labels: Mapping[str, str]) -> Object:
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": ZONE,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(labels)},
            }
        ]
    }


def away_from(labels: Mapping[str, str]) -> Object:
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": dict(labels)}}
    return {
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
            }
        }
    }


def with_image(pod: Object) -> Object:
    pod["spec"]["containers"][0]["image"] = PREPARED
    return pod


def mixed_pod(name: str, namespace: str, rng: random.Random) -> tuple[str, Object]:
    """(its kind, the pod)."""
    size = rng.choice((1, 1, 1, 2, 2, 4, 8))
    kind = rng.choice(("plain", "plain", "links", "spread", "affinity", "soft spread", "anti-affinity", "image"))
    notes, labels, spec = dict[str, str](), dict[str, str](), dict[str, Any]()
    if kind == "links":
        size = rng.choice((2, 4))
        notes[LINKS] = "required"
    elif kind == "spread":
        size, labels[SERVICE], notes["gpu-extender.io/placement"] = 1, rng.choice(("web", "api")), "spread"
    elif kind == "affinity":
        spec = prefers_pool(rng.choice("ab"))
    elif kind == "soft spread":
        labels["team"] = rng.choice("xy")
        spec = soft_spread(labels)
    elif kind == "anti-affinity":
        labels["team"] = rng.choice("xy")
        spec = away_from(labels)
    cpu = rng.choice(("100m", "1", "4"))
    pod = builders.pod(name, namespace, size, cpu=cpu, annotations=notes, labels=labels, grace=0, **spec)
    return f"{kind} {size}", with_image(pod) if kind == "image" else pod


def placed(scene: Scene, pod: Object) -> str:
    """Create a pod and wait until it runs; its node. "" and no pod: it fits nowhere. An error in between, as of a busy
    machine, is no answer: kube-scheduler tries again."""
    name = pod["metadata"]["name"]
    made = scene.api.create(pod)
    scene.uids[name] = made["metadata"]["uid"]

    def look() -> Object | None:
        now = scene.get(name)
        waits = any(
            one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable"
            for one in now["status"].get("conditions", ())
        )
        seen = now["status"].get("containerStatuses", [{}])[0].get("allocatedResourcesStatus")  # its GPUs, too
        return now if waits or (now["status"].get("phase") == "Running" and seen) else None

    now = wait_for(look, 60, lambda: f"{name}: {scene.get(name)['status']}", 0.01)
    if node := now["spec"].get("nodeName"):
        scene.server_sees_pods()  # and so its GPUs
        return str(node)
    scene.api.delete("Pod", name, scene.namespace, grace=0)
    scene.server_sees_pods()
    return ""


def moved(scene: Scene, pod: Object, node: str, bound: int) -> None:
    """The pod is on `node` instead ("": nowhere). `bound`: pods that are on nodes without it."""
    name = pod["metadata"]["name"]
    uid = scene.uids[name]
    if scene.api.find("Pod", name, scene.namespace) is not None:
        scene.api.delete("Pod", name, scene.namespace, grace=0)
    scene.server_sees_pods()
    wait_for(lambda: not scene.kubelets.truth.gpus_of(uid), 60, f"the GPUs of {name} are free", 0.02)
    wait_for(lambda: scene.scheduler.metrics().get(CACHED_PODS) == bound, 60, f"kube-scheduler: {name} is gone")
    if node:
        placed(scene, {**pod, "spec": {**pod["spec"], "nodeName": node}})


def chosen(scene: Scene, pods: int, before: Sequence[tuple[str, str, int]] = ()) -> list[tuple[str, str, int]]:
    """(the pod's kind, its node, GPUs that were taken there before), one pod after another, on a cluster that fills.
    `before`: what another arm chose. Each pod is moved there afterwards, so that both arms choose in the same state:
    kube-scheduler draws lots among equals, and one lot would else decide all that follows."""
    made: list[tuple[str, str, int]] = []
    for number in range(0, pods, ROUND):
        rng, taken, bound = random.Random(number), Counter[str](), 0
        for i in range(number, min(pods, number + ROUND)):
            kind, pod = mixed_pod(f"p{i:04d}", scene.namespace, rng)
            scene.kubelets.truth.reseed(i)
            node = placed(scene, pod)
            made.append((kind, node, taken[node]))
            if before and before[i][1] != node:
                node = before[i][1]
                scene.kubelets.truth.reseed(i)
                moved(scene, pod, node, bound)
            taken[node] += int(kind.split()[-1]) if node else 0
            bound += bool(node)
        assert {pod["how"] for pod in scene.known().values()} == {"observed"}
        clear(scene)
    return made


def test_the_nodes_that_are_chosen_are_the_same(arm: Arm) -> None:
    """The shipped weight, with and without schedulerWeight: mixed pods with fixed seeds, on nodes that fill."""
    found: list[list[tuple[str, str, int]]] = []
    calls = []
    for stated in (None, 150):
        with arm(fleet(), stated=stated) as scene:
            found.append(chosen(scene, PODS, found[0] if found else ()))
            counted = "gpu_extender_request_duration_seconds_count", 'verb="prioritize"'
            calls.append((scene.filter_calls(), scene.metric(*counted)))
    before, after = found
    same = sum(one == other for one, other in zip(before, after, strict=True))
    bound = sum(bool(node) for _, node, _ in after)
    tests: dict[str, list[list[Any]]] = {
        "node": [[node for _, node, _ in arm] for arm in found],
        "kind of pod and of machine": [[(kind, node[:1]) for kind, node, _ in arm] for arm in found],
        "kind of pod and how full": [[(kind.rsplit(" ", 1)[0], taken) for kind, _, taken in arm] for arm in found],
    }
    print(f"{PODS} pods, {bound} bound; the same node for {same}")
    for (asked, scored), title in zip(calls, ("without", "with schedulerWeight"), strict=True):
        print(f"{title}: {asked / PODS:.2f} filter and {scored / PODS:.3f} prioritize calls a pod")
    for title, (one, other) in tests.items():
        p, statistic, freedom = p_value(one, other)
        print(f"{title}: chi-squared {statistic:.2f}, {freedom} degrees of freedom, p = {p:.3f}")
        assert p > 0.01, title
    assert bound > 0.9 * PODS
    # kube-scheduler draws lots among equals.
    assert same >= 0.9 * PODS
    assert calls[0][1] > 0.8 * PODS
    assert calls[1][1] <= 0.02 * PODS


def test_the_sum_of_the_score_weights(binaries: Path, control_plane: ControlPlane, tmp_path: Path) -> None:
    """The default of schedulerScoreWeights is what kube-scheduler itself makes of the shipped configuration."""
    config, written = tmp_path / "config.json", tmp_path / "written.yaml"
    made: Object = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    made |= scheduler_config("http://127.0.0.1:1") | {"leaderElection": {"leaderElect": False}}
    made["clientConnection"] = {"kubeconfig": str(control_plane.kubeconfig("system:kube-scheduler"))}
    config.write_text(json.dumps(made))
    command = [str(binaries / "kube-scheduler"), f"--config={config}", f"--write-config-to={written}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    [profile] = objects_in(written)[0]["profiles"]
    weights = {one["name"]: one["weight"] for one in profile["plugins"]["multiPoint"]["enabled"]}
    weights["VolumeBinding"] = weights["VolumeBinding"] or 1  # a score plugin without a weight has 1
    assert sum(weights.values()) == 15
    disabled = [one["name"] for one in profile["plugins"]["score"]["disabled"]]
    assert sum(weights.values()) - sum(weights[name] for name in disabled) == 14 == Settings().scheduler_score_weights


def wishes(scene: Scene) -> dict[str, str]:
    """Where pods go that one in-tree plugin draws elsewhere than we do."""
    spaced = {"team": "spaced"}
    where = {
        "preferred affinity": placed(scene, builders.pod("wish", scene.namespace, 1, grace=0, **prefers_pool("b"))),
        "image": placed(scene, with_image(builders.pod("prepared", scene.namespace, 1, grace=0))),
    }
    for i in range(3):
        pod = builders.pod(f"spaced-{i}", scene.namespace, 1, labels=spaced, grace=0, **soft_spread(spaced))
        where[f"soft spread {i}"] = placed(scene, pod)
    return where


def test_what_the_scheduler_prefers_decides_what_it_decided_before(arm: Arm) -> None:
    """With a low weight preferences decide; stated or not, nothing is cut. With the shipped one they never did, as one
    node has 10 points alone: stated or not, the same nodes."""
    zones = {f"h{i}": f"z{i // 4}" for i in range(12)}
    nodes = {
        name: {"labels": {"pool": "b" if name == "h9" else "a", ZONE: zone}, "image": name == "h7"}
        for name, zone in zones.items()
    }
    found = {}
    for weight in (1, 150):
        for stated in (None, weight):
            with arm(nodes, weight=weight, stated=stated) as scene:
                found[weight, stated] = wishes(scene)
    print(found)
    for low in (found[1, None], found[1, 1]):
        assert (low["preferred affinity"], low["image"]) == ("h9", "h7")
        # The node in each zone is drawn by lot: kube-scheduler's choice among equals.
        assert len({zones[low[f"soft spread {i}"]] for i in range(3)}) == 3
    high = found[150, None]
    assert high == found[150, 150]
    assert len(set(high.values())) == 1  # packed
