"""Any description of one node's GPUs that the commands take, distinguished by its form."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import orjson

from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, nvidia_smi, rocm_smi
from extender.topologies.reading import Nic, Reading, Warned, of_topology
from extender.topologies.topology import LEVELS

MOST_BYTES = 4 * 1024 * 1024
PREFIX = "catalogue:"


def from_catalogue(name: str) -> Reading:
    """The machine with this id; BadTopology when there is none."""
    for entry in catalogue.entries():
        if entry.id == name:
            reading = of_topology(entry.topology, "catalogue")
            if entry.status == "unverified":
                reading = reading.warn(Warned("unverified", f"the output of {name} is not yet seen"))
            return reading
    known = [entry.id for entry in catalogue.entries()]
    begun = [entry_id for entry_id in known if name and entry_id.startswith(name.lower())]
    near = [
        *begun,
        *(entry_id for entry_id in get_close_matches(name.lower(), known, n=3, cutoff=0.5) if entry_id not in begun),
    ][:3]
    choice = f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(known)}"
    raise BadTopology(f"{name[:80]!r} is not in the catalogue{choice}", path="catalogue", code="not-found")


def read(data: bytes) -> Reading:
    """A text of nvidia-smi or rocm-smi, an annotation's value, or our own JSON. BadTopology for anything else."""
    if len(data) > MOST_BYTES:
        raise BadTopology(f"{len(data)} bytes; at most {MOST_BYTES} are read")
    text = _decoded(data)
    if not text.strip():
        raise BadTopology("it is empty; nvidia-smi topo -m or rocm-smi --showtopo prints what is read here")
    if text.lstrip().startswith("{"):
        return _json(text)
    if rocm_smi.recognises(text):
        return rocm_smi.parse(text)
    return nvidia_smi.parse(text)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def _json(text: str) -> Reading:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadTopology(f"not JSON: {error}") from None
    if document.get("kind") == "Topology":
        return _own(document)
    try:
        return of_topology(annotation.decode(text), "annotation")
    except annotation.TopologyError as error:
        raise BadTopology(error.message, path=error.path) from None


# ---- our own JSON back in


def _own(document: dict[str, Any]) -> Reading:
    """`kind: Topology`; what follows from the rest (islands, components) is not read but found again."""
    gpus = document.get("gpus")
    if not isinstance(gpus, list) or not 1 <= len(gpus) <= annotation.MOST_GPUS or gpus != list(range(len(gpus))):
        raise BadTopology("the indices 0..N-1 of 1 to 16 GPUs are wanted", path="gpus")
    size = range(len(gpus))
    links = _matrix(document, "links", len(gpus))
    pcie = _matrix(document, "pcie", len(gpus))
    for i in size:
        for j in size:
            count, path = links[i][j], pcie[i][j]
            fine = count is None or (type(count) is int and 0 <= count <= annotation.MOST_LINKS)
            if not fine or (i == j) != (i == j and count == 0) or links[j][i] != count:
                raise BadTopology("is no number of links, or not the same in both directions", path=f"links[{i}][{j}]")
            if path not in (*LEVELS, None) or (path == "X") != (i == j) or pcie[j][i] != path:
                raise BadTopology("is no path, or not the same in both directions", path=f"pcie[{i}][{j}]")
    kind, scope, gbps = (document.get(key) for key in ("link_kind", "link_scope", "gbps_per_link_per_direction"))
    if kind not in ("nvlink", "xgmi", None) or (kind is None and any(map(any, links))):
        raise BadTopology("is not nvlink or xgmi, and there are links", path="link_kind")
    if scope not in ("pair", "gpu-total", None) or (scope is None and any(map(any, links))):
        raise BadTopology("is not pair or gpu-total", path="link_scope")
    if gbps is not None and (type(gbps) not in (int, float) or not 0 < gbps <= 10_000):
        raise BadTopology("is not GB/s of one link in one direction", path="gbps_per_link_per_direction")
    numa = [tuple(node) if isinstance(node, list) else node for node in _list(document, "numa", len(gpus))]
    for i, node in enumerate(numa):
        for node_id in node if isinstance(node, tuple) and node else (node,):
            if node_id is not None and (type(node_id) is not int or not 0 <= node_id < 1 << 16):
                raise BadTopology("is no NUMA node", path=f"numa[{i}]")
    uuids = _list(document, "uuids", len(gpus))
    if not all(uuid is None or isinstance(uuid, str) for uuid in uuids):
        raise BadTopology("are not texts or null", path="uuids")
    return Reading(
        tuple(map(tuple, links)),
        kind,
        scope,
        tuple(map(tuple, pcie)),
        tuple(numa),
        tuple(uuids),
        "topology-json",
        nics=_nics(document, len(gpus)),
        gbps=None if gbps is None else float(gbps),
        warnings=_warnings(document),
    )


def _list(document: dict[str, Any], key: str, length: int) -> list[Any]:
    value = document.get(key)
    if value is None:
        return [None] * length
    if not isinstance(value, list) or len(value) != length:
        raise BadTopology(f"a list of {length} is wanted, one a GPU", path=key)
    return value


def _matrix(document: dict[str, Any], key: str, size: int) -> list[list[Any]]:
    rows = document.get(key)
    if not isinstance(rows, list) or len(rows) != size:
        raise BadTopology(f"{size} rows are wanted, one a GPU", path=key)
    if not all(isinstance(row, list) and len(row) == size for row in rows):
        raise BadTopology(f"{size} cells are wanted in each row", path=key)
    return rows


def _nics(document: dict[str, Any], gpus: int) -> tuple[Nic, ...]:
    read_nics = []
    nics = document.get("nics") or []
    for nic in nics if isinstance(nics, list) else [None]:
        name = nic.get("name") if isinstance(nic, dict) else None
        sets = [nic.get(key) if isinstance(nic, dict) else None for key in ("nearest", "same_switch")]
        if not isinstance(name, str) or not all(members is None or _is_set(members, gpus) for members in sets):
            raise BadTopology('a list of {"name", "nearest", "same_switch"} is wanted', path="nics")
        nearest, same_switch = (None if members is None else tuple(members) for members in sets)
        read_nics.append(Nic(name, nearest, same_switch))
    return tuple(read_nics)


def _is_set(value: Any, gpus: int) -> bool:
    return isinstance(value, list) and all(type(gpu) is int and 0 <= gpu < gpus for gpu in value)


def _warnings(document: dict[str, Any]) -> tuple[Warned, ...]:
    warnings = document.get("warnings") or []
    if not isinstance(warnings, list) or not all(isinstance(warning, dict) for warning in warnings):
        raise BadTopology('a list of {"code", "message"} is wanted', path="warnings")
    return tuple(Warned(str(warning.get("code")), str(warning.get("message"))) for warning in warnings)
