"""What the node's programs may write, on the real API server, with the tokens that kubelet gives their pods."""

from __future__ import annotations

import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.objects.queueing import GATE
from extender.topologies import annotation
from tests.e2e import builders, cleaning
from tests.e2e.api import Api, Object
from tests.e2e.cluster import ControlPlane
from tests.e2e.queueing import SYSTEM, refusal, tried
from tests.waiting import wait_for
from tests.yaml_text import objects_in

MANIFESTS = Path(__file__).parents[2] / "manifests" / "node"
SAMPLES = Path(__file__).parents[1] / "topologies" / "samples"
NAMESPACE = "gpu-extender-node"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """What is installed stays for all tests of this file; the cluster is cleaned after the last one."""
    yield control_plane.api
    cleaning.clean(control_plane.api)


@pytest.fixture(scope="module")
def installed(api: Api) -> Iterator[Api]:
    """The manifests as a person applies them, and a node that no test writes."""
    # The namespaces of a file before take the controller seconds to end.
    wait_for(lambda: not (api.find("Namespace", NAMESPACE) or api.find("Namespace", SYSTEM)), 120, "they are gone")
    made = [one for name in ("policy.yaml", "agent.yaml", "relay.yaml") for one in objects_in(MANIFESTS / name)]
    for one in made:
        api.create(one)
    all_at_work(api)
    api.create(builders.namespace(SYSTEM))
    api.create(builders.node("other"))
    yield api
    for one in made:
        if one["kind"] not in ("Namespace", "ServiceAccount"):
            api.delete(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace"))


@pytest.fixture
def mine(installed: Api) -> str:
    """The name of a node of this test alone."""
    name = f"mine-{secrets.token_hex(4)}"
    installed.create(builders.node(name))
    return name


def all_at_work(api: Api) -> None:
    """Waits until the API server obeys each policy so far. It reads all of them at once, about every second: it obeys
    them once it obeys one that is made now, of a name that no test before has used."""
    name = f"all-at-work-{uuid.uuid4()}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    specs: dict[str, Object] = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"object.metadata.name != '{name}'", "message": "all are at work"}],
        },
        "ValidatingAdmissionPolicyBinding": {"policyName": name, "validationActions": ["Deny"]},
    }
    for kind, spec in specs.items():
        api.create({**head, "kind": kind, "spec": spec})
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    wait_for(lambda: "all are at work" in refusal(tried, api, probe), 60, "the policies are at work")
    for kind in specs:
        api.delete(kind, name)


def token(control_plane: ControlPlane, program: str, node: str) -> str:
    """What kubelet mounts into the program's pod on that node."""
    account = f"gpu-extender-{program}"
    pod = builders.pod(f"{program}-{node}", NAMESPACE, node_name=node)
    pod["spec"]["serviceAccountName"] = account
    return control_plane.account_token(NAMESPACE, account, pod=control_plane.api.create(pod))


@contextmanager
def as_(control_plane: ControlPlane, secret: str) -> Iterator[Api]:
    with Api(control_plane.url, secret, control_plane.ca) as client:
        yield client


def refused(api: Api, kind: str, name: str, change: Object, namespace: str | None = None) -> str:
    """Why the change is refused; "" when it is not."""
    try:
        api.patch(kind, name, change, namespace)
    except ApiError as error:
        if error.status not in (403, 422):
            raise
        return str(error)
    return ""


def notes(**said: Any) -> Object:
    return {"metadata": {"annotations": {f"gpu-extender.io/{key}": value for key, value in said.items()}}}


def sees_its_node_only(agent: Api) -> bool:
    """Whether the policy is what refuses another node: the agent's rights, which a client gets a moment later, do
    not."""
    return "its own node only" in refused(agent, "Node", "other", notes(probe="1"))


