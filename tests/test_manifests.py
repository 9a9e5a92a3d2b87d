"""The manifests: valid against the API's schemas, and true to each other and to the settings."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from starlette.routing import Route

from extender.cli.options import add_address, host_and_port, settings_of
from extender.decide.decisions import VERBS
from extender.server import calls
from extender.server.acting import MIX
from extender.settings import Known, Settings, Tls, read_settings
from extender.settings.fields import ListenerSettings, ServerSettings
from tests.world import World
from tests.yaml_text import objects_in

MANIFESTS = Path(__file__).parent.parent / "manifests"
OPERATIONS = MANIFESTS.parent / "docs" / "operations.md"
REVIEWS = ("tokenreviews", "subjectaccessreviews")
"""Questions by `create`. The API server answers them and keeps nothing."""
ROLES_OF_KUBERNETES = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}


def documents(name: str) -> list[Any]:
    return objects_in(MANIFESTS / name)


OBJECTS = documents("deployment.yaml")
EVICTIONS = documents("evictions/rights.yaml")
PROVISIONING = documents("provisioning-requests/rights.yaml")
PLANNED = documents("planned-allocation/rights.yaml")
ADDED = [
    made
    for name in (
        "gke/quota",
        "network-policy/policies",
        "kubeadm/host/static-pod",
        "remote/deployment",
        "kubeadm/patches/kube-scheduler+strategic",
        "reader",
        "shadow/observer",
    )
    for made in documents(f"{name}.yaml")
]
APART = EVICTIONS + PROVISIONING + ADDED
[VERSIONS] = documents("versions/kustomization.yaml")
IMAGE = re.compile(r"^ *image: (\S+)", re.MULTILINE)
SCHEDULER = documents("kube-scheduler-config.yaml")[0]
EXTENDER = SCHEDULER["extenders"][0]
[DEPLOYMENT] = [made for made in OBJECTS if made["kind"] == "Deployment"]
[REMOTE] = [made for made in documents("remote/deployment.yaml") if made["kind"] == "Deployment"]
[STATIC] = documents("kubeadm/host/static-pod.yaml")
[OBSERVER] = [made for made in documents("shadow/observer.yaml") if made["kind"] == "Deployment"]
METRICS_PORT = 8444
POD = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINERS = {container["name"]: container for container in [*POD["initContainers"], *POD["containers"]]}


def of_kind(*kinds: str) -> list[Any]:
    return [made for made in OBJECTS if made["kind"] in kinds]


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("made", OBJECTS + APART, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid(made: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(made, release, strict=True)


def test_a_misspelt_field_is_seen() -> None:
    wrong = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_every_binding_names_a_role_that_exists_and_our_account() -> None:
    roles = {made["metadata"]["name"] for made in of_kind("Role", "ClusterRole")} | ROLES_OF_KUBERNETES
    [account] = [made["metadata"] for made in of_kind("ServiceAccount")]
    bindings = of_kind("RoleBinding", "ClusterRoleBinding")
    assert len(bindings) == 6
    for binding in bindings:
        assert binding["roleRef"]["name"] in roles
        [subject] = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert POD["serviceAccountName"] == account["name"]


def test_we_may_write_nothing_but_a_binding_a_nomination_and_events() -> None:
    [role] = of_kind("ClusterRole")
    may_write = {
        resource
        for rule in role["rules"]
        for resource in rule["resources"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert may_write == {"pods/binding", "pods/status", "events", *REVIEWS}
    assert "*" not in str(role["rules"])


def test_the_lease_is_the_one_that_the_role_allows() -> None:
    election = SCHEDULER["leaderElection"]
    [role] = [made for made in of_kind("Role") if made["metadata"]["name"] == "gpu-scheduler-lease"]
    assert role["metadata"]["namespace"] == election["resourceNamespace"]
    [named] = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert named["resourceNames"] == [election["resourceName"]]


def test_no_generated_name_is_in_a_role() -> None:
    """kustomize replaces the name of a generated ConfigMap in `resourceNames`, too, whatever kind the rule is about."""
    [kustomization] = documents("kustomization.yaml")
    generated = {entry["name"] for entry in kustomization["configMapGenerator"]}
    named = {name for made in OBJECTS for rule in made.get("rules", ()) for name in rule.get("resourceNames", ())}
    assert named
    assert not generated & named


def test_what_we_keep_is_what_the_role_allows() -> None:
    [role] = [made for made in of_kind("Role") if made["metadata"]["name"] == "gpu-extender"]
    assert role["metadata"]["namespace"] == DEPLOYMENT["metadata"]["namespace"]  # our pod's own
    named = next(rule for rule in role["rules"] if rule["resources"] == ["configmaps"] and "resourceNames" in rule)
    assert named["resourceNames"] == [Settings().reservations.name, MIX]
    assert set(named["verbs"]) == {"get", "patch"}


def test_what_evictions_need_is_granted_apart() -> None:
    made = {one["kind"]: one for one in EVICTIONS}
    assert made["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": ["lifecycle.k8s.io"], "resources": ["evictionrequests"], "verbs": ["create", "delete"]},
    ]
    [named] = [rule for rule in made["Role"]["rules"] if "resourceNames" in rule]
    assert named["resourceNames"] == [Settings().evictions.lease]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert made[kind]["subjects"] == of_kind("RoleBinding")[0]["subjects"]
    [kustomization] = documents("kustomization.yaml")
    assert "evictions" not in kustomization["resources"]


def test_what_provisioning_requests_need_is_granted_apart() -> None:
    role, binding = PROVISIONING
    may = {(group, resource): rule["verbs"] for rule in role["rules"] for group in rule["apiGroups"]
           for resource in rule["resources"]}  # fmt: skip
    assert may == {
        ("autoscaling.x-k8s.io", "provisioningrequests"): ["create", "get"],
        ("", "podtemplates"): ["create"],
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == of_kind("RoleBinding")[0]["subjects"]
    [kustomization] = documents("kustomization.yaml")
    assert "provisioning-requests" not in kustomization["resources"]


def test_what_planned_allocation_needs_is_granted_apart() -> None:
    role, binding = PLANNED
    may = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert may == {
        ("resourceclaims", "get"), ("deviceclasses", "get"), ("resourceclaims", "patch"),
        ("resourceclaims/status", "patch"), ("resourceclaims/binding", "patch"),
        ("devicetaintrules", "create"), ("devicetaintrules", "delete"),
    }  # fmt: skip
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"resource.k8s.io"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == of_kind("RoleBinding")[0]["subjects"]
    [kustomization] = documents("kustomization.yaml")
    assert "planned-allocation" not in kustomization["resources"]


def test_the_files_reach_the_containers_that_read_them() -> None:
    [kustomization] = documents("kustomization.yaml")
    files = {entry["name"]: entry["files"] for entry in kustomization["configMapGenerator"]}
    volumes = {volume["name"]: volume["configMap"]["name"] for volume in POD["volumes"] if "configMap" in volume}
    for container in CONTAINERS.values():
        [config] = [Path(word.split("=")[1]) for word in container["command"] if word.startswith("--config=")]
        [volume] = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == str(config.parent)]
        assert files[volumes[volume]] == [config.name]
        assert (MANIFESTS / config.name).is_file()


def test_the_scheduler_asks_where_we_listen() -> None:
    server = Settings().server
    assert EXTENDER["urlPrefix"] == f"http://{server.host}:{server.port}/v1"
    sidecar = CONTAINERS["gpu-extender"]
    assert sidecar["restartPolicy"] == "Always"
    for probe, path in (("startupProbe", "readyz"), ("readinessProbe", "readyz"), ("livenessProbe", "healthz")):
        assert f"'http://{server.host}:{server.port}/{path}'" in sidecar[probe]["exec"]["command"][-1]
    # Readiness follows /readyz within seconds, and not before the first list is in.
    assert sidecar["readinessProbe"]["periodSeconds"] * sidecar["readinessProbe"]["failureThreshold"] <= 10


def test_kube_scheduler_lives_only_with_its_sidecar() -> None:
    """kubelet cannot reach loopback, so the port is on all addresses. tests/e2e/test_sidecar.py shows the effect."""
    scheduler = CONTAINERS["kube-scheduler"]
    [word] = [word for word in CONTAINERS["gpu-extender"]["command"] if word.startswith("--probe")]
    host, port = host_and_port(word.removeprefix("--probe="), "probe")
    liveness = scheduler["livenessProbe"]
    assert (host, liveness["httpGet"]) == ("", {"path": "/livez", "port": port})
    # With the restart that may win the Lease again, and the other replica's look every 2 to 4.4 s: 30 s.
    assert liveness["periodSeconds"] * liveness["failureThreshold"] <= 9
    assert "startupProbe" not in scheduler, "it would keep a kube-scheduler whose sidecar is down"
    static = [container["livenessProbe"]["httpGet"] for container in STATIC["spec"]["containers"]]
    assert port not in [probe["port"] for probe in static], "the cluster's own scheduler does not depend on us"


def test_the_static_pod_is_the_sidecar_on_the_hosts_network() -> None:
    spec, sidecar, server = STATIC["spec"], CONTAINERS["gpu-extender"], Settings().server
    [container] = spec["containers"]
    assert spec["hostNetwork"]
    assert spec["securityContext"] == POD["securityContext"]
    assert container["resources"] == sidecar["resources"]
    for probe, path in (("startupProbe", "healthz"), ("readinessProbe", "readyz"), ("livenessProbe", "healthz")):
        assert container[probe]["httpGet"] == {"host": server.host, "port": server.port, "path": f"/{path}"}
    [own] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "gpu-extender"]
    files = [word.split("=")[1] for word in container["command"] if word.startswith(("--config", "--kubeconfig"))]
    assert len(files) == 2
    assert all(file.startswith(f"{own}/") for file in files)


def listeners_of(container: dict[str, Any]) -> ServerSettings:
    """What the command of a container states about them."""
    parser = argparse.ArgumentParser()
    add_address(parser)
    return settings_of(parser.parse_known_args(container["command"][2:])[0]).server


METRICS = {
    "second scheduler": CONTAINERS["gpu-extender"],
    "static pod": STATIC["spec"]["containers"][0],
    "observer": OBSERVER["spec"]["template"]["spec"]["containers"][0],
}


@pytest.mark.parametrize("form", METRICS)
def test_each_form_serves_its_metrics_on_all_addresses_for_tokens_and_the_rest_on_loopback(form: str) -> None:
    container = METRICS[form]
    server = listeners_of(container)
    assert server.metrics == ListenerSettings(host="", port=METRICS_PORT, authorize=True, tls=Tls(self_signed=True))
    assert server.model_copy(update={"metrics": ListenerSettings()}) == ServerSettings()
    assert container["ports"] == [{"name": "metrics", "containerPort": METRICS_PORT}]


def test_each_account_may_have_tokens_reviewed() -> None:
    for objects in (OBJECTS, documents("shadow/observer.yaml")):
        rules = [rule for made in objects if made["kind"] == "ClusterRole" for rule in made["rules"]]
        reviews = [rule for rule in rules if set(rule["resources"]) & set(REVIEWS)]
        assert [(rule["resources"], rule["verbs"]) for rule in reviews] == [([name], ["create"]) for name in REVIEWS]


def test_the_network_policy_lets_prometheus_reach_the_metrics_alone() -> None:
    [policy] = documents("network-policy/policies.yaml")
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": METRICS_PORT}]}]


def test_the_remote_form_is_the_sidecar_with_listeners_of_its_own() -> None:
    spec, sidecar = REMOTE["spec"]["template"]["spec"], CONTAINERS["gpu-extender"]
    [container] = spec["containers"]
    assert spec["securityContext"] == POD["securityContext"]
    for part in ("resources", "securityContext", "image"):
        assert container[part] == sidecar[part]
    words = container["command"]
    assert words[:3] == sidecar["command"][:3]
    server = listeners_of(container)
    assert (server.tls.client_ca_file, server.metrics.authorize, server.allow_unprotected) == (
        "/etc/gpu-extender-tls/ca.crt", True, False,
    )  # fmt: skip
    assert server.metrics.port == METRICS_PORT
    assert (server.debug.host, server.debug.port) == ("127.0.0.1", Settings().server.port)
    assert {server.port, server.metrics.port} == {port["containerPort"] for port in container["ports"]}
    for name, probe in ((name, container[name]) for name in ("startupProbe", "readinessProbe", "livenessProbe")):
        assert (probe["httpGet"]["port"], probe["httpGet"]["scheme"]) == (server.metrics.port, "HTTPS"), name


def test_readers_of_the_pages_may_get_each_of_them() -> None:
    [role] = [made for made in documents("reader.yaml") if made["kind"] == "ClusterRole"]
    rights = {(verb, path) for rule in role["rules"] for verb in rule["verbs"] for path in rule["nonResourceURLs"]}
    other = {"/healthz", "/livez", "/readyz", "/metrics", "/metrics/slis", *(f"/v1/{verb}" for verb in VERBS)}
    routes = [route for route in World().app.routes if isinstance(route, Route) and route.path not in other]
    served = {("post" if "POST" in (route.methods or ()) else "get", route.path) for route in routes}
    ends = ("/static/", "/debug/")
    needed = {(verb, next((f"{end}*" for end in ends if path.startswith(end)), path) if verb == "get" else path)
              for verb, path in served}  # fmt: skip
    assert needed == rights


def test_the_configuration_for_remote_differs_in_the_extender_alone() -> None:
    script = MANIFESTS / "remote" / "kube-scheduler-config.sed"
    command = ["sed", "-f", str(script), str(MANIFESTS / "kube-scheduler-config.yaml")]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    [config] = objects_in(made)
    [entry] = config["extenders"]
    tls, name = entry.pop("tlsConfig"), "gpu-extender.gpu-extender-system.svc"
    assert tls.pop("serverName") == name
    assert {key: Path(file).name for key, file in tls.items()} == {
        "caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key",
    }  # fmt: skip
    assert (entry.pop("urlPrefix"), entry.pop("enableHTTPS")) == (f"https://{name}:8443/v1", True)
    assert entry == {key: value for key, value in EXTENDER.items() if key not in ("urlPrefix", "enableHTTPS")}
    assert {**config, "extenders": SCHEDULER["extenders"]} == SCHEDULER


def test_the_configuration_for_kubeadm_differs_in_the_clusters_own_names_alone() -> None:
    script = MANIFESTS / "kubeadm" / "kube-scheduler-config.sed"
    command = ["sed", "-f", str(script), str(MANIFESTS / "kube-scheduler-config.yaml")]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    [config] = objects_in(made)
    assert config.pop("clientConnection") == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert config.pop("leaderElection") == {"leaderElect": True}
    [profile] = config["profiles"]
    assert profile["schedulerName"] == "default-scheduler"
    profile["schedulerName"] = "gpu-scheduler"
    assert config == {key: value for key, value in SCHEDULER.items() if key != "leaderElection"}


def test_a_preempt_call_that_waits_for_the_api_server_answers_in_time() -> None:
    settings, timeout = Settings(), float(EXTENDER["httpTimeout"].removesuffix("s"))
    search = settings.preemption.budget_milliseconds / 1000
    assert calls.RETURN_SECONDS + search + settings.reservations.deadline_seconds < timeout
    assert calls.RETURN_SECONDS + search < calls.ANSWER_SECONDS < timeout
    assert calls.LOOK_SECONDS < calls.LOOK_EVERY / 5  # an outage slows kube-scheduler down by little


def test_all_containers_are_locked_down() -> None:
    for container in [*CONTAINERS.values(), *STATIC["spec"]["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_settings_file_is_accepted_and_names_the_schedulers_version() -> None:
    settings = read_settings(MANIFESTS / "gpu-extender.yaml", Known(scorers=(), costs=()))
    tags = {image["name"]: image["newTag"] for image in VERSIONS["images"]}
    assert tags[CONTAINERS["kube-scheduler"]["image"]].startswith(f"v{settings.scheduler_version}.")


def test_the_tag_of_kube_scheduler_replaces_the_version_in_the_settings(tmp_path: Path) -> None:
    """As `replacements` in the kustomization does: between the first two double quotes."""
    [kustomization] = documents("kustomization.yaml")
    [replacement] = kustomization["replacements"]
    assert replacement["targets"][0]["options"] == {"delimiter": '"', "index": 1}
    before, _, after = (MANIFESTS / "gpu-extender.yaml").read_text().split('"', 2)
    (tmp_path / "made.yaml").write_text(f'{before}"1.38.2"{after}')
    settings = read_settings(tmp_path / "made.yaml", Known(scorers=(), costs=()))
    assert settings.scheduler_version == "1.38.2"
    assert settings.evictable_as_failed_nodes


def test_one_file_states_every_image_and_its_version() -> None:
    names = {image["name"] for image in VERSIONS["images"]}
    used = {found for path in MANIFESTS.rglob("*.yaml") for found in IMAGE.findall(path.read_text())}
    assert used == names
    for path in MANIFESTS.rglob("kustomization.yaml"):
        [made] = objects_in(path)
        files = [path.parent / name for name in made.get("resources", ())]
        if any(IMAGE.search(file.read_text()) for file in files if file.is_file()):
            included = [(path.parent / name).resolve() for name in made.get("components", ())]
            assert MANIFESTS / "versions" in included, path


# ---- kube-scheduler's file; the real scheduler reads it in tests/e2e


def test_no_sampling_and_all_candidates() -> None:
    assert SCHEDULER["percentageOfNodesToScore"] == 100
    [preemption] = [entry["args"] for entry in plugin_config() if entry["name"] == "DefaultPreemption"]
    assert preemption["minCandidateNodesPercentage"] == 100


def test_one_point_outweighs_all_plugins_of_the_scheduler_together() -> None:
    # default_plugins.go of 1.36 and 1.37: TaintToleration 3, NodeAffinity 2, PodTopologySpread 2, InterPodAffinity 2,
    # DynamicResources 2, NodeResourcesFit 1, VolumeBinding 1 (no weight means 1), ImageLocality 1. Balanced allocation
    # is disabled. Each gives 0..100: (3 + 2 + 2 + 2 + 2 + 1 + 1 + 1) x 100 = 1,400.
    [profile] = SCHEDULER["profiles"]
    assert profile["plugins"]["score"]["disabled"] == [{"name": "NodeResourcesBalancedAllocation"}]
    # schedule_one.go: score x weight x (MaxNodeScore 100 / MaxExtenderPriority 10).
    assert 1 * EXTENDER["weight"] * (100 // 10) > 1_400
    # Both files are installed together, and state the same.
    settings = read_settings(MANIFESTS / "gpu-extender.yaml", Known(scorers=(), costs=()))
    assert (settings.scheduler_weight, settings.scheduler_score_weights) == (EXTENDER["weight"], 14)
    assert settings.only_the_best_class_wins


def test_the_scheduler_packs_as_we_do() -> None:
    weights = Settings().packing_weights
    [fit] = [entry["args"] for entry in plugin_config() if entry["name"] == "NodeResourcesFit"]
    assert fit["scoringStrategy"]["type"] == "MostAllocated"
    assert {entry["name"]: entry["weight"] for entry in fit["scoringStrategy"]["resources"]} == {
        **{resource.name: weights.gpu for resource in Settings().resources},
        "cpu": weights.cpu,
        "memory": weights.memory,
    }


def test_the_extender_entry() -> None:
    assert {EXTENDER[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt")} == {
        "filter",
        "prioritize",
        "preempt",
    }
    assert EXTENDER["nodeCacheCapable"] is True
    assert EXTENDER["ignorable"] is False
    assert EXTENDER["managedResources"] == [
        {"name": resource.name, "ignoredByScheduler": False} for resource in Settings().resources
    ]


def plugin_config() -> list[Any]:
    [profile] = SCHEDULER["profiles"]
    return list(profile["pluginConfig"])


def test_the_memory_limit_covers_the_largest_cluster_of_the_readme() -> None:
    rows = re.findall(r"^\| [\d,]+ \| [\d,]+ \| ([\d,]+) \| ([\d,]+) \|$", OPERATIONS.read_text(), re.MULTILINE)
    resident, limits = ([int(row[column].replace(",", "")) for row in rows] for column in (0, 1))
    assert len(rows) == 4
    assert limits == sorted(limits)
    kept = 1.3 * Settings().decisions.max_bytes / 2**20
    assert all(limit >= 1.1 * (size - kept) + kept + 256 for size, limit in zip(resident, limits, strict=True))
    resources = CONTAINERS["gpu-extender"]["resources"]
    assert int(resources["limits"]["memory"].removesuffix("Mi")) >= limits[-1]
    assert int(resources["requests"]["memory"].removesuffix("Mi")) >= resident[-2]


def test_kubeadm_gets_the_configuration_of_the_cluster_and_no_patches_beside_it() -> None:
    """Without it kubeadm takes the image and the address of a default cluster; both options together are an error."""
    page = (MANIFESTS.parent / "docs" / "install.md").read_text()
    commands = [line for line in page.splitlines() if line.startswith("kubeadm ")]
    assert len(commands) == 3
    assert [line for line in commands if "--config=kubeadm" not in line or "--patches" in line] == []
