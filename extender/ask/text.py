"""Numbers and names for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from extender.cluster.device_plugins import partial
from extender.objects.annotations import nearest
from extender.objects.parts import GPU_PARTS
from extender.objects.resources import byte_unit, cpus, in_unit, size
from extender.policy.labels import label

if TYPE_CHECKING:
    from extender.cluster.cluster import ClusterView
    from extender.objects.records import PodRecord

LONGEST = 48
HOW: Final = {
    "observed": "kubelet or the agent reports which GPUs it holds",
    "enforced": "the relay of the node hands out the GPUs that bind planned",
    "planned": "bind planned these GPUs; the device plugin need not follow",
    "predicted": "only this set of GPUs was left",
    "unknown": "nothing states which GPUs it holds",
}
"""What the words mean by which the GPUs of a pod are known."""


PER_THOUSAND: Final = " x 1000"
"""The end of a unit of which a value has thousandths."""
NEEDS: Final = {
    "evictions.enabled": (
        "only with evictions.enabled, which is off",
        "kube-scheduler up to 1.37 may not ask for this eviction, since enough GPUs are free on the node",
    ),
    "eviction-by-hand": ("only by hand", "kube-scheduler does not ask for a pod behind a gate"),
}
"""The conditions of ways out, by key, and why they are."""
RESULTS: Final = {
    "filter refused": "no node fits",
    "filter try-again": "no node fits yet",
    "bind refused": "not bound",
    "preempt standing-plan": "evict, as before",
    "preempt none": "no eviction",
    "preempt asking": "ask to save first",
}
"""What came of a call, by its verb and its result, where that is no word for people. They fit into a narrow column."""
STATED: Final = ("smaller", "add-nodes", "uncordon")
"""Kinds of ways out whose change names all that it costs."""
LINKED: Final = "linked GPUs"
"""What is missing where too few free GPUs are linked."""
MOST_NAMES: Final = 3
MOST_DEVICES: Final = 8
"""Kinds of devices that are named."""


def no_such_pod(cluster: ClusterView, namespace: str, name: str) -> str:
    """That no pod has this name, with pods whose names begin so: an owner gives its pods generated endings."""
    near = [f"{namespace}/{known_name}" for known_name in cluster.names_from(namespace, name, MOST_NAMES)]
    return "the cluster has no such pod, or it has ended" + (f" (did you mean {joined(near, 'or')}?)" if near else "")


def joined(texts: Sequence[str], word: str = "and") -> str:
    """ "a, b and c". `word`: before the last one."""
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def no_such_node(known: Collection[str], name: str) -> str:
    """That no node has this name, with the one that is most like it."""
    near = nearest(name, known)
    return "the cluster has no such node" + (f" (did you mean {near}?)" if near else "")


def no_gpus(cluster: ClusterView, pod: PodRecord) -> str:
    """That the pod asks for no GPU, for a part of one from another scheduler, or for other devices alone; a claim,
    template or class that does not exist, and what cannot be read of it, may have been meant to."""
    if part := gpu_part(pod):
        return f"it is not ours: it asks another scheduler for a part of a GPU, by the annotation {part}"
    missing = cluster.dra.absent(pod)
    devices = [
        *(f"devices of DeviceClass {name}" for name in cluster.dra.device_classes(pod)),
        *(name for name, _ in pod.others if "/" in name),
    ]
    if devices and not missing:
        return f"it is not ours: it asks for {', '.join(devices[:MOST_DEVICES])}, which do not count as GPUs"
    names = ", ".join(sorted(cluster.gpu_names))
    unknown = "".join((f"; {missing} does not exist" if missing else "", f"; {pod.unread}" if pod.unread else ""))
    return f"it asks for no GPU ({names}){unknown}"


def gpu_part(pod: PodRecord) -> str:
    """The annotation by which the pod asks another scheduler for a part of a GPU, "" without one."""
    return next((name for name in GPU_PARTS if name in pod.annotations), "")


def result_text(verb: str, result: str) -> str:
    """What came of a call, for people. `result`: as a `Decision` has it."""
    return RESULTS.get(f"{verb} {result}", result)


def gpu_hours(gpu_seconds: float) -> str:
    """ "0.47 GPU-hours", "1 GPU-hour", "51,986 GPU-hours"."""
    hours = gpu_seconds / 3600
    if 0 < hours < 0.01:
        return "less than 0.01 GPU-hours"
    number = f"{hours:,.0f}" if hours >= 99.5 else f"{hours:.1f}" if hours >= 9.95 else f"{hours:.2f}"
    number = number.rstrip("0").removesuffix(".") if "." in number else number
    return f"{number} GPU-hour" + ("" if number == "1" else "s")


def terms(cost: Sequence[Mapping[str, Any]]) -> str:
    """The terms of a cost that count something."""
    return ", ".join(_term(term) for term in cost if term["value"] != 0 and not no_victim_counts(term))


def terms_alone(cost: Sequence[Mapping[str, Any]]) -> str:
    """The terms of one pod's eviction, whichever pod takes its place: those without a value depend on that pod."""
    return terms([term for term in cost if term["value"] is not None])


