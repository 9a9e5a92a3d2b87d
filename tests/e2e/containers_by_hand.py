"""Containers of a pod, started without a kubelet: their own arguments, account, environment and mounts.

Namespaces (`unshare`) give each container what its pod template states: a read-only root, the files of its ConfigMaps,
an empty folder for an emptyDir, the token of its account where every client looks for it, and the pod's name as host
name. No capability is left. The programs are those of the tests, not of an image; so is the user who runs them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.e2e.api import Object, Objects, path_of
from tests.e2e.cluster import ControlPlane
from tests.e2e.process import Component

SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"
_LOCKED = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--")
_ISOLATED = ("unshare", "--mount", "--uts", "--propagation", "private", "--")


def impossible() -> str:
    """Why this machine allows no mount namespace; empty if it does."""
    tried = "mount -t tmpfs tmpfs /run && mount -o bind,remount,ro /"
    try:
        done = subprocess.run([*_ISOLATED, "sh", "-c", tried], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def start(
    control_plane: ControlPlane,
    pod: Object,
    container: Object,
    objects: Objects,
    folder: Path,
    enter: Sequence[str] = (),
) -> Component:
    """The container of `pod` (a Pod) in a process of its own; `objects` has the ConfigMaps and Secrets that it mounts.
    `enter`: the words before the command that lead into the pod's network."""
    stage = folder / container["name"]
    stage.mkdir(parents=True)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = ["cp -a /etc /run/etc"]
    bound = []
    for mount in container["volumeMounts"]:
        at, volume = mount["mountPath"], volumes[mount["name"]]
        if "configMap" in volume:
            _write(stage / mount["name"], _data(objects, "ConfigMap", volume["configMap"]["name"]))
        elif "secret" in volume:
            _write(stage / mount["name"], _data(objects, "Secret", volume["secret"]["secretName"]))
        else:
            (stage / mount["name"]).mkdir()
        inside = f"/run{at}" if at.startswith("/etc/") else at
        mounts.append(f"mkdir -p {inside}")
        flag = "ro" if mount.get("readOnly") else "rw"
        source = f"/run/stage/{mount['name']}"
        bound.append(f"mount --bind {source} {at} && mount -o bind,remount,{flag} {at}")
    _write(stage / "account", _account(control_plane, pod))
    name = pod["metadata"]["name"]
    steps = [
        f"hostname {shlex.quote(name)}",
        "mount -t tmpfs tmpfs /run",
        f"cp -a {shlex.quote(str(stage))} /run/stage",
        *mounts,
        "mount --bind /run/etc /etc",
        f"mkdir -p {SECRETS}",
        f"mount --bind /run/stage/account {SECRETS}",
        *bound,
        "mount -o bind,remount,ro /etc",
        "mount -o bind,remount,ro /",
        f'exec {shlex.join(_LOCKED)} "$@"',
    ]
    address = urlsplit(control_plane.url)
    own = Path(sys.executable).parent
    return Component(
        container["name"],
        [*enter, *_ISOLATED, "sh", "-c", " && ".join(steps), "sh", *container["command"], *container.get("args", [])],
        control_plane.logs / f"{name}-{container['name']}.log",
        control_plane.reaper,
        env={
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "PATH": f"{own}:{control_plane.binaries}:{os.environ['PATH']}",
        },
    )


def probe(container: Object, which: str, enter: Sequence[str] = ()) -> bool:
    """Whether a probe of the container succeeds: a command, or a GET as kubelet makes it, who checks no certificate.
    `enter`: as of `start`, for a command."""
    if "httpGet" in container[which]:
        asked = container[which]["httpGet"]
        url = f"{asked.get('scheme', 'HTTP').lower()}://127.0.0.1:{asked['port']}{asked['path']}"
        try:
            return httpx.get(url, verify=False, trust_env=False, timeout=30).is_success
        except httpx.HTTPError:
            return False
    command = [*enter, *container[which]["exec"]["command"]]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def _data(objects: Objects, kind: str, name: str) -> dict[str, str]:
    [made] = [made for made in objects if made["kind"] == kind and made["metadata"]["name"] == name]
    return dict(made.get("stringData", {}) | made.get("data", {}))


def _account(control_plane: ControlPlane, pod: Object) -> dict[str, str]:
    namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = control_plane.api.request("POST", path_of("ServiceAccount", account, namespace, "token"), body)
    return {"token": answer["status"]["token"], "ca.crt": control_plane.ca.read_text(), "namespace": namespace}


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
