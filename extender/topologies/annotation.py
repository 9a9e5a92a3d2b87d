"""The node annotations about GPUs. Two are of one form: `gpu-extender.io/topology`, written by the node's agent,
which saw the GPUs (or by hand, where no agent runs), and `gpu-extender.io/topology-stated`, which an administrator
writes and no agent touches.

Compact JSON, version 1; every key but `v`, `gpus` and `links` may be absent or null:

    {"v": 1, "gpus": 8, "links": [[0, 1, 2], ...], "scope": "pair", "kind": "nvlink", "gbps": 25,
     "numa": [0, 0, 1, null, ...], "pcie": [["X", "PIX", ...], ...], "uuids": ["GPU-...", ...], "health": [true, ...]}

`links` lists each linked pair once as [GPU, GPU, number]; pairs that are not listed have no link. With
`"scope": "gpu-total"` (NVSwitch) the number is each GPU's total into the fabric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from extender.errors import BadTopology
from extender.topologies.topology import LEVELS, NearNic, Topology, unknown

KEY: Final = "gpu-extender.io/topology"
STATED: Final = "gpu-extender.io/topology-stated"
STALE: Final = "gpu-extender.io/topology-stale-since"  # the agent: since when it cannot see the GPUs any more
RELAY: Final = "gpu-extender.io/relay"  # the agent: "1" while a relay makes kubelet take what was planned
TOPOLOGY_MANAGER: Final = "gpu-extender.io/topology-manager"  # an administrator: the policy of the node's kubelet
VERSION: Final = 1
MOST_BYTES: Final = 64 * 1024
MOST_GPUS: Final = 16
MOST_LINKS: Final = 1000  # of one pair; as ext_core.links has it

_KEYS = ("v", "gpus", "links", "scope", "kind", "gbps", "numa", "pcie", "uuids", "health")
_REQUIRED = ("gpus", "links")


def is_aligned(annotations: Mapping[str, str]) -> bool:
    """Whether kubelet's Topology Manager may withhold free GPUs from the device plugin, by NUMA node: by every policy
    but `none`. Which ones depends on CPUs and memory too, so the node may hand out any of its free GPUs."""
    return annotations.get(TOPOLOGY_MANAGER, "none").strip().lower() != "none"


def relayed(annotations: Mapping[str, str], topology: Topology) -> bool:
    """Whether a node hands out what we plan: its relay says so, knows the GPUs by the ids that we have, and is offered
    all that are free."""
    return annotations.get(RELAY) == "1" and topology.uuids is not None and not is_aligned(annotations)


def relay_ignored(annotations: Mapping[str, str], topology: Topology) -> str:
    """Why the annotation of a relay does not count, in one sentence; "" where it counts, or does not exist."""
    stated = annotations.get(RELAY)
    if stated is None or relayed(annotations, topology):
        return ""
    if stated != "1":
        return f"annotation {RELAY} is {stated[:40]!r}, and only '1' counts: it is ignored"
    if is_aligned(annotations):
        return (
            f"annotation {RELAY} is ignored: by {TOPOLOGY_MANAGER} kubelet may not offer the planned GPUs to the relay"
        )
    return f"annotation {RELAY} is ignored: the believed topology has no GPU ids (uuids), which a relay needs"


def read(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology | None:
    """What the agent's annotation says."""
    topology = _read(KEY, annotations, gpu_count)
    if topology is None or topology.links is None or STALE not in annotations:
        return topology
    return replace(topology, warnings=(f"annotation {KEY}: seen last at {annotations[STALE][:40]}",))


def read_stated(annotations: Mapping[str, str], labels: Mapping[str, str], gpu_count: int) -> Topology | None:
    """What the administrator's annotation says."""
    topology = _read(STATED, annotations, gpu_count)
    return None if topology is None else replace(topology, source="administrator" if topology.links else "unknown")


