"""Records from Kubernetes objects: the fields, the sums, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.pods import Repelling
from extender.objects import decode, devices, limits, records
from extender.objects.limits import QuotaFacts
from extender.objects.pods import PodClaimRef
from extender.objects.records import Owner, PodRecord, RecordError
from extender.objects.selectors import NodeTerm, Requirement, Taint, Toleration, shared_tolerations

GPU = "nvidia.com/gpu"
GPUS = frozenset({GPU, "amd.com/gpu"})
GI = 2**30


def container(name: str = "main", *, always: bool = False, **requests: str) -> dict[str, Any]:
    """A container; ``gpu``, ``amd`` and ``mig`` stand for the resources' names."""
    names = {"gpu": GPU, "amd": "amd.com/gpu", "mig": "nvidia.com/mig-1g.5gb"}
    made: dict[str, Any] = {"name": name, "resources": {"requests": {names.get(k, k): v for k, v in requests.items()}}}
    return {**made, "restartPolicy": "Always"} if always else made


def pod_of(**spec: Any) -> PodRecord:
    """A pod with this spec, once as bytes and once as a dict: both give the same record."""
    return whole(metadata={"name": "p"}, spec=spec)


def whole(**parts: Any) -> PodRecord:
    """The record of an object with these parts."""
    made = records.pod(json.dumps(parts).encode(), GPUS)
    assert records.pod(parts, GPUS) == made
    return made


@pytest.mark.parametrize(
    ("spec", "cpu_milli", "memory", "gpus"),
    [
        pytest.param({}, 0, 0, (), id="nothing"),
        pytest.param(
            {"containers": [container(cpu="500m", memory="1Gi", gpu="1"), container("b", cpu="1", gpu="2")]},
            1500,  # 500 + 1000
            GI,
            ((GPU, 3),),
            id="containers add up",
        ),
        pytest.param(
            {"containers": [{"name": "a", "resources": {"limits": {GPU: "2", "cpu": "3"}, "requests": {"cpu": "1"}}}]},
            1000,  # the request, not the limit
            0,
            ((GPU, 2),),  # the limit fills the request
            id="limits fill requests",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container("i", cpu="3"), container("j", cpu="2")]},
            3000,  # max(1000, max(3000, 2000))
            0,
            (),
            id="init containers run one after the other",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1", gpu="1")],
                "initContainers": [
                    container("i0", cpu="2"),  # step: 2000
                    container("s1", always=True, cpu="1", gpu="1"),  # step: 1000
                    container("i2", cpu="3"),  # step: 3000 + 1000
                    container("s3", always=True, cpu="500m"),  # step: 1500
                ],
            },
            4000,  # max(1000 + 1000 + 500, 4000)
            0,
            ((GPU, 2),),  # max(1 + 1, 1)
            id="sidecars count on, and during later init containers",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1")],
                "initContainers": [container("i", cpu="3"), container("s", always=True, cpu="2500m")],
            },
            3500,  # max(1000 + 2500, max(3000, 2500)): the sidecar comes after the init container
            0,
            (),
            id="a later sidecar does not burden an earlier init container",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1", memory="1Gi", gpu="1")],
                "overhead": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
            },
            1250,
            GI + 64 * 2**20,
            ((GPU, 1),),
            id="overhead",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1", memory="1Gi", gpu="4")],
                "resources": {"requests": {"cpu": "6", GPU: "9"}},
                "overhead": {"cpu": "1"},
            },
            7000,  # 6000 + 1000 overhead
            GI,  # the containers', since the pod does not say
            ((GPU, 4),),  # no devices at the level of the pod
            id="pod-level requests replace CPU and memory",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "resources": {"limits": {"cpu": "6", "memory": "2Gi"}}},
            1000,  # the containers ask for CPU
            2 * GI,  # nobody asks for memory: the limit
            (),
            id="a pod-level limit alone",
        ),
        pytest.param(
            {"containers": [container(gpu="0", amd="8")]},
            0,
            0,
            (("amd.com/gpu", 8),),
            id="a GPU count of 0 is none",
        ),
        pytest.param({"containers": [container(mig="1")]}, 0, 0, (), id="only the names given"),
        pytest.param({"containers": [{"name": "a", "resources": {"requests": None}}]}, 0, 0, (), id="null requests"),
    ],
)
def test_requests(spec: dict[str, Any], cpu_milli: int, memory: int, gpus: tuple[tuple[str, int], ...]) -> None:
    made = pod_of(**spec)
    assert (made.cpu_milli, made.memory, made.gpus) == (cpu_milli, memory, gpus)


