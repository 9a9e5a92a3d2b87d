"""Any description of one node's GPUs that the commands take, distinguished by its form."""

from __future__ import annotations

from difflib import get_close_matches

from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, nvidia_smi, rocm_smi
from extender.topologies.reading import Reading, Warned, of_topology

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
    """A text of nvidia-smi or rocm-smi, or an annotation's value. BadTopology for anything else."""
    if len(data) > MOST_BYTES:
        raise BadTopology(f"{len(data)} bytes; at most {MOST_BYTES} are read")
    text = _decoded(data)
    if not text.strip():
        raise BadTopology("it is empty; nvidia-smi topo -m or rocm-smi --showtopo prints what is read here")
    if text.lstrip().startswith("{"):
        return of_topology(annotation.decode(text), "annotation")
    if rocm_smi.recognises(text):
        return rocm_smi.parse(text)
    return nvidia_smi.parse(text)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")
