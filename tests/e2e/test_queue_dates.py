"""When a gang that waits starts, on the real control plane: stated from the gangs that ended, and so it comes."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from tests import plain
from tests.act.queue.test_start_dates import evidence
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.promises import kept
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.e2e.test_queue import job, nodes_of
from tests.waiting import wait_for

MAP = "gpu-extender-mix"
SECONDS = 12


def stated(cluster: Scene) -> dict[str, Any]:
    """Of each Job that waits, when it starts."""
    with plain.client() as http:
        answer = http.get(f"{cluster.extender.url}/debug/queue").json()
    return {entry["gang"].partition("/")[2]: entry["start"] for entry in answer["waiting"]}


def learned(cluster: Scene) -> list[Any]:
    """The runs of the namespace that are kept."""
    runs = kept(cluster, MAP).get("run-times", {"namespaces": {}})["namespaces"].get(cluster.namespace, [])
    return list(runs)


def test_a_window_is_stated_and_holds_also_after_a_restart(scene: SceneFactory, settings: Any) -> None:
    cluster = scene({"n1": H100}, settings=settings)
    cluster.extender.stop()
    texts = kept(cluster, MAP) | {"start-windows": json.loads(evidence())}  # of gangs that waited before
    if cluster.api.find("ConfigMap", MAP, "kube-system"):
        cluster.api.delete("ConfigMap", MAP, "kube-system")
    data = {key: json.dumps(text) for key, text in texts.items()}
    meta = {"name": MAP, "namespace": "kube-system"}
    cluster.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    cluster.extender.start()
    runs = {RUN_SECONDS: str(SECONDS), "gpu-extender.io/duration": "30s"}
    names = [f"g{number}" for number in range(7)]
    for name in names:
        job(cluster, name, 2, 4, annotations=runs)
    nodes_of(cluster, "g1", 2, timeout=120)  # so the first has ended
    cluster.extender.stop()
    whole = [run[3] for run in learned(cluster) if run[6]]
    assert len(whole) == 1
    assert SECONDS - 2 <= whole[0] <= SECONDS + 10  # a busy machine ends pods late
    cluster.extender.start()

    def windows() -> Any:
        start = stated(cluster).get(names[-1])
        return start if start and len(start["windows"]) == 3 else None

    start, said = wait_for(windows, 60, lambda: str(stated(cluster))), time.time()
    assert re.fullmatch(r"expected .* UTC; 80 % window .* to .*", start["text"])
    assert "UTC; 80 % window " in cluster.explained(pods(cluster, names[-1])[0])["sentence"]
    nodes_of(cluster, names[-1], 2, timeout=180)
    waited = time.time() - said
    first, middle, last = ((window["from_seconds"], window["until_seconds"]) for window in start["windows"])
    assert last[0] <= middle[0] <= first[0] <= first[1] <= middle[1] <= last[1]
    assert last[0] - 2 <= waited <= last[1] + 2
    assert stated(cluster) == {}
    assert cluster.metric("gpu_extender_queue_start_windows_total", 'outcome="held",percent="95"') >= 1


def pods(cluster: Scene, name: str) -> list[str]:
    """The names of the pods of a Job."""
    return [pod["metadata"]["name"] for pod in cluster.api.list("Pod", cluster.namespace, labels=f"app={name}")]
