"""How much memory the server takes for a cluster of a given size, and how long it takes to be ready.

    python -m benchmarks.memory [--sizes 100/1000 1000/10000 5000/50000 15000/150000] [--calls 200] [-o table|json]

For each size the real server (`gpu-extender serve`) lists generated objects from a stub of an API server on loopback,
page by page as from a real one, each server in a process of its own. A real API server takes minutes to be given as
many objects. Nodes are eight-GPU machines with 40 images and 28 labels (14 kB). Of ten pods on a node four belong to
Jobs and hold two GPUs each, the others belong to StatefulSets; all have managed fields, conditions, volumes, and labels
with names that no other pod has (6 kB).

    listed     MB of JSON that was read
    seconds    from the start of the process until /readyz answers 200, and the CPU seconds of the process until then
    floor      CPU seconds of a process that reads the same pages by a plain socket and only splits them into objects
    ratio      CPU / floor
    RSS        MiB in memory then, and after `calls` filter and prioritize calls that name every node
    peak       MiB at most so far (VmHWM); 600 MB are 572 MiB
    limit      what the pod needs: the larger RSS and a tenth of it, 1.3 x decisions.maxBytes, limits.allBodiesBytes

The targets table adds the growth of memory after a churn of pods (`tests.churn`, some minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec

from benchmarks import fleet
from benchmarks.serving import Connection, cpu_of, request
from benchmarks.spread import Line, Spread, at_most, targets_table
from extender.kube.lists import NODES, PODS
from extender.objects import schema
from tests.e2e import builders
from tests.e2e.process import free_port
from tests.kube.api_server import Request, Script, Writer, failed, serving, whole

SIZES = ("100/1000", "1000/10000", "5000/50000", "15000/150000")
MIB = 2**20
DECISIONS = 1.3 * 32  # MiB: decisions.maxBytes, and what its objects take beyond their bytes
BODIES = 256.0  # MiB: limits.allBodiesBytes
GPU_PODS = 4  # of those on each node, with two GPUs each
READY_SECONDS = 900.0
SELF = [sys.executable, "-m", "benchmarks.memory"]
BOOKMARK_SECONDS = 2.0


@dataclass(frozen=True)
class Row:
    """One size. Memory in MiB."""

    nodes: int
    pods: int
    listed_mb: float
    seconds: float
    cpu: float
    floor: float
    rss: float
    rss_after_calls: float
    peak: float

    @property
    def limit(self) -> float:
        """What a pod with the default settings needs."""
        return 1.1 * max(self.rss, self.rss_after_calls - DECISIONS) + DECISIONS + BODIES


# ---- the generated objects


class Template:
    """JSON with places such as @N@."""

    def __init__(self, text: str) -> None:
        self._parts = re.split(rb"(@\w+@)", text.encode())

    def fill(self, **values: str) -> bytes:
        """The JSON with these values."""
        known = {f"@{name}@".encode(): value.encode() for name, value in values.items()}
        return b"".join([known.get(part, part) for part in self._parts])


def node_text(index: int) -> bytes:
    """A Node as kubelet and the vendors' discovery write it."""
    return _NODE.fill(N=f"{index:05d}")


def pod_text(index: int, nodes: int) -> bytes:
    """A Pod on node `index % nodes`; the first GPU_PODS of each node hold GPUs."""
    node, number = index % nodes, index // nodes
    made = _GPU_POD if number < GPU_PODS else _POD
    gpus = {"G0": str(2 * number), "G1": str(2 * number + 1)}
    return made.fill(N=f"{node:05d}", I=f"{index:06d}", O=f"{index // 8:05d}", M=f"{index % 60:02d}", **gpus)