def status_of(**more: Any) -> dict[str, Any]:
    return {"name": "main", **more}


@pytest.mark.parametrize(
    ("status", "cpu_milli"),
    [
        pytest.param({"containerStatuses": [status_of(allocatedResources={"cpu": "3"})]}, 3000, id="allocated is more"),
        pytest.param({"containerStatuses": [status_of(allocatedResources={"cpu": "1"})]}, 2000, id="wanted is more"),
        pytest.param(
            {
                "containerStatuses": [
                    status_of(allocatedResources={"cpu": "1"}, resources={"requests": {"cpu": "2500m"}})
                ]
            },
            2500,
            id="in effect is more",
        ),
        pytest.param(
            {
                "containerStatuses": [status_of(allocatedResources={"cpu": "1"})],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            },
            1000,
            id="an infeasible wish does not count",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"cpu": "5"}}, 5000, id="for the whole pod"
        ),
        pytest.param({"containerStatuses": [{"name": "other", "allocatedResources": {"cpu": "9"}}]}, 2000, id="other"),
    ],
)
def test_a_resize_counts_the_larger(status: dict[str, Any], cpu_milli: int) -> None:
    made = whole(metadata={"name": "p"}, spec={"containers": [container(cpu="2", gpu="1")]}, status=status)
    assert made.cpu_milli == cpu_milli


def test_gpu_containers_are_in_the_order_of_admission() -> None:
    made = pod_of(
        containers=[container("a", gpu="2"), container("b", cpu="1"), container("c", gpu="1", amd="3")],
        initContainers=[container("i", gpu="4")],
    )
    assert made.gpu_containers == (("i", GPU, 4), ("a", GPU, 2), ("c", "amd.com/gpu", 3), ("c", GPU, 1))
    assert made.gpus == (("amd.com/gpu", 3), (GPU, 4))


