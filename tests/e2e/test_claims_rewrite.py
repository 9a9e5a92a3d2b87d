"""manifests/claims-rewrite: new pods ask for claims instead of the extended resource, behind the gate of the queue.

On the real API server alone: which pods are rewritten, whatever the order of the policies, and what becomes of quotas.
With the real kube-scheduler and claim controller: the queue plans the devices of such pods.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from extender.objects.queueing import GATE, PINNED
from extender.sim import claims as dra
from tests import plain
from tests.e2e import builders
from tests.e2e.api import Api, Object, Objects
from tests.e2e.build import release
from tests.e2e.cluster import ControlPlane
from tests.e2e.kustomize import MANIFESTS, kubectl
from tests.e2e.queueing import GATED, LABEL, SCHEDULER, gates, other_policy, pod, refusal, tried
from tests.e2e.scene import Scene, SceneFactory
from tests.e2e.test_dra import bound, publish
from tests.e2e.test_dra_plan import LINKED, PLAN, allocations, as_planned, explained, twice
from tests.waiting import wait_for
from tests.yaml_text import objects_in

POLICIES = ("queue/policy.yaml", "claims-rewrite/policy.yaml")
TEMPLATES = MANIFESTS / "claims-rewrite" / "templates.yaml"
LABELS = {**LABEL, "gpu-extender.io/claims": "enabled"}
GPU = builders.GPU
OTHER = "example.com/quota"
NOTE = "first-seen"


def policies(*, scheduler: str = SCHEDULER) -> Objects:
    """The policies of the queue and of claims-rewrite, for the pods of this scheduler."""
    texts = [(MANIFESTS / name).read_text().replace(f"['{SCHEDULER}']", f"['{scheduler}']") for name in POLICIES]
    return [made for text in texts for made in objects_in(text)]


@contextmanager
def applied(api: Api, made: Objects) -> Iterator[None]:
    """Objects of the whole cluster, deleted in the end. Skips where the release does not serve the policies."""
    if release() < "1.36":
        pytest.skip("before 1.36 MutatingAdmissionPolicy is not served by default")
    try:
        for one in made:
            api.create(one)
        yield
    finally:
        for one in reversed(made):
            if api.find(one["kind"], one["metadata"]["name"]):
                api.delete(one["kind"], one["metadata"]["name"])


def labelled(api: Api, name: str, scheduler: str = SCHEDULER) -> str:
    """The namespace with both labels, once the policies are at work in it."""
    api.patch("Namespace", name, {"metadata": {"labels": LABELS}})

    def ready() -> bool:
        one = tried(api, pod("probe", name, scheduler=scheduler))
        return (asked(one), gates(one)) == (claims_for(1), GATED)

    wait_for(ready, 60, "the policies are at work")
    return name


@pytest.fixture
def rewritten(api: Api, namespace: str) -> Iterator[str]:
    """A namespace with both labels; the policies are applied."""
    with applied(api, policies()):
        yield labelled(api, namespace)


def asked(made: Object) -> tuple[list[Any], list[Any]]:
    """What the pod asks for: of each container its GPUs by the extended resource, and its claims; the pod's claims."""
    containers = [
        (one["resources"].get("limits", {}).get(GPU), one["resources"].get("requests", {}).get(GPU),
         [claim["name"] for claim in one["resources"].get("claims", ())])
        for one in made["spec"]["containers"]
    ]  # fmt: skip
    claims = made["spec"].get("resourceClaims", ())
    return containers, [(one["name"], one.get("resourceClaimTemplateName")) for one in claims]


def claims_for(*gpus: int) -> tuple[list[Any], list[Any]]:
    """`asked` of a rewritten pod whose containers asked for so many GPUs."""
    names = {i: f"gpus-{i}" for i, number in enumerate(gpus) if number}
    containers = [(None, None, [names[i]] if i in names else []) for i in range(len(gpus))]
    return containers, [(name, f"gpu-extender-gpus-{gpus[i]}") for i, name in names.items()]


