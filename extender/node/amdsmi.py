"""The GPUs of this node as AMD's library reports them (AMD SMI, Python package amdsmi, which comes with ROCm).

A pair has a link of its own when the library calls its path XGMI, one hop, with the weight of one hop (13 inside a
package, 15 outside; 15 more for each further hop). How many links it has is the most bandwidth over the least, since
the driver reports the least for one link; some GPUs call two hops one and report a bandwidth of 0 then, which is no
link. Where the driver reports no bandwidth, a pair is one link until the product is named, as in rocm-smi's text.
The product's speed comes before the driver's: older drivers take 50 GB/s a link for every GPU.

A GPU's id is its PCI address, as AMD's device plugin calls it; partitions of one GPU share it, and then no id is said.
A GPU that does not answer about its memory is not healthy.

https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from extender.errors import BadTopology
from extender.node.nvml import NoDriver, read_nics
from extender.topologies.annotation import MOST_GPUS
from extender.topologies.reading import Nic, Reading, Warned, with_product

FORMAT = "amdsmi"
MOST_WEIGHT = 15  # of one hop
MOST_NODES = 1024  # an unknown NUMA node is -1, or that as an unsigned number


def read(library: Any = None, product: str | None = None) -> Reading:
    """The view of this moment; `library`: the module amdsmi, or one like it; `product`: where the library's name of the
    GPU is not the one of the label. Raises NoDriver, BadTopology."""
    if library is None:
        try:
            library = import_module("amdsmi")
        except (ImportError, OSError, KeyError, AttributeError) as error:  # the last three: a library that is not there
            raise NoDriver(f"amdsmi: {error}") from error
    try:
        library.amdsmi_init()
    except library.AmdSmiException as error:
        raise NoDriver(f"AMD SMI: {error}") from error
    try:
        seen = _read(library)
    except library.AmdSmiException as error:
        raise NoDriver(f"AMD SMI: {error}") from error
    finally:
        library.amdsmi_shut_down()
    known = with_product(replace(seen, gbps=None), product)
    return known if known.gbps else seen


def _read(library: Any) -> Reading:
    handles = library.amdsmi_get_processor_handles()
    if not handles:
        raise NoDriver("AMD SMI finds no GPU")
    if len(handles) > MOST_GPUS:
        raise BadTopology(f"{len(handles)} GPUs; at most {MOST_GPUS} are read", path="amdsmi")
    links, speed, counted = _links(library, handles)
    linked = any(map(any, links))
    uncounted = "the driver does not report how many links a pair has; 1 is taken for each (name the product)"
    size = range(len(handles))
    buses = [library.amdsmi_get_gpu_device_bdf(handle).lower() for handle in handles]
    return Reading(
        links,
        "xgmi" if linked else None,
        "pair",
        tuple(tuple("X" if i == j else None for j in size) for i in size),
        tuple(_numa(library, handle) for handle in handles),
        _ids(buses),
        FORMAT,
        nics=tuple(Nic(name, near, near) for name, near in read_nics(buses) or ()),
        gbps=speed,
        health=tuple(_ask(library, "amdsmi_get_gpu_vram_usage", handle) is not None for handle in handles),
        product=(_ask(library, "amdsmi_get_gpu_asic_info", handles[0]) or {}).get("market_name"),
        warnings=() if counted or not linked else (Warned("link-count-unknown", uncounted),),
    )


def _links(library: Any, handles: list[Any]) -> tuple[tuple[tuple[int, ...], ...], float | None, bool]:
    """(links of each pair, GB/s of one in one direction if it is reported, whether links could be counted)."""
    direct: dict[tuple[int, int], tuple[int, int]] = {}  # pair -> least and most bandwidth in MB/s
    for i, a in enumerate(handles):
        for j, b in enumerate(handles[:i]):
            # A link that only one side sees is none (it is coming up, or going down).
            if _direct(library, a, b) and _direct(library, b, a):
                direct[i, j] = _bandwidth(library, a, b)
    speeds = {least for least, _ in direct.values() if least}
    counted = len(speeds) == 1 and all(least == 0 or most % least == 0 for least, most in direct.values())
    rows = [[0] * len(handles) for _ in handles]
    for (i, j), (least, most) in direct.items():
        rows[i][j] = rows[j][i] = (most // least if least else 0) if counted else 1
    return tuple(map(tuple, rows)), speeds.pop() / 1000 if counted else None, counted


def _direct(library: Any, a: Any, b: Any) -> bool:
    path = _ask(library, "amdsmi_topo_get_link_type", a, b)
    if path is None or path["type"] != _xgmi(library) or path["hops"] != 1:
        return False
    weight = _ask(library, "amdsmi_topo_get_link_weight", a, b)
    return weight is None or weight <= MOST_WEIGHT


def _xgmi(library: Any) -> int:
    """By name: the number is another one from release to release. Where there are two lists, the older one counts."""
    if (older := getattr(library, "AmdSmiIoLinkType", None)) is not None:
        return int(older.XGMI)
    return int(library.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI)


def _bandwidth(library: Any, a: Any, b: Any) -> tuple[int, int]:
    bandwidths = _ask(library, "amdsmi_get_minmax_bandwidth_between_processors", a, b) or {}
    return int(bandwidths.get("min_bandwidth") or 0), int(bandwidths.get("max_bandwidth") or 0)


def _numa(library: Any, handle: Any) -> int | None:
    node = _ask(library, "amdsmi_topo_get_numa_node_number", handle)
    return node if isinstance(node, int) and 0 <= node < MOST_NODES else None


def _ids(buses: list[str]) -> tuple[str | None, ...]:
    whole = {bus.partition(".")[0] for bus in buses}
    return tuple(buses) if len(whole) == len(buses) else (None,) * len(buses)


def _ask(library: Any, question: str, *about: Any) -> Any:
    """None where this GPU, driver or release of the library has no answer."""
    try:
        return getattr(library, question)(*about)
    except (library.AmdSmiException, AttributeError):
        return None