def test_the_agent_writes_its_own_node_and_nothing_else(installed: Api, control_plane: ControlPlane, mine: str) -> None:
    installed.patch("Node", mine, {"metadata": {"annotations": {"someone.else/x": "1"}}})
    with as_(control_plane, token(control_plane, "agent", mine)) as agent:
        wait_for(lambda: sees_its_node_only(agent), 60, "the agent's rights")
        assert "its own node only" in refused(agent, "Node", "other", notes(topology="{}"))
        assert refused(agent, "Node", mine, notes(topology="{}", relay="1")) == ""
        assert refused(agent, "Node", mine, notes(relay=None)) == ""
        for change in (
            {"metadata": {"annotations": {"someone.else/x": "2"}}},
            {"metadata": {"annotations": {"someone.else/x": None}}},
            {"metadata": {"annotations": {"someone.else/y": "1"}}},
            {"metadata": {"labels": {"gpu-extender.io/x": "1"}}},
            {"spec": {"unschedulable": True}},
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            {"metadata": {"finalizers": ["a.b/c"]}},
        ):
            assert "annotations of gpu-extender.io only" in refused(agent, "Node", mine, change), change
        with pytest.raises(ApiError, match="403"):
            agent.delete("Node", mine)
        with pytest.raises(ApiError, match="403"):
            agent.create(builders.node("new"))
    assert "gpu-extender.io/topology" not in installed.get("Node", "other")["metadata"].get("annotations", {})


def test_a_token_of_no_node_writes_nothing(installed: Api, control_plane: ControlPlane) -> None:
    with as_(control_plane, control_plane.account_token(NAMESPACE, "gpu-extender-agent")) as agent:
        wait_for(lambda: sees_its_node_only(agent), 60, "the policy is there")


def test_the_agent_annotates_pods_of_its_node(
    installed: Api, control_plane: ControlPlane, namespace: str, mine: str
) -> None:
    for name, node in (("here", mine), ("there", "other")):
        installed.create(builders.pod(name, namespace, node_name=node))
    with as_(control_plane, token(control_plane, "agent", mine)) as agent:
        held = {"metadata": {"annotations": {"gpu-extender.io/held-gpus": "0,3"}}}
        wait_for(
            lambda: "pods of its own node only" in refused(agent, "Pod", "there", held, namespace),
            60,
            "the agent's rights",
        )
        assert refused(agent, "Pod", "here", held, namespace) == ""
        plan = {"metadata": {"annotations": {"gpu-extender.io/gpus": "0,3"}}}
        assert "held-gpus only" in refused(agent, "Pod", "here", plan, namespace)
        image = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
        with pytest.raises(ApiError, match=r"403|422"):
            agent.patch("Pod", "here", image, namespace, how="strategic")
        with pytest.raises(ApiError, match="403"):
            agent.delete("Pod", "here", namespace)


HELD, PLAN = "gpu-extender.io/held-gpus", "gpu-extender.io/gpus"


def account(control_plane: ControlPlane, name: str, home: str, namespace: str) -> str:
    """The token of an account in `home` with all rights on pods, their status and their binding in `namespace`."""
    api = control_plane.api
    everything = ["pods", "pods/status", "pods/binding", "bindings"]
    rules = [{"apiGroups": [""], "resources": everything, "verbs": ["*"]}]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": home}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    if api.find("ServiceAccount", name, home) is None:
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": home}})
    for kind, rest in (("Role", {"rules": rules}), ("RoleBinding", {"roleRef": role, "subjects": [subject]})):
        meta = {"name": name, "namespace": namespace}
        api.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta} | rest)
    return control_plane.account_token(home, name)


@pytest.fixture
def server(installed: Api, control_plane: ControlPlane, namespace: str) -> Iterator[Api]:
    """The account of gpu-extender's server in manifests/deployment.yaml."""
    with as_(control_plane, account(control_plane, "gpu-scheduler", SYSTEM, namespace)) as client:
        wait_for(lambda: not refusal(client.list, "Pod", namespace), 60, "its rights")
        yield client


