"""The questions to a cluster, and the program's answers: commands over a file, and the pages of a server.

A question is what people type: words of a command, or `GET PATH` of a page. Of an answer
with `as`, a question, only the fields are kept that differ from the answer to that question. Of each gang in the queue
`where would NAMESPACE/GANG go` states what each entrance answers.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from extender.ask import frozen
from extender.cli import main
from extender.settings import Settings
from tests.web.page.scene import with_queue
from tests.world import JSON, World, logged

MOST_PODS: Final = 5
"""Pods that are explained, of those that wait and are not in the queue, and of those that run."""
MOST_GANGS: Final = 4
CHANGING: Final = frozenset({"policy_hash", "duration_us", "milliseconds", "settings"})
"""What a new setting changes, or each run."""
LISTS: Final = ("results", "decisions")
"""Of whose entries after the first only the fields are kept that differ from those of the entry before."""
FILES: Final = ("--cluster", "cluster.json", "--config", "settings.json")
ENVIRONMENT: Final = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
VIEWS: Final = (
    "/.json", "/nodes.json", "/waiting.json", "/queue.json", "/capacity.json", "/advice.json", "/whatif.json",
    "/debug/top", "/debug/capacity", "/debug/map", "/debug/queue",
)  # fmt: skip
VIEWS_OF_DECISIONS: Final = ("/preemptions.json", "/prices.json", "/decisions.json", "/debug/decisions?nodes=2")


class Scenario(NamedTuple):
    """A cluster. `items`: its objects; `settings`: as the settings file; `asked`: file -> its objects."""

    items: list[JSON]
    settings: JSON
    now: str
    asked: dict[str, list[JSON]]

    @property
    def pods(self) -> list[JSON]:
        """In order of namespace and name."""
        return sorted((one for one in self.items if one["kind"] == "Pod"), key=key_of)

    @property
    def nodes(self) -> list[str]:
        """Their names."""
        return sorted(one["metadata"]["name"] for one in self.items if one["kind"] == "Node")


def key_of(wire: JSON) -> str:
    """NAMESPACE/NAME."""
    meta = wire["metadata"]
    return f"{meta.get('namespace', 'default')}/{meta['name']}"


def answers(scenario: Scenario) -> dict[str, Any]:
    """The answer to each question."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder), mock.patch.dict(os.environ, ENVIRONMENT), logged():
        asked = (*_commands(scenario), *_pages(scenario))
        found = {question: _steady(answer) for question, answer in asked}
    bases = {question: _base(found, question) for question in found}
    short = {
        question: _beside(base, found[base], found[question])
        for question, base in bases.items()
        if base in found and base != question
    }
    return found | short | dict(_entrances(scenario, found))


def _base(found: Mapping[str, Any], question: str) -> str:
    """The question beside whose answer another is kept: the first what-if; of a page its command."""
    if question.startswith("whatif ") and question.endswith("json"):
        return next((other for other in found if other.startswith("whatif ")), "")
    page = re.fullmatch(r"GET (?:/debug)?/([a-z]*)(?:\.json)?(?:\?pod=(.*))?", question)
    command, pod = page.groups() if page else ("", None)
    return f"explain {pod} -o json" if pod else f"{command} -o json"


def _beside(question: str, before: JSON, answer: JSON) -> JSON:
    return {"as": question} | _different(before, answer)


def _different(before: JSON, answer: JSON) -> JSON:
    """The fields that differ, and the names of those that are not there."""
    different = {key: part for key, part in answer.items() if key not in before or before[key] != part}
    lacks = [key for key in before if key not in answer]
    return different | ({"lacks": lacks} if lacks else {})


# ---- commands


