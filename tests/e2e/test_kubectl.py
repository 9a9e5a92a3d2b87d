"""`kubectl gpu-extender` under the real kubectl, against the real API server, through real forwarded ports.

Two replicas: the scheduler asks one, as the Lease that client-go would write states; the other one holds the Lease of
the queue by itself. The account has the rights of manifests/reader.yaml, and may read pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from extender.cli.kubectl import OFFERED, SWITCHES, VALUES
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.build import build_kubectl
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import ExtenderFactory, KubeletsFactory, SchedulerFactory
from tests.e2e.queueing import SYSTEM
from tests.e2e.replicas import installed, on_path, replicas
from tests.e2e.scene import scheduler_config
from tests.needs import lacking
from tests.waiting import wait_for

ASKED, LEADER = "gpu-scheduler-7d4b9-x2x2x", "gpu-scheduler-7d4b9-a1a1a"
SILENT = 9999
SETTINGS = {
    "reservations": {"namespace": SYSTEM},
    "queue": {"enabled": True},
}
GATE = "gpu-extender.io/queue"


class Called(NamedTuple):
    """`kubectl`: the program; `run`: calls it with words."""

    kubectl: Path
    env: dict[str, str]

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.kubectl), *words], env=self.env | env, capture_output=True, text=True, check=False, timeout=120
        )

    def answer(self, *words: str, **env: str) -> Any:
        """What a command of the plugin prints with -o json."""
        done = self.run("gpu-extender", *words, "-o", "json", **env)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    def children(self) -> list[str]:
        """The command lines of the kubectl processes that run."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "exe") == str(self.kubectl):
                    found.append((entry / "cmdline").read_text())
        return found


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A listener that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


@pytest.fixture
def called(
    api: Api,
    namespace: str,
    control_plane: ControlPlane,
    kubelets: KubeletsFactory,
    extender_process: ExtenderFactory,
    scheduler: SchedulerFactory,
    silent: socket.socket,
    tmp_path: Path,
) -> Iterator[Called]:
    """kubectl with the account of a reader. n1 has eight GPUs; the scheduler asks ASKED, the queue is LEADER's."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", socket.gethostname()):
        lacking("the name of this machine cannot be the host name of a pod, which is in the queue's Lease")
    binaries = build_kubectl()
    kubelets().add_node("n1", topology="dgx-h100")
    installed(api)
    first = extender_process(SETTINGS)
    second = extender_process(SETTINGS | {"queue": {"enabled": False}})
    pods = {
        ASKED: ("asked", f"127.0.0.1:{second.port}"),
        LEADER: (socket.gethostname(), f"127.0.0.1:{first.port}"),
    }
    ports = {f"{SYSTEM}/{ASKED}:{SILENT}": f"127.0.0.1:{silent.getsockname()[1]}"}
    with replicas(control_plane, binaries, pods, ports):
        api.create(lease("gpu-scheduler", "asked_1f6e5a4c-6f1c-4a7e-9d7e-0d8d6a0f9b3e"))
        scheduler(scheduler_config(second.url, bind=True))
        wait_for(lambda: holder(api, "gpu-extender-queue"), 60, "the Lease of the queue is held")
        folder = tmp_path / "bin"
        folder.mkdir()
        env = {"PATH": on_path(folder, binaries), "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        yield Called(folder / "kubectl", env | {"KUBECONFIG": str(account(control_plane))})


def lease(name: str, holder: str) -> dict[str, Any]:
    """As client-go's leader election writes it."""
    meta = {"name": name, "namespace": SYSTEM}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 1}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def holder(api: Api, name: str) -> str:
    """Who holds the Lease; "" for none."""
    held = api.find("Lease", name, SYSTEM) or {}
    return str(held.get("spec", {}).get("holderIdentity") or "")


def account(control_plane: ControlPlane) -> Path:
    """The kubeconfig of an account with the rights of the manifest, which may also read pods and nodes."""
    api, rbac = control_plane.api, "rbac.authorization.k8s.io"
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user", "namespace": SYSTEM}})
    subjects = [{"kind": "ServiceAccount", "name": "user", "namespace": SYSTEM}]
    for kind, role, of in (
        ("RoleBinding", "gpu-extender-reader", "Role"),
        ("ClusterRoleBinding", "view", "ClusterRole"),
    ):
        meta = {"name": f"user-{role}", **({"namespace": SYSTEM} if of == "Role" else {})}
        if api.find(kind, meta["name"], meta.get("namespace")) is None:
            api.create({
                "apiVersion": f"{rbac}/v1", "kind": kind, "metadata": meta, "subjects": subjects,
                "roleRef": {"apiGroup": rbac, "kind": of, "name": role},
            })  # fmt: skip
    return control_plane.kubeconfig_of_account(SYSTEM, "user")