def _read(key: str, annotations: Mapping[str, str], gpu_count: int) -> Topology | None:
    """The annotation's graph; unknown, with the error as a warning, when it is broken or of another GPU count."""
    text = annotations.get(key)
    if text is None:
        return None
    try:
        stated = decode(text)
    except BadTopology as error:
        return unknown(gpu_count, f"the annotation {key} cannot be used", f"annotation {key}: {error}")
    if stated.gpus != gpu_count:
        mismatch = f"it describes {stated.gpus} GPUs, the node has {gpu_count}"
        return unknown(gpu_count, f"the annotation {key} is about other GPUs", f"annotation {key}: {mismatch}")
    return replace(stated, detail=f"annotation {key}")


def decode(text: str | bytes) -> Topology:
    """The annotation's value as a Topology; BadTopology where anything is not as the module's docstring says."""
    fields = _object(text, MOST_BYTES)
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise BadTopology(f"{_show(version)} is not a version", path="v")
    if version > VERSION:
        raise BadTopology(f"written by a newer version ({version}); this one reads {VERSION}", path="v")
    for key in fields:
        if key not in _KEYS:
            raise BadTopology("unknown key", path=key)
    for key in _REQUIRED:
        if fields.get(key) is None:
            raise BadTopology("is missing", path=key)
    gpus = fields["gpus"]
    if type(gpus) is not int or not 1 <= gpus <= MOST_GPUS:
        raise BadTopology(f"{_show(gpus)} is not a whole number from 1 to {MOST_GPUS}", path="gpus")
    links = _links(fields["links"], gpus)
    linked = any(map(any, links))
    scope = _one_of("scope", fields.get("scope"), ("pair", "gpu-total")) or "pair"
    kind = _one_of("kind", fields.get("kind"), ("nvlink", "xgmi"))
    if linked and kind is None:
        raise BadTopology("is missing, and there are links", path="kind")
    if scope == "gpu-total":
        _check_totals(links)
    return Topology(
        gpus,
        links,
        gpu_total=scope == "gpu-total",
        kind=kind,
        gbps=_gbps(fields.get("gbps"), linked),
        numa=_numa(fields.get("numa"), gpus),
        pcie=_pcie(fields.get("pcie"), gpus),
        uuids=_uuids(fields.get("uuids"), gpus),
        health=_health(fields.get("health"), gpus),
        source="annotation",
        detail=f"annotation {KEY}",
    )


def _object(text: str | bytes, most: int) -> dict[str, Any]:
    size = len(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    if size > most:
        raise BadTopology(f"{size} bytes; at most {most} are read")
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:  # NaN and Infinity are no JSON either
        raise BadTopology(f"not JSON: {error}") from None
    if type(fields) is not dict:
        raise BadTopology("a JSON object is wanted")
    return fields


def encode(topology: Topology) -> str:
    """The annotation's value, on one line; BadTopology when the links are unknown. decode() reads the same back."""
    if topology.links is None:
        raise BadTopology("a topology without known links has no annotation")
    ids = range(topology.gpus)
    edges = [[a, b, topology.links[a][b]] for a in ids for b in ids if a < b and topology.links[a][b]]
    fields = {
        "v": VERSION,
        "gpus": topology.gpus,
        "links": edges,
        "scope": "gpu-total" if topology.gpu_total else "pair",
        "kind": topology.kind,
        "gbps": topology.gbps,
        "numa": topology.numa,
        "pcie": topology.pcie,
        "uuids": topology.uuids,
        "health": topology.health,
    }
    text = orjson.dumps(fields).decode()
    decode(text)  # what we would refuse to read is not written
    return text


def _show(value: Any) -> str:
    """The value as JSON, cut short; a list or object by its kind, as it may be deep."""
    if type(value) in (list, dict):
        return "a list" if type(value) is list else "an object"
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:37] + "..."


def _one_of(path: str, value: Any, allowed: tuple[str, ...]) -> str | None:
    if value is None or (type(value) is str and value in allowed):
        return value
    raise BadTopology(f"{_show(value)} is not one of {', '.join(allowed)}", path=path)


