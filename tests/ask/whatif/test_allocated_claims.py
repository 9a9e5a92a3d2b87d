"""Claims that are allocated as kube-scheduler does, asked about over a cluster from a file."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, get_args

import pytest

from extender.ask import offline
from extender.ask.spared import Cause
from extender.ask.whatif import single
from extender.ask.whatif.question import Changes
from extender.cli.whatif import CAUSES
from extender.settings import Settings
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, topology_annotation
from extender.sim.machines import machine as catalogued
from tests.ask.asking import events
from tests.ask.checks.test_check import checked, cls, codes
from tests.ask.whatif.asking import ask, snapshot
from tests.world import GPU, JSON, WALL, machine, workload

MACHINE = catalogued("dgx1-v100", 4)
CHANNELS = "compute-domain-default-channel.nvidia.com"


def node(name: str, **published: Any) -> list[JSON]:
    note = topology_annotation(MACHINE, gpu_uuids(name, MACHINE))
    made = {"kind": "Node"} | machine(name, 0, annotations={"gpu-extender.io/topology": note})
    return [made, *dra.resource_slices(name, MACHINE, **published)]


def template(name: str, *requests: JSON, constraints: tuple[JSON, ...] = ()) -> JSON:
    spec = {"devices": {"requests": list(requests), "constraints": list(constraints)}}
    made = dra.claim(name, "default", 1, template=True)
    return made | {"spec": {"spec": spec}}


def exactly(**asked: Any) -> JSON:
    return {"name": "r", "exactly": {"deviceClassName": dra.DRIVER, **asked}}


def pods(number: int, *names: str, **more: Any) -> list[JSON]:
    claims = [{"name": f"c{at}", "resourceClaimTemplateName": name} for at, name in enumerate(names)]
    return [
        {"kind": "Pod", "apiVersion": "v1"} | workload(f"q{at}", 0, spec={"resourceClaims": claims, **more})
        for at in range(number)
    ]


def verdicts(answer: JSON) -> list[tuple[str, str | None, list[int] | None]]:
    return [(result["verdict"], result["node"], result["gpus"]) for result in answer["results"]]


CLUSTER = [dra.device_class(), dra.device_class("mig", kind="mig"), *node("n1"), *node("n2", divisible=True)]


def test_a_selector_that_selects_no_device() -> None:
    selectors = [{"cel": {"expression": f"device.attributes['{dra.DRIVER}'].productName == 'none'"}}]
    answer = ask([*CLUSTER, template("t", exactly(selectors=selectors))], pods(1, "t"))
    assert verdicts(answer) == [("cannot", None, None)]
    assert answer["results"][0]["reasons"] == {"claim-unmet": 2}
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "claim-unmet"]
    assert text.startswith("pod default/q0: request r of claim t is not met on 2 nodes; on n1: ")


def test_devices_of_a_class_that_no_node_publishes() -> None:
    """A pod of these alone is answered, not called one that asks for no GPU."""
    request = {"name": "r", "exactly": {"deviceClassName": "mig"}}
    answer = ask([*CLUSTER[:2], *node("n1"), template("t", request)], pods(1, "t"))
    assert verdicts(answer) == [("cannot", None, None)]
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "claim-unmet"]
    assert "no node publishes a device of DeviceClass mig: let the driver publish some" in text


def test_a_selector_that_cannot_be_evaluated() -> None:
    selectors = [{"cel": {"expression": "device.attributes.unheardOf()"}}]
    answer = ask([*CLUSTER, template("t", exactly(selectors=selectors))], pods(1, "t"))
    assert verdicts(answer)[0][0] == "fits"
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "claim-unknown"]
    assert text.startswith("pod default/q0: whether request r of claim t is met is not known on 2 nodes; on n1: ")
    assert answer["results"][0]["not_checked"] == ["resource claims"]


def gang(selector: str) -> list[JSON]:
    """A Job of two pods whose claims have this selector."""
    return job(template("t", exactly(selectors=[{"cel": {"expression": selector}}])))


def job(asked: JSON) -> list[JSON]:
    """A Job of two pods with a claim of this template."""
    [pod] = pods(1, "t")
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": {"spec": pod["spec"]}}
    return [
        asked,
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "default"}, "spec": spec},
    ]


def test_a_gang_is_told_once_which_request_is_not_met_or_not_known() -> None:
    asked, job = gang(f"device.attributes['{dra.DRIVER}'].productName == 'none'")
    answer = ask([*CLUSTER, asked], [job])
    assert [result["verdict"] for result in answer["results"]] == ["cannot"] * 2
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "claim-unmet"]
    assert text.startswith("pod default/j-0: request r of claim t is not met on 2 nodes; on n1: ")
    asked, job = gang("device.attributes.unheardOf()")
    answer = ask([*CLUSTER, asked], [job])
    [text] = [one["message"] for one in answer["warnings"] if one["code"] == "claim-unknown"]
    assert text.startswith("pod default/j-0: whether request r of claim t is met is not known on 2 nodes; on n1: ")


def test_a_gang_of_parts_of_gpus_alone_is_answered() -> None:
    asked, made = job(template("t", {"name": "r", "exactly": {"deviceClassName": "mig"}}))
    answer = ask([*CLUSTER, asked], [made])
    assert verdicts(answer) == [("fits", "n2", None)] * 2


def test_claims_that_are_known_are_not_called_unchecked() -> None:
    answer = ask([*CLUSTER, template("t", exactly(count=2))], pods(1, "t"))
    assert (answer["results"][0]["not_checked"], answer["warnings"]) == ([], [])


def test_parts_of_gpus_and_whole_ones_take_the_same_counters() -> None:
    part = template("part", {"name": "r", "exactly": {"deviceClassName": "mig"}})
    whole = template("whole", exactly(count=4, tolerations=[{"operator": "Exists"}]))
    answer = ask([*CLUSTER, part, whole], [*pods(1, "part"), *pods(3, "whole")[1:]])
    assert verdicts(answer) == [("fits", "n2", None), ("fits", "n1", [0, 1, 2, 3]), ("cannot", None, None)]


def test_alternatives_all_and_admin_access() -> None:
    preferred = {
        "name": "r",
        "firstAvailable": [
            {"name": "large", "deviceClassName": dra.DRIVER, "count": 8},
            {"name": "small", "deviceClassName": dra.DRIVER, "count": 3},
        ],
    }
    assert verdicts(ask([*CLUSTER, template("t", preferred)], pods(1, "t")))[0][2] == [0, 1, 2]
    every = template("t", exactly(allocationMode="All"))
    answer = ask([dra.device_class(), *node("n1"), every], pods(2, "t"))
    assert verdicts(answer) == [("fits", "n1", [0, 1, 2, 3]), ("cannot", None, None)]
    admin = template("admin", exactly(allocationMode="All", adminAccess=True))
    assert {verdict for verdict, _, _ in verdicts(ask([*CLUSTER, admin], pods(3, "admin")))} == {"fits"}


def test_a_node_without_channels_gets_no_pod_of_a_compute_domain_and_one_with_a_channel_one() -> None:
    slices = [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"channels-{name}"},
            "spec": {
                "driver": "compute-domain.nvidia.com",
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "channel-0", "attributes": {"type": {"string": "channel"}}}],
            },
        }
        for name in ("n1", "n2")
    ]
    text = "device.driver == 'compute-domain.nvidia.com'"
    channels = {"kind": "DeviceClass", "metadata": {"name": CHANNELS}}
    channels["spec"] = {"selectors": [{"cel": {"expression": text}}]}
    domain = {
        "kind": "ComputeDomain",
        "apiVersion": "resource.nvidia.com/v1beta1",
        "metadata": {"name": "cd", "namespace": "default"},
        "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "channel"}}},
    }
    cluster = [*CLUSTER, *node("n0"), *slices, channels, template("gpu", exactly(count=1))]
    answer = ask(cluster, [domain, *pods(3, "gpu", "channel")])
    assert [(verdict, where) for verdict, where, _ in verdicts(answer)] == [
        ("fits", "n1"), ("fits", "n2"), ("cannot", None),
    ]  # fmt: skip
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    members = pods(2, "gpu", "channel")
    for member in members:
        member["metadata"]["annotations"] = gang
    assert {where for _, where, _ in verdicts(ask(cluster, [domain, *members]))} == {"n1", "n2"}


def test_devices_of_a_class_as_an_extended_resource() -> None:
    resources = {"limits": {f"deviceclass.resource.kubernetes.io/{dra.DRIVER}": 3}}
    asking = pods(2, containers=[{"name": "c", "resources": resources}])
    answer = ask([dra.device_class(), *node("n1")], asking)
    assert verdicts(answer) == [("fits", "n1", [0, 1, 2]), ("cannot", None, None)]


def served(name: str, node_name: str, *gpus: int) -> list[JSON]:
    """A pod that runs, and the claim that kube-scheduler made for its extended resource."""
    pod: JSON = {"kind": "Pod"} | workload(name, len(gpus), node=node_name, phase="Running", start=WALL)
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": f"{name}-extended"}
    claim = dra.claim(f"{name}-extended", "default", len(gpus))
    results = [{"driver": dra.DRIVER, "pool": node_name, "device": f"gpu-{gpu}"} for gpu in gpus]
    users = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
    claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return [pod, claim]


SERVED = [dra.device_class(extended_resource=GPU), *node("n1"), *node("n2"), *served("r", "n1", 1)]


@pytest.mark.parametrize("others", [[], [{"resource": "pods", "name": "gone", "uid": "uid-gone"}]])
def test_a_drained_pod_asks_again_for_what_a_class_serves(others: list[JSON]) -> None:
    """The claim that was made for it is not the one that it gets then. `others`: of that claim's users."""
    *items, claim = deepcopy(SERVED)
    claim["status"]["reservedFor"] += others
    answer = ask([*items, claim, *served("s", "n2", 0)], changes=Changes(drain=("n1",)))
    assert verdicts(answer) == [("fits", "n2", [1])]