@pytest.fixture
def tenant(installed: Api, control_plane: ControlPlane, namespace: str) -> Iterator[Api]:
    """An account with all rights on pods, their status and their binding in its namespace."""
    with as_(control_plane, account(control_plane, "tenant", namespace, namespace)) as client:
        wait_for(
            lambda: "only gpu-extender's agent" in made(client, "probe", namespace, **{HELD: "0"}), 60, "its rights"
        )
        yield client


def made(api: Api, name: str, namespace: str, node: str = "", **said: str) -> str:
    """Why a pod with these annotations is not created; "" when it is."""
    pod = builders.pod(name, namespace, annotations=said)
    if node:
        pod["spec"]["nodeName"] = node
    try:
        api.create(pod)
    except ApiError as error:
        return str(error)
    return ""


def noted(key: str, text: str | None) -> Object:
    return {"metadata": {"annotations": {key: text}}}


def test_a_tenant_says_of_no_pod_which_gpus_it_holds_or_gets(
    installed: Api, tenant: Api, server: Api, control_plane: ControlPlane, namespace: str, mine: str
) -> None:
    """At creation, in an update, in one of the status, with a Binding; what the agent wrote stays as it is."""
    assert "comes with the Binding" in made(tenant, "forged", namespace, **{PLAN: "0,1"})
    for name, node in (("held", mine), ("waits", "")):
        assert made(tenant, name, namespace, node, **{"example.com/own": "1"}) == ""
    assert "only gpu-extender's agent" in refused(tenant, "Pod", "held", noted(HELD, "0"), namespace)
    assert "comes with the Binding" in refused(tenant, "Pod", "held", noted(PLAN, "0"), namespace)
    with as_(control_plane, token(control_plane, "agent", mine)) as agent:
        wait_for(lambda: refused(agent, "Pod", "held", noted(HELD, "0,3"), namespace) == "", 60, "the agent's rights")
    for text in ("0,1", None, ""):
        assert "only gpu-extender's agent" in refused(tenant, "Pod", "held", noted(HELD, text), namespace)
        assert "only gpu-extender's agent" in refused(installed, "Pod", "held", noted(HELD, text), namespace)
    status = f"/api/v1/namespaces/{namespace}/pods/held/status"
    merge = "application/merge-patch+json"
    with pytest.raises(ApiError, match="only gpu-extender's agent"):
        tenant.request("PATCH", status, noted(HELD, "0,1"), content_type=merge)
    # All else of a pod that has it may change: by its tenant, and by kubelet.
    assert refused(tenant, "Pod", "held", noted("example.com/own", "2"), namespace) == ""
    tenant.request("PATCH", status, {"status": {"phase": "Running"}}, content_type=merge)
    pod = installed.get("Pod", "held", namespace)
    assert pod["metadata"]["annotations"] == {"example.com/own": "2", HELD: "0,3"}
    assert pod["status"]["phase"] == "Running"
    # The plan comes with the Binding, and nothing else does.
    path = f"/api/v1/namespaces/{namespace}/pods/waits/binding"
    target = {"target": {"apiVersion": "v1", "kind": "Node", "name": mine}, "apiVersion": "v1", "kind": "Binding"}
    with pytest.raises(ApiError, match="only gpu-extender's agent"):
        tenant.request("POST", path, target | {"metadata": {"name": "waits", "annotations": {HELD: "1"}}})
    planned = target | {"metadata": {"name": "waits", "annotations": {PLAN: "1"}}}
    for stranger in (tenant, installed):
        with pytest.raises(ApiError, match="only gpu-extender's server"):
            stranger.request("POST", path, planned)
    server.request("POST", path, planned)
    assert installed.get("Pod", "waits", namespace)["metadata"]["annotations"] == {"example.com/own": "1", PLAN: "1"}
    assert "comes with the Binding" in refused(tenant, "Pod", "waits", noted(PLAN, "2"), namespace)
    assert refused(tenant, "Pod", "waits", noted("example.com/own", "2"), namespace) == ""


