"""The Helm chart makes the objects that kustomize makes of the same files, and each value changes what it names."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Object
from tests.e2e.build import build_helm, build_kubectl
from tests.e2e.helm_chart import by_name, components, helm, rendered
from tests.e2e.kustomize import COMPONENTS, FORMS, MANIFESTS, kubectl, overlay
from tests.e2e.queueing import SYSTEM

CHOICES = tuple(name for name in COMPONENTS if name != "versions")
CONFIG = f"ConfigMap/{SYSTEM}/gpu-extender"
DEPLOYMENT = f"Deployment/{SYSTEM}/gpu-scheduler"
VERSIONS = "versions/kustomization.yaml"


def has(part: str, name: str) -> bool:
    return f"\n{part}:" in (MANIFESTS / name / "kustomization.yaml").read_text()


ORDERED = tuple(sorted(CHOICES, key=lambda name: (has("patches", name), name == "kubeadm", name == "openshift", name)))
"""As docs/install.md orders them: those that change others last."""
MEETING = {name for name in CHOICES if has("patches", name) or has("components", name)}
CASES = sorted(
    chosen
    for chosen in {
        *(
            tuple(name for name in ORDERED if name in some)
            for size in range(3)
            for some in combinations(CHOICES, size)
            if size < 2 or MEETING.intersection(some)
        ),
        *(tuple(name for name in ORDERED if name != form) for form in FORMS),
    }
    if not set(FORMS) <= set(chosen)
)
"""None, each one, each pair in which one patches or has components of its own, and all, with one form. An object
comes from one component, and another may patch it: so these pairs have every way in which components meet. Those that
only add objects meet in all of them."""


def kustomized(folder: Path) -> dict[str, Object]:
    return by_name(kubectl("kustomize", str(folder)))


def hashed(objects: dict[str, Object]) -> str:
    """The ConfigMap whose name changes with its content."""
    [found] = [name for name in objects if "/gpu-scheduler-config-" in name]
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """manifests/ in a folder that a test may change."""
    return Path(shutil.copytree(MANIFESTS, tmp_path / "manifests"))


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def failure(*words: str, **options: Any) -> str:
    with pytest.raises(subprocess.CalledProcessError) as error:
        rendered(*words, **options)
    return str(error.value.stderr)


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    build_kubectl()
    build_helm()


# ---- the objects


def test_the_chart_and_the_kustomizations_make_the_same_objects(tmp_path: Path) -> None:
    seen: set[str] = set()
    for number, chosen in enumerate(CASES):
        wanted = kustomized(overlay(tmp_path / str(number), chosen))
        assert by_name(rendered(*components(chosen))) == wanted, chosen
        seen |= set(wanted)
    assert {made.partition("/")[0] for made in seen} >= {"CronJob", "DaemonSet", "Deployment", "PrometheusRule"}


def test_a_changed_file_changes_the_name_of_its_config_map_as_kustomize_does(copy: Path) -> None:
    """With each of the letters that kustomize has in place of digits and vowels."""
    file, seen = copy / "kube-scheduler-config.yaml", ""
    for number in range(12):
        file.write_text(f"{file.read_text()}# <{number}> & é\n")
        made = by_name(rendered(chart=copy))
        assert made == kustomized(copy), number
        seen += hashed(made).rpartition("-")[2]
    assert set("ghkmt") <= set(seen)


@pytest.mark.parametrize("chosen", [(), ("openshift",), ("gke", "monitoring", "network-policy")])
def test_the_observer_is_the_same_too(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    wanted = kustomized(overlay(tmp_path / "site", chosen, base="shadow"))
    assert by_name(rendered("--set=form=observer", *components(chosen))) == wanted


def test_there_is_one_form() -> None:
    assert "'not' failed" in failure(*components(FORMS))


def test_versions_are_stated_once_for_both_forms(copy: Path) -> None:
    change(copy / VERSIONS, "newName: gpu-extender", "newName: registry.example.com:5000/gpus/extender")
    change(copy / VERSIONS, "newTag: v1.37.0", "newName: mirror.example.com/kube-scheduler\n  newTag: v1.36.3")
    made = by_name(rendered(*components(["queue", "node"]), chart=copy))
    assert (
        made[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]["image"]
        == "mirror.example.com/kube-scheduler:v1.36.3"
    )
    assert '\nschedulerVersion: "1.36.3"\n' in made[CONFIG]["data"]["gpu-extender.yaml"]
    assert str(made).count("'registry.example.com:5000/gpus/extender:") == 4
    site = copy.parent / "site"
    site.mkdir()
    file = {"resources": ["../manifests"], "components": ["../manifests/queue", "../manifests/node"]}
    (site / "kustomization.yaml").write_text(json.dumps(file))
    assert made == kustomized(site)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (VERSIONS, "- {name: gpu-extender, digest: 'sha256:1'}", "gpu-extender has no newTag"),
        ("kustomization.yaml", "namePrefix: a-", 'does not know "namePrefix"'),
        ("gke/kustomization.yaml", "- other.yaml", "gke/other.yaml does not exist"),
        (
            "openshift/kustomization.yaml",
            "- target: {kind: Role, labelSelector: a=b}\n  patch: '[]'",
            "by kind and name alone",
        ),
        (
            "openshift/kustomization.yaml",
            "- target: {kind: Role, name: .*}\n  patch: '- {op: add, path: /a, value: 1}'",
            'no operation "add"',
        ),
        ("openshift/kustomization.yaml", "- target: {kind: Role, name: .*}\n  patch: 'rules: []'", "no such patch"),
    ],
)
def test_what_the_chart_does_not_know_of_kustomize_is_an_error(copy: Path, file: str, line: str, message: str) -> None:
    (copy / file).write_text((copy / file).read_text() + line + "\n")
    assert message in failure(*components(["gke", "openshift"]), chart=copy)


def test_the_packed_chart_is_the_same(tmp_path: Path) -> None:
    helm("package", str(MANIFESTS), f"--destination={tmp_path}")
    [packed] = tmp_path.glob("*.tgz")
    assert packed.stat().st_size < 100_000  # a release is kept in a Secret, which has 1 MiB
    for form in FORMS:
        words = components(name for name in CHOICES if name not in FORMS or name == form)
        assert rendered(*words, chart=packed) == rendered(*words)
    helm("lint", "--strict", str(packed))


# ---- the values


def test_the_version_and_the_components_are_those_of_the_project() -> None:
    chart = yaml.safe_load((MANIFESTS / "Chart.yaml").read_text())
    project = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    values = yaml.safe_load((MANIFESTS / "values.yaml").read_text())
    assert values["components"] == dict.fromkeys(CHOICES, False)


def test_the_chart_lists_its_values() -> None:
    """The table of manifests/README.md has each value, and its default; that of docs/install.md each component."""
    values = yaml.safe_load((MANIFESTS / "values.yaml").read_text())
    components = values.pop("components")
    assert not any(components.values())
    wanted = {
        f"{name}.{inner}" if name in ("image", "kubeSchedulerImage") else name
        for name, value in values.items()
        for inner in (value if isinstance(value, dict) and value else ("",))
    }
    listed = {row[1].strip(" `"): yaml.safe_load(row[2].strip(" `")) for row in rows(MANIFESTS / "README.md")}
    assert listed.pop("components.NAME") is False
    assert set(listed) == wanted
    for name, default in listed.items():
        outer, _, inner = name.partition(".")
        assert default == (values[outer][inner] if inner else values[outer]), name
    assert set(components) <= {row[1].strip(" `") for row in rows(MANIFESTS.parent / "docs" / "install.md")}


def rows(page: Path) -> list[list[str]]:
    """The cells of the table rows of a page that begin with a code word."""
    return [line.split("|") for line in page.read_text().splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("components: {queu: true}", "'queu' not allowed"),
        ("components: {queue: 'yes'}", "got string, want boolean"),
        ("form: sidecar", "must be one of"),
        ("replicas: 3", "'replicas' not allowed"),
        ("kubeSchedulerImage: {tag: '1.36'}", "does not match pattern"),
        ("image: {repository: 'a@sha256:b'}", "does not match pattern"),
        ("settings: 'evictions: {}'", "got string, want"),
        ("resources: {memory: 1Gi}", "'memory' not allowed"),
        ("nodeSelector: {gpu: true}", "got boolean, want string"),
        ("overrides: {gpu-scheduler: {}}", "does not match pattern"),
        ("overrides: {Deployment/gpu-schedular: {spec: {}}}", "objects that do not exist: Deployment/gpu-schedular"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_rejected(values: str, message: str) -> None:
    assert message in failure(values=values)


@pytest.mark.parametrize(
    "name", ["settings", "schedulerConfiguration", "overrides", "nodeSelector", "resources", "affinity"]
)
def test_null_is_the_default_of_an_empty_value(name: str) -> None:
    """Helm removes a value that is null, also one of a file that leaves it out after the colon."""
    assert by_name(rendered(values=f"{name}: null")) == by_name(rendered())


def test_tolerations_of_null_are_none() -> None:
    assert by_name(rendered("--set", "tolerations=null")) == by_name(rendered(values="tolerations: []"))


VALUES = """
image: {repository: registry.example.com/gpu-extender, tag: 1.2.3}
kubeSchedulerImage: {tag: v1.36.3}
settings: {evictions: {enabled: true}, claims: {heldGpus: policy}}
schedulerConfiguration: {podMaxBackoffSeconds: 60}
overrides:
  Deployment/gpu-scheduler: {spec: {replicas: 3}}