def test_the_devices_of_a_pod_that_is_evicted_are_free() -> None:
    """Those of the claim that was made for it, too."""
    whole = {"kind": "Pod"} | workload("q", 4)
    supposed = snapshot([dra.device_class(extended_resource=GPU), *node("n1"), *served("r", "n1", 1), whole])
    pod = supposed.cluster.pods["uid-q"]
    assert single.judge(supposed, pod, WALL).result["verdict"] == "cannot"
    supposed.evict([supposed.cluster.pods["uid-r"]])
    assert single.judge(supposed, pod, WALL).result["gpus"] == [0, 1, 2, 3]


def test_explain_states_the_devices_that_whatif_states() -> None:
    limits = {f"deviceclass.resource.kubernetes.io/{dra.DRIVER}": 2}
    items = [*SERVED, *pods(1, containers=[{"name": "c", "resources": {"limits": limits}}])]
    [result] = ask(items, pods=[("default", "q0")])["results"]
    shown = offline.explain(Settings(), events(items), ("default", "q0"), WALL)
    assert (shown["node"], shown["gpus"]) == (result["node"], result["gpus"]) == ("n1", [0, 2])


def test_a_pod_with_devices_of_claims_is_no_victim() -> None:
    items = [*SERVED, {"kind": "Pod"} | workload("q", 4, priority=9), *served("s", "n2", 0)]
    [result] = ask(items, pods=[("default", "q")])["results"]
    assert [(one["cause"], one["pods"], one["gpus"]) for one in result["spared"]] == [("claims", 2, 2)]
    shown = offline.explain(Settings(), events(items), ("default", "r"), WALL)
    assert (shown["evictable_by"], shown["spared"]["cause"]) == ([], "claims")
    assert "no-checkpoint" not in codes(checked(*SERVED, cls("high", 10), cls("low", 1)))


def test_each_cause_has_words() -> None:
    """But for pods that no node has: what-if looks at nodes."""
    assert set(get_args(Cause)) - {"", "no-node"} <= CAUSES.keys()


@pytest.mark.parametrize(("name", "more"), [("mig", {}), (dra.DRIVER, {"adminAccess": True})])
def test_explain_answers_for_devices_that_do_not_count_as_whatif_does(name: str, more: JSON) -> None:
    """Parts of GPUs, and admin access."""
    items = [*CLUSTER, template("t", {"name": "r", "exactly": {"deviceClassName": name, **more}}), *pods(1, "t")]
    [result] = ask(items, pods=[("default", "q0")])["results"]
    shown = offline.explain(Settings(), events(items), ("default", "q0"), WALL)
    assert (shown["verdict"], shown["node"]) == (result["verdict"], result["node"])
    assert shown["verdict"] == "fits"