def test_the_queue_plans_the_gpus_of_a_pod_before_it_opens_the_gate(server: Api, tenant: Api, namespace: str) -> None:
    """With a patch of the status, as `extender/act/queue/release.py` sends it; a tenant does not."""
    server.create(builders.pod("queued", namespace, schedulingGates=[{"name": GATE}]))
    status, merge = f"/api/v1/namespaces/{namespace}/pods/queued/status", "application/merge-patch+json"
    with pytest.raises(ApiError, match="only gpu-extender's server"):
        tenant.request("PATCH", status, noted(PLAN, "0"), content_type=merge)
    server.request("PATCH", status, noted(PLAN, "0,1"), content_type=merge)
    assert "only gpu-extender's server" in refused(tenant, "Pod", "queued", noted(PLAN, None), namespace)
    assert refused(server, "Pod", "queued", noted(PLAN, None), namespace) == ""


def test_only_the_agent_states_how_the_gpus_of_a_node_are_linked(installed: Api, control_plane: ControlPlane) -> None:
    """Administrators and kubelets write `topology-stated`, and all else of a node."""
    installed.create(builders.node("mine"))
    assert "topology-stated is yours" in refused(installed, "Node", "mine", notes(relay="0"))
    with as_(control_plane, token(control_plane, "agent", "mine")) as agent:
        wait_for(
            lambda: refused(agent, "Node", "mine", notes(topology="{}", relay="1")) == "", 60, "the agent's rights"
        )
    kubelet = control_plane.api_as("system:node:mine", ("system:nodes", "system:masters"))
    with kubelet:
        for writer in (installed, kubelet):
            for key in ("topology", "topology-nics", "topology-stale-since", "relay"):
                for text in ("[]", None) if key in ("topology", "relay") else ("[]",):
                    assert "topology-stated is yours" in refused(writer, "Node", "mine", notes(**{key: text})), key
            assert refused(writer, "Node", "mine", notes(**{"topology-stated": "{}"})) == ""
        status = {"status": {"allocatable": {"nvidia.com/gpu": "7"}}}
        kubelet.patch("Node", "mine", status, subresource="status")
        with pytest.raises(ApiError, match="topology-stated is yours"):
            kubelet.patch("Node", "mine", status | notes(topology="[]"), subresource="status")
    with pytest.raises(ApiError, match="topology-stated is yours"):
        installed.create(builders.node("new", annotations={"gpu-extender.io/topology": "{}"}))
    found = installed.get("Node", "mine")["metadata"]["annotations"]
    assert {key.removeprefix("gpu-extender.io/"): text for key, text in found.items()} == {
        "topology": "{}", "topology-stated": "{}", "relay": "1",
    }  # fmt: skip


def test_the_relay_reads_and_writes_nothing(control_plane: ControlPlane, mine: str) -> None:
    with as_(control_plane, token(control_plane, "relay", mine)) as relay:
        wait_for(lambda: _lists(relay, mine), 60, "the role is there")
        assert refused(relay, "Node", mine, notes(topology="{}"))


def _lists(api: Api, node: str) -> bool:
    try:
        return bool(api.list("Node")) and api.list("Pod", fields=f"spec.nodeName={node}") is not None
    except ApiError:
        return False


def test_the_agents_command_with_its_own_rights(
    installed: Api, control_plane: ControlPlane, tmp_path: Path, mine: str
) -> None:
    """`gpu-extender agent --once` with that token, over TLS: the node has the annotation."""
    secret = tmp_path / "token"
    secret.write_text(token(control_plane, "agent", mine))
    with as_(control_plane, secret.read_text()) as agent:
        wait_for(lambda: sees_its_node_only(agent), 60, "the agent's rights")
    command = [
        sys.executable, "-m", "extender", "agent", "--once", "--source=file", "--gbps=25",
        f"--text={SAMPLES / 'dgx1-v100-8gpu-4ib.txt'}", f"--node={mine}", f"--api-server={control_plane.url}",
        f"--token-file={secret}", f"--ca-file={control_plane.ca}", "--pod-resources=/nowhere/kubelet.sock",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stated = installed.get("Node", mine)["metadata"]["annotations"][annotation.KEY]
    assert annotation.decode(stated).gpus == 8
