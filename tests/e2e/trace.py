"""What happened, in the order in which it did: pods and plans as the API server told them, and what the server said.

For a test that has to explain afterwards why something came about. Two watches and a poll, each in a thread of its own;
times are seconds since 1970 by this machine's clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from extender.kube.client import ApiError, NoAnswer
from tests import plain
from tests.e2e.api import Api, Object, WatchExpired
from tests.e2e.watching import Watching

POLL_SECONDS = 0.4
RESERVATIONS = "gpu-extender-reservations"


@dataclass
class PodStory:
    """One pod: `bound` to `node` at that time, `going` once it is deleted, `gone` when it holds nothing any more."""

    uid: str
    name: str
    gpus: int
    priority: int
    created: float
    node: str = ""
    bound: float | None = None
    going: float | None = None
    gone: float | None = None
    nominated: list[tuple[float, str]] = field(default_factory=list)
    space: str = ""

    def there(self, node: str, at: float, slack: float = 0.0) -> bool:
        """Whether it held its GPUs on the node at that time, give or take `slack` seconds."""
        if self.node != node or self.bound is None:
            return False
        return self.bound <= at + slack and (self.gone is None or self.gone > at - slack)


@dataclass
class PlanStory:
    """One plan as the ConfigMap had it, from when until when."""

    uid: str
    node: str
    victims: frozenset[str]
    priority: int
    gpus: int
    made: float
    ended: float | None = None


class Trace(Watching):
    """A context manager around the part of a test that is to be explained. `namespace`: of its pods, "" for all;
    `url`: of the server."""

    def __init__(self, api: Api, namespace: str, url: str, resource: str) -> None:
        super().__init__(api)
        self.pods: dict[str, PodStory] = {}
        self.plans: list[PlanStory] = []
        self.marks: list[tuple[float, str]] = []  # what the test did
        self.passed: Mapping[str, str] = {}  # by name of a pod, which server passed it, where that is read from logs
        self.decisions: dict[tuple[Any, ...], Object] = {}
        self._url, self._resource = url, resource
        self.lines: list[tuple[float, str]] = []
        self._beside(self._follow, "Pod", namespace, "", self._pod)
        self._beside(self._follow, "ConfigMap", "kube-system", f"metadata.name={RESERVATIONS}", self._map)
        self._beside(self._poll)

    def mark(self, text: str) -> None:
        self.marks.append((time.time(), text))

    # -- what comes in

    def _follow(self, kind: str, namespace: str, fields: str, seen: Callable[[float, str, Object], None]) -> None:
        version = ""
        while not self._stopping.is_set():
            try:
                for change, item in self._watch(kind, namespace, version, fields):
                    version = item["metadata"]["resourceVersion"]
                    seen(time.time(), change, item)
            except WatchExpired:
                version = ""
            except (ApiError, NoAnswer):
                self._stopping.wait(0.1)

    def _pod(self, now: float, change: str, pod: Object) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        asked = [c.get("resources", {}).get("requests", {}).get(self._resource, 0) for c in spec["containers"]]
        story = self.pods.setdefault(
            meta["uid"],
            PodStory(
                meta["uid"], meta["name"], sum(map(int, asked)), spec.get("priority", 0), now, space=meta["namespace"]
            ),
        )
        said = [f"{change.lower()} {status.get('phase', '')}"]
        if spec.get("nodeName") and story.bound is None:
            story.node, story.bound = spec["nodeName"], now
            said.append(f"bound to {story.node}")
        nominated = status.get("nominatedNodeName", "")
        if nominated != (story.nominated[-1][1] if story.nominated else ""):
            story.nominated.append((now, nominated))
            said.append(f"nominated to {nominated or 'nothing'}")
        if "deletionTimestamp" in meta and story.going is None:
            story.going = now
            said.append("is deleted")
        if (change == "DELETED" or status.get("phase") in ("Succeeded", "Failed")) and story.gone is None:
            story.gone = now
            said.append("holds nothing")
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                said.append(condition.get("message", ""))
        self.lines.append((now, f"pod {meta['name']} {'; '.join(said)}"))

    def _map(self, now: float, change: str, found: Object) -> None:
        entries = {uid: orjson.loads(text) for uid, text in (found.get("data") or {}).items()}
        open_plans = {plan.uid: plan for plan in self.plans if plan.ended is None}
        for uid, plan in open_plans.items():
            entry = entries.get(uid)
            if entry is None or (entry["node"], frozenset(entry["victims"])) != (plan.node, plan.victims):
                plan.ended = now
                self.lines.append((now, f"map {self._named(uid)}: its plan on {plan.node} ends"))
        for uid, entry in entries.items():
            if uid in open_plans and open_plans[uid].ended is None:
                continue
            victims = frozenset(entry["victims"])
            gpus = entry["amounts"].get(self._resource, 0)
            self.plans.append(PlanStory(uid, entry["node"], victims, entry["priority"], gpus, now))
            names = sorted(map(self._named, victims))
            self.lines.append((now, f"map {self._named(uid)}: plan on {entry['node']}, victims {', '.join(names)}"))

    def _poll(self) -> None:
        with plain.client(timeout=2) as http:
            while not self._stopping.wait(POLL_SECONDS):
                with contextlib.suppress(httpx.HTTPError):
                    page = http.get(f"{self._url}/debug/decisions", params={"most": 60, "nodes": 8})
                    for one in page.json()["decisions"]:
                        if one["verb"] != "prioritize":
                            self.decisions[one["at"], one["verb"], one["pod"]["uid"]] = one

    # -- what is asked

    def said(self, text: str) -> list[str]:
        """The lines about pods in which the text stands."""
        return [line for _, line in self.lines if text in line]

    def _named(self, uid: str) -> str:
        return self.pods[uid].name if uid in self.pods else uid

    def story(self, names: Iterable[str], since: float, until: float, *logs: Path) -> str:
        """All that is known of these pods between two times, line by line: with the log files' lines that name one."""
        wanted = set(names)
        lines = [(at, text) for at, text in self.lines if since <= at <= until and wanted & _words(text)]
        lines += [(at, f"test {text}") for at, text in self.marks if since <= at <= until]
        for (at, verb, _), one in self.decisions.items():
            if since <= at <= until and one["pod"]["name"] in wanted:
                lines.append((at, f"decision {verb} {one['pod']['name']}: {_brief(one)}"))
        for log in logs:
            for line in log.read_text(errors="replace").splitlines():
                at = time_of(line)
                if at is not None and since <= at <= until and wanted & _words(line):
                    lines.append((at, f"{log.stem} {line[:600]}"))
        return "\n".join(f"{at - since:8.3f} {text}" for at, text in sorted(lines))


def _words(text: str) -> set[str]:
    return set(text.replace('"', " ").replace("/", " ").replace(",", " ").replace(":", " ").split())


def _brief(one: Object) -> str:
    nodes = " ".join(f"{n['node']}={n.get('reason', 'fits')}" for n in one["nodes"])
    more = {key: one[key] for key in ("why", "node", "plan", "error") if one.get(key)}
    if one.get("victims") and isinstance(one["victims"][0], dict):
        more["victims"] = [victim["name"] for victim in one["victims"]]
    return f"{one['result']} {more} {nodes}"


def time_of(line: str) -> float | None:
    """The time of a log line: ours (JSON with `ts`), or kube-scheduler's (klog, local time without a year)."""
    import datetime

    try:
        if line.startswith("{"):
            return datetime.datetime.fromisoformat(orjson.loads(line)["ts"]).timestamp()
        if line[:1] in "IWEF" and line[1:5].isdigit():
            year = datetime.datetime.now().year
            return datetime.datetime.strptime(f"{year}{line[1:21]}", "%Y%m%d %H:%M:%S.%f").timestamp()
    except (ValueError, KeyError):
        pass
    return None
