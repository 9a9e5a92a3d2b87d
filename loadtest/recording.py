"""A recorded watch stream: objects and watch lines as a real API server wrote them, filled for a fleet of any size.

The file is gzipped JSON, one object a line, as `record_stream` writes it:

    {"recorded": "kube-apiserver 1.37.0", "nodes": 16}
    {"list": "/api/v1/nodes", "text": "{...}"}        an object of the list that came before the watch
    {"watch": "/api/v1/pods", "text": "{...}"}        a line of the watch; the last one ends where the first began

Copy `c` of an object or of a line is about the nodes `16c` to `16c + 15`. Names end in their node's number; uids and
resource versions are filled in as well, so that a line can be sent again and again.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks import fleet

FILE = Path(__file__).parent / "recorded" / "stream.jsonl.gz"
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
_HOLE = re.compile(
    rb'(?P<node>gpu-worker-\d{4})|(?P<pod>(?:base|churn)-)(?P<number>\d{4})|"uid":"(?P<uid>[0-9a-f]{8})(?=-)'
    rb'|"resourceVersion":"(?P<version>\d+)"'
)
_UID = re.compile(rb'"uid":"([0-9a-f-]{36})"')


@dataclass(frozen=True)
class Line:
    """The text of an object or of a watch line, cut at its holes. `path`: the collection it belongs to."""

    path: str
    parts: tuple[bytes, ...]
    holes: tuple[tuple[str, int], ...]

    def fill(self, copy: int, turn: int, version: int, size: int) -> bytes:
        """`copy`: which nodes; `turn`: how often the stream began anew, which makes other uids; `size`: recorded
        nodes."""
        found = [self.parts[0]]
        for (kind, number), part in zip(self.holes, self.parts[1:], strict=True):
            if kind == "version":
                found.append(b'"resourceVersion":"%d"' % version)
            elif kind == "node":
                found.append(fleet.name(number + size * copy).encode())
            elif kind == "pod":
                found.append(b"%04d" % (number + size * copy))
            else:  # a uid: its first eight digits
                made = number + copy + (turn << 16 if kind == "stream uid" else 0)
                found.append(b'"uid":"%08x' % (made & 0xFFFFFFFF))
            found.append(part)
        return b"".join(found)


@dataclass(frozen=True)
class Recording:
    """`size`: nodes of one copy; `lists`: the objects that exist before and after the stream; `stream`: its lines."""

    recorded: str
    size: int
    lists: tuple[Line, ...]
    stream: tuple[Line, ...]

    def copies(self, nodes: int) -> int:
        """How many copies `nodes` nodes take."""
        return -(-nodes // self.size)


def read(file: Path = FILE) -> Recording:
    """ValueError: the file is no recording; OSError: it cannot be read."""
    try:
        with gzip.open(file, "rb") as lines:
            head, *entries = [json.loads(line) for line in lines]
        kept = {uid for entry in entries if "list" in entry for uid in _UID.findall(entry["text"].encode())}
        lists = tuple(_line(entry["list"], entry["text"], kept) for entry in entries if "list" in entry)
        stream = tuple(_line(entry["watch"], entry["text"], kept) for entry in entries if "watch" in entry)
        if not lists or not stream:
            raise ValueError("it has no lists, or no stream")
        return Recording(str(head["recorded"]), int(head["nodes"]), lists, stream)
    except (KeyError, TypeError, ValueError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is no recording of a watch stream: {error!r}"[:300]) from error


def _line(path: str, text: str, kept: set[bytes]) -> Line:
    """`kept`: uids of objects that are in the lists, so that they are not created by the stream."""
    raw, at = text.encode(), 0
    parts: list[bytes] = []
    holes: list[tuple[str, int]] = []
    for found in _HOLE.finditer(raw):
        begin = found.start()
        if found["node"]:
            holes.append(("node", int(found["node"][-4:])))
        elif found["pod"]:
            begin = found.start("number")
            holes.append(("pod", int(found["number"])))
        elif found["uid"]:
            whole = raw[found.start("uid") : found.start("uid") + 36]
            holes.append(("uid" if whole in kept else "stream uid", int(found["uid"], 16)))
        else:
            holes.append(("version", 0))
        parts.append(raw[at:begin])
        at = found.end()
    return Line(path, (*parts, raw[at:]), tuple(holes))
