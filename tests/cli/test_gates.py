"""`gpu-extender gates off` and `gates open`: what they remove, print and exit with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from extender.cli import gates as command
from extender.cli import main
from extender.kube import pod_writes
from extender.objects.queueing import GATE
from tests.cli.canned import Cli
from tests.kube.api_server import Request, Writer, failed, serving_in_thread
from tests.kube.gated import GatedCluster, gated

BINDING = {"metadata": {"name": "gpu-extender-queue"}, "spec": {"policyName": pod_writes.POLICIES[0]}}


@contextmanager
def kubeconfig(cluster: GatedCluster, folder: Path) -> Iterator[str]:
    """A kubeconfig of a server that answers for the cluster; its context has the name `there`."""
    file = folder / "kubeconfig"
    with serving_in_thread(cluster.script()) as url:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}],
        }
        file.write_text(json.dumps(config))
        yield str(file)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SETTLE", 0.05)
    monkeypatch.setattr("extender.times.Backoff.delay", lambda *_: 0.001)


def called(cluster: GatedCluster, folder: Path, *words: str) -> int:
    with kubeconfig(cluster, folder) as file:
        return main(["gates", *words, "--kubeconfig", file, "--context", "there"])


def ago(**time: float) -> str:
    return (datetime.now(UTC) - timedelta(**time)).strftime("%Y-%m-%dT%H:%M:%SZ")


def annotated(name: str, limit: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {pod_writes.AGE_LIMIT: limit}}}


def test_off_deletes_the_binding_and_removes_every_gate_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = GatedCluster([gated("p"), gated("q", "other", GATE), gated("r", "other")], [BINDING])
    assert called(cluster, tmp_path, "off") == 0
    assert cluster.deleted == ["gpu-extender-queue"]
    assert cluster.gates() == {"p": [], "q": ["other"], "r": ["other"]}
    assert capsys.readouterr().out.splitlines() == [
        "deleted MutatingAdmissionPolicyBinding gpu-extender-queue: new pods get no gate",
        f"removed the gate {GATE} from 2 pods; none is left in the cluster",
    ]
    assert called(cluster, tmp_path, "off") == 0
    assert capsys.readouterr().out.splitlines() == [
        "no binding of gpu-extender-queue or gpu-extender-claims exists: new pods get no gate",
        f"removed the gate {GATE} from 0 pods; none is left in the cluster",
    ]


def test_off_looks_again_once_every_api_server_has_seen_the_deletion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod that an API server gates after the first sweep is found by the next."""
    cluster = GatedCluster([gated("p")], [BINDING])
    answer, lists = cluster._answer, []

    async def late(request: Request, writer: Writer) -> None:
        await answer(request, writer)
        if request.path == "/api/v1/pods":
            lists.append(request)
            if len(lists) == 1:
                cluster.pods.append(gated("late"))

    cluster._answer = late  # type: ignore[method-assign]
    assert called(cluster, tmp_path, "off") == 0
    assert cluster.gates() == {"p": [], "late": []}
    assert "from 2 pods; none is left" in capsys.readouterr().out


def test_off_ends_where_pods_with_the_gate_keep_coming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = GatedCluster([gated("p0")])
    answer = cluster._answer

    async def endless(request: Request, writer: Writer) -> None:
        if request.method == "PATCH":
            cluster.pods.append(gated(f"p{len(cluster.pods)}"))
        await answer(request, writer)

    cluster._answer = endless  # type: ignore[method-assign]
    assert called(cluster, tmp_path, "off") == 1
    assert "new pods with the gate keep coming" in capsys.readouterr().err


def test_what_is_refused_is_named_and_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = GatedCluster([gated("p"), gated("q")])
    cluster.faults = {"p": [failed(403, "forbidden")]}
    assert called(cluster, tmp_path, "off") == 1
    said = capsys.readouterr()
    assert f"removed the gate {GATE} from 1 pod\n" in said.out
    assert "none is left" not in said.out
    assert f"1 pod still with the gate {GATE}:\n  a/p: 403: forbidden\n" in said.err


def test_progress_of_long_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(pod_writes, "_PAGE", 600)
    assert called(GatedCluster([gated(f"p{number}") for number in range(1_200)]), tmp_path, "off") == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[:2] == [
        "gpu-extender: 600 pods released so far",
        "gpu-extender: 1,200 pods released so far",
    ]
    assert "from 1,200 pods; none is left" in said.out


def test_open_removes_the_gate_from_old_pods_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = GatedCluster(
        [
            gated("old", created=ago(hours=2)),
            gated("both", "other", GATE, created=ago(hours=2)),
            gated("young", created=ago(minutes=30)),
            gated("strict", namespace="b", created=ago(minutes=30)),
            gated("fresh", namespace="b", created=ago(minutes=5)),
            gated("ever", namespace="c", created=ago(days=90)),
            gated("odd", namespace="d", created=ago(minutes=61)),
        ],
        namespaces=[
            annotated("b", "10m"), annotated("c", "never"), annotated("d", "soon"), {"metadata": {"name": "a"}},
        ],
    )  # fmt: skip
    assert called(cluster, tmp_path, "open", "--older-than", "1h") == 0
    assert cluster.gates() == {
        "old": [], "both": ["other"], "young": [GATE], "strict": [], "fresh": [GATE], "ever": [GATE], "odd": [],
    }  # fmt: skip
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"removed the gate {GATE} from 2 pods of namespace a: older than 1h0m0s",
        f"removed the gate {GATE} from 1 pod of namespace b: older than 10m0s",
        f"removed the gate {GATE} from 1 pod of namespace d: older than 1h0m0s",
    ]
    assert "namespace d: gpu-extender.io/queue-age-limit: 'soon' is no duration" in said.err
    assert called(cluster, tmp_path, "open", "--older-than", "1h") == 0
    assert capsys.readouterr().out == f"no pod behind the gate {GATE} is older than its limit\n"


def test_open_in_one_namespace_takes_the_age_that_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = GatedCluster(
        [gated("p", namespace="c", created=ago(minutes=5)), gated("q", created=ago(minutes=5))],
        namespaces=[annotated("c", "never")],
    )
    assert called(cluster, tmp_path, "open", "--older-than=1m", "--namespace=c") == 0
    assert cluster.gates() == {"p": [], "q": [GATE]}
    capsys.readouterr()
    assert called(cluster, tmp_path, "open", "--older-than=1m", "--namespace=none") == 0
    assert capsys.readouterr().out == f"no pod of namespace none behind the gate {GATE} is older than its limit\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["open"], "open needs an age: give --older-than"),
        (["off", "--older-than", "1h"], "it opens the gates of all pods"),
        (["off", "--namespace", "a"], "it opens the gates of all pods"),
        (["off", "--kubeconfig", "/nowhere"], "/nowhere: there is no such file"),
    ],
)
def test_errors_say_what_to_do(words: list[str], says: str, cli: Cli) -> None:
    assert says in cli.err(["gates", *words], 1)


@pytest.mark.parametrize("words", [["on"], ["open", "--older-than", "soon"], []])
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["gates", *words])
    assert end.value.code == 2


def test_an_api_server_that_does_not_answer_is_an_error(tmp_path: Path, cli: Cli) -> None:
    with kubeconfig(GatedCluster(), tmp_path) as file:
        pass
    assert "the API server: " in cli.err(["gates", "off", "--kubeconfig", file, "--context", "there"], 1)