def _node() -> Template:
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FLAG{i}": "true" for i in range(20)}
    labels |= fleet.label_gpus(fleet.PRODUCTS[0]) | {"topology.kubernetes.io/zone": "zone-a", "rack": "rack-@N@"}
    made = builders.node("gpu-worker-@N@", 8, labels=labels)
    uuids = [f"GPU-@N@-{i}" for i in range(8)]
    links = [[a, b, 18] for a in range(8) for b in range(a)]
    graph = {"v": 1, "gpus": 8, "links": links, "kind": "nvlink", "gbps": 25, "numa": [0] * 8, "uuids": uuids}
    made["metadata"] |= {"uid": "node-uid-@N@", "resourceVersion": "1", "managedFields": _managed(60)}
    made["metadata"]["annotations"] = {"gpu-extender.io/topology": json.dumps(graph)}
    names = [f"registry.example/team/image-{i}@sha256:{i:064d}" for i in range(40)]
    made["status"]["images"] = [{"names": [name, name], "sizeBytes": 10**9} for name in names]
    return Template(json.dumps(made, separators=(",", ":")))


def _pod(gpus: int) -> Template:
    made = builders.pod("job-@O@-@I@", "team-a", gpus, node_name="gpu-worker-@N@", grace=30, cpu="500m")
    made["metadata"] |= {
        "uid": "00000000-0000-4000-8000-000000@I@",
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "labels": {"app": "job-@O@", "team": "a", "stage": "prod", **(_JOB if gpus else _SET)},
        "managedFields": _managed(40),
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "job-@O@", "uid": "rs-@O@", "controller": True}
        ],
    }
    tolerations = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for what in ("not-ready", "unreachable")
    ]
    volumes = [{"name": f"v{i}", "configMap": {"name": f"settings-{i}", "defaultMode": 420}} for i in range(6)]
    made["spec"] |= {"priority": 100, "priorityClassName": "batch", "tolerations": tolerations, "volumes": volumes}
    made["spec"]["containers"][0]["env"] = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(25)]
    if gpus:
        made["metadata"]["annotations"] = {
            "gpu-extender.io/links": "required",
            "gpu-extender.io/gpus": "@G0@,@G1@",
            "gpu-extender.io/last-checkpoint": "2026-11-20T11:@M@:00Z",
        }
    status: dict[str, Any] = {"name": "main", "ready": True, "restartCount": 0, "imageID": "sha256:" + 64 * "0"}
    if gpus:
        ids = [{"resourceID": f"GPU-@N@-@G{i}@", "health": "Healthy"} for i in range(gpus)]
        status["allocatedResourcesStatus"] = [{"name": fleet.GPU, "resources": ids}]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-11-20T10:00:05Z"}
        for kind in ("PodScheduled", "Initialized", "Ready", "ContainersReady", "PodReadyToStartContainers")
    ]
    made["status"] = {
        "phase": "Running",
        "startTime": "2026-11-20T10:00:01Z",
        "conditions": conditions,
        "containerStatuses": [status],
    }
    return Template(json.dumps(made, separators=(",", ":")))


_JOB = {
    "batch.kubernetes.io/controller-uid": "00000000-0000-4000-9000-0000000@O@",
    "batch.kubernetes.io/job-name": "job-@O@",
    "controller-uid": "00000000-0000-4000-9000-0000000@O@",
    "job-name": "job-@O@",
    "batch.kubernetes.io/job-completion-index": "@I@",
}
_SET = {
    "apps.kubernetes.io/pod-index": "@I@",
    "controller-revision-hash": "set-@O@-5d7f9",
    "statefulset.kubernetes.io/pod-name": "job-@O@-@I@",
}


