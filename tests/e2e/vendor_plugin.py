"""A vendor's device plugin on the real gRPC API, which behaves as the stock one and knows nothing of us.

It serves first and registers then, registers again when kubelet's socket is made anew, and prefers devices by the model
of `extender.sim.machines`. As a process: `python -m tests.e2e.vendor_plugin FOLDER '{"machine": "dgx1-v100"}'`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from extender.node import kubelet_api
from extender.sim.machines import Arbitrary, SimDevicePlugin, device_plugin, gpu_uuids, machine

SERVICE = "v1beta1.DevicePlugin"
OPTIONS = (("grpc.default_authority", "localhost"),)
Call = tuple[str, list[str]]


class VendorPlugin:
    """One resource of one plugin. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str],
        *,
        resource: str = "nvidia.com/gpu",
        endpoint: str = "nvidia-gpu.sock",
        numa: Sequence[int] | None = None,
        model: SimDevicePlugin | None = None,
        prefers: bool = True,
        pre_start: bool = False,
        seed: int = 0,
        in_allocate: Callable[[], None] = lambda: None,
    ) -> None:
        """`ids`: the device of each index of `model`; `in_allocate` is called in the middle of Allocate."""
        self.resource = resource
        self.calls: list[Call] = []
        self._folder, self._endpoint = folder, endpoint
        self._ids, self._numa = list(ids), numa
        self._healthy = [True] * len(ids)
        self._model = model or Arbitrary()
        self._prefers, self._pre_start = prefers, pre_start
        self._rng = random.Random(seed)
        self._in_allocate = in_allocate
        self._changed = threading.Condition()
        self._version = 1
        self._server: grpc.Server | None = None
        self._stopping = threading.Event()
        self._seen: tuple[int, int] | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> VendorPlugin:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, and follow kubelet's socket."""
        self._stopping.clear()
        self._seen = None
        self._watcher = threading.Thread(target=self._follow, daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """The process is gone."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        self._close()

    def set_health(self, index: int, healthy: bool) -> None:
        """A device fails or recovers."""
        with self._changed:
            self._healthy[index] = healthy
            self._version += 1
            self._changed.notify_all()

    # ---- the life of a plugin

    def _follow(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):
                found = (self._folder / "kubelet.sock").stat()
                now = (found.st_ino, found.st_ctime_ns)
                if now != self._seen:
                    self._close()
                    self._serve()
                    if self._register():
                        self._seen = now
            self._stopping.wait(0.05)

    def _serve(self) -> None:
        unary = grpc.unary_unary_rpc_method_handler
        server = grpc.server(ThreadPoolExecutor(8), options=OPTIONS)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": unary(lambda request, context: self._options()),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "GetPreferredAllocation": unary(self._preferred),
            "Allocate": unary(self._allocate),
            "PreStartContainer": unary(self._prepare),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        with contextlib.suppress(FileNotFoundError):
            (self._folder / self._endpoint).unlink()
        server.add_insecure_port(f"unix:{self._folder / self._endpoint}")
        server.start()
        self._server = server

    def _close(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _register(self) -> bool:
        request = kubelet_api.repeated(1, ["v1beta1"]) + kubelet_api.field(2, self._endpoint)
        request += kubelet_api.field(3, self.resource) + kubelet_api.field(4, self._options())
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}", options=OPTIONS) as channel:
            try:
                register: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                register = channel.unary_unary("/v1beta1.Registration/Register")
                register(request, timeout=10)
            except grpc.RpcError:
                return False
        self.calls.append(("Register", []))
        return True

    # ---- the API

    def _options(self) -> bytes:
        return kubelet_api.field(1, int(self._pre_start)) + kubelet_api.field(2, int(self._prefers))

    def _has_news(self, told: int, context: grpc.ServicerContext) -> bool:
        return self._version != told or not context.is_active()

    def _list_and_watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.calls.append(("ListAndWatch", []))
        told = 0
        while context.is_active():
            with self._changed:
                self._changed.wait_for(partial(self._has_news, told, context), 0.1)
                if self._version == told:
                    continue
                told = self._version
                listed = self._listed()
            yield listed

    def _listed(self) -> bytes:
        listed = b""
        for index, device in enumerate(self._ids):
            health = "Healthy" if self._healthy[index] else "Unhealthy"
            one = kubelet_api.field(1, device) + kubelet_api.field(2, health)
            if self._numa is not None:
                one += kubelet_api.field(3, kubelet_api.field(1, kubelet_api.field(1, self._numa[index])))
            listed += kubelet_api.field(1, one)
        return listed

    def _preferred(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b""
        for one in kubelet_api.messages(request, 1):
            available, must = kubelet_api.texts(one, 1), kubelet_api.texts(one, 2)
            self.calls.append(("GetPreferredAllocation", sorted(available)))
            chosen = self._model.choose(
                [self._ids.index(device) for device in available],
                kubelet_api.integer(one, 3),
                self._rng,
                [self._ids.index(device) for device in must],
            )
            answer += kubelet_api.field(1, kubelet_api.repeated(1, [self._ids[index] for index in sorted(chosen)]))
        return answer

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b""
        for one in kubelet_api.messages(request, 1):
            ids = kubelet_api.texts(one, 1)
            self.calls.append(("Allocate", sorted(ids)))
            self._in_allocate()
            visible = kubelet_api.field(1, "NVIDIA_VISIBLE_DEVICES") + kubelet_api.field(2, ",".join(ids))
            answer += kubelet_api.field(1, kubelet_api.field(1, visible))
        return answer

    def _prepare(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls.append(("PreStartContainer", sorted(kubelet_api.texts(request, 1))))
        return b""


def of_machine(folder: Path, name: str | Mapping[str, Any], node: str = "node-1", **options: Any) -> VendorPlugin:
    """The stock NVIDIA plugin on a machine of the catalogue, or on one in the form of its entries."""
    what = machine(name)
    model = device_plugin("nvidia", what.links, what.pcie, link_scope=what.scope, numa=what.numa)
    ids = gpu_uuids(node, what)
    return VendorPlugin(folder, ids, model=model, **{"numa": what.numa, **options})


def main(folder: str, options: Mapping[str, Any]) -> None:
    """Serves until it is killed; with "die_in_allocate" it does that itself."""

    def die() -> None:
        os._exit(9)

    in_allocate = die if options.get("die_in_allocate") else (lambda: None)
    with of_machine(Path(folder), str(options["machine"]), in_allocate=in_allocate):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