def test_what_is_rewritten(api: Api, rewritten: str) -> None:
    for number in (*range(1, 9), 16):
        made = tried(api, pod("p", rewritten, number))
        assert (asked(made), gates(made)) == (claims_for(number), GATED)
    box = builders.container
    made = tried(api, pod("p", rewritten, containers=[box("a", 2), box("b"), box("c", 4)], init_containers=[box("i")]))
    assert (asked(made), gates(made)) == (claims_for(2, 0, 4), GATED)
    # A limit is all that a person writes; the API server makes a request of it. Other resources stay.
    limited = pod("p", rewritten)
    limited["spec"]["containers"][0]["resources"] = {"limits": {GPU: 8, "cpu": "4", "example.com/nic": "1"}}
    made = tried(api, limited)
    assert asked(made) == claims_for(8)
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4", "example.com/nic": "1"}
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "4", "example.com/nic": "1"}
    crowd = [box(f"c{i}", 1) for i in range(40)]
    assert asked(tried(api, pod("p", rewritten, containers=crowd))) == claims_for(*[1] * 40)


def test_what_stays_as_it_is(api: Api, rewritten: str) -> None:
    """It joins the queue, where the policy of the queue says so."""
    box = builders.container
    named = {"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}]}
    exempt = {
        "init container": pod("p", rewritten, 1, init_containers=[box("i", 1)]),
        "sidecar": pod("p", rewritten, 1, init_containers=[box("i", 1, sidecar=True)]),
        "no template": pod("p", rewritten, 9),
        "no template for one": pod("p", rewritten, containers=[box("a", 2), box("b", 12)]),
        "claims": pod("p", rewritten, 1, **named),
        "other GPUs": pod("p", rewritten, resource="amd.com/gpu"),
        "no GPUs": pod("p", rewritten, 0, labels={GATE: "team"}),
    }
    for name, wanted in exempt.items():
        made = tried(api, wanted)
        assert asked(made) == asked(wanted), name
        assert gates(made) == GATED, name
    free = {
        "placed": pod("p", rewritten, node_name="n1"),
        "DaemonSet": pod("p", rewritten),
        "another scheduler": pod("p", rewritten, scheduler="volcano"),
        "default scheduler": pod("p", rewritten, scheduler=""),
        "CPU only": pod("p", rewritten, 0),
    }
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    free["DaemonSet"]["metadata"]["ownerReferences"] = [owner]
    for name, wanted in free.items():
        made = tried(api, wanted)
        assert (asked(made), gates(made)) == (asked(wanted), []), name


def with_resources(namespace: str, **resources: Any) -> Object:
    made = pod("p", namespace)
    made["spec"]["containers"][0]["resources"] = resources
    return made


def test_what_the_api_server_rejects_is_not_made_valid(api: Api, rewritten: str) -> None:
    limits = {GPU: "2"}
    rejected = {
        "must be an integer": with_resources(rewritten, limits={GPU: "1500m"}),
        "must be equal to nvidia.com/gpu limit": with_resources(rewritten, limits=limits, requests={GPU: "1"}),
        "Limit must be set": with_resources(rewritten, requests={GPU: "1"}),
        "must be one of the names in pod.spec": with_resources(rewritten, limits=limits, claims=[{"name": "gone"}]),
    }
    for why, wanted in rejected.items():
        found = refusal(tried, api, wanted)
        assert why.lower() in found.lower(), (why, found)


def test_a_namespace_without_both_labels(api: Api, rewritten: str) -> None:
    """And kube-system, whatever its labels."""
    wanted = pod("p", rewritten, 4)
    for labels, gated in (({"gpu-extender.io/claims": None}, GATED), ({**LABELS, **dict.fromkeys(LABEL)}, [])):
        api.patch("Namespace", rewritten, {"metadata": {"labels": labels}})
        wait_for(lambda: asked(tried(api, wanted)) == asked(wanted), 60, "nothing is rewritten")
        wait_for(lambda gated=gated: gates(tried(api, wanted)) == gated, 60, "the policy of the queue")  # type: ignore[misc]
    api.patch("Namespace", "kube-system", {"metadata": {"labels": LABELS}})
    labelled(api, rewritten)
    try:
        system = pod("p", "kube-system", 4)
        assert (asked(tried(api, system)), gates(tried(api, system))) == (asked(system), [])
    finally:
        api.patch("Namespace", "kube-system", {"metadata": {"labels": dict.fromkeys(LABELS)}})


def test_gates_of_others_stay_and_ours_comes_once(api: Api, rewritten: str) -> None:
    for names in ([OTHER], GATED, [OTHER, *GATED], [*GATED, OTHER]):
        made = tried(api, pod("p", rewritten, 2, schedulingGates=[{"name": name} for name in names]))
        assert asked(made) == claims_for(2)
        assert gates(made) == [*names, *(() if GATE in names else GATED)]


def in_every_order(api: Api, namespace: str, check: Callable[[], None]) -> None:
    """Calls `check` until the API server has evaluated our two policies in both orders: the order is as it comes, and
    comes anew when a policy changes. That of claims-rewrite notes on a pod whether our gate was there before."""
    ours = ("MutatingAdmissionPolicy", "gpu-extender-claims")
    note = (
        f"'{NOTE}' in object.metadata.?annotations.orValue({{}}) ? Object{{}} : Object{{metadata: Object.metadata{{"
        f"annotations: {{'{NOTE}': variables.gates.exists(gate, gate.name == '{GATE}') ? 'gated' : 'free'}}}}}}"
    )
    noting = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": note}}
    api.patch(*ours, {"spec": {"mutations": [noting, *api.get(*ours)["spec"]["mutations"]]}})
    seen: set[str] = set()
    for number in range(60):
        api.patch(*ours, {"metadata": {"labels": {"try": str(number)}}})
        time.sleep(1.5)  # the API server renews its view every second
        seen.add(tried(api, pod("p", namespace))["metadata"].get("annotations", {}).get(NOTE, ""))
        check()
        if {"gated", "free"} <= seen and number > 3:
            return
    pytest.fail(f"one order alone: {seen}")


def test_the_order_of_the_policies_does_not_matter(api: Api, rewritten: str) -> None:
    def check() -> None:
        plain, others = pod("p", rewritten, 4), pod("p", rewritten, 4, schedulingGates=[{"name": OTHER}])
        assert (asked(tried(api, plain)), gates(tried(api, plain))) == (claims_for(4), GATED)
        assert (asked(tried(api, others)), sorted(gates(tried(api, others)))) == (claims_for(4), sorted([OTHER, GATE]))

    in_every_order(api, rewritten, check)


def test_gpus_that_another_policy_adds_are_rewritten(api: Api, rewritten: str) -> None:
    """The pod has neither GPUs nor our scheduler's name when it is created."""
    gpus = (
        f"Object{{spec: Object.spec{{schedulerName: '{SCHEDULER}', containers: [Object.spec.containers{{name: 'main', "
        f"resources: Object.spec.containers.resources{{limits: {{'{GPU}': '2'}}}}}}]}}}}"
    )
    wanted = builders.pod("p", rewritten, 0, labels={"gpus-by": "policy"})
    with applied(api, other_policy(gpus)):
        wait_for(lambda: tried(api, wanted)["spec"]["schedulerName"] == SCHEDULER, 60, "the other policy is at work")

        def check() -> None:
            made = tried(api, wanted)
            assert (asked(made), gates(made)) == (claims_for(2), GATED)

        in_every_order(api, rewritten, check)


def namespace_templates(control_plane: ControlPlane, namespace: str) -> None:
    """As docs/dra.md has it."""
    kubectl("-n", namespace, "apply", "-f", str(TEMPLATES), kubeconfig=control_plane.kubeconfig())


def claim_failures(api: Api, namespace: str, name: str) -> str:
    """What the claim controller reports on a pod."""
    found = api.list("Event", namespace, fields=f"reason=FailedResourceClaimCreation,involvedObject.name={name}")
    return " ".join(one["message"] for one in found)


@pytest.mark.parametrize("serves", [True, False])
def test_quotas_count_the_claims(api: Api, rewritten: str, control_plane: ControlPlane, serves: bool) -> None:
    """That of the resource only where the DeviceClass serves it; never the pods, and never by priority."""
    namespace_templates(control_plane, rewritten)
    api.create(builders.priority_class("normal", 10))
    api.create(dra.device_class(extended_resource=GPU if serves else ""))
    scope = {"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["normal"]}]}}  # fmt: skip
    quotas: dict[str, tuple[str, int, Object]] = {
        "scoped": (f"requests.{GPU}", 1, scope),
        "resource": (f"requests.{GPU}", 3, {}),
        "class": (f"{dra.DRIVER}.deviceclass.resource.k8s.io/devices", 5, {}),
    }
    for name, (resource, hard, more) in quotas.items():
        meta = {"name": name, "namespace": rewritten}
        spec = {"hard": {resource: str(hard)}, **more}
        api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})

    def used(name: str) -> int:
        resource = quotas[name][0]
        return int(api.get("ResourceQuota", name, rewritten).get("status", {}).get("used", {}).get(resource, -1))

    wait_for(lambda: all(used(name) == 0 for name in quotas), 60, "the quotas' use")
    over_resource, over_class = (dra.claim("over", rewritten, number) for number in (4, 6))
    wait_for(
        lambda: "exceeded quota: class" in refusal(tried, api, over_class)
        and ("exceeded quota: resource" in refusal(tried, api, over_resource)) == serves,
        60, lambda: refusal(tried, api, over_class) + refusal(tried, api, over_resource),
    )  # fmt: skip
    for name in ("first", "second", "third"):
        api.create(pod(name, rewritten, 2, priority_class="normal"))
        wait_for(
            lambda name=name: api.list("ResourceClaim", rewritten) and (  # type: ignore[misc]
                claim_failures(api, rewritten, name)
                or any(one["metadata"]["name"].startswith(name) for one in api.list("ResourceClaim", rewritten))
            ), 60, "the claim",
        )  # fmt: skip
    over = "second" if serves else "third"
    assert "exceeded quota" in claim_failures(api, rewritten, over)
    wait_for(lambda: used("class") == (2 if serves else 4), 60, lambda: str(used("class")))
    assert used("scoped") == 0
    assert used("resource") == (2 if serves else 0)


