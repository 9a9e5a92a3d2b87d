"""What causes a pod's failure, as far as kubelet and the container runtime report it: the node, or perhaps the pod.

A failure counts as the node's only where no pod can cause it at will: it rejects the node for the pods of all tenants.
Everything else may be the pod's own doing, and is held against pods of its namespace only.

Admission. kubelet writes status.reason UnexpectedAdmissionError (pkg/kubelet/cm/admission/errors.go of 1.37) where the
device plugin or the device manager fails, but also for what a pod chooses. These messages count as the pod's:

- `requested number of devices unavailable` (cm/devicemanager/manager.go): a pod with spec.nodeName bypasses the
  scheduler and asks for more GPUs than are free. This check comes before that of the predicates (`OutOf...`);
- `maximum request size for shared resources` (NVIDIA's device plugin, failRequestsGreaterThanOne);
- what the CPU manager and the memory manager say (`not enough cpus`, `[memorymanager]`, `pod rejected, ...`);
- `attempting to recover from admission failure` (lifecycle/predicate.go): a critical pod that finds no room;
- a resource that is no GPU of ours: another device plugin fails. The error of a plugin's RPC names no resource; where
  the pod asks for other devices too, it may be theirs.

All other reasons of admission (`OutOf...`, NodeAffinity, TopologyAffinityError, ...) are the pod's: it asks for what
the node does not offer.

Runtime. The text of a container's state is tenant-written in part: a command that does not exist stands in it word by
word. So a message counts as the node's only where a known text stands at its very beginning:

- CDI devices that containerd does not find (`CDI device injection failed`): the device plugin names them, no pod does.
  The same from nvidia-container-runtime (`failed to inject CDI devices`), and `nvidia-container-cli: device error`,
  follow NVIDIA_VISIBLE_DEVICES, which a pod's own `env` overrides (kubelet_pods.go appends it behind the plugin's);
- NVML errors of the node's driver from NVIDIA's hook. `requirement error`, `ldcache error` and `mount error` depend on
  the image, and are left out.

A message that a container writes itself (terminationMessagePath) stands in a state with another reason than those of
STARTS: the runtime gives those only to a container whose process never ran (containerd: errorStartReason).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from extender.objects import schema

Fault = Literal["", "admission", "runtime", "refused"]
"""admission: kubelet could not allocate the devices; runtime: the container runtime could not hand them to a container;
refused: kubelet did not admit the pod, which may be the pod's doing; "": none of these is reported."""

ADMISSION: Final = "UnexpectedAdmissionError"
STARTS: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
NOT_ADMITTED: Final = frozenset(
    {"NodeAffinity", "NodeName", "NodePorts", "TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError"}
)
MOST_TEXT: Final = 4096  # characters of a message that are looked at

_BY_POD: Final = re.compile(
    r"requested number of devices unavailable|maximum request size for shared resources|not enough cpus|"
    r"failed to allocate cpus|\[memorymanager\]|pod rejected, |attempting to recover from admission failure"
)
_RESOURCE: Final = re.compile(
    r"(?:unregistered device|unhealthy devices|unknown Device Plugin|registered resource:|request for resource) "
    r"\"?([a-zA-Z0-9./_-]{1,317}?)\"?(?:, which|\s|$)"
)
_CDI: Final = re.compile(
    r"(?:failed to create containerd container: )?CDI device injection failed: unresolvable CDI devices "
    r"(?:[a-z0-9-]+\.)*(?:nvidia|amd)\.com/"
)
_NVML: Final = re.compile(
    r"(?:failed to create containerd task: )?(?:failed to create task for container: )?"
    r"(?:failed to create shim task: )?OCI runtime create failed: (?:runc create failed: )?"
    r"unable to start container process: (?:error during container init: )?error running (?:[a-zA-Z]+ )?hook #\d+: "
    r"(?:error running hook: )?exit status \d+, stdout: , stderr: (?:Auto-detected mode as '[a-z-]+'\s+)?"
    r"nvidia-container-cli(?:\.real)?: (?:initialization|detection) error: nvml error: "
    r"(?:driver not loaded|driver/library version mismatch|gpu is lost|gpu requires reset)",
    re.IGNORECASE,
)


def fault(status: schema.PodStatus, gpus: frozenset[str], *, others: bool = False) -> Fault:
    """What kubelet reports of a pod that asks for GPUs. `gpus`: the names of the GPU resources; `others`: whether the
    pod asks for devices besides."""
    if status.phase == "Failed" and status.reason == ADMISSION:
        return _admission((status.message or "")[:MOST_TEXT], gpus, others)
    for state in _states(status):
        if state.reason in STARTS and state.message:
            text = state.message[:MOST_TEXT]
            if _CDI.match(text) or _NVML.match(text):
                return "runtime"
    if status.phase == "Failed" and _not_admitted(status.reason or ""):
        return "refused"
    return ""


def _admission(message: str, gpus: frozenset[str], others: bool) -> Fault:
    if _BY_POD.search(message):
        return "refused"
    named = _RESOURCE.search(message)
    if named is None:
        return "refused" if others else "admission"
    return "admission" if named[1] in gpus else "refused"


def _not_admitted(reason: str) -> bool:
    """Reasons of lifecycle/predicate.go and of the resource managers that state what the pod asks for."""
    return reason.startswith("OutOf") or reason in NOT_ADMITTED


def _states(status: schema.PodStatus) -> Iterator[schema.StateDetail]:
    """What keeps each container from running now; how it ended the last time, while it waits for its next start."""
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        state, last = container.state, container.last_state
        if state is None:
            continue
        for detail in (state.waiting, state.terminated):
            if detail is not None:
                yield detail
        if last is not None and last.terminated is not None and state.waiting is not None:
            yield last.terminated
