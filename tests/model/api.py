"""The API server of the model: the tests' own fake, with a watch, evictions, deletion with grace, and requests that get
lost. kube-scheduler and the kubelets of `extender.sim` work on it as on their own cluster; nothing is copied: a write
replaces an object, and never changes one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.sim.cluster import FINISHED, SimClock
from tests.kube.api_server import no_headers
from tests.kube.objects import Objects
from tests.world import JSON

Change = Literal["set", "delete"]
Tell = Callable[[str, Change, JSON], None]
ENDED = "example.com/ended"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def pod_path(pod: JSON) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def kind_of(path: str) -> str:
    """The kind by which the watch tells an object; "" for what is not watched."""
    parts = path.split("/")
    kinds = {"pods": "Pod", "nodes": "Node", "groups": "Group", "resourceclaims": "ResourceClaim"}
    kinds |= {"resourceslices": "ResourceSlice", "deviceclasses": "DeviceClass", "devicetaintrules": "DeviceTaintRule"}
    return kinds.get(parts[-2], "") if len(parts) > 2 else ""


class Api(Objects):
    """`told`: hear every write of what is watched; `judged`: hears of a write of a pod before it is carried out."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self.clock = clock
        self.told: list[Tell] = []
        self.judged: Callable[[JSON, JSON], None] = lambda before, after: None
        self.writes = 0  # of what is watched
        self._paths: dict[str, str] = {}  # uid of a pod -> path

    # -- what the controllers ask

    def handled(self, method: str, path: str, raw: bytes | None) -> tuple[int, Any]:
        """As `Objects`; an eviction marks its pod."""
        if path.endswith("/eviction"):
            return self._evict(path.removesuffix("/eviction"), json.loads(raw or b"{}"))
        if method == "PATCH" and kind_of(path.removesuffix("/status")) == "Pod":
            status, found = super().handled(method, path, raw)
            return status, found
        if method == "DELETE" and (found := self.stored.get(path)) is not None:
            self.drop(path)
            return 200, found
        return super().handled(method, path, raw)

    def _evict(self, path: str, body: JSON) -> tuple[int, Any]:
        pod, options = self.stored.get(path), body["deleteOptions"]
        if pod is None or pod["metadata"]["uid"] != options["preconditions"]["uid"]:
            return 404, "not found"
        if "dryRun" not in options:
            self.delete(pod["metadata"]["uid"])
        return 201, {"kind": "Status", "status": "Success"}

    def put(self, place: str, body: Any) -> Any:
        """Create or replace, and tell it."""
        before, kind = self.stored.get(place), kind_of(place)
        if kind == "Pod":
            if before is not None:
                self.judged(before, body)
            self._paths[body["metadata"]["uid"]] = place
        made = super().put(place, body)
        self.said.clear()
        self.patched.clear()
        self.posted.clear()
        if kind:
            self._tell(kind, "set", made)
        return made

    def drop(self, place: str) -> None:
        """The object does not exist any more."""
        made = self.stored.pop(place)
        if kind := kind_of(place):
            if kind == "Pod":
                del self._paths[made["metadata"]["uid"]]
            self._tell(kind, "delete", made)

    def _tell(self, kind: str, change: Change, made: JSON) -> None:
        self.writes += 1
        for tell in self.told:
            tell(kind, change, made)

    def listed(self) -> list[tuple[str, JSON]]:
        """All that is watched, nodes first."""
        found = [(kind_of(path), made) for path, made in self.stored.items()]
        return sorted([one for one in found if one[0]], key=lambda one: one[0] == "Pod")

    # -- what the kubelets and kube-scheduler ask: as `extender.sim.cluster.SimCluster`

    def nodes(self) -> list[JSON]:
        return sorted(self.all("Node"), key=lambda node: str(node["metadata"]["name"]))

    def node(self, name: str) -> JSON:
        found: JSON = self.stored[f"/api/v1/nodes/{name}"]
        return found

    def all(self, kind: str) -> list[JSON]:
        return [made for path, made in self.stored.items() if kind_of(path) == kind]

    def pods(self, node: str | None = None) -> list[JSON]:
        found = [self.stored[path] for path in self._paths.values()]
        if node is None:
            return found
        return [one for one in found if one["spec"].get("nodeName") == node and one["status"]["phase"] not in FINISHED]

    def pod(self, uid: str) -> JSON | None:
        return self.stored.get(self._paths.get(uid, ""))

    def named(self, namespace: str, name: str, kind: str = "Pod") -> JSON:
        return next(
            made
            for made in self.all(kind)
            if (made["metadata"].get("namespace"), made["metadata"]["name"]) == (namespace, name)
        )

    def create(self, pod: JSON) -> None:
        self.put(pod_path(pod), pod)

    def bind(self, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        pod = self.pod(uid)
        assert pod is not None
        status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **annotations}}
        self.put(pod_path(pod), {"metadata": meta, "spec": {**pod["spec"], "nodeName": node}, "status": status})

    def set_status(self, uid: str, **fields: Any) -> None:
        pod = self.pod(uid)
        if pod is None:
            return
        status = {key: value for key, value in {**pod["status"], **fields}.items() if value is not None}
        if status != pod["status"]:
            self.put(pod_path(pod), {**pod, "status": status})

    def delete(self, uid: str) -> None:
        pod = self.pod(uid)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in FINISHED:
            self.remove(uid)
            return
        grace = int(pod["spec"].get("terminationGracePeriodSeconds", 30))
        meta = {**pod["metadata"], "deletionTimestamp": self.clock.text(grace), "deletionGracePeriodSeconds": grace}
        self.put(pod_path(pod), {**pod, "metadata": meta})

    def remove(self, uid: str) -> None:
        if path := self._paths.get(uid):
            self.drop(path)


class Connection(ApiServer):
    """One replica's requests. `dead`: the process was killed; `losing`: so many of the next requests fail, by lot
    before or after they are carried out."""

    def __init__(self, api: Api, chance: random.Random) -> None:

        super().__init__("http://api", headers=no_headers)
        self._api, self._chance = api, chance
        self.dead, self.losing = False, 0

    async def change(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> bytes:
        """As `request`: what breaks is not sent again."""
        return await self.request(method, path, body, content_type=content_type)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        most: int | None = None,
    ) -> bytes:
        """The body of a 2xx answer, a moment later."""
        await asyncio.sleep(self._chance.uniform(0.001, 0.004))
        fate = ""
        if self.losing:
            self.losing -= 1
            fate = self._chance.choice(("before", "after", "500"))
        if self.dead or fate == "before":
            raise NoAnswer(f"{method} {path}: the connection broke")
        if fate == "500":
            raise ApiError(500, "a failure of the server's")
        status, found = self._api.handled(method, path, body)
        await asyncio.sleep(self._chance.uniform(0.001, 0.004))
        if self.dead or fate == "after":
            raise NoAnswer(f"{method} {path}: the connection broke")
        if status >= 400:
            raise ApiError(status, found)
        return json.dumps(found).encode()