def proof(certificate: Mapping[str, Any], *, evicts: bool) -> str:
    """What the search for victims proves. `evicts`: it found some."""
    nodes = certificate["nodes_examined"]
    searched = f"(searched: {count(nodes, 'node')})"
    if not nodes and not evicts:
        return "no node is a candidate for an eviction"
    if certificate["proved"]:
        return f"proved: no {'other victims cost less' if evicts else 'eviction that is allowed makes room'} {searched}"
    may = "other victims may cost less" if evicts else "an eviction may make room"
    return f"not proved: {may}, the search ended at its limit {searched}"


def no_victim_counts(term: Mapping[str, Any]) -> bool:
    """Whether the term has no value because all victims are terminating already; else no value is an unknown one."""
    return term["term"] == "highest_victim_priority" and term["value"] is None


def way(stated: Mapping[str, Any]) -> str:
    """A way out with what it needs and costs, where the change itself does not state that."""
    cost = "" if stated["kind"] in STATED else terms(stated["cost"] or ())
    return f"{stated['change']}{needs(stated['spec'].get('needs', ()))}{f': {cost}' if cost else ''}"


def needs(keys: Iterable[str], *, whole: bool = False) -> str:
    """The conditions of a way out, in brackets after a space; "" without any. `whole`: with why they are."""
    known = (NEEDS.get(key, (f"needs {key}", "")) for key in keys)
    texts = [f"{text}: {why}" if whole and why else text for text, why in known]
    return f" ({'; '.join(texts)})" if texts else ""


def _term(term: Mapping[str, Any]) -> str:
    """A term of a cost with its label."""
    name, text = label(term["term"]), value(term)
    if term["term"] == "victims" and term["value"] is not None:
        return count(term["value"], "victim")
    return text if text.partition(" ")[2].removesuffix("s") == name.removesuffix("s") else f"{name} {text}"


def value(term: Mapping[str, Any]) -> str:
    """How much a term of a cost is, with its unit where the label does not name it."""
    number, unit = term["value"], str(term["unit"])
    if number is None:
        return "none" if no_victim_counts(term) else "unknown"
    if unit == "GPU-seconds":
        return gpu_hours(number)
    if unit.endswith(PER_THOUSAND):
        number, unit = number / 1000, unit.removesuffix(PER_THOUSAND)
    text = f"{number:,.4g}" if abs(number) < 1_000 else f"{number:,.0f}"
    if unit.lower() in label(term["term"]).lower().split():
        return text
    return f"{text} {unit.removesuffix('s') if number == 1 and len(unit) > 1 else unit}"


def count(number: int, noun: str) -> str:
    """ "1 pod", "2 pods"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def amount(resource: str, number: int) -> str:
    """An amount of a resource of the tables: "1.5 CPUs", "20 GiB", "4 GPUs", "2 x nvidia.com/mig-1g.5gb"."""
    if resource == "cpu":
        return cpus(number)
    if resource == "memory":
        return size(number)
    if resource == "pods":
        return count(number, "pod slot")
    return f"{number:,} x {resource}" if partial(resource) else count(number, "GPU")


def is_bytes(resource: str) -> bool:
    """Whether a resource that is no column of the tables is counted in bytes."""
    return resource == "ephemeral-storage" or resource.startswith("hugepages-")


def other_amount(resource: str, number: int) -> str:
    """An amount of a resource that is no column: "32 x vpc.amazonaws.com/efa", "20 GiB of hugepages-2Mi"."""
    return f"{size(number)} of {resource}" if is_bytes(resource) else f"{number:,} x {resource}"


def lacks(missing: Iterable[Mapping[str, Any]]) -> str:
    """What is free of what a pod needs: "3.5 of 4 CPUs, 12 of 64 GiB of memory, 0 of 2 GPUs free"."""
    return f"{', '.join(_lack(lack) for lack in missing)} free"


def _lack(lack: Mapping[str, Any]) -> str:
    have, need, what, unit = lack["have"], lack["need"], lack["what"], lack["unit"]
    if unit == "millicores":
        return f"{have / 1000:g} of {need / 1000:g} CPUs"
    if unit.startswith("bytes"):
        name, of = byte_unit(need)
        return f"{in_unit(have, of)} of {in_unit(need, of)} {name} of {what}"
    if unit == "pods":
        what = "pod slots"
    elif unit == "GPUs" and "/" in what and not partial(what):
        what = "GPUs"
    elif what == LINKED:
        what = "GPUs of a linked set"
    return f"{have:,} of {need:,} {what}"


def seconds(number: float) -> str:
    """ "3.2 s", "20 s", "5 min", "2.5 h"."""
    if number < 10:
        return f"{number:.2g} s"
    if number < 120:
        return f"{number:.0f} s"
    return f"{number / 60:.0f} min" if number < 7200 else f"{number / 3600:.1f} h"


def ids(gpus: Sequence[int]) -> str:
    """ "0-3,6": GPU indices, ascending."""
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def named_gpus(indices: Sequence[int]) -> str:
    """ "GPU 5", "GPUs 0-3,6"."""
    return f"GPU{'s' if len(indices) > 1 else ''} {ids(indices)}"


def short(text: str, longest: int = LONGEST) -> str:
    """At most so many characters, the middle left out; what cannot be shown is `?`."""
    if len(text) <= longest:
        return printable(text)
    half = (longest - 1) // 2
    return f"{printable(text[: longest - 1 - half])}…{printable(text[-half:])}"


def printable(text: str) -> str:
    """With `?` for what cannot be shown: no text of a tenant moves the cursor of a terminal, or begins a line."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