def until(look: Callable[[], Any], passes: Callable[[Any], bool]) -> Any:
    """The first answer that passes: the watch of a server may be behind, so that it knows no such pod yet."""
    said: list[Any] = []

    def once() -> Any:
        said[:] = [None]
        try:
            said[0] = look()
        except AssertionError as error:
            said[0] = error
            return None
        return said[0] if passes(said[0]) else None

    return wait_for(once, 60, lambda: said)


def test_every_command_asks_the_replica_that_has_the_answer(called: Called, api: Api, namespace: str) -> None:
    api.create(builders.pod("train", namespace, 4))
    shown = until(lambda: called.answer("explain", "train", "-n", namespace), lambda shown: shown["verdict"] == "runs")
    assert (shown["node"], len(shown["gpus"])) == ("n1", 4)
    assert "filter" in [one["verb"] for one in shown["decisions"]]  # by the replica that the scheduler asks
    done = called.run("gpu-extender", "explain", f"{namespace}/train", "-o", "yaml")
    assert yaml.safe_load(done.stdout)["sentence"] == shown["sentence"]
    [kept] = [one for one in called.answer("decisions", f"{namespace}/train")["decisions"] if one["verb"] == "bind"]
    assert kept["pod"]["name"] == "train"
    assert [node["free"] for node in called.answer("map", "n1")["nodes"]] == [4]
    assert called.answer("top")["models"][0]["free_gpus"] == 4
    assert called.answer("capacity")["largest"][0]["gpus"] == 4
    (asked := called.kubectl.parent / "pod.json").write_text(json.dumps(builders.pod("later", namespace, 2)))
    [placed] = called.answer("whatif", "-f", str(asked))["results"]
    assert (placed["verdict"], placed["node"]) == ("fits", "n1")
    queue = called.answer("queue")
    assert (queue["warnings"], queue["waiting"]) == ([], [])  # by the replica that holds the queue's Lease
    text = called.run("gpu-extender", "explain", "train", f"--namespace={namespace}")
    assert text.stdout.startswith(f"{namespace}/train runs on n1, GPUs ")
    _health_of_all_replicas(called)
    assert called.children() == []