def _list(path: str, value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise BadTopology(f"a list of {length} is wanted, one a GPU", path=path)
    return value


def _links(edges: Any, gpus: int) -> tuple[tuple[int, ...], ...]:
    if type(edges) is not list:
        raise BadTopology("a list of [GPU, GPU, number] is wanted", path="links")
    matrix = [[0] * gpus for _ in range(gpus)]
    for i, edge in enumerate(edges):
        path = f"links[{i}]"
        if type(edge) is not list or len(edge) != 3 or any(type(value) is not int for value in edge):
            raise BadTopology("is not [GPU, GPU, number] in whole numbers", path=path)
        a, b, number = edge
        for gpu in (a, b):
            if not 0 <= gpu < gpus:
                raise BadTopology(f"GPU {gpu} is not one of 0..{gpus - 1}", path=path)
        if a == b:
            raise BadTopology(f"GPU {a} is linked to itself", path=path)
        if not 1 <= number <= MOST_LINKS:
            raise BadTopology(f"{number} links; from 1 to {MOST_LINKS} are possible", path=path)
        if matrix[a][b] == number:
            raise BadTopology(f"the pair {a}, {b} is listed twice", path=path)
        if matrix[a][b]:
            raise BadTopology(f"asymmetric: {a}, {b} has {matrix[a][b]} links above and {number} here", path=path)
        matrix[a][b] = matrix[b][a] = number
    return tuple(map(tuple, matrix))


def _check_totals(links: tuple[tuple[int, ...], ...]) -> None:
    """Behind one switch every GPU sees every other one; a GPU that sees none is off the fabric."""
    on = [gpu for gpu, row in enumerate(links) if any(row)]
    for a in on:
        for b in on:
            if a < b and not links[a][b]:
                raise BadTopology(f"gpu-total: {a} and {b} are on the fabric but do not see each other", path="links")


def _gbps(value: Any, linked: bool) -> float:
    if value is None and not linked:
        return 0.0
    if type(value) not in (int, float) or not 0 <= value <= 10_000 or (linked and value == 0):
        raise BadTopology(f"{_show(value)} is not GB/s of one link in one direction", path="gbps")
    return float(value)


def _numa(value: Any, gpus: int) -> tuple[int | None, ...] | None:
    if value is None:
        return None
    for i, node in enumerate(_list("numa", value, gpus)):
        if node is not None and (type(node) is not int or not 0 <= node < 1 << 16):
            raise BadTopology(f"{_show(node)} is not a NUMA node's number or null", path=f"numa[{i}]")
    return tuple(value)


def _pcie(value: Any, gpus: int) -> tuple[tuple[str, ...], ...] | None:
    if value is None:
        return None
    rows = [_list(f"pcie[{i}]", row, gpus) for i, row in enumerate(_list("pcie", value, gpus))]
    for i, row in enumerate(rows):
        for j, level in enumerate(row):
            path = f"pcie[{i}][{j}]"
            if type(level) is not str or level not in LEVELS or (level == "X") != (i == j):
                raise BadTopology(f"{_show(level)} is not {'X' if i == j else ', '.join(LEVELS[:-1])}", path=path)
            if j < i and rows[j][i] != level:
                raise BadTopology(f"asymmetric: {level} here, {rows[j][i]} at pcie[{j}][{i}]", path=path)
    return tuple(map(tuple, rows))


def _uuids(value: Any, gpus: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    for i, uuid in enumerate(_list("uuids", value, gpus)):
        if type(uuid) is not str or not uuid or len(uuid) > 256:
            raise BadTopology(f"{_show(uuid)} is not a GPU's id", path=f"uuids[{i}]")
        if uuid in value[:i]:
            raise BadTopology(f"{_show(uuid)} is listed twice", path=f"uuids[{i}]")
    return tuple(value)


def _health(value: Any, gpus: int) -> tuple[bool, ...] | None:
    if value is None:
        return None
    for i, healthy in enumerate(_list("health", value, gpus)):
        if type(healthy) is not bool:
            raise BadTopology(f"{_show(healthy)} is not true or false", path=f"health[{i}]")
    return tuple(value)


# -- the annotation gpu-extender.io/topology-nics ----------------------------------------------------------------------
#
# The node annotation `gpu-extender.io/topology-nics`: under which GPUs' PCIe switches the NICs of a node are.
#
# It stands beside the annotation `topology`, whose readers of earlier versions refuse keys that they do not know.
# Compact JSON, version 1:
#
#     {"v": 1, "gpus": 8, "nics": {"mlx5_0": [0, 1], "mlx5_1": [2, 3]}}
#
# `gpus` is the number of GPUs that the indices are of. A NIC that is near no GPU may be left out. A GPU is near a NIC
# where the PCIe path between them crosses no host bridge: PIX or PXB, as `nvidia-smi topo -m` names it.

NICS: Final = "gpu-extender.io/topology-nics"
NICS_VERSION: Final = 1
MOST_NICS_BYTES: Final = 16 * 1024
MOST_NICS: Final = 64
"""Near GPUs; as ext_core.links has it."""
MOST_NAME: Final = 64
NEAR: Final = ("PXB", "PIX")
"""Paths between a GPU and a NIC under one PCIe switch, or several without a host bridge between them."""


def near_nics(nics: Iterable[tuple[str, Iterable[int]]]) -> tuple[NearNic, ...]:
    """(name, GPUs) of NICs, as a topology has them: those that are near a GPU, by name, MOST_NICS at most."""
    by_name = {name: NearNic(name, tuple(sorted(set(gpus)))) for name, gpus in nics}
    return tuple(by_name[name] for name in sorted(by_name) if by_name[name].gpus and len(name) <= MOST_NAME)[:MOST_NICS]


def with_nics(annotations: Mapping[str, str], topology: Topology) -> Topology:
    """The topology with the NICs that the annotation states; with a warning where it cannot be used."""
    text = annotations.get(NICS)
    if text is None:
        return topology
    try:
        gpus, nics = decode_nics(text)
    except BadTopology as error:
        return _warned(topology, str(error))
    if gpus != topology.gpus:
        return _warned(topology, f"it describes {gpus} GPUs, the node has {topology.gpus}")
    return replace(topology, nics=nics)


def _warned(topology: Topology, why: str) -> Topology:
    return replace(topology, warnings=(*topology.warnings, f"annotation {NICS}: {why}"))


def encode_nics(topology: Topology) -> str | None:
    """The annotation's value, on one line; None where the NICs are unknown. decode() reads the same back."""
    if topology.nics is None:
        return None
    nics = {nic.name: nic.gpus for nic in topology.nics}
    return orjson.dumps({"v": NICS_VERSION, "gpus": topology.gpus, "nics": nics}).decode()


def decode_nics(text: str | bytes) -> tuple[int, tuple[NearNic, ...]]:
    """(number of GPUs, NICs by name); BadTopology where anything is not as stated above."""
    fields = _object(text, MOST_NICS_BYTES)
    if type(fields.get("v")) is not int or fields["v"] != NICS_VERSION:
        raise BadTopology(f"is not {NICS_VERSION}, the version that is read", path="v")
    gpus, nics = fields.get("gpus"), fields.get("nics")
    if type(gpus) is not int or not 1 <= gpus <= MOST_GPUS:
        raise BadTopology(f"is not a whole number from 1 to {MOST_GPUS}", path="gpus")
    if type(nics) is not dict or len(nics) > MOST_NICS:
        raise BadTopology(f"an object of {MOST_NICS} NICs at most is wanted: name to GPUs", path="nics")
    return gpus, near_nics((_nic_name(name), _near_gpus(name, near, gpus)) for name, near in nics.items())


def _nic_name(name: str) -> str:
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise BadTopology(f"a name has 1 to {MOST_NAME} printable characters", path="nics")
    return name


def _near_gpus(name: str, near: Any, gpus: int) -> list[int]:
    if type(near) is not list or len(near) > gpus or any(type(gpu) is not int or not 0 <= gpu < gpus for gpu in near):
        raise BadTopology(f"is not a list of GPUs, 0..{gpus - 1}", path=f"nics.{name}")
    return near
