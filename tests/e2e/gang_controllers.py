"""The released controllers of JobSet, LeaderWorkerSet, Ray and TrainJob, with their own CRDs and webhooks, beside a
control plane; and the CRDs of Volcano, by controller-gen from its released types.

They are built once, as the control plane is: `gangcontrollers/go.mod` names the releases. No CRD is kept here.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extender.kube.client import ApiError
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.build import cache_root, module_hash, once
from tests.e2e.cluster import ControlPlane
from tests.e2e.process import Component, free_port, wait_until_listening
from tests.waiting import wait_for

MODULE = Path(__file__).parent / "gangcontrollers"
GO = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
CRD = "CustomResourceDefinition"
VOLCANO = "Volcano"
VOLCANO_TYPES = ("batch/v1alpha1", "scheduling/v1beta1")
CERTIFICATES = Path("k8s-webhook-server") / "serving-certs"
"""Where controller-runtime looks for them, in the folder for temporary files."""


@dataclass(frozen=True)
class Controller:
    """One of them. `module`, `package`: in Go; `crds`, `webhooks`: files of the module; `config`: the API group of its
    configuration; without one `flags`, in which {health} and {webhooks} stand for ports; `secret`: the namespace and
    name of the Secret in which it keeps its certificate."""

    kind: str
    module: str
    package: str
    crds: tuple[str, ...]
    webhooks: str = ""
    config: str = ""
    flags: tuple[str, ...] = ()
    secret: tuple[str, str] | None = None


JOBSET = Controller(
    "JobSet", "sigs.k8s.io/jobset", "sigs.k8s.io/jobset",
    ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",), "config/components/webhook/manifests.yaml",
    "config.jobset.x-k8s.io",
)  # fmt: skip
LWS = Controller(
    "LeaderWorkerSet", "sigs.k8s.io/lws", "sigs.k8s.io/lws/cmd",
    ("config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",), "config/webhook/manifests.yaml",
    "config.lws.x-k8s.io",
)  # fmt: skip
RAY = Controller(
    "RayCluster", "github.com/ray-project/kuberay/ray-operator", "github.com/ray-project/kuberay/ray-operator",
    tuple(f"config/crd/bases/ray.io_{kinds}.yaml" for kinds in ("rayclusters", "rayjobs", "rayservices")),
    flags=("--enable-leader-election=false", "--metrics-addr=0", "--health-probe-bind-address=127.0.0.1:{health}"),
)  # fmt: skip
# Its webhooks, which only validate, are left out: their certificate is for a Service.
TRAINER = Controller(
    "TrainJob", "github.com/kubeflow/trainer/v2", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    tuple(f"manifests/base/crds/trainer.kubeflow.org_{kinds}.yaml"
          for kinds in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")),
    flags=("--health-probe-bind-address=127.0.0.1:{health}", "--webhook-server-port={webhooks}"),
    secret=("kubeflow-system", "kubeflow-trainer-webhook-cert"),
)  # fmt: skip


def build(say: Callable[[str], None] = print) -> Path:
    """The folder with a program and `KIND.json` (its CRDs and webhooks) for each, and Volcano's CRDs; compiled when it
    is not there yet. Raises ControlPlaneUnavailable with a reason for people."""

    def make(go: str, home: Path) -> None:
        home.mkdir()
        for one in (JOBSET, LWS, RAY, TRAINER):
            say(f"building the controller of {one.kind} (about 3 minutes for all of them)")
            _build_one(go, one, home)
        _define_volcano(go, home)

    home = cache_root() / "gangcontrollers" / module_hash("go.mod", MODULE)
    return once(home, "the controllers of JobSet, LeaderWorkerSet, Ray and TrainJob", say, make)


def _run(go: str, *argv: str, program: Path | None = None) -> str:
    """Of go, or of a program that calls go."""
    path = f"{Path(go).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [program or go, *argv], cwd=MODULE, check=True, capture_output=True, text=True,
        env={**os.environ, **GO, "PATH": path}, preexec_fn=lambda: os.nice(10) and None,
    ).stdout  # fmt: skip


def _compile(go: str, package: str, program: Path) -> None:
    _run(go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(program), package)


def _build_one(go: str, one: Controller, made: Path) -> None:
    _compile(go, one.package, made / one.kind)
    source = Path(_run(go, "list", "-m", "-f", "{{.Dir}}", one.module).strip())
    paths = [*one.crds, one.webhooks] if one.webhooks else one.crds
    _keep(made, one.kind, [source / path for path in paths])


def _keep(made: Path, name: str, files: Iterable[Path]) -> None:
    objects = [found for file in files for found in yaml.load_all(file.read_bytes(), yaml.CSafeLoader) if found]
    (made / f"{name}.json").write_text(json.dumps(objects))


def _define_volcano(go: str, made: Path) -> None:
    types = [f"paths=volcano.sh/apis/pkg/apis/{types}" for types in VOLCANO_TYPES]
    with tempfile.TemporaryDirectory() as folder:
        generator = Path(folder) / "controller-gen"  # `go tool` would compile all anew, with other flags
        _compile(go, "sigs.k8s.io/controller-tools/cmd/controller-gen", generator)
        _run(go, "crd:generateEmbeddedObjectMeta=true", *types, f"output:crd:dir={folder}", program=generator)
        _keep(made, VOLCANO, sorted(Path(folder).glob("*.yaml")))


@contextlib.contextmanager
def defined(api: Api, crds: Sequence[Object]) -> Iterator[None]:
    """The API server serves these definitions; in the end it forgets them and their objects, which takes it seconds."""
    names = [crd["metadata"]["name"] for crd in crds]
    wait_for(lambda: not any(api.find(CRD, name) for name in names), 120, f"{names} of a test before are gone")
    api.create_many(crds)
    wait_for(lambda: all(_established(api, name) for name in names), 60, f"{names} are served")
    try:
        yield
    finally:
        for crd in reversed(crds):  # an object may not end before those that refer to it
            _remove_objects(api, crd)
            api.delete(CRD, crd["metadata"]["name"])


def _remove_objects(api: Api, crd: Object) -> None:
    """While their controller can end them."""
    spec = crd["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    path = f"/apis/{spec['group']}/{version}"

    def none() -> bool:
        try:
            items = api.request("GET", f"{path}/{spec['names']['plural']}")["items"]
        except ApiError as error:
            if error.status != 429:  # the API server prepares the storage of a new kind
                raise
            return False
        for namespace in {item["metadata"].get("namespace", "") for item in items}:
            inside = f"/namespaces/{namespace}" if namespace else ""
            api.request("DELETE", f"{path}{inside}/{spec['names']['plural']}")
        return not items

    wait_for(none, 60, f"no {spec['names']['kind']} is left")


def _established(api: Api, name: str) -> bool:
    conditions = api.get(CRD, name)["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)


def read(binaries: Path, name: str, *, crds: bool) -> list[Object]:
    """The CRDs of a kind, or its webhooks. `name`: of a Controller's kind, or VOLCANO. Each further version of Ray's
    takes the API server seconds: the one that is stored is enough."""
    objects = json.loads((binaries / f"{name}.json").read_text())
    chosen = [made for made in objects if (made["kind"] == CRD) == crds]
    for crd in chosen if crds else ():
        crd["spec"]["versions"] = [version for version in crd["spec"]["versions"] if version["storage"]]
    return chosen


@contextlib.contextmanager
def running(control_plane: ControlPlane, binaries: Path, one: Controller) -> Iterator[Component]:
    """Its CRDs, its webhooks and the controller itself; taken away in the end, with the objects of its kind."""
    api, folder = control_plane.api, Path(tempfile.mkdtemp(dir=control_plane.folder))
    port, health = free_port(), free_port()
    certificates = folder / CERTIFICATES
    certificates.mkdir(parents=True)
    # The webhooks are served with the API server's own certificate: it is for 127.0.0.1, and it signs itself.
    for name, file in (("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
        shutil.copy(control_plane.ca.parent / file, certificates / name)
    process = Component(
        one.kind, [str(binaries / one.kind), *_arguments(one, folder, port, health)],
        control_plane.logs / f"{one.kind}-{health}.log", control_plane.reaper,
        env={
            "KUBECONFIG": str(control_plane.kubeconfig()), "NO_PROXY": "127.0.0.1,localhost", "TMPDIR": str(folder),
        },
    )  # fmt: skip
    authority = base64.b64encode(control_plane.ca.read_bytes()).decode()
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        stack.enter_context(defined(api, read(binaries, one.kind, crds=True)))
        wait_for(lambda: _served(api, one.kind), 60, f"{one.kind} is served")
        if one.secret:
            _certified(api, *one.secret)
        process.start()
        wait_until_listening(process, port if one.webhooks or one.secret else health, 60)
        for made in read(binaries, one.kind, crds=False):
            _own(made, one, f"https://127.0.0.1:{port}", authority)
            stack.callback(api.delete, made["kind"], api.create(made)["metadata"]["name"])
        yield process


def _arguments(one: Controller, folder: Path, port: int, health: int) -> list[str]:
    if not one.config:
        return [flag.format(webhooks=port, health=health) for flag in one.flags]
    config = {
        "apiVersion": f"{one.config}/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder / CERTIFICATES)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return [f"--config={folder / 'config.json'}"]


def _certified(api: Api, namespace: str, name: str) -> None:
    """What a controller that makes its certificate itself waits for: the Secret, and a file where it is mounted, by a
    path in its code."""
    wait_for(lambda: api.find("Namespace", namespace) is None, 120, "the namespace of a test before is gone")
    api.create(builders.namespace(namespace))
    api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}})
    mounted = Path("/tmp") / CERTIFICATES
    mounted.mkdir(parents=True, exist_ok=True)
    (mounted / "tls.crt").touch()


def _own(made: Any, one: Controller, url: str, authority: str) -> None:
    """The object as this cluster needs it: no Service is in front of the webhooks."""
    made["metadata"]["name"] = f"{one.kind.lower()}-{made['kind'].lower()}"
    for hook in made["webhooks"]:
        hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": authority}
        if "pods" in hook["rules"][0]["resources"]:
            # As in its own kustomization: pods that are not its own do not wait for it.
            label = {"JobSet": "jobset.sigs.k8s.io/jobset-name", "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name"}
            hook["objectSelector"] = {"matchExpressions": [{"key": label[one.kind], "operator": "Exists"}]}


def _served(api: Api, kind: str) -> bool:
    with contextlib.suppress(Exception):
        api.list(kind)
        return True
    return False
