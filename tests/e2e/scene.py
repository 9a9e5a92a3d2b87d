"""A whole scene: real control plane, simulated kubelets, the product, and a kube-scheduler that asks it."""

from __future__ import annotations

import datetime
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests import plain
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import Scheduler
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.kubelet import SimulatedKubelets
from tests.waiting import wait_for
from tests.yaml_text import objects_in

CONFIG = Path(__file__).parents[2] / "manifests" / "kube-scheduler-config.yaml"
LINKS = "gpu-extender.io/links"
H100 = {"topology": "dgx-h100"}
V100 = {"topology": "dgx1-v100"}
PAIRS = {"topology": "a100-pcie-4"}
L4 = {"topology": "l4-8"}
SEEN = "test.gpu-extender.io/seen"
CACHED = "gpu_extender_cache_objects"
PREEMPTED = re.compile(r"Preempted by pod ([0-9a-f-]{36}) on node ")


def scheduler_config(
    url: str,
    *,
    bind: bool = False,
    earlier_extenders: Sequence[Mapping[str, Any]] = (),
    more_extenders: Sequence[Mapping[str, Any]] = (),
    default_profile: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """The manifest that users get, asking `url`; `changes` go into our extender's entry, others come before or behind
    it. `default_profile`: nothing of the manifest but the extender, so a profile as kube-scheduler has it by itself."""
    config: dict[str, Any] = objects_in(CONFIG)[0]
    config.pop("leaderElection", None)
    config.pop("clientConnection", None)
    recommended = config["extenders"][0]
    if bind:
        recommended["bindVerb"] = "bind"
    config["extenders"] = [*earlier_extenders, {**recommended, "urlPrefix": f"{url}/v1", **changes}, *more_extenders]
    if default_profile:
        return {"extenders": config["extenders"]}
    for profile in config.get("profiles", ()):
        profile["schedulerName"] = "default-scheduler"
    return config


@dataclass
class Scene:
    api: Api
    namespace: str
    kubelets: SimulatedKubelets
    extender: ExtenderProcess
    scheduler: Scheduler
    uids: dict[str, str] = field(default_factory=dict)

    def pod(self, name: str, gpus: int, *, links: str = "", **options: Any) -> Object:
        """Create a pod in the scene's namespace."""
        notes: dict[str, str] = dict(options.pop("annotations", {}))
        if links:
            notes[LINKS] = links
        made = self.api.create(builders.pod(name, self.namespace, gpus, annotations=notes, **options))
        self.uids[name] = made["metadata"]["uid"]
        return made

    def priorities(self, **values: int) -> None:
        """PriorityClasses, by name."""
        for name, value in values.items():
            self.api.create(builders.priority_class(name, value))

    def full_of_low_pods(self, count: int = 4, *, grace: int = 1) -> list[str]:
        """So many pods of 4 GPUs run, with the priority `low`; `high` is above it. Their names."""
        self.priorities(high=1000, low=10)
        names = [f"w{i}" for i in range(count)]
        for name in names:
            self.pod(name, 4, priority_class="low", grace=grace)
        self.running(*names)
        return names

    def get(self, name: str) -> Object:
        return self.api.get("Pod", name, self.namespace)

    def running(self, *names: str, timeout: float = 60) -> list[str]:
        """Wait until the pods run; the nodes they run on."""

        def look() -> list[str] | None:
            pods = [self.get(name) for name in names]
            if all(pod["status"].get("phase") == "Running" for pod in pods):
                return [pod["spec"]["nodeName"] for pod in pods]
            return None

        def why() -> str:
            return str([(n, self.get(n)["status"].get("conditions")) for n in names])

        return wait_for(look, timeout, why)

    def gpus(self, name: str) -> frozenset[int]:
        """What the pod really holds."""
        return self.kubelets.truth.gpus_of(self.uids[name])

    def unschedulable(self, name: str, text: str, timeout: float = 60) -> str:
        """Wait until the pod is refused with `text` in its PodScheduled condition; the whole message."""

        def message() -> str | None:
            for condition in self.get(name)["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and text in condition.get("message", ""):
                    return str(condition["message"])
            return None

        return wait_for(message, timeout, lambda: f"{name}: {self.get(name)['status']}")

    def filter_calls(self) -> float:
        """How many filter calls the server has answered."""
        return self.metric("gpu_extender_request_duration_seconds_count", 'verb="filter"')

    def metric(self, name: str, label: str = "") -> float:
        text = self._page("/metrics").text
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(name) and label in line.partition(" ")[0]
        )

    def known(self) -> dict[str, Any]:
        """The unfinished pods that the server knows, by uid, as `/debug/state` shows them."""
        return dict(self._page("/debug/state").json()["pods"])

    def known_nodes(self) -> dict[str, Any]:
        """The nodes that the server knows, by name, as `/debug/state` shows them."""
        return dict(self._page("/debug/state").json()["nodes"])

    def decisions(self, name: str) -> list[Any]:
        """What the server has kept about a pod, newest first."""
        return list(self._page("/debug/decisions", pod=f"{self.namespace}/{name}").json()["decisions"])

    def all_decisions(self) -> list[Any]:
        """The latest thousand about any pod, newest first: one answer instead of one for each pod."""
        shown = self._page("/debug/decisions", most="1000").json()
        assert not shown["decisions_left_out"]
        return list(shown["decisions"])

    def explained(self, name: str) -> Any:
        """The server's verdict on a pod, or its error."""
        return self._page("/debug/explain", pod=f"{self.namespace}/{name}").json()

    def _page(self, path: str, **query: str) -> httpx.Response:
        """What the server answers to a GET; a busy machine may take a while."""
        with plain.client() as http:
            return http.get(self.extender.url + path, params=query)

    def create_all(self, pods: Sequence[Object]) -> None:
        """Create many pods at once, in no certain order."""
        self.api.create_many(pods)
        self.uids |= {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.api.list("Pod", self.namespace)}

    def evictions(self, victims: int = 0) -> dict[str, dict[str, float]]:
        """Preemptor's uid -> the pods that were evicted for it and when (seconds since 1970), as kube-scheduler's
        events tell. It writes them beside its work, so `victims` of them are waited for."""

        def told() -> dict[str, dict[str, float]] | None:
            found = self._told_evictions()
            return found if sum(map(len, found.values())) >= victims else None

        if not victims:
            return self._told_evictions()
        return wait_for(told, 60, lambda: f"{victims} victims: {self._told_evictions()}")

    def _told_evictions(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for event in self.api.list("Event", self.namespace, fields="reason=Preempted"):
            told = PREEMPTED.match(event["message"])
            assert told, event["message"]
            when = datetime.datetime.fromisoformat(event["eventTime"]).timestamp()
            found.setdefault(told[1], {})[event["involvedObject"]["name"]] = when
        return found

    def alive(self, names: Iterable[str]) -> set[str]:
        """Those of the pods that exist and are not being deleted."""
        found = {pod["metadata"]["name"]: pod for pod in self.api.list("Pod", self.namespace)}
        return {name for name in names if name in found and "deletionTimestamp" not in found[name]["metadata"]}

    def scheduler_sees(self, node: str) -> None:
        """Wait until kube-scheduler knows what the API server has about this node, and about all pods, by now. A pod
        without GPUs has to fit on the node."""
        seen = f"seen-{secrets.token_hex(4)}"
        self.api.patch("Node", node, {"metadata": {"labels": {SEEN: seen}}})
        probe = builders.pod(seen, self.namespace, 0, node_selector={SEEN: seen}, cpu="1m", memory="1Mi", grace=0)
        self.api.create(probe)
        wait_for(lambda: self.get(seen)["spec"].get("nodeName"), 60, lambda: f"{seen}: {self.get(seen)['status']}")
        self.api.delete("Pod", seen, self.namespace)

    def server_sees_pods(self) -> None:
        """Wait until the server knows what the API server has about all pods by now. Nothing else creates or deletes
        pods meanwhile. The metrics count at once: each look at /debug/state waits for a fork of the server."""
        self._server_counts_pods()
        self.api.create(builders.pod("seen-last", self.namespace, 0, scheduler="nobody", grace=0))
        self._server_counts_pods()
        self.api.delete("Pod", "seen-last", self.namespace, grace=0)
        self._server_counts_pods()

    def _server_counts_pods(self) -> None:
        pods = len(self.api.list("Pod"))
        wait_for(lambda: self.metric(CACHED, 'kind="Pod"') == pods, 60, "the server knows the pods", 0.03)

    def server_sees_budgets(self, count: int) -> None:
        """Wait until the server knows so many budgets, each as the API server has it by now."""
        kind = 'kind="PodDisruptionBudget"'
        marker = builders.pdb("seen-last", self.namespace, {"no": "pod"}, min_available=0)
        self.api.create(marker)
        wait_for(lambda: self.metric(CACHED, kind) == count + 1, 60, "the server knows the budgets")
        self.api.delete("PodDisruptionBudget", "seen-last", self.namespace)


SceneFactory = Callable[..., Scene]


def make(
    api: Api,
    namespace: str,
    kubelets: SimulatedKubelets,
    start_extender: Callable[..., ExtenderProcess],
    start_scheduler: Callable[..., Scheduler],
    nodes: Mapping[str, Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | str = "",
    kubeconfig: Path | None = None,
    bind: bool = True,
    verbosity: int = 2,
    arguments: Sequence[str] = (),
    **changes: Any,
) -> Scene:
    """Nodes first, then the product, then the scheduler that asks it. `kubeconfig`: the product's, if not the usual;
    `verbosity`: of the scheduler's log; `arguments`: of the product."""
    for name, options in nodes.items():
        kubelets.add_node(name, **options)
    extender = start_extender(settings, kubeconfig=kubeconfig, arguments=arguments)
    scheduler = start_scheduler(scheduler_config(extender.url, bind=bind, **changes), verbosity=verbosity)
    return Scene(api, namespace, kubelets, extender, scheduler)


def quiet(seconds: float) -> None:
    """Let time pass in which nothing should happen."""
    time.sleep(seconds)