def test_every_field_of_a_pod() -> None:
    made = whole(
        metadata={
            "name": "train-0",
            "namespace": "team",
            "uid": "u-1",
            "resourceVersion": "42",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T01:00:00Z",
            "deletionGracePeriodSeconds": 7,
            "labels": {"app": "x", "none": None},
            "annotations": {"gpu-extender.io/gang": "g", "other/thing": "1", "kubernetes.io/config.mirror": "m"},
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": "no", "uid": "o-0"},
                {"kind": "DaemonSet", "name": "yes", "uid": "o-1", "controller": True},
            ],
            "unknown": {"deep": [1]},
        },
        spec={
            "nodeName": "n1",
            "schedulerName": "gpu",
            "priority": -5,
            "priorityClassName": "batch",
            "preemptionPolicy": "Never",
            "terminationGracePeriodSeconds": 60,
            "schedulingGates": [{"name": "wait"}],
            "containers": [{"name": "a", "ports": [{"hostPort": 80}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "resourceClaims": [{"name": "r"}],
            "nodeSelector": {"b": "2", "a": "1"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoExecute"}],
            "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}],
        },
        status={
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "nominatedNodeName": "n2",
            "startTime": "2026-01-01T00:00:01.5Z",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
            ],
            "containerStatuses": [
                {
                    "name": "a",
                    "restartCount": 2,
                    "allocatedResourcesStatus": [
                        {"name": GPU, "resources": [{"resourceID": "GPU-2"}, {"resourceID": "GPU-1"}]},
                        {"name": GPU, "resources": [{"resourceID": "GPU-1", "health": "Healthy"}]},
                        {"name": "claim:r", "resources": [{"resourceID": "x"}]},
                    ],
                }
            ],
            "initContainerStatuses": [
                {"name": "i", "allocatedResourcesStatus": [{"name": GPU, "resources": [{"resourceID": "GPU-3"}]}]}
            ],
        },
    )
    assert made == PodRecord(
        uid="u-1",
        namespace="team",
        name="train-0",
        resource_version="42",
        labels={"app": "x", "none": ""},
        annotations={"gpu-extender.io/gang": "g"},
        owner=Owner("DaemonSet", "yes", "o-1"),
        created=1767225600.0,
        terminating=True,
        deletion_at=1767229200.0,
        grace_seconds=7,
        daemon=True,
        mirror=True,
        node="n1",
        nominated_node="n2",
        scheduler_name="gpu",
        priority=-5,
        priority_class="batch",
        priority_given=True,
        never=True,
        gates=("wait",),
        deadline_seconds=None,
        phase="Failed",
        reason="UnexpectedAdmissionError",
        disruption_target="PreemptionByScheduler",
        pod_scheduled="Unschedulable",
        start=1767225601.5,
        restarts=2,
        cpu_milli=0,
        memory=0,
        gpus=(),
        gpu_containers=(),
        held=((GPU, "GPU-1"), (GPU, "GPU-2"), (GPU, "GPU-3")),
        node_selector=(("a", "1"), ("b", "2")),
        node_terms=None,
        tolerations=(Toleration("gpu", "Exists", "", ""), Toleration("k", "Equal", "v", "NoExecute")),
        host_ports=True,
        volumes=True,
        claims=True,
        claim_refs=(PodClaimRef("", ""),),
        other_resources=False,
        required_affinity=False,
        preferred_affinity=False,
        hard_spread=True,
        soft_spread=False,
        anti_affinity_terms=(),
        affinity_terms=(),
        group=None,
        service_account="default",
        quota_facts=QuotaFacts((), ("requests.cpu", "requests.memory", "limits.cpu", "limits.memory"), True),
    )
    assert made.finished


def test_nulls_everywhere_are_absent_fields() -> None:
    spec = dict.fromkeys(
        ["nodeName", "priority", "containers", "initContainers", "overhead", "resources", "volumes", "affinity",
         "tolerations", "topologySpreadConstraints", "nodeSelector", "resourceClaims", "schedulingGates"]
    )  # fmt: skip
    status = dict.fromkeys(["phase", "conditions", "containerStatuses", "startTime", "resources"])
    meta = {**dict.fromkeys(["labels", "annotations", "ownerReferences", "creationTimestamp", "uid"]), "name": "p"}
    assert whole(metadata=meta, spec=spec, status=status) == whole(metadata={"name": "p"})


def affinity(kind: str, **more: Any) -> dict[str, Any]:
    return {"affinity": {kind: more}}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "flag"),
    [
        ({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]}, "host_ports"),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, "host_ports"),
        ({"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}, "volumes"),
        ({"resourceClaims": [{"name": "r", "resourceClaimName": "c"}]}, "claims"),
        (affinity("podAffinity", **{REQUIRED: [{"topologyKey": "z", "labelSelector": {}}]}), "required_affinity"),
        (affinity("podAntiAffinity", **{REQUIRED: [{"topologyKey": "z", "labelSelector": {}}]}), "required_affinity"),
        (affinity("podAffinity", **{PREFERRED: [{"weight": 1}]}), "preferred_affinity"),
        (affinity("podAntiAffinity", **{PREFERRED: [{"weight": 1}]}), "preferred_affinity"),
        (affinity("nodeAffinity", **{PREFERRED: [{"weight": 1}]}), "preferred_affinity"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "hard_spread"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, "soft_spread"),
    ],
)
def test_what_a_pod_wants(spec: dict[str, Any], flag: str) -> None:
    flags = ("host_ports", "volumes", "claims", "required_affinity", "preferred_affinity", "hard_spread", "soft_spread")
    made = pod_of(**spec)
    assert [name for name in flags if getattr(made, name)] == [flag]


def test_harmless_wants_are_none() -> None:
    made = pod_of(
        volumes=[{"name": "v", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}],
        containers=[{"name": "a", "ports": [{"containerPort": 80}]}],
        affinity={"podAffinity": {REQUIRED: [], PREFERRED: None}},
    )
    assert not any([made.volumes, made.host_ports, made.required_affinity, made.preferred_affinity])


