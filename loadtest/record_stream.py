"""Record a watch stream on a real API server, anew: `python -m loadtest.record_stream [-o FILE]`.

A real etcd and kube-apiserver (tests/e2e) get 16 nodes of eight GPUs with 40 images each, and the pods that run there.
Then pods, half of them with a GPU, are created, bound, started, deleted and removed, with the writes of a kubelet in
between, until everything is as it was. What the watches of pods and nodes send meanwhile is kept byte for byte.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import fleet
from loadtest.recording import FILE, NODES, PODS
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.build import ControlPlaneUnavailable, build, release
from tests.e2e.cluster import ControlPlane
from tests.e2e.kubelet import SimulatedKubelets
from tests.waiting import wait_for

SIZE = 16
COMES_AND_GOES = 32
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


class RawWatch:
    """The lines of one watch, in a thread. `lines` is shared by all of them: (path, text), in order of arrival."""

    def __init__(self, api: Api, ca: Path, path: str, version: str, lines: list[tuple[str, str]]) -> None:
        host = api.url.removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, context=ssl.create_default_context(cafile=str(ca)))
        selector = f"&fieldSelector={RUNNING.replace('=', '%3D').replace(',', '%2C')}" if path == PODS else ""
        target = f"{path}?watch=1&timeoutSeconds=600&resourceVersion={version}{selector}"
        self._connection.request("GET", target, headers={"Authorization": f"Bearer {api.token}"})
        self._answer = self._connection.getresponse()
        if self._answer.status != 200:
            raise RuntimeError(f"{path}: {self._answer.status}")
        self._path, self._lines = path, lines
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                self._lines.append((self._path, line.decode()))
        except (OSError, ValueError, http.client.HTTPException):
            return  # the API server has ended


def images() -> list[dict[str, Any]]:
    """What kubelet reports of a node that has run for a while: most of a Node's bytes."""
    names = [f"registry.example/team/image-{i}@sha256:{i:064d}" for i in range(40)]
    return [{"names": [name, name.partition("@")[0]], "sizeBytes": 10**9} for name in names]


def pod(name: str, gpus: int, **options: Any) -> dict[str, Any]:
    """A pod as a trainer has it; no scheduler takes it."""
    made = builders.pod(name, "work", gpus, scheduler="nobody", cpu="500m", memory="1Gi", **options)
    made["metadata"]["labels"] = {"app.kubernetes.io/name": name, "team": "vision"}
    env = [{"name": f"TRAINER_SETTING_{i}", "value": f"value-of-setting-{i}" * 3} for i in range(16)]
    made["spec"]["containers"][0]["env"] = env
    return made


def fill(api: Api, kubelets: SimulatedKubelets) -> None:
    """Nodes and the pods that stay."""
    api.create(builders.namespace("work"))
    for i in range(SIZE):
        kubelets.add_node(fleet.name(i))
        api.patch("Node", fleet.name(i), {"status": {"images": images()}}, subresource="status")
        for j in range(fleet.taken(i)):
            api.bind(api.create(pod(f"base-{i:04d}-{j}", 1)), fleet.name(i))
    wait_for(lambda: all(one["status"]["phase"] == "Running" for one in api.list("Pod", "work")), 60)
    time.sleep(1.0)  # until the last device ids are reported


def churn(api: Api) -> None:
    """Pods come and go, and nodes report."""
    for i in range(COMES_AND_GOES):
        node, name = fleet.name(i % SIZE), f"churn-{i % SIZE:04d}-{i // SIZE}"
        api.bind(api.create(pod(name, i // SIZE)), node)
        wait_for(lambda name=name: api.get("Pod", name, "work")["status"]["phase"] == "Running", 30)  # type: ignore[misc]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        api.patch("Node", node, {"status": {"conditions": [ready]}}, how="strategic", subresource="status")
        time.sleep(0.1)
        api.delete("Pod", name, "work")
        wait_for(lambda name=name: api.find("Pod", name, "work") is None, 30)  # type: ignore[misc]


def record(binaries: Path, file: Path) -> int:
    """The number of lines recorded."""
    with ControlPlane(binaries, controllers=("namespace-controller",)) as control_plane:
        api = control_plane.api
        with SimulatedKubelets(api) as kubelets:
            fill(api, kubelets)
            entries: list[dict[str, object]] = [{"recorded": f"kube-apiserver {release()}", "nodes": SIZE}]
            lines: list[tuple[str, str]] = []
            for path, kind in ((NODES, "Node"), (PODS, "Pod")):
                found, version = api.list_raw(kind, fields=RUNNING if path == PODS else "")
                texts = (json.dumps(one, separators=(",", ":")) for one in found)
                entries += [{"list": path, "text": text} for text in texts]
                RawWatch(api, control_plane.ca, path, version, lines)
            churn(api)
            time.sleep(1.0)
    entries += [{"watch": path, "text": text} for path, text in lines]
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
    return len(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.record_stream", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=FILE, help="default: %(default)s")
    asked = parser.parse_args(arguments)

    def say(line: str) -> None:
        print(f"record_stream: {line}", file=sys.stderr, flush=True)

    try:
        count = record(build(say), asked.output)
    except ControlPlaneUnavailable as reason:
        say(f"no control plane: {reason}")
        return 1
    say(f"{count} lines, {asked.output.stat().st_size} bytes: {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
