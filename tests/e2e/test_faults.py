"""What goes wrong in a cluster: bursts, lag, restarts, outages, other extenders. Nothing is promised twice."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import orjson

from extender.sim.machines import machine
from tests.e2e import builders
from tests.e2e.recorder import RecordingExtender
from tests.e2e.scene import H100, V100, Scene, SceneFactory
from tests.e2e.test_other_extenders import entry, only
from tests.waiting import wait_for


def settled(cluster: Scene, names: list[str], timeout: float = 60) -> None:
    cluster.running(*names, timeout=timeout)
    cluster.kubelets.settle()
    assert cluster.kubelets.truth.double_allocations == 0


def test_a_burst_of_200_pods_breaks_no_promise(scene: SceneFactory) -> None:
    nodes: dict[str, Any] = {f"h{i:02d}": H100 for i in range(30)} | {f"v{i:02d}": V100 for i in range(30)}
    cluster = scene(nodes)
    rng = random.Random(5)
    required: list[str] = []
    names: list[str] = []
    pods = []
    for i in range(200):
        size = rng.choice((1, 1, 1, 2, 2, 4))
        name = f"p{i:03d}"
        names.append(name)
        notes = {}
        if size > 1 and rng.random() < 0.5:
            required.append(name)
            notes = {"gpu-extender.io/links": "required"}
        pods.append(builders.pod(name, cluster.namespace, size, annotations=notes, cpu="100m", memory="1Mi"))
    cluster.api.create_many(pods)
    cluster.uids |= {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.api.list("Pod", cluster.namespace)
    }

    def ended() -> bool:
        found = cluster.api.list("Pod", cluster.namespace)
        return all(pod["status"].get("phase") in ("Running", "Failed") for pod in found)

    wait_for(ended, 120, "every pod is admitted, or refused by its node", every=0.5)
    cluster.kubelets.settle()
    truth = cluster.kubelets.truth
    assert truth.double_allocations == 0
    # NVIDIA's plugin crashes over some free sets (NVIDIA/go-gpuallocator#80), here as there: no promise of ours.
    crashes = truth.reasons()["panic"]
    assert len(truth.refusals()) == crashes <= 5
    required = [name for name in required if cluster.get(name)["status"]["phase"] == "Running"]
    kind = {name: options["topology"] for name, options in nodes.items()}
    broken = [n for n in required if not machine(kind[cluster.get(n)["spec"]["nodeName"]]).linked(cluster.gpus(n))]
    print(f"burst: {len(names)} pods, {len(required)} required run, broken {len(broken)}, plugin crashes {crashes}")
    assert broken == []


def test_a_restart_in_the_middle_of_bindings_loses_nothing(scene: SceneFactory) -> None:
    cluster = scene({f"h{i}": H100 for i in range(8)})
    names = [f"p{i:02d}" for i in range(56)]

    def create() -> None:
        cluster.api.create_many(builders.pod(n, cluster.namespace, 1, cpu="100m", memory="1Mi") for n in names)

    thread = threading.Thread(target=create)
    thread.start()
    for _ in range(2):
        time.sleep(0.4)  # so that the restarts come in the middle
        cluster.extender.restart()
    thread.join()
    settled(cluster, names, 90)
    assert cluster.kubelets.truth.refusals() == []


def test_a_second_extender_that_refuses_our_whole_shortlist(scene: SceneFactory) -> None:
    """The retry gets all nodes, so the pod lands on a node that our first answer left out."""
    with RecordingExtender({"filter": only("h24")}) as picky:
        cluster = scene(
            {f"h{i:02d}": H100 for i in range(25)},
            more_extenders=[entry(picky.url, nodeCacheCapable=True, managedResources=[])],
        )
        cluster.pod("p", 1)
        assert cluster.running("p", timeout=60) == ["h24"]
        asked = [orjson.loads(body)["NodeNames"] for body in picky.bodies("filter")]
    assert len(asked[0]) == 16
    assert len(asked[-1]) == 25 or "h24" in asked[-1]


def test_a_soft_preferred_node_that_ranked_17th(scene: SceneFactory) -> None:
    """A pod with preferred affinity of its own gets all feasible nodes: its wish is not cut off by our shortlist."""
    cluster = scene(
        {f"h{i:02d}": {**H100, "labels": {"wanted": "yes"} if i == 24 else {}} for i in range(25)}, weight=1
    )
    term = {"matchExpressions": [{"key": "wanted", "operator": "In", "values": ["yes"]}]}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    }
    cluster.pod("p", 1, affinity=affinity)
    cluster.running("p")
    first = cluster.decisions("p")[-1]
    assert first["verb"] == "filter"
    assert first["answered"] == 25
