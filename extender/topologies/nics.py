"""The node annotation `gpu-extender.io/topology-nics`: under which GPUs' PCIe switches the NICs of a node are.

It stands beside the annotation `topology`, whose readers of earlier versions refuse keys that they do not know. Compact
JSON, version 1:

    {"v": 1, "gpus": 8, "nics": {"mlx5_0": [0, 1], "mlx5_1": [2, 3]}}

`gpus` is the number of GPUs that the indices are of. A NIC that is near no GPU may be left out. A GPU is near a NIC
where the PCIe path between them crosses no host bridge: PIX or PXB, as `nvidia-smi topo -m` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from extender.topologies.annotation import MOST_GPUS, TopologyError
from extender.topologies.topology import NearNic, Topology

KEY: Final = "gpu-extender.io/topology-nics"
VERSION: Final = 1
MOST_BYTES: Final = 16 * 1024
MOST_NICS: Final = 64
"""Near GPUs; as ext_core.links has it."""
MOST_NAME: Final = 64
NEAR: Final = ("PXB", "PIX")
"""Paths between a GPU and a NIC under one PCIe switch, or several without a host bridge between them."""


def near_nics(nics: Iterable[tuple[str, Iterable[int]]]) -> tuple[NearNic, ...]:
    """(name, GPUs) of NICs, as a topology has them: those that are near a GPU, by name, MOST_NICS at most."""
    by_name = {name: NearNic(name, tuple(sorted(set(gpus)))) for name, gpus in nics}
    return tuple(by_name[name] for name in sorted(by_name) if by_name[name].gpus and len(name) <= MOST_NAME)[:MOST_NICS]


def add(annotations: Mapping[str, str], topology: Topology) -> Topology:
    """The topology with the NICs that the annotation states; with a warning where it cannot be used."""
    text = annotations.get(KEY)
    if text is None:
        return topology
    try:
        gpus, nics = decode(text)
    except TopologyError as error:
        return _warned(topology, str(error))
    if gpus != topology.gpus:
        return _warned(topology, f"it describes {gpus} GPUs, the node has {topology.gpus}")
    return replace(topology, nics=nics)


def _warned(topology: Topology, why: str) -> Topology:
    return replace(topology, warnings=(*topology.warnings, f"annotation {KEY}: {why}"))


def encode(topology: Topology) -> str | None:
    """The annotation's value, on one line; None where the NICs are unknown. decode() reads the same back."""
    if topology.nics is None:
        return None
    nics = {nic.name: nic.gpus for nic in topology.nics}
    return orjson.dumps({"v": VERSION, "gpus": topology.gpus, "nics": nics}).decode()


def decode(text: str | bytes) -> tuple[int, tuple[NearNic, ...]]:
    """(number of GPUs, NICs by name); TopologyError where anything is not as the module's docstring says."""
    size = len(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    if size > MOST_BYTES:
        raise TopologyError("", f"{size} bytes; at most {MOST_BYTES} are read")
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TopologyError("", f"not JSON: {error}") from None
    if type(fields) is not dict:
        raise TopologyError("", "a JSON object is wanted")
    if type(fields.get("v")) is not int or fields["v"] != VERSION:
        raise TopologyError("v", f"is not {VERSION}, the version that is read")
    gpus, nics = fields.get("gpus"), fields.get("nics")
    if type(gpus) is not int or not 1 <= gpus <= MOST_GPUS:
        raise TopologyError("gpus", f"is not a whole number from 1 to {MOST_GPUS}")
    if type(nics) is not dict or len(nics) > MOST_NICS:
        raise TopologyError("nics", f"an object of {MOST_NICS} NICs at most is wanted: name to GPUs")
    return gpus, near_nics((_name(name), _gpus(name, near, gpus)) for name, near in nics.items())


def _name(name: str) -> str:
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise TopologyError("nics", f"a name has 1 to {MOST_NAME} printable characters")
    return name


def _gpus(name: str, near: Any, gpus: int) -> list[int]:
    if type(near) is not list or len(near) > gpus or any(type(gpu) is not int or not 0 <= gpu < gpus for gpu in near):
        raise TopologyError(f"nics.{name}", f"is not a list of GPUs, 0..{gpus - 1}")
    return near
