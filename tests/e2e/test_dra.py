"""Pods that get GPUs by DRA, with the real scheduler's DynamicResources plugin: which of them reach the extender, and
what it knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.build import release
from tests.e2e.scene import Scene, SceneFactory
from tests.waiting import wait_for

GPU = "nvidia.com/gpu"
MACHINE = machine("dgx1-v100")
ALL_PODS: Mapping[str, Any] = {"managedResources": None}
SERVED = pytest.mark.skipif(
    release() < "1.36", reason="before 1.36 extended resources of DeviceClasses and device taints are alpha, and off"
)


def publish(api: Api, *names: str, **published: Any) -> None:
    """Nodes whose GPUs a DRA driver publishes, and no device plugin."""
    for name in names:
        notes = {"gpu-extender.io/topology": topology_annotation(MACHINE, gpu_uuids(name, MACHINE))}
        api.create(builders.node(name, 0, annotations=notes))
        for one in dra.resource_slices(name, MACHINE, **published):
            api.create(one)


def claimant(name: str, namespace: str, gpus: int, *, template: bool = False, **options: Any) -> list[Object]:
    """A pod, and the claim or the template of claims that it names."""
    made = dra.claim(f"{name}-claim", namespace, gpus, template=template)
    key = "resourceClaimTemplateName" if template else "resourceClaimName"
    claims = [{"name": "gpus", key: f"{name}-claim"}]
    return [made, builders.pod(name, namespace, 0, resourceClaims=claims, **options)]


def create(scene: Scene, objects: list[Object]) -> None:
    for one in objects:
        made = scene.api.create(one)
        if one["kind"] == "Pod":
            scene.uids[one["metadata"]["name"]] = made["metadata"]["uid"]


def bound(scene: Scene, name: str) -> str:
    node = wait_for(lambda: scene.get(name)["spec"].get("nodeName"), 60, lambda: str(scene.get(name)["status"]))
    return str(node)


def allocated(scene: Scene, name: str) -> set[str]:
    """The devices that the claims of the pod were allocated."""
    uid = scene.get(name)["metadata"]["uid"]
    return {
        result["device"]
        for claim in scene.api.list("ResourceClaim", scene.namespace)
        if any(one["uid"] == uid for one in claim.get("status", {}).get("reservedFor", ()))
        for result in claim["status"]["allocation"]["devices"]["results"]
    }


def known(scene: Scene, name: str) -> tuple[str | None, list[int] | None]:
    """(how, GPUs) as the server has them."""
    pod = scene.known().get(scene.uids[name], {})
    return pod.get("how"), pod.get("gpus")


def observed_as_allocated(scene: Scene, name: str) -> None:
    """Wait until the server observes the very devices that are allocated."""

    def look() -> bool:
        how, gpus = known(scene, name)
        return how == "observed" and {f"gpu-{gpu}" for gpu in gpus or ()} == allocated(scene, name)

    wait_for(look, 60, lambda: f"{name}: {known(scene, name)}, allocated: {allocated(scene, name)}")


@SERVED
@pytest.mark.parametrize(("changes", "reach"), [({}, {"served"}), (ALL_PODS, {"named", "templated", "served"})])
def test_which_pods_reach_the_extender(
    scene: SceneFactory, api: Api, changes: Mapping[str, Any], reach: set[str]
) -> None:
    api.create(dra.device_class(extended_resource=GPU))
    publish(api, "n1", "n2")
    made = scene({}, **changes)
    create(made, claimant("named", made.namespace, 2))
    create(made, claimant("templated", made.namespace, 2, template=True))
    made.pod("served", 2)
    names = ("named", "templated", "served")
    for name in names:
        bound(made, name)
        observed_as_allocated(made, name)
    assert {name for name in names if made.decisions(name)} == reach
    assert all(len(allocated(made, name)) == 2 for name in names)


def test_tenants_cannot_write_allocations(api: Api) -> None:
    """Nor which pods a claim is reserved for: no role that namespaces' users have lets them write the status."""

    def rules(role: str) -> Any:
        return api.get("ClusterRole", role)["rules"]  # None until a controller has added them up

    for role in ("admin", "edit", "view"):
        for rule in wait_for(partial(rules, role), 60, f"the rules of {role}"):
            written = {"update", "patch", "create", "*"} & {*rule["verbs"]}
            assert not (written and {"resourceclaims/status", "resourceclaims/binding"} & {*rule.get("resources", ())})


def test_a_claim_is_free_again_when_its_pod_is_deleted(scene: SceneFactory, api: Api) -> None:
    api.create(dra.device_class(extended_resource=GPU))
    publish(api, "n1")
    made = scene({}, **ALL_PODS)
    create(made, claimant("first", made.namespace, 8, grace=0))
    bound(made, "first")
    create(made, claimant("second", made.namespace, 8, template=True, grace=0))
    observed_as_allocated(made, "first")
    made.api.delete("Pod", "first", made.namespace)
    assert bound(made, "second") == "n1"
    observed_as_allocated(made, "second")


@SERVED
def test_tainted_devices_are_given_to_no_pod(scene: SceneFactory, api: Api) -> None:
    api.create(dra.device_class(extended_resource=GPU))
    publish(api, "n1", taints={0: "gpu.nvidia.com/xid", 1: "gpu.nvidia.com/xid"})
    publish(api, "n2")
    made = scene({}, **ALL_PODS)
    made.pod("large", 7)
    assert bound(made, "large") == "n2"
    made.pod("small", 6)
    assert bound(made, "small") == "n1"
    assert allocated(made, "small").isdisjoint({"gpu-0", "gpu-1"})
    observed_as_allocated(made, "small")