def limit_range(api: Api, namespace: str, **limits: Any) -> None:
    meta = {"name": "gpus", "namespace": namespace}
    spec = {"limits": [{"type": "Container", **limits}]}
    api.create({"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": spec})


def test_a_limit_range(api: Api, rewritten: str) -> None:
    """Its default is set before the policies are evaluated, and again between their passes; `max` is a default too. It
    does not come back beside the claim: the pod would get both."""
    two, none = {GPU: "2"}, {GPU: "0"}
    plain, asking = pod("p", rewritten, 0), pod("p", rewritten, 4)
    limit_range(api, rewritten, default=two, defaultRequest=two)
    wait_for(lambda: asked(tried(api, plain)) == claims_for(2), 60, "the default")
    assert asked(tried(api, asking)) == claims_for(4)

    api.delete("LimitRange", "gpus", rewritten)
    limit_range(api, rewritten, max=two)
    over = "maximum nvidia.com/gpu usage per Container is 2"
    wait_for(lambda: over in refusal(tried, api, asking), 60, "the maximum")

    api.delete("LimitRange", "gpus", rewritten)
    limit_range(api, rewritten, max=two, default=none, defaultRequest=none)
    wait_for(lambda: asked(tried(api, plain)) == ([("0", "0", [])], []), 60, "the default of 0")
    assert asked(tried(api, asking)) == ([("0", "0", ["gpus-0"])], claims_for(4)[1])
    assert over in refusal(tried, api, pod("p", rewritten, 9))  # it is not rewritten


