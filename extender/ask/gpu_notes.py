"""What an answer notes about the GPUs of a place: a gang on several GPU models, and several shares for one pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.gangs import mixes_models
from extender.cluster.nodes import model_of
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_whole


def of_gang(cluster: ClusterView, gang: str, places: Iterable[tuple[PodRecord, str]]) -> Iterator[dict[str, str]]:
    """The warning of a gang that is on several GPU models and need not be. `gang`: its name; `places`: each of its pods
    with its node."""
    settings = cluster.settings
    asking = [(pod, cluster.nodes[node]) for pod, node in places if pod.gpu_count and node in cluster.nodes]
    models = Counter(model_of(node, settings.mix.model_labels) for _, node in asking)
    if len(models) > 1 and not all(mixes_models(pod, settings.placement) for pod, _ in asking):
        shown = ", ".join(f"{model}: {count(pods, 'pod')}" for model, pods in sorted(models.items()))
        text = f"gang {gang} is on {len(models)} GPU models ({shown}): no place was found for it on a single one"
        yield {"code": "several-gpu-models", "message": text}


def of_pod(cluster: ClusterView, pod: PodRecord, request: PodRequest, node: str) -> Iterator[dict[str, str]]:
    """The warning of a pod that asks for several GPUs, of a node that hands out shares by that name."""
    division = cluster.gpus.divisions.get(node)
    if division is None or division.whole or request.wanted < 2 or not wants_whole(request, cluster.resources):
        return
    physical = f"{count(division.gpus, 'GPU')}, " if division.gpus else ""
    text = (
        f"pod {pod.namespace}/{pod.name} asks for {request.wanted} GPUs, and gets as many shares of {node} "
        f"({physical}{division.detail}): several of them may be of one GPU"
    )
    yield {"code": "shared-gpus", "message": text}