def _managed(fields: int) -> list[dict[str, Any]]:
    inner: dict[str, Any] = {f"f:field{i}": {"f:inner": {}, ".": {}} for i in range(fields)}
    return [{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": inner}}]


_NODE, _POD, _GPU_POD = _node(), _pod(0), _pod(2)


# ---- the API server


class Source:
    """Answers lists and watches of a cluster in which nothing happens. `sent`: bytes of all lists."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.sent = 0
        self._nodes, self._pods = nodes, pods
        self._lists: dict[str, tuple[int, Callable[[int], bytes]]] = {
            "/api/v1/nodes": (nodes, node_text),
            "/api/v1/pods": (pods, lambda index: pod_text(index, nodes)),
            "/apis/policy/v1/poddisruptionbudgets": (0, bytes),
            "/apis/scheduling.k8s.io/v1/priorityclasses": (0, bytes),
        }

    async def answer(self, request: Request, writer: Writer) -> None:
        if request.path == "/sent":
            await whole(200, {"bytes": self.sent})(request, writer)
        elif request.path not in self._lists:
            await failed(404, "not found")(request, writer)
        elif request.watches:
            await self._watch(writer)
        else:
            await whole(200, self._page(request))(request, writer)

    def _page(self, request: Request) -> bytes:
        count, make = self._lists[request.path]
        if "phase=Failed" in request.params.get("fieldSelector", "") and "!=" not in request.params["fieldSelector"]:
            count = 0
        at, limit = int(request.params.get("continue") or 0), int(request.params.get("limit", "500"))
        until = min(count, at + limit)
        more = str(until) if until < count else ""
        head = f'{{"kind":"XList","metadata":{{"resourceVersion":"9","continue":"{more}"}},"items":['
        body = b"%s%s]}" % (head.encode(), b",".join(map(make, range(at, until))))
        self.sent += len(body)
        return body

    async def _watch(self, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
        line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'
        while not writer.is_closing():
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            await writer.drain()
            await asyncio.sleep(BOOKMARK_SECONDS)


async def serve(nodes: int, pods: int) -> None:
    """Serve until the process is ended; the first line of the output is the URL."""
    async with serving(Script([Source(nodes, pods).answer])) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


# ---- the measurement


def measure(nodes: int, pods: int, calls: int) -> Row:
    """Both servers as processes of their own; ended in any case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = [*SELF, "--serve", f"{nodes}/{pods}"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as api:
            assert api.stdout is not None
            try:
                url = api.stdout.readline().strip()
                floor = subprocess.run([*SELF, "--floor", url], stdout=subprocess.PIPE, check=True, text=True)
                return _measured(url, folder, (nodes, pods), calls, float(floor.stdout))
            finally:
                api.kill()


def _measured(url: str, folder: Path, size: tuple[int, int], calls: int, floor: float) -> Row:
    port = free_port()
    settings = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration"}
    settings |= {"reservations": {"store": "memory"}, "events": {"enabled": False}}  # type: ignore[dict-item]
    (folder / "settings.yaml").write_text(json.dumps(settings))
    user = {"name": "u", "user": {"token": "t"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [user]}
    config["clusters"] = [{"name": "k", "cluster": {"server": url}}]
    config["contexts"] = [{"name": "c", "context": {"cluster": "k", "user": "u"}}]
    (folder / "kubeconfig").write_text(json.dumps(config))
    words = ["serve", f"--config={folder / 'settings.yaml'}", f"--kubeconfig={folder / 'kubeconfig'}", f"--port={port}"]
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "extender", *words], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            _until_ready(http, server, began, folder / "log")
            seconds, cpu, loaded = time.monotonic() - began, cpu_of(server.pid), _memory(server.pid, "VmRSS")
            _ask(http, size[0], calls)
            after, peak = _memory(server.pid, "VmRSS"), _memory(server.pid, "VmHWM")
        sent = httpx.get(f"{url}/sent", trust_env=False).json()["bytes"] / 2e6  # the floor has read it, too
        return Row(*size, sent, seconds, cpu, floor, loaded, after, peak)
    finally:
        server.kill()
        server.wait()


def read_and_split(url: str) -> float:
    """The CPU seconds in which a plain socket reads every page of nodes and pods, split into objects."""
    connection, decoder = Connection(int(url.rpartition(":")[2])), msgspec.json.Decoder(schema.List)
    began = time.process_time()
    for watched in (NODES, PODS):
        token = ""
        while True:
            query = {"limit": watched.limit, "fieldSelector": watched.field_selector, "continue": token}
            page = decoder.decode(connection.send(request("GET", f"{watched.path}?{urlencode(query)}")).body)
            token = (page.metadata.continue_ if page.metadata else "") or ""
            if not token:
                break
    return time.process_time() - began


def _until_ready(http: httpx.Client, server: subprocess.Popen[bytes], began: float, log: Path) -> None:
    while True:
        try:
            if http.get("/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if server.poll() is not None or time.monotonic() - began > READY_SECONDS:
            raise SystemExit(f"the server is not ready:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _ask(http: httpx.Client, nodes: int, calls: int) -> None:
    names = [f"gpu-worker-{index:05d}" for index in range(nodes)]
    for call in range(calls):
        made = builders.pod(f"asks-{call}", "team-b", 1 + call % 2)
        made["metadata"]["uid"] = f"asks-{call}"
        body = json.dumps({"Pod": made, "Nodes": None, "NodeNames": names})
        for verb in ("filter", "prioritize"):
            http.post(f"/v1/{verb}", content=body).raise_for_status()


def _memory(pid: int, what: str) -> float:
    """MiB, of Linux' /proc."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {what} in /proc/{pid}/status")


def table(rows: Sequence[Row]) -> str:
    """As the README has it."""
    head = (
        "nodes",
        "pods",
        "listed MB",
        "seconds",
        "CPU s",
        "floor",
        "ratio",
        "RSS MiB",
        "after calls",
        "peak",
        "limit",
    )
    lines = ["| " + " | ".join(head) + " |", "|--:" * len(head) + "|"]
    for row in rows:
        sizes = [f"{row.nodes:,}", f"{row.pods:,}", f"{row.listed_mb:,.0f}"]
        sizes += [f"{row.seconds:.1f}", f"{row.cpu:.1f}", f"{row.floor:.1f}", f"{row.cpu / row.floor:.1f}"]
        sizes += [f"{value:,.0f}" for value in (row.rss, row.rss_after_calls, row.peak, row.limit)]
        lines.append("| " + " | ".join(sizes) + " |")
    return "\n".join(lines)


def targets(rows: Sequence[Row], churned: Mapping[str, float] | None) -> list[Line]:
    """The lines of the largest size, and of the churn."""
    lines = []
    for row in rows:
        if (row.nodes, row.pods) == (15_000, 150_000):
            peak, seconds = row.peak * MIB / 1e6, row.seconds
            lines.append(at_most("peak RSS at 15,000 nodes, MB", "<= 600", Spread(peak, peak, peak), 600.0, 0))
            lines.append(at_most("time to Ready there, s", "<= 30", Spread(seconds, seconds, seconds), 30.0, 1))
    if churned is not None:
        growth = 100 * churned["growth"]
        measure = f"memory growth after a churn of {churned['pods']:,.0f} pods, %"
        lines.append(at_most(measure, "<= 5", Spread(growth, growth, growth), 5.0, 1))
    return lines


def churn(pods: int) -> dict[str, float]:
    """What `tests.churn` prints."""
    words = [sys.executable, "-m", "tests.churn", str(pods)]
    found: dict[str, float] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="NODES/PODS")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--churn", type=int, default=50_000, metavar="PODS", help="0: leave the churn out")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--serve", metavar="NODES/PODS", help=argparse.SUPPRESS)
    parser.add_argument("--floor", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        nodes, _, pods = args.serve.partition("/")
        asyncio.run(serve(int(nodes), int(pods)))
        return 0
    if args.floor:
        print(read_and_split(args.floor))
        return 0
    rows = []
    for size in args.sizes:
        nodes, _, pods = size.partition("/")
        rows.append(measure(int(nodes), int(pods), args.calls))
        print(f"{size}: {rows[-1].rss_after_calls:.0f} MiB, {rows[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    lines = targets(rows, churn(args.churn) if args.churn else None)
    if args.output == "json":
        found = [asdict(row) | {"limit": row.limit} for row in rows]
        kind = {"apiVersion": "gpu-extender.io/v1", "kind": "MemoryBenchmark", "warnings": []}
        print(json.dumps({**kind, "rows": found, "targets": [one._asdict() for one in lines]}, indent=1))
    else:
        print(f"{table(rows)}\n\n{targets_table(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
