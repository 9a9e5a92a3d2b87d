"""The manifests of the node's programs: valid against the API's schemas, and true to each other and to the programs."""

from __future__ import annotations

import argparse
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.test_manifests import MANIFESTS, documents

NODE = MANIFESTS / "node"
KUBELET = "/var/lib/kubelet/device-plugins"
RELAYED = "/var/lib/gpu-extender/device-plugins"


OBJECTS = [made for name in ("policy.yaml", "agent.yaml", "relay.yaml") for made in documents(f"node/{name}")]
DAEMONS = {
    made["metadata"]["name"].removeprefix("gpu-extender-"): made for made in OBJECTS if made["kind"] == "DaemonSet"
}


def of_kind(*kinds: str) -> list[Any]:
    return [made for made in OBJECTS if made["kind"] in kinds]


def pod(name: str) -> Any:
    return DAEMONS[name]["spec"]["template"]["spec"]


def options(name: str) -> dict[str, str]:
    """The command's options; the command's own parser accepts them."""
    [container] = pod(name)["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("gpu-extender", name)
    parser = argparse.ArgumentParser(exit_on_error=False)
    import_module(f"extender.cli.{name}").arguments(parser)
    parser.parse_args(words)
    return dict(word.removeprefix("--").split("=", 1) for word in words)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid(made: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(made, release, strict=True)


def test_the_kustomization_has_them_all() -> None:
    [made] = documents("node/kustomization.yaml")
    assert made["resources"] == ["policy.yaml", "agent.yaml", "relay.yaml"]


@pytest.mark.parametrize("name", ["agent", "relay"])
def test_accounts_roles_and_bindings_belong_together(name: str) -> None:
    full = f"gpu-extender-{name}"
    [binding] = [made for made in of_kind("ClusterRoleBinding") if made["metadata"]["name"] == full]
    assert binding["roleRef"]["name"] == full
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": full, "namespace": "gpu-extender-node"}]
    assert full in {made["metadata"]["name"] for made in of_kind("ServiceAccount")}
    assert pod(name)["serviceAccountName"] == full


def test_rights() -> None:
    """The relay writes nothing; the agent patches, and nothing is granted by a wildcard."""
    rules = {made["metadata"]["name"]: made["rules"] for made in of_kind("ClusterRole")}
    verbs = {name: {verb for rule in each for verb in rule["verbs"]} for name, each in rules.items()}
    assert verbs == {"gpu-extender-relay": {"list", "watch"}, "gpu-extender-agent": {"get", "list", "patch"}}
    assert "*" not in str(rules)


def test_the_policies_are_about_the_agents_account_and_bound() -> None:
    [agent] = [made for made in of_kind("ServiceAccount") if made["metadata"]["name"] == "gpu-extender-agent"]
    user = f"system:serviceaccount:{agent['metadata']['namespace']}:{agent['metadata']['name']}"
    policies = of_kind("ValidatingAdmissionPolicy")
    assert len(policies) == 4
    for policy in policies:
        others = policy["metadata"]["name"] in ("gpu-extender-pods", "gpu-extender-nodes")
        [condition] = policy["spec"]["matchConditions"]
        assert condition["expression"] == f'request.userInfo.username {"!=" if others else "=="} "{user}"'
        assert policy["spec"]["failurePolicy"] == "Fail"
    bindings = of_kind("ValidatingAdmissionPolicyBinding")
    assert {made["spec"]["policyName"] for made in bindings} == {made["metadata"]["name"] for made in policies}
    assert all(made["spec"]["validationActions"] == ["Deny"] for made in bindings)


@pytest.mark.parametrize("name", ["agent", "relay"])
def test_containers_are_locked_down(name: str) -> None:
    """Root, because kubelet's folders are root's, and nothing else: no capability, no host network, no privilege."""
    [container] = pod(name)["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(name)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(name))


@pytest.mark.parametrize("name", ["agent", "relay"])
def test_probes_and_mounts_are_where_the_command_says(name: str) -> None:
    said = options(name)
    [container] = pod(name)["containers"]
    probe = container["livenessProbe"]["httpGet"]
    assert probe == {"path": "/livez", "port": int(said["probe"].rpartition(":")[2])}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod(name)["volumes"]}
    assert all(paths[volume] == mount for mount, volume in mounts.items())  # the same path inside and outside
    assert str(Path(said["topology-file"]).parent) in mounts
    assert str(Path(said["mode-file"]).parent) in mounts
    assert container["env"][0]["name"] == "NODE_NAME"
    if name == "relay":
        assert (said["plugins"], said["kubelet"]) == (RELAYED, KUBELET)
        assert {RELAYED, KUBELET} <= set(mounts)
    else:
        assert "/var/lib/kubelet/pod-resources" in mounts


def test_the_two_programs_share_their_files() -> None:
    agent, relay = options("agent"), options("relay")
    assert (agent["topology-file"], agent["mode-file"]) == (relay["topology-file"], relay["mode-file"])


def test_sockets_names_fit() -> None:
    """A socket's path has 107 bytes at most: our endpoints' names beside kubelet's, in hexadecimal nanoseconds."""
    assert len(f"{KUBELET}/gpu-extender-{2**64:x}.sock") < 107


# As the vendors publish them: what matters of it.
VENDORS = {
    "nvidia": ("kubelet-device-plugins-dir", "nvidia-device-plugin-ctr", {"type": "Directory"}),
    "amd": ("dp", "amdgpu-dp-cntr", {}),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_patch_changes_one_folder_and_the_other_puts_it_back(vendor: str) -> None:
    volume, container, more = VENDORS[vendor]
    published = [{"name": "sys", "hostPath": {"path": "/sys"}}, {"name": volume, "hostPath": {"path": KUBELET, **more}}]
    [patch], [back] = documents(f"node/vendor/{vendor}.patch.yaml"), documents(f"node/vendor/{vendor}.back.yaml")
    patched = merged(published, patch)
    assert {one["name"]: one["hostPath"]["path"] for one in patched} == {"sys": "/sys", volume: RELAYED}
    assert merged(patched, back) == published
    text = (NODE / f"vendor/{vendor}.patch.yaml").read_text()
    [command] = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# kubectl")]
    assert shlex.split(command)[-1] == f"manifests/node/vendor/{vendor}.patch.yaml"
    assert container  # where the volume is mounted at kubelet's path, which stays


def merged(volumes: list[Any], patch: dict[str, Any]) -> list[Any]:
    """A strategic merge: volumes by name, maps by key."""
    changes = {one["name"]: one for one in patch["spec"]["template"]["spec"]["volumes"]}
    assert set(changes) <= {one["name"] for one in volumes}
    return [{**one, "hostPath": {**one["hostPath"], **changes.get(one["name"], one)["hostPath"]}} for one in volumes]
