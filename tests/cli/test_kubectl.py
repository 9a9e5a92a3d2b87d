"""kubectl gpu-extender without a kubectl: its flags, the choice of the replica, and what it rests on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from extender import cli
from extender.cli import kubectl
from extender.cli.kubectl import (
    HOSTNAME_LENGTH,
    NAMESPACE,
    Flags,
    Kubectl,
    Replica,
    WrongUsage,
    chosen,
    find,
    forwarded,
    split,
)
from extender.errors import NotFound, Unreachable
from extender.settings import Settings
from tests.installed import ROOT, scripts
from tests.yaml_text import objects_in

LONG = "gpu-scheduler-with-a-long-name-that-kubelet-cuts-because-it-is.-too-long-for-a-host"


@pytest.mark.parametrize(
    ("words", "flags", "rest"),
    [
        (["explain", "p"], Flags(), ["explain", "p"]),
        (["-n", "ml", "explain", "p"], Flags(("ml",)), ["explain", "p"]),
        (["explain", "-nml", "p"], Flags(("ml",)), ["explain", "p"]),
        (["explain", "-n=ml", "p", "--namespace", "b"], Flags(("ml", "b")), ["explain", "p"]),
        (["top", "--context", "c", "--as-group=a", "--as-group", "b"],
         Flags((), ("--context=c", "--as-group=a", "--as-group=b")), ["top"]),
        (["top", "--insecure-skip-tls-verify", "-o", "json"],
         Flags((), ("--insecure-skip-tls-verify=true",)), ["top", "-o", "json"]),
        (["--insecure-skip-tls-verify=false", "top", "-v6", "-s", "https://a"],
         Flags((), ("--insecure-skip-tls-verify=false", "--v=6", "--server=https://a")), ["top"]),
        (["top", "--context=", "--", "-n", "x"], Flags((), ("--context=",)), ["top", "--", "-n", "x"]),
        (["map", "--namespaces", "-", "--rack", "r"], Flags(), ["map", "--namespaces", "-", "--rack", "r"]),
    ],
)  # fmt: skip
def test_flags_of_kubectl_are_taken_out(words: list[str], flags: Flags, rest: list[str]) -> None:
    assert split(words) == (flags, rest)


@pytest.mark.parametrize("word", ["-n", "--context", "--as"])
def test_a_flag_without_its_value_is_wrong_usage(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WrongUsage, match=word):
        split(["top", word])
    with pytest.raises(SystemExit) as end:
        kubectl.main(["top", word])
    assert (end.value.code, f"{word} needs a value" in capsys.readouterr().err) == (2, True)


def pod(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("identities", "pods", "found"),
    [
        (["b_1"], [pod("a"), pod("b", "False")], "b"),  # its holder, ready or not
        (["", "b_1"], [pod("a"), pod("b")], "b"),
        (["gone_1", "b_1"], [pod("a"), pod("b")], "b"),
        (["b_1", "a_1"], [pod("a"), pod("b")], "b"),
        (["b_1"], [pod("a", hostname="b"), pod("c")], "a"),
        (["n7_1"], [pod("a"), pod("b", hostNetwork=True, nodeName="n7")], "b"),
        ([LONG[:HOSTNAME_LENGTH].rstrip("-.") + "_1"], [pod("a"), pod(LONG)], LONG),
        ([], [pod("a")], "a"),
    ],
)
def test_the_holder_of_the_first_lease_is_asked(identities: list[str], pods: list[Any], found: str) -> None:
    assert chosen(NAMESPACE, identities, pods) == Replica(NAMESPACE, found)


def test_without_a_lease_any_replica_that_is_ready_is_asked_with_a_warning() -> None:
    found = chosen(NAMESPACE, ["gone_1"], [pod("c"), pod("b"), pod("a", "False")])
    assert (found.pod, "no replica holds a Lease: b is asked" in found.warning) == ("b", True)
    found = chosen(NAMESPACE, [], [pod("c"), pod("b")], no_leases=Unreachable("forbidden"))
    assert "the Leases cannot be read (forbidden)" in found.warning
    with pytest.raises(NotFound, match="--system-namespace names"):
        chosen(NAMESPACE, ["gone_1"], [pod("a", "False"), {"metadata": {"name": "b"}}])


def test_a_holder_is_asked_by_its_host_name_where_pods_cannot_be_listed() -> None:
    assert chosen(NAMESPACE, ["b_1"], [], no_pods=Unreachable("forbidden")) == Replica(NAMESPACE, "b")


def test_each_command_that_asks_a_server_is_offered() -> None:
    asking = {name for name in cli.COMMANDS if "server" in {one.dest for one in cli.parser_of(name)._actions}}
    assert asking - {"compare"} == set(kubectl.OFFERED)


@pytest.mark.parametrize("name", kubectl.OFFERED)
def test_options_that_kubectl_replaces_are_not_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        kubectl.main([name, "--help"])
    said = capsys.readouterr().out
    assert (end.value.code, f"usage: kubectl gpu-extender {name}" in said) == (0, True)
    assert not [word for word in ("--server", "--kubeconfig", "--config", "--now") if f"{word} " in said]
    assert "--system-namespace NS" in said


def test_a_program_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECTL_PATH", "/nowhere/kubectl")
    assert kubectl.main(["top"]) == 1
    assert "is kubectl on PATH?" in capsys.readouterr().err


def documents(name: str) -> list[Any]:
    return objects_in(ROOT / "manifests" / name)


def test_the_defaults_are_those_of_the_manifests_and_the_settings() -> None:
    elected = documents("kube-scheduler-config.yaml")[0]["leaderElection"]
    assert (elected["resourceNamespace"], elected["resourceName"]) == (NAMESPACE, kubectl.SCHEDULER)
    settings = Settings()
    assert (settings.queue.lease, settings.evictions.lease) == (kubectl.QUEUE, kubectl.EVICTIONS)
    assert settings.server.port == kubectl.PORT
    [role] = [made for made in documents("reader.yaml") if made["kind"] == "Role"]
    [leases] = [rule for rule in role["rules"] if "leases" in rule["resources"]]
    assert (role["metadata"]["namespace"], set(leases["resourceNames"])) == (NAMESPACE, set(kubectl.LEASES))


@pytest.mark.parametrize(
    "name", ["deployment.yaml", "remote/deployment.yaml", "shadow/observer.yaml", "kubeadm/host/static-pod.yaml"]
)
def test_each_pod_that_runs_a_server_is_found_by_its_labels(name: str) -> None:
    [workload] = [made for made in documents(name) if made["kind"] in ("Deployment", "Pod")]
    pod = workload if workload["kind"] == "Pod" else workload["spec"]["template"]
    ours, servers = kubectl.LABELS.split(",", 1)
    component, listed = servers.split(" in ")
    labels = pod["metadata"]["labels"]
    assert f"app.kubernetes.io/name={labels['app.kubernetes.io/name']}" == ours
    assert labels[component] in listed.strip("()").split(",")


class Listed:
    """A kubectl that prints one Lease and these pods."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = pods

    def get(self, verb: str, kind: str, *words: str, namespace: str | None = None) -> Any:
        lease = {"metadata": {"name": "gpu-scheduler"}, "spec": {"holderIdentity": "b_1"}}
        items = self.pods if kind == "pods" else [lease]
        return SimpleNamespace(text=lambda: orjson.dumps({"items": items}))


