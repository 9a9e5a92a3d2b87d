"""The alerts and the dashboard name metrics and labels that exist, and each alert has its runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.metrics import Metrics
from tests.test_manifests import documents
from tests.yaml_text import objects_in

MONITORING = Path(__file__).parent.parent / "manifests" / "monitoring"
RUNBOOKS = MONITORING.parents[1] / "docs" / "alerts.md"
METRIC = re.compile(r"\b(gpu_extender_\w+?)(_bucket|_sum|_count)?\b(?:\{([^}]*)\})?(?![\w])")
GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")

[RULES] = objects_in(MONITORING / "rules.yaml")
ALERTS = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "gpu-extender.json").read_text())


def panels() -> Iterator[tuple[str, str, str]]:
    """(title, expression, legend) of each query."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def exported() -> dict[str, set[str]]:
    """The series that a server exports, each with its labels."""
    metrics = Metrics()
    found = {}
    for family in metrics.registry.collect():
        short = family.name.removeprefix("gpu_extender_")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set(metrics.labels[short]) | ({"le"} if family.type == "histogram" else set())
    return found


def faults(expression: str, known: dict[str, set[str]], shown: str = "") -> list[str]:
    """What in an expression no server exports."""
    wrong, labels = [], {"instance"}
    for name, _, matchers in METRIC.findall(expression):
        if name not in known:
            wrong.append(name)
            continue
        labels |= known[name]
        own = re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers)
        wrong += [f"{name}{{{label}}}" for label in own if label not in known[name]]
    grouped = [label.strip() for found in GROUPED.findall(expression) for label in found.split(",")]
    return wrong + [label for label in grouped + re.findall(r"{{(\w+)}}", shown) if label not in labels]


def test_a_wrong_name_and_a_wrong_label_are_seen() -> None:
    known = exported()
    assert faults("gpu_extender_nothing > 0", known) == ["gpu_extender_nothing"]
    assert faults('sum by (le) (gpu_extender_decisions_total{what="x"})', known) == [
        "gpu_extender_decisions_total{what}", "le",
    ]  # fmt: skip
    assert faults("gpu_extender_decisions_total", known, "{{code}}") == ["code"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_reads_what_is_exported_and_has_a_runbook(alert: dict[str, Any]) -> None:
    assert faults(alert["expr"], exported()) == []
    name = alert["alert"]
    assert alert["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    [section] = re.findall(rf"^### {name}\n(.*?)(?=^### |\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^- \*\*([\w ]+)\*\*:", section, re.MULTILINE) == ["Threshold", "Effect", "Remedy"]


FORMS = ("deployment.yaml", "kubeadm/host/static-pod.yaml", "shadow/observer.yaml", "remote/deployment.yaml")
"""The files of the pods."""


def pod_of(file: str) -> tuple[str, dict[str, Any]]:
    """The namespace of a form's pods, and their template."""
    made = documents(file)
    [pod] = [one for one in made if one["kind"] in ("Deployment", "Pod")]
    return pod["metadata"]["namespace"], pod["spec"]["template"] if pod["kind"] == "Deployment" else pod


@pytest.mark.parametrize("file", FORMS)
def test_the_pod_monitor_selects_the_pods_of_each_form(file: str) -> None:
    monitor, *_ = documents("monitoring/pod-monitor.yaml")
    namespace, pod = pod_of(file)
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert [port["name"] for one in containers for port in one.get("ports", ())].count(endpoint["port"]) == 1
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert namespace in monitor["spec"]["namespaceSelector"]["matchNames"]


def test_remote_has_prometheus_verify_the_certificate_of_its_secret() -> None:
    _, pod = pod_of("remote/deployment.yaml")
    [kustomization] = documents("remote/kustomization.yaml")
    [patch] = [one["patch"] for one in kustomization["patches"] if one["target"]["kind"] == "PodMonitor"]
    [[operation]] = objects_in(patch)
    [endpoint] = operation["value"]
    monitor, *_ = documents("monitoring/pod-monitor.yaml")
    [before] = monitor["spec"]["podMetricsEndpoints"]
    tls, secrets = (
        endpoint["tlsConfig"],
        [one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one],
    )
    assert endpoint | {"tlsConfig": {"insecureSkipVerify": True}} == before
    assert tls["ca"]["secret"]["name"] in secrets
    assert f"name={tls['serverName']}\n" in (MONITORING.parent / "remote" / "certificates").read_text()


def test_the_pod_monitor_asks_with_a_token_that_may_ask() -> None:
    monitor, account, token, role, binding = documents("monitoring/pod-monitor.yaml")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert token["metadata"]["name"] == endpoint["authorization"]["credentials"]["name"]
    assert token["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account["metadata"]["name"]]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"nonResourceURLs": [endpoint.get("path", "/metrics")], "verbs": ["get"]}]


def test_each_runbook_has_its_alert() -> None:
    assert re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_the_dashboard_reads_what_is_exported() -> None:
    known = exported()
    assert {title: faults(expression, known, legend) for title, expression, legend in panels()} == {
        title: [] for title, _, _ in panels()
    }


def test_each_panel_has_a_unit_and_a_description() -> None:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["description"].endswith("."), panel["title"]
            assert panel["targets"], panel["title"]


def test_the_dashboard_has_its_rows_and_no_panel_twice() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Is it healthy?", "Is the fleet full?", "Why do pods wait?", "How long does the queue take?",
        "What did preemption cost?", "Does the plan hold?",
    ]  # fmt: skip
    assert {"stat", "table", "heatmap", "timeseries"} < {panel["type"] for panel in DASHBOARD["panels"]}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (panel["gridPos"]["x"] + right, panel["gridPos"]["y"] + down)
        for panel in DASHBOARD["panels"]
        for right in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