@pytest.mark.parametrize(
    ("term", "namespace", "labels", "expected"),
    [
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, "default", {"app": "x"}, True),
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, "default", {"app": "y"}, False),
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, "other", {"app": "x"}, False),  # its own namespace only
        ({"labelSelector": {}, "namespaces": ["other"]}, "other", {}, True),
        ({"labelSelector": {}, "namespaces": ["other"]}, "default", {}, False),
        ({"labelSelector": {}, "namespaceSelector": {}}, "anything", {}, True),
        ({"labelSelector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}}, "anything", {}, True),  # unknown
        ({}, "default", {}, False),  # the null selector matches nothing
        (
            {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}},
            "default",
            {},
            True,
        ),
    ],
)
def test_what_a_required_anti_affinity_matches(
    term: dict[str, Any], namespace: str, labels: dict[str, str], expected: bool
) -> None:
    terms = affinity("podAntiAffinity", **{REQUIRED: [{"topologyKey": "kubernetes.io/hostname", **term}]})
    repelling = pod_of(nodeName="n", **terms)
    other = whole(metadata={"name": "o", "namespace": namespace, "labels": labels})
    bound = Repelling()
    bound.add(repelling)
    assert bound.nodes(other, ["n", "m"]) == ({"n"} if expected else set())
    assert not bound.nodes(other, ["m"])


def test_accepts_a_node() -> None:
    expression = {"key": "gpu", "operator": "In", "values": ["h100"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}, {"matchFields": []}]}
    made = pod_of(nodeSelector={"zone": "a"}, affinity={"nodeAffinity": {REQUIRED: terms}})
    assert made.node_terms == (NodeTerm((Requirement("gpu", "In", ("h100",)),)), NodeTerm())

    def node(**labels: str) -> records.NodeRecord:
        return records.node({"metadata": {"name": "n", "labels": labels}}, GPUS)

    assert made.accepts(node(zone="a", gpu="h100"))
    assert not made.accepts(node(zone="b", gpu="h100"))
    assert not made.accepts(node(zone="a", gpu="a100"))
    assert pod_of().accepts(node())


def test_every_field_of_a_node() -> None:
    made = records.node(
        json.dumps(
            {
                "metadata": {
                    "name": "n1",
                    "uid": "u",
                    "resourceVersion": "9",
                    "labels": {"a": "b"},
                    "annotations": {"gpu-extender.io/topology": "t", "csi.volume": "x"},
                },
                "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": None}]},
                "status": {
                    "allocatable": {"cpu": "95500m", "memory": "1Ti", "pods": "110", GPU: "7"},
                    "capacity": {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"},
                    "images": [{"names": ["x"], "sizeBytes": 1}],
                },
            }
        ).encode(),
        GPUS,
    )
    assert made == records.NodeRecord(
        uid="u",
        name="n1",
        resource_version="9",
        labels={"a": "b"},
        annotations={"gpu-extender.io/topology": "t"},
        unschedulable=True,
        taints=(Taint("k", "", "NoSchedule"),),
        cpu_milli=95500,
        memory=2**40,
        pods=110,
        gpus={GPU: 7},
        gpu_capacity={GPU: 8},
    )


def test_a_node_without_allocatable_offers_its_capacity() -> None:
    made = records.node({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 4, GPU: 2}}}, GPUS)
    assert (made.cpu_milli, made.gpus, made.memory) == (4000, {GPU: 2}, 0)


