"""The GPUs of this node as the vendor's command line reports them: nvidia-smi, or rocm-smi."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

from extender.errors import BadTopology
from extender.topologies import nvidia_smi, rocm_smi
from extender.topologies.annotation import decode, encode
from extender.topologies.reading import Reading, with_product
from extender.topologies.topology import Topology

SECONDS = 60.0
NVIDIA = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "topo", "-mp"),
    ("nvidia-smi", "-L"),
    ("nvidia-smi", "nvlink", "-s"),
)
AMD = (("rocm-smi", "--showtopo"), ("rocm-smi", "--showbus"))
_BUS = re.compile(
    r"^GPU\[(\d+)\]\s*: PCI Bus: ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\s*$", re.MULTILINE
)

Run = Callable[[Sequence[str]], str]


def run(command: Sequence[str]) -> str:
    """What the command prints; "" when it fails. BadTopology when it hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadTopology(str(error), path=command[0]) from error
    return done.stdout if done.returncode == 0 else ""


def read(product: str | None = None, gbps: float | None = None, run: Run = run, vendor: str = "") -> Topology:
    """From `vendor` ("nvidia-smi", "rocm-smi"), else whichever is installed. BadTopology without a usable text."""
    vendor = vendor or next((name for name in ("nvidia-smi", "rocm-smi") if shutil.which(name)), "")
    if not vendor:
        raise BadTopology("neither nvidia-smi nor rocm-smi is installed", code="no-driver")
    texts = [run(command) for command in (NVIDIA if vendor == "nvidia-smi" else AMD)]
    if not texts[0].strip():
        raise BadTopology("it prints nothing", path=vendor)
    return from_text("\n".join(texts), product, gbps)


def from_text(text: str, product: str | None = None, gbps: float | None = None) -> Topology:
    """From what they print, kept in a file. BadTopology when it does not state all links, or how fast they are."""
    reading = _with_buses(rocm_smi.parse(text), text) if rocm_smi.recognises(text) else nvidia_smi.parse(text)
    return complete(reading, product, gbps)


def complete(reading: Reading, product: str | None, gbps: float | None) -> Topology:
    """The view, with what the product adds. BadTopology as `from_text`."""
    reading = with_product(reading, product, gbps)
    if reading.known_links() is None:
        raise BadTopology("not all links are known", path="links", code="links-unknown")
    if reading.linked and not reading.gbps:
        raise BadTopology("the speed of a link is unknown: give --product or --gbps", path="gbps", code="gbps-unknown")
    seen = reading.topology()
    return replace(decode(encode(seen)), nics=seen.nics)  # so that what is read is what was written


def _with_buses(reading: Reading, text: str) -> Reading:
    """AMD's device plugin calls a GPU by its PCI address (ROCm/k8s-device-plugin)."""
    addresses = {int(gpu): address.lower() for gpu, address in _BUS.findall(text)}
    if sorted(addresses) != list(range(reading.gpus)):
        return reading
    return replace(reading, uuids=tuple(addresses[gpu] for gpu in range(reading.gpus)))
