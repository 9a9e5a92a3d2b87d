"""The released controllers of JobSet and LeaderWorkerSet, with their own CRDs and webhooks, beside a control plane.

They are built once, as the control plane is: `gangcontrollers/go.mod` names the releases.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.e2e.api import Api, Object
from tests.e2e.build import cache_root, module_hash, once
from tests.e2e.cluster import ControlPlane
from tests.e2e.process import Component, free_port, wait_until_listening
from tests.waiting import wait_for

MODULE = Path(__file__).parent / "gangcontrollers"
GO = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}


@dataclass(frozen=True)
class Controller:
    """One of them. `module`, `package`: in Go; `crd`, `webhooks`: paths in the module; `config`: the API group of its
    configuration."""

    kind: str
    module: str
    package: str
    crd: str
    webhooks: str
    config: str


JOBSET = Controller(
    "JobSet", "sigs.k8s.io/jobset", "sigs.k8s.io/jobset",
    "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", "config/components/webhook/manifests.yaml",
    "config.jobset.x-k8s.io",
)  # fmt: skip
LWS = Controller(
    "LeaderWorkerSet", "sigs.k8s.io/lws", "sigs.k8s.io/lws/cmd",
    "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml", "config/webhook/manifests.yaml",
    "config.lws.x-k8s.io",
)  # fmt: skip


def build(say: Callable[[str], None] = print) -> Path:
    """The folder with a program and `KIND.json` (its CRD and webhooks) for each; compiled when it is not there yet.
    Raises ControlPlaneUnavailable with a reason for people."""

    def make(go: str, home: Path) -> None:
        home.mkdir()
        for one in (JOBSET, LWS):
            say(f"building the controller of {one.kind} (about 10 minutes the first time)")
            _build_one(go, one, home)

    home = cache_root() / "gangcontrollers" / module_hash("go.mod", MODULE)
    return once(home, "the controllers of JobSet and LeaderWorkerSet", say, make)


def _build_one(go: str, one: Controller, made: Path) -> None:
    def run(*argv: str) -> str:
        return subprocess.run(
            [go, *argv], cwd=MODULE, check=True, capture_output=True, text=True, env={**os.environ, **GO},
            preexec_fn=lambda: os.nice(10) and None,
        ).stdout  # fmt: skip

    program = str(made / one.kind)
    run("build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, one.package)
    source = Path(run("list", "-m", "-f", "{{.Dir}}", one.module).strip())
    yaml = YAML(typ="safe", pure=True)
    objects = [found for path in (one.crd, one.webhooks) for found in yaml.load_all((source / path).read_text())]
    (made / f"{one.kind}.json").write_text(json.dumps(objects))


@contextlib.contextmanager
def running(control_plane: ControlPlane, binaries: Path, one: Controller) -> Iterator[Component]:
    """Its CRD, its webhooks and the controller itself; taken away in the end, with the objects of its kind."""
    api, folder = control_plane.api, Path(tempfile.mkdtemp(dir=control_plane.folder))
    port, health = free_port(), free_port()
    # The webhooks are served with the API server's own certificate: it is for 127.0.0.1, and it signs itself.
    for name, file in (("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
        shutil.copy(control_plane.ca.parent / file, folder / name)
    config = {
        "apiVersion": f"{one.config}/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    objects = json.loads((binaries / f"{one.kind}.json").read_text())
    process = Component(
        one.kind, [str(binaries / one.kind), f"--config={folder / 'config.json'}"],
        control_plane.logs / f"{one.kind}-{health}.log", control_plane.reaper,
        env={"KUBECONFIG": str(control_plane.kubeconfig()), "NO_PROXY": "127.0.0.1,localhost"},
    )  # fmt: skip
    authority = base64.b64encode(control_plane.ca.read_bytes()).decode()
    applied: list[Object] = []
    try:
        for made in objects:
            _own(made, one, f"https://127.0.0.1:{port}", authority)
            if made["kind"] == "CustomResourceDefinition":
                applied.append(api.create(made))
        wait_for(lambda: _served(api, one.kind), 60, f"{one.kind} is served")
        process.start()
        wait_until_listening(process, port, 60)
        applied += [api.create(made) for made in objects if made["kind"] != "CustomResourceDefinition"]
        yield process
    finally:
        _remove(api, one, applied)
        process.kill()


def _own(made: Any, one: Controller, url: str, authority: str) -> None:
    """The object as this cluster needs it: no Service is in front of the webhooks."""
    if made["kind"] == "CustomResourceDefinition":
        made["spec"].pop("conversion", None)
        return
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


def _remove(api: Api, one: Controller, applied: list[Object]) -> None:
    """Objects first, while their controller can end them."""
    if applied:
        for namespace in {item["metadata"]["namespace"] for item in api.list(one.kind)}:
            api.delete_all(one.kind, namespace)
        wait_for(lambda: not api.list(one.kind), 60, f"no {one.kind} is left")
    for made in reversed(applied):
        api.delete(made["kind"], made["metadata"]["name"])
    wait_for(lambda: not _served(api, one.kind), 60, f"{one.kind} is served no more")