nodeSelector: {a: b}
createNamespaces: false
resources: {limits: {memory: 3Gi}}
affinity: {nodeAffinity: {}}
tolerations: []
"""


def test_values_change_what_they_name_and_nothing_else() -> None:
    plain, made = by_name(rendered()), by_name(rendered(values=VALUES))
    settings = yaml.safe_load(made[CONFIG]["data"]["gpu-extender.yaml"])
    assert settings == yaml.safe_load(plain[CONFIG]["data"]["gpu-extender.yaml"]) | {
        "schedulerVersion": "1.36.3", "evictions": {"enabled": True}, "claims": {"heldGpus": "policy"},
    }  # fmt: skip
    before, after = hashed(plain), hashed(made)
    assert before != after  # a changed file restarts the pods
    read, written = (yaml.safe_load(one["data"]["kube-scheduler-config.yaml"]) for one in (plain[before], made[after]))
    assert written == read | {"podMaxBackoffSeconds": 60}
    wanted = plain[DEPLOYMENT]
    wanted["spec"]["replicas"] = 3
    pod = wanted["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"a": "b"}
    pod["affinity"] = {"nodeAffinity": {}}
    assert [taint["key"] for taint in pod.pop("tolerations")] == ["node-role.kubernetes.io/control-plane"]
    pod["initContainers"][0]["resources"]["limits"]["memory"] = "3Gi"
    pod["initContainers"][0]["image"] = "registry.example.com/gpu-extender:1.2.3"
    pod["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.36.3"
    for volume in pod["volumes"]:
        if volume["name"] == "kube-scheduler":
            volume["configMap"]["name"] = after.rpartition("/")[2]
    assert made[DEPLOYMENT] == wanted
    changed = {before, after, CONFIG, DEPLOYMENT, f"Namespace//{SYSTEM}"}
    assert {name: made[name] for name in made if name not in changed} == {
        name: plain[name] for name in plain if name not in changed
    }
    assert f"Namespace//{SYSTEM}" not in made
