"""The agent: writes on the node what its GPUs look like, and on pods what they hold where kubelet does not report it.

A change of a node wakes every pod that an extender refused, so nothing is written that is there already: the annotation
has no time in it, and a view that could not be renewed is marked once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from extender.errors import BadTopology, ExtenderError, Unreachable
from extender.node.apiserver import ApiEndpoint, node_path, pod_path
from extender.node.kubelet_api import HeldDevices, Kubelet
from extender.topologies import annotation
from extender.topologies.annotation import RELAY, STALE
from extender.topologies.topology import Topology

HELD = "gpu-extender.io/held-gpus"
SAYS_DEVICES = (1, 36)  # from this release on kubelet's pod status names the devices
STALE_SECONDS = 120.0

Switch = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the command line states."""

    node: str
    resource: str = "nvidia.com/gpu"  # as the device plugin calls the GPUs
    held: Switch = "auto"  # whether the agent writes on pods which GPUs they hold
    topology_file: Path | None = None  # where the relay reads the annotation's value
    mode_file: Path | None = None  # where the relay states what it does


class Agent:
    """One node's agent. `look()` is one round; errors are reported and counted, the next round tries again."""

    def __init__(
        self,
        options: AgentOptions,
        server: ApiEndpoint,
        view: Callable[[], Topology],
        *,
        say: Callable[[str], None],
        kubelet: Kubelet | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`view`: looks at the GPUs (ExtenderError when it cannot); `say`: reports what was written and what failed;
        `kubelet`: None where its PodResources are not available; `clock`: seconds since 1970."""
        self.counts: Counter[str] = Counter()
        self._options, self._server, self._view, self._say = options, server, view, say
        self._kubelet, self._clock = kubelet, clock
        self._stated: Topology | None = None
        self._seen_at = clock()

    def look(self) -> None:
        """One round."""
        node = None
        try:
            node = self._server.get(node_path(self._options.node))
        except ExtenderError as error:
            self._trouble("API server", error)
        if self._stated is None and node is not None:
            self._stated = _stated_on(node)  # what we said before a restart
        text = self._text()
        try:
            if node is not None:
                self._say_of_node(node, text)
                if self._says_held(node):
                    self._say_of_pods()
        except ExtenderError as error:
            self._trouble("API server", error)

    def _text(self) -> str | None:
        """The annotation's value by what we see now, left for the relay too; None while we see nothing usable."""
        try:
            seen = self._with_kubelets_health(self._view())
            text = annotation.encode(seen)
        except ExtenderError as error:
            self._trouble("view", error)
            return None
        self._stated, self._seen_at = seen, self._clock()
        self._leave_for_relay(text)
        return text

    # ---- the node

    def _with_kubelets_health(self, seen: Topology) -> Topology:
        """A GPU that the plugin calls unhealthy is. While no plugin is registered, what it said last stands."""
        if self._kubelet is None or seen.uuids is None:
            return seen
        try:
            known = self._kubelet.healthy(self._options.resource)
        except Unreachable as error:
            self._trouble("PodResources", error)
            known = frozenset()
        whole = {device.partition("::")[0] for device in known}
        own = seen.health or (True,) * seen.gpus
        if not whole & set(seen.uuids):
            if self._stated is None or self._stated.uuids != seen.uuids or self._stated.health is None:
                return seen
            return replace(seen, health=tuple(a and b for a, b in zip(own, self._stated.health, strict=True)))
        works = tuple(fine and uuid in whole for fine, uuid in zip(own, seen.uuids, strict=True))
        return replace(seen, health=works)

    def _say_of_node(self, node: Mapping[str, Any], text: str | None) -> None:
        present = node.get("metadata", {}).get("annotations") or {}
        wanted: dict[str, str | None] = {}
        if text is not None:
            assert self._stated is not None
            wanted |= {annotation.KEY: text, annotation.NICS: annotation.encode_nics(self._stated), STALE: None}
        if STALE not in wanted and self._clock() - self._seen_at > STALE_SECONDS and STALE not in present:
            wanted[STALE] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._seen_at))
        if self._options.mode_file is not None:
            wanted[RELAY] = "1" if self._relay_holds_plans() else None
        change = {key: value for key, value in wanted.items() if present.get(key) != value}
        if change:
            self._server.patch(node_path(self._options.node), {"metadata": {"annotations": change}})
            self.counts["node writes"] += 1
            self._say(f"node {self._options.node}: {', '.join(sorted(change))}")

    def _relay_holds_plans(self) -> bool:
        assert self._options.mode_file is not None
        try:
            return self._options.mode_file.read_text().strip() == "plans"
        except OSError:
            return False

    def _leave_for_relay(self, text: str) -> None:
        """By renaming: the relay reads all of it or what was before."""
        file = self._options.topology_file
        if file is None:
            return
        try:
            if file.exists() and file.read_text() == text:
                return
            scratch = file.with_suffix(".new")
            scratch.write_text(text)
            scratch.rename(file)
        except OSError as error:
            self._trouble("topology file", error)

    # ---- the pods

    def _says_held(self, node: Mapping[str, Any]) -> bool:
        if self._options.held != "auto" or self._kubelet is None:
            return self._options.held == "always" and self._kubelet is not None
        version = str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))
        return _release(version) < SAYS_DEVICES

    def _say_of_pods(self) -> None:
        topology = self._stated
        if topology is None or topology.uuids is None or self._kubelet is None:
            return
        texts = as_annotations(self._kubelet.held(), self._options.resource, topology.uuids)
        if not texts:
            return
        pods = self._server.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={self._options.node}"})
        for pod in pods.get("items") or ():
            meta = pod["metadata"]
            text = texts.get((meta["namespace"], meta["name"]))
            if text is None or (meta.get("annotations") or {}).get(HELD) == text:
                continue
            if pod.get("status", {}).get("phase") not in ("Pending", "Running"):
                continue
            # With the uid: not on a new pod of the same name.
            change = {"metadata": {"uid": meta["uid"], "annotations": {HELD: text}}}
            try:
                self._server.patch(pod_path(meta["namespace"], meta["name"]), change)
                self.counts["pod writes"] += 1
            except Unreachable as error:
                self._trouble("pod", error)

    def _trouble(self, activity: str, error: Exception) -> None:
        self.counts[f"errors {activity}"] += 1
        self._say(f"{activity}: {error}")


