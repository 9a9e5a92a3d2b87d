"""Reading openb files, and the arrivals that a run is made of.

openb is the trace of "Beware of Fragmentation" (USENIX ATC 2023): nodes `sn, cpu_milli, memory_mib, gpu, model`, pods
`name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec, ...]`. `gpu_milli` is per GPU, 1000 is a whole one;
`gpu_spec` names the models that will do, "A|B".
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

WHOLE = 1000  # milli-GPU
MOST_GPUS = 8
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MODES = ("full", "wholeall", "whole", "roundup")
FILL = 1.3  # arrivals ask for so many times the cluster's GPUs


class BadTrace(Exception):
    """A file that is not a trace. The message names file and line."""


@dataclass(frozen=True, slots=True, order=True)
class Node:
    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, order=True)
class Pod:
    """`gpus` GPUs, `milli` of each; `models`: those that will do, () is any."""

    name: str
    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def demand(self) -> int:
        """Milli-GPU."""
        return self.gpus * self.milli

    @property
    def shares(self) -> bool:
        return self.gpus == 1 and self.milli < WHOLE


def read_nodes(path: Path) -> list[Node]:
    """The nodes in the file's order. BadTrace: no nodes, no GPU, a damaged row, a name twice."""
    found = [_node(row, where) for where, row in _rows(path, NODE_COLUMNS)]
    _distinct(path, [node.name for node in found])
    if not sum(node.gpus for node in found):
        raise BadTrace(f"{path}: no node has a GPU")
    return found


def read_pods(path: Path) -> list[Pod]:
    """The pods in the file's order. BadTrace: no pod, a damaged row, a name twice."""
    found = [_pod(row, where) for where, row in _rows(path, POD_COLUMNS)]
    _distinct(path, [pod.name for pod in found])
    if not any(pod.gpus for pod in found):
        raise BadTrace(f"{path}: no pod asks for a GPU")
    return found


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadTrace(f"{path}:1: no column {', '.join(missing)}")
            made = []
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise BadTrace(f"{where}: {len(reader.fieldnames or ())} columns are named, the row has others")
                made.append((where, row))
            return made
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path}: {error}") from error


def _node(row: dict[str, str], where: str) -> Node:
    node = Node(
        _name(row, "sn", where),
        _number(row, "cpu_milli", where),
        _number(row, "memory_mib", where),
        _number(row, "gpu", where),
        row["model"].strip(),
    )
    if node.gpus > MOST_GPUS:
        raise BadTrace(f"{where}: {node.gpus} GPUs; a node of this trace has at most {MOST_GPUS}")
    return node


def _pod(row: dict[str, str], where: str) -> Pod:
    gpus, milli = _number(row, "num_gpu", where), _number(row, "gpu_milli", where)
    if gpus > MOST_GPUS:
        raise BadTrace(f"{where}: num_gpu {gpus}; a node of this trace has at most {MOST_GPUS}")
    if gpus and not 0 < milli <= WHOLE:
        raise BadTrace(f"{where}: gpu_milli {milli} is no part of a GPU: 1 to {WHOLE}")
    if gpus > 1 and milli < WHOLE:
        raise BadTrace(f"{where}: {gpus} GPUs of {milli} milli each; only a pod of one GPU may share it")
    spec = (row.get("gpu_spec") or "").strip()
    models = tuple(sorted({part.strip() for part in spec.split("|")})) if spec else ()
    if "" in models:
        raise BadTrace(f"{where}: gpu_spec {spec!r} has an empty alternative")
    return Pod(
        _name(row, "name", where),
        _number(row, "cpu_milli", where),
        _number(row, "memory_mib", where),
        gpus,
        milli if gpus else 0,
        models if gpus else (),
    )


def _name(row: dict[str, str], column: str, where: str) -> str:
    if not row[column].strip():
        raise BadTrace(f"{where}: {column} is empty")
    return row[column].strip()


def _number(row: dict[str, str], column: str, where: str) -> int:
    text = row[column].strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise BadTrace(f"{where}: {column} {text!r} is not a whole number from 0 up")
    return int(text)


def _distinct(path: Path, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadTrace(f"{path}: {name} stands there twice")
        seen.add(name)


def select(pods: list[Pod], mode: str) -> list[Pod]:
    """The pods of a mode. full: all. wholeall: without those that share a GPU. whole: of these the GPU pods.
    roundup: the GPU pods, a share takes one GPU, as with a device plugin."""
    keep: dict[str, Callable[[Pod], bool]] = {
        "full": lambda pod: True,
        "wholeall": lambda pod: not pod.shares,
        "whole": lambda pod: pod.gpus > 0 and not pod.shares,
        "roundup": lambda pod: pod.gpus > 0,
    }
    chosen = [pod for pod in pods if keep[mode](pod)]
    return [replace(pod, milli=WHOLE) if pod.gpus else pod for pod in chosen] if mode == "roundup" else chosen


def arrivals(pods: list[Pod], capacity: int, seed: int) -> list[Pod]:
    """One run: the pods by name, shuffled, with copies drawn at random up to 1.3 times the capacity (milli-GPU), or
    pods removed at random down to it. ValueError: none of the pods asks for a GPU."""
    drawn = random.Random(seed)
    made = sorted(pods)
    drawn.shuffle(made)
    asked = sum(pod.demand for pod in made)
    if not asked:
        raise ValueError("no pod of this mode asks for a GPU")
    base = len(made)
    limit = FILL * capacity
    while asked > limit:
        i = drawn.randrange(len(made))
        made[i], made[-1] = made[-1], made[i]
        asked -= made.pop().demand
    if len(made) < base:
        drawn.shuffle(made)
        return made
    while True:
        pod = made[drawn.randrange(base)]
        if asked + pod.demand > limit:
            return made
        made.append(pod)
        asked += pod.demand