def _health_of_all_replicas(called: Called) -> None:
    """With the rights of a reader. The two have different settings here, which is the one thing that is not well."""
    done = called.run("gpu-extender", "check", "--live", "-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    shown = json.loads(done.stdout)
    replicas = [(one["name"], one["reachable"], one["ready"], one["degraded"]) for one in shown["replicas"]]
    assert replicas == [(LEADER, True, True, []), (ASKED, True, True, [])]
    assert {one["name"]: bool(one["holder"]) for one in shown["leases"]} == {
        "gpu-scheduler": True, "gpu-extender-queue": True, "gpu-extender-evictions": False,
    }  # fmt: skip
    assert [one["problem"] for one in shown["leases"]] == [None] * 3
    assert [one["code"] for one in shown["warnings"]] == ["settings-differ"]
    text = called.run("gpu-extender", "check", "--live").stdout
    assert f"{ASKED}: ready, version" in text
    refused = called.run("gpu-extender", "check")
    assert refused.returncode == 1
    assert "give --live" in refused.stderr


def test_a_pod_behind_the_gate_is_explained_by_the_holder_of_the_queue(
    called: Called, api: Api, namespace: str
) -> None:
    api.create(builders.pod("wide", namespace, 9, schedulingGates=[{"name": GATE}]))
    shown = until(lambda: called.answer("explain", "wide", "-n", namespace), lambda shown: shown["queue"] is not None)
    assert (shown["warnings"], shown["queue"]["gang"]) == ([], f"{namespace}/wide")
    assert [one["gang"] for one in called.answer("queue", namespace)["waiting"]] == [f"{namespace}/wide"]
    _not_answered(called, api, namespace)


def _not_answered(called: Called, api: Api, namespace: str) -> None:
    """What cannot be answered. In the end there is no replica."""
    done = called.run("gpu-extender", "explain", "none", "-n", namespace, "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (1, "not-found")
    done = called.run("gpu-extender", "explain", "a/b", "-n", namespace)
    assert (done.returncode, f"'a/b' is not in namespace '{namespace}'" in done.stderr) == (1, True)
    done = called.run("gpu-extender", "top", "--port=9998", "-o", "json")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (1, "unreachable")
    assert "nothing listens on port 9998" in error["message"]
    done = called.run("gpu-extender", "top", "--system-namespace=default")
    assert done.returncode == 1
    assert "the Leases cannot be read (Error from server (Forbidden)" in done.stderr
    assert "--system-namespace names the namespace of gpu-extender" in done.stderr
    assert called.run("gpu-extender").returncode == 2
    assert called.run("gpu-extender", "serve").returncode == 2
    done = called.run("gpu-extender", "--help")
    assert (done.returncode, all(name in done.stdout for name in OFFERED)) == (0, True)
    for name in ("gpu-scheduler", "gpu-extender-queue"):
        api.patch("Lease", name, {"spec": {"holderIdentity": "gone_1"}}, SYSTEM)
    done = called.run("gpu-extender", "top", "-o", "json", "--lease=gpu-scheduler")
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, "Fleet")  # of a replica that is ready
    assert done.stderr == (
        f"gpu-extender: warning: no replica holds a Lease: {LEADER} is asked, which may have no decisions\n"
    )
    for name in (ASKED, LEADER):
        api.delete("Pod", name, SYSTEM)
    done = called.run("gpu-extender", "top", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (1, "not-found")


def test_flags_of_kubectl_mean_what_they_mean_to_kubectl_which_completes_ours(
    called: Called, api: Api, namespace: str, control_plane: ControlPlane
) -> None:
    said = called.run("options").stdout
    assert {*re.findall(r"^ +(?:-\w, )?--([\w-]+)=", said, re.MULTILINE)} == VALUES | SWITCHES
    config = json.loads(control_plane.kubeconfig().read_text())
    config["contexts"][0] = {
        "name": "admin", "context": {"cluster": "e2e", "user": "admin", "namespace": namespace},
    }  # fmt: skip
    del config["current-context"]
    (file := called.kubectl.parent / "config").write_text(json.dumps(config))
    api.create(builders.pod("idle", namespace, 2, scheduler="nobody"))
    admin = ("--kubeconfig", str(file), "--context", "admin")
    explained = lambda: called.answer("explain", "idle", *admin, "--request-timeout=5s")  # noqa: E731
    assert until(explained, lambda shown: shown["verdict"] == "fits")["pod"]["namespace"] == namespace
    assert called.answer(*admin, "top", "--as", "admin", "--as-group", "system:masters", "-v=1")["kind"] == "Fleet"
    for words, says in (
        ([*admin, "--as=nobody"], 'User "nobody" cannot'),
        (["--kubeconfig", str(file), "--context=none"], 'context "none" does not exist'),
        (["--server", "https://127.0.0.1:1"], "127.0.0.1:1 was refused"),
    ):
        done = called.run("gpu-extender", "top", "-o", "json", *words)
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, done.stdout, error["code"]) == (1, "", "unreachable")
        assert says in error["message"]
    _completed(called, api, namespace)


def _completed(called: Called, api: Api, namespace: str) -> None:
    """kubectl completes the plugin."""

    def offered(*words: str) -> list[str]:
        said = called.run("__complete", "gpu-extender", *words).stdout.splitlines()
        assert said[-1] == ":4"  # no files
        return [line.partition("\t")[0] for line in said[:-1]]

    for name in ("train-a", "train-b", "other"):
        api.create(builders.pod(name, namespace, 1, scheduler="nobody"))
    assert offered("") == list(OFFERED)
    assert offered("explain", "-n", namespace, "tr") == ["train-a", "train-b"]
    assert offered("explain", f"{namespace}/o") == [f"{namespace}/other"]
    assert offered("explain", "--context", "") == ["e2e"]
    assert offered("decisions", "-o", "y") == ["yaml"]


def _as_in_a_terminal() -> None:
    """What a shell runs in the background ignores SIGINT, and so do all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_signal_ends_the_forwarded_port_too(called: Called, silent: socket.socket) -> None:
    argv = [str(called.kubectl), "gpu-extender", "top", f"--port={SILENT}"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        child = subprocess.Popen(
            argv,
            env=called.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_as_in_a_terminal,
        )
        with silent.accept()[0]:  # the command asks, through the forwarded port
            assert any("port-forward" in one for one in called.children())
            child.send_signal(number)
            child.communicate(timeout=60)
        assert child.returncode == 128 + number
        assert wait_for(lambda: not called.children(), 60, "kubectl has ended")
