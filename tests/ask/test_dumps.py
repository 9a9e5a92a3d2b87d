"""What `kubectl get` prints of real kinds of clusters is read as it is, in every form in which it comes into a file."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import yaml

from extender.ask import frozen
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import engine, question
from extender.ask.whatif.question import Document
from extender.errors import BadCluster
from extender.objects.decode import Invalid
from extender.objects.records import Event, NodeRecord, PodRecord
from extender.settings import Settings
from tests.world import JSON, WALL

GPUS: Final = frozenset({"nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.shared"})


def node(
    name: str, labels: JSON, allocatable: JSON, *, spec: JSON | None = None, os: str = "linux", **meta: Any
) -> JSON:
    """A node with all that kubelet and controllers write into it."""
    amounts = {
        "cpu": "15890m",
        "memory": "60055600Ki",
        "pods": "110",
        "ephemeral-storage": "95551679124",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "184467",
            "generation": 3,
            "creationTimestamp": "2026-10-01T08:00:00Z",
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": os, "kubernetes.io/arch": "amd64"} | labels,
            "annotations": {
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "node.alpha.kubernetes.io/ttl": "0",
            },
            "finalizers": ["wrangler.cattle.io/node"],
            "managedFields": [
                {
                    "apiVersion": "v1",
                    "fieldsType": "FieldsV1",
                    "manager": "kubelet",
                    "operation": "Update",
                    "subresource": "status",
                    "time": "2026-11-01T00:00:00Z",
                    "fieldsV1": {"f:status": {"f:allocatable": {".": {}, "f:cpu": {}}}},
                }
            ],
            **meta,
        },
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "providerID": f"provider:///{name}"}
        | (spec or {}),
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "allocatable": amounts | allocatable,
            "capacity": amounts | {"cpu": "16"} | allocatable,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": "2026-11-01T00:00:00Z",
                    "lastTransitionTime": "2026-10-01T08:00:00Z",
                }
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["registry.example/x@sha256:0", "registry.example/x:1"], "sizeBytes": 123456789}],
            "nodeInfo": {
                "kubeletVersion": "v1.35.1",
                "operatingSystem": os,
                "architecture": "amd64",
                "swap": {"capacity": 0},
            },
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": True}}],
            "features": {"supplementalGroupsPolicy": True},
            "volumesInUse": ["kubernetes.io/csi/x^1"],
            "volumesAttached": [{"name": "kubernetes.io/csi/x^1", "devicePath": ""}],
            "declaredFeatures": ["X"],
        },
    }


GPU_TAINT: Final = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
NODES: Final[dict[str, list[JSON]]] = {
    "gke": [
        node(
            "gke-a3-1",
            {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "cloud.google.com/gke-nodepool": "a3"},
            {"nvidia.com/gpu": "8", "attachable-volumes-gce-pd": "127"},
            spec={"taints": [GPU_TAINT]},
        ),
        node("gke-default-1", {"cloud.google.com/gke-nodepool": "default"}, {"attachable-volumes-gce-pd": "15"}),
    ],
    "eks": [
        node(
            "ip-10-0-0-1.ec2.internal",
            {"eks.amazonaws.com/nodegroup": "p5", "node.kubernetes.io/instance-type": "p5.48xlarge"},
            {
                "nvidia.com/gpu": "8",
                "vpc.amazonaws.com/efa": "32",
                "hugepages-2Mi": "10486Mi",
                "vpc.amazonaws.com/pod-eni": "107",
            },
        ),
        node(
            "fargate-ip-10-0-0-2",
            {"eks.amazonaws.com/compute-type": "fargate"},
            {"pods": "1"},
            spec={"taints": [{"key": "eks.amazonaws.com/compute-type", "value": "fargate", "effect": "NoSchedule"}]},
        ),
    ],
    "aks": [
        node(
            "aks-gpu-1-vmss000000",
            {"kubernetes.azure.com/agentpool": "gpu", "kubernetes.azure.com/accelerator": "nvidia"},
            {"nvidia.com/gpu": "4", "attachable-volumes-azure-disk": "8"},
            spec={"taints": [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}]},
        ),
        node("akswin000000", {"kubernetes.azure.com/os-sku": "Windows2022"}, {}, os="windows"),
        node(
            "virtual-node-aci-linux",
            {"type": "virtual-kubelet"},
            {"cpu": "10k", "memory": "4Ti", "pods": "5k", "nvidia.com/gpu": "100"},
            spec={"taints": [{"key": "virtual-kubelet.io/provider", "value": "azure", "effect": "NoSchedule"}]},
        ),
    ],
    "openshift": [
        node(
            "worker-0",
            {"node-role.kubernetes.io/worker": "", "node.openshift.io/os_id": "rhcos", "nvidia.com/gpu.count": "2"},
            {
                "nvidia.com/gpu": "2",
                "devices.kubevirt.io/kvm": "1k",
                "openshift.io/mlnx": "8",
                "nvidia.com/GA102GL_A10": "0",
            },
        ),
        node(
            "master-0",
            {"node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/master": ""},
            {},
            spec={"taints": [{"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"}], "unschedulable": True},
        ),
    ],
    "vks": [
        node(
            "vks-np-1-abc",
            {"run.tanzu.vmware.com/kubernetesDistributionVersion": "v1.33.1", "topology.kubernetes.io/zone": "z1"},
            {"nvidia.com/gpu": "4"},
            ownerReferences=None,
        ),
    ],
    "runai": [
        node(
            "dgx-1",
            {
                "runai/node-pool": "default",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.sharing-strategy": "none",
            },
            {"nvidia.com/gpu": "8", "rdma/rdma_shared_device_a": "63"},
        ),
        node(
            "dgx-2",
            {
                "nvidia.com/gpu.replicas": "10",
                "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.sharing-strategy": "time-slicing",
            },
            {"nvidia.com/gpu.shared": "80"},
        ),
    ],
    "kind": [
        node("kind-worker", {}, {"nvidia.com/gpu": "2"}, spec={"providerID": "kind://docker/kind/kind-worker"}),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kwok-0"}},
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "new", "labels": None, "annotations": None},
            "spec": None,
            "status": None,
        },
    ],
    "k3s": [
        node(
            "k3s-agent",
            {"beta.kubernetes.io/instance-type": "k3s", "node.kubernetes.io/instance-type": "k3s"},
            {"amd.com/gpu": "2", "squat.ai/video": "1", "smarter-devices/fuse": "20"},
            managedFields=None,
        ),
    ],
}
WITH_GPUS: Final = {
    "gke": 8,
    "eks": 8,
    "aks": 104,
    "openshift": 2,
    "vks": 4,
    "runai": 88,
    "kind": 2,
    "k3s": 2,
}


def dump(name: str) -> JSON:
    """What `kubectl get nodes,pods,services,... -A -o json` has of such a cluster."""
    nodes = NODES[name]
    on = nodes[0]["metadata"]["name"]
    resource = next(key for key in nodes[0]["status"]["allocatable"] if key in GPUS)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-0",
            "generateName": "train-",
            "namespace": "team",
            "uid": "uid-train-0",
            "resourceVersion": "9",
            "labels": {"app": "train"},
            "annotations": {"cni.projectcalico.org/podIP": "10.1.0.9/32"},
            "managedFields": [
                {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:spec": {}}}
            ],
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "train",
                    "uid": "j",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": on,
            "priority": 0,
            "enableServiceLinks": True,
            "securityContext": {},
            "serviceAccountName": "default",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "resources": {
                        "limits": {resource: "1"},
                        "requests": {"cpu": "250m", "memory": "1Gi", resource: "1"},
                    },
                    "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets", "readOnly": True}],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "terminationMessagePolicy": "File",
                }
            ],
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            ],
            "volumes": [
                {
                    "name": "kube-api-access",
                    "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "token"}}]},
                }
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "startTime": "2026-11-01T00:00:00Z",
            "hostIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "PodScheduled", "status": "True", "lastProbeTime": None}],
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-11-01T00:00:00Z"}},
                }
            ],
        },
    }
    others = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.0.0.1"}},
        {
            "apiVersion": "metrics.k8s.io/v1beta1",
            "kind": "NodeMetrics",
            "metadata": {"name": on},
            "usage": {"cpu": "1n"},
        },
    ]
    return {"apiVersion": "v1", "items": [*nodes, pod, *others], "kind": "List", "metadata": {"resourceVersion": ""}}


def in_yaml(value: Any) -> bytes:
    written: bytes = yaml.dump(value, Dumper=yaml.CSafeDumper, encoding="utf-8", sort_keys=False)
    return written


def forms(name: str) -> dict[str, bytes]:
    """The same dump in the forms in which files have it."""
    whole = dump(name)
    text = json.dumps(whole, indent=4)
    by_kind: dict[str, list[JSON]] = {}
    for item in whole["items"]:
        by_kind.setdefault(item["kind"], []).append(
            {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
        )
    lists = [
        {"apiVersion": "v1", "kind": f"{kind}List", "items": items, "metadata": {"resourceVersion": "7"}}
        for kind, items in by_kind.items()
    ] + [{"apiVersion": "v1", "kind": "PersistentVolumeList", "items": None}]
    return {
        "JSON": text.encode(),
        "YAML": in_yaml(whole),
        "YAML documents": b"---\n".join(in_yaml(item) for item in whole["items"]),
        "lists of one kind, one after the other": "\n".join(json.dumps(part) for part in lists).encode(),
        "lists of one kind in YAML": b"---\n".join(map(in_yaml, lists)),
        "Lists in a List": json.dumps({"apiVersion": "v1", "kind": "List", "items": lists}).encode(),
        "joined by jq -s": json.dumps(lists).encode(),
        "UTF-8 with its mark": b"\xef\xbb\xbf" + text.encode(),
        "YAML with the mark": b"\xef\xbb\xbf" + in_yaml(whole),
        "UTF-16 of PowerShell": text.replace("\n", "\r\n").encode("utf-16"),
        "ends of line of Windows": text.replace("\n", "\r\n").encode(),
        "YAML of Windows": in_yaml(whole).replace(b"\n", b"\r\n"),
    }


def parsed(raw: bytes) -> tuple[list[Event], list[Invalid]]:
    invalid: list[Invalid] = []
    return frozen.parse(raw, GPUS, "cluster", invalid), invalid


def ask(events: list[Event], gpus: int, resource: str, tolerations: list[JSON]) -> JSON:
    settings = Settings()
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"tolerations": tolerations, "containers": [{"name": "c", "resources": {"limits": {resource: gpus}}}]},
    }
    asked = question.read([Document(pod, "pod")], GPUS, [])
    answer: JSON = engine.answer(SupposedCluster.of(settings, events), asked, WALL).as_json()
    return answer


@pytest.mark.parametrize("name", NODES)
def test_every_form_of_a_dump_is_the_same_cluster(name: str) -> None:
    events, invalid = parsed(forms(name)["JSON"])
    assert invalid == []
    nodes = [event.record for event in events if isinstance(event.record, NodeRecord)]
    assert [node.name for node in nodes] == [node["metadata"]["name"] for node in NODES[name]]
    assert sum(sum(node.gpus.values()) for node in nodes) == WITH_GPUS[name]
    assert [event.record.gpu_count for event in events if isinstance(event.record, PodRecord)] == [1]
    assert not any(key.startswith("attachable-volumes") for node in nodes for key in node.others)
    for form, raw in forms(name).items():
        assert parsed(raw) == (events, []), form


@pytest.mark.parametrize("name", NODES)
def test_pods_are_placed_on_a_dumped_cluster(name: str) -> None:
    """As many GPUs as the first node has left fit there, and one more fits nowhere."""
    events, _ = parsed(forms(name)["YAML"])
    first = next(event.record for event in events if isinstance(event.record, NodeRecord))
    ((resource, count),) = [entry for entry in first.gpus.items() if entry[1]]
    tolerations = [{"key": taint.key, "operator": "Exists"} for taint in first.taints]
    assert ask(events, count - 1, resource, tolerations)["results"][0]["node"] == first.name
    answer = ask(events, 2 * count + 1, resource, tolerations)
    assert answer["results"][0]["verdict"] == "cannot"
    assert not [entry for entry in answer["warnings"] if entry["code"] == "invalid-object"]


def test_one_bad_object_does_not_reject_the_others() -> None:
    whole = dump("eks")
    first = whole["items"][0]
    bad: list[Any] = [
        first | {"metadata": {"name": "bad-amount"}, "status": {"allocatable": {"cpu": "many", "nvidia.com/gpu": "8"}}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "c"}, "value": "high"},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"selector": 3}},
        {"metadata": {"name": "no-kind"}},
        None,
        "text",
    ]
    events, invalid = parsed(json.dumps(whole | {"items": [*bad, *whole["items"]]}).encode())
    names = [event.record.name for event in events if isinstance(event.record, NodeRecord)]
    assert names == ["bad-amount", *(node["metadata"]["name"] for node in NODES["eks"])]
    assert len(invalid) == len(bad)
    assert {entry.name for entry in invalid} >= {"bad-amount", "c", "b", "cluster: items[1].metadata.name"}
    with pytest.raises(BadCluster, match="without kind; 1 more cannot be read"):
        parsed(json.dumps({"kind": "List", "items": [{}, None]}).encode())


def test_one_bad_device_does_not_reject_its_slice() -> None:
    devices: list[JSON] = [
        {"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{i}"}}}
        for i in range(3)
    ]
    devices[1]["attributes"] = {"type": {"string": 3}}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    published = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices},
    }
    items = [node("n", {}, {}), published]
    events, invalid = parsed(json.dumps({"kind": "List", "items": items}).encode())
    cluster = SupposedCluster.of(Settings(), events).cluster
    assert cluster.nodes["n"].gpus == {"nvidia.com/gpu": 2}
    assert [(entry.kind, entry.name) for entry in invalid] == [("ResourceSlice", "s")]


def test_a_page_of_a_list_is_named_as_one() -> None:
    whole = {"kind": "NodeList", "metadata": {"continue": "eyJ2", "remainingItemCount": 40}, "items": NODES["vks"]}
    events, invalid = parsed(json.dumps(whole).encode())
    assert len(events) == 1
    assert ["metadata.continue" in entry.message for entry in invalid] == [True]
