"""Several extenders in one scheduler, as in Kubernetes' own TestSchedulerExtender, with ours as the third."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from tests.e2e.conftest import SchedulerFactory
from tests.e2e.recorder import Object, RecordingExtender
from tests.e2e.scene import H100, SceneFactory, scheduler_config


def only(*wanted: str) -> Callable[[Object], object]:
    """filter: these machines and no others, in the form in which they came."""

    def answer(arguments: Object) -> Object:
        if arguments["NodeNames"] is not None:
            names = arguments["NodeNames"]
            return {"NodeNames": [n for n in names if n in wanted], "FailedNodes": refused(names)}
        nodes = arguments["Nodes"]["items"]
        kept = [node for node in nodes if node["metadata"]["name"] in wanted]
        return {"Nodes": {"items": kept}, "FailedNodes": refused([node["metadata"]["name"] for node in nodes])}

    def refused(names: list[str]) -> dict[str, str]:
        return {name: "not mine" for name in names if name not in wanted}

    return answer


def prefers(wanted: str) -> Callable[[Object], object]:
    """prioritize: ten points for one machine."""

    def answer(arguments: Object) -> list[Object]:
        names = arguments["NodeNames"]
        if names is None:
            names = [node["metadata"]["name"] for node in arguments["Nodes"]["items"]]
        return [{"Host": name, "Score": 10 if name == wanted else 1} for name in names]

    return answer


def entry(url: str, **more: Any) -> Mapping[str, Any]:
    return {"urlPrefix": url, "filterVerb": "filter", "httpTimeout": "5s", **more}


def test_the_stock_integration_case(scene: SceneFactory, scheduler: SchedulerFactory) -> None:
    """Extenders 1 and 2 leave machines 2 and 3; the weights decide between them. What we like best, 1, is not there."""
    with ExitStack() as stack:
        first = stack.enter_context(RecordingExtender({"filter": only("m1", "m2", "m3"), "prioritize": prefers("m2")}))
        second = stack.enter_context(RecordingExtender({"filter": only("m2", "m3", "m5"), "prioritize": prefers("m3")}))

        def both(weight_of_second: int) -> list[Mapping[str, Any]]:
            return [
                entry(first.url, prioritizeVerb="prioritize", weight=3),
                entry(second.url, prioritizeVerb="prioritize", weight=weight_of_second, nodeCacheCapable=True),
            ]

        cluster = scene({f"m{i}": H100 for i in range(1, 6)}, earlier_extenders=both(4), weight=10)
        for name, node, gpus in (("on1", "m1", 6), ("on2", "m2", 4)):  # 1 is packed best, then 2; 3 is empty
            cluster.pod(name, gpus, node_name=node)
        cluster.running("on1", "on2")
        cluster.pod("p", 2)
        assert cluster.running("p") == ["m2"]
        asked = next(d for d in cluster.decisions("p") if d["verb"] == "filter")
        assert sorted(node["node"] for node in asked["nodes"]) == ["m2", "m3"]  # we see what the others left

        cluster.scheduler.kill()
        scheduler(scheduler_config(cluster.extender.url, bind=True, earlier_extenders=both(400), weight=10))
        cluster.pod("q", 2)
        assert cluster.running("q") == ["m3"]


def test_an_error_fails_the_cycle_and_the_pod_is_tried_again(scene: SceneFactory) -> None:
    """An extender before us fails twice; behind us an ignorable one always fails, and nobody's scores are read."""
    tries: list[str] = []
    enough = threading.Event()

    def flaky(arguments: Object) -> Object:
        tries.append(arguments["Pod"]["metadata"]["name"])
        if not enough.is_set():
            return {"Error": "flaky: not now"}
        return {"NodeNames": arguments["NodeNames"]}

    def broken(arguments: Object) -> Object:
        return {"Error": "broken: never"}

    with ExitStack() as stack:
        early = stack.enter_context(RecordingExtender({"filter": flaky}))
        late = stack.enter_context(RecordingExtender({"filter": broken, "prioritize": broken}))
        cluster = scene(
            {f"m{i}": H100 for i in range(2)},
            earlier_extenders=[entry(early.url, nodeCacheCapable=True)],
            more_extenders=[
                entry(late.url, nodeCacheCapable=True, prioritizeVerb="prioritize", weight=5, ignorable=True)
            ],
        )
        cluster.pod("p", 2)
        cluster.unschedulable("p", "flaky: not now")
        condition = next(c for c in cluster.get("p")["status"]["conditions"] if c["type"] == "PodScheduled")
        assert condition["reason"] == "SchedulerError"
        assert cluster.decisions("p") == []  # the cycle ended before us
        enough.set()
        cluster.running("p")
        print(f"flaky: {len(tries)} tries; the ignorable one was asked {len(late.bodies('filter'))} times in vain")
        assert len(tries) >= 2
        assert late.bodies("filter")
        assert late.bodies("prioritize")
