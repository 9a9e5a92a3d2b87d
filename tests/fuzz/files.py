"""Settings files, and cluster files through the commands that read them."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from structlog.testing import capture_logs

from extender import cli
from extender.errors import BadInput, BadSettings
from extender.policy.costs import COSTS
from extender.policy.scorers import SCORERS
from extender.settings import Known, Settings, read_settings
from tests.fuzz import objects
from tests.fuzz.engine import Broken, Step
from tests.fuzz.hostile import cut, cuts, mutated, render
from tests.tables import switch
from tests.world import JSON, World, machine, workload

KNOWN = Known(scorers=SCORERS.keys(), costs=COSTS.keys())
LONGEST_MESSAGE = 40_000  # characters of what is said about a file
YAML_TEXTS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c]\n",
    "a: &a {b: *a}\n", "&a [*a]\n", "? [x]\n: y\n", "!!python/object/apply:os.system [x]\n", "a: !!binary xx\n", "\t\n",
    "[" * 3000, "a:\n" + "".join(" " * i + "- a:\n" for i in range(300)),
    "- " * 3000, "%YAML 9.9\n---\n", "---\n" * 500,
    "a: 1e999999999\n", "a: 0x" + "f" * 5000, "a: " + "9" * 5000, "a: 2026-99-99\n", "a: 12:30:45\n", "<<: *x\n",
    "<<: 1",
    "a: |\n x\n", "\ufeffkind: x\n", "a: 'x\n", "x\x00: 1\n", "a: {b: {c: ", "? ? ? x\n", "a: !!int x\n", "a: =\n",
)  # fmt: skip


class _Files:
    """What both parts share: a step is a value or a text, its form, and changes of bytes."""

    def _step(self, rng: random.Random, value: Any) -> Step:
        step: Step = {"form": rng.choice(("json", "json", "yaml")), "value": value}
        if rng.random() < 0.08:
            step = {"form": "text", "value": rng.choice(YAML_TEXTS)}
        if rng.random() < 0.25:
            step["cuts"] = cuts(rng)
        return step


def written(step: Step) -> bytes:
    """The bytes of the file."""
    if step["form"] == "text":
        text: bytes = step["value"].encode()
    elif step["form"] == "yaml":
        stream = io.BytesIO()
        YAML(typ="safe", pure=True).dump(_plain(step["value"]), stream)
        text = stream.getvalue()
    else:
        text = render(step["value"])
    return cut(text, step.get("cuts", []))


def _plain(value: Any) -> Any:
    """Without markers and surrogates, which YAML's writer does not know."""
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.encode("utf-8", "replace").decode().replace("\x00", "?") if isinstance(value, str) else value


class SettingsFiles(_Files):
    """The part: a settings file is accepted and then serves, or is refused with all that is wrong in it."""

    name = "settings"

    def steps(self, rng: random.Random) -> list[Step]:
        base = json.loads(Settings().model_dump_json(by_alias=True))
        made = []
        for _ in range(10):
            value = {key: base[key] for key in base if key in ("apiVersion", "kind") or rng.random() < 0.4}
            made.append(self._step(rng, mutated(rng, value, rng.choice((0, 1, 1, 2, 5)))))
        return made

    @contextmanager
    def world(self) -> Iterator[_Settings]:
        with tempfile.TemporaryDirectory() as folder, capture_logs():
            yield _Settings(Path(folder) / "settings.yaml")


class _Settings:
    def __init__(self, file: Path) -> None:
        self.file = file

    def end(self) -> None:
        return None

    def play(self, step: Step) -> None:
        self.file.write_bytes(written(step))
        try:
            settings = read_settings(self.file, KNOWN)
        except BadSettings as error:
            if not error.problems or not all(problem.message for problem in error.problems):
                raise Broken("a settings file is refused without a reason", str(error)[:300]) from error
            if len(str(error)) > LONGEST_MESSAGE:
                raise Broken("a message is too long to be read", f"{len(str(error))} characters") from error
            return
        try:
            world = World(settings)
        except BadInput as error:  # tokens are to be reviewed, and no API server is there
            if not error.message:
                raise Broken("settings are refused without a reason", repr(error)) from error
            return
        world.node("n", 8, links=switch())
        world.pod("low", 8, "n", priority=0)
        urgent = workload("urgent", 4, priority=5)
        world.filter(urgent)
        world.prioritize(urgent)
        world.preempt(urgent, {"n": ["low"]})


CHANGES = (
    (), (), ("--cordon", "n0"), ("--drain", "n1", "n0"), ("--add", "2", "n1"), ("--add", "1", "catalogue:dgx-h100"),
    ("--add", "1", "nowhere"), ("--pod", "mallory/h0"), ("--add", "999999", "n0"),
)  # fmt: skip
"""Further arguments of `whatif`."""
CODES: Final = {"check": {0, 1, 10}, "whatif": {0, 1, 10, 11}, "capacity": {0, 1}}
"""The commands that are asked, and their exit codes."""