def test_a_budget() -> None:
    made = limits.pod_disruption_budget(
        {
            "metadata": {"name": "b", "namespace": "team"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": "50%"},
            "status": {"disruptionsAllowed": 1, "disruptedPods": {"p1": "2026-01-01T00:00:00Z"}},
        }
    )
    assert (made.namespace, made.disruptions_allowed, made.disrupted_pods) == ("team", 1, frozenset({"p1"}))
    assert made.selector.matches({"app": "x"})
    assert not made.selector.matches({})
    everything = limits.pod_disruption_budget({"metadata": {"name": "b"}, "spec": {"selector": {}}})
    assert everything.selector.empty
    assert everything.disruptions_allowed == 0
    nothing = limits.pod_disruption_budget({"metadata": {"name": "b"}, "spec": {"selector": None}})
    assert not nothing.selector.matches({"app": "x"})


def test_priority_and_device_classes() -> None:
    made = limits.priority_class({"metadata": {"name": "c"}, "value": 7, "preemptionPolicy": "Never"})
    assert (made.value, made.never, made.global_default) == (7, True, False)
    with pytest.raises(RecordError, match="value"):
        limits.priority_class({"metadata": {"name": "c"}})
    device = devices.device_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU}})
    assert device.extended_resource_name == GPU
    assert devices.device_class({"metadata": {"name": "gpu"}}).extended_resource_name == ""


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        (b"{", "", "not JSON"),
        (b"[]", "", "expected an object"),
        (b"{}", "metadata.name", "no name"),
        (b'{"metadata":{"name":"p"},"spec":{"nodeName":7}}', "spec.nodeName", "expected text"),
        (b'{"metadata":{"name":"p"},"spec":{"priority":2147483648}}', "spec.priority", "2147483647"),
        (b'{"metadata":{"name":"p"},"spec":{"priority":"1"}}', "spec.priority", "expected a whole number"),
        (b'{"metadata":{"name":"p","creationTimestamp":"today"}}', "metadata.creationTimestamp", "RFC3339"),
        (b'{"metadata":{"name":"p","labels":{"a":1}}}', "metadata.labels[...]", "expected text"),
    ],
)
def test_refused(source: bytes, path: str, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        records.pod(source, GPUS)
    assert caught.value.path == path
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (
            {"containers": [container(), container(cpu="-1")]},
            "spec.containers[1].resources.requests.cpu",
        ),
        ({"initContainers": [container(memory="lots")]}, "spec.initContainers[0].resources.requests.memory"),
        ({"containers": [container(gpu="500m")]}, f"spec.containers[0].resources.requests.{GPU}"),
        ({"containers": [{"resources": {"limits": {GPU: "9e99"}}}]}, f"spec.containers[0].resources.limits.{GPU}"),
        ({"overhead": {"cpu": "x"}}, "spec.overhead.cpu"),
    ],
)
def test_impossible_quantities_say_where(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(RecordError) as caught:
        pod_of(**spec)
    assert caught.value.path == path


def test_selectors_that_the_api_refuses() -> None:
    for expression in (
        {"key": "k", "operator": "In"},
        {"key": "k", "operator": "Exists", "values": ["v"]},
        {"key": "k", "operator": "Gt", "values": ["1"]},
        {"key": "k", "operator": "Near", "values": ["1"]},
    ):
        with pytest.raises(RecordError, match="matchExpressions"):
            limits.pod_disruption_budget(
                {"metadata": {"name": "b"}, "spec": {"selector": {"matchExpressions": [expression]}}}
            )


def test_a_page_keeps_its_objects_as_bytes() -> None:
    page = records.page(
        b'{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"t"},"items":[{"metadata":{"name":"p"}}]}'
    )
    assert (page.kind, page.resource_version, page.continue_token) == ("Pod", "5", "t")
    assert records.pod(page.items[0], GPUS).name == "p"
    assert records.page(b'{"kind":"NodeList","metadata":{},"items":null}').items == []
    with pytest.raises(RecordError, match="not a list"):
        records.page(b'{"kind":"Status","message":"no"}')


def test_identity_of_an_object_that_is_otherwise_unreadable() -> None:
    found = records.identity(b'{"metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"3"},"spec":7}')
    assert found == ("n", "p", "u", "3")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["metadata", "spec", "status", "name", "containers", "resources", "requests", "cpu", "limits", "conditions",
          "affinity", "podAntiAffinity", REQUIRED, "labelSelector", "matchLabels", "tolerations", "value"]  # fmt: skip
shaped = st.recursive(
    json_values,
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5) | st.lists(inner),
    max_leaves=20,
)


@given(shaped)
def test_any_json_is_a_record_or_refused(source: Any) -> None:
    """Nothing but RecordError comes out of the decoders."""
    raw = json.dumps(source).encode()
    for kind in records.KINDS:
        try:
            decode.record(kind, raw, GPUS)
        except RecordError:
            continue


def test_tolerations_of_great_length_are_not_kept() -> None:
    """Those of most pods are shared. What one tenant writes at length goes with its pod."""

    def tolerations(*keys: str) -> tuple[Toleration, ...]:
        return pod_of(tolerations=[{"key": key, "operator": "Exists"} for key in keys]).tolerations

    assert tolerations("a", "b") is tolerations("a", "b")
    before = shared_tolerations.cache_info().currsize
    for i in range(20):
        assert len(tolerations(*[f"k{i}-{n}" for n in range(17)])) == 17
        assert tolerations("x" * 1024 + str(i))[0].operator == "Exists"
    assert shared_tolerations.cache_info().currsize == before
    assert shared_tolerations.cache_info().maxsize == 1024
