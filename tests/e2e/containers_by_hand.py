"""Containers of a pod, started without a kubelet: their own arguments, account, environment and mounts.

Namespaces (`unshare`) give each container what its pod template states: a read-only root, the files of its ConfigMaps,
an empty folder for an emptyDir, the token of its account where every client looks for it, and the pod's name as host
name. No capability is left. The programs are those of the tests, not of an image. So is the user who runs them, except
where the pod mounts files of the host: these may belong to the pod's user, which then runs the container.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.e2e.api import Object, Objects, path_of
from tests.e2e.cluster import ControlPlane
from tests.e2e.process import Component
from tests.installed import ROOT
from tests.needs import lacking

SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"
FILES = ("File", "FileOrCreate")
_LOCKED = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_ISOLATED = ("unshare", "--mount", "--uts", "--propagation", "private", "--")


def impossible() -> str:
    """Why this machine allows no mount namespace; empty if it does."""
    tried = "mount -t tmpfs tmpfs /run && mount -o bind,remount,ro /"
    try:
        done = subprocess.run([*_ISOLATED, "sh", "-c", tried], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def needed() -> None:
    """Ends the test where this machine allows no mount namespace."""
    if reason := impossible():
        lacking(f"no mount namespace, which needs root or user namespaces: {reason}")


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
    programs = {Path(sys.base_prefix), Path(sys.prefix), ROOT, control_plane.binaries}
    of_host, inside, bound = [], [], []
    for number, mount in enumerate(container["volumeMounts"]):
        at, volume = mount["mountPath"], volumes[mount["name"]]
        of_host += _of_host(mount["name"], volume)
        _stage(stage / mount["name"], volume, objects)
        target = f"/run{at}" if at.startswith("/etc/") else at
        if volume.get("hostPath", {}).get("type") in FILES:
            inside.append(f"mkdir -p $(dirname {target}) && touch {target}")
        else:
            inside.append(f"mkdir -p {target}")
        flag = "ro" if mount.get("readOnly") else "rw"
        keep, restored = kept(number, Path(at), f"/run/stage/{mount['name']}", programs)
        inside += keep
        bound.append(f"mount --bind /run/stage/{mount['name']} {at} && mount -o bind,remount,{flag} {at}")
        bound += restored
    if "serviceAccountName" in pod["spec"]:
        _write(stage / "account", _account(control_plane, pod))
        bound.append(f"mkdir -p {SECRETS} && mount --bind /run/stage/account {SECRETS}")
    name = pod["metadata"]["name"]
    user = pod["spec"].get("securityContext", {}).get("runAsUser") if of_host else None
    steps = [
        f"hostname {shlex.quote(name)}",
        "mount -t tmpfs tmpfs /run",
        f"cp -a {shlex.quote(str(stage))} /run/stage",
        *of_host,
        *([] if user is None else _opened(programs)),
        "cp -a /etc /run/etc && rm -rf /run/etc/kubernetes",
        *inside,
        "mount --bind /run/etc /etc",
        *bound,
        "mount -o bind,remount,ro /etc",
        "mount -o bind,remount,ro /",
        f'exec {shlex.join([*_LOCKED, *_as(user), "--"])} "$@"',
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


def _as(user: int | None) -> list[str]:
    return [] if user is None else [f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def kept(number: int, at: Path, source: str, programs: set[Path]) -> tuple[list[str], list[str]]:
    """The steps before and after `source` is mounted at `at`, by which the programs below `at` stay where they are. An
    image has them elsewhere; here the clone may lie in a folder that the pod mounts."""
    below = sorted(path for path in programs if path.is_relative_to(at))
    if at in below:
        raise ValueError(f"the pod mounts {at}, which is a folder of the programs: clone into another folder")
    before, after = [], []
    for place, path in enumerate(path for path in below if not programs & set(path.parents)):
        kept = f"/run/kept-{number}-{place}"
        target = f"{source}/{path.relative_to(at)}"
        before.append(
            shlex.join(["mkdir", "-p", kept, target]) + " && " + shlex.join(["mount", "--bind", str(path), kept])
        )
        after.append(shlex.join(["mount", "--bind", kept, str(path)]))
    return before, after


def _opened(programs: set[Path]) -> list[str]:
    """The steps that let every user reach the programs, which may be in a home that is closed."""
    closed = {path: _closed(path) for path in sorted(programs)}
    steps = []
    for number, folder in enumerate(sorted({folder for folder in closed.values() if folder is not None})):
        kept = f"/run/closed-{number}"
        steps.append(f"mkdir {kept} && mount --bind {folder} {kept} && mount -t tmpfs -o mode=755 tmpfs {folder}")
        for path in [path for path, one in closed.items() if one == folder]:
            steps.append(f"mkdir -p {path} && mount --bind {kept}/{path.relative_to(folder)} {path}")
    return steps


def _closed(path: Path) -> Path | None:
    """The first folder on the way to a path that only its owner may pass."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)


def probe(container: Object, which: str, enter: Sequence[str] = (), seconds: float = 30) -> bool:
    """Whether a probe of the container succeeds: a command, or a GET as kubelet makes it, which checks no certificate.
    `enter`: as of `start`; `seconds`: for the answer."""
    if "httpGet" in container[which]:
        asked = container[which]["httpGet"]
        port = {one.get("name"): one["containerPort"] for one in container.get("ports", ())}.get(
            asked["port"], asked["port"]
        )
        url = f"{asked.get('scheme', 'HTTP').lower()}://127.0.0.1:{port}{asked['path']}"
        if enter:
            return _passes([*enter, "curl", "--insecure", "--fail", "--noproxy", "*", url], seconds)
        try:
            return httpx.get(url, verify=False, trust_env=False, timeout=seconds).is_success
        except httpx.HTTPError:
            return False
    return _passes([*enter, *container[which]["exec"]["command"]], seconds)


def _passes(command: Sequence[str], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, check=False, timeout=seconds).returncode == 0
    return False


def _of_host(name: str, volume: Object) -> list[str]:
    """The steps that keep a path of the host in /run/stage, before the container's own /etc covers it."""
    if "hostPath" not in volume:
        return []
    source, kind = shlex.quote(volume["hostPath"]["path"]), volume["hostPath"]["type"]
    target = f"/run/stage/{name}"
    make = {"File": "touch {1}", "FileOrCreate": "touch {0} {1}", "Directory": "mkdir {1}"}[kind]
    return [make.format(source, target), f"mount --bind {source} {target}"]


def _stage(folder: Path, volume: Object, objects: Objects) -> None:
    """The files of a volume that the host does not have."""
    if "configMap" in volume:
        _write(folder, _data(objects, "ConfigMap", volume["configMap"]["name"]))
    elif "secret" in volume:
        _write(folder, _data(objects, "Secret", volume["secret"]["secretName"]))
    elif "hostPath" not in volume:
        folder.mkdir()
        folder.chmod(0o777)  # as kubelet makes an emptyDir


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