def rewriting_scene(scene: SceneFactory, api: Api, control_plane: ControlPlane, planning: Any) -> Scene:
    """Three nodes whose GPUs a driver publishes, the server, and a namespace that has all that the docs ask for."""
    api.create(dra.device_class(extended_resource=GPU))
    publish(api, "n0", "n1", "n2")
    made = scene({}, settings=planning)
    namespace_templates(control_plane, made.namespace)
    labelled(api, made.namespace, "default-scheduler")
    return made


@pytest.fixture
def by_default(api: Api) -> Iterator[None]:
    """The policies for the scheduler of the scene."""
    with applied(api, policies(scheduler="default-scheduler")):
        yield


def of_app(cluster: Scene, name: str, count: int) -> Objects:
    """The pods of an owner, once all are bound."""

    def look() -> Objects | None:
        found = cluster.api.list("Pod", cluster.namespace, labels=f"app={name}")
        return found if len(found) == count and all(one["spec"].get("nodeName") for one in found) else None

    return wait_for(look, 60, lambda: str(cluster.api.list("Pod", cluster.namespace, labels=f"app={name}")))


def test_the_queue_plans_the_devices_of_rewritten_pods(
    scene: SceneFactory, api: Api, by_default: None, control_plane: ControlPlane, planning: Any
) -> None:
    """Of a bare pod, a Job and a Deployment; first fit would take gpu-0 and gpu-1, which one link joins. In a namespace
    without the labels the extended resource stays, and kube-scheduler chooses."""
    cluster = rewriting_scene(scene, api, control_plane, planning)
    template = builders.pod("t", cluster.namespace, 2, grace=0)
    cluster.api.create(builders.pod("bare", cluster.namespace, 2, grace=0, labels={"app": "bare"}))
    cluster.api.create(builders.job("job", 2, template))
    replicas = builders.replica_set("set", 2, template)
    meta = {"name": "set", "namespace": cluster.namespace}
    cluster.api.create({**replicas, "kind": "Deployment", "metadata": meta})
    box = builders.container
    two = [box("a", 2), box("b", 2)]
    cluster.api.create(builders.pod("two", cluster.namespace, containers=two, grace=0, labels={"app": "two"}))
    for name, count in (("bare", 1), ("job", 2), ("set", 2), ("two", 1)):
        for made in of_app(cluster, name, count):
            assert asked(made) == (claims_for(2, 2) if name == "two" else claims_for(2))
            assert as_planned(made, allocations(cluster)), made
            planned = frozenset(map(int, made["metadata"]["annotations"][PLAN].split(",")))
            assert name == "two" or planned in LINKED
    limit_range(api, cluster.namespace, max={GPU: "1"}, default={GPU: "0"}, defaultRequest={GPU: "0"})
    wait_for(lambda: asked(tried(api, builders.pod("p", cluster.namespace, 0)))[0][0][0] == "0", 60, "the range")
    cluster.api.create(builders.pod("limited", cluster.namespace, 2, grace=0, labels={"app": "limited"}))
    [made] = of_app(cluster, "limited", 1)
    assert asked(made) == ([("0", "0", ["gpus-0"])], claims_for(2)[1])
    assert as_planned(made, allocations(cluster))
    assert twice(cluster) == []

    outside = str(api.create({**builders.namespace(""), "metadata": {"generateName": "e2e-"}})["metadata"]["name"])
    api.create(builders.pod("plain", outside, 1, grace=0))
    wait_for(lambda: api.get("Pod", "plain", outside)["spec"].get("nodeName"), 60, "the plain pod is bound")
    plain = api.get("Pod", "plain", outside)
    assert asked(plain) == ([("1", "1", [])], [])
    assert plain["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert PINNED not in plain["metadata"].get("annotations", {})


def queue_report(cluster: Scene) -> str:
    return plain.get(f"{cluster.extender.url}/debug/queue").text


def test_a_pod_whose_template_is_missing(
    scene: SceneFactory, api: Api, by_default: None, control_plane: ControlPlane, planning: Any
) -> None:
    """It waits in the queue, which states why, as the claim controller does; once the template is there the pod gets
    its planned devices."""
    cluster = rewriting_scene(scene, api, control_plane, planning)
    cluster.api.delete("ResourceClaimTemplate", "gpu-extender-gpus-2", cluster.namespace)
    cluster.api.create(builders.pod("p", cluster.namespace, 2, grace=0))
    missing = re.compile(r'PodResourceClaim gpus-0: .*"gpu-extender-gpus-2" not found')
    wait_for(lambda: missing.search(claim_failures(api, cluster.namespace, "p")), 60, "the Event of the controller")
    text = f"ResourceClaimTemplate {cluster.namespace}/gpu-extender-gpus-2 does not exist"
    wait_for(lambda: text in queue_report(cluster), 60, lambda: queue_report(cluster))

    def told() -> bool:
        events = api.list("Event", cluster.namespace, fields="reason=Waiting,involvedObject.name=p")
        return any(text in one["message"] for one in events)

    wait_for(told, 60, "the Event of the queue")
    assert gates(cluster.get("p")) == GATED
    assert text in str(explained(cluster, "p"))
    namespace_templates(control_plane, cluster.namespace)
    bound(cluster, "p")
    assert as_planned(cluster.get("p"), allocations(cluster))
