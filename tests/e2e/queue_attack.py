"""One tenant against the queue: what it does to the gangs of others, beside the same load that does not ask the queue.

Each scene has two runs. In the control run the attacker's pods have no gate, and its claims can be allocated. Honest
gangs come at a constant rate in both, and what counts is how long they wait.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from extender.kube.client import ApiError
from extender.objects.queueing import GATE
from extender.sim import claims as dra
from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.attack_accounts import Wait

HONEST, HOSTILE = "honest", "mallory"
PREFIX = "gpu-extender.io"
POOLS = {tenant: {"pool": tenant} for tenant in (HONEST, HOSTILE)}
GANG_PODS = 2
EVERY_SECONDS = 0.8  # between two honest gangs
RUN_SECONDS = 2.0
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 20.0  # for honest gangs that wait when the window ends
LARGEST_ANNOTATIONS = 256 * 1024 - 1
"""Bytes of keys and values: one less than the API server accepts."""
PATCHERS, CREATORS = 4, 4  # threads
FINALIZER = {"metadata": {"finalizers": ["mallory.example/keep"]}}
NOWHERE = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"no": "pod"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


@dataclass(frozen=True)
class Sizes:
    """How large an attack is. `seconds`: of the window in which honest gangs come; `patches`: each second."""

    rejected: int
    unwritable: int
    patches: int
    seconds: float


LONG = Sizes(rejected=400, unwritable=230, patches=200, seconds=30.0)
SHORT = Sizes(rejected=40, unwritable=8, patches=40, seconds=8.0)


class Honest:
    """A gang of two pods every EVERY_SECONDS, in turn by the device plugin and by claims. Each is deleted RUN_SECONDS
    after it has started. A context manager; leaving it waits for those that still wait."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._created: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._deleted: set[str] = set()
        self._ended, self._left = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=loop) for loop in (self._create, self._follow)]
        self.errors: list[BaseException] = []

    def __enter__(self) -> Honest:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._threads[0].join()
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and self._created.keys() - self._started.keys():
            time.sleep(POLL_SECONDS)
        self._left.set()
        self._threads[1].join()

    def waits(self, since: float) -> list[Wait]:
        """Of the gangs that were created since then (`time.monotonic()`)."""
        now = time.monotonic()
        return [
            Wait(self._started.get(name, now) - created, name in self._started)
            for name, created in self._created.items()
            if created >= since
        ]

    def _create(self) -> None:
        number = 0
        while not self._ended.wait(EVERY_SECONDS):
            name = f"h{number}"
            self._created[name] = time.monotonic()
            try:
                for pod in self._pods(name, claims=number % 2 == 1):
                    self._api.create(pod)
            except ApiError as error:
                self.errors.append(error)
            number += 1

    def _pods(self, name: str, *, claims: bool) -> Iterable[Object]:
        notes = {f"{PREFIX}/gang": name, f"{PREFIX}/gang-size": str(GANG_PODS)}
        options: dict[str, Any] = {"labels": {"gang": name}, "annotations": notes, "schedulingGates": [{"name": GATE}]}
        if claims:
            options["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "gpus-1"}]
        else:
            options["node_selector"] = POOLS[HONEST]
        for pod in range(GANG_PODS):
            yield builders.pod(
                f"{name}-{pod}", self._namespace, 0 if claims else 1, cpu="100m", memory="1Mi", grace=0, **options
            )

    def _follow(self) -> None:
        while not self._left.wait(POLL_SECONDS):
            bound: dict[str, int] = {}
            for pod in self._api.list("Pod", self._namespace):
                if pod["spec"].get("nodeName"):
                    name = pod["metadata"]["labels"]["gang"]
                    bound[name] = bound.get(name, 0) + 1
            now = time.monotonic()
            for name, pods in bound.items():
                if pods == GANG_PODS:
                    self._started.setdefault(name, now)
                if now - self._started.get(name, now) > RUN_SECONDS and name not in self._deleted:
                    self._deleted.add(name)
                    self._api.delete_all("Pod", self._namespace, labels=f"gang={name}")


@dataclass
class Attacker:
    """A tenant that may do in its namespace what the role `edit` allows, and create claims. `gated`: False in the
    control run."""

    api: Api
    namespace: str
    gated: bool
    sizes: Sizes
    ended: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    """Names of its pods."""

    def rejected(self) -> None:
        """Pods without GPUs that kube-scheduler rejects, whatever node the queue names."""
        self._create_all(self._pod(f"rejected-{n}", 0, affinity=NOWHERE) for n in range(self.sizes.rejected))

    def unwritable(self) -> None:
        """Gangs and single pods whose annotations have no room for one more."""
        gangs = range(self.sizes.unwritable)
        self._create_all(
            [_filled(self._pod(f"full-{n}-{pod}", gang=f"full-{n}")) for n in gangs for pod in range(GANG_PODS)]
            + [_filled(self._pod(f"single-{n}")) for n in gangs]
        )

    def patched(self) -> None:
        """One small gang after the other, while the labels of its first pod change all the time."""
        current = [""]
        patchers = [threading.Thread(target=self._patch, args=(current, n)) for n in range(PATCHERS)]
        for thread in patchers:
            thread.start()
        number = 0
        while not self.ended.wait(POLL_SECONDS):
            name = f"patched-{number}"
            self._create_all([self._pod(f"{name}-{pod}", gang=name) for pod in range(GANG_PODS)])
            current[0] = f"{name}-0"
            until = time.monotonic() + 12.0
            while time.monotonic() < until and not self._is_bound(current[0]) and not self.ended.wait(POLL_SECONDS):
                pass
            for pod in range(GANG_PODS):
                with contextlib.suppress(ApiError):  # the end of the scene came before it was created
                    self.api.delete("Pod", f"{name}-{pod}", self.namespace, grace=0)
            number += 1
        for thread in patchers:
            thread.join()

    def claimed(self) -> None:
        """Pods without a gate whose claims are never allocated: too many GPUs, and a claim that is being deleted. In
        the control run they are allocated."""
        self.api.create(dra.claim("many", self.namespace, 1 if not self.gated else 16))
        kept = dra.claim("kept", self.namespace, 1)
        if self.gated:
            kept["metadata"] |= FINALIZER["metadata"]
        self.api.create(kept)
        if self.gated:
            self.api.delete("ResourceClaim", "kept", self.namespace)
        for name in ("many", "kept"):
            claims = [{"name": "gpus", "resourceClaimName": name}]
            self._create_all([self._pod(f"claims-{name}", 0, gated=False, pool=False, resourceClaims=claims)])

    def attack(self, scene: str) -> Sequence[threading.Thread]:
        """Begin one scene, or all of them at once; its threads end some time after `ended`."""
        acts = SCENES.values() if scene == ALL else [SCENES[scene]]
        threads = [threading.Thread(target=self._guard, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        return threads

    def delete_pods(self) -> None:
        """One by one: hundreds of the largest size are more than one request may take."""

        def delete(name: str) -> None:
            with contextlib.suppress(ApiError):  # deleted before
                self.api.delete("Pod", name, self.namespace, grace=0)

        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(delete, self.created))

    def _guard(self, act: Callable[[Attacker], None]) -> None:
        try:
            act(self)
        except BaseException as error:
            self.errors.append(error)

    def _pod(
        self, name: str, gpus: int = 1, *, gang: str = "", gated: bool = True, pool: bool = True, **spec: Any
    ) -> Object:
        """On nodes of its own, so that the honest gangs have room in the control run too."""
        notes = {f"{PREFIX}/gang": gang, f"{PREFIX}/gang-size": str(GANG_PODS)} if gang else {}
        gates = [{"name": GATE}] if gated and self.gated else []
        selector = POOLS[HOSTILE] if pool else {}
        return builders.pod(
            name, self.namespace, gpus, cpu="10m", memory="1Mi", grace=0, annotations=notes, schedulingGates=gates,
            node_selector=selector, **spec,
        )  # fmt: skip

    def _create_all(self, pods: Iterable[Object]) -> None:
        def create(pod: Object) -> None:
            if not self.ended.is_set():
                self.created.append(pod["metadata"]["name"])
                self.api.create(pod)

        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(create, pods))

    def _is_bound(self, name: str) -> bool:
        return bool(self.api.get("Pod", name, self.namespace)["spec"].get("nodeName"))

    def _patch(self, current: Sequence[str], patcher: int) -> None:
        number = 0
        while not self.ended.wait(PATCHERS / self.sizes.patches):
            number += 1
            with contextlib.suppress(ApiError):  # no gang yet, or it was deleted meanwhile
                labels = {"metadata": {"labels": {"patch": f"{patcher}-{number}"}}}
                self.api.patch("Pod", current[0] or "none", labels, self.namespace)


ALL = "all at once"
SCENES: dict[str, Callable[[Attacker], None]] = {
    "rejected by kube-scheduler": Attacker.rejected,
    "annotations of the largest size": Attacker.unwritable,
    "labels that change all the time": Attacker.patched,
    "claims that are never allocated": Attacker.claimed,
}


def _filled(pod: Object) -> Object:
    notes = pod["metadata"]["annotations"]
    size = sum(len(key) + len(value) for key, value in notes.items())
    notes["x"] = "y" * (LARGEST_ANNOTATIONS - size - 1)
    return pod


def remove(api: Api, namespaces: Iterable[str]) -> None:
    """Pods and claims of these namespaces, also those that a finalizer keeps."""
    for namespace in namespaces:
        api.delete_all("Pod", namespace)
        for claim in api.list("ResourceClaim", namespace):
            with contextlib.suppress(ApiError):  # deleted meanwhile
                kept = [name for name in claim["metadata"].get("finalizers", ()) if HOSTILE not in name]
                patch = {"metadata": {"finalizers": kept}}
                api.patch("ResourceClaim", claim["metadata"]["name"], patch, namespace)
        api.delete_all("ResourceClaim", namespace)