def _commands(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    listed = {"apiVersion": "v1", "kind": "List"}
    Path("cluster.json").write_text(json.dumps(listed | {"items": scenario.items}))
    Path("settings.json").write_text(json.dumps(scenario.settings))
    for file, objects in scenario.asked.items():
        Path(file).write_text(json.dumps(listed | {"items": objects}))
    for question in questions(scenario):
        yield question, _ran(scenario.now, question)


def questions(scenario: Scenario) -> list[str]:
    """The commands; a part of them is asked for text, too."""
    nodes, files = scenario.nodes, sorted(scenario.asked)
    pending = [pod for pod in scenario.pods if not pod["spec"].get("nodeName")]
    waiting = _one_of_each([pod for pod in pending if not pod["spec"].get("schedulingGates")])[:MOST_PODS]
    queued = _one_of_each([pod for pod in pending if pod["spec"].get("schedulingGates")])[:MOST_GANGS]
    running = _one_of_each([pod for pod in scenario.pods if pod["spec"].get("nodeName")])
    simple = ["top", "capacity", "queue", "check", "map"]
    explained = [f"explain {key_of(pods[0])}" for pods in (*waiting, *queued, *running[:MOST_PODS])]
    asked = [f"whatif -f {file}" for file in files]
    gangs = [f"whatif --pod {' '.join(map(key_of, pods))}" for pods in (*queued, *waiting[:2])]
    every = f"whatif -f {' '.join(files)}"
    changed = [f"{every} --add 1 {nodes[0]}", f"{every} --add 2 catalogue:dgx-h100", f"{every} --cordon {nodes[0]}"]
    changed += [f"whatif -f {files[0]} --drain {node}" for node in nodes[-1:]]
    changed += [f"whatif --drain {node}" for node in nodes[:1]]
    mapped = [f"map {node}" for node in nodes[:1]]
    texts = [
        *simple,
        *explained[:3],
        *explained[-1:],
        *asked[:2],
        *gangs[:1],
        changed[0],
        changed[-1],
    ]
    return [
        *(f"{question} -o json" for question in [*simple, *mapped, *explained, *asked, *gangs, *changed]),
        *(f"{question} -o text" for question in texts),
    ]


def _one_of_each(pods: list[JSON]) -> list[list[JSON]]:
    """The pods of each gang, and each other pod. Those that state the most come first."""
    groups: dict[str, list[JSON]] = {}
    for pod in pods:
        groups.setdefault(_gang_of(pod), []).append(pod)
    return sorted(groups.values(), key=lambda some: (-len(some[0]["metadata"].get("annotations", {})), key_of(some[0])))


def _gang_of(pod: JSON) -> str:
    """NAMESPACE/GANG as our annotation or label names it, else the name of the pod without its number."""
    meta = pod["metadata"]
    stated = (meta.get("annotations", {}) | meta.get("labels", {})).get("gpu-extender.io/gang")
    name = f"{meta.get('namespace', 'default')}/{stated}" if stated else key_of(pod)
    return name if stated else re.sub(r"-\d+$", "", name)


def _ran(now: str, question: str) -> Any:
    """What the command prints: JSON, or the lines of a text; and its exit code where it is not 0."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*question.split(), *FILES, *(() if question.startswith("map") else ("--now", now))])
    if question.endswith("-o text"):
        return [*out.getvalue().splitlines(), *err.getvalue().splitlines(), f"exit code {code}"]
    return json.loads(out.getvalue() or err.getvalue()) | ({"exit_code": code} if code else {})


def _steady(value: Any) -> Any:
    if isinstance(value, list):
        return [_steady(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    made = {key: _steady(part) for key, part in value.items() if key not in CHANGING}
    for key in (key for key in LISTS if isinstance(made.get(key), list)):
        made[key] = [*made[key][:1], *(_different(before, one) for before, one in pairwise(made[key]))]
    return made


# ---- pages


def world_of(scenario: Scenario) -> World:
    """A server over the cluster, whose queue has looked once."""
    settings = Settings.model_validate_json(json.dumps(scenario.settings))
    world = World(settings)
    world.wall = datetime.fromisoformat(scenario.now).timestamp()
    gpus = frozenset(resource.name for resource in settings.resources)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cluster.json")
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": scenario.items}))
        world.cluster.apply(frozen.read(file, gpus), world.now)
    return with_queue(world)


def _pages(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    pods, nodes = _one_of_each(scenario.pods), scenario.nodes
    views = [*VIEWS, *(f"/node.json?node={node}" for node in nodes[-1:])]
    for pod in [some[0] for some in pods][:MOST_PODS]:
        views += [f"/pod.json?pod={key_of(pod)}", f"/debug/explain?pod={key_of(pod)}"]
    world = world_of(scenario)
    yield from _got(world, views)
    decided = world_of(scenario)
    for pod in [one for _, some in sorted(scenario.asked.items()) for one in some if one["metadata"].get("uid")]:
        _decide(decided, pod)
    yield from _got(decided, VIEWS_OF_DECISIONS)


def _got(world: World, views: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for view in views:
        yield f"GET {view}", world.call(view, method="GET").json


def _decide(world: World, pod: JSON) -> None:
    """What kube-scheduler asks about a pod; it offers all pods of lower priority."""
    nodes = sorted(world.cluster.nodes)
    if passed := world.filter(pod, nodes).get("NodeNames"):
        world.prioritize(pod, sorted(passed))
        return
    below = [one for one in world.cluster.pods.values() if one.priority < pod["spec"].get("priority", 0)]
    offered = {node: sorted(one.uid for one in below if one.node == node) for node in nodes}
    meta = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in offered.items() if uids
    }
    world.post("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})


# ---- the same question through several entrances


def _entrances(scenario: Scenario, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where each gang of the queue would go, by each entrance that was asked."""
    gang_of = {key_of(pod): _gang_of(pod) for pod in scenario.pods}
    answered: dict[str, dict[str, str]] = {}
    for start in found["queue -o json"]["starts"]:
        answered[start["gang"]] = {"queue": f"starts on {_counted(pod['node'] for pod in start['pods'])}"}
    for entry in found["queue -o json"]["waiting"]:
        answered[entry["gang"]] = {"queue": f"{entry['reason']}: {entry['text']}"}
    for question, answer in found.items():
        if question.startswith("explain ") and question.endswith("json"):
            name = question.split()[1]
            answered.get(gang_of[name], answered.get(name, {}))["explain"] = answer["sentence"]
        for group in answer["groups"] if question.startswith("whatif --pod ") and question.endswith("json") else ():
            placed = _counted(pod["node"] for pod in group["pods"] if pod["node"])
            where = f" on {placed}" if placed else f": {group.get('text')}"
            answered.get(group["gang"], {})["whatif"] = group["verdict"] + where
    for entry in found["capacity -o json"]["unblock"]:
        answered.get(entry["gang"], {})["capacity"] = entry["sentence"]
    for gang in sorted(answered):
        yield f"where would {gang} go", answered[gang]


def _counted(nodes: Iterable[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(Counter(nodes).items()))
