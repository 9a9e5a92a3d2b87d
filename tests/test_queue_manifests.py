"""The manifests of the queue: valid against the API's schemas, and true to the settings, the code and each other."""

from __future__ import annotations

import argparse
import re
from typing import Any

import kubernetes_validate
import pytest

from extender.act.queue.seat_store import SHARDS, SIGNS
from extender.cli import gates as gates_command
from extender.kube import pod_writes
from extender.objects.queueing import GANG, GATE
from extender.settings import Settings
from tests.test_manifests import MANIFESTS, documents

[KUSTOMIZATION] = documents("queue/kustomization.yaml")
OBJECTS = [made for name in KUSTOMIZATION["resources"] for made in documents(f"queue/{name}")]
DEPLOYMENT = documents("deployment.yaml")
[POLICY] = [made for made in OBJECTS if made["kind"] == "MutatingAdmissionPolicy"]
[CRON] = [made for made in OBJECTS if made["kind"] == "CronJob"]
VARIABLES = {one["name"]: one["expression"] for one in POLICY["spec"]["variables"]}


def of_kind(*kinds: str) -> list[Any]:
    return [made for made in OBJECTS if made["kind"] in kinds]


def named(text: str) -> list[str]:
    """The strings in a CEL expression."""
    return re.findall(r"'([^']*)'", text)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid(made: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(made, release, strict=True)


def test_the_kustomization_has_every_file() -> None:
    files = {path.name for path in (MANIFESTS / "queue").glob("*.yaml")}
    assert files == {"kustomization.yaml", *KUSTOMIZATION["resources"]}


def test_the_policy_is_about_our_gpus_scheduler_gate_and_labels() -> None:
    [config] = documents("kube-scheduler-config.yaml")
    assert named(VARIABLES["gpus"]) == [resource.name for resource in Settings().resources]
    assert named(VARIABLES["schedulers"]) == [profile["schedulerName"] for profile in config["profiles"]]
    assert set(named(VARIABLES["asksForTheQueue"])) == {GATE, GANG}  # the label of a queue has the gate's name
    [mutation] = POLICY["spec"]["mutations"]
    assert named(mutation["applyConfiguration"]["expression"]) == [GATE]


def test_the_policy_is_bound_by_what_the_command_looks_for() -> None:
    [binding] = of_kind("MutatingAdmissionPolicyBinding")
    assert POLICY["metadata"]["name"] == binding["spec"]["policyName"] == pod_writes.POLICIES[0]


def test_the_cron_job_calls_a_command_that_exists() -> None:
    spec = CRON["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("gpu-extender", "gates")
    parser = argparse.ArgumentParser(exit_on_error=False)
    gates_command.arguments(parser)
    options = parser.parse_args(words)
    assert (options.action, options.older_than) == ("open", 24 * 3600)
    assert spec["serviceAccountName"] in {made["metadata"]["name"] for made in of_kind("ServiceAccount")}
    # It runs where the server runs, with its image, and waits for no scheduler of ours.
    [deployment] = [made for made in DEPLOYMENT if made["kind"] == "Deployment"]
    theirs = deployment["spec"]["template"]["spec"]
    [server] = theirs["initContainers"]
    assert CRON["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert container["image"] == server["image"]
    assert container["securityContext"] == server["securityContext"]
    assert spec["securityContext"] == theirs["securityContext"]
    assert spec["schedulerName"] == "default-scheduler"


def test_every_binding_names_a_role_and_an_account_that_exist() -> None:
    roles = {(made["kind"], made["metadata"]["name"]) for made in of_kind("Role", "ClusterRole")}
    accounts = {
        (made["metadata"]["namespace"], made["metadata"]["name"])
        for made in [*OBJECTS, *DEPLOYMENT]
        if made["kind"] == "ServiceAccount"
    }
    bindings = of_kind("RoleBinding", "ClusterRoleBinding")
    assert len(bindings) == 3
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        [subject] = binding["subjects"]
        assert (subject["namespace"], subject["name"]) in accounts
    # The right to switch the queue off is a person's to have: nothing is bound to it.
    assert "gpu-extender-queue-off" not in {binding["roleRef"]["name"] for binding in bindings}


def test_rights() -> None:
    """What changes something, by role; nothing is granted by a wildcard."""
    writes = {
        (made["kind"], made["metadata"]["name"]): {
            f"{verb} {resource}"
            for rule in made["rules"]
            for resource in rule["resources"]
            for verb in set(rule["verbs"]) - {"get", "list", "watch"}
        }
        for made in of_kind("Role", "ClusterRole")
    }
    assert writes == {
        ("ClusterRole", "gpu-extender-queue"): {"patch pods", "patch pods/status"},
        ("ClusterRole", "gpu-extender-queue-open"): {"patch pods"},
        ("ClusterRole", "gpu-extender-queue-off"): {"patch pods", "delete mutatingadmissionpolicybindings"},
        ("Role", "gpu-extender-queue"): {
            "create configmaps",
            "patch configmaps",
            "create leases",
            "update leases",
        },
    }
    assert "*" not in str([made["rules"] for made in of_kind("Role", "ClusterRole")])
    [role] = of_kind("Role")
    for rule in role["rules"]:
        if set(rule["verbs"]) & {"get", "patch", "update", "delete"}:
            assert all(name.startswith(("gpu-extender-seats-", "gpu-extender-queue")) for name in rule["resourceNames"])
    named = [name for rule in role["rules"] for name in rule.get("resourceNames", ()) if "seats" in name]
    assert named == [f"{Settings().queue.reservations}-{part}" for part in (*range(SHARDS), SIGNS)]