def test_shadow_asks_the_observer_and_the_others_ask_it_last() -> None:
    observer = pod("a")
    observer["metadata"]["labels"] = {kubectl.COMPONENT: kubectl.OBSERVER}

    def asked(*pods: dict[str, Any], observer: bool = False) -> str:
        return find(Listed(*pods), NAMESPACE, ["gpu-scheduler"], observer).pod  # type: ignore[arg-type]

    assert asked(observer, pod("b"), observer=True) == "a"
    assert asked(pod("b"), observer=True) == "b"  # in shadow mode behind kube-scheduler
    assert asked(observer, pod("b")) == "b"
    assert asked(observer, pod("c")) == "c"
    assert asked(observer) == "a"


def test_the_wheel_installs_the_plugin_by_kubectls_rule() -> None:
    """kubectl looks for `kubectl-NAME` with each dash of the command's name as an underscore."""
    name = "gpu-extender".replace("-", "_")
    assert scripts()[f"kubectl-{name}"] == "extender.cli.kubectl:main"
    assert scripts()[f"kubectl_complete-{name}"] == "extender.cli.completion:kubectl_main"


def test_a_command_that_asks_a_server_loads_no_more_than_it_needs() -> None:
    """Its start is what a user waits for."""
    words = [f"import extender.cli.{name}" for name in kubectl.OFFERED]
    code = "; ".join([*words, "import extender.cli.kubectl, sys", "print(*sorted(sys.modules))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"pydantic", "structlog", "asyncio", "kubernetes", "rich", "aiohttp", "ext_core.table", "argcomplete"}
    assert heavy & set(done.stdout.split()) == set()


def test_a_signal_while_the_forward_is_started_leaves_no_kubectl_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL_PATH", str(program))
    children: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def begun(*words: Any, **how: Any) -> subprocess.Popen[str]:
        children.append(begin(*words, **how))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # Python calls the handler here at the latest
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", begun)
    with pytest.raises(SystemExit) as end, forwarded(Kubectl(Flags()), Replica(NAMESPACE, "a"), 8888):
        pytest.fail("a port is forwarded")
    assert end.value.code == 128 + signal.SIGTERM
    assert [child.poll() is not None for child in children] == [True]