class ClusterFiles(_Files):
    """The part: these commands answer, or say what is wrong with the file."""

    name = "clusters"

    def steps(self, rng: random.Random) -> list[Step]:
        made = []
        for _ in range(4):
            features = set(rng.sample(objects.FEATURES, 4))
            step = self._step(rng, _cluster(rng, features))
            step["command"] = rng.choice(tuple(CODES))
            step["output"] = rng.choice(("json", "text"))
            step["pod"] = _asking(rng, features)
            step["changes"] = rng.choice(CHANGES)
            made.append(step)
        return made

    @contextmanager
    def world(self) -> Iterator[_Clusters]:
        with tempfile.TemporaryDirectory() as folder, capture_logs():
            yield _Clusters(Path(folder))


def _cluster(rng: random.Random, features: set[str]) -> Any:
    items: list[Any] = [{"apiVersion": "v1", "kind": "Node"} | machine(f"n{i}", 8, links=switch()) for i in range(3)]
    for number in range(rng.choice((0, 2, 6))):
        item = objects.pod(rng, f"h{number}", "s", rng.choice(("", "n0", "n1", "nowhere")), features)
        items.append({"apiVersion": "v1", "kind": "Pod"} | item)
    makers = (
        ("Node", "v1", objects.node),
        ("PodDisruptionBudget", "policy/v1", objects.budget),
        ("PriorityClass", "scheduling.k8s.io/v1", objects.priority_class),
        ("DeviceClass", "resource.k8s.io/v1", objects.device_class),
        ("ResourceSlice", "resource.k8s.io/v1", objects.resource_slice),
        ("ResourceClaim", "resource.k8s.io/v1", objects.resource_claim),
    )
    for number in range(rng.choice((0, 2, 5))):
        kind, api, make = rng.choice(makers)
        items.append({"apiVersion": api, "kind": kind} | make(rng, f"o{number}", "s", features))
    for number in range(rng.choice((0, 3))):
        items.append(objects.group(rng, "Job", "batch/v1", f"group-s-{number}", "s", features))
    hard = {"requests.nvidia.com/gpu": rng.choice((*objects.GPUS, "x")), "cpu": rng.choice(objects.CPU)}
    items.append({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "mallory"},
                  "spec": {"hard": hard}})  # fmt: skip
    return mutated(rng, {"apiVersion": "v1", "kind": "List", "items": items}, rng.choice((0, 0, 1, 1, 4)))


def _asking(rng: random.Random, features: set[str]) -> JSON:
    """A pod, or an owner, each perhaps mutated; or a list of several."""
    if rng.random() < 0.3:
        items = [_asking(rng, features) for _ in range(rng.randint(0, 3))]
        several: JSON = mutated(rng, {"apiVersion": "v1", "kind": "List", "items": items}, rng.choice((0, 0, 1)))
        return several
    if rng.random() < 0.4:
        owner: JSON = mutated(rng, _owner(rng, features), rng.choice((0, 1, 1, 4)))
        return owner
    made = objects.pod(rng, "asks", "s", "", features) if rng.random() < 0.4 else workload("asks", 8, priority=2000)
    whole: JSON = {"apiVersion": "v1", "kind": "Pod"} | made
    return mutated(rng, whole, rng.choice((0, 0, 0, 1))) if rng.random() < 0.3 else whole


def _owner(rng: random.Random, features: set[str]) -> JSON:
    """An owner of pods; its template is that of a hostile pod or of an honest one."""
    made = objects.pod(rng, "t", "s", "", features) if rng.random() < 0.4 else workload("t", 4, priority=2000)
    template = {"metadata": {"labels": {"app": "x"}, **made.get("metadata", {})}, "spec": made["spec"]}
    count = rng.choice((0, 1, 2, 3, 5_000, -1, 10**12, "2", None))
    roles = {"Worker": {"replicas": count, "template": template}, "Master": {"template": template}}
    both = {"size": rng.choice((2, 0, count)), "workerTemplate": template}
    job = {"parallelism": count, "template": template}
    api, kind, spec = rng.choice(
        (
            ("apps/v1", "Deployment", {"replicas": count, "template": template}),
            ("apps/v1", "StatefulSet", {"replicas": count, "template": template}),
            ("batch/v1", "Job", job),
            ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": roles}),
            ("kubeflow.org/v1", "MPIJob", {"mpiReplicaSpecs": roles}),
            ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": count, "leaderWorkerTemplate": both}),
            (
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                {"replicatedJobs": [{"replicas": 2, "template": {"spec": job}}] * 2},
            ),
        )
    )
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "owner", "namespace": "default"}, "spec": spec}


class _Clusters:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def end(self) -> None:
        return None

    def play(self, step: Step) -> None:
        cluster, pod = self.folder / "cluster", self.folder / "pod"
        cluster.write_bytes(written(step))
        pod.write_bytes(render(step["pod"]))
        words = [step["command"], "--cluster", str(cluster), "-o", step["output"], "--now", "2027-01-15T08:00:00Z"]
        words += ["-f", str(pod), *step.get("changes", ())] if step["command"] == "whatif" else []
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(words)
        if code not in CODES[step["command"]]:
            raise Broken("an exit code that is not documented", f"{step['command']}: {code}")
        if code == 1:
            if not err.getvalue().strip() or len(err.getvalue()) > LONGEST_MESSAGE:
                raise Broken("a file is refused without a message", f"{len(err.getvalue())} characters")
            if re.search(r"Traceback", err.getvalue()):
                raise Broken("a traceback is printed", err.getvalue()[-600:])
        elif step["output"] == "json":
            json.loads(out.getvalue())
