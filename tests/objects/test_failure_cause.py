"""Who causes a failure: the node's messages are taken for the node's, and no pod can forge one."""

from __future__ import annotations

from typing import Any

import pytest

from extender.objects import records
from tests.world import GPU, JSON, workload

SHIM = "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
HOOK = SHIM + (
    "runc create failed: unable to start container process: error during container init: error running prestart hook "
    "#0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
)
NVML = HOOK + "nvidia-container-cli: initialization error: nvml error: driver not loaded\n: unknown"
CDI = (
    "failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
    "k8s.gpu.nvidia.com/device=gpu-1"
)
EXEC = SHIM + 'runc create failed: unable to start container process: exec: "{}": executable file not found in $PATH'


def fault(status: JSON, gpus: int = 1) -> str:
    pod = workload("p", gpus, node="n")
    return records.pod(pod | {"status": status}, frozenset({GPU})).fault


def rejected(reason: str, message: str = "") -> JSON:
    return {"phase": "Failed", "reason": reason, "message": message}


def container(phase: str = "Pending", **states: Any) -> JSON:
    return {"phase": phase, "containerStatuses": [{"name": "main", **states}]}


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Allocate failed due to rpc error: code = Unknown desc = no such device, which is unexpected",
        "Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = "
        "Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device 5: nvml: GPU is lost, "
        "which is unexpected",
        f"Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {GPU},"
        " which is unexpected",
        f"Allocate failed due to cannot allocate unregistered device {GPU}, which is unexpected",
    ],
)
def test_kubelet_could_not_allocate_the_devices(message: str) -> None:
    assert fault(rejected("UnexpectedAdmissionError", message)) == "admission"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        # A pod with spec.nodeName asks for more than is free: kubelet allocates before it runs the predicates
        (
            "UnexpectedAdmissionError",
            f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 8, Available: 0, "
            "which is unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to rpc error: code = Unknown desc = request for 'nvidia.com/gpu: 2' too large: "
            "maximum request size for shared resources is 1, which is unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/nic, "
            "which is unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to not enough cpus available to satisfy request: requested=9, available=8, which is "
            "unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough "
            "memory is available, which is unexpected",
        ),
        (
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of "
            "pods to preempt: no set of running pods found to reclaim resources",
        ),
        (f"OutOf{GPU}", f"Node didn't have enough resource: {GPU}, requested: 8, used: 8, capacity: 8"),
        ("OutOfcpu", ""),
        ("NodeAffinity", ""),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
    ],
)
def test_what_a_pod_can_have_kubelet_say_of_it_is_the_pods(reason: str, message: str) -> None:
    assert fault(rejected(reason, message)) == "refused"


@pytest.mark.parametrize(
    "status",
    [
        container(state={"waiting": {"reason": "CreateContainerError", "message": CDI}}),
        container(state={"waiting": {"reason": "RunContainerError", "message": NVML}}),
        container("Failed", state={"terminated": {"reason": "StartError", "message": NVML, "exitCode": 128}}),
        container(
            state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            lastState={"terminated": {"reason": "StartError", "message": NVML, "exitCode": 128}},
        ),
    ],
)
def test_the_runtime_had_no_device(status: JSON) -> None:
    assert fault(status) == "runtime"
    assert fault(status, gpus=0) == ""  # a pod without GPUs says nothing


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("StartError", EXEC.format("/bin/nothing")),
        ("StartError", EXEC.format(NVML)),  # the command's own text
        ("RunContainerError", EXEC.format(CDI)),
        ("Error", NVML),  # written by the container: terminationMessagePath
        ("Completed", CDI),
        ("OOMKilled", ""),
        ("ImagePullBackOff", CDI),
        ("CreateContainerConfigError", CDI),
        # NVIDIA_VISIBLE_DEVICES of the pod's own env, and the image's requirements and files
        ("StartError", HOOK + "nvidia-container-cli: device error: none-such: unknown device\n: unknown"),
        ("StartError", HOOK + f"nvidia-container-cli: device error: {NVML}: unknown device\n: unknown"),
        ("StartError", HOOK + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=99.0\n: unknown"),
        ("StartError", HOOK + "nvidia-container-cli: ldcache error: process /sbin/ldconfig failed\n: unknown"),
        (
            "StartError",
            SHIM + "could not apply required modification to OCI specification: error modifying OCI spec: failed to "
            "inject CDI devices: unresolvable CDI devices management.nvidia.com/gpu=none-such",
        ),
        ("CreateContainerError", CDI.replace("k8s.gpu.nvidia.com", "example.com")),
    ],
)
def test_an_image_a_command_and_an_environment_are_the_pods(reason: str, message: str) -> None:
    assert fault(container("Failed", state={"terminated": {"reason": reason, "message": message}})) == ""
    assert fault(container(state={"waiting": {"reason": reason, "message": message}})) == ""


def test_a_container_that_runs_again_has_no_fault() -> None:
    last = {"terminated": {"reason": "StartError", "message": NVML}}
    assert fault(container("Running", state={"running": {}}, lastState=last)) == ""


@pytest.mark.parametrize(
    ("asked", "message", "found"),
    [
        (
            "example.com/nic",
            "Allocate failed due to rpc error: code = Unknown desc = no, which is unexpected",
            "refused",
        ),
        ("example.com/nic", f"cannot allocate unregistered device {GPU}, which is unexpected", "admission"),
        (
            "ephemeral-storage",
            "Allocate failed due to rpc error: code = Unknown desc = no, which is unexpected",
            "admission",
        ),
        ("hugepages-2Mi", "", "admission"),
    ],
)
def test_an_error_that_names_no_resource_may_be_of_another_plugin(asked: str, message: str, found: str) -> None:
    pod = workload("p", 1, node="n")
    pod["spec"]["containers"][0]["resources"]["requests"][asked] = "1"
    status = rejected("UnexpectedAdmissionError", message)
    assert records.pod(pod | {"status": status}, frozenset({GPU})).fault == found