def _stated_on(node: Mapping[str, Any]) -> Topology | None:
    try:
        return annotation.decode((node.get("metadata", {}).get("annotations") or {}).get(annotation.KEY, ""))
    except BadTopology:
        return None


def as_annotations(held: Iterable[HeldDevices], resource: str, uuids: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """(namespace, pod) -> "0,3" or "c1=0,3;c2=5"; a pod with a device that is no whole GPU of ours is left out."""
    index = {uuid: gpu for gpu, uuid in enumerate(uuids)}
    by_pod: dict[tuple[str, str], dict[str, list[int]] | None] = {}
    for namespace, pod, container, name, devices in held:
        if name != resource:
            continue
        gpus = [index.get(device, -1) for device in devices]
        known = by_pod.setdefault((namespace, pod), {})
        if min(gpus) < 0 or known is None:
            by_pod[namespace, pod] = None
        else:
            known[container] = sorted(gpus)
    texts = {}
    for key, containers in by_pod.items():
        if containers:
            parts = [(name, ",".join(map(str, gpus))) for name, gpus in sorted(containers.items())]
            texts[key] = parts[0][1] if len(parts) == 1 else ";".join(f"{name}={ids}" for name, ids in parts)
    return texts


def _release(version: str) -> tuple[int, int]:
    """ "v1.35.2-gke.1" -> (1, 35); (0, 0) for what cannot be read: then we say it, which is never wrong."""
    words = version.removeprefix("v").split(".")
    return (int(words[0]), int(words[1])) if len(words) > 1 and words[0].isdigit() and words[1].isdigit() else (0, 0)
