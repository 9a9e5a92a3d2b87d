"""check --scheduler-config: what keeps kube-scheduler from asking gpu-extender well."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.ask.checks.scheduler_config import answer
from extender.cli import main
from extender.errors import BadInput
from extender.settings import Settings
from tests.world import GPU, JSON

SHIPPED = Path(__file__).parents[3] / "manifests" / "kube-scheduler-config.yaml"
DOCUMENT = """\
# Scheduler configuration for GPU bin-packing
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources:
        - name: nvidia.com/gpu
          weight: 10
        - name: cpu
          weight: 1
        - name: memory
          weight: 1
"""
"""003: the configuration for bin-packing, as the document has it."""


def codes(text: str, settings: Settings | None = None) -> list[tuple[str, str]]:
    found = answer(text, "file", settings or Settings())["findings"]
    return [(one["severity"], one["code"]) for one in found]


def shipped() -> JSON:
    value: JSON = yaml.safe_load(SHIPPED.read_text())
    return value


def test_the_shipped_file_has_no_fault() -> None:
    assert codes(SHIPPED.read_text()) == [("info", "verb-missing")]  # bindVerb is optional


def test_the_configuration_of_the_document() -> None:
    found = answer(DOCUMENT, "file", Settings())["findings"]
    assert [(one["severity"], one["code"], one["facts"]["line"]) for one in found] == [
        ("error", "extender-missing", 2),
        ("warning", "nodes-sampled", 2),
        ("warning", "preemption-sampled", 6),
        ("info", "balanced-allocation", 5),
    ]


def change(path: str, value: Any) -> Callable[[JSON], None]:
    """Set what stands at a path of the first extender; None takes it away."""

    def made(config: JSON) -> None:
        entry = config["extenders"][0]
        if value is None:
            del entry[path]
        else:
            entry[path] = value

    return made


def both(*changes: Callable[[JSON], None]) -> Callable[[JSON], None]:
    """One after the other."""

    def made(config: JSON) -> None:
        for alter in changes:
            alter(config)

    return made


def profile(**facts: Any) -> Callable[[JSON], None]:
    return lambda config: config["profiles"][0].update(facts)


def whole(**facts: Any) -> Callable[[JSON], None]:
    return lambda config: config.update(facts)


def fit(strategy: JSON) -> Callable[[JSON], None]:
    def made(config: JSON) -> None:
        config["profiles"][0]["pluginConfig"][0]["args"]["scoringStrategy"] = strategy

    return made


def disabled(point: str, name: str) -> Callable[[JSON], None]:
    return lambda config: config["profiles"][0]["plugins"].update({point: {"disabled": [{"name": name}]}})


@pytest.mark.parametrize(
    ("alter", "severity", "code", "about"),
    [
        (change("filterVerb", None), "error", "verb-missing", "extenders[0].filterVerb"),
        (change("preemptVerb", None), "error", "verb-missing", "extenders[0].preemptVerb"),
        (change("prioritizeVerb", "score"), "error", "verb-unknown", "extenders[0].prioritizeVerb"),
        (change("weight", None), "error", "weight-missing", "extenders[0].weight"),
        (change("weight", 5), "warning", "weight-low", "extenders[0].weight"),
        (change("nodeCacheCapable", False), "warning", "whole-nodes-sent", "extenders[0].nodeCacheCapable"),
        (change("ignorable", True), "warning", "ignorable", "extenders[0].ignorable"),
        (change("httpTimeout", "500ms"), "warning", "timeout-short", "extenders[0].httpTimeout"),
        (change("httpTimeout", 5), "error", "timeout-unreadable", "extenders[0].httpTimeout"),
        (change("urlPrefix", None), "error", "url-unusable", "extenders[0].urlPrefix"),
        (change("urlPrefix", "http://127.0.0.1:8888"), "error", "url-path", "extenders[0].urlPrefix"),
        (change("urlPrefix", "http://10.0.0.1:8888/v1"), "warning", "plain-http", "extenders[0].urlPrefix"),
        (change("enableHTTPS", True), "warning", "certificate-unchecked", "extenders[0].enableHTTPS"),
        (change("urlPrefix", "http://127.0.0.1:99999/v1"), "error", "url-unusable", "extenders[0].urlPrefix"),
        (change("httpTimeout", "5"), "error", "timeout-unreadable", "extenders[0].httpTimeout"),
        (change("weight", True), "error", "wrong-type", "extenders[0].weight"),
        (change("nodeCacheCapable", "true"), "error", "wrong-type", "extenders[0].nodeCacheCapable"),
        (whole(profiles={"schedulerName": "a"}), "error", "wrong-type", "profiles"),
        (whole(percentageOfNodesToScore="100"), "error", "wrong-type", "percentageOfNodesToScore"),
        (lambda config: config["profiles"].append({}), "error", "profile-unnamed", "profiles[1].schedulerName"),
        (
            both(change("urlPrefix", "https://a:8443/v1"), change("tlsConfig", {"insecure": True})),
            "warning", "certificate-unchecked", "extenders[0].tlsConfig.insecure",
        ),
        (
            change("tlsConfig", {"insecure": True, "caFile": "/ca"}), "error", "certificate-contradiction",
            "extenders[0].tlsConfig.insecure",
        ),
        (
            both(change("bindVerb", "bind"), lambda config: config["extenders"].append({"bindVerb": "bind"})),
            "error", "binders-several", "extenders[1].bindVerb",
        ),
        (
            lambda config: config["extenders"][0]["managedResources"].append({"name": "amd.com/gpu"}),
            "error", "resource-twice", "extenders[0].managedResources[3].name",
        ),
        (change("managedResources", None), "error", "resources-not-named", "extenders[0].managedResources"),
        (
            change("managedResources", [{"name": "nvidia.com/gpu", "ignoredByScheduler": True}]),
            "error", "resource-ignored", "extenders[0].managedResources[0].ignoredByScheduler",
        ),
        (
            change("managedResources", [{"name": "nvidia.com/gpus"}]),
            "warning", "resource-not-ours", "extenders[0].managedResources[0].name",
        ),
        (change("nodeCachecapable", True), "error", "unknown-field", "extenders[0].nodeCachecapable"),
        (whole(apiVersion="kubescheduler.config.k8s.io/v1beta3"), "error", "config-version", "apiVersion"),
        (whole(percentageOfNodesToScore=50), "warning", "nodes-sampled", "percentageOfNodesToScore"),
        (whole(podMaxBackoffSeconds=600), "info", "backoff-long", "podMaxBackoffSeconds"),
        (whole(leaderElection={"leaderElect": True}), "warning", "lease-shared", "leaderElection.resourceName"),
        (whole(extender=[]), "error", "unknown-field", "extender"),
        (
            profile(percentageOfNodesToScore=10),
            "warning", "nodes-sampled", "profiles[0].percentageOfNodesToScore",
        ),
        (
            fit({"type": "LeastAllocated"}), "warning", "scores-spread",
            "profiles[0].pluginConfig[0].args.scoringStrategy",
        ),
        (
            fit({"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}), "warning",
            "scores-without-gpus", "profiles[0].pluginConfig[0].args.scoringStrategy",
        ),
        (
            fit({"type": "MostAllocated", "resource": []}), "error", "unknown-field",
            "profiles[0].pluginConfig[0].args.scoringStrategy.resource",
        ),
        (
            disabled("postFilter", "DefaultPreemption"), "error", "plugin-disabled",
            "profiles[0].plugins.postFilter.disabled[0]",
        ),
        (
            disabled("filter", "NodeResourcesFit"), "error", "plugin-disabled",
            "profiles[0].plugins.filter.disabled[0]",
        ),
        (
            lambda config: config["profiles"].append(copy.deepcopy(config["profiles"][0])), "error", "profile-twice",
            "profiles[1].schedulerName",
        ),
        (lambda config: config["profiles"][0].pop("plugins"), "info", "balanced-allocation", "profiles[0].plugins"),
    ],
)  # fmt: skip
def test_each_fault_is_found_where_it_is(alter: Callable[[JSON], None], severity: str, code: str, about: str) -> None:
    config = shipped()
    alter(config)
    found = answer(yaml.safe_dump(config), "file", Settings())["findings"]
    there = [one for one in found if (one["severity"], one["code"], one["about"]) == (severity, code, about)]
    assert len(there) == 1, found


def test_an_unknown_field_has_its_line_and_the_nearest_name() -> None:
    text = SHIPPED.read_text().replace("  prioritizeVerb:", "  prioritiseVerb:")
    [one] = [one for one in answer(text, "file", Settings())["findings"] if one["code"] == "unknown-field"]
    line = next(at for at, row in enumerate(text.splitlines(), 1) if "prioritiseVerb:" in row)
    assert one["facts"] == {"line": line}
    assert "did you mean prioritizeVerb?" in one["message"]


def test_the_weight_of_our_settings_is_the_same() -> None:
    settings = Settings.model_validate({"schedulerWeight": 200})
    assert ("error", "weight-differs") in codes(SHIPPED.read_text(), settings)
    assert ("error", "weight-differs") not in codes(
        SHIPPED.read_text(), Settings.model_validate({"schedulerWeight": 150})
    )


def test_of_several_extenders_the_one_with_our_resources_is_ours() -> None:
    config = shipped()
    config["extenders"].insert(0, {"urlPrefix": "http://other/x", "filterVerb": "f"})
    assert codes(yaml.safe_dump(config)) == [("info", "verb-missing")]


def test_another_extender_for_the_same_gpus_is_not_taken_for_ours() -> None:
    """Whichever stands first: its address tells. kube-scheduler does not start with both."""
    other = {"urlPrefix": "https://127.0.0.1:443", "filterVerb": "filter", "managedResources": [{"name": GPU}]}
    for at in (0, 1):
        config = shipped()
        config["extenders"].insert(at, other)
        found = answer(yaml.safe_dump(config), "file", Settings())["findings"]
        assert [(one["code"], one["about"]) for one in found] == [
            ("resource-twice", "extenders[1].managedResources[0].name"),
            ("verb-missing", f"extenders[{1 - at}].bindVerb"),
        ]


@pytest.mark.parametrize(
    "alter",
    [
        change("httpTimeout", "0s"),
        lambda config: config["profiles"][0]["pluginConfig"][1].update(args={"minCandidateNodesAbsolute": 5000}),
    ],
)
def test_what_kube_scheduler_reads_as_the_shipped_file(alter: Callable[[JSON], None]) -> None:
    config = shipped()
    alter(config)
    assert codes(yaml.safe_dump(config)) == [("info", "verb-missing")]


@pytest.mark.parametrize("text", ["", "kind: Pod", "[]", "a: [", "a: 1\na: 2"])
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(BadInput):
        answer(text, "file", Settings())


@pytest.mark.parametrize(
    "text",
    [
        "kind: KubeSchedulerConfiguration\n" + rest
        for rest in ("extenders: 3", "extenders: [3]", "profiles: {a: 1}", "profiles: [{plugins: 3, pluginConfig: 4}]",
                     "profiles: [{plugins: {score: {disabled: 7}}, pluginConfig: [3]}]", "extenders: [{weight: x}]",
                     "leaderElection: 3", "extenders: [{urlPrefix: 'http://[', managedResources: [1]}]")
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_no_defect(text: str) -> None:
    assert codes(text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(DOCUMENT)
    assert main(["check", "--scheduler-config", str(file)]) == 10
    assert "error: line 2: extenders no entry asks gpu-extender" in capsys.readouterr().out
    assert main(["check", "--scheduler-config", str(SHIPPED), "--strict"]) == 0
    capsys.readouterr()
    assert main(["check", "--scheduler-config", str(SHIPPED), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "SchedulerConfigCheck"
    assert main(["check", "--scheduler-config", str(tmp_path / "none")]) == 1
